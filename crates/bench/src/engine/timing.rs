//! The loop that times operations.
//!
//! A clock takes 25 ns to read, too long for timing each operation of 200 ns. The loop therefore times one in
//! [`FAST_STRIDE`] fast operations, and computes the rate from the duration of the whole loop. The reported longest
//! time is that of a whole stride of operations, so no stall between two timed operations is missed.

use std::time::{Duration, Instant};

use crate::{
    BenchError,
    latency::Latencies,
    usage::{self, Cost, MeasuredProcess, Usage},
};

use super::subject::KvSubject;

/// One in this number of operations is timed, for operations that take well below 10 µs.
pub const FAST_STRIDE: u64 = 16;

/// Measurement of one round of one test.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Number of operations in the round.
    pub operations: u64,
    /// Duration of all operations in seconds.
    pub seconds: f64,
    /// CPU time of the calling thread. On a machine shared with other programs it is more reliable than `seconds` for
    /// operations that do not wait.
    pub thread_cpu: Duration,
    /// Durations of the operations that were timed singly.
    pub times: Latencies,
    /// The same durations for reads and writes apart; `None` unless the test mixes them.
    pub apart: Option<MixDurations>,
    /// Longest duration of a stride of consecutive operations.
    pub longest: Duration,
    /// Bytes of keys and values written, or of values read.
    pub payload_bytes: u64,
    /// Number of reads that found their key; `None` if there were no reads.
    pub hits: Option<u64>,
    /// Resources that the process used during the round.
    pub cost: Cost,
}

/// Durations of the reads and of the writes of a mix.
#[derive(Clone, Debug, Default)]
pub struct MixDurations {
    /// Durations of the reads that were timed singly.
    pub reads: Latencies,
    /// Durations of the writes that were timed singly.
    pub writes: Latencies,
}

impl Measure {
    /// Returns the operations per second of the round.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Returns the CPU nanoseconds of the calling thread per operation.
    pub fn thread_nanos(&self) -> f64 {
        self.thread_cpu.as_nanos() as f64 / self.operations as f64
    }
}

/// Calls `operation` with each number of `0..operations` and measures the calls.
pub fn timed(
    subject: &dyn KvSubject,
    operations: u64,
    stride: u64,
    operation: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Measure, BenchError> {
    timed_each(subject, operations, stride, operation, |_, _| {})
}

/// Calls `operation` with each number of a mix's operations and measures the calls, those that are reads and the others
/// apart. `is_read` says which are reads.
pub(super) fn timed_apart(
    subject: &dyn KvSubject,
    operations: u64,
    stride: u64,
    is_read: impl Fn(u64) -> bool,
    operation: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Measure, BenchError> {
    let mut apart = MixDurations::default();
    let measure = timed_each(subject, operations, stride, operation, |number, time| {
        let times = if is_read(number) { &mut apart.reads } else { &mut apart.writes };
        times.record(time);
    })?;
    Ok(Measure { apart: Some(apart), ..measure })
}

fn timed_each(
    subject: &dyn KvSubject,
    operations: u64,
    stride: u64,
    mut operation: impl FnMut(u64) -> Result<(), BenchError>,
    mut note: impl FnMut(u64, Duration),
) -> Result<Measure, BenchError> {
    usage::reset_peak(usage::MeasuredProcess::Own);
    let before = (Usage::read(MeasuredProcess::Own), subject.fsyncs());
    let mut times = Latencies::default();
    let mut longest = Duration::ZERO;
    let begun = Instant::now();
    let mut stride_began = begun;
    let cpu = usage::thread_cpu();
    for number in 0..operations {
        if number % stride == 0 {
            let began = Instant::now();
            longest = longest.max(began - stride_began);
            stride_began = began;
            operation(number)?;
            let time = began.elapsed();
            times.record(time);
            note(number, time);
        } else {
            operation(number)?;
        }
    }
    longest = longest.max(stride_began.elapsed());
    let thread_cpu = usage::thread_cpu().saturating_sub(cpu);
    let seconds = begun.elapsed().as_secs_f64();
    let mut cost = Usage::read(MeasuredProcess::Own).since(&before.0);
    cost.fsyncs = subject.fsyncs().zip(before.1).map(|(now, then)| now - then);
    Ok(Measure { operations, seconds, thread_cpu, times, apart: None, longest, payload_bytes: 0, hits: None, cost })
}
