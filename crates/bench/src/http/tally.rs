//! What a worker counts, and how workers' counts add up.

use std::{collections::BTreeMap, time::Duration};

use super::request::{Judgement, Operation};
use crate::latency::Latencies;

/// Counts of one run; only of arrivals after the warm-up.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    /// Response times from the scheduled moment, puts.
    pub puts: Latencies,
    /// Response times from the scheduled moment, gets.
    pub gets: Latencies,
    /// Service times: from the moment of sending.
    pub service: Latencies,
    /// How late requests were sent although a connection was free: the generator's own fault.
    pub lag: Latencies,
    /// Replies by status.
    pub statuses: BTreeMap<u16, u64>,
    /// Replies with the right status.
    pub right: u64,
    /// Gets of keys that have no value.
    pub missing: u64,
    /// Replies with the wrong status.
    pub bad_status: u64,
    /// Replies with the wrong bytes.
    pub wrong_bytes: u64,
    /// Connections lost, bytes that are no HTTP.
    pub io_errors: u64,
    /// Requests that were due and never answered before the run was given up.
    pub unanswered: u64,
    /// When the last recorded reply came, in nanoseconds since the start.
    pub last_reply: u64,
    /// CPU time of the worker's thread, the busiest worker after a merge, as a share of its time.
    pub busiest: f64,
    /// CPU time of the workers' threads.
    pub cpu: Duration,
    /// The first thing that went wrong, in words.
    pub first_problem: Option<String>,
}

impl Tally {
    /// Counts a reply.
    pub(super) fn reply(&mut self, operation: Operation, response: u64, service: u64, status: u16, how: Judgement) {
        match operation {
            Operation::Put => self.puts.record_nanos(response),
            Operation::Get => self.gets.record_nanos(response),
        }
        self.service.record_nanos(service);
        *self.statuses.entry(status).or_default() += 1;
        match how {
            Judgement::Right => self.right += 1,
            Judgement::Missing => self.missing += 1,
            Judgement::BadStatus => {
                self.bad_status += 1;
                self.problem(|| format!("{operation:?} answered {status}"));
            }
            Judgement::WrongBytes => {
                self.wrong_bytes += 1;
                self.problem(|| format!("{operation:?} answered {status} with bytes that were never stored"));
            }
        }
    }

    /// Counts a request that never got its reply; it waited at least so long.
    pub(super) fn unanswered(&mut self, operation: Operation, waited: u64) {
        self.unanswered += 1;
        match operation {
            Operation::Put => self.puts.record_nanos(waited),
            Operation::Get => self.gets.record_nanos(waited),
        }
    }

    /// Remembers the first problem.
    pub(super) fn problem(&mut self, what: impl FnOnce() -> String) {
        if self.first_problem.is_none() {
            self.first_problem = Some(what());
        }
    }

    /// Adds another worker's counts.
    pub fn merge(&mut self, other: Self) {
        self.puts.merge(&other.puts);
        self.gets.merge(&other.gets);
        self.service.merge(&other.service);
        self.lag.merge(&other.lag);
        for (status, count) in other.statuses {
            *self.statuses.entry(status).or_default() += count;
        }
        self.right += other.right;
        self.missing += other.missing;
        self.bad_status += other.bad_status;
        self.wrong_bytes += other.wrong_bytes;
        self.io_errors += other.io_errors;
        self.unanswered += other.unanswered;
        self.last_reply = self.last_reply.max(other.last_reply);
        self.busiest = self.busiest.max(other.busiest);
        self.cpu += other.cpu;
        self.first_problem = self.first_problem.take().or(other.first_problem);
    }

    /// Response times of all operations.
    #[must_use]
    pub fn response(&self) -> Latencies {
        let mut all = self.puts.clone();
        all.merge(&self.gets);
        all
    }

    /// Replies counted.
    #[must_use]
    pub fn replies(&self) -> u64 {
        self.right + self.missing + self.bad_status + self.wrong_bytes
    }
}
