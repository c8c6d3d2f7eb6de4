//! Table of the subscriptions of all Redis clients, by name. `PUBSUB` reads it, and publishers use it to compute the
//! number of receivers of a message.
//!
//! The broker counts the subscriptions that match a subject. For a glob, the client subscribes at the broker with a
//! subject pattern, which can match more channels than the glob. So the subscriptions whose glob does not match the
//! channel are subtracted from the broker's count. This costs one comparison for each glob and batch, as in Redis, and
//! nothing if there are no globs. The number of comparisons is bounded.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use thalweg_broker::{Pattern, Subject};
use thalweg_redis::{channels::channel_of, glob};

/// Maximum number of channels or patterns that are read from the table each time it is locked.
pub(crate) const PAGE_NAMES: usize = 256;
/// Number of comparisons after which a publish stops comparing globs with its channel, and counts the remaining globs
/// as matching. This number of comparisons takes about a third of a millisecond.
const MAX_COMPARISONS: u64 = 300_000;
/// Cost of examining one glob, expressed as a number of comparisons. It is added to the comparisons of the glob's
/// bytes.
const COMPARISONS_OF_SUBJECT: u64 = 64;

/// Kind of a client's subscription: to a channel, to a pattern, or to a sharded channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Subscription to a channel by name.
    Channel,
    /// Subscription to channels by a glob pattern.
    Pattern,
    /// Subscription to a sharded channel by name. Unlike for other channels, its messages have the type `smessage`.
    Shard,
}

impl Kind {
    /// Number of kinds of subscriptions.
    pub(crate) const COUNT: usize = 3;
    /// All kinds of subscriptions.
    pub(crate) const ALL: [Self; Self::COUNT] = [Self::Channel, Self::Pattern, Self::Shard];
}

#[derive(Debug, Default)]
struct Entry {
    clients: usize,
    patterns: Vec<Pattern>,
}

/// Table of the subscriptions of all Redis clients. The broker's limit on subscriptions bounds its size.
#[derive(Debug, Default)]
pub(crate) struct Registry {
    tables: Mutex<[BTreeMap<Arc<[u8]>, Entry>; Kind::COUNT]>,
    /// Number of distinct globs to which clients are subscribed. It is usually 0, and publishers then skip the table.
    globs: AtomicUsize,
}

impl Registry {
    fn tables(&self) -> MutexGuard<'_, [BTreeMap<Arc<[u8]>, Entry>; Kind::COUNT]> {
        self.tables.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a client's subscription to the channel or glob `name`. `patterns` are the subject patterns with which the
    /// client is subscribed at the broker for this name.
    pub(crate) fn add(&self, kind: Kind, name: &Arc<[u8]>, patterns: Vec<Pattern>) {
        let mut tables = self.tables();
        let entry = tables[kind as usize].entry(Arc::clone(name)).or_default();
        entry.clients += 1;
        entry.patterns = patterns;
        self.globs.store(tables[Kind::Pattern as usize].len(), Ordering::Release);
    }

    /// Removes a client's subscription to the channel or glob `name`.
    pub(crate) fn remove(&self, kind: Kind, name: &[u8]) {
        let mut tables = self.tables();
        let table = &mut tables[kind as usize];
        if let Some(entry) = table.get_mut(name) {
            entry.clients -= 1;
            if entry.clients == 0 {
                table.remove(name);
            }
        }
        self.globs.store(tables[Kind::Pattern as usize].len(), Ordering::Release);
    }

    /// Number of clients that are subscribed to the channel or glob `name`.
    #[must_use]
    pub(crate) fn clients(&self, kind: Kind, name: &[u8]) -> usize {
        self.tables()[kind as usize].get(name).map_or(0, |entry| entry.clients)
    }

    /// Number of distinct channels or globs to which clients have subscriptions of this kind.
    #[must_use]
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.tables()[kind as usize].len()
    }

    /// Number of distinct globs to which clients are subscribed.
    #[must_use]
    pub(crate) fn globs(&self) -> usize {
        self.globs.load(Ordering::Acquire)
    }

    /// Returns at most [`PAGE_NAMES`] channels or globs to which clients have subscriptions of this kind, in sorted
    /// order, after the name `after`.
    #[must_use]
    pub(crate) fn names_after(&self, kind: Kind, after: Option<&Arc<[u8]>>) -> Vec<Arc<[u8]>> {
        let tables = self.tables();
        let from = after.map_or(Bound::Unbounded, |after| Bound::Excluded(Arc::clone(after)));
        let names = tables[kind as usize].range((from, Bound::Unbounded));
        names.take(PAGE_NAMES).map(|(name, _)| Arc::clone(name)).collect()
    }

    /// Returns the number of glob subscriptions of clients that match the subject at the broker, although their glob
    /// does not match the channel. After [`MAX_COMPARISONS`], all further globs count as matching.
    #[must_use]
    pub(crate) fn unmatched_globs(&self, subject: &Subject) -> u64 {
        if self.globs() == 0 {
            return 0;
        }
        let channel = channel_of(subject.as_bytes());
        let tables = self.tables();
        let (mut deaf, mut compared) = (0, 0);
        for (name, entry) in &tables[Kind::Pattern as usize] {
            if compared >= MAX_COMPARISONS {
                break;
            }
            compared += COMPARISONS_OF_SUBJECT;
            let gets_it = entry.patterns.iter().any(|pattern| pattern.matches(subject));
            if gets_it && !glob::matches_counting(name, &channel, &mut compared) {
                deaf += entry.clients as u64;
            }
        }
        deaf
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_redis::channels::patterns_of;

    fn add(registry: &Registry, kind: Kind, name: &[u8]) {
        let patterns = patterns_of(name).unwrap().iter().map(|pattern| Pattern::parse(pattern).unwrap()).collect();
        registry.add(kind, &name.into(), patterns);
    }

    #[test]
    fn names_are_counted_by_kind_and_go_with_their_last_client() {
        let registry = Registry::default();
        for name in [&b"a"[..], b"b", b"a"] {
            add(&registry, Kind::Channel, name);
        }
        add(&registry, Kind::Shard, b"a");
        assert_eq!(registry.clients(Kind::Channel, b"a"), 2);
        assert_eq!(registry.clients(Kind::Shard, b"a"), 1);
        assert_eq!(registry.names_after(Kind::Channel, Some(&b"a"[..].into())), [b"b"[..].into()]);
        registry.remove(Kind::Channel, b"a");
        registry.remove(Kind::Channel, b"b");
        assert_eq!(registry.names_after(Kind::Channel, None), [b"a"[..].into()]);
        registry.remove(Kind::Channel, b"nobody's");
        assert_eq!(registry.clients(Kind::Channel, b"a"), 1);
    }

    #[test]
    fn those_who_get_more_than_they_want_are_known() {
        let registry = Registry::default();
        let subject = |channel: &[u8]| Subject::parse(channel).unwrap();
        assert_eq!(registry.unmatched_globs(&subject(b"hallo")), 0);
        for glob in [&b"h?llo"[..], b"h?llo", b"news.*", b"*", b"hi"] {
            add(&registry, Kind::Pattern, glob);
        }
        assert_eq!(registry.globs(), 4);
        assert_eq!(registry.unmatched_globs(&subject(b"hallo")), 0);
        assert_eq!(registry.unmatched_globs(&subject(b"help")), 2, "both clients of h?llo, and nobody of news.*");
        registry.remove(Kind::Pattern, b"h?llo");
        assert_eq!(registry.unmatched_globs(&subject(b"news.eu")), 1);
    }
}
