//! The timed loop.
//!
//! An operation of 200 ns is not timed by clocks that take 25 ns each: of fast operations one in
//! [`FAST_STRIDE`] is timed, and the rate comes from the whole loop. The longest time is that of a
//! stride, so no stall is missed between two samples.

use std::time::{Duration, Instant};

use crate::{
    BenchError,
    latency::Latencies,
    usage::{self, Cost, MeasuredProcess, Usage},
};

use super::subject::KvSubject;

/// Operations that take well below 10 µs are timed one in this many.
pub const FAST_STRIDE: u64 = 16;

/// One round of one test.
#[derive(Clone, Debug)]
pub struct Measure {
    /// Number of operations.
    pub operations: u64,
    /// Seconds that all operations took.
    pub seconds: f64,
    /// CPU time of the thread that called: on a machine shared with others it says more than `seconds`
    /// about operations that do not wait.
    pub thread_cpu: Duration,
    /// Times of the sampled operations.
    pub times: Latencies,
    /// The longest time of a stride of operations.
    pub longest: Duration,
    /// Bytes of keys and values written, or of values read.
    pub payload_bytes: u64,
    /// Reads that found their key, if there were reads.
    pub hits: Option<u64>,
    /// Resources used.
    pub cost: Cost,
}

impl Measure {
    /// Operations per second.
    pub fn rate(&self) -> f64 {
        self.operations as f64 / self.seconds
    }

    /// CPU nanoseconds of the calling thread per operation.
    pub fn thread_nanos(&self) -> f64 {
        self.thread_cpu.as_nanos() as f64 / self.operations as f64
    }
}

/// Runs `operation` for `0..operations` and times it.
pub fn timed(
    subject: &dyn KvSubject,
    operations: u64,
    stride: u64,
    mut operation: impl FnMut(u64) -> Result<(), BenchError>,
) -> Result<Measure, BenchError> {
    usage::reset_peak();
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
            times.record(began.elapsed());
        } else {
            operation(number)?;
        }
    }
    longest = longest.max(stride_began.elapsed());
    let thread_cpu = usage::thread_cpu().saturating_sub(cpu);
    let seconds = begun.elapsed().as_secs_f64();
    let mut cost = Usage::read(MeasuredProcess::Own).since(&before.0);
    cost.fsyncs = subject.fsyncs().zip(before.1).map(|(now, then)| now - then);
    Ok(Measure { operations, seconds, thread_cpu, times, longest, payload_bytes: 0, hits: None, cost })
}
