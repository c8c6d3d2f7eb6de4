//! Counts of one run.

use crate::latency::Latencies;

/// Counts that several threads keep apart and that are added in the end.
pub trait Merge: Default {
    /// Adds another thread's counts.
    fn merge(&mut self, other: Self);
}

impl Merge for () {
    fn merge(&mut self, (): ()) {}
}

/// Counts of a thread, or of all threads after a merge. Unless said otherwise they are those of requests that were due
/// in the counted time.
#[derive(Clone, Debug, Default)]
pub struct Tally<C> {
    /// Response times by kind of request, from the moment a request was due.
    pub times: Vec<Latencies>,
    /// Time by which requests were sent late although a connection was free: the generator's own lateness.
    pub lag: Latencies,
    /// Replies, right or wrong.
    pub replies: u64,
    /// Right items: replies, or the records and deliveries that a reply carries or acknowledges.
    pub right: u64,
    /// Right items, those of the warm-up included.
    pub all_right: u64,
    /// Wrong replies, those of the warm-up included.
    pub wrong: u64,
    /// Connections lost, for example because the server closed them or sent bytes that are not of the protocol.
    pub lost: u64,
    /// Requests that were due and had no reply at the end of the run.
    pub unanswered: u64,
    /// Bytes received, where a run counts them.
    pub received_bytes: u64,
    /// When the last right reply came, in nanoseconds since the start.
    pub last_reply: u64,
    /// First problem, in words.
    pub first_problem: Option<String>,
    /// Counts of the protocol.
    pub own: C,
}

impl<C: Merge> Tally<C> {
    /// Creates empty counts of this many kinds of requests.
    pub fn new(kinds: usize) -> Self {
        Self { times: vec![Latencies::default(); kinds], ..Self::default() }
    }

    /// Adds the counts of all threads.
    pub fn sum(kinds: usize, all: impl IntoIterator<Item = Self>) -> Self {
        let mut sum = Self::new(kinds);
        all.into_iter().for_each(|tally| sum.merge(tally));
        sum
    }
}

impl<C: Merge> Merge for Tally<C> {
    fn merge(&mut self, other: Self) {
        for (times, more) in self.times.iter_mut().zip(&other.times) {
            times.merge(more);
        }
        self.lag.merge(&other.lag);
        self.replies += other.replies;
        self.right += other.right;
        self.all_right += other.all_right;
        self.wrong += other.wrong;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.received_bytes += other.received_bytes;
        self.last_reply = self.last_reply.max(other.last_reply);
        self.first_problem = self.first_problem.take().or(other.first_problem);
        self.own.merge(other.own);
    }
}

impl<C> Tally<C> {
    /// Remembers the first problem.
    pub fn problem(&mut self, what: impl FnOnce() -> String) {
        self.first_problem.get_or_insert_with(what);
    }

    /// Counts requests of a kind that were due at once and whose right replies came with one read.
    #[inline]
    pub(super) fn replies(&mut self, together: CoalescedReplies, now: u64) {
        if together.count > 0 {
            self.times[together.kind].record_nanos_times(now.saturating_sub(together.due), together.count);
            self.replies += together.count;
            self.right += together.count;
            self.last_reply = now;
        }
    }

    /// Counts a request that has waited this long, in nanoseconds, and never got its reply.
    pub(super) fn unanswered(&mut self, kind: usize, waited: u64) {
        self.unanswered += 1;
        self.times[kind].record_nanos(waited);
    }

    /// Returns the response times of all kinds.
    pub fn response(&self) -> Latencies {
        Latencies::sum(&self.times)
    }
}

/// Replies that share a record: their requests were of one kind and due at once.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoalescedReplies {
    pub(super) due: u64,
    pub(super) kind: usize,
    pub(super) count: u64,
}
