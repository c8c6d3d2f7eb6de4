//! A shard (part) of the subjects, with the subscriptions to exactly these subjects and the cached matches of patterns.
//!
//! Owns: `Shard`, the cache of merged subscriptions, the counters of publishes, and the random numbers for queue
//! groups. Does not own: the shard's mutex, the patterns (`wildcards`), or the delivery (`publish`).
//!
//! A shard's mutex also ensures that all subscribers see concurrent publishes to a subject in one order: see
//! [`publish`](crate::publish). A subject stays in memory while it has subscriptions of its own. Other subjects are
//! cached from their second publish on, up to a limit; the oldest is evicted first. (A reply subject usually gets only
//! one publish, so it is not cached and evicts no other subject.)
//!
//! For each subject the shard keeps the merged list of its matching subscriptions, but at most
//! [`CACHED_TARGETS_PER_SUBJECT`] entries per subject on average. Otherwise a client with very many subscriptions to
//! `>` would fill the memory with such lists, one for each subject. Invariant: `kept` of a shard is the sum of `kept`
//! of its subjects, and at most `max_kept`.

use std::{collections::VecDeque, hash::BuildHasher, sync::Arc};

use foldhash::fast::FixedState;
use hashbrown::{HashTable, hash_table::Entry};
use thalweg_types::limits::CACHED_TARGETS_PER_SUBJECT;

use crate::{
    Pattern, Subject,
    interest::{GroupFull, Interest, Target},
    wildcards::{First, Generation, WildcardIndex},
};

/// Minimum number of subjects from which a shard computes its limit on cached matching subscriptions. A shard that may
/// cache fewer subjects computes the limit as if it could cache this number of them.
const MIN_COUNTED_SUBJECTS: usize = 16;
/// Number of slots in the table of the hashes of subjects that were published to once. A subject is cached from its
/// second publish on.
const SEEN: usize = 256;

#[derive(Debug)]
struct SubjectEntry {
    hash: u64,
    name: Arc<[u8]>,
    own: Interest,
    /// The subscriptions `own` merged with those of all matching patterns; `None` if no pattern matches or they were
    /// not computed.
    merged: Option<Box<Interest>>,
    /// Version of the wildcard patterns for which `merged` was computed.
    since: Generation,
    first: First,
    /// Number of subscriptions in `merged`, as it counts towards a limit of the shard: the limit on the subscriptions
    /// in the merged lists of all subjects.
    kept: usize,
    /// True while the subject is in the shard's queue of cached subjects that may be evicted.
    is_queued: bool,
}

impl SubjectEntry {
    fn new(hash: u64, name: Arc<[u8]>, first: First) -> Self {
        let (own, since) = (Interest::default(), Generation::UNKNOWN);
        Self { hash, name, own, merged: None, since, first, kept: 0, is_queued: false }
    }

    /// Returns all subscriptions that match the subject now. First computes `merged` again if any patterns that may
    /// match have changed.
    fn interest(&mut self, wild: &WildcardIndex) -> &Interest {
        if self.since != wild.generation(self.first) {
            let (since, merged) = wild.resolve(&self.name, self.first, &self.own);
            self.since = since;
            self.merged = merged.map(Box::new);
        }
        self.merged.as_deref().unwrap_or(&self.own)
    }

    /// Decides if `merged` stays in memory after a publish. If it was computed anew since the generation `before`,
    /// counts its subscriptions in `kept`, the number that all subjects of the shard keep. Drops `merged` instead if
    /// `kept` would exceed `max_kept`.
    fn keep_merged(&mut self, before: Generation, kept: &mut usize, max_kept: usize) {
        if self.since == before {
            return;
        }
        *kept -= std::mem::take(&mut self.kept);
        let found = self.merged.as_ref().map_or(0, |merged| merged.len());
        if found > max_kept - *kept {
            self.drop_merged(kept);
            return;
        }
        self.kept = found;
        *kept += found;
    }

    /// Drops `merged`, so that the next publish computes it again. Subtracts its subscriptions from `kept`, the number
    /// that all subjects of the shard keep.
    fn drop_merged(&mut self, kept: &mut usize) {
        *kept -= std::mem::take(&mut self.kept);
        self.merged = None;
        self.since = Generation::UNKNOWN;
    }
}

/// Counters of a shard of subjects, protected by its mutex.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counters {
    pub(crate) batches: u64,
    pub(crate) messages: u64,
    pub(crate) unmatched: u64,
    pub(crate) deliveries: u64,
    pub(crate) missed: u64,
    pub(crate) blocked: u64,
    pub(crate) resolved: u64,
}

/// A pseudo-random generator for choosing members of queue groups.
#[derive(Debug)]
pub(crate) struct MemberRng(u64);

impl MemberRng {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns a random number below `count`, which must not be zero. (Algorithm: xorshift64. The high bits of a
    /// product replace a division.)
    pub(crate) fn below(&mut self, count: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        ((u128::from(self.0) * count as u128) >> 64) as usize
    }
}

#[derive(Debug)]
pub(crate) struct Shard {
    subjects: HashTable<SubjectEntry>,
    /// Hashes of the cached subjects, oldest first. The oldest subject is evicted first.
    eviction_queue: VecDeque<u64>,
    max_remembered: usize,
    kept: usize,
    max_kept: usize,
    seen: Box<[u32; SEEN]>,
    pub(crate) member_rng: MemberRng,
    pub(crate) counters: Counters,
}

impl Shard {
    pub(crate) fn new(max_remembered: usize, seed: u64) -> Self {
        Self {
            subjects: HashTable::new(),
            eviction_queue: VecDeque::new(),
            max_remembered,
            kept: 0,
            max_kept: CACHED_TARGETS_PER_SUBJECT * max_remembered.max(MIN_COUNTED_SUBJECTS),
            seen: Box::new([0; SEEN]),
            member_rng: MemberRng::new(seed),
            counters: Counters::default(),
        }
    }

    /// Returns the number of subjects in memory, and the number of those that are cached without subscriptions of their
    /// own.
    pub(crate) fn len(&self) -> (usize, usize) {
        (self.subjects.len(), self.eviction_queue.len())
    }

    pub(crate) fn insert(
        &mut self,
        hash: u64,
        pattern: &Pattern,
        wild: &WildcardIndex,
        group: Option<&Arc<[u8]>>,
        target: Target,
    ) -> Result<(), GroupFull> {
        let name = pattern.shared();
        let same = |topic: &SubjectEntry| topic.name == *name;
        let topic = match self.subjects.entry(hash, same, |topic| topic.hash) {
            Entry::Occupied(found) => found.into_mut(),
            Entry::Vacant(none) => none.insert(SubjectEntry::new(hash, Arc::clone(name), wild.first(name))).into_mut(),
        };
        topic.since = Generation::UNKNOWN;
        topic.own.insert(group, target)
    }

    pub(crate) fn remove(&mut self, hash: u64, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: &Target) {
        let name = pattern.as_bytes();
        let Ok(mut found) = self.subjects.find_entry(hash, |topic| *topic.name == *name) else { return };
        let topic = found.get_mut();
        topic.own.remove(group, target);
        topic.drop_merged(&mut self.kept);
        if topic.own.is_empty() && !topic.is_queued {
            found.remove();
        }
    }

    /// Calls `then` with all subscriptions that match the subject.
    pub(crate) fn with_interest<R>(
        &mut self,
        subject: &Subject,
        hash: u64,
        wild: &WildcardIndex,
        then: impl FnOnce(&Interest, &mut MemberRng) -> R,
    ) -> R {
        if let Some(topic) = self.subjects.find_mut(hash, |topic| *topic.name == *subject.as_bytes()) {
            let before = topic.since;
            let result = then(topic.interest(wild), &mut self.member_rng);
            topic.keep_merged(before, &mut self.kept, self.max_kept);
            return result;
        }
        let mut topic = SubjectEntry::new(hash, Arc::clone(subject.shared()), wild.first(subject.as_bytes()));
        self.counters.resolved += 1;
        let result = then(topic.interest(wild), &mut self.member_rng);
        if self.was_seen(hash) && self.max_remembered > 0 {
            topic.keep_merged(Generation::UNKNOWN, &mut self.kept, self.max_kept);
            self.remember(topic);
        }
        result
    }

    /// Returns true if a subject that is not in memory was published to a short time ago. Records a publish to the
    /// subject.
    fn was_seen(&mut self, hash: u64) -> bool {
        let mark = (hash >> 32) as u32 | 1;
        let slot = &mut self.seen[(hash >> 8) as usize % SEEN];
        std::mem::replace(slot, mark) == mark
    }

    fn remember(&mut self, mut topic: SubjectEntry) {
        while self.eviction_queue.len() >= self.max_remembered {
            let Some(oldest) = self.eviction_queue.pop_front() else { break };
            let is_queued = |topic: &SubjectEntry| topic.is_queued && topic.hash == oldest;
            let Ok(mut found) = self.subjects.find_entry(oldest, is_queued) else { continue };
            found.get_mut().is_queued = false;
            if found.get().own.is_empty() {
                self.kept -= found.get().kept;
                found.remove();
            }
        }
        topic.is_queued = true;
        self.eviction_queue.push_back(topic.hash);
        self.subjects.insert_unique(topic.hash, topic, |topic| topic.hash);
    }
}

/// Hash of a subject, computed with the broker's seed.
pub(crate) fn hash(hasher: &FixedState, subject: &[u8]) -> u64 {
    hasher.hash_one(subject)
}
