//! One publish: reserves room in the queues of subscriptions that block publishers, then fills the queues of
//! all matching subscriptions.
//!
//! Owns: the reservations, the choice of a queue group's member, and the result. Does not own: the set of matching
//! subscriptions (`subject_table`, `wildcards`), the queues (`link`), or the wake-ups, which the caller sends after it
//! has released all locks (`wake`).
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
//! A publisher that must not be stopped ignores the policy to block ([`Blocking::Ignored`]). Nothing is reserved then,
//! and a subscription without room misses the batch and gets a notice of the loss.
//!
//! # Other nodes
//! The filters of other nodes are subscriptions of links of their own (see [`node`](crate::node)), which never block
//! publishers. A batch that another node has published reaches the clients of this node only ([`Reach::Clients`]):
//! those without a queue group, and one member of each group for which that node has chosen this one.
//!
//! # Groups
//! Two members are picked at random. The member whose link has fewer queued messages is tried first, then the
//! other picked member, then all remaining members; the first member with room receives the batch. A policy
//! applies only if no member has room: the policy of the first member that does not block. If all members
//! block, the publish waits until any of them has room, or another member joins (`joins`). When a member
//! leaves, the messages in its queue are lost, as with any subscription, because no message is stored.

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

/// Result of a publish: how many subscriptions received the batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of subscriptions of this node whose queue received the batch. A queue group counts as one.
    pub delivered: u64,
    /// Number of subscriptions of this node that missed the batch because their queues were full. They will get
    /// a notice of the loss.
    pub missed: u64,
    /// Number of other nodes whose queue received the batch, because they have announced a matching subscription.
    pub nodes: u32,
    /// Number of other nodes with a matching subscription that missed the batch because their queues were full.
    pub nodes_missed: u32,
}

impl Published {
    /// Returns true if the batch matched a subscription of this node or of another one. If it matched none, a
    /// request can fail immediately, because there are no responders.
    #[must_use]
    pub fn matched(&self) -> bool {
        self.is_queued() || self.missed > 0 || self.nodes_missed > 0
    }

    /// Returns true if the queue of a subscription or of another node received the batch.
    #[must_use]
    pub fn is_queued(&self) -> bool {
        self.delivered > 0 || self.nodes > 0
    }

    /// Adds the result of a publish to the subscriptions of one link. All subscriptions of another node count as one,
    /// because the node either gets the whole batch or misses it.
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

    /// Adds the result of another publish.
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
    pub(crate) joins: &'a Joins,
    /// Number of members that had joined queue groups before the publish looked at the index.
    pub(crate) joined: u64,
    pub(crate) waiter: Option<&'a Arc<dyn Notify>>,
    pub(crate) blocking: Blocking,
    pub(crate) reach: Reach<'a>,
    pub(crate) wakes: &'a mut Wakes,
}

/// Subscriptions that a publish reaches.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Reach<'a> {
    /// Subscriptions of this node's clients and of other nodes.
    Everyone,
    /// Subscriptions of this node's clients only, and one member of each queue group in `groups`, because another node
    /// has published the batch.
    Clients {
        /// Queue groups for which that node has chosen a member on this node, in order.
        groups: &'a [&'a [u8]],
    },
}

/// Treatment of subscriptions whose policy blocks publishers and whose queues are full.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Blocking {
    /// No subscription receives the batch, and the publisher tries again.
    Respected,
    /// The subscription misses the batch, as with the policy to drop new messages.
    Ignored,
}

impl Blocking {
    /// Returns true if a subscription with a full queue stops the publish.
    fn stops(self, target: &Target) -> bool {
        self == Self::Respected && target.slot.tag.blocks()
    }
}

/// A subscription that receives the batch, and a flag that is true if room in its queue is reserved.
type Recipient<'t> = (&'t Target, bool);

enum MemberChoice<'t> {
    /// This member of the queue group has room for the batch, which is now reserved.
    Room(&'t Target),
    /// No member of the queue group has room; this member's policy is not to block.
    Overflows(&'t Target),
    /// No member of the queue group has room, and the policy of all members is to block.
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

    /// Delivers a batch of another node.
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
                // Members never block a batch of another node.
                MemberChoice::EmptyGroup | MemberChoice::AllBlock(_) => {}
            }
        }
        chosen.sort_unstable();
        self.deliver(chosen.into_iter())
    }

    /// Reserves room for the batch in the queue of a subscription that blocks publishers. If its queue is
    /// full, returns the error that blocks the publish.
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

    /// Lets the publisher be notified when a member joins a queue group, because all members of one are full.
    fn wait_for_member(&mut self) {
        if let Some(waiter) = self.waiter
            && !self.joins.wait(waiter, self.memory.stamp(), self.joined)
        {
            self.wakes.waiters(vec![Arc::clone(waiter)]);
        }
    }

    /// Releases the reservations of a blocked publish. Notifies the publishers that began to wait after this publish
    /// began, at `since`: they may have found a queue full because of the reservations. Does not notify this publisher,
    /// or those that already waited. The released room was free when they tried, so blocked publishers would wake each
    /// other forever.
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

    /// Chooses one of `count` members of a queue group; `member(i)` returns the i-th.
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

    /// Reserves room for the batch like [`reserve`](Self::reserve), in the queue of a group's member with any
    /// policy.
    fn reserve_in_group(&mut self, member: &Target) -> Result<ReserveResult, WouldBlock> {
        if self.blocking.stops(member) {
            return self.reserve(member);
        }
        Ok(member.link.lock().reserve(member.slot, self.batch.cost(), self.memory))
    }

    /// Queues the batch for all chosen subscriptions. Subscriptions of one link are neighbours, so each
    /// link's mutex is taken once.
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
