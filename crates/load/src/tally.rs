//! Counts of one run, which each worker thread keeps separately.

use std::{ops::Range, time::Duration};

use super::{live::Recent, timeline::Timeline};
use crate::latency::Latencies;

/// Counts that each thread keeps separately and that are added up at the end of a benchmark run.
pub trait Merge: Default {
    /// Adds another thread's counts to these counts.
    fn merge(&mut self, other: Self);
}

impl Merge for () {
    fn merge(&mut self, (): ()) {}
}

/// Counts of one thread, or of all threads after a merge. Unless a field states otherwise, only requests that were due
/// after the warm-up count.
#[derive(Clone, Debug, Default)]
pub struct Tally<C> {
    /// Response times for each kind of request, counted from the moment at which a request was due.
    pub times: Vec<Latencies>,
    /// Time by which the generator sent requests late although a connection was free.
    pub lag: Latencies,
    /// Number of replies, right or wrong.
    pub replies: u64,
    /// Number of right items. An item is a right reply, or a record or delivery that a right reply carries or
    /// acknowledges.
    pub right: u64,
    /// Number of correct replies, or of the records or deliveries in them, including those of the warm-up.
    pub all_right: u64,
    /// Number of wrong replies, including those of the warm-up.
    pub wrong: u64,
    /// Number of wrong replies, without those of the warm-up.
    pub counted_wrong: u64,
    /// Number of lost connections, for example because the server closed them or sent bytes that violate the protocol.
    pub lost: u64,
    /// Number of requests that were due and had no reply at the end of the run.
    pub unanswered: u64,
    /// Number of bytes received, if the benchmark run counts them.
    pub received_bytes: u64,
    /// Number of bytes sent, if the benchmark run counts them.
    pub sent_bytes: u64,
    /// Time at which the last right reply arrived, in nanoseconds since the start of the benchmark run.
    pub last_reply: u64,
    /// Counts of the windows of the benchmark run; `None` if the run does not count them.
    pub timeline: Option<Timeline>,
    /// True if the requests were calls in this process, so that the generator's threads did the server's work too.
    pub is_in_process: bool,
    /// Description of the first problem of the benchmark run; `None` if there was no problem.
    pub first_problem: Option<String>,
    /// Counts for the live view; `None` if runs are not shown. Each thread passes its own counts on.
    pub recent: Option<Box<Recent>>,
    /// Counts that only the protocol of the benchmark run has.
    pub own: C,
}

impl<C: Merge> Tally<C> {
    /// Creates empty counts for this number of request kinds.
    pub fn new(kinds: usize) -> Self {
        Self { times: vec![Latencies::default(); kinds], ..Self::default() }
    }

    /// Creates empty counts for this number of request kinds, with windows over the counted part of a run. `counted` is
    /// in nanoseconds since the start of the run. `window` is the length of a window; `None` is the usual length.
    pub fn with_windows(kinds: usize, counted: &Range<u64>, window: Option<Duration>) -> Self {
        Self { timeline: Timeline::over(counted, window), ..Self::new(kinds) }
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
        self.counted_wrong += other.counted_wrong;
        self.lost += other.lost;
        self.unanswered += other.unanswered;
        self.received_bytes += other.received_bytes;
        self.sent_bytes += other.sent_bytes;
        self.last_reply = self.last_reply.max(other.last_reply);
        match (&mut self.timeline, other.timeline) {
            (Some(own), Some(other)) => own.merge(other),
            (own @ None, other) => *own = other,
            (Some(_), None) => {}
        }
        self.is_in_process |= other.is_in_process;
        self.first_problem = self.first_problem.take().or(other.first_problem);
        self.own.merge(other.own);
    }
}

impl<C> Tally<C> {
    /// Stores the description of a problem of the run, unless an earlier one is stored. If the run is shown in the live
    /// view, counts the problem as an error there.
    pub fn problem(&mut self, what: impl FnOnce() -> String) {
        self.first_problem.get_or_insert_with(what);
        if let Some(recent) = &mut self.recent {
            recent.errors += 1;
        }
    }

    /// Counts the right replies to requests of one kind that were due at the same moment. The replies arrived with one
    /// read, at `now`.
    #[inline]
    pub(super) fn replies(&mut self, together: CoalescedReplies, now: u64) {
        if together.count > 0 {
            self.times[together.kind].record_nanos_times(now.saturating_sub(together.due), together.count);
            self.replies += together.count;
            self.right += together.count;
            self.last_reply = now;
            if let Some(recent) = &mut self.recent {
                recent.times.record_nanos_times(now.saturating_sub(together.due), together.count);
            }
            if let Some(timeline) = &mut self.timeline {
                timeline.replies(together.due, now, together.count);
            }
        }
    }

    /// Counts correct replies, or the records or messages in them, that arrived at `now` in the counted part of the
    /// run. [`responded`](Self::responded) counts their response times.
    #[inline]
    pub fn arrived(&mut self, items: u64, now: u64) {
        self.right += items;
        if let Some(timeline) = &mut self.timeline {
            timeline.arrived(items, now);
        }
    }

    /// Counts the response time of `count` requests of one kind. The requests were due at `due` in the counted part of
    /// the run, and their replies arrived at `now`.
    #[inline]
    pub fn responded(&mut self, kind: usize, due: u64, now: u64, count: u64) {
        let waited = now.saturating_sub(due);
        self.times[kind].record_nanos_times(waited, count);
        if let Some(timeline) = &mut self.timeline {
            timeline.times(due, waited, count);
        }
    }

    /// Counts a request that was due at `due` and has no reply at `now`. The time that it has waited counts as a
    /// response time.
    pub(super) fn unanswered(&mut self, kind: usize, due: u64, now: u64) {
        let waited = now.saturating_sub(due);
        self.unanswered += 1;
        self.times[kind].record_nanos(waited);
        if let Some(timeline) = &mut self.timeline {
            timeline.times(due, waited, 1);
        }
    }

    /// Returns the share of requests, from 0 to 1, that got a wrong reply or none. Requests of the warm-up do not
    /// count. Each lost connection counts as one more error, even during the warm-up.
    pub fn error_share(&self) -> f64 {
        let errors = self.counted_wrong + self.lost + self.unanswered;
        let requests = self.replies + self.lost + self.unanswered;
        errors as f64 / requests.max(1) as f64
    }

    /// Returns the counts without those that only one protocol has.
    pub fn without_own(self) -> Tally<()> {
        Tally {
            times: self.times,
            lag: self.lag,
            replies: self.replies,
            right: self.right,
            all_right: self.all_right,
            wrong: self.wrong,
            counted_wrong: self.counted_wrong,
            lost: self.lost,
            unanswered: self.unanswered,
            received_bytes: self.received_bytes,
            sent_bytes: self.sent_bytes,
            last_reply: self.last_reply,
            timeline: self.timeline,
            is_in_process: self.is_in_process,
            first_problem: self.first_problem,
            recent: None,
            own: (),
        }
    }

    /// Returns the response times of all kinds of requests in one histogram.
    pub fn response(&self) -> Latencies {
        Latencies::sum(&self.times)
    }
}

/// Right replies that are counted together. Their requests were of one kind and due at the same moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CoalescedReplies {
    pub(super) due: u64,
    pub(super) kind: usize,
    pub(super) count: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_share_of_errors_is_that_of_the_counted_requests() {
        // There are as many requests in the warm-up as after it, and all of them got right replies.
        let mut tally: Tally<()> = Tally::new(1);
        (tally.replies, tally.right, tally.all_right, tally.unanswered) = (90, 90, 190, 10);
        assert!((tally.error_share() - 0.1).abs() < 1e-12, "{}", tally.error_share());
        // Wrong replies of the warm-up do not count as errors.
        (tally.wrong, tally.counted_wrong, tally.right) = (25, 5, 85);
        assert!((tally.error_share() - 0.15).abs() < 1e-12, "{}", tally.error_share());
        let lost: Tally<()> = Tally { lost: 3, ..Tally::new(1) };
        assert!((lost.error_share() - 1.0).abs() < 1e-12);
        assert!(Tally::<()>::new(1).error_share().abs() < 1e-12);
    }
}
