//! Slots for connections that have not proved themselves yet: without a finished handshake, without authentication, or
//! above the limit on connections.
//!
//! Owns: a bounded number of slots, and the choice of the connection that loses its slot. Does not own: connections;
//! the task of a connection that loses its slot must end.
//!
//! A new connection always gets a slot. If none is free, the address that has most slots loses the slot of its oldest
//! connection. So connections that only wait cannot keep others out, even from their own address. A client that proves
//! itself promptly loses its slot only if the server accepts as many newer connections in that time as there are slots.
//!
//! Connections that have not sent a request have slots of the same kind, but without a limit on their number. When
//! their address has used up its share of connections and opens another one, the oldest loses its slot
//! ([`HalfOpen::replace_of`]). A slot keeps the connection's share of `max_connections`, so the newer connection takes
//! over the share together with the slot.

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

use crate::{
    admission::{Account, AddressKey, Reservation, Resource},
    config::Config,
    limits::MAX_STATUS_CONNECTIONS,
};

/// Slots of a server's connections that have not proved themselves yet: they have not finished a handshake, not
/// authenticated, not sent a request, or are above `max_connections`.
#[derive(Debug)]
pub struct ConnectionSlots {
    /// Native connections to which the server has not yet sent the welcome that ends the handshake, and Redis clients
    /// that have not authenticated.
    pub half_open: Arc<HalfOpen>,
    /// HTTP connections and connections of Redis clients without a password that have not sent a request.
    pub silent: Arc<HalfOpen>,
    /// HTTP connections above `max_connections`. They get answers only to requests for the server's health, metrics and
    /// status.
    pub status: Arc<HalfOpen>,
}

impl ConnectionSlots {
    /// Creates the slots, with the numbers that the configuration permits.
    #[must_use]
    pub fn new(config: &Config) -> Self {
        Self {
            half_open: HalfOpen::new(config.max_handshakes as usize),
            silent: HalfOpen::new(usize::MAX),
            status: HalfOpen::new(MAX_STATUS_CONNECTIONS),
        }
    }

    /// Takes one of the `max_connections` for a new client. If the client's address may have no more connections, the
    /// new connection takes the place of an older one of the address: one that has not sent a request or not finished
    /// its handshake. Returns `None` if there is no such connection.
    pub fn connect(&self, account: &Arc<Account>) -> Option<Reservation> {
        if let Some(held) = account.take_quietly(Resource::Connections, 1) {
            return Some(held);
        }
        let address = account.address();
        let replaced = self.silent.replace_of(address).or_else(|| self.half_open.replace_of(address));
        replaced.or_else(|| account.take(Resource::Connections, 1))
    }
}

/// Slots for connections that have not proved themselves yet, for example by authentication. If no slot is free, the
/// address with most slots loses its oldest one to the new connection.
#[derive(Debug)]
pub struct HalfOpen {
    max_slots: usize,
    table: Mutex<Table>,
    replaced: AtomicU64,
}

/// Slots in use by address, the oldest of each address first. Invariant: `count` is the number of all slots in use, and
/// each address in the table has at least one slot.
#[derive(Debug, Default)]
struct Table {
    count: usize,
    by_address: HashMap<AddressKey, VecDeque<Arc<SlotState>>>,
}

/// State of one slot. The connection's task and the table of slots share it.
#[derive(Debug, Default)]
struct SlotState {
    is_lost: AtomicBool,
    /// True once the connection has proved itself, for example has authenticated. It can then no longer lose the slot.
    is_released: AtomicBool,
    /// The connection's reservation of one of the `max_connections`. `None` if the connection is above that limit, or
    /// has lost its slot to another connection.
    share: Mutex<Option<Reservation>>,
    waker: AtomicWaker,
}

impl SlotState {
    fn share(&self) -> MutexGuard<'_, Option<Reservation>> {
        self.share.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, address: AddressKey, seat: &Arc<SlotState>) {
        let Some(queue) = self.by_address.get_mut(&address) else { return };
        let Some(at) = queue.iter().position(|found| Arc::ptr_eq(found, seat)) else { return };
        queue.remove(at);
        self.count -= 1;
        if queue.is_empty() {
            self.by_address.remove(&address);
        }
    }

    /// Removes and returns the oldest slot of the address that has most slots. `next` is the address of the connection
    /// that needs a slot; it counts as having one slot more.
    fn replace(&mut self, next: AddressKey) -> Option<Arc<SlotState>> {
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
    /// Creates slots for up to `max_slots` connections; 0 counts as 1.
    #[must_use]
    pub fn new(max_slots: usize) -> Arc<Self> {
        Arc::new(Self { max_slots: max_slots.max(1), table: Mutex::default(), replaced: AtomicU64::new(0) })
    }

    /// Takes a slot for a connection from `address`. If no slot is free, another connection loses its slot. `share` is
    /// the connection's reservation of one of the `max_connections`. The slot keeps it.
    pub fn enter(self: &Arc<Self>, address: AddressKey, share: Option<Reservation>) -> Slot {
        let seat = Arc::new(SlotState { share: Mutex::new(share), ..SlotState::default() });
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

    /// Takes the slot away from the oldest connection of `address`, and returns that connection's reservation of one of
    /// the `max_connections`. Returns `None` if no connection of the address has a slot, or if the slot has no
    /// reservation.
    pub fn replace_of(&self, address: AddressKey) -> Option<Reservation> {
        let mut table = self.table();
        let oldest = table.by_address.get(&address).and_then(VecDeque::front).map(Arc::clone)?;
        table.remove(address, &oldest);
        // The table stays locked, so that the connection does not prove itself in between. Otherwise it would continue
        // without a share.
        let share = oldest.share().take();
        oldest.is_lost.store(true, Relaxed);
        drop(table);
        self.take_from(&oldest);
        share
    }

    fn take_from(&self, seat: &SlotState) {
        self.replaced.fetch_add(1, Relaxed);
        seat.is_lost.store(true, Relaxed);
        seat.waker.wake();
    }

    /// Returns the number of connections that hold a slot, because they have not proved themselves yet (for example by
    /// authentication).
    #[must_use]
    pub fn used(&self) -> usize {
        self.table().count
    }

    /// Returns the maximum number of connections that may hold a slot at a time.
    #[must_use]
    pub fn limit(&self) -> usize {
        self.max_slots
    }

    /// Returns the number of connections that have lost their slot to a newer connection.
    #[must_use]
    pub fn replaced(&self) -> u64 {
        self.replaced.load(Relaxed)
    }

    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Slot of one connection that has not proved itself yet. The slot is dropped when the connection ends. This frees the
/// connection's reservation of one of the `max_connections`.
#[derive(Debug)]
pub struct Slot {
    owner: Arc<HalfOpen>,
    address: AddressKey,
    seat: Arc<SlotState>,
}

impl Slot {
    /// Frees the slot because the connection has proved itself, for example by authentication. The connection keeps its
    /// reservation of one of the `max_connections`. Returns false if a newer connection has taken over the reservation;
    /// this connection must then end.
    #[inline]
    pub fn release(&self) -> bool {
        self.is_released() || self.prove()
    }

    #[cold]
    fn prove(&self) -> bool {
        let mut table = self.owner.table();
        if self.is_lost() && !self.has_share() {
            return false;
        }
        self.seat.is_released.store(true, Relaxed);
        table.remove(self.address, &self.seat);
        true
    }

    /// Returns true if the connection has proved itself, for example by authentication. It can then no longer lose the
    /// slot.
    #[inline]
    #[must_use]
    pub fn is_released(&self) -> bool {
        self.seat.is_released.load(Relaxed)
    }

    /// Returns true if the connection has lost its slot to a newer connection.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.seat.is_lost.load(Relaxed)
    }

    /// Returns true if the connection holds a reservation of one of the `max_connections`.
    #[must_use]
    pub fn has_share(&self) -> bool {
        self.seat.share().is_some()
    }

    /// Ready once the connection has lost its slot to a newer connection. The task of the older connection must then
    /// end.
    pub fn poll_lost(&self, cx: &mut Context<'_>) -> Poll<()> {
        self.seat.waker.register(cx.waker());
        if self.seat.is_lost.load(Relaxed) { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Waits until the connection has lost its slot to a newer connection.
    pub async fn lost(&self) {
        poll_fn(|cx| self.poll_lost(cx)).await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        if !self.seat.is_lost.load(Relaxed) {
            let _ = self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::{net::Ipv4Addr, task::Waker};

    use super::*;
    use crate::admission::Admission;

    fn address(last: u8) -> AddressKey {
        AddressKey::of(Ipv4Addr::new(127, 0, 0, last).into())
    }

    fn is_lost(slot: &Slot) -> bool {
        slot.poll_lost(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn the_oldest_of_the_address_with_most_slots_makes_room() {
        let slots = HalfOpen::new(4);
        let good = slots.enter(address(2), None);
        let mut waiting: Vec<_> = (0..3).map(|_| slots.enter(address(1), None)).collect();
        for _ in 0..10 {
            waiting.push(slots.enter(address(1), None));
        }
        assert!(!is_lost(&good));
        let lost: Vec<_> = waiting.iter().map(is_lost).collect();
        assert_eq!(lost, [[true; 10].as_slice(), &[false; 3]].concat());
        // Another client of the flooding address gets a slot too, and so does a client of another address.
        let (same, other) = (slots.enter(address(1), None), slots.enter(address(3), None));
        assert!(!is_lost(&same) && !is_lost(&other) && !is_lost(&good));
        assert_eq!((slots.used(), slots.replaced()), (4, 12));
        drop((waiting, same, other, good));
        assert_eq!(slots.used(), 0);
        assert!(slots.table().by_address.is_empty());
    }

    #[test]
    fn an_address_replaces_its_own_oldest_slot_and_takes_its_share() {
        let admission = Admission::new(&Config::default());
        let (slots, account) = (HalfOpen::new(usize::MAX), admission.account(address(1)));
        let share = || account.take(Resource::Connections, 1);
        let used = || admission.bound(Resource::Connections).used();
        let good = slots.enter(address(2), None);
        let greedy = [slots.enter(address(1), share()), slots.enter(address(1), share())];
        let taken = slots.replace_of(address(1));
        assert_eq!((is_lost(&greedy[0]), is_lost(&greedy[1]), is_lost(&good)), (true, false, false));
        assert!(taken.is_some() && !greedy[0].has_share() && greedy[1].has_share());
        assert_eq!(used(), 2, "the share has another owner");
        // A connection that has proved itself keeps its slot and its share.
        assert!(greedy[1].release());
        assert!(slots.replace_of(address(1)).is_none() && slots.replace_of(address(3)).is_none());
        assert!(!is_lost(&greedy[1]) && greedy[1].has_share());
        drop((greedy, good));
        assert_eq!((slots.used(), slots.replaced(), used()), (0, 1, 1));
        drop(taken);
        assert_eq!(used(), 0);
    }

    #[test]
    fn a_connection_without_its_share_cannot_prove_itself_and_one_without_its_slot_can() {
        let admission = Admission::new(&Config::default());
        let account = admission.account(address(1));
        let share = || account.take(Resource::Connections, 1);
        let silent = HalfOpen::new(usize::MAX);
        let first = silent.enter(address(1), share());
        let taken = silent.replace_of(address(1));
        assert!(taken.is_some() && !first.release());
        assert!(!first.is_released() && is_lost(&first), "it would be a connection above the limit");
        let bounded = HalfOpen::new(1);
        let first = bounded.enter(address(1), share());
        let _second = bounded.enter(address(1), share());
        assert!(is_lost(&first) && first.release() && first.is_released(), "its first bytes may have arrived before");
        assert_eq!(bounded.used(), 1);
    }

    #[tokio::test]
    async fn a_connection_that_waits_is_woken_when_it_loses_its_slot() {
        let slots = HalfOpen::new(1);
        let first = slots.enter(address(1), None);
        let waits = tokio::spawn(async move { first.lost().await });
        tokio::task::yield_now().await;
        let _second = slots.enter(address(2), None);
        waits.await.unwrap();
        assert_eq!(slots.used(), 1);
    }
}
