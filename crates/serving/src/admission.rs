//! Admission of requests: bounds on requests and bytes in progress.
//!
//! Owns: the counters behind every bound of the configuration, and the guards that release what they hold.
//! Does not own: waiting. Above a bound a request is shed immediately, because a queue in front of a full
//! server only adds latency to work that will be shed later. Invariant: `used <= limit` for every [`Bound`].
//! `used` may exceed `limit` by a few for work that is counted only once it is in progress. A guard releases
//! what it holds exactly once.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;

use crate::{config::Config, limits::COUNTED_REPLY_BYTES};

/// A limit on the total of something in use, such as requests or bytes, with a counter of the amount in use.
#[derive(Debug)]
pub struct Bound {
    used: AtomicU64,
    rejected: AtomicU64,
    limit: u64,
}

impl Bound {
    /// Creates a bound whose amount in use is at most `limit`.
    #[must_use]
    pub fn new(limit: u64) -> Arc<Self> {
        Arc::new(Self { used: AtomicU64::new(0), rejected: AtomicU64::new(0), limit })
    }

    /// Takes `amount` of the bound. If less than that is free, returns `None` and counts a shed request.
    pub fn take(self: &Arc<Self>, amount: u64) -> Option<Reservation> {
        let mut held = Reservation { bound: Arc::clone(self), amount: 0 };
        held.grow(amount).then_some(held)
    }

    /// Takes `amount` of the bound for a caller that waits and tries again. If less than that is free,
    /// returns `None` and counts no shed request.
    pub fn take_quietly(self: &Arc<Self>, amount: u64) -> Option<Reservation> {
        // Another thread may take the room after the check. Then `take` counts a shed request, as elsewhere.
        (self.used().saturating_add(amount) <= self.limit).then(|| self.take(amount)).flatten()
    }

    /// Returns true if less than the limit is in use; otherwise counts a shed request. Meant for work that
    /// usually ends immediately: only work that stays in progress is [counted](Self::count).
    #[must_use]
    pub fn has_room(&self) -> bool {
        let room = self.used() < self.limit;
        if !room {
            self.rejected.fetch_add(1, Ordering::Relaxed);
        }
        room
    }

    /// Takes 1 of the bound, even above the limit, for work that was admitted while less than the limit was
    /// in use. So the amount in use may exceed the limit by the number of simultaneous admissions: at most 1
    /// for each serving thread.
    pub fn count(self: &Arc<Self>) -> Reservation {
        self.used.fetch_add(1, Ordering::Relaxed);
        Reservation { bound: Arc::clone(self), amount: 1 }
    }

    /// Creates a guard that holds nothing of the bound yet.
    pub fn empty_reservation(self: &Arc<Self>) -> Reservation {
        Reservation { bound: Arc::clone(self), amount: 0 }
    }

    /// Returns the amount that is in use.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns how many times work was rejected because of this bound.
    #[must_use]
    pub fn rejections(&self) -> u64 {
        self.rejected.load(Ordering::Relaxed)
    }

    /// Returns the limit of the bound.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.limit
    }
}

/// Guard that holds an amount of a [`Bound`], such as a number of requests or bytes. Dropping the guard
/// releases the amount.
#[derive(Debug)]
pub struct Reservation {
    bound: Arc<Bound>,
    amount: u64,
}

impl Reservation {
    /// Takes `amount` more of the bound. Returns false and takes nothing if less than that is free.
    pub fn grow(&mut self, amount: u64) -> bool {
        let before = self.bound.used.fetch_add(amount, Ordering::Relaxed);
        if before.saturating_add(amount) > self.bound.limit {
            self.bound.used.fetch_sub(amount, Ordering::Relaxed);
            self.bound.rejected.fetch_add(1, Ordering::Relaxed);
            return false;
        }
        self.amount += amount;
        true
    }

    /// Increases the amount that this guard holds to `amount`, if it holds less. Returns false and takes
    /// nothing if the bound has too little free.
    pub fn grow_to(&mut self, amount: u64) -> bool {
        self.grow(amount.saturating_sub(self.amount))
    }

    /// Takes `amount` more of the bound, even above its limit, for memory that is in use already.
    pub fn count(&mut self, amount: u64) {
        self.bound.used.fetch_add(amount, Ordering::Relaxed);
        self.amount += amount;
    }

    /// Sets the amount that this guard holds, even above the bound's limit, for memory that is in use
    /// already.
    pub fn set(&mut self, amount: u64) {
        self.shrink_to(amount);
        self.count(amount - self.amount);
    }

    /// Releases what this guard holds above `amount`.
    pub fn shrink_to(&mut self, amount: u64) {
        let less = self.amount.saturating_sub(amount);
        self.bound.used.fetch_sub(less, Ordering::Relaxed);
        self.amount -= less;
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.bound.used.fetch_sub(self.amount, Ordering::Relaxed);
    }
}

/// All bounds of a server on requests, connections and bytes.
#[derive(Debug)]
pub struct Admission {
    /// Number of requests whose handler is running.
    pub requests: Arc<Bound>,
    /// Bytes of request bodies in memory.
    pub body_bytes: Arc<Bound>,
    /// Bytes of large replies that wait for their clients.
    pub reply_bytes: Arc<Bound>,
    /// Number of scans and record reads in progress.
    pub scans: Arc<Bound>,
    /// Number of open tails, pushes, watches, and subscribers over HTTP.
    pub tails: Arc<Bound>,
    /// Number of connections; each channel of a QUIC connection after the first also counts as one.
    pub connections: Arc<Bound>,
    /// Number of QUIC connections; they also count as connections.
    pub quic_connections: Arc<Bound>,
    /// Number of native connections to which the server has not yet sent the welcome that ends the handshake.
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

    /// Counts the bytes of a large reply as waiting for the client; `bytes` is the reply or most of it. They
    /// stay counted until the last reference to them is dropped. Returns `None` if the bound on reply bytes
    /// is reached. Small replies are not counted.
    pub fn reply(&self, bytes: Bytes) -> Option<Bytes> {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return Some(bytes);
        }
        let held = self.reply_bytes.take(bytes.len() as u64)?;
        Some(counted(bytes, held))
    }

    /// Counts the bytes of a large reply as [`reply`](Self::reply) does, but never rejects the reply.
    pub fn count_reply(&self, bytes: Bytes) -> Bytes {
        if bytes.len() < COUNTED_REPLY_BYTES {
            return bytes;
        }
        let mut held = self.reply_bytes.empty_reservation();
        held.count(bytes.len() as u64);
        counted(bytes, held)
    }
}

/// Attaches a guard, such as a [`Reservation`], to bytes. The guard is dropped with the last reference to any part
/// of the bytes.
pub fn counted<H: Send + Sync + 'static>(bytes: Bytes, held: H) -> Bytes {
    Bytes::from_owner(CountedBytes { bytes, _held: held })
}

struct CountedBytes<H> {
    bytes: Bytes,
    _held: H,
}

impl<H> AsRef<[u8]> for CountedBytes<H> {
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
        assert_eq!((bound.used(), bound.rejections()), (10, 2));
        assert!(!bound.has_room());
        drop(first);
        assert!(bound.has_room());
        assert_eq!((bound.used(), bound.rejections()), (0, 3));
        let counted: Vec<_> = (0..11).map(|_| bound.count()).collect();
        assert_eq!((bound.used(), bound.has_room()), (11, false));
        drop(counted);
        assert_eq!(bound.used(), 0);
        assert!(bound.take(10).is_some());
    }
}
