//! The broker: the links of all connections, the subscriptions of all subjects, and publishing.

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
    Action, Classified,
    limits::{
        DEFAULT_BROKER_BYTES, DEFAULT_CACHED_SUBJECTS, DEFAULT_LINK_BYTES, MAX_LINK_SUBSCRIPTIONS, MAX_LINKS,
        MAX_SUBSCRIPTIONS,
    },
};

use crate::{
    Batch, Losses, Notify, Pattern, Published, WouldBlock,
    interest::{GroupFull, Target},
    link::{Link, LinkId, Shared, SubscribeError},
    locked,
    memory::Memory,
    publish::Publish,
    topics::{self, Counters, Shard},
    wake::Wakes,
    wild::Wild,
};

/// Number of shards into which subjects are divided by hash. Each shard has a mutex that a publish to one of
/// its subjects takes. With this many, threads rarely contend.
const SHARDS: usize = 64;

/// Limits of a broker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Maximum number of open links; a link holds the queues of one connection. Opening more returns an
    /// error.
    pub max_links: usize,
    /// Maximum number of subscriptions; each costs about 400 bytes. Further subscriptions return an error.
    pub max_subscriptions: usize,
    /// Maximum number of subscriptions of one link. Further subscriptions return an error.
    pub max_link_subscriptions: usize,
    /// Maximum bytes of messages queued for one link. At the limit, the broker applies the policy of the
    /// subscription that would receive another message.
    pub max_link_bytes: u64,
    /// Maximum bytes of messages queued for all links together; a batch counts once for each link. At the
    /// limit, the broker applies the policy of the subscription that would receive another message. A link
    /// with an empty queue can exceed the limit by one batch.
    pub max_queued_bytes: u64,
    /// Maximum number of cached subjects. The cache stores the matching patterns of subjects that have no
    /// subscriptions of their own, at about 250 bytes each. With 0, every publish to such a subject looks up
    /// its patterns again.
    pub cached_subjects: usize,
    /// Seed for hashing subjects, and for choosing the members of queue groups that receive a message. Use
    /// the system's randomness, so that clients cannot choose colliding subjects.
    pub seed: u64,
}

impl BrokerConfig {
    /// Default limits of a broker. Their seed is for tests only.
    pub const DEFAULTS: Self = Self {
        max_links: MAX_LINKS,
        max_subscriptions: MAX_SUBSCRIPTIONS,
        max_link_subscriptions: MAX_LINK_SUBSCRIPTIONS,
        max_link_bytes: DEFAULT_LINK_BYTES,
        max_queued_bytes: DEFAULT_BROKER_BYTES,
        cached_subjects: DEFAULT_CACHED_SUBJECTS,
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
    /// Maximum number of links.
    pub max: usize,
}

impl Classified for TooManyLinks {
    fn code(&self) -> &'static str {
        "too_many_links"
    }

    fn action(&self) -> Action {
        Action::Retry
    }
}

/// Figures of a broker at one point in time. The counters start when the broker is created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerStats {
    /// Number of open links.
    pub links: usize,
    /// Number of subscriptions.
    pub subscriptions: usize,
    /// Bytes of memory reserved for the queues of all links, in steps of 64 KiB for each link.
    pub queued_bytes: u64,
    /// Number of queued messages, counted once for each subscription. The number of each link is that of its
    /// last change.
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
    /// Number of batches queued, counted once for each subscription.
    pub deliveries: u64,
    /// Number of batches not queued for a matching subscription because its queue was full, counted once for
    /// each subscription.
    pub missed: u64,
    /// Number of publishes that were blocked by a full queue.
    pub blocked: u64,
    /// Number of publishes to a subject that was not in memory, so that its matching patterns had to be
    /// looked up.
    pub resolved: u64,
    /// Numbers of messages that subscriptions missed, by the policy of the subscription.
    pub losses: Losses,
}

/// A shard aligned to two cache lines of the processor, so that two shards never share one.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// State shared by the links and handles of a broker.
pub(crate) struct Core {
    pub(crate) config: BrokerConfig,
    hasher: FixedState,
    shards: Box<[Padded]>,
    wild: Wild,
    pub(crate) memory: Memory,
    links: AtomicUsize,
    subscriptions: AtomicUsize,
    next_link: AtomicU64,
    /// Open links, for figures only; a publish does not use this table.
    open: Mutex<HashMap<LinkId, Weak<Shared>, FixedState>>,
}

impl Core {
    fn shard(&self, subject: &[u8]) -> (u64, MutexGuard<'_, Shard>) {
        let hash = topics::hash(&self.hasher, subject);
        // Uses the middle bits, because the shard's hash table uses the others.
        let shard = &self.shards[(hash >> 24) as usize % self.shards.len()];
        (hash, locked(shard.0.lock()))
    }

    pub(crate) fn insert(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: Target) -> Result<(), GroupFull> {
        if !pattern.is_literal() {
            return self.wild.insert(pattern, group, target);
        }
        let (hash, mut shard) = self.shard(pattern.as_bytes());
        shard.insert(hash, pattern, &self.wild, group, target)
    }

    pub(crate) fn remove(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>, target: &Target) {
        if !pattern.is_literal() {
            return self.wild.remove(pattern, group, target);
        }
        let (hash, mut shard) = self.shard(pattern.as_bytes());
        shard.remove(hash, pattern, group, target);
    }

    pub(crate) fn count_subscription(&self) -> Result<(), SubscribeError> {
        let max = self.config.max_subscriptions;
        if self.subscriptions.fetch_add(1, Ordering::Relaxed) >= max {
            self.uncount_subscriptions(1);
            return Err(SubscribeError::TooMany { max });
        }
        Ok(())
    }

    pub(crate) fn uncount_subscriptions(&self, count: usize) {
        self.subscriptions.fetch_sub(count, Ordering::Relaxed);
    }

    fn queued_messages(&self) -> u64 {
        locked(self.open.lock()).values().filter_map(Weak::upgrade).map(|link| link.load()).sum()
    }

    pub(crate) fn uncount_link(&self, id: LinkId) {
        locked(self.open.lock()).remove(&id);
        self.links.fetch_sub(1, Ordering::Relaxed);
    }
}

impl fmt::Debug for Core {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("config", &self.config).finish_non_exhaustive()
    }
}

/// The message broker: passes published messages to the queues of matching subscriptions. Clones are handles
/// of the same broker.
#[derive(Clone, Debug)]
pub struct Broker {
    core: Arc<Core>,
}

impl Broker {
    /// Creates a broker without links.
    #[must_use]
    pub fn new(config: BrokerConfig) -> Self {
        let each = config.cached_subjects.div_ceil(SHARDS);
        let shard = |number: u64| Padded(Mutex::new(Shard::new(each, config.seed.wrapping_add(number + 1))));
        let core = Core {
            config,
            hasher: FixedState::with_seed(config.seed),
            shards: (0..SHARDS as u64).map(shard).collect(),
            wild: Wild::new(config.seed),
            memory: Memory::new(config.max_queued_bytes),
            links: AtomicUsize::new(0),
            subscriptions: AtomicUsize::new(0),
            next_link: AtomicU64::new(1),
            open: Mutex::default(),
        };
        Self { core: Arc::new(core) }
    }

    /// Opens a link for a connection. The broker calls `notify` when the link has something to
    /// [`take`](Link::take), if the last take returned [`Taken::All`](crate::Taken::All).
    ///
    /// # Errors
    /// The broker has reached its limit of links.
    pub fn open_link(&self, notify: Arc<dyn Notify>) -> Result<Link, TooManyLinks> {
        let BrokerConfig { max_links: max, max_link_bytes, seed, .. } = self.core.config;
        if self.core.links.fetch_add(1, Ordering::Relaxed) >= max {
            self.core.links.fetch_sub(1, Ordering::Relaxed);
            return Err(TooManyLinks { max });
        }
        let id = LinkId(self.core.next_link.fetch_add(1, Ordering::Relaxed));
        let shared = Arc::new(Shared::new(id, max_link_bytes, seed, notify));
        locked(self.core.open.lock()).insert(id, Arc::downgrade(&shared));
        Ok(Link::new(shared, Arc::clone(&self.core)))
    }

    /// Puts a batch into the queues of all matching subscriptions. Never waits for room. After the error
    /// [`WouldBlock`] the broker notifies `waiter` when a retry may succeed, and sometimes without need.
    /// Without a waiter, the publisher decides when to retry.
    ///
    /// To keep its messages in order, a publisher must not publish a later batch before this one has
    /// succeeded.
    ///
    /// # Errors
    /// A subscription that blocks publishers has no room. The batch was not queued for any subscription.
    pub fn publish(&self, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Result<Published, WouldBlock> {
        // Notifies when it is dropped, after the shard is unlocked.
        let mut wakes = Wakes::default();
        let core = &*self.core;
        let (hash, mut shard) = core.shard(batch.subject().as_bytes());
        let mut publish = Publish { batch, memory: &core.memory, waiter, wakes: &mut wakes };
        let published =
            shard.with_interest(batch.subject(), hash, &core.wild, |interest, dice| publish.run(interest, dice));
        count(&mut shard.counters, batch, &published);
        drop(shard);
        published
    }

    /// Returns the figures of the broker. Takes each shard's lock in turn, so it is meant for metrics, not
    /// for a call with every publish.
    #[must_use]
    pub fn stats(&self) -> BrokerStats {
        let mut stats = BrokerStats {
            links: self.core.links.load(Ordering::Relaxed),
            subscriptions: self.core.subscriptions.load(Ordering::Relaxed),
            queued_bytes: self.core.memory.used(),
            queued_messages: self.core.queued_messages(),
            losses: self.core.memory.losses.read(),
            ..BrokerStats::default()
        };
        for shard in &self.core.shards {
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

fn count(counters: &mut Counters, batch: &Batch, published: &Result<Published, WouldBlock>) {
    match published {
        Err(_) => counters.blocked += 1,
        Ok(published) => {
            counters.batches += 1;
            counters.messages += u64::from(batch.messages());
            counters.unmatched += u64::from(!published.matched());
            counters.deliveries += published.delivered;
            counters.missed += published.missed;
        }
    }
}
