//! Subjects and caches, as this server holds them: the broker, the named caches, and the clock that both are given.
//!
//! Owns: their bounds, as configured; the seeds, from the system's randomness, so that nobody can choose subjects or keys
//! that collide; the timer that gives back the memory of what has expired. Does not own what either does (the
//! broker's crate), nor protocols: HTTP and the native one come here alike, so a message published over one is
//! delivered over the other, in one encoding (`thalweg_wire::Batch`).

use std::{
    collections::hash_map::RandomState,
    fmt,
    hash::BuildHasher,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use serde_json::json;
use thalweg_broker::{
    Batch, Broker, BrokerConfig, CacheConfig, Caches, CreateCacheError, Credit, Moment, NamedCache, Notify, Policy,
    Published, Subject, SubscribeOptions, WouldBlock,
};
use thalweg_types::limits::{DEFAULT_CACHED_SUBJECTS, MAX_LINK_SUBSCRIPTIONS, MAX_LINKS};
use tokio::sync::watch;

use crate::config::Config;

/// Entries freed before others get a turn.
const RECLAIM_AT_ONCE: usize = 10_000;
/// How long an entry that has expired may keep its memory beyond what the wheel says, if it was put after the timer
/// had looked. Readers see no difference.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);
/// So that a stream of near deadlines does not make the timer run all the time.
const MIN_RECLAIM_PAUSE: Duration = Duration::from_millis(20);

/// Subjects under which replies to requests of this server's clients come.
const REPLY_PREFIX: &str = "_reply";

/// Subjects and caches.
pub struct Views {
    /// Subjects.
    pub broker: Broker,
    /// Caches.
    pub caches: Caches,
    started: Instant,
    random: RandomState,
    next_token: AtomicU64,
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
    /// As configured, with nothing in them.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        let random = RandomState::new();
        let broker = Broker::new(BrokerConfig {
            max_links: MAX_LINKS,
            max_subscriptions: config.max_subscriptions as usize,
            max_link_subscriptions: MAX_LINK_SUBSCRIPTIONS,
            max_link_bytes: config.max_link_bytes.0,
            max_queued_bytes: config.max_queued_bytes.0,
            cached_subjects: DEFAULT_CACHED_SUBJECTS,
            seed: random.hash_one("broker"),
        });
        Self {
            broker,
            caches: Caches::new(config.max_caches_bytes.0),
            started: Instant::now(),
            random,
            next_token: AtomicU64::new(0),
            queue_messages: u64::from(config.subscription_messages),
            queue_bytes: config.subscription_bytes.0,
            max_queue_bytes: config.max_link_bytes.0,
            new_cache_bytes: config.new_cache_bytes.0,
        }
    }

    /// When time began.
    #[must_use]
    pub fn started(&self) -> Instant {
        self.started
    }

    /// The time, as broker and caches take it.
    #[must_use]
    pub fn now(&self) -> Moment {
        self.started.elapsed().into()
    }

    /// A moment as an instant of the clock.
    #[must_use]
    pub fn instant(&self, moment: Moment) -> Instant {
        self.started + Duration::from_nanos(moment.nanos())
    }

    /// An instant as the views take it.
    #[must_use]
    pub fn moment(&self, at: Instant) -> Moment {
        at.saturating_duration_since(self.started).into()
    }

    /// What a subscription gets that asks for these bounds; 0 is as configured, and what its link may hold is the most.
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

    /// A subject that nobody can guess: who knows one may answer in another's place.
    #[must_use]
    pub fn reply_subject(&self) -> Subject {
        let number = self.next_token.fetch_add(1, Ordering::Relaxed);
        let (high, low) = (self.random.hash_one((number, "high")), self.random.hash_one((number, "low")));
        Subject::parse(format!("{REPLY_PREFIX}.{high:016x}{low:016x}").as_bytes()).expect("two plain tokens")
    }

    /// The cache of that name, made if there is none; and whether it was.
    ///
    /// # Errors
    /// It can't be made.
    pub fn cache(&self, name: &str, max_bytes: Option<u64>) -> Result<(NamedCache, bool), CreateCacheError> {
        if let Some(found) = self.caches.get(name) {
            return Ok((found, false));
        }
        let seed = self.random.hash_one(("cache", name));
        let max_bytes = max_bytes.unwrap_or(self.new_cache_bytes);
        match self.caches.create(name, CacheConfig { max_bytes, seed }) {
            // Somebody else was quicker.
            Err(CreateCacheError::Exists) => {
                self.caches.get(name).map(|found| (found, false)).ok_or(CreateCacheError::Exists)
            }
            made => made.map(|made| (made, true)),
        }
    }

    /// Publishes what rides on a commit that has happened. Never waits: where somebody has no room and asks publishers to
    /// wait, nobody gets that batch. Says for each what became of it.
    pub fn publish_committed(&self, batches: &[Batch]) -> Vec<serde_json::Value> {
        let told = batches.iter().map(|batch| match self.broker.publish(batch, None) {
            Ok(Published { delivered, missed }) => json!({ "delivered": delivered, "missed": missed }),
            Err(WouldBlock { .. }) => json!({ "delivered": 0, "missed": 0, "blocked": true }),
        });
        told.collect()
    }

    /// Frees what has expired, until the server stops.
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

/// Wakes a task that waits for a link or for room.
#[derive(Debug, Default)]
pub struct Bell(tokio::sync::Notify);

impl Bell {
    /// One that has not rung.
    #[must_use]
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    /// Until it has rung since the last time that somebody waited.
    pub async fn rung(&self) {
        self.0.notified().await;
    }
}

impl Notify for Bell {
    fn notify(&self) {
        // Keeps a permit if nobody waits just now, so no ring is lost.
        self.0.notify_one();
    }
}
