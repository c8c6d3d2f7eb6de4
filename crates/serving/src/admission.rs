//! Who may come in: bounds on requests and bytes held at a time.
//!
//! Owns: the counters behind every bound of the configuration, and the guards that give back.
//! Does not own: waiting. Beyond a bound a request is shed at once, because a queue in front of a
//! full server only adds latency to work that will be shed later.
//! Invariant: `used <= limit` for every [`Bound`], and no more than a few above it where work is counted only once it is
//! under way; a guard gives back what it took exactly once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::{config::Config, limits::COUNTED_REPLY_BYTES};

/// A bounded amount of something.
#[derive(Debug)]
pub struct Bound {
    used: AtomicU64,
    shed: AtomicU64,
    limit: u64,
}

impl Bound {
    /// With room for `limit`.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), shed: AtomicU64::new(0), limit })
    }

    /// Takes `amount`, or counts a shed request.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<Held> {
        let mut held = Held { bound: Arc::clone(self), amount: 0 };
        held.grow(amount).then_some(held)
    }

    /// Takes `amount`, if there is room, and counts nothing shed if not: for who waits.
    pub fn take_quietly(self: &Arc<Self>, amount: u64) -> Option<Held> {
        // A race with others at the bound is lost as it is everywhere.
        (self.used().saturating_add(amount) <= self.limit).then(|| self.take(amount)).flatten()
    }

    /// Whether something is left; counts a shed request if not. For work that mostly is done at once: the bound is looked
    /// at, and only what stays under way is [counted](Self::count) against it.
    #[must_use]
    pub fn has_room(&self) -> bool {
        let room = self.used() < self.limit;
        if !room {
            self.shed.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Takes one, room or not: of work that was let in when there was. So the bound may be passed, by as many as are let
    /// in at a time: one for each thread that serves.
    pub fn count(self: &Arc<Self>) -> Held {
        self.used.fetch_add(1, Ordering::Relaxed);
        Held { bound: Arc::clone(self), amount: 1 }
    }

    /// Holds nothing yet.
    pub fn nothing(self: &Arc<Self>) -> Held {
        Held { bound: Arc::clone(self), amount: 0 }
    }

    /// How much is taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// How often there was no room.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// How much there is.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// What was taken; dropping it gives it back.
#[derive(Debug)]
pub struct Held {
    bound: Arc<Bound>,
    amount: u64,
}

impl Held {
    /// Takes more; `false`, and nothing taken, if there is no room.
    pub fn grow(&mut self, amount: u64) -> bool {
        let before = self.bound.used.fetch_add(amount, Ordering::Relaxed);
        if before.saturating_add(amount) > self.bound.limit {
            self.bound.used.fetch_sub(amount, Ordering::Relaxed);
            self.bound.shed.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.amount += amount;
        true
    }

    /// Takes up to this; `false`, and nothing taken, if there is no room.
    pub fn grow_to(&mut self, amount: u64) -> bool {
        self.grow(amount.saturating_sub(self.amount))
    }

    /// Takes more, room or not: of what is there already.
    pub fn count(&mut self, amount: u64) {
        self.bound.used.fetch_add(amount, Ordering::Relaxed);
        self.amount += amount;
    }

    /// Holds this, room or not: of what is there already.
    pub fn set(&mut self, amount: u64) {
        self.shrink_to(amount);
        self.count(amount - self.amount);
    }

    /// Gives back what is above this.
    pub fn shrink_to(&mut self, amount: u64) {
        let less = self.amount.saturating_sub(amount);
        self.bound.used.fetch_sub(less, Ordering::Relaxed);
        self.amount -= less;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.bound.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// All bounds of a server.
#[derive(Debug)]
pub struct Admission {
    /// Requests whose handler runs.
    pub requests: Arc<Bound>,
    /// Bytes of request bodies.
    pub body_bytes: Arc<Bound>,
    /// Bytes of large replies that wait for their clients.
    pub reply_bytes: Arc<Bound>,
    /// Scans and record reads that are being streamed.
    pub scans: Arc<Bound>,
    /// Event-stream tails.
    pub tails: Arc<Bound>,
    /// Connections, and channels beyond the first of a QUIC connection.
    pub connections: Arc<Bound>,
    /// QUIC connections, which are among them.
    pub quic_connections: Arc<Bound>,
    /// Native connections before their welcome.
    pub handshakes: Arc<Bound>,
}

impl Admission {
    /// As configured.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            requests: Bound::new(u64::from(config.max_requests_in_flight)),
            body_bytes: Bound::new(config.max_body_bytes_in_flight.0),
            reply_bytes: Bound::new(config.max_reply_bytes_in_flight.0),
            scans: Bound::new(u64::from(config.max_scans)),
            tails: Bound::new(u64::from(config.max_tails)),
            connections: Bound::new(u64::from(config.max_connections)),
            quic_connections: Bound::new(u64::from(config.max_quic_connections)),
            handshakes: Bound::new(u64::from(config.max_handshakes)),
        }
    }

    /// Bytes that are a reply, or most of one: if they are many, counted until nobody holds them any more. `None` if there
    /// is no room for them.
    pub fn reply(&self, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return Some(bytes);
        }
        let held = self.reply_bytes.take(bytes.len() as u64)?;
        Some(counted(bytes, held))
    }

    /// As [`reply`](Self::reply) for what is told whatever waits.
    pub fn told(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return bytes;
        }
        let mut held = self.reply_bytes.nothing();
        held.count(bytes.len() as u64);
        counted(bytes, held)
    }
}

/// Bytes with their room, or a share in it: it is given back when nobody holds any part of them any more.
pub fn counted<H: Send + Sync + 'static>(bytes: Bytes, held: H) -> Bytes {
    Bytes::from_owner(Counted { bytes, _held: held })
}

struct Counted<H> {
    bytes: Bytes,
    _held: H,
}

impl<H> AsRef<[u8]> for Counted<H> {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reply_is_counted_while_somebody_holds_a_part_of_it() {
        let config = Config { max_reply_bytes_in_flight: crate::config::ByteSize(1 << 20), ..Config::default() };
        let admission = Admission::new(&config);
        let large = || Bytes::from(vec![7; 600 << 10]);
        let sent = admission.reply(large()).unwrap();
        let part = sent.slice(5..9);
        drop(sent);
        assert_eq!(admission.reply_bytes.used(), 600 << 10);
        assert!(admission.reply(large()).is_none());
        assert!(admission.reply(Bytes::from(vec![7; COUNTED_REPLY_BYTES - 1])).is_some(), "small ones are not counted");
        drop(part);
        assert_eq!(admission.reply_bytes.used(), 0);
        assert!(admission.reply(large()).is_some());
    }

    #[test]
    fn a_bound_holds_and_gives_back() {
        let bound = Bound::new(10);
        let mut first = bound.take(6).unwrap();
        assert!(bound.take(5).is_none());
        assert!(first.grow(4));
        assert!(!first.grow(1));
        assert_eq!((bound.used(), bound.shed()), (10, 2));
        assert!(!bound.has_room());
        drop(first);
        assert!(bound.has_room());
        assert_eq!((bound.used(), bound.shed()), (0, 3));
        let counted: Vec<_> = (0..11).map(|_| bound.count()).collect();
        assert_eq!((bound.used(), bound.has_room()), (11, false));
        drop(counted);
        assert_eq!(bound.used(), 0);
        assert!(bound.take(10).is_some());
    }
}
