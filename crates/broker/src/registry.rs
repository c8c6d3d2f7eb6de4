//! State that the links and handles of a broker share.
//!
//! Owns: the index of all subscriptions (shards of subjects, and the trie of patterns), the open links, the limits on
//! links and subscriptions, the memory for queues, and the statistics. Does not own: queues, or publishing.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use foldhash::fast::FixedState;
use thalweg_types::{
    classified,
    limits::{
        DEFAULT_BROKER_BYTES, DEFAULT_CACHED_SUBJECTS, DEFAULT_LINK_BYTES, MAX_LINK_SUBSCRIPTIONS, MAX_LINKS,
        MAX_SUBSCRIPTIONS,
    },
};

use crate::{
    Losses, Notify, Pattern,
    announcements::Announcements,
    interest::{GroupFull, Target},
    joins::Joins,
    link::{LinkId, Shared},
    locked,
    memory::{LinkOwner, Memory},
    subject_table::{self, Counters, Shard},
    traffic::Traffic,
    wildcards::WildcardIndex,
};

/// Number of shards into which subjects are divided by hash. Each shard has a mutex. A publish holds the mutex of its
/// subject's shard. With this number of shards, threads rarely contend.
const SHARDS: usize = 64;

/// Limits of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Maximum number of open links. A link holds the queues of one connection. Opening another link returns an error.
    pub max_links: usize,
    /// Maximum number of subscriptions; each costs about 400 bytes. Further subscriptions return an error.
    pub max_subscriptions: usize,
    /// Maximum number of subscriptions of one link. Further subscriptions return an error.
    pub max_link_subscriptions: usize,
    /// Maximum bytes of messages queued for one link. At the limit, the broker treats a further message as if the queue
    /// of its subscription were full: it applies the policy of that subscription.
    pub max_link_bytes: u64,
    /// Maximum bytes of messages queued for all links together. A batch counts once for each link. At the limit, the
    /// broker applies the policy of the subscription that a further message is for. It does the same if only the
    /// [reserve](Self::reserve_percent) is left and the link may not use it. A link with an empty queue can exceed the
    /// limit by one batch.
    pub max_queued_bytes: u64,
    /// Part of `max_queued_bytes`, in percent, that is kept for the links and the [owners](LinkOwner) that hold the
    /// fewest bytes. With 0, one client that does not read can use up all memory, and other clients lose messages.
    pub reserve_percent: u32,
    /// Maximum number of cached subjects. The cache stores which patterns match a subject that has no subscriptions of
    /// its own, at about 250 bytes for each subject. With 0, every publish to such a subject searches the patterns
    /// again.
    pub cached_subjects: usize,
    /// True if this node announces the patterns of its subscriptions to other nodes, so that they forward matching
    /// messages. Each pattern then costs about 150 bytes more.
    pub announces: bool,
    /// Seed for hashing subjects, and for choosing the members of queue groups that receive a message. Use a random
    /// number of the operating system, so that clients cannot choose subjects with equal hashes.
    pub seed: u64,
}

impl BrokerConfig {
    /// Default limits of a broker. The default seed is only for tests.
    pub const DEFAULTS: Self = Self {
        max_links: MAX_LINKS,
        max_subscriptions: MAX_SUBSCRIPTIONS,
        max_link_subscriptions: MAX_LINK_SUBSCRIPTIONS,
        max_link_bytes: DEFAULT_LINK_BYTES,
        max_queued_bytes: DEFAULT_BROKER_BYTES,
        reserve_percent: 0,
        cached_subjects: DEFAULT_CACHED_SUBJECTS,
        announces: false,
        seed: 0,
    };
}

impl Default for BrokerConfig {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

/// Error returned when the broker has reached its limit of links.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has reached its limit of {max} connections that subscribe: try again later, or raise the limit")]
pub struct TooManyLinks {
    /// Maximum number of links that the broker may have.
    pub max: usize,
}

classified!(TooManyLinks {
    _ => "too_many_links", Retry;
});

/// Sizes and counters of a broker at one point in time. The counters start when the broker is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerStats {
    /// Number of open links.
    pub links: usize,
    /// Number of present subscriptions, over all links.
    pub subscriptions: usize,
    /// Bytes of memory that are reserved for the queues of all links, in steps of 64 KiB for each link.
    pub queued_bytes: u64,
    /// Number of queued messages. A message counts once for each subscription. The sum is taken from counters that the
    /// links update, so it can be slightly out of date.
    pub queued_messages: u64,
    /// Number of subjects in memory: those with subscriptions and cached ones.
    pub subjects: usize,
    /// Approximate number of cached subjects without subscriptions of their own.
    pub cached_subjects: usize,
    /// Number of batches published, including those without subscribers.
    pub batches: u64,
    /// Number of messages in published batches.
    pub messages: u64,
    /// Number of batches published to subjects without any subscriber.
    pub unmatched: u64,
    /// Number of batches put into queues so far. A batch counts once for each subscription.
    pub deliveries: u64,
    /// Number of batches that a matching subscription missed because its queue was full. A batch counts once for each
    /// subscription.
    pub missed: u64,
    /// Number of attempts to publish that failed because a subscription that blocks publishers had no room.
    pub blocked: u64,
    /// Number of publishes whose subject was not in memory, so that the broker had to search for its matching patterns.
    pub resolved: u64,
    /// Numbers of messages that subscriptions missed, by the policy of the subscription.
    pub losses: Losses,
}

/// A shard aligned to two cache lines of the processor, so that two shards never share one.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// State that the links and handles of a broker share.
pub(crate) struct Registry {
    pub(crate) config: BrokerConfig,
    hasher: FixedState,
    shards: Box<[Padded]>,
    pub(crate) wildcards: WildcardIndex,
    pub(crate) memory: Memory,
    pub(crate) joins: Joins,
    links: AtomicUsize,
    subscriptions: AtomicUsize,
    next_link: AtomicU64,
    /// Open links by id, used only for statistics. A publish does not use this table.
    open: Mutex<HashMap<LinkId, Weak<Shared>, FixedState>>,
    /// Filters that this node announces to other nodes, if it announces any.
    pub(crate) announcements: Option<Announcements>,
    nodes: Mutex<Vec<Weak<Shared>>>,
}

impl Registry {
    pub(crate) fn new(config: BrokerConfig) -> Self {
        let each = config.cached_subjects.div_ceil(SHARDS);
        let shard = |number: u64| Padded(Mutex::new(Shard::new(each, config.seed.wrapping_add(number + 1))));
        Self {
            config,
            hasher: FixedState::with_seed(config.seed),
            shards: (0..SHARDS as u64).map(shard).collect(),
            wildcards: WildcardIndex::new(config.seed),
            memory: Memory::new(config.max_queued_bytes, config.reserve_percent),
            joins: Joins::default(),
            links: AtomicUsize::new(0),
            subscriptions: AtomicUsize::new(0),
            next_link: AtomicU64::new(1),
            open: Mutex::default(),
            announcements: config.announces.then(|| Announcements::new(config.seed)),
            nodes: Mutex::default(),
        }
    }

    /// Creates a link without subscriptions and adds it to the broker, unless the broker has its maximum number of
    /// links.
    pub(crate) fn open_link(
        &self,
        notify: Arc<dyn Notify>,
        owner: Arc<LinkOwner>,
    ) -> Result<Arc<Shared>, TooManyLinks> {
        let BrokerConfig { max_links: max, max_link_bytes, seed, .. } = self.config;
        if self.links.fetch_add(1, Ordering::Relaxed) >= max {
            self.links.fetch_sub(1, Ordering::Relaxed);
            return Err(TooManyLinks { max });
        }
        let id = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Shared::new(id, max_link_bytes, seed, owner, notify, None));
        locked(self.open.lock()).insert(id, Arc::downgrade(&shared));
        Ok(shared)
    }

    /// Adds a link to another node, which does not count towards the limit of links. The broker also notifies the
    /// driver of this link when the filters of this node have changed.
    pub(crate) fn open_node(&self, notify: Arc<dyn Notify>, max_bytes: u64, traffic: Arc<Traffic>) -> Arc<Shared> {
        let id = LinkId(self.next_link.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Shared::new(id, max_bytes, self.config.seed, Arc::default(), notify, Some(traffic)));
        let mut nodes = locked(self.nodes.lock());
        nodes.retain(|node| node.strong_count() > 0);
        nodes.push(Arc::downgrade(&shared));
        shared
    }

    /// Notifies the drivers of the links to other nodes that the filters of this node have changed.
    pub(crate) fn notify_nodes(&self) {
        let nodes: Vec<_> = locked(self.nodes.lock()).iter().filter_map(Weak::upgrade).collect();
        nodes.iter().for_each(|node| node.notify());
    }

    /// Removes a link. Its subscriptions were removed before.
    pub(crate) fn close_link(&self, id: LinkId) {
        locked(self.open.lock()).remove(&id);
        self.links.fetch_sub(1, Ordering::Relaxed);
    }

    /// Locks the shard of a subject. Also returns the subject's hash.
    pub(crate) fn shard(&self, subject: &[u8]) -> (u64, MutexGuard<'_, Shard>) {
        let hash = subject_table::hash(&self.hasher, subject);
        // The shard is selected by the middle bits of the hash, because the shard's hash table uses the other bits.
        let shard = &self.shards[(hash >> 24) as usize % self.shards.len()];
        (hash, locked(shard.0.lock()))
    }

    pub(crate) fn insert(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: Target) -> Result<(), GroupFull> {
        if !pattern.is_literal() {
            return self.wildcards.insert(pattern, group, target);
        }
        let (hash, mut shard) = self.shard(pattern.as_bytes());
        shard.insert(hash, pattern, &self.wildcards, group, target)
    }

    pub(crate) fn remove(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: &Target) {
        if !pattern.is_literal() {
            return self.wildcards.remove(pattern, group, target);
        }
        let (hash, mut shard) = self.shard(pattern.as_bytes());
        shard.remove(hash, pattern, group, target);
    }

    /// Counts a new subscription. Returns false, and counts nothing, if the broker already has the maximum number of
    /// subscriptions.
    pub(crate) fn count_subscription(&self) -> bool {
        let has_room = self.subscriptions.fetch_add(1, Ordering::Relaxed) < self.config.max_subscriptions;
        if !has_room {
            self.uncount_subscriptions(1);
        }
        has_room
    }

    pub(crate) fn uncount_subscriptions(&self, count: usize) {
        self.subscriptions.fetch_sub(count, Ordering::Relaxed);
    }

    fn queued_messages(&self) -> u64 {
        locked(self.open.lock()).values().filter_map(Weak::upgrade).map(|link| link.load()).sum()
    }

    /// Returns the present sizes and counters of the broker. Takes the lock of each shard in turn.
    pub(crate) fn stats(&self) -> BrokerStats {
        let mut stats = BrokerStats {
            links: self.links.load(Ordering::Relaxed),
            subscriptions: self.subscriptions.load(Ordering::Relaxed),
            queued_bytes: self.memory.used(),
            queued_messages: self.queued_messages(),
            losses: self.memory.losses.read(),
            ..BrokerStats::default()
        };
        for shard in &self.shards {
            let shard = locked(shard.0.lock());
            let (subjects, cached) = shard.len();
            let Counters { batches, messages, unmatched, deliveries, missed, blocked, resolved } = shard.counters;
            stats.subjects += subjects;
            stats.cached_subjects += cached;
            stats.batches += batches;
            stats.messages += messages;
            stats.unmatched += unmatched;
            stats.deliveries += deliveries;
            stats.missed += missed;
            stats.blocked += blocked;
            stats.resolved += resolved;
        }
        stats
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("config", &self.config).finish_non_exhaustive()
    }
}
