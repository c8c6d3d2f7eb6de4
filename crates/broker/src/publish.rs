//! One publish: reserves room in the queues of subscriptions that block publishers, then fills the queues of
//! all matching subscriptions.
//!
//! # Order
//! The caller holds the mutex of the subject's shard from before the first queue is touched until after the
//! last. Two publishes to one subject have the same shard. So all queues that receive both receive them in
//! the order in which the mutex was taken: those of literal subscribers, wildcard subscribers and group
//! members alike. A queue is first-in-first-out under its link's mutex. So each subscriber sees, across all
//! subjects, a publish that returned before another began first. Publishes to subjects of different shards
//! share only the locks of links that receive both, each for the time of a push.
//!
//! # Room
//! If some matching subscriptions have the policy to block, room is reserved in all of their queues before
//! any queue changes. If one of these queues has no room, the reservations are released, and no subscription
//! receives the batch. The publisher is added to that link's list of waiters, under the same lock that showed
//! there was no room. (If the broker's memory is full, the publisher is added to the broker's list as well,
//! and tries once more.) So a publish happens completely or not at all, and can be repeated unchanged. No
//! thread waits for room here, and none waits for a lock while it holds another for longer than a push: locks
//! are taken in the order shard, trie, link, and never two links at the same time.
//!
//! # Groups
//! Two members are picked at random. The member whose link has fewer queued messages is tried first, then the
//! other picked member, then all remaining members; the first member with room receives the batch. A policy
//! applies only if no member has room: the policy of the first member that does not block. If all members
//! block, the publish waits until any of them has room. When a member leaves, the messages in its queue are
//! lost, as with any subscription, because no message is stored.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_types::classified;

use crate::{
    batch::Batch,
    interest::{Interest, Target},
    link::{LinkId, Offered, Reserved},
    memory::Memory,
    notify::Notify,
    options::SubscriptionId,
    topics::Dice,
    wake::Wakes,
};

/// Result of a publish: how many subscriptions received the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of subscriptions whose queue received the batch. A queue group counts as one.
    pub delivered: u64,
    /// Number of subscriptions that missed the batch because their queues were full. They will get a notice
    /// of the loss.
    pub missed: u64,
}

impl Published {
    /// Returns true if the batch matched a subscription. If it matched none, a request can fail immediately,
    /// because there are no responders.
    #[must_use]
    pub fn matched(&self) -> bool {
        self.delivered + self.missed > 0
    }
}

/// Error returned when a subscription that blocks publishers has a full queue. No subscription received the
/// batch. Publish the batch again when the waiter is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of subscription {} of link {} is full and blocks publishers: publish again when it has room", subscription.0, link.0)]
pub struct WouldBlock {
    /// Link (connection) whose queue is full.
    pub link: LinkId,
    /// Subscription whose queue is full. If all members of a queue group are full: one of them.
    pub subscription: SubscriptionId,
}

classified!(WouldBlock {
    _ => "would_block", Retry;
});

/// Arguments of one publish, and the state of the broker that the publish uses.
pub(crate) struct Publish<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) memory: &'a Memory,
    pub(crate) waiter: Option<&'a Arc<dyn Notify>>,
    pub(crate) wakes: &'a mut Wakes,
}

/// A subscription that receives the batch, and a flag that is true if room in its queue is reserved.
type Chosen<'t> = (&'t Target, bool);

enum Picked<'t> {
    /// This member of the queue group has room for the batch, which is now reserved.
    Room(&'t Target),
    /// No member of the queue group has room; this member's policy is not to block.
    Overflows(&'t Target),
    /// No member of the queue group has room, and the policy of all members is to block.
    Blocks(WouldBlock),
    /// All members of the queue group have left.
    Nobody,
}

impl Publish<'_> {
    pub(crate) fn run(&mut self, interest: &Interest, dice: &mut Dice) -> Result<Published, WouldBlock> {
        let targets = interest.targets().iter();
        let mut reserved: SmallVec<[&Target; 8]> = SmallVec::new();
        for target in targets.clone().filter(|target| target.place.tag.blocks()) {
            match self.reserve(target) {
                Ok(Reserved::Yes) => reserved.push(target),
                Ok(Reserved::Gone) => {}
                Ok(Reserved::Full | Reserved::NoMemory) => unreachable!("reported as an error"),
                Err(blocked) => return Err(self.give_up(&reserved, blocked)),
            }
        }
        if !interest.has_groups() {
            return Ok(self.deliver(targets.map(|target| (target, target.place.tag.blocks()))));
        }
        let mut chosen: SmallVec<[Chosen<'_>; 16]> =
            targets.map(|target| (target, target.place.tag.blocks())).collect();
        for members in interest.groups() {
            match self.pick(members, dice) {
                Picked::Room(member) => {
                    reserved.push(member);
                    chosen.push((member, true));
                }
                Picked::Overflows(member) => chosen.push((member, false)),
                Picked::Nobody => {}
                Picked::Blocks(blocked) => return Err(self.give_up(&reserved, blocked)),
            }
        }
        chosen.sort_unstable();
        Ok(self.deliver(chosen.into_iter()))
    }

    /// Reserves room for the batch in the queue of a subscription that blocks publishers. If its queue is
    /// full, returns the error that blocks the publish.
    fn reserve(&mut self, target: &Target) -> Result<Reserved, WouldBlock> {
        let mut link = target.link.lock();
        let mut reserved = link.reserve(target.place, self.batch.cost(), self.memory);
        if reserved == Reserved::NoMemory
            && let Some(waiter) = self.waiter
        {
            self.memory.wait(waiter);
            reserved = link.reserve(target.place, self.batch.cost(), self.memory);
        }
        if matches!(reserved, Reserved::Yes | Reserved::Gone) {
            return Ok(reserved);
        }
        if let Some(waiter) = self.waiter {
            link.wait(waiter);
        }
        let subscription = link.id_at(target.place);
        Err(WouldBlock { link: target.link.id, subscription })
    }

    /// Releases the reservations of a blocked publish. If another publisher found a queue full because of
    /// them, it is notified.
    fn give_up(&mut self, reserved: &[&Target], blocked: WouldBlock) -> WouldBlock {
        for target in reserved {
            let mut link = target.link.lock();
            link.unreserve(target.place, self.batch.cost(), self.memory);
            self.wakes.waiters(link.take_waiting());
        }
        self.wakes.waiters(self.memory.take_waiting());
        blocked
    }

    fn pick<'t>(&mut self, members: &'t [Target], dice: &mut Dice) -> Picked<'t> {
        let count = members.len();
        let (one, other) = (dice.below(count), dice.below(count));
        let first = if members[one].link.load() <= members[other].link.load() { one } else { other };
        let second = one + other - first;
        let rest = (1..count).map(|step| (first + step) % count).filter(|at| *at != second);
        let mut overflows = None;
        let mut blocks = None;
        for at in [first].into_iter().chain((second != first).then_some(second)).chain(rest) {
            let member = &members[at];
            match self.reserve_in_group(member) {
                Ok(Reserved::Yes) => return Picked::Room(member),
                Ok(Reserved::Full | Reserved::NoMemory) => overflows = overflows.or(Some(member)),
                Ok(Reserved::Gone) => {}
                Err(blocked) => blocks = blocks.or(Some(blocked)),
            }
        }
        match (overflows, blocks) {
            (Some(member), _) => Picked::Overflows(member),
            (None, Some(blocked)) => Picked::Blocks(blocked),
            (None, None) => Picked::Nobody,
        }
    }

    /// Reserves room for the batch like [`reserve`](Self::reserve), in the queue of a group's member with any
    /// policy.
    fn reserve_in_group(&mut self, member: &Target) -> Result<Reserved, WouldBlock> {
        if member.place.tag.blocks() {
            return self.reserve(member);
        }
        Ok(member.link.lock().reserve(member.place, self.batch.cost(), self.memory))
    }

    /// Queues the batch for all chosen subscriptions. Subscriptions of one link are neighbours, so each
    /// link's mutex is taken once.
    fn deliver<'t>(&mut self, targets: impl Iterator<Item = Chosen<'t>>) -> Published {
        let mut published = Published::default();
        let mut targets = targets.peekable();
        while let Some((target, reserved)) = targets.next() {
            let shared = &target.link;
            let mut link = shared.lock();
            let seq = link.next_seq();
            let (mut target, mut reserved) = (target, reserved);
            loop {
                let offered = if reserved {
                    link.fulfil(target.place, self.batch, seq)
                } else {
                    link.offer(target.place, self.batch, seq, self.memory)
                };
                match offered {
                    Offered::Queued => published.delivered += 1,
                    Offered::Missed => published.missed += 1,
                    Offered::Gone => {}
                }
                match targets.next_if(|(next, _)| next.is_beside(target)) {
                    Some(next) => (target, reserved) = next,
                    None => break,
                }
            }
            shared.note_load(&link);
            let told = link.must_notify();
            if !link.is_open() {
                self.wakes.waiters(link.take_waiting());
                self.wakes.waiters(self.memory.take_waiting());
            }
            drop(link);
            if told {
                self.wakes.link(shared);
            }
        }
        published
    }
}
