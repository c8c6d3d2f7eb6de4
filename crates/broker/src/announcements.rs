//! The filters that this node announces to the other nodes. A filter is a pattern of its clients' subscriptions, or a
//! queue group with a pattern and its number of members.
//!
//! Owns: the set of filters, the version of each change, and the bounds on the announced filters. Does not own:
//! connections, or the filters of other nodes (see [`node`](crate::node)).
//!
//! ```text
//!   filters     jobs.* g   3 members   version 7          changes   5 → a.b (ended)
//!               a.>        1           version 6                    6 → a.>
//!               a.b        0 (ended)   version 5                    7 → jobs.* g
//! ```
//! A node that has version 5 gets the changes 6 and 7. Several changes of a filter are one: the last. Ended filters are
//! forgotten from the oldest on when there are many, and a node whose version is older than the last forgotten one gets
//! the whole set.
//!
//! A node with more patterns than [`MAX_FILTERS`] announces the pattern `>` in their place, and then receives all
//! messages. `>` cannot replace queue groups, because the node of the publisher chooses the member that receives a
//! message. When the bound on queue groups is reached, further subscriptions with a new queue group are rejected.
//!
//! Invariant: each filter with a version above `floor` is in `changes` under this version.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard},
};

use foldhash::fast::FixedState;

use crate::{Pattern, locked};

/// Maximum number of patterns that a node announces to other nodes. The same maximum holds separately for queue groups.
/// A group counts once for each pattern.
pub const MAX_FILTERS: usize = 65_536;
/// Maximum total bytes of the announced patterns. The same maximum holds separately for the announced queue groups with
/// their patterns.
const MAX_FILTER_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of ended filters that are remembered, so that other nodes can still learn of their end.
const MAX_ENDED: usize = 16_384;
/// Largest number of members of a queue group that a node announces to other nodes. Of the group's messages, a node
/// receives a share in proportion to its announced members.
pub const MAX_ANNOUNCED_MEMBERS: u32 = 32;

/// One filter of a node: a pattern, or a queue group with a pattern.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Filter {
    /// Pattern of the subscriptions that this filter stands for.
    pub pattern: Arc<[u8]>,
    /// Name of the queue group; `None` if the filter is only a pattern.
    pub group: Option<Arc<[u8]>>,
}

/// Filters to announce to a node that has none of them, or has an older version.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Announcement {
    /// True if `filters` has all filters of the node, and so replaces all filters announced before.
    pub is_whole: bool,
    /// Version of the filters that the receiving node must have before it applies this announcement; 0 if it needs
    /// none.
    pub from: u64,
    /// Version of the filters that the receiving node has after it has applied this announcement.
    pub version: u64,
    /// Filters, each with its number of members. The number is 0 for a filter that has ended, and 1 for a pattern.
    pub filters: Vec<(Filter, u32)>,
}

/// Error returned when the node has reached its maximum number of queue groups.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TooManyGroups;

#[derive(Debug)]
struct Entry {
    members: u32,
    version: u64,
}

#[derive(Debug, Default)]
struct Size {
    filters: usize,
    bytes: usize,
}

impl Size {
    fn fits(&self, part: usize) -> bool {
        self.filters <= MAX_FILTERS / part && self.bytes <= MAX_FILTER_BYTES / part
    }
}

#[derive(Debug)]
struct State {
    filters: HashMap<Filter, Entry, FixedState>,
    changes: BTreeMap<u64, Filter>,
    ended: BTreeSet<u64>,
    version: u64,
    /// Version of the newest ended filter that this node has forgotten. If another node has an older version of the
    /// filters, it gets all filters, because this node no longer has all changes since then.
    floor: u64,
    patterns: Size,
    groups: Size,
    /// True while the node announces `>` in place of its patterns.
    is_everything: bool,
    /// True if the code that serves the connections to other nodes was notified of changed filters, and has not read
    /// the changes since then.
    is_notified: bool,
}

/// The filters that this node announces to the other nodes of its cluster.
#[derive(Debug)]
pub(crate) struct Announcements(Mutex<State>);

fn bytes_of(filter: &Filter) -> usize {
    filter.pattern.len() + filter.group.as_ref().map_or(0, |group| group.len())
}

fn announced(filter: &Filter, members: u32) -> u32 {
    members.min(if filter.group.is_some() { MAX_ANNOUNCED_MEMBERS } else { 1 })
}

impl Announcements {
    pub(crate) fn new(seed: u64) -> Self {
        Self(Mutex::new(State {
            filters: HashMap::with_hasher(FixedState::with_seed(seed)),
            changes: BTreeMap::new(),
            ended: BTreeSet::new(),
            version: 0,
            floor: 0,
            patterns: Size::default(),
            groups: Size::default(),
            is_everything: false,
            is_notified: false,
        }))
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        locked(self.0.lock())
    }

    /// Adds a subscription of a client to the filters. Returns true if the caller must notify the code that serves the
    /// connections to other nodes.
    pub(crate) fn added(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>) -> Result<bool, TooManyGroups> {
        let filter = Filter { pattern: Arc::clone(pattern.shared()), group: group.cloned() };
        let mut state = self.lock();
        let members = state.filters.get(&filter).map_or(0, |entry| entry.members);
        if members == 0 {
            let size = if group.is_some() { &mut state.groups } else { &mut state.patterns };
            if group.is_some() && (size.filters >= MAX_FILTERS || size.bytes + bytes_of(&filter) > MAX_FILTER_BYTES) {
                return Err(TooManyGroups);
            }
            size.filters += 1;
            size.bytes += bytes_of(&filter);
        }
        Ok(state.set(filter, members, members + 1))
    }

    /// Removes a subscription of a client from the filters. Returns true if the caller must notify the code that serves
    /// the connections to other nodes.
    pub(crate) fn removed(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>) -> bool {
        let filter = Filter { pattern: Arc::clone(pattern.shared()), group: group.cloned() };
        let mut state = self.lock();
        let members = state.filters.get(&filter).map_or(0, |entry| entry.members);
        if members == 0 {
            debug_assert!(false, "the subscription was added");
            return false;
        }
        if members == 1 {
            let size = if group.is_some() { &mut state.groups } else { &mut state.patterns };
            size.filters -= 1;
            size.bytes -= bytes_of(&filter);
        }
        state.set(filter, members, members - 1)
    }

    /// Returns the filters to announce to a node that has the version `sent`; `sent` is `None` if the node has no
    /// filters yet. Returns `None` if the node has the newest version.
    pub(crate) fn since(&self, sent: Option<u64>) -> Option<Announcement> {
        let mut state = self.lock();
        state.is_notified = false;
        if sent == Some(state.version) {
            return None;
        }
        let is_whole = sent.is_none_or(|sent| sent < state.floor);
        let filters = if is_whole {
            state.whole()
        } else {
            let changes = state.changes.range(sent.map_or(0, |sent| sent + 1)..);
            let with_members = changes.filter_map(|(_, filter)| {
                let entry = state.filters.get(filter)?;
                Some((filter.clone(), announced(filter, entry.members)))
            });
            with_members.collect()
        };
        Some(Announcement { is_whole, from: sent.unwrap_or(0), version: state.version, filters })
    }
}

impl State {
    /// Changes the number of members of a filter from `before` to `members`. Returns true if the caller must notify the
    /// code that serves the connections to other nodes.
    fn set(&mut self, filter: Filter, before: u32, members: u32) -> bool {
        let is_pattern = filter.group.is_none();
        if is_pattern && self.is_everything && members == 0 {
            self.filters.remove(&filter);
        } else {
            let entry = self.filters.entry(filter.clone()).or_insert(Entry { members: 0, version: 0 });
            entry.members = members;
        }
        if is_pattern && self.turn() {
            return self.notify();
        }
        if announced(&filter, before) == announced(&filter, members) || is_pattern && self.is_everything {
            return false;
        }
        self.version += 1;
        let version = self.version;
        if let Some(entry) = self.filters.get_mut(&filter) {
            let old = std::mem::replace(&mut entry.version, version);
            self.changes.remove(&old);
            self.ended.remove(&old);
        }
        self.changes.insert(version, filter);
        if members == 0 {
            self.ended.insert(version);
            self.forget();
        }
        self.notify()
    }

    fn notify(&mut self) -> bool {
        !std::mem::replace(&mut self.is_notified, true)
    }

    /// Forgets the ended filter with the oldest version, if this node remembers more than [`MAX_ENDED`] ended filters.
    fn forget(&mut self) {
        if self.ended.len() <= MAX_ENDED {
            return;
        }
        if let Some(oldest) = self.ended.pop_first() {
            if let Some(filter) = self.changes.remove(&oldest) {
                self.filters.remove(&filter);
            }
            self.floor = self.floor.max(oldest);
        }
    }

    /// Switches to announcing the pattern `>`, which matches every subject, in place of the patterns if they exceed
    /// their limits. Switches back if the patterns need at most half of the limits. Returns true after a switch; all
    /// other nodes then get all filters again.
    fn turn(&mut self) -> bool {
        let is_everything = if self.is_everything { !self.patterns.fits(2) } else { !self.patterns.fits(1) };
        if is_everything == self.is_everything {
            return false;
        }
        self.is_everything = is_everything;
        self.version += 1;
        self.floor = self.version;
        self.changes.clear();
        self.ended.clear();
        self.filters.retain(|_, entry| entry.members > 0);
        true
    }

    fn whole(&self) -> Vec<(Filter, u32)> {
        let is_announced = |filter: &Filter| filter.group.is_some() || !self.is_everything;
        let everything = self.is_everything.then(|| (Filter { pattern: b">"[..].into(), group: None }, 1));
        let live = self.filters.iter().filter(|(filter, entry)| entry.members > 0 && is_announced(filter));
        let live = live.map(|(filter, entry)| (filter.clone(), announced(filter, entry.members)));
        everything.into_iter().chain(live).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text.as_bytes()).unwrap()
    }

    fn add(announcements: &Announcements, text: &str, group: Option<&str>) -> bool {
        let group = group.map(|group| group.as_bytes().into());
        announcements.added(&pattern(text), group.as_ref()).unwrap()
    }

    fn remove(announcements: &Announcements, text: &str, group: Option<&str>) -> bool {
        let group = group.map(|group| group.as_bytes().into());
        announcements.removed(&pattern(text), group.as_ref())
    }

    /// Returns the announced filters as text, in sorted order.
    fn shown(announcement: &Announcement) -> Vec<String> {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let one = |(filter, members): &(Filter, u32)| {
            let group = filter.group.as_ref().map_or(String::new(), |group| format!(" {}", text(group)));
            format!("{}{group} {members}", text(&filter.pattern))
        };
        let mut all: Vec<_> = announcement.filters.iter().map(one).collect();
        all.sort();
        all
    }

    #[test]
    fn a_node_gets_everything_first_and_then_what_has_changed() {
        let announcements = Announcements::new(1);
        let first = announcements.since(None).unwrap();
        assert!(first.is_whole && first.filters.is_empty());
        assert!(add(&announcements, "a.*", None));
        assert!(!add(&announcements, "b", Some("g")), "the nodes know already that something has changed");
        let changes = announcements.since(Some(first.version)).unwrap();
        assert_eq!((changes.is_whole, shown(&changes)), (false, vec!["a.* 1".to_owned(), "b g 1".to_owned()]));
        assert_eq!(announcements.since(Some(changes.version)), None);
        // A second subscription to a pattern changes nothing for other nodes. A second member of a queue group changes
        // its number of members.
        assert!(!add(&announcements, "a.*", None));
        assert!(add(&announcements, "b", Some("g")));
        remove(&announcements, "a.*", None);
        let members = announcements.since(Some(changes.version)).unwrap();
        assert_eq!(shown(&members), ["b g 2"]);
        remove(&announcements, "a.*", None);
        remove(&announcements, "b", Some("g"));
        remove(&announcements, "b", Some("g"));
        let ended = announcements.since(Some(members.version)).unwrap();
        assert_eq!(shown(&ended), ["a.* 0", "b g 0"]);
        assert!(announcements.since(None).unwrap().filters.is_empty());
    }

    #[test]
    fn ended_filters_are_forgotten_and_nodes_that_need_them_get_everything() {
        let announcements = Announcements::new(1);
        add(&announcements, "kept", None);
        let known = announcements.since(None).unwrap().version;
        for number in 0..=MAX_ENDED {
            let name = format!("short.{number}");
            add(&announcements, &name, None);
            remove(&announcements, &name, None);
        }
        let state = announcements.lock();
        assert!(state.filters.len() <= MAX_ENDED + 1 && state.changes.len() <= MAX_ENDED + 1);
        drop(state);
        let all = announcements.since(Some(known)).unwrap();
        assert_eq!((all.is_whole, shown(&all)), (true, vec!["kept 1".to_owned()]));
    }

    #[test]
    fn too_many_patterns_are_announced_as_all_subjects_until_half_of_them_are_left() {
        let announcements = Announcements::new(1);
        add(&announcements, "jobs", Some("g"));
        for number in 0..MAX_FILTERS {
            add(&announcements, &format!("p.{number}"), None);
        }
        let before = announcements.since(None).unwrap();
        assert_eq!(before.filters.len(), MAX_FILTERS + 1);
        assert!(add(&announcements, "one.more", None));
        let everything = announcements.since(Some(before.version)).unwrap();
        assert_eq!((everything.is_whole, shown(&everything)), (true, vec!["> 1".to_owned(), "jobs g 1".to_owned()]));
        assert!(!add(&announcements, "another", None), "nothing changes for others");
        assert!(add(&announcements, "jobs", Some("g")));
        let member = announcements.since(Some(everything.version)).unwrap();
        assert_eq!((member.is_whole, shown(&member)), (false, vec!["jobs g 2".to_owned()]));
        remove(&announcements, "one.more", None);
        remove(&announcements, "another", None);
        for number in 0..MAX_FILTERS / 2 {
            remove(&announcements, &format!("p.{number}"), None);
        }
        let fewer = announcements.since(Some(member.version)).unwrap();
        assert_eq!((fewer.is_whole, fewer.filters.len()), (true, MAX_FILTERS / 2 + 1));
    }

    #[test]
    fn queue_groups_beyond_the_bound_are_rejected() {
        let announcements = Announcements::new(1);
        let group: Arc<[u8]> = b"g"[..].into();
        for number in 0..MAX_FILTERS {
            announcements.added(&pattern(&format!("p.{number}")), Some(&group)).unwrap();
        }
        assert_eq!(announcements.added(&pattern("one.more"), Some(&group)), Err(TooManyGroups));
        assert_eq!(announcements.added(&pattern("p.1"), Some(&group)), Ok(false), "it is known");
        announcements.removed(&pattern("p.2"), Some(&group));
        assert!(announcements.added(&pattern("one.more"), Some(&group)).is_ok());
    }
}
