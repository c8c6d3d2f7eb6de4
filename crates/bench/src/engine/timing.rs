//! The loop that times operations.
//!
//! Reading a clock takes 25 ns, too long for timing each operation of 200 ns. Therefore the loop times one in
//! [`FAST_STRIDE`] fast operations, and computes the rate from the duration of the whole loop. The reported longest
//! time is that of a *stride*: a group of consecutive operations, from one clock reading to the next. So no stall
//! between two timed operations is missed.

use std::time::{Duration, Instant};

use crate::{
    BenchError,
    latency::Latencies,
    usage::{self, Cost, MeasuredProcess, Usage},
};

use super::subject::KvSubject;

/// Number of operations in a stride, in which the loop times one operation, if operations take well below 10 µs.
pub const FAST_STRIDE: u64 = 16;

/// Measurement of one round of one test.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Number of operations in the round.
    pub operations: u64,
    /// Duration of all operations in seconds.
    pub seconds: f64,
    /// CPU time of the calling thread. On a machine with other programs it is more reliable than `seconds`, for
    /// operations that do not wait.
    pub thread_cpu: Duration,
    /// Durations of those operations that were timed one by one.
    pub times: Latencies,
    /// Durations of reads and of writes separately; `None` unless the test mixes them.
    pub apart: Option<MixDurations>,
    /// Longest duration of a stride. A stride is a group of consecutive operations of which one is timed.
    pub longest: Duration,
    /// Number of bytes of keys and values written, or of values read.
    pub payload_bytes: u64,
    /// Number of reads that found their key; `None` if there were no reads.
    pub hits: Option<u64>,
    /// Resources that the process used during the round.
    pub cost: Cost,
}

/// Durations of the reads and of the writes of a mix.
#[derive(Clone, Debug, Default)]
pub struct MixDurations {
    /// Durations of those reads that were timed one by one.
    pub reads: Latencies,
    /// Durations of those writes that were timed one by one.
    pub writes: Latencies,
}

impl Measure {
    /// Returns the operations per second of the round.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// Returns the CPU time of the calling thread for each operation, in nanoseconds.
    pub fn thread_nanos(&self) -> f64 {
        self.thread_cpu.as_nanos() as f64 / self.operations as f64
    }
}

/// Calls `operation` with each number of `0..operations`, and measures the calls together. In addition, one in `stride`
/// calls is timed on its own.
pub fn timed(
    subject: &dyn KvSubject,
    operations: u64,
    stride: u64,
    operation: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Measure, BenchError> {
    timed_each(subject, operations, stride, operation, |_, _| {})
}

/// Calls `operation` with the number of each operation of a mix, and measures the calls. Reads and writes are measured
/// separately; `is_read` returns true for a read.
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
