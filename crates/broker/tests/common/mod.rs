//! Helpers of the broker's tests.

#![allow(dead_code, reason = "each test uses some of it")]

use std::sync::{
    Arc, Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use thalweg_broker::{
    Batch, Broker, BrokerConfig, Budget, Link, Notify, Outbound, Pattern, Subject, SubscribeOptions, SubscriptionId,
    TakeResult,
};

/// Seeded random numbers (splitmix64).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }

    pub fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

/// Returns the seed in `THALWEG_SEED`, or the seeds 1 to `count`. Tests print their seed, so that a failure
/// can be replayed.
pub fn seeds(count: u64) -> Vec<u64> {
    let given = std::env::var("THALWEG_SEED").ok().map(|text| text.parse().expect("a number"));
    given.map_or_else(|| (1..=count).collect(), |seed| vec![seed])
}

/// Counts notifications, and lets threads wait for the next one.
#[derive(Default)]
pub struct Bell {
    rung: Mutex<u64>,
    changed: Condvar,
    pub calls: AtomicU64,
}

impl Notify for Bell {
    fn notify(&self) {
        self.calls.fetch_add(1, Ordering::SeqCst);
        *self.rung.lock().unwrap() += 1;
        self.changed.notify_all();
    }
}

impl Bell {
    pub fn new() -> Arc<Self> {
        Arc::default()
    }

    pub fn count(&self) -> u64 {
        self.calls.load(Ordering::SeqCst)
    }

    /// Waits until the count exceeds `seen`. Returns the count.
    pub fn wait(&self, seen: u64) -> u64 {
        let rung = self.changed.wait_while(self.rung.lock().unwrap(), |rung| *rung <= seen).unwrap();
        *rung
    }
}

pub fn quiet() -> Arc<dyn Notify> {
    Arc::new(|| {})
}

pub fn broker() -> Broker {
    Broker::new(BrokerConfig { seed: 1, ..BrokerConfig::DEFAULTS })
}

pub fn subject(text: &str) -> Subject {
    Subject::parse(text.as_bytes()).unwrap()
}

pub fn pattern(text: &str) -> Pattern {
    Pattern::parse(text.as_bytes()).unwrap()
}

/// A batch of one message that contains `number`.
pub fn message(to: &str, number: u64) -> Batch {
    Batch::new(subject(to), Bytes::copy_from_slice(&number.to_le_bytes()), 1).unwrap()
}

pub fn number(batch: &Batch) -> u64 {
    u64::from_le_bytes(batch.encoded()[..8].try_into().unwrap())
}

pub fn subscribe(link: &Link, id: u64, text: &str) {
    link.subscribe(SubscriptionId(id), pattern(text), &SubscribeOptions::DEFAULTS).unwrap();
}

/// Takes all sendable items.
pub fn take(link: &Link) -> Vec<Outbound> {
    let mut out = Vec::new();
    assert_eq!(link.take(&mut out, Budget::UNLIMITED), TakeResult::All);
    out
}

/// An item that a subscription received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Message(u64),
    Gap(u64),
    Disconnect(u64),
}

/// All items, each with the subscription that received it, in order.
pub fn received(out: &[Outbound]) -> Vec<(u64, Received)> {
    let mut received = Vec::new();
    for item in out {
        match item {
            Outbound::Batch { batch, subscriptions } => {
                received.extend(subscriptions.iter().map(|id| (id.0, Received::Message(number(batch)))));
            }
            Outbound::Gap { subscription, messages } => received.push((subscription.0, Received::Gap(*messages))),
            Outbound::Disconnect { subscription, messages } => {
                received.push((subscription.0, Received::Disconnect(*messages)));
            }
        }
    }
    received
}

pub fn received_by(id: u64, out: &[Outbound]) -> Vec<Received> {
    received(out).into_iter().filter(|(to, _)| *to == id).map(|(_, received)| received).collect()
}
