//! One publish: room first, then all queues.
//!
//! # Order
//! The caller holds the mutex of the subject's shard from before the first queue is touched until after the last.
//! Two publishes to one subject have the same shard, so all queues that get both get them in the order in which
//! the mutex was taken: literal subscribers, wildcard subscribers and members of groups alike. A queue is a
//! first-in-first-out list under its link's mutex, so each subscriber sees, over all subjects, a publish that returned
//! before another began first. Publishes to subjects of different shards share no lock but those of the links
//! that get both, each for the time of a push.
//!
//! # Room
//! If some of those who match have the policy to block, room is reserved in all of their queues before anything is
//! queued anywhere. If one has none, the reservations are given up, the publisher is put on that link's list of
//! waiters, under the same lock under which there was no room, and nobody gets anything. (If it is the broker's memory that
//! is full, it is put on the broker's list as well, and looks once more.) So a publish happens for all or
//! for none, and can be repeated as it is. No thread waits for room here, and none waits for a lock while it holds
//! another's for longer than a push: locks are taken in the order shard, trie, link, and never two links at once.
//!
//! # Groups
//! Of two members picked at random the one whose link has fewer messages waiting is asked first, then the other,
//! then all the rest: whoever has room gets it. Only if none has does a policy apply: that of the first without the
//! policy to block, or, if all block, the publish waits for whichever of them has room first. What waits in the
//! queue of a member that leaves is lost with it, as with any subscription: nothing is stored.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_types::{Action, Classified};

use crate::{
    batch::Batch,
    interest::{Interest, Target},
    link::{LinkId, Offered, Reserved, SubscriptionId},
    memory::Memory,
    notify::Notify,
    topics::Dice,
    wake::Wakes,
};

/// For whom a batch was.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Subscriptions that have it in their queue. A queue group counts as one.
    pub delivered: u64,
    /// Subscriptions that had no room and will be told that they missed it.
    pub missed: u64,
}

impl Published {
    /// Whether anybody asked for it. If not, a request can be answered at once: there are no responders.
    #[must_use]
    pub fn matched(&self) -> bool {
        self.delivered + self.missed > 0
    }
}

/// A subscription with the policy to block has no room: nobody got anything. Publish again when the waiter that
/// was given is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("subscription {} of link {} has no room and asks publishers to wait: publish again when it has", subscription.0, link.0)]
pub struct WouldBlock {
    /// On which link.
    pub link: LinkId,
    /// Whose queue is full. Of a group: one of several.
    pub subscription: SubscriptionId,
}

impl Classified for WouldBlock {
    fn code(&self) -> &'static str {
        "would_block"
    }

    fn action(&self) -> Action {
        Action::Retry
    }
}

/// What one publish has at hand.
pub(crate) struct Publish<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) memory: &'a Memory,
    pub(crate) waiter: Option<&'a Arc<dyn Notify>>,
    pub(crate) wakes: &'a mut Wakes,
}

/// Somebody who gets it, and whether room is reserved.
type Chosen<'t> = (&'t Target, bool);

enum Picked<'t> {
    /// Room is reserved.
    Room(&'t Target),
    /// Nobody has room, and this one's policy is not to block.
    Overflows(&'t Target),
    /// Nobody has room, and all block.
    Blocks(WouldBlock),
    /// All have left.
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
                Ok(Reserved::Full | Reserved::NoMemory) => unreachable!("told as an error"),
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

    /// Keeps room in a queue whose policy is to block, or says that there is none.
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

    /// Frees what was reserved. Somebody else may have found a queue full because of it meanwhile.
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

    /// As [`reserve`](Self::reserve), whatever the policy.
    fn reserve_in_group(&mut self, member: &Target) -> Result<Reserved, WouldBlock> {
        if member.place.tag.blocks() {
            return self.reserve(member);
        }
        Ok(member.link.lock().reserve(member.place, self.batch.cost(), self.memory))
    }

    /// Queues it for everybody. Those of one link are neighbours, so its mutex is taken once.
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
            let told = link.must_tell();
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
