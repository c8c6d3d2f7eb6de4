//! Counts and times of a client's requests.
//!
//! Owns: the counters, and the switch. Does not own: requests ([`Client`](crate::Client)).
//!
//! A request and its retries count as one request, at the time when the request ends. Not counted: requests whose
//! future is dropped, subscriptions, and the messages or records that publishers send.
//!
//! Cost: while telemetry is off, one load of a flag for each request. While it is on, two readings of the clock and two
//! additions for each request (about 0.1 µs), and 1 KB of memory for each client. The example `telemetry_cost` measures
//! the time.

use std::{
    sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use thalweg_types::{Log2Histogram, histogram::LOG2_BUCKETS};

use crate::target::Target;

/// Counts and times of the requests of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestTelemetry {
    /// Times of the requests that succeeded, in nanoseconds. A time runs from the call to its result, and includes
    /// retries and the pauses before them.
    pub succeeded: Log2Histogram,
    /// Number of requests that ended with an error.
    pub failed: u64,
    /// Number of retries, both of requests that succeeded in the end and of requests that failed.
    pub retries: u64,
}

/// Counts and times of a client's requests while its telemetry was on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClientTelemetry {
    /// Reads of keyspaces, streams and groups.
    pub reads: RequestTelemetry,
    /// Requests that the leader of a cluster executes, such as puts and commits.
    pub writes: RequestTelemetry,
    /// Requests that the connected node executes, such as those to caches and subjects.
    pub others: RequestTelemetry,
}

#[derive(Debug, Default)]
struct Counters {
    sum_nanos: AtomicU64,
    /// Number of requests by bucket of their time, with the buckets of [`Log2Histogram::bucket_of`].
    buckets: [AtomicU64; LOG2_BUCKETS],
    failed: AtomicU64,
    retries: AtomicU64,
}

/// Counters of the requests of one client.
#[derive(Debug)]
pub(crate) struct Telemetry {
    is_on: AtomicBool,
    reads: Counters,
    writes: Counters,
    others: Counters,
}

impl Telemetry {
    pub(crate) fn new(is_on: bool) -> Self {
        let [reads, writes, others] = std::array::from_fn(|_| Counters::default());
        Self { is_on: AtomicBool::new(is_on), reads, writes, others }
    }

    pub(crate) fn switch(&self, is_on: bool) {
        self.is_on.store(is_on, Relaxed);
    }

    #[inline]
    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Relaxed)
    }

    /// Counts a request that has ended. If it succeeded, records its time `took`, which includes retries.
    pub(crate) fn ended(&self, target: Target, took: Duration, is_success: bool) {
        let counters = self.of(target);
        if !is_success {
            counters.failed.fetch_add(1, Relaxed);
            return;
        }
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        counters.sum_nanos.fetch_add(nanos, Relaxed);
        counters.buckets[Log2Histogram::bucket_of(nanos)].fetch_add(1, Relaxed);
    }

    /// Counts a retry of a request. `target` decides if it is a read, a write or another request.
    pub(crate) fn retried(&self, target: Target) {
        if self.is_on() {
            self.of(target).retries.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn read(&self) -> ClientTelemetry {
        ClientTelemetry { reads: self.reads.read(), writes: self.writes.read(), others: self.others.read() }
    }

    fn of(&self, target: Target) -> &Counters {
        match target {
            Target::Leader => &self.writes,
            Target::Readable => &self.reads,
            Target::Connected => &self.others,
        }
    }
}

impl Counters {
    fn read(&self) -> RequestTelemetry {
        let succeeded = Log2Histogram {
            sum: self.sum_nanos.load(Relaxed),
            buckets: std::array::from_fn(|at| self.buckets[at].load(Relaxed)),
        };
        RequestTelemetry { succeeded, failed: self.failed.load(Relaxed), retries: self.retries.load(Relaxed) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_count_by_their_target() {
        let telemetry = Telemetry::new(false);
        telemetry.retried(Target::Leader);
        assert!(!telemetry.is_on() && telemetry.read() == ClientTelemetry::default());
        telemetry.switch(true);
        telemetry.retried(Target::Leader);
        telemetry.ended(Target::Leader, Duration::from_nanos(300), true);
        telemetry.ended(Target::Leader, Duration::from_secs(1), false);
        telemetry.ended(Target::Readable, Duration::from_nanos(100), true);
        let ClientTelemetry { reads, writes, others } = telemetry.read();
        assert_eq!((writes.succeeded.count(), writes.succeeded.sum, writes.failed, writes.retries), (1, 300, 1, 1));
        assert_eq!((reads.succeeded.count(), reads.succeeded.sum, reads.failed), (1, 100, 0));
        assert_eq!(others, RequestTelemetry::default());
    }
}
