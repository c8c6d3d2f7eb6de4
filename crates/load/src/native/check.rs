//! Checks that a subscriber gets every message once and in order.
//!
//! Owns: the account of the messages that a subscriber received, and the comparison at the end. The account has a
//! constant cost for each run of consecutive messages. Does not own: the check of the messages' content (`payload`).
//!
//! A subscriber expects the messages of each publisher to be numbered 0, 1, 2,... A number above the expected one
//! leaves a gap. At the end the gaps must contain as many messages as the server reported as dropped. A number below
//! the expected one means that a message arrived twice or out of order, which is always a fault.
//!
//! A member of a queue group gets only some messages, so their numbers rise with gaps. For each publisher, the count,
//! the sum and the sum of squares (modulo 2^64) of the numbers over all members of a group must be those of the
//! published numbers. Two losses and two duplicates leave all three sums unchanged only if they are the same messages.
//! These messages then are out of order at a member.
//!
//! With several publishers, the order of messages across publishers is hashed. The hash must be the same for all
//! subscribers.

use std::fmt;

/// A run of consecutively numbered messages of one publisher.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Number of the publisher, from 0.
    pub publisher: u32,
    /// Number of the first message of the run (messages of one publisher with consecutive numbers).
    pub first: u64,
    /// Number of messages in the run (messages of one publisher with consecutive numbers).
    pub count: u64,
}

/// Collects received messages into runs of consecutive numbers, so that later checks work on a few runs instead of on
/// each message.
#[derive(Clone, Debug, Default)]
pub struct Runs {
    runs: Vec<Run>,
}

impl Runs {
    /// Removes all runs (messages of one publisher with consecutive numbers), but keeps the allocated memory.
    #[inline]
    pub fn clear(&mut self) {
        self.runs.clear();
    }

    /// Adds message number `sequence` of a publisher: extends the last run, or begins a new one.
    #[inline]
    pub fn push(&mut self, publisher: u32, sequence: u64) {
        match self.runs.last_mut() {
            Some(run) if run.publisher == publisher && run.first.wrapping_add(run.count) == sequence => run.count += 1,
            _ => self.runs.push(Run { publisher, first: sequence, count: 1 }),
        }
    }

    /// Returns all runs (messages of one publisher with consecutive numbers), in the order in which their messages
    /// arrived.
    pub fn all(&self) -> &[Run] {
        &self.runs
    }
}

/// Count, sum and sum of squares (modulo 2^64) of the message numbers of one publisher.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sums {
    /// Number of message numbers that were added.
    pub count: u64,
    sum: u64,
    squares: u64,
}

impl Sums {
    /// Returns the sums for a publisher that has sent the messages `0..count`.
    pub fn published(count: u64) -> Self {
        let mut sums = Self::default();
        sums.add(0, count);
        sums
    }

    /// Adds the message numbers `first..first + count`.
    #[inline]
    pub fn add(&mut self, first: u64, count: u64) {
        // These are the sums of k and of k² over 0..n. The division happens before the numbers wrap.
        let (line, square) = (
            |n: u128| n * n.saturating_sub(1) / 2,
            |n: u128| n * n.saturating_sub(1) / 2 * (2 * n).saturating_sub(1) / 3,
        );
        let (from, to) = (u128::from(first & MASK), u128::from((first & MASK) + (count & MASK)));
        self.count = self.count.wrapping_add(count);
        self.sum = self.sum.wrapping_add((line(to) - line(from)) as u64);
        self.squares = self.squares.wrapping_add((square(to) - square(from)) as u64);
    }

    /// Adds the sums of the messages that another group member received.
    pub fn merge(&mut self, other: &Self) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
        self.squares = self.squares.wrapping_add(other.squares);
    }
}

/// Mask that limits message numbers to 40 bits. Valid numbers stay below 2^40 in a run. Larger ones come from wrong
/// data, and must not overflow the sums.
const MASK: u64 = (1 << 40) - 1;

/// State of checking one publisher's messages at a subscriber: the next expected number, and the sums of the received
/// numbers.
#[derive(Clone, Copy, Debug, Default)]
struct SequenceCheck {
    /// Number of the next expected message. It is `u64::MAX` if any number is accepted, which is so before the first
    /// message of a subscriber that joins late.
    next: u64,
    sums: Sums,
}

/// Number of published messages that a subscriber must receive: all or some.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Share {
    /// The subscriber gets every message.
    #[default]
    All,
    /// The subscriber is a member of a queue group and receives only some messages.
    Some,
}

/// Account of the messages that one subscriber received, and of their faults.
#[derive(Clone, Debug, Default)]
pub struct SubscriberAccount {
    share: Share,
    sequences: Vec<SequenceCheck>,
    /// Number of messages that the subscriber received.
    pub received: u64,
    /// Number of messages that the server reported as dropped.
    pub dropped: u64,
    /// Number of messages in gaps: they are missing before a message with a higher number than expected.
    gaps: u64,
    /// Number of messages that had a lower number than expected.
    backwards: u64,
    /// Number of messages with the number of a publisher that does not exist.
    unknown_publishers: u64,
    /// Number of messages that had the content of another message.
    pub wrong: u64,
    order: u64,
    last_publisher: u32,
}

impl SubscriberAccount {
    /// Creates the account of a subscriber that receives from `publishers` publishers.
    pub fn new(share: Share, publishers: usize) -> Self {
        let sequences = vec![SequenceCheck::default(); publishers];
        Self { share, sequences, last_publisher: u32::MAX, ..Self::default() }
    }

    /// Creates the account of a subscriber that joins while messages are being published. The first message of each
    /// publisher may have any number.
    pub fn for_late_subscriber(publishers: usize) -> Self {
        let unheard = SequenceCheck { next: u64::MAX, ..SequenceCheck::default() };
        Self { sequences: vec![unheard; publishers], ..Self::new(Share::All, 0) }
    }

    /// Adds received messages, given as runs of consecutive numbers, to the account.
    #[inline]
    pub fn take(&mut self, runs: &[Run]) {
        for run in runs {
            self.run(run);
        }
    }

    #[inline]
    fn run(&mut self, run: &Run) {
        self.received += run.count;
        let Some(place) = self.sequences.get_mut(run.publisher as usize) else {
            self.unknown_publishers += run.count;
            return;
        };
        if place.next == u64::MAX {
            place.next = run.first;
        }
        if run.first > place.next {
            self.gaps += run.first - place.next;
        } else if run.first < place.next {
            self.backwards += run.count.min(place.next - run.first);
        }
        place.next = place.next.max(run.first.saturating_add(run.count));
        if self.share == Share::Some {
            place.sums.add(run.first, run.count);
        } else if self.sequences.len() > 1 && run.publisher != self.last_publisher {
            // Only changes of the publisher are hashed. So the hash does not depend on the division of messages into
            // batches.
            let step = (u64::from(run.publisher) << 48) ^ run.first;
            self.order = (self.order ^ step).wrapping_mul(0x0100_0000_01b3);
            self.last_publisher = run.publisher;
        }
    }

    /// Returns true if all `published` messages were received or reported as dropped.
    pub fn is_settled(&self, published: u64) -> bool {
        self.received + self.dropped >= published
    }

    /// Returns the hash of the order of messages across publishers; `None` if this order cannot be compared with that
    /// of other subscribers.
    pub fn order(&self) -> Option<u64> {
        (self.share == Share::All && self.sequences.len() > 1 && self.gaps == 0 && self.backwards == 0)
            .then_some(self.order)
    }

    /// Returns the subscriber's faults; `published` is the number of messages that each publisher has sent.
    pub fn faults(&self, published: &[u64]) -> Faults {
        let mut lost = 0;
        if self.share == Share::All {
            let short: u64 =
                self.sequences.iter().zip(published).map(|(place, sent)| sent.saturating_sub(place.next)).sum();
            // The messages in gaps and those missing at the end must together be as many as the dropped messages.
            lost = (self.gaps + short).abs_diff(self.dropped);
        }
        Faults {
            lost,
            backwards: self.backwards,
            wrong: self.wrong,
            unknown_publishers: self.unknown_publishers,
            disagreeing: 0,
        }
    }

    fn sums(&self, publisher: usize) -> Sums {
        self.sequences[publisher].sums
    }
}

/// Number of messages that were not delivered correctly, by kind of fault; all zero without faults.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Number of messages that are missing without being reported as dropped, or that arrived although they were
    /// reported as dropped.
    pub lost: u64,
    /// Number of messages that arrived twice or out of order.
    pub backwards: u64,
    /// Number of messages whose content was never sent.
    pub wrong: u64,
    /// Number of messages with the number of a publisher that does not exist.
    pub unknown_publishers: u64,
    /// Number of subscribers that received the messages of several publishers in an order that differs from that of the
    /// first subscriber.
    pub disagreeing: u64,
}

impl Faults {
    /// Returns true if there is any fault.
    pub fn any(&self) -> bool {
        *self != Self::default()
    }

    /// Adds the faults of another subscriber.
    pub fn merge(&mut self, other: &Self) {
        self.lost += other.lost;
        self.backwards += other.backwards;
        self.wrong += other.wrong;
        self.unknown_publishers += other.unknown_publishers;
        self.disagreeing += other.disagreeing;
    }
}

impl fmt::Display for Faults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} lost, {} twice or out of order, {} with wrong content, {} of unknown publishers, {} subscribers with another order",
            self.lost, self.backwards, self.wrong, self.unknown_publishers, self.disagreeing
        )
    }
}

/// Adds up the faults of all subscribers. Each item of `groups` holds the members of a queue group, or a single
/// subscriber. `published` has the number of messages of each publisher. The members of a group are compared together
/// with the published messages, because a single member cannot know which messages it should receive.
pub fn compare_accounts(groups: &[Vec<&SubscriberAccount>], published: &[u64]) -> Faults {
    let mut faults = Faults::default();
    let mut order = None;
    for members in groups {
        for account in members {
            faults.merge(&account.faults(published));
            if let Some(seen) = account.order() {
                faults.disagreeing += u64::from(*order.get_or_insert(seen) != seen);
            }
        }
        faults.lost += group_difference(members, published);
    }
    faults
}

/// Returns the number of published messages that the members of a queue group together did not receive exactly once.
fn group_difference(members: &[&SubscriberAccount], published: &[u64]) -> u64 {
    if members.iter().any(|account| account.share == Share::All) {
        return 0;
    }
    let dropped: u64 = members.iter().map(|account| account.dropped).sum();
    let received: u64 = members.iter().map(|account| account.received).sum();
    let difference = (received + dropped).abs_diff(published.iter().sum());
    if difference > 0 || dropped > 0 {
        return difference; // with drops no count says which message is missing
    }
    let other = |&publisher: &usize| {
        let mut sums = Sums::default();
        members.iter().for_each(|account| sums.merge(&account.sums(publisher)));
        sums != Sums::published(published[publisher])
    };
    (0..published.len()).filter(other).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(history: &[(u32, u64)], publishers: usize, share: Share) -> SubscriberAccount {
        let (mut account, mut runs) = (SubscriberAccount::new(share, publishers), Runs::default());
        // The messages come in batches of three, as they might from a server.
        for batch in history.chunks(3) {
            runs.clear();
            batch.iter().for_each(|&(publisher, sequence)| runs.push(publisher, sequence));
            account.take(runs.all());
        }
        account
    }

    fn faults(history: &[(u32, u64)], published: &[u64]) -> Faults {
        let account = account(history, published.len(), Share::All);
        compare_accounts(&[vec![&account]], published)
    }

    fn of(publisher: u32, numbers: impl IntoIterator<Item = u64>) -> Vec<(u32, u64)> {
        numbers.into_iter().map(|number| (publisher, number)).collect()
    }

    #[test]
    fn a_whole_history_is_good() {
        assert_eq!(faults(&of(0, 0..10), &[10]), Faults::default());
        assert_eq!(faults(&[(0, 0), (1, 0), (1, 1), (0, 1)], &[2, 2]), Faults::default());
        assert!(!faults(&[], &[0]).any());
    }

    #[test]
    fn loss_is_noticed_wherever_it_is() {
        for missing in 0..10 {
            let history = of(0, (0..10).filter(|number| *number != missing));
            assert_eq!(faults(&history, &[10]), Faults { lost: 1, ..Faults::default() }, "{missing}");
        }
        assert_eq!(faults(&of(1, 0..5), &[3, 5]).lost, 3, "a publisher that nobody heard");
    }

    #[test]
    fn who_joins_late_misses_nothing_from_then_on() {
        let mut joined = SubscriberAccount::for_late_subscriber(3);
        let take = |account: &mut SubscriberAccount, runs: &[(u32, u64, u64)]| {
            runs.iter().for_each(|&(publisher, first, count)| account.take(&[Run { publisher, first, count }]));
        };
        take(&mut joined, &[(0, 50, 10), (1, 7, 3), (0, 60, 40)]);
        assert!(!joined.faults(&[100, 10, 5]).any(), "the third was heard of before");
        assert_eq!(joined.faults(&[101, 10, 5]).lost, 1);
        take(&mut joined, &[(1, 12, 1)]);
        assert_eq!(joined.faults(&[100, 13, 5]).lost, 2);
        take(&mut joined, &[(1, 7, 1)]);
        assert_eq!(joined.faults(&[100, 13, 5]).backwards, 1);
    }

    #[test]
    fn duplicates_and_reordering_are_noticed() {
        assert_eq!(faults(&of(0, [0, 1, 1, 2]), &[3]), Faults { backwards: 1, ..Faults::default() });
        assert_eq!(faults(&of(0, [0, 1, 2, 3, 0, 1, 2, 3]), &[4]).backwards, 4, "a batch twice");
        let swapped = faults(&of(0, [0, 2, 1, 3]), &[4]);
        assert!(swapped.backwards > 0, "{swapped:?}");
        assert_eq!(faults(&[(9, 0)], &[0]).unknown_publishers, 1);
    }

    #[test]
    fn what_was_dropped_must_be_what_was_said() {
        let mut account = account(&of(0, [0, 1, 5, 6]), 1, Share::All);
        assert_eq!(account.faults(&[8]).lost, 4, "three in a gap, one at the end");
        account.dropped = 4;
        assert!(!account.faults(&[8]).any());
        account.dropped = 5;
        assert_eq!(account.faults(&[8]).lost, 1, "said to be dropped, and delivered");
    }

    #[test]
    fn all_subscribers_see_one_order_across_publishers() {
        let one = account(&[(0, 0), (1, 0), (0, 1), (1, 1)], 2, Share::All);
        let same = account(&[(0, 0), (1, 0), (0, 1), (1, 1)], 2, Share::All);
        let other = account(&[(0, 0), (0, 1), (1, 0), (1, 1)], 2, Share::All);
        assert!(!compare_accounts(&[vec![&one], vec![&same]], &[2, 2]).any());
        assert_eq!(compare_accounts(&[vec![&one], vec![&same], vec![&other]], &[2, 2]).disagreeing, 1);
    }

    #[test]
    fn the_order_does_not_depend_on_how_messages_lay_in_batches() {
        let history = [(0, 0), (0, 1), (0, 2), (0, 3), (1, 0), (1, 1), (0, 4)];
        let whole = account(&history, 2, Share::All);
        let mut single = SubscriberAccount::new(Share::All, 2);
        history.iter().for_each(|&(publisher, first)| single.take(&[Run { publisher, first, count: 1 }]));
        assert_eq!(whole.order(), single.order());
    }

    #[test]
    fn a_queue_group_gets_each_message_once_among_its_members() {
        let group = |left: &[u64], right: &[u64]| {
            let left = account(&of(0, left.iter().copied()), 1, Share::Some);
            let right = account(&of(0, right.iter().copied()), 1, Share::Some);
            compare_accounts(&[vec![&left, &right]], &[6])
        };
        assert!(!group(&[0, 2, 3], &[1, 4, 5]).any());
        assert_eq!(group(&[0, 2], &[1, 4, 5]).lost, 1);
        assert!(group(&[0, 2, 3], &[2, 4, 5]).any(), "1 is missing, 2 came twice");
        assert!(group(&[0, 2, 4], &[1, 2, 4]).any(), "3 and 5 for 2 and 4: the same count");
        assert!(group(&[0, 3, 2], &[1, 4, 5]).backwards > 0);
    }

    #[test]
    fn sums_of_runs_are_those_of_their_numbers() {
        let mut whole = Sums::default();
        whole.add(3, 40);
        let mut single = Sums::default();
        (3..43).for_each(|number| single.add(number, 1));
        assert_eq!(whole, single);
        assert_eq!(Sums::published(5).sum, 10);
        assert_eq!(Sums::published(5).squares, 30);
        Sums::default().add(u64::MAX, u64::MAX);
    }
}
