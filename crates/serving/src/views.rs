//! Subjects and caches of this server: the broker, the named caches, and the clock for both.
//!
//! Owns: their configured bounds; the random seeds, so that clients cannot choose subjects or keys that collide; the
//! timer that frees the memory of expired entries. Does not own: the logic of subjects and caches (the broker's crate),
//! or protocols. HTTP and the native protocol use the same subjects and caches, so a message published over one is
//! delivered over the other, in one encoding (`thalweg_wire::Batch`).

use std::{
    collections::{HashMap, hash_map::RandomState},
    fmt,
    hash::BuildHasher,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use thalweg_broker::{
    Batch, Broker, BrokerConfig, CacheConfig, CacheId, Caches, CreateCacheError, Credit, Moment, NamedCache, Notify,
    Pattern, Policy, Published, Subject, SubscribeError, SubscribeOptions,
};
use thalweg_types::limits::{MAX_CACHES, MAX_LINK_SUBSCRIPTIONS, MAX_LINKS};
use tokio::sync::watch;

use crate::{
    admission::{Account, Reservation, Resource},
    config::Config,
    limits::{MIN_OVERLAPPING, OVERLAPPING_PART},
    overlaps::Overlaps,
};

pub use crate::overlaps::SubscriptionShare;

/// Maximum number of expired cache entries that are freed before other tasks get a turn.
const RECLAIM_AT_ONCE: usize = 10_000;
/// Maximum pause between two runs of the timer that frees expired cache entries. An entry may keep its memory up to
/// this long after it has expired. Readers do not see expired entries.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);
/// Minimum pause between two runs of the timer that frees expired cache entries, so that a sequence of near
/// deadlines does not make the timer run all the time.
const MIN_RECLAIM_PAUSE: Duration = Duration::from_millis(20);

/// First token of the subjects at which this server's clients receive replies to their requests.
const REPLY_PREFIX: &str = "_reply";

/// Reservations that an existing cache holds: its maximum bytes, and one of the permitted caches.
#[derive(Debug)]
struct CacheShare(#[expect(dead_code, reason = "the shares are held until they are dropped")] [Reservation; 2]);

/// The message broker and the caches of a server.
pub struct Views {
    /// Broker that distributes messages published to subjects.
    pub broker: Broker,
    /// Caches of the server. They are found by name.
    pub caches: Caches,
    started: Instant,
    random: RandomState,
    next_token: AtomicU64,
    max_subscriptions: usize,
    overlaps: Arc<Overlaps>,
    /// Reservations of the caches that clients have created, by cache.
    cache_shares: Mutex<HashMap<CacheId, CacheShare>>,
    queue_messages: u64,
    queue_bytes: u64,
    max_queue_bytes: u64,
    new_cache_bytes: u64,
}

impl fmt::Debug for Views {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Views").finish_non_exhaustive()
    }
}

impl Views {
    /// Creates a broker without subscriptions and no caches, with the configured bounds. In a cluster, the broker
    /// announces its subscriptions to the other nodes.
    #[must_use]
    pub fn new(config: &Config, is_in_cluster: bool) -> Self {
        let random = RandomState::new();
        let broker = Broker::new(BrokerConfig {
            max_links: MAX_LINKS,
            max_subscriptions: config.max_subscriptions as usize,
            max_link_subscriptions: MAX_LINK_SUBSCRIPTIONS,
            max_link_bytes: config.max_link_bytes.0,
            max_queued_bytes: config.max_queued_bytes.0,
            reserve_percent: config.share_reserve_percent,
            cached_subjects: config.cached_subjects(),
            announces: is_in_cluster,
            seed: random.hash_one("broker"),
        });
        Self {
            broker,
            caches: Caches::new(config.max_caches_bytes.0),
            started: Instant::now(),
            random,
            next_token: AtomicU64::new(0),
            max_subscriptions: config.max_subscriptions as usize,
            overlaps: Overlaps::new((config.max_subscriptions as usize / OVERLAPPING_PART).max(MIN_OVERLAPPING)),
            cache_shares: Mutex::default(),
            queue_messages: u64::from(config.subscription_messages),
            queue_bytes: config.subscription_bytes.0,
            max_queue_bytes: config.max_link_bytes.0,
            new_cache_bytes: config.new_cache_bytes.0,
        }
    }

    /// Returns the time at which the clock of broker and caches was zero.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Returns the current time as a [`Moment`]: the time since [`started`](Self::started). Broker and caches take
    /// times in this form.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.started.elapsed().into()
    }

    /// Converts a time of the clock that broker and caches use to an [`Instant`].
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.started + Duration::from_nanos(moment.nanos())
    }

    /// Converts an [`Instant`] to a time of the clock that broker and caches use, which starts at zero with the server.
    #[must_use]
    pub fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.started).into()
    }

    /// Returns the options of a subscription, with the limits on queued messages and bytes that the client requests. 0
    /// means the configured default. The limit on bytes is at most the bound for one connection.
    #[must_use]
    pub fn subscribe_options(
        &self,
        policy: Policy,
        messages: u64,
        bytes: u64,
        credit: Credit,
        group: &[u8],
    ) -> SubscribeOptions {
        let or = |asked: u64, configured: u64| if asked == 0 { configured } else { asked };
        SubscribeOptions {
            policy,
            max_messages: or(messages, self.queue_messages),
            max_bytes: or(bytes, self.queue_bytes).min(self.max_queue_bytes),
            credit,
            group: (!group.is_empty()).then(|| group.to_vec()),
        }
    }

    /// Reserves one of the permitted subscriptions for a client that subscribes to `pattern`.
    ///
    /// # Errors
    /// Returns an error if the limit on all subscriptions is reached, or the part of it that the client's address may
    /// use. Also returns one if too many subscriptions of the address can match one subject.
    pub fn subscription_share(
        &self,
        account: &Arc<Account>,
        pattern: &Pattern,
    ) -> Result<SubscriptionShare, SubscribeError> {
        let one = account.take(Resource::Subscriptions, 1);
        self.overlaps.count(pattern, one.ok_or(SubscribeError::TooMany { max: self.max_subscriptions })?)
    }

    /// Returns a random subject for replies. Clients cannot guess it: a client that knew the subject could answer in
    /// place of the responder.
    #[must_use]
    pub fn reply_subject(&self) -> Subject {
        let number = self.next_token.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (self.random.hash_one((number, "high")), self.random.hash_one((number, "low")));
        Subject::parse(format!("{REPLY_PREFIX}.{high:016x}{low:016x}").as_bytes()).expect("two plain tokens")
    }

    /// Returns the cache with this name, and creates it for the client of `account` if it does not exist. The second
    /// value is true if the cache was created. Until the cache is removed, the cache and its bytes count as held by the
    /// client's address.
    ///
    /// # Errors
    /// Returns an error if the cache cannot be created.
    pub fn cache(
        &self,
        account: &Arc<Account>,
        name: &str,
        max_bytes: Option<u64>,
    ) -> Result<(NamedCache, bool), CreateCacheError> {
        if let Some(found) = self.caches.get(name) {
            return Ok((found, false));
        }
        let seed = self.random.hash_one(("cache", name));
        let max_bytes = max_bytes.unwrap_or(self.new_cache_bytes);
        let held = self.cache_share(account, max_bytes)?;
        match self.caches.create(name, CacheConfig { max_bytes, seed }) {
            // Another client created the cache in the meantime.
            Err(CreateCacheError::Exists) => {
                self.caches.get(name).map(|found| (found, false)).ok_or(CreateCacheError::Exists)
            }
            made => {
                let made = made?;
                self.cache_shares().insert(made.id, held);
                Ok((made, true))
            }
        }
    }

    /// Reserves one of the permitted caches, and `max_bytes` of the limit on the bytes of all caches. First releases
    /// the reservations of caches that were removed in the meantime.
    fn cache_share(&self, account: &Arc<Account>, max_bytes: u64) -> Result<CacheShare, CreateCacheError> {
        let quietly = |resource, amount| account.take_quietly(resource, amount);
        if let Some(bytes) = quietly(Resource::CacheBytes, max_bytes)
            && let Some(one) = quietly(Resource::Caches, 1)
        {
            return Ok(CacheShare([bytes, one]));
        }
        self.cache_shares().retain(|id, _| self.caches.by_id(*id).is_some());
        let one = account.take(Resource::Caches, 1).ok_or_else(|| {
            if self.caches.count() < MAX_CACHES {
                CreateCacheError::TooManyOfAddress
            } else {
                CreateCacheError::TooMany
            }
        })?;
        let bytes = account.take(Resource::CacheBytes, max_bytes).ok_or_else(|| {
            let left = self.caches.free_bytes();
            let max = self.caches.max_bytes();
            if max_bytes > left { CreateCacheError::NoRoom { max, left } } else { CreateCacheError::NoShare { left } }
        })?;
        Ok(CacheShare([bytes, one]))
    }

    fn cache_shares(&self) -> MutexGuard<'_, HashMap<CacheId, CacheShare>> {
        self.cache_shares.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Publishes the messages that belong to a completed commit. Never waits: a subscription whose queue is full misses
    /// the messages and gets a notice. This holds even if its policy is to block publishers, because the commit is
    /// already complete. Returns the outcome of each batch as JSON.
    pub fn publish_committed(&self, batches: &[Batch]) -> Vec<serde_json::Value> {
        let outcomes = batches.iter().map(|batch| {
            let Published { delivered, missed, .. } = self.broker.publish_now(batch);
            json!({ "delivered": delivered, "missed": missed })
        });
        outcomes.collect()
    }

    /// Frees expired cache entries periodically until the server stops.
    pub async fn reclaim_until(&self, mut stopping: watch::Receiver<bool>) {
        loop {
            let freed = self.caches.reclaim(self.now(), RECLAIM_AT_ONCE);
            let pause = if freed == RECLAIM_AT_ONCE {
                Duration::ZERO
            } else {
                let due = self.caches.next_deadline().map_or(RECLAIM_PAUSE, |due| due.after(self.now()));
                due.clamp(MIN_RECLAIM_PAUSE, RECLAIM_PAUSE)
            };
            tokio::select! {
                _ = stopping.wait_for(|stopping| *stopping) => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}

/// Notification for a task. It wakes the task when its connection's queue has messages, or when the task may publish
/// again.
#[derive(Debug, Default)]
pub struct Bell(tokio::sync::Notify);

impl Bell {
    /// Creates a bell that has not rung. A ring wakes the waiting task.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Waits until the bell rings. Returns immediately if it has rung since the last wait.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}

impl Notify for Bell {
    fn notify(&self) {
        // The bell remembers a ring while no task waits, so no ring is lost.
        self.0.notify_one();
    }
}
