//! One subscription: its queue, limits, credit, and missed messages.
//!
//! Owns: the queue, its limits and its credit. Does not own: the order among the subscriptions of a link (`state`), the
//! bound on all queues together (`memory`), or the effect of a policy when the queue is full (`state`).
//!
//! Invariants: `held` is the number of messages and bytes of all queued batches and all reserved room. `held` is within
//! the limits, except when an empty queue has accepted a single larger batch. Sequence numbers in the queue increase.

use std::{collections::VecDeque, sync::Arc};

use super::slot::Tag;
use crate::{
    Pattern,
    batch::{Batch, Cost},
    options::{Credit, Policy, SubscribeOptions, SubscriptionId},
};

/// Maximum number of batches for which an empty queue keeps its allocated memory.
const KEPT_SLOTS: usize = 1024;

#[derive(Debug)]
struct Queued {
    seq: u64,
    /// Number of messages that the subscription missed directly before this batch, after the previous batch in the
    /// queue.
    gap: u64,
    batch: Batch,
}

#[derive(Debug)]
pub(crate) struct Subscription {
    pub(crate) id: SubscriptionId,
    pub(crate) tag: Tag,
    pub(crate) policy: Policy,
    /// True while the subscription is in the link's heap of subscriptions with sendable items.
    pub(crate) scheduled: bool,
    pub(crate) pattern: Pattern,
    pub(crate) group: Option<Arc<[u8]>>,
    max: Cost,
    held: Cost,
    reserved: Cost,
    credit: Account,
    queue: VecDeque<Queued>,
    /// Number of messages that the subscription missed before the first batch in its queue. `gap_after` is the number
    /// that it missed after the last batch in its queue.
    gap_before: u64,
    gap_after: u64,
    dropped: u64,
    /// Sequence number of the publish of the first message counted in `gap_after`. Valid only if the queue was empty
    /// when this message was missed.
    gap_seq: u64,
}

/// A batch taken from a subscription's queue, with the numbers of messages that the subscription missed before and
/// after it.
#[derive(Debug)]
pub(crate) struct TakenBatch {
    pub(crate) batch: Batch,
    pub(crate) missed_before: u64,
    pub(crate) missed_after: u64,
}

/// Result of dropping the oldest batch of a subscription's queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DroppedFront {
    pub(crate) lost: Cost,
    /// True if this is the first loss of the subscription: it had missed no messages before.
    pub(crate) first: bool,
}

impl Subscription {
    pub(crate) fn new(id: SubscriptionId, tag: Tag, pattern: Pattern, options: &SubscribeOptions) -> Self {
        let mut credit = Account::default();
        credit.grant(options.credit);
        Self {
            id,
            tag,
            policy: options.policy,
            scheduled: false,
            pattern,
            group: options.group.as_deref().map(Arc::from),
            max: Cost { messages: options.max_messages, bytes: options.max_bytes },
            held: Cost::default(),
            reserved: Cost::default(),
            credit,
            queue: VecDeque::new(),
            gap_before: 0,
            gap_after: 0,
            dropped: 0,
            gap_seq: 0,
        }
    }

    /// Returns true if a batch of this cost (messages and bytes) fits into the queue. An empty queue accepts also a
    /// batch larger than its limits.
    pub(crate) fn has_room(&self, cost: Cost) -> bool {
        self.held.messages == 0
            || (self.held.messages + cost.messages <= self.max.messages
                && self.held.bytes + cost.bytes <= self.max.bytes)
    }

    pub(crate) fn reserve(&mut self, cost: Cost) {
        self.held.add(cost);
        self.reserved.add(cost);
    }

    /// Releases the space that was reserved in the queue for a batch. If the batch is queued afterwards, it takes space
    /// again.
    pub(crate) fn unreserve(&mut self, cost: Cost) {
        self.held.take(cost);
        self.reserved.take(cost);
    }

    pub(crate) fn push(&mut self, batch: &Batch, seq: u64) {
        debug_assert!(self.queue.back().is_none_or(|last| last.seq < seq));
        self.held.add(batch.cost());
        let gap = std::mem::take(&mut self.gap_after);
        self.queue.push_back(Queued { seq, gap, batch: batch.clone() });
    }

    /// Drops the oldest batch of the queue. Returns the size of this batch and whether it is the subscription's first
    /// loss; `None` if the queue is empty.
    pub(crate) fn drop_oldest(&mut self) -> Option<DroppedFront> {
        let first = self.dropped == 0;
        let oldest = self.queue.pop_front()?;
        let cost = oldest.batch.cost();
        self.held.take(cost);
        self.gap_before += oldest.gap + cost.messages;
        self.dropped += cost.messages;
        Some(DroppedFront { lost: cost, first })
    }

    /// Counts messages that the subscription missed. `seq` is the sequence number of the publish that contained these
    /// messages.
    pub(crate) fn missed(&mut self, messages: u64, seq: u64) {
        if self.queue.is_empty() && self.gap_after == 0 {
            self.gap_seq = seq;
        }
        self.gap_after += messages;
        self.dropped += messages;
    }

    /// Sequence number of the subscription's next item, by which the link orders its subscriptions. `None` if there is
    /// no item, or no credit to send it.
    pub(crate) fn next_seq(&self) -> Option<u64> {
        match self.queue.front() {
            Some(first) => self.credit.is_open().then_some(first.seq),
            None => (self.gap_after > 0).then_some(self.gap_seq),
        }
    }

    /// Takes the next batch from the queue, and subtracts its size from the subscription's credit. `None` if the queue
    /// is empty.
    pub(crate) fn take(&mut self) -> Option<TakenBatch> {
        let Queued { gap, batch, .. } = self.queue.pop_front()?;
        let cost = batch.cost();
        self.held.take(cost);
        self.credit.deduct(cost);
        let missed_before = std::mem::take(&mut self.gap_before) + gap;
        if !self.queue.is_empty() {
            return Some(TakenBatch { batch, missed_before, missed_after: 0 });
        }
        if self.queue.capacity() > KEPT_SLOTS {
            self.queue = VecDeque::new();
        }
        Some(TakenBatch { batch, missed_before, missed_after: std::mem::take(&mut self.gap_after) })
    }

    /// Returns the number of messages that the subscription has missed since the last batch was taken, and sets this
    /// number to 0. The queue must be empty.
    pub(crate) fn take_gap(&mut self) -> u64 {
        debug_assert!(self.queue.is_empty());
        std::mem::take(&mut self.gap_before) + std::mem::take(&mut self.gap_after)
    }

    pub(crate) fn next_bytes(&self) -> u64 {
        self.queue.front().map_or(0, |first| first.batch.cost().bytes)
    }

    pub(crate) fn grant(&mut self, credit: Credit) {
        self.credit.grant(credit);
    }

    /// Messages and bytes that take space in the queue: those of queued batches, and those reserved for publishes in
    /// progress.
    pub(crate) fn held(&self) -> Cost {
        self.held
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Empties the queue when the subscription has ended, and releases the space that was reserved in it.
    pub(crate) fn clear(&mut self) {
        self.queue = VecDeque::new();
        self.dropped += self.held.messages;
        (self.held, self.reserved) = (Cost::default(), Cost::default());
        (self.gap_before, self.gap_after) = (0, 0);
        self.scheduled = false;
    }
}

/// Credit of a subscription that is left, in messages and bytes. It is negative after a batch that was larger than the
/// credit.
#[derive(Debug, Default)]
struct Account {
    messages: i64,
    bytes: i64,
}

/// Value that stands for unlimited credit. Such credit is never reduced.
const UNLIMITED: i64 = i64::MAX;

impl Account {
    fn is_open(&self) -> bool {
        self.messages > 0 && self.bytes > 0
    }

    fn grant(&mut self, credit: Credit) {
        let plus = |left: i64, more: u64| left.saturating_add(i64::try_from(more).unwrap_or(UNLIMITED));
        self.messages = if credit.messages == u64::MAX { UNLIMITED } else { plus(self.messages, credit.messages) };
        self.bytes = if credit.bytes == u64::MAX { UNLIMITED } else { plus(self.bytes, credit.bytes) };
    }

    fn deduct(&mut self, cost: Cost) {
        let minus = |left: i64, less: u64| match left {
            UNLIMITED => UNLIMITED,
            left => left - i64::try_from(less).expect("a batch is bounded"),
        };
        self.messages = minus(self.messages, cost.messages);
        self.bytes = minus(self.bytes, cost.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credits_are_overdrawn_by_one_batch_and_paid_back() {
        let mut account = Account::default();
        assert!(!account.is_open());
        account.grant(Credit { messages: 10, bytes: 100 });
        account.deduct(Cost { messages: 64, bytes: 10 });
        assert!(!account.is_open());
        account.grant(Credit { messages: 54, bytes: 0 });
        assert!(!account.is_open(), "the grant only pays the debt");
        account.grant(Credit { messages: 1, bytes: 0 });
        assert!(account.is_open());
        account.deduct(Cost { messages: 0, bytes: 90 });
        assert!(!account.is_open(), "bytes count too");
        account.grant(Credit::UNLIMITED);
        account.deduct(Cost { messages: 1 << 40, bytes: 1 << 40 });
        assert!(account.is_open());
    }
}
