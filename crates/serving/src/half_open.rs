//! Slots for connections that have not proved themselves yet: without a finished handshake, without authentication, or
//! above the limit on connections.
//!
//! Owns: a bounded number of slots, and the choice of the connection that loses its slot. Does not own: connections; the
//! task of a connection that loses its slot must end.
//!
//! A connection always gets a slot. If none is free, the oldest connection of the address that has most slots loses its
//! own. So connections that only wait cannot keep others out, even from their own address: a client that continues
//! promptly loses its slot only if as many newer connections are accepted in that time as there are slots.
//!
//! The same holds for connections that have not sent a request: they have slots without a limit, and lose them when their
//! address has its share of connections and opens another one ([`HalfOpen::replace_of`]).

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    task::{Context, Poll},
};

use futures_util::task::AtomicWaker;

use crate::admission::AddressKey;

/// A bounded number of slots; see the module's documentation.
#[derive(Debug)]
pub struct HalfOpen {
    max_slots: usize,
    table: Mutex<Table>,
    replaced: AtomicU64,
}

/// Slots in use. Invariant: `count` is the number of all entries, and no queue is empty.
#[derive(Debug, Default)]
struct Table {
    count: usize,
    by_address: HashMap<AddressKey, VecDeque<Arc<Seat>>>,
}

/// State of a slot that its connection and the table share.
#[derive(Debug, Default)]
struct Seat {
    is_lost: AtomicBool,
    waker: AtomicWaker,
}

impl Table {
    fn remove(&mut self, address: AddressKey, seat: &Arc<Seat>) {
        let Some(queue) = self.by_address.get_mut(&address) else { return };
        let Some(at) = queue.iter().position(|found| Arc::ptr_eq(found, seat)) else { return };
        queue.remove(at);
        self.count -= 1;
        if queue.is_empty() {
            self.by_address.remove(&address);
        }
    }

    /// Removes the oldest slot of the address that has most slots. `next` is the address of the connection that needs a
    /// slot; it counts as if it had one already.
    fn replace(&mut self, next: AddressKey) -> Option<Arc<Seat>> {
        let most = self.by_address.iter().max_by_key(|(key, queue)| queue.len() + usize::from(**key == next));
        let address = *most?.0;
        let queue = self.by_address.get_mut(&address)?;
        let oldest = queue.pop_front();
        self.count -= usize::from(oldest.is_some());
        if queue.is_empty() {
            self.by_address.remove(&address);
        }
        oldest
    }
}

impl HalfOpen {
    /// Creates slots for `max_slots` connections, at least one.
    #[must_use]
    pub fn new(max_slots: usize) -> Arc<Self> {
        Arc::new(Self { max_slots: max_slots.max(1), table: Mutex::default(), replaced: AtomicU64::new(0) })
    }

    /// Takes a slot for a connection from `address`. If no slot is free, another connection loses its slot.
    pub fn enter(self: &Arc<Self>, address: AddressKey) -> Slot {
        let seat = Arc::<Seat>::default();
        let mut table = self.table();
        let lost = if table.count >= self.max_slots { table.replace(address) } else { None };
        table.by_address.entry(address).or_default().push_back(Arc::clone(&seat));
        table.count += 1;
        drop(table);
        if let Some(lost) = lost {
            self.take_from(&lost);
        }
        Slot { owner: Arc::clone(self), address, seat }
    }

    /// Takes the slot from the oldest connection of `address`. Returns false if it has none.
    pub fn replace_of(&self, address: AddressKey) -> bool {
        let mut table = self.table();
        let oldest = table.by_address.get(&address).and_then(VecDeque::front).map(Arc::clone);
        let Some(oldest) = oldest else { return false };
        table.remove(address, &oldest);
        drop(table);
        self.take_from(&oldest);
        true
    }

    fn take_from(&self, seat: &Seat) {
        self.replaced.fetch_add(1, Relaxed);
        seat.is_lost.store(true, Relaxed);
        seat.waker.wake();
    }

    /// Returns the number of slots in use.
    #[must_use]
    pub fn used(&self) -> usize {
        self.table().count
    }

    /// Returns the maximum number of slots in use.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.max_slots
    }

    /// Returns how many connections have lost their slot to a newer one.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slot of a connection. Dropping it frees the slot.
#[derive(Debug)]
pub struct Slot {
    owner: Arc<HalfOpen>,
    address: AddressKey,
    seat: Arc<Seat>,
}

impl Slot {
    /// Ready once the connection has lost its slot to a newer one. Its task must then end.
    pub fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.seat.waker.register(cx.waker());
        if self.seat.is_lost.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the connection has lost its slot to a newer one.
    pub async fn lost(&self) {
        poll_fn(|cx| self.poll_lost(cx)).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.seat.is_lost.load(Relaxed) {
            self.owner.table().remove(self.address, &self.seat);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, task::Waker};

    use super::*;

    fn address(last: u8) -> AddressKey {
        AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into())
    }

    fn is_lost(slot: &Slot) -> bool {
        slot.poll_lost(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_of_the_address_with_most_slots_makes_room() {
        let slots = HalfOpen::new(4);
        let good = slots.enter(address(2));
        let mut waiting: Vec<_> = (0..3).map(|_| slots.enter(address(1))).collect();
        for _ in 0..10 {
            waiting.push(slots.enter(address(1)));
        }
        assert!(!is_lost(&good));
        let lost: Vec<_> = waiting.iter().map(is_lost).collect();
        assert_eq!(lost, [[true; 10].as_slice(), &[false; 3]].concat());
        // A client of the flooding address gets a slot too, and so does another address.
        let (same, other) = (slots.enter(address(1)), slots.enter(address(3)));
        assert!(!is_lost(&same) && !is_lost(&other) && !is_lost(&good));
        assert_eq!((slots.used(), slots.replaced()), (4, 12));
        drop((waiting, same, other, good));
        assert_eq!(slots.used(), 0);
        assert!(slots.table().by_address.is_empty());
    }

    #[test]
    fn an_address_replaces_its_own_oldest_slot_and_no_other() {
        let slots = HalfOpen::new(usize::MAX);
        let (good, greedy) = (slots.enter(address(2)), [slots.enter(address(1)), slots.enter(address(1))]);
        assert!(slots.replace_of(address(1)));
        assert_eq!((is_lost(&greedy[0]), is_lost(&greedy[1]), is_lost(&good)), (true, false, false));
        assert!(slots.replace_of(address(1)) && !slots.replace_of(address(1)) && !slots.replace_of(address(3)));
        assert!(!is_lost(&good));
        drop((greedy, good));
        assert_eq!((slots.used(), slots.replaced()), (0, 2));
    }

    #[tokio::test]
    async fn a_connection_that_waits_is_woken_when_it_loses_its_slot() {
        let slots = HalfOpen::new(1);
        let first = slots.enter(address(1));
        let waits = tokio::spawn(async move { first.lost().await });
        tokio::task::yield_now().await;
        let _second = slots.enter(address(2));
        waits.await.unwrap();
        assert_eq!(slots.used(), 1);
    }
}
