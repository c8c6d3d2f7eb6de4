//! One publish. It reserves room in the queues of subscriptions that block publishers, and then fills the queues of all
//! matching subscriptions.
//!
//! Owns: the reservations, the choice of a queue group's member, and the result. Does not own: the set of matching
//! subscriptions (`subject_table`, `wildcards`), the queues (`link`), or the notifications (`wake`). The caller sends
//! the notifications after it has released all locks.
//!
//! # Order
//! The caller holds the mutex of the subject's shard from before the first queue is touched until after the last. Two
//! publishes to one subject have the same shard. So all queues that receive both batches receive them in the order in
//! which the publishes took the mutex. This holds for literal subscribers, wildcard subscribers and group members. A
//! queue is first-in-first-out under its link's mutex. So if one publish returns before another begins, each subscriber
//! sees the first one first, also across subjects. Publishes to subjects of different shards share only the locks of
//! links that receive both batches. They hold each such lock only while they put a batch into a queue.
//!
//! # Room
//! If some matching subscriptions have the policy to block, room is reserved in all of their queues before any queue
//! changes. If one of these queues has no room, the reservations are released, and no subscription receives the batch.
//! The publisher is added to the waiters of that link, under the lock under which the missing room was found. (If the
//! broker's memory is full, the publisher is also added to the broker's waiters, and tries once more.) So a publish
//! happens completely or not at all, and can be repeated unchanged. No thread waits for room here. A thread that waits
//! for a lock and holds another waits no longer than it takes to put a batch into a queue. Locks are taken in the order
//! shard, trie, link, and never two links at the same time.
//!
//! A publisher that no subscriber may block ignores the policy to block ([`Blocking::Ignored`]). In this case no room
//! is reserved, and a subscription without room misses the batch and gets a notice of the loss.
//!
//! # Other nodes
//! The filters of each other node are subscriptions of a separate link (see [`node`](crate::node)), which never block
//! publishers. A batch from another node reaches only the clients of this node ([`Reach::Clients`]): all matching
//! subscriptions without a queue group, and one member of each group for which the other node has chosen this node.
//!
//! # Groups
//! Two members are picked at random. The picked member whose link has fewer queued messages is tried first, then the
//! other picked member, then all remaining members. The first member with room receives the batch. If no member has
//! room, the policy of the first tried member that does not block is applied. If all members block, the publish waits
//! until any of them has room, or another member joins (`joins`). When a member leaves, the messages in its queue are
//! lost, as with any subscription, because no message is stored.

use std::sync::Arc;

use smallvec::SmallVec;
use thalweg_types::classified;

use crate::{
    batch::Batch,
    interest::{Interest, Target},
    joins::Joins,
    link::{LinkId, OfferResult, ReserveResult, Shared},
    memory::Memory,
    notify::{Notify, WaitStamp},
    options::SubscriptionId,
    subject_table::MemberRng,
    wake::Wakes,
};

/// Result of a publish: the numbers of subscriptions and nodes that received or missed the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of subscriptions of this node with queues that received the batch. A queue group counts as one.
    pub delivered: u64,
    /// Number of subscriptions of this node that missed the batch because their queues were full. Their subscribers
    /// will get a notice of the loss.
    pub missed: u64,
    /// Number of other nodes of the cluster that will get the batch, because they have announced a matching
    /// subscription. The batch is in this node's queues for them.
    pub nodes: u32,
    /// Number of other nodes of the cluster that have announced a matching subscription, but miss the batch, because
    /// this node's queue for them was full.
    pub nodes_missed: u32,
}

impl Published {
    /// Returns true if the batch matched a subscription of this node or of another node. If it matched none, a request
    /// can fail immediately, because there are no responders.
    #[must_use]
    pub fn matched(&self) -> bool {
        self.is_queued() || self.missed > 0 || self.nodes_missed > 0
    }

    /// Returns true if the batch is in the queue of a subscription or of another node.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.delivered > 0 || self.nodes > 0
    }

    /// Adds the result of queueing the batch on one link: `queued` and `missed` are numbers of subscriptions. If the
    /// link leads to another node, all of them count as one, because the node gets the batch once or misses it.
    fn note(&mut self, link: &Shared, batch: &Batch, queued: u64, missed: u64) {
        match &link.node {
            None => {
                self.delivered += queued;
                self.missed += missed;
            }
            Some(_) if queued > 0 => self.nodes += 1,
            Some(traffic) if missed > 0 => {
                self.nodes_missed += 1;
                traffic.lost(batch.messages().into());
            }
            Some(_) => {}
        }
    }

    /// Adds the counts of the publish `other` to the counts of this publish.
    pub fn add(&mut self, other: Self) {
        self.delivered += other.delivered;
        self.missed += other.missed;
        self.nodes += other.nodes;
        self.nodes_missed += other.nodes_missed;
    }
}

/// Error returned when a subscription that blocks publishers has a full queue. No subscription received the
/// batch. Publish the batch again when the waiter is notified.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the queue of subscription {} of link {} is full and blocks publishers: publish again when it has room", subscription.0, link.0)]
pub struct WouldBlock {
    /// Link (connection) with the full queue.
    pub link: LinkId,
    /// Subscription with the full queue. If all members of a queue group are full, this is one of them.
    pub subscription: SubscriptionId,
}

classified!(WouldBlock {
    _ => "would_block", Retry;
});

/// State of one publish: its batch and publisher, and the parts of the broker that it uses.
pub(crate) struct Publish<'a> {
    pub(crate) batch: &'a Batch,
    pub(crate) memory: &'a Memory,
    pub(crate) joins: &'a Joins,
    /// Number of members that had ever joined queue groups. It was read before this publish looked for matching
    /// subscriptions.
    pub(crate) joined: u64,
    pub(crate) waiter: Option<&'a Arc<dyn Notify>>,
    pub(crate) blocking: Blocking,
    pub(crate) reach: Reach<'a>,
    pub(crate) wakes: &'a mut Wakes,
}

/// Subscriptions that a publish can reach.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach<'a> {
    /// Subscriptions of this node's clients and of other nodes.
    Everyone,
    /// Subscriptions of this node's clients without a queue group, and one member of each queue group in `groups`. Used
    /// for a batch from another node.
    Clients {
        /// Sorted names of the queue groups for which the node that sent the batch has chosen a member on this node.
        groups: &'a [&'a [u8]],
    },
}

/// Treatment of subscriptions with a full queue and a policy that blocks publishers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// The publish fails: no subscription receives the batch, and the publisher tries again later.
    Respected,
    /// The publish goes on. Only the subscription with the full queue misses the batch, as with the policy to drop new
    /// messages.
    Ignored,
}

impl Blocking {
    /// Returns true if the publish fails when the queue of this subscription is full.
    fn stops(self, target: &Target) -> bool {
        self == Self::Respected && target.slot.tag.blocks()
    }
}

/// A subscription that receives the batch. The flag is true if room for the batch is reserved in its queue.
type Recipient<'t> = (&'t Target, bool);

enum MemberChoice<'t> {
    /// This member of the queue group has space for the batch in its queue. The space is now reserved.
    Room(&'t Target),
    /// No member of the queue group has space for the batch. The publish applies the policy of this member, which is
    /// not to block.
    Overflows(&'t Target),
    /// No member of the queue group has space for the batch, and all members have the policy to block.
    AllBlock(WouldBlock),
    /// All members of the queue group have left.
    EmptyGroup,
}

impl Publish<'_> {
    pub(crate) fn run(&mut self, interest: &Interest, dice: &mut MemberRng) -> Result<Published, WouldBlock> {
        if let Reach::Clients { groups } = self.reach {
            return Ok(self.run_for_clients(interest, groups, dice));
        }
        let (blocking, since) = (self.blocking, self.memory.now());
        let targets = interest.targets().iter();
        let mut reserved: SmallVec<[&Target; 8]> = SmallVec::new();
        for target in targets.clone().filter(|target| blocking.stops(target)) {
            match self.reserve(target) {
                Ok(ReserveResult::Yes) => reserved.push(target),
                Ok(ReserveResult::Ended) => {}
                Ok(ReserveResult::Full | ReserveResult::NoMemory) => unreachable!("reported as an error"),
                Err(blocked) => return Err(self.release_reservations(&reserved, since, blocked)),
            }
        }
        if !interest.has_groups() {
            return Ok(self.deliver(targets.map(|target| (target, blocking.stops(target)))));
        }
        let mut chosen: SmallVec<[Recipient<'_>; 16]> =
            targets.map(|target| (target, blocking.stops(target))).collect();
        for members in interest.groups() {
            match self.choose_member(members.len(), |at| &members[at], dice) {
                MemberChoice::Room(member) => {
                    reserved.push(member);
                    chosen.push((member, true));
                }
                MemberChoice::Overflows(member) => chosen.push((member, false)),
                MemberChoice::EmptyGroup => {}
                MemberChoice::AllBlock(blocked) => {
                    self.wait_for_member();
                    return Err(self.release_reservations(&reserved, since, blocked));
                }
            }
        }
        chosen.sort_unstable();
        Ok(self.deliver(chosen.into_iter()))
    }

    /// Delivers a batch from another node to this node's clients.
    fn run_for_clients(&mut self, interest: &Interest, groups: &[&[u8]], dice: &mut MemberRng) -> Published {
        let is_client = |target: &&Target| !target.slot.tag.is_of_node();
        let mut chosen: SmallVec<[Recipient<'_>; 16]> =
            interest.targets().iter().filter(is_client).map(|target| (target, false)).collect();
        for (at, name) in groups.iter().enumerate() {
            if at > 0 && groups[at - 1] == *name {
                continue;
            }
            let members: SmallVec<[&Target; 16]> = interest.group(name).iter().filter(is_client).collect();
            match self.choose_member(members.len(), |at| members[at], dice) {
                MemberChoice::Room(member) => chosen.push((member, true)),
                MemberChoice::Overflows(member) => chosen.push((member, false)),
                // Members never block a batch from another node.
                MemberChoice::EmptyGroup | MemberChoice::AllBlock(_) => {}
            }
        }
        chosen.sort_unstable();
        self.deliver(chosen.into_iter())
    }

    /// Reserves space for the batch in the queue of a subscription that blocks publishers. If the queue is full,
    /// returns the error with which the publish ends.
    fn reserve(&mut self, target: &Target) -> Result<ReserveResult, WouldBlock> {
        let mut link = target.link.lock();
        let mut reserved = link.reserve(target.slot, self.batch.cost(), self.memory);
        if reserved == ReserveResult::NoMemory
            && let Some(waiter) = self.waiter
        {
            self.memory.wait(waiter);
            reserved = link.reserve(target.slot, self.batch.cost(), self.memory);
        }
        if matches!(reserved, ReserveResult::Yes | ReserveResult::Ended) {
            return Ok(reserved);
        }
        if let Some(waiter) = self.waiter {
            link.wait(waiter, self.memory);
        }
        let subscription = link.id_at(target.slot);
        Err(WouldBlock { link: target.link.id, subscription })
    }

    /// Adds the publisher to those that are notified when a member joins a queue group, because all present members of
    /// a group are full.
    fn wait_for_member(&mut self) {
        if let Some(waiter) = self.waiter
            && !self.joins.wait(waiter, self.memory.stamp(), self.joined)
        {
            self.wakes.waiters(vec![Arc::clone(waiter)]);
        }
    }

    /// Releases the room that a blocked publish has reserved in queues. `since` is the stamp of the time at which this
    /// publish began: a number that rises with each publisher that begins to wait. Notifies other publishers that began
    /// to wait since then, because they may have found a queue full only because of this room. Does not notify
    /// publishers that began to wait earlier: the room was already free when they tried. Otherwise blocked publishers
    /// would wake each other forever.
    fn release_reservations(&mut self, reserved: &[&Target], since: WaitStamp, blocked: WouldBlock) -> WouldBlock {
        for target in reserved {
            let mut link = target.link.lock();
            link.unreserve(target.slot, self.batch.cost(), self.memory);
            self.wakes.waiters(link.take_waiting_since(since, self.waiter));
        }
        if !reserved.is_empty() {
            self.wakes.waiters(self.memory.take_since(since, self.waiter));
        }
        blocked
    }

    /// Chooses one of the `count` members of a queue group to receive the batch. `member(i)` returns the i-th member.
    fn choose_member<'t>(
        &mut self,
        count: usize,
        member: impl Fn(usize) -> &'t Target,
        dice: &mut MemberRng,
    ) -> MemberChoice<'t> {
        if count == 0 {
            return MemberChoice::EmptyGroup;
        }
        let (one, other) = (dice.below(count), dice.below(count));
        let first = if member(one).link.load() <= member(other).link.load() { one } else { other };
        let second = one + other - first;
        let rest = (1..count).map(|step| (first + step) % count).filter(|at| *at != second);
        let mut overflows = None;
        let mut blocks = None;
        for at in [first].into_iter().chain((second != first).then_some(second)).chain(rest) {
            let member = member(at);
            match self.reserve_in_group(member) {
                Ok(ReserveResult::Yes) => return MemberChoice::Room(member),
                Ok(ReserveResult::Full | ReserveResult::NoMemory) => overflows = overflows.or(Some(member)),
                Ok(ReserveResult::Ended) => {}
                Err(blocked) => blocks = blocks.or(Some(blocked)),
            }
        }
        match (overflows, blocks) {
            (Some(member), _) => MemberChoice::Overflows(member),
            (None, Some(blocked)) => MemberChoice::AllBlock(blocked),
            (None, None) => MemberChoice::EmptyGroup,
        }
    }

    /// Reserves space for the batch in the queue of a queue group's member, like [`reserve`](Self::reserve), but for a
    /// member with any policy.
    fn reserve_in_group(&mut self, member: &Target) -> Result<ReserveResult, WouldBlock> {
        if self.blocking.stops(member) {
            return self.reserve(member);
        }
        Ok(member.link.lock().reserve(member.slot, self.batch.cost(), self.memory))
    }

    /// Queues the batch for all chosen subscriptions. The subscriptions of one link are neighbours, so the mutex of
    /// each link is locked only once.
    fn deliver<'t>(&mut self, targets: impl Iterator<Item = Recipient<'t>>) -> Published {
        let mut published = Published::default();
        let mut targets = targets.peekable();
        while let Some((target, reserved)) = targets.next() {
            let shared = &target.link;
            let mut link = shared.lock();
            let seq = link.next_seq();
            let (mut target, mut reserved) = (target, reserved);
            let (mut queued, mut missed) = (0, 0);
            loop {
                let offered = if reserved {
                    link.queue_reserved(target.slot, self.batch, seq)
                } else {
                    link.offer(target.slot, self.batch, seq, self.memory)
                };
                match offered {
                    OfferResult::Queued => queued += 1,
                    OfferResult::Missed => missed += 1,
                    OfferResult::Ended => {}
                }
                match targets.next_if(|(next, _)| next.is_on_same_link(target)) {
                    Some(next) => (target, reserved) = next,
                    None => break,
                }
            }
            published.note(shared, self.batch, queued, missed);
            shared.note_load(&link);
            let notify = link.must_notify();
            if !link.is_open() {
                self.wakes.waiters(link.take_waiting());
                self.wakes.waiters(self.memory.take_waiting());
            }
            drop(link);
            if notify {
                self.wakes.link(shared);
            }
        }
        published
    }
}
