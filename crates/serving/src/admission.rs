//! Admission of requests: bounds on requests and bytes in progress.
//!
//! Owns: the counters behind every bound of the configuration, and the guards that release what they hold.
//! Does not own: waiting. Above a bound a request is shed immediately, because a queue in front of a full server only
//! adds latency to work that will be shed later.
//! Invariant: `used <= limit` for every [`Bound`]. It may be exceeded by a few where work is counted only once it is in
//! progress. A guard releases what it holds exactly once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::{config::Config, limits::COUNTED_REPLY_BYTES};

/// A bounded amount of something, such as requests or bytes.
#[derive(Debug)]
pub struct Bound {
    used: AtomicU64,
    shed: AtomicU64,
    limit: u64,
}

impl Bound {
    /// Creates a bound of `limit`.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), shed: AtomicU64::new(0), limit })
    }

    /// Takes `amount`. Returns `None` and counts a shed request if there is no room.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<Held> {
        let mut held = Held { bound: Arc::clone(self), amount: 0 };
        held.grow(amount).then_some(held)
    }

    /// Takes `amount` for a caller that waits for room. Returns `None`, and counts no shed request, if there is no
    /// room.
    pub fn take_quietly(self: &Arc<Self>, amount: u64) -> Option<Held> {
        // Another thread may take the room after the check. Then `take` counts a shed request, as elsewhere.
        (self.used().saturating_add(amount) <= self.limit).then(|| self.take(amount)).flatten()
    }

    /// Returns true if there is room; otherwise counts a shed request. For work that usually ends immediately: only
    /// work that stays in progress is [counted](Self::count).
    #[must_use]
    pub fn has_room(&self) -> bool {
        let room = self.used() < self.limit;
        if !room {
            self.shed.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Takes one, even above the limit, for work that was admitted while there was room. So the bound may be exceeded
    /// by the number of admissions at a time: one for each serving thread.
    pub fn count(self: &Arc<Self>) -> Held {
        self.used.fetch_add(1, Ordering::Relaxed);
        Held { bound: Arc::clone(self), amount: 1 }
    }

    /// Creates a guard that holds nothing yet.
    pub fn nothing(self: &Arc<Self>) -> Held {
        Held { bound: Arc::clone(self), amount: 0 }
    }

    /// Returns the amount that is taken.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns the number of times when there was no room.
    #[must_use]
    pub fn shed(&self) -> u64 {
        self.shed.load(Ordering::Relaxed)
    }

    /// Returns the limit of the bound.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Guard of an amount taken from a bound. Dropping it releases the amount.
#[derive(Debug)]
pub struct Held {
    bound: Arc<Bound>,
    amount: u64,
}

impl Held {
    /// Takes more. Returns false and takes nothing if there is no room.
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

    /// Takes more, up to `amount` in total. Returns false and takes nothing if there is no room.
    pub fn grow_to(&mut self, amount: u64) -> bool {
        self.grow(amount.saturating_sub(self.amount))
    }

    /// Takes more, even above the limit, for memory that is in use already.
    pub fn count(&mut self, amount: u64) {
        self.bound.used.fetch_add(amount, Ordering::Relaxed);
        self.amount += amount;
    }

    /// Sets the amount, even above the limit, for memory that is in use already.
    pub fn set(&mut self, amount: u64) {
        self.shrink_to(amount);
        self.count(amount - self.amount);
    }

    /// Releases all above `amount`.
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
    /// Requests whose handler is running.
    pub requests: Arc<Bound>,
    /// Bytes of request bodies in memory.
    pub body_bytes: Arc<Bound>,
    /// Bytes of large replies that wait for their clients.
    pub reply_bytes: Arc<Bound>,
    /// Scans and record reads in progress.
    pub scans: Arc<Bound>,
    /// Tails, pushes, watches, and subscribers over HTTP.
    pub tails: Arc<Bound>,
    /// Connections, and channels beyond the first of a QUIC connection.
    pub connections: Arc<Bound>,
    /// QUIC connections; they also count as connections.
    pub quic_connections: Arc<Bound>,
    /// Native connections whose handshake has not ended with the welcome yet.
    pub handshakes: Arc<Bound>,
}

impl Admission {
    /// Creates the bounds of a configuration.
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

    /// Counts the bytes of a reply, or of most of one, if they are many. They stay counted until the last reference to
    /// them is dropped. Returns `None` if there is no room.
    pub fn reply(&self, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return Some(bytes);
        }
        let held = self.reply_bytes.take(bytes.len() as u64)?;
        Some(counted(bytes, held))
    }

    /// Counts the bytes of a reply as [`reply`](Self::reply) does, but never rejects them.
    pub fn told(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return bytes;
        }
        let mut held = self.reply_bytes.nothing();
        held.count(bytes.len() as u64);
        counted(bytes, held)
    }
}

/// Attaches a guard, or a share of one, to bytes. The guard is dropped with the last reference to any part of the
/// bytes.
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
