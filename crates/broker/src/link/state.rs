//! State under the mutex of a link (the subscriptions of one connection): its subscriptions, the order of their
//! deliveries, and the total size of their queues.
//!
//! Owns: the slots, the schedule, the size of all queues of the link in messages and bytes, and the status of the link.
//! Does not own: the mutex and the notification of drivers (`link`), the queue and the policy of one subscription
//! (`queue`), the memory of all links together (`memory`), or the matching of subjects (`publish`).
//!
//! ```text
//!   slots      [ sub 7: ▪▪▪ ] [ sub 9: ▪ ] [ free ]     each with a queue of shared batches with sequence numbers
//!   schedule   (12, sub 9) (14, sub 7)                   heap of sendable subscriptions, by first number
//! ```
//! A publish takes one sequence number for all matching subscriptions of the link. So equal numbers in the
//! schedule belong to the same batch, which is sent as one copy with the ids of all these subscriptions.
//!
//! Invariants: a scheduled subscription has exactly one valid entry in the heap. The number of this entry is at most
//! the sequence number of the subscription's first batch. `held.bytes` is the sum over the subscriptions, and the
//! memory reserved for the link is at least as large.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, binary_heap::PeekMut},
    hash::BuildHasher,
    sync::Arc,
};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::{
    outbound::{Budget, Outbound, TakeResult},
    queue::Subscription,
    slot::{Receiver, SlotId, Tag},
};
use crate::{
    batch::{Batch, Cost},
    memory::{LinkOwner, Memory, Reservation},
    notify::{Notify, WaitStamp, Waiters},
    options::{Credit, Policy, SubscriptionId},
};

/// Result of offering a batch to a subscription's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OfferResult {
    /// The batch is queued. Older batches may have been dropped for it.
    Queued,
    /// The queue has no room for the batch; the subscription will get a notice of the loss.
    Missed,
    /// The subscription has ended.
    Ended,
}

/// Result of reserving room for a batch in a subscription's queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReserveResult {
    Yes,
    /// The subscription's queue or its link is full. Room becomes free when the link's driver takes items.
    Full,
    /// The memory for the queues of all links together is full. Memory becomes free when any link releases some.
    NoMemory,
    Ended,
}

#[derive(Debug)]
struct Slot {
    generation: u32,
    subscription: Option<Subscription>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LinkStatus {
    Open,
    /// The queue of a subscription with [`Policy::Disconnect`] overflowed. The driver learns this with its next take;
    /// then the link becomes `Closed`.
    Doomed {
        subscription: SubscriptionId,
        messages: u64,
    },
    Closed,
}

pub(crate) struct LinkState {
    receiver: Receiver,
    hasher: FixedState,
    slots: Vec<Slot>,
    free: Vec<u32>,
    by_id: HashTable<u32>,
    schedule: BinaryHeap<Reverse<(u64, SlotId)>>,
    scheduled: usize,
    last_seq: u64,
    held: Cost,
    max_bytes: u64,
    memory: Reservation,
    dropped: u64,
    status: LinkStatus,
    /// True if the driver was notified that the link has items, and has not taken any items since then.
    is_notified: bool,
    /// Publishers that wait for room in the queues of this link.
    waiting: Waiters,
}

impl LinkState {
    pub(crate) fn new(receiver: Receiver, max_bytes: u64, seed: u64, owner: Arc<LinkOwner>) -> Self {
        Self {
            receiver,
            hasher: FixedState::with_seed(seed),
            slots: Vec::new(),
            free: Vec::new(),
            by_id: HashTable::new(),
            schedule: BinaryHeap::new(),
            scheduled: 0,
            last_seq: 0,
            held: Cost::default(),
            max_bytes,
            memory: Reservation::new(owner),
            dropped: 0,
            status: LinkStatus::Open,
            is_notified: false,
            waiting: Waiters::default(),
        }
    }

    pub(crate) fn is_open(&self) -> bool {
        self.status == LinkStatus::Open
    }

    pub(crate) fn len(&self) -> usize {
        self.by_id.len()
    }

    pub(crate) fn held(&self) -> Cost {
        self.held
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    pub(crate) fn find(&self, id: SubscriptionId) -> Option<u32> {
        self.by_id.find(self.hasher.hash_one(id), |slot| self.id_in(*slot) == id).copied()
    }

    pub(crate) fn get(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.slots[self.find(id)? as usize].subscription.as_ref()
    }

    fn id_in(&self, slot: u32) -> SubscriptionId {
        self.slots[slot as usize].subscription.as_ref().expect("ids lead to taken slots").id
    }

    /// Returns the id of the subscription in a slot of the link's table. The subscription must exist.
    pub(crate) fn id_at(&self, place: SlotId) -> SubscriptionId {
        self.id_in(place.slot)
    }

    fn at(&mut self, place: SlotId) -> Option<&mut Subscription> {
        at(&mut self.slots, place)
    }

    /// Adds a subscription with an unused id. `make` creates the subscription from the tag of its slot in the link's
    /// table. A tag distinguishes successive subscriptions in one slot.
    pub(crate) fn insert(
        &mut self,
        id: SubscriptionId,
        policy: Policy,
        make: impl FnOnce(Tag) -> Subscription,
    ) -> SlotId {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { generation: 0, subscription: None });
            u32::try_from(self.slots.len() - 1).expect("bounded")
        });
        let entry = &mut self.slots[slot as usize];
        entry.generation = entry.generation.wrapping_add(1);
        let tag = Tag::new(entry.generation, policy, self.receiver);
        entry.subscription = Some(make(tag));
        let Self { by_id, slots, hasher, .. } = self;
        let hash_of = |slot: &u32| hasher.hash_one(slots[*slot as usize].subscription.as_ref().expect("taken").id);
        by_id.insert_unique(hasher.hash_one(id), slot, hash_of);
        SlotId { slot, tag }
    }

    /// Removes a subscription and the messages in its queue.
    pub(crate) fn remove(&mut self, id: SubscriptionId, memory: &Memory) -> Option<(SlotId, Subscription)> {
        let slot = self.find(id)?;
        let found = self.by_id.find_entry(self.hasher.hash_one(id), |found| *found == slot).expect("just found");
        found.remove();
        let subscription = self.slots[slot as usize].subscription.take().expect("ids lead to taken slots");
        self.free.push(slot);
        self.held.take(subscription.held());
        self.memory.shrink(self.held.bytes, memory);
        if subscription.scheduled {
            self.scheduled -= 1;
            self.prune();
        }
        let place = SlotId { slot, tag: subscription.tag };
        Some((place, subscription))
    }

    /// Removes all subscriptions of the link and closes it.
    pub(crate) fn close(&mut self, memory: &Memory) -> Vec<(SlotId, Subscription)> {
        self.status = LinkStatus::Closed;
        self.schedule = BinaryHeap::new();
        self.scheduled = 0;
        self.held = Cost::default();
        self.memory.shrink(0, memory);
        self.by_id = HashTable::new();
        self.free = Vec::new();
        let slots = std::mem::take(&mut self.slots).into_iter().zip(0..);
        let taken = slots.filter_map(|(slot, number)| Some((number, slot.subscription?)));
        taken.map(|(slot, subscription)| (SlotId { slot, tag: subscription.tag }, subscription)).collect()
    }

    /// Returns the sequence number for the next publish. All matching subscriptions of the link use this number for the
    /// publish.
    pub(crate) fn next_seq(&mut self) -> u64 {
        self.last_seq += 1;
        self.last_seq
    }

    /// Makes sure that the link has reserved memory for `more` bytes of messages in addition to the messages that it
    /// holds. Returns false if a limit forbids this. A link without messages can hold any single batch.
    fn reserve_memory(&mut self, more: u64, memory: &Memory) -> bool {
        let bytes = self.held.bytes + more;
        if self.held.messages == 0 {
            self.memory.grow_to(bytes, memory);
            return true;
        }
        bytes <= self.max_bytes && self.memory.try_grow_to(bytes, memory)
    }

    pub(crate) fn reserve(&mut self, place: SlotId, cost: Cost, memory: &Memory) -> ReserveResult {
        if !self.is_open() {
            return ReserveResult::Ended;
        }
        match self.at(place) {
            None => return ReserveResult::Ended,
            Some(subscription) if !subscription.has_room(cost) => return ReserveResult::Full,
            Some(_) => {}
        }
        if !self.reserve_memory(cost.bytes, memory) {
            let link_has_room = self.held.bytes + cost.bytes <= self.max_bytes;
            return if link_has_room { ReserveResult::NoMemory } else { ReserveResult::Full };
        }
        self.held.add(cost);
        self.at(place).expect("just seen").reserve(cost);
        ReserveResult::Yes
    }

    /// Releases the room that was reserved for a batch in the queue of the subscription in slot `place`, if that
    /// subscription still exists.
    pub(crate) fn unreserve(&mut self, place: SlotId, cost: Cost, memory: &Memory) {
        if !self.is_open() {
            return;
        }
        if let Some(subscription) = self.at(place) {
            subscription.unreserve(cost);
            self.held.take(cost);
            self.memory.shrink(self.held.bytes, memory);
        }
    }

    /// Queues a batch for a subscription, in the room that an earlier reservation has taken in the subscription's
    /// queue.
    pub(crate) fn queue_reserved(&mut self, place: SlotId, batch: &Batch, seq: u64) -> OfferResult {
        if !self.is_open() {
            return OfferResult::Ended;
        }
        let Some(subscription) = self.at(place) else { return OfferResult::Ended };
        subscription.unreserve(batch.cost());
        subscription.push(batch, seq);
        self.schedule(place);
        OfferResult::Queued
    }

    /// Queues a batch for a subscription. If there is no room, applies the subscription's policy instead.
    pub(crate) fn offer(&mut self, place: SlotId, batch: &Batch, seq: u64, memory: &Memory) -> OfferResult {
        let cost = batch.cost();
        if !self.is_open() {
            return OfferResult::Ended;
        }
        let Some(subscription) = self.at(place) else { return OfferResult::Ended };
        let mut room = subscription.has_room(cost) && self.reserve_memory(cost.bytes, memory);
        while !room && self.drop_oldest_batch(place, memory) {
            room = self.at(place).is_some_and(|subscription| subscription.has_room(cost))
                && self.reserve_memory(cost.bytes, memory);
        }
        if room {
            self.held.add(cost);
            self.at(place).expect("just seen").push(batch, seq);
        } else {
            self.dropped += cost.messages;
            let receiver = self.receiver;
            let subscription = self.at(place).expect("just seen");
            // A message that another node missed is counted in the counters of that node.
            if receiver == Receiver::Client {
                memory.losses.count(subscription.policy, cost.messages, subscription.dropped() == 0);
            }
            subscription.missed(cost.messages, seq);
            if subscription.policy == Policy::Disconnect {
                self.close_for_overflow(place, memory);
                return OfferResult::Missed;
            }
        }
        self.schedule(place);
        if room { OfferResult::Queued } else { OfferResult::Missed }
    }

    /// Drops the oldest queued batch of a subscription with [`Policy::DropOld`]. Returns false if the queue has no
    /// batch to drop.
    fn drop_oldest_batch(&mut self, place: SlotId, memory: &Memory) -> bool {
        let Some(subscription) = self.at(place) else { return false };
        if subscription.policy != Policy::DropOld {
            return false;
        }
        let Some(dropped) = subscription.drop_oldest() else { return false };
        memory.losses.count(Policy::DropOld, dropped.lost.messages, dropped.first);
        self.held.take(dropped.lost);
        self.dropped += dropped.lost.messages;
        true
    }

    /// Closes the link because the queue of the subscription at `place` overflowed. Frees the memory of all queues
    /// immediately. Reservations in these queues become invalid.
    fn close_for_overflow(&mut self, place: SlotId, memory: &Memory) {
        let subscription = self.at(place).expect("the subscription that overflowed exists");
        let (id, waiting) = (subscription.id, subscription.held().messages);
        let messages = subscription.dropped() + waiting;
        memory.losses.count(Policy::Disconnect, waiting, false);
        memory.losses.count_link();
        self.status = LinkStatus::Doomed { subscription: id, messages };
        // The driver may have been notified already, of items that are gone now. It must be notified of the disconnect
        // in any case.
        self.is_notified = false;
        for slot in &mut self.slots {
            if let Some(subscription) = &mut slot.subscription {
                subscription.clear();
            }
        }
        self.held = Cost::default();
        self.schedule = BinaryHeap::new();
        self.scheduled = 0;
        self.memory.shrink(0, memory);
    }

    /// Adds a subscription with a sendable item to the link's schedule, unless the schedule already has it.
    fn schedule(&mut self, place: SlotId) {
        let Some(subscription) = at(&mut self.slots, place) else { return };
        if subscription.scheduled {
            return;
        }
        if let Some(seq) = subscription.next_seq() {
            subscription.scheduled = true;
            self.scheduled += 1;
            self.schedule.push(Reverse((seq, place)));
        }
    }

    /// Removes the entries of ended subscriptions from the schedule. Otherwise these entries would accumulate while the
    /// driver takes no items.
    fn prune(&mut self) {
        if self.schedule.len() > 2 * self.scheduled + 64 {
            let Self { schedule, slots, .. } = self;
            schedule.retain(|Reverse((_, place))| at(slots, *place).is_some());
        }
    }

    pub(crate) fn grant(&mut self, id: SubscriptionId, credit: Credit) -> bool {
        let Some(slot) = self.find(id) else { return false };
        let subscription = self.slots[slot as usize].subscription.as_mut().expect("ids lead to taken slots");
        subscription.grant(credit);
        let place = SlotId { slot, tag: subscription.tag };
        if self.is_open() {
            self.schedule(place);
        }
        true
    }

    /// Returns true if the driver must be notified that the link has items. Later calls return false until the driver
    /// has taken items.
    pub(crate) fn must_notify(&mut self) -> bool {
        let something = !self.schedule.is_empty() || matches!(self.status, LinkStatus::Doomed { .. });
        something && !std::mem::replace(&mut self.is_notified, true)
    }

    /// Moves items that may be sent from the queues to `out`, within the limits in `budget`.
    pub(crate) fn take(&mut self, out: &mut Vec<Outbound>, budget: Budget, memory: &Memory) -> TakeResult {
        if let LinkStatus::Doomed { subscription, messages } = self.status {
            self.status = LinkStatus::Closed;
            self.is_notified = false;
            out.push(Outbound::Disconnect { subscription, messages });
            return TakeResult::All;
        }
        let mut left = budget;
        let mut last_seq = None;
        let before = self.held;
        while let Some(mut top) = self.schedule.peek_mut() {
            let Reverse((seq, place)) = *top;
            let Some(subscription) = at(&mut self.slots, place) else {
                PeekMut::pop(top);
                continue;
            };
            match subscription.next_seq() {
                Some(next) if next == seq => {}
                Some(next) => {
                    *top = Reverse((next, place));
                    continue;
                }
                None => {
                    unschedule(subscription, &mut self.scheduled);
                    PeekMut::pop(top);
                    continue;
                }
            }
            let shared = last_seq == Some(seq);
            if !shared && !left.admits(subscription.next_bytes(), last_seq.is_none()) {
                break;
            }
            let id = subscription.id;
            match subscription.take() {
                None => out.push(Outbound::Gap { subscription: id, messages: subscription.take_gap() }),
                Some(taken) => {
                    self.held.take(taken.batch.cost());
                    if !shared {
                        left.spend(taken.batch.cost().bytes);
                        last_seq = Some(seq);
                    }
                    emit(out, taken, id, shared);
                }
            }
            match subscription.next_seq() {
                Some(next) => *top = Reverse((next, place)),
                None => {
                    unschedule(subscription, &mut self.scheduled);
                    PeekMut::pop(top);
                }
            }
        }
        if self.held != before {
            self.memory.shrink(self.held.bytes, memory);
        }
        self.is_notified = !self.schedule.is_empty();
        if self.is_notified { TakeResult::More } else { TakeResult::All }
    }

    /// Adds a publisher that waits for room in the link's queues.
    pub(crate) fn wait(&mut self, waiter: &Arc<dyn Notify>, memory: &Memory) {
        self.waiting.add(waiter, memory.stamp());
    }

    pub(crate) fn take_waiting(&mut self) -> Vec<Arc<dyn Notify>> {
        self.waiting.take()
    }

    /// Removes and returns the publishers that began to wait when the stamp was `since` or higher. A stamp is a number
    /// that rises with each publisher that begins to wait. Leaves out `own`, the publisher whose publish has failed.
    pub(crate) fn take_waiting_since(
        &mut self,
        since: WaitStamp,
        own: Option<&Arc<dyn Notify>>,
    ) -> Vec<Arc<dyn Notify>> {
        self.waiting.take_since(since, own)
    }
}

fn at(slots: &mut [Slot], place: SlotId) -> Option<&mut Subscription> {
    slots.get_mut(place.slot as usize)?.subscription.as_mut().filter(|found| found.tag == place.tag)
}

fn unschedule(subscription: &mut Subscription, scheduled: &mut usize) {
    subscription.scheduled = false;
    *scheduled -= 1;
}

/// Appends a batch for a subscription to `out`, with notices of the messages that the subscription missed before and
/// after it. If `shared` is true, another subscription of the link has already appended this batch, so only the
/// subscription's id is added to it.
fn emit(out: &mut Vec<Outbound>, taken: super::queue::TakenBatch, subscription: SubscriptionId, shared: bool) {
    let super::queue::TakenBatch { batch, missed_before, missed_after } = taken;
    if missed_before > 0 {
        let gap = Outbound::Gap { subscription, messages: missed_before };
        let at = if shared { copy_at(out) } else { out.len() };
        out.insert(at, gap);
    }
    if shared {
        let at = copy_at(out);
        let Outbound::Batch { subscriptions, .. } = &mut out[at] else { unreachable!("found as a batch") };
        subscriptions.push(subscription);
    } else {
        out.push(Outbound::Batch { batch, subscriptions: smallvec::smallvec![subscription] });
    }
    if missed_after > 0 {
        out.push(Outbound::Gap { subscription, messages: missed_after });
    }
}

/// Returns the index of the last batch in `out`. Notices of missed messages may follow it, so it need not be the last
/// item.
fn copy_at(out: &[Outbound]) -> usize {
    out.iter().rposition(|item| matches!(item, Outbound::Batch { .. })).expect("a shared batch was emitted")
}
