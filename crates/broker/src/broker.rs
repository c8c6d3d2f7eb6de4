//! The broker: links, who wants what, and publishing.

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

/// Parts of the subject space that publishers take turns in. So many that threads seldom meet.
const SHARDS: usize = 64;

/// What a broker may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BrokerConfig {
    /// Links. More: typed error.
    pub max_links: usize,
    /// Subscriptions, each with about 400 bytes. More: typed error.
    pub max_subscriptions: usize,
    /// Of them, those of one link. More: typed error.
    pub max_link_subscriptions: usize,
    /// Bytes that wait for one link. At the bound the policy of whichever subscription would get more decides.
    pub max_link_bytes: u64,
    /// Bytes that wait for all links, counted for each. At the bound as for a link; a link for which nothing waits
    /// may have one batch beyond it.
    pub max_queued_bytes: u64,
    /// Subjects without a subscription of their own whose matches are remembered, each with about 250 bytes. None:
    /// every publish to such a subject looks for its patterns anew.
    pub cached_subjects: usize,
    /// Under which subjects are hashed and group members picked. From the system's randomness, so that nobody can
    /// choose subjects that collide.
    pub seed: u64,
}

impl BrokerConfig {
    /// What `Default` gives. The seed is for tests.
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

/// The broker has as many links as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the node has {max} connections that subscribe, as many as it may: try again later, or raise the bound")]
pub struct TooManyLinks {
    /// The bound.
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

/// A broker at one moment. Counters run since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BrokerStats {
    /// Open links.
    pub links: usize,
    /// Subscriptions.
    pub subscriptions: usize,
    /// Bytes set aside for queues, in steps of 64 KiB a link.
    pub queued_bytes: u64,
    /// Messages that wait, counted for each subscription, as of each link's last change.
    pub queued_messages: u64,
    /// Subjects in memory, because of subscriptions or remembered.
    pub subjects: usize,
    /// Those of them that are remembered without a subscription of their own, about.
    pub cached_subjects: usize,
    /// Batches published, those that nobody wanted included.
    pub batches: u64,
    /// Messages in them.
    pub messages: u64,
    /// Batches that nobody wanted.
    pub unmatched: u64,
    /// Batches put into queues, counted for each subscription.
    pub deliveries: u64,
    /// Batches that were not queued for a subscription that wanted them, because it had no room.
    pub missed: u64,
    /// Publishes that were told to wait.
    pub blocked: u64,
    /// Publishes to a subject that was not in memory.
    pub resolved: u64,
    /// Messages that subscriptions did not get, by policy.
    pub losses: Losses,
}

/// A shard on cache lines of its own.
#[repr(align(128))]
struct Padded(Mutex<Shard>);

/// What links and the broker's handles share.
pub(crate) struct Core {
    pub(crate) config: BrokerConfig,
    hasher: FixedState,
    shards: Box<[Padded]>,
    wild: Wild,
    pub(crate) memory: Memory,
    links: AtomicUsize,
    subscriptions: AtomicUsize,
    next_link: AtomicU64,
    /// For figures only: publishing does not come here.
    open: Mutex<HashMap<LinkId, Weak<Shared>, FixedState>>,
}

impl Core {
    fn shard(&self, subject: &[u8]) -> (u64, MutexGuard<'_, Shard>) {
        let hash = topics::hash(&self.hasher, subject);
        // The middle bits: the table inside uses the others.
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

/// Publishes to subscriptions. A handle: clones are the same broker.
#[derive(Clone, Debug)]
pub struct Broker {
    core: Arc<Core>,
}

impl Broker {
    /// One without links.
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

    /// A link for a connection. `notify` is called when there is something to [`take`](Link::take) after there was
    /// nothing, or after a take that left something.
    ///
    /// # Errors
    /// There are as many as there may be.
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

    /// Puts a batch into the queues of all that asked for its subject. Never waits for room: that is what `waiter` is
    /// for, which is notified when it is worth trying again after [`WouldBlock`] (with none, whoever publishes finds
    /// out by himself). It may be notified for nothing.
    ///
    /// To keep its messages in order, a publisher does not publish what comes after a batch before that one is in.
    ///
    /// # Errors
    /// A subscription that asks publishers to wait has no room; nobody got anything.
    pub fn publish(&self, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Result<Published, WouldBlock> {
        // Fires when it is dropped, after the shard is unlocked.
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

    /// Its figures. Takes each shard's lock in turn: for metrics, not for every publish.
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
