//! The bound on the bytes queued in all links together.
//!
//! Owns: the sum of the queued bytes, the reserve, and the rule by which a link may use the reserve. Does not own: the
//! queues, or the treatment of a message without room (`link`).
//!
//! Links reserve memory in steps of [`STEP`] bytes, so they rarely touch the shared counter.
//!
//! ```text
//! 0                                    open              max
//! ├──────────── any link ──────────────┼─ links ─┼─ owners ─┤
//!                                      └────── reserve ─────┘
//! ```
//! Below `open`, a link may use any free memory. The memory above `open` is a reserve for those that hold least. A link
//! may use the reserve only while all links of its owner together hold no more than is still free. So the owner that
//! holds most is the first to be refused. A link may also use the lower half of the reserve while the link itself holds
//! no more than is still free in this half. So a client loses no messages if only another connection from its address
//! does not read.
//!
//! Invariants: `used` is the sum of the links' reservations in bytes. Each [`LinkOwner`] has the sum of its own links'
//! reservations. `used` exceeds the limit `max` only through [`Reservation::grow_to`], by at most one batch for each
//! link.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use crate::{
    locked,
    losses::LossCounters,
    notify::{Notify, WaitStamp, Waiters},
};

/// Number of bytes that a link reserves at a time.
const STEP: u64 = 64 * 1024;

pub(crate) struct Memory {
    used: AtomicU64,
    max: u64,
    /// Sum of reservations in bytes up to which any link may reserve memory. The reserve begins above it. `open <=
    /// shared <= max`.
    open: u64,
    /// Sum of all reservations in bytes at which the lower half of the reserve ends. The reserve is the memory kept for
    /// the owners (clients) that hold least. Up to this sum, a link may use the reserve even if its owner holds much.
    shared: u64,
    waiting: Mutex<Waiters>,
    any_waiting: AtomicBool,
    /// True if publishers waited while memory was released, but could not be notified, because publishes in progress
    /// still held all memory. When such a publish fails and releases its memory, they are notified.
    missed: AtomicBool,
    /// Stamp for the next publisher that begins to wait for memory or for room in a queue. A stamp is a number that
    /// rises with each such publisher.
    stamps: AtomicU64,
    /// Counters of messages lost because memory or queues were full.
    pub(crate) losses: LossCounters,
}

impl Memory {
    /// Creates a limit of `max` bytes for the queues of all links together. `reserve_percent` of them are a reserve for
    /// the owners and links that hold the fewest bytes.
    pub(crate) fn new(max: u64, reserve_percent: u32) -> Self {
        let reserve = (u128::from(max) * u128::from(reserve_percent.min(100)) / 100) as u64;
        Self {
            used: AtomicU64::new(0),
            max,
            open: max - reserve,
            shared: max - reserve.div_ceil(2),
            waiting: Mutex::default(),
            any_waiting: AtomicBool::new(false),
            missed: AtomicBool::new(false),
            stamps: AtomicU64::new(0),
            losses: LossCounters::default(),
        }
    }

    pub(crate) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Returns true if a link may reserve memory that lies partly in the reserve, while `used` bytes are in use.
    /// `link_bytes` and `owner_bytes` are the bytes that the link, and all links of its owner, hold after this
    /// reservation.
    #[cold]
    fn may_use_reserve(&self, used: u64, link_bytes: u64, owner_bytes: u64) -> bool {
        owner_bytes <= self.max.saturating_sub(used) || link_bytes <= self.shared.saturating_sub(used)
    }

    /// Adds a publisher that waits until other links release memory. The caller must then try to publish once more. If
    /// memory was released before this call, the retry finds it. If a link releases memory after this call, the link
    /// sees the flag `any_waiting` and notifies the publisher. All accesses are sequentially consistent.
    pub(crate) fn wait(&self, waiter: &Arc<dyn Notify>) {
        let mut waiting = locked(self.waiting.lock());
        waiting.add(waiter, self.stamp());
        self.any_waiting.store(true, Ordering::SeqCst);
    }

    /// Returns a new stamp for a publisher that begins to wait. Stamps increase, so they show the order in which
    /// publishers began to wait.
    pub(crate) fn stamp(&self) -> WaitStamp {
        WaitStamp(self.stamps.fetch_add(1, Ordering::SeqCst))
    }

    /// Returns the stamp that the next publisher that begins to wait will get. Uses up no stamp.
    pub(crate) fn now(&self) -> WaitStamp {
        WaitStamp(self.stamps.load(Ordering::SeqCst))
    }

    /// Removes and returns the publishers that the caller must notify, because memory may have been released. Returns
    /// none if no memory is free.
    pub(crate) fn take_waiting(&self) -> Vec<Arc<dyn Notify>> {
        if !self.may_notify() {
            return Vec::new();
        }
        let mut waiting = locked(self.waiting.lock());
        self.missed.store(false, Ordering::SeqCst);
        self.any_waiting.store(false, Ordering::SeqCst);
        waiting.take()
    }

    /// Removes and returns the publishers that the caller must notify after the publish of `own` has failed and
    /// released its reservations. These publishers began to wait at stamp `since` or later, while the reservations were
    /// held. Publishers that began to wait earlier failed without these reservations, so the release does not help
    /// them. If the flag `missed` is set and memory is free, returns all waiting publishers.
    pub(crate) fn take_since(&self, since: WaitStamp, own: Option<&Arc<dyn Notify>>) -> Vec<Arc<dyn Notify>> {
        if self.missed.load(Ordering::SeqCst) {
            return self.take_waiting();
        }
        if !self.may_notify() {
            return Vec::new();
        }
        let mut waiting = locked(self.waiting.lock());
        let taken = waiting.take_since(since, own);
        self.any_waiting.store(!waiting.is_empty(), Ordering::SeqCst);
        taken
    }

    /// Returns true if publishers wait and memory is free. If publishers wait and no memory is free, sets `missed`, so
    /// that these publishers are notified when a publish in progress releases its reservations.
    fn may_notify(&self) -> bool {
        if !self.any_waiting.load(Ordering::SeqCst) {
            return false;
        }
        if self.used.load(Ordering::SeqCst) >= self.max {
            self.missed.store(true, Ordering::SeqCst);
            // A release between the two reads of `used` did not see the flag `missed`. So `used` is read again.
            return self.used.load(Ordering::SeqCst) < self.max;
        }
        true
    }
}

/// Client to which links belong, such as all connections from one address. When memory is short, the owner whose links
/// hold the most bytes of messages is the first that gets no more memory.
#[derive(Debug, Default)]
pub struct LinkOwner {
    /// Number of bytes that the owner's links have reserved.
    bytes: AtomicU64,
}

/// Memory that one link has reserved for the messages in its queues, in bytes.
#[derive(Debug)]
pub(crate) struct Reservation {
    bytes: u64,
    owner: Arc<LinkOwner>,
}

impl Reservation {
    pub(crate) fn new(owner: Arc<LinkOwner>) -> Self {
        Self { bytes: 0, owner }
    }

    /// Grows the link's reservation to at least `bytes` if the limit on all links permits this. Returns true on
    /// success.
    pub(crate) fn try_grow_to(&mut self, bytes: u64, memory: &Memory) -> bool {
        if bytes <= self.bytes {
            return true;
        }
        let more = (bytes - self.bytes).next_multiple_of(STEP);
        let of_owner = self.owner.bytes.load(Ordering::Relaxed).saturating_add(more);
        // The check and the change must be one atomic step. If the bytes were added first and subtracted after a failed
        // check, a waiting publisher could see full memory in between, and nothing would notify it later.
        let take = |used: u64| {
            let after = used.checked_add(more)?;
            (after <= memory.open || memory.may_use_reserve(used, self.bytes + more, of_owner)).then_some(after)
        };
        if memory.used.fetch_update(Ordering::SeqCst, Ordering::SeqCst, take).is_err() {
            return false;
        }
        self.add(more);
        true
    }

    /// Grows the link's reservation to at least `bytes`, even if the reservations of all links then exceed the limit.
    pub(crate) fn grow_to(&mut self, bytes: u64, memory: &Memory) {
        if bytes > self.bytes {
            let more = (bytes - self.bytes).next_multiple_of(STEP);
            memory.used.fetch_add(more, Ordering::SeqCst);
            self.add(more);
        }
    }

    fn add(&mut self, more: u64) {
        self.owner.bytes.fetch_add(more, Ordering::Relaxed);
        self.bytes += more;
    }

    /// Shrinks the link's reservation to `bytes`, rounded up to a multiple of [`STEP`], plus one more step. If `bytes`
    /// is 0, releases the whole reservation.
    pub(crate) fn shrink(&mut self, bytes: u64, memory: &Memory) {
        let keep = if bytes == 0 { 0 } else { bytes.next_multiple_of(STEP) + STEP };
        if self.bytes > keep {
            self.owner.bytes.fetch_sub(self.bytes - keep, Ordering::Relaxed);
            memory.used.fetch_sub(self.bytes - keep, Ordering::SeqCst);
            self.bytes = keep;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_comes_back() {
        let memory = Memory::new(3 * STEP, 0);
        let (mut one, mut two) = (of(&Arc::default()), of(&Arc::default()));
        assert!(one.try_grow_to(STEP + 1, &memory));
        assert_eq!(memory.used(), 2 * STEP);
        assert!(two.try_grow_to(1, &memory));
        assert!(!two.try_grow_to(STEP + 1, &memory), "at the bound");
        assert!(two.try_grow_to(STEP, &memory), "it holds that much already");
        assert_eq!(memory.used(), 3 * STEP);
        two.grow_to(STEP + 1, &memory);
        assert_eq!(memory.used(), 4 * STEP);
        one.shrink(0, &memory);
        two.shrink(0, &memory);
        assert_eq!(memory.used(), 0);
    }

    fn of(owner: &Arc<LinkOwner>) -> Reservation {
        Reservation::new(Arc::clone(owner))
    }

    /// Grows the reservation of a link by one [`STEP`] after another until a step is refused. Returns the number of
    /// steps that the link then holds.
    fn fill(link: &mut Reservation, memory: &Memory) -> u64 {
        while link.try_grow_to(link.bytes + STEP, memory) {}
        link.bytes / STEP
    }

    #[test]
    fn the_owner_that_holds_most_is_refused_first() {
        let memory = Memory::new(100 * STEP, 10);
        let (greedy, good) = (Arc::<LinkOwner>::default(), Arc::<LinkOwner>::default());
        // Four links of one client. Each of them holds not much more than a quarter of the memory.
        let mut links = [(); 4].map(|()| of(&greedy));
        for _ in 0..100 {
            for link in &mut links {
                let _ = link.try_grow_to(link.bytes + STEP, &memory);
            }
        }
        let held: u64 = links.iter().map(|link| link.bytes / STEP).sum();
        assert!((90..=95).contains(&held), "{held}: all but the reserve, of which small links may use a half");
        let mut first = of(&good);
        assert!(fill(&mut first, &memory) >= 2, "another client has room");
        assert!(fill(&mut of(&Arc::default()), &memory) >= 1, "and so has the next one");
        let more = links[0].bytes + STEP;
        assert!(!links[0].try_grow_to(more, &memory), "and the greedy one has none");
        assert!(memory.used() <= 100 * STEP);
        links.iter_mut().for_each(|link| link.shrink(0, &memory));
        assert_eq!(greedy.bytes.load(Ordering::Relaxed), 0);
        assert!(fill(&mut first, &memory) >= 85, "without competition one client may use nearly all of it");
    }

    #[test]
    fn a_small_link_has_room_beside_a_greedy_one_of_the_same_owner() {
        let memory = Memory::new(100 * STEP, 10);
        let owner = Arc::<LinkOwner>::default();
        let mut greedy = of(&owner);
        assert_eq!(fill(&mut greedy, &memory), 90);
        assert!(fill(&mut of(&owner), &memory) >= 2);
        assert!(!greedy.try_grow_to(91 * STEP, &memory));
    }
}
