//! Subscriptions whose patterns have wildcards: a trie of tokens.
//!
//! Owns: the trie with its lock, and the generations (versions) of the patterns. Does not own: the cached matches
//! (`subject_table`), or the set of subscriptions at a trie node (`interest`).
//!
//! ```text
//!   root ─ orders ─┬─ eu ── tail{a}          orders.eu.>      {a}
//!                  └─ *  ── created{b}       orders.*.created {b}
//! ```
//! One hash table, keyed by parent node and token, has all edges except those for `*`. So a node takes the same memory
//! for any number of children. Adding and removing a subscription takes time proportional to the number of its tokens.
//!
//! Generations are version counters of the patterns; they invalidate cached matches. There are counters selected by the
//! hash of a first token, and a global counter. A change to a pattern increments the counter for its first token, or
//! the global counter if that token is a wildcard. A cached match is valid while the sum of the two counters for its
//! subject is unchanged; counters only increase. A change increments its counter under the trie's write lock. A lookup
//! reads the sum and the matches under one read lock. So a match is never cached with a newer generation than the trie
//! from which it was read.

use std::{
    hash::BuildHasher,
    sync::{
        Arc, RwLock,
        atomic::{AtomicU64, Ordering},
    },
};

use foldhash::fast::FixedState;
use hashbrown::HashTable;
use smallvec::SmallVec;
use thalweg_types::limits::MAX_SUBJECT_TOKENS;

use crate::{
    Pattern,
    interest::{GroupFull, Interest, Target},
    locked,
};

const GENERATIONS: usize = 1024;
const ROOT: u32 = 0;
const NONE: u32 = u32::MAX;

#[derive(Debug)]
struct Node {
    parent: u32,
    star: u32,
    /// Number of trie nodes whose parent is this node.
    children: u32,
    token: Box<[u8]>,
    /// Subscriptions whose patterns end at this trie node. `tail` has the subscriptions whose patterns continue only
    /// with `>` after this node.
    here: Option<Box<Interest>>,
    tail: Option<Box<Interest>>,
}

#[derive(Debug)]
struct PatternTrie {
    nodes: Vec<Node>,
    free: Vec<u32>,
    edges: HashTable<u32>,
    hasher: FixedState,
}

/// The trie of wildcard patterns with its lock, and the generations (version counters) of the patterns.
#[derive(Debug)]
pub(crate) struct WildcardIndex {
    trie: RwLock<PatternTrie>,
    all: AtomicU64,
    by_first: Box<[AtomicU64]>,
    hasher: FixedState,
}

/// Number of the generation counter (version counter) for patterns that begin with a certain token. The hash of the
/// token selects the counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct First(u16);

/// Version of the patterns that may match a subject: the sum of two generation counters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

impl Generation {
    /// A generation (version of the patterns) that never occurs. It marks matches that were never computed.
    pub(crate) const UNKNOWN: Self = Self(u64::MAX);
}

impl WildcardIndex {
    pub(crate) fn new(seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        Self {
            trie: RwLock::new(PatternTrie::new(hasher.clone())),
            all: AtomicU64::new(0),
            by_first: (0..GENERATIONS).map(|_| AtomicU64::new(0)).collect(),
            hasher,
        }
    }

    pub(crate) fn first(&self, subject: &[u8]) -> First {
        let token = subject.split(|byte| *byte == b'.').next().unwrap_or(subject);
        First((self.hasher.hash_one(token) % GENERATIONS as u64) as u16)
    }

    /// Returns the present generation of the patterns that may match subjects with this first token. Uses acquire
    /// ordering: a reader of a new generation also sees the change to the trie that caused it.
    pub(crate) fn generation(&self, first: First) -> Generation {
        let by_first = self.by_first[usize::from(first.0)].load(Ordering::Acquire);
        Generation(self.all.load(Ordering::Acquire).wrapping_add(by_first))
    }

    fn changed(&self, pattern: &Pattern) {
        let counter = match pattern.tokens().next() {
            Some(b"*" | b">") | None => &self.all,
            Some(_) => &self.by_first[usize::from(self.first(pattern.as_bytes()).0)],
        };
        counter.fetch_add(1, Ordering::Release);
    }

    pub(crate) fn insert(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: Target) -> Result<(), GroupFull> {
        let mut trie = locked(self.trie.write());
        trie.insert(pattern, group, target)?;
        self.changed(pattern);
        Ok(())
    }

    pub(crate) fn remove(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: &Target) {
        let mut trie = locked(self.trie.write());
        trie.remove(pattern, group, target);
        self.changed(pattern);
    }

    /// Merges the subscriptions `own` with those of all patterns that match the subject; `None` if no pattern matches.
    /// Also returns the generation of the patterns from which the result was computed.
    pub(crate) fn resolve(&self, subject: &[u8], first: First, own: &Interest) -> (Generation, Option<Interest>) {
        let trie = locked(self.trie.read());
        let generation = self.generation(first);
        let tokens: SmallVec<[&[u8]; MAX_SUBJECT_TOKENS]> = crate::subject::tokens(subject).collect();
        let mut found: SmallVec<[&Interest; 8]> = SmallVec::new();
        trie.matches(ROOT, &tokens, &mut found);
        if found.is_empty() {
            return (generation, None);
        }
        if !own.is_empty() {
            found.push(own);
        }
        (generation, Some(Interest::merged(found.iter().copied())))
    }

    #[cfg(test)]
    fn nodes(&self) -> usize {
        let trie = locked(self.trie.read());
        trie.nodes.len() - trie.free.len()
    }
}

impl PatternTrie {
    fn new(hasher: FixedState) -> Self {
        let root = Node { parent: NONE, star: NONE, children: 0, token: Box::default(), here: None, tail: None };
        Self { nodes: vec![root], free: Vec::new(), edges: HashTable::new(), hasher }
    }

    fn child(&self, parent: u32, token: &[u8]) -> Option<u32> {
        let found = self.edges.find(self.hasher.hash_one((parent, token)), |child| {
            let child = &self.nodes[*child as usize];
            child.parent == parent && *child.token == *token
        });
        found.copied()
    }

    fn matches<'a>(&'a self, at: u32, tokens: &[&[u8]], found: &mut SmallVec<[&'a Interest; 8]>) {
        let node = &self.nodes[at as usize];
        let Some((token, rest)) = tokens.split_first() else {
            found.extend(node.here.as_deref());
            return;
        };
        found.extend(node.tail.as_deref());
        if node.star != NONE {
            self.matches(node.star, rest, found);
        }
        if node.children > u32::from(node.star != NONE)
            && let Some(child) = self.child(at, token)
        {
            self.matches(child, rest, found);
        }
    }

    /// Finds the trie node at which a pattern ends, not counting a `>` at the pattern's end. The second result is true
    /// if the pattern ends with `>`. Returns `None` if the trie has no such node.
    fn find(&self, pattern: &Pattern) -> Option<(u32, bool)> {
        let mut at = ROOT;
        for token in pattern.tokens() {
            at = match token {
                b">" => return Some((at, true)),
                b"*" => Some(self.nodes[at as usize].star).filter(|star| *star != NONE)?,
                token => self.child(at, token)?,
            };
        }
        Some((at, false))
    }

    fn insert(&mut self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: Target) -> Result<(), GroupFull> {
        let mut at = ROOT;
        let mut tail = false;
        for token in pattern.tokens() {
            at = match token {
                b">" => {
                    tail = true;
                    break;
                }
                b"*" if self.nodes[at as usize].star != NONE => self.nodes[at as usize].star,
                b"*" => self.add(at, token),
                token => self.child(at, token).unwrap_or_else(|| self.add(at, token)),
            };
        }
        let node = &mut self.nodes[at as usize];
        let interest = if tail { &mut node.tail } else { &mut node.here };
        interest.get_or_insert_default().insert(group, target)
    }

    fn add(&mut self, parent: u32, token: &[u8]) -> u32 {
        let node = Node { parent, star: NONE, children: 0, token: token.into(), here: None, tail: None };
        let number = match self.free.pop() {
            Some(number) => {
                self.nodes[number as usize] = node;
                number
            }
            None => {
                self.nodes.push(node);
                u32::try_from(self.nodes.len() - 1).expect("limits on subscriptions bound the nodes")
            }
        };
        self.nodes[parent as usize].children += 1;
        if token == b"*" {
            self.nodes[parent as usize].star = number;
        } else {
            let Self { edges, nodes, hasher, .. } = self;
            let hash_of = |child: &u32| {
                let child = &nodes[*child as usize];
                hasher.hash_one((child.parent, &*child.token))
            };
            edges.insert_unique(hasher.hash_one((parent, token)), number, hash_of);
        }
        number
    }

    fn remove(&mut self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: &Target) {
        let Some((mut at, tail)) = self.find(pattern) else { return };
        let node = &mut self.nodes[at as usize];
        let interest = if tail { &mut node.tail } else { &mut node.here };
        if let Some(there) = interest {
            there.remove(group, target);
            if there.is_empty() {
                *interest = None;
            }
        }
        while at != ROOT {
            let node = &self.nodes[at as usize];
            if node.children > 0 || node.here.is_some() || node.tail.is_some() {
                break;
            }
            let parent = node.parent;
            self.remove_empty_node(at);
            at = parent;
        }
    }

    /// Removes a trie node if it has neither subscriptions nor children.
    fn remove_empty_node(&mut self, number: u32) {
        let parent = self.nodes[number as usize].parent;
        let token = std::mem::take(&mut self.nodes[number as usize].token);
        self.nodes[parent as usize].children -= 1;
        if *token == *b"*" {
            self.nodes[parent as usize].star = NONE;
        } else {
            let hash = self.hasher.hash_one((parent, &*token));
            let edge = self.edges.find_entry(hash, |child| *child == number);
            edge.expect("every named node has an edge").remove();
        }
        self.free.push(number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        Policy, SubscribeOptions, SubscriptionId,
        link::{LinkId, Shared, Subscription},
    };

    /// Returns a subscription on a new link of its own.
    fn target() -> Target {
        let shared = Shared::new(LinkId(0), u64::MAX, 1, Arc::default(), Arc::new(|| {}), None);
        let id = SubscriptionId(1);
        let make = |tag| Subscription::new(id, tag, pattern("a"), &SubscribeOptions::DEFAULTS);
        let place = shared.lock().insert(id, Policy::DropNew, make);
        Target { link: Arc::new(shared), slot: place }
    }

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text.as_bytes()).unwrap()
    }

    #[test]
    fn nodes_go_with_the_last_pattern() {
        let wild = WildcardIndex::new(1);
        let texts = ["a.*.c", "a.*.d", "a.>", ">", "*", "*.*", "a.b.c.*", "x.*"];
        let targets: Vec<_> = texts.iter().map(|_| target()).collect();
        for (text, target) in texts.iter().zip(&targets) {
            wild.insert(&pattern(text), None, target.clone()).unwrap();
        }
        let count = |subject: &[u8]| {
            let (_, found) = wild.resolve(subject, wild.first(subject), &Interest::default());
            found.map_or(0, |found| found.targets().iter().count())
        };
        assert_eq!((count(b"a.b.c"), count(b"a"), count(b"a.b"), count(b"z.z.z")), (3, 2, 3, 1));
        for (text, target) in texts.iter().zip(&targets) {
            wild.remove(&pattern(text), None, target);
        }
        assert_eq!(wild.nodes(), 1, "only the root is left");
        assert_eq!(count(b"a.b.c"), 0);
    }

    #[test]
    fn a_change_ends_what_it_may_concern_and_little_else() {
        let wild = WildcardIndex::new(1);
        let first = wild.first(b"orders.new");
        let before = wild.generation(first);
        wild.insert(&pattern("orders.*"), None, target()).unwrap();
        let after = wild.generation(first);
        assert_ne!(before, after);
        let other = (0..).map(|n| format!("other{n}.*")).find(|text| wild.first(text.as_bytes()) != first).unwrap();
        wild.insert(&pattern(&other), None, target()).unwrap();
        assert_eq!(wild.generation(first), after);
        wild.insert(&pattern("*.new"), None, target()).unwrap();
        assert_ne!(wild.generation(first), after);
    }
}
