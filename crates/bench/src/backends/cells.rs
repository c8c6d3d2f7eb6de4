//! Measures one group of operations on all stores.
//!
//! Each store runs one sample of the group in turn. The order of the stores shifts by one each time, so that drift of
//! the machine's speed affects all stores equally. The first samples of each store are a warm-up and are not counted.

use std::time::{Duration, Instant};

use super::{
    device::{Device, DeviceCounts},
    groups::{Group, Workload},
    statistics::Statistics,
    subjects::{Mode, Subject},
};
use crate::{
    BenchError, Progress, Scratch,
    engine::KvSubject,
    load::turns,
    report::plots::Bar,
    usage::{Clocks, MeasuredProcess, Meter, Usage},
};

/// Time during which this process must not write to the disk before a group of operations is measured.
const QUIET: Duration = Duration::from_millis(100);
/// Longest wait for this process to stop writing. In a test program it is short, because other tests in the process
/// write all the time.
const LONGEST_WAIT: Duration = if cfg!(test) { QUIET } else { Duration::from_secs(20) };

/// Result of measuring one group of operations on one store.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    /// The measured group of operations, with its parameter.
    pub group: Group,
    /// Name of the measured store.
    pub store: String,
    /// Way in which the store makes a write durable before it acknowledges the write.
    pub mode: Mode,
    /// Microseconds per operation, one value for each sample.
    pub micros: Vec<f64>,
    /// Statistics of the samples in `micros`.
    pub statistics: Statistics,
    /// Number of flushes of the disk's write cache for each operation; `None` if the device does not count them.
    pub flushes: Option<f64>,
    /// Number of bytes written to the disk for each operation; `None` if the device does not count them.
    pub written_bytes: Option<f64>,
    /// Drift of the machine's clocks, and processor time that the host of a virtual machine took, while this store was
    /// measured. The time in which other stores were measured does not count.
    pub clocks: Clocks,
}

impl Cell {
    /// Returns the operations per second of this store, which follow from the mean time of an operation.
    pub(super) fn rate(&self) -> f64 {
        1e6 / self.statistics.mean
    }

    /// Returns the mean time of an operation with its 95 % interval, as a bar for a plot.
    pub(super) fn bar(&self) -> Bar {
        let is_alone = self.mode != Mode::BehindLog;
        Bar {
            label: format!("{} {}", self.store, if is_alone { "(alone)" } else { "(log)" }),
            store: self.store.clone(),
            is_pale: is_alone,
            value: self.statistics.mean,
            interval: (self.statistics.low, self.statistics.high),
        }
    }
}

/// Number of samples and cache size of a measurement.
#[derive(Clone, Copy, Debug)]
pub(super) struct MeasuringEffort {
    /// Number of samples of each group on each store.
    pub samples: u64,
    /// Number of uncounted samples of each group on each store, made before the counted ones to warm up.
    pub warmups: u64,
    /// Size of each store's cache in bytes.
    pub cache_bytes: u64,
}

struct RunningSubject<'a> {
    subject: &'a Subject<'a>,
    store: Box<dyn KvSubject>,
    micros: Vec<f64>,
    operations: u64,
    /// Flushes and written bytes that the block device counted, summed over the samples of this store; `None` if the
    /// device does not count.
    device: Option<DeviceCounts>,
    /// Drift of the machine's clocks, and processor time that the host of a virtual machine took, summed over the
    /// samples of this store; `None` before the first sample.
    clocks: Option<Clocks>,
}

/// Callback that runs before each counted round. In a round, every store is measured once.
pub(super) type BetweenRounds<'a> = dyn FnMut() -> Result<(), BenchError> + 'a;

/// Measures a group of operations on each store. The stores take turns.
pub(super) fn measure(
    group: Group,
    subjects: &[&Subject<'_>],
    workload: &Workload,
    effort: MeasuringEffort,
    scratch: &Scratch,
    beside: &mut BetweenRounds<'_>,
    progress: &mut dyn Progress,
) -> Result<Vec<Cell>, BenchError> {
    progress.step(&format!("{}: {}", group.name(), group.what()));
    let device = Device::below(scratch.path());
    let mut running = Vec::new();
    for (number, subject) in subjects.iter().enumerate() {
        let dir = scratch.fresh(&format!("store-{number}"))?;
        let store = subject.open(&dir, effort.cache_bytes).map_err(|error| named(subject, error))?;
        group.prepare(&*store, workload).map_err(|error| named(subject, error))?;
        let device = device.map(|_| DeviceCounts::default());
        running.push(RunningSubject { subject, store, micros: Vec::new(), operations: 0, device, clocks: None });
    }
    wait_until_quiet();
    for sample in 0..effort.warmups + effort.samples {
        let is_counted = sample >= effort.warmups;
        if is_counted {
            beside()?;
        }
        for number in turns(sample, running.len()) {
            running[number].sample(group, workload, (sample, is_counted), device)?;
        }
    }
    let cells = running.into_iter().map(|running| running.finish(group, workload.seed)).collect();
    Ok(cells)
}

/// Waits until this process no longer writes to the disk. Stores write in the background: they fill log segments that
/// they will need next with zeroes. This work belongs to setup, not to the measurement.
fn wait_until_quiet() {
    let written = || Usage::read(MeasuredProcess::Own).written_bytes;
    let (begun, mut last) = (Instant::now(), written());
    while begun.elapsed() < LONGEST_WAIT {
        std::thread::sleep(QUIET);
        let now = written();
        if now == last {
            return;
        }
        last = now;
    }
}

impl RunningSubject<'_> {
    fn sample(
        &mut self,
        group: Group,
        workload: &Workload,
        (sample, is_counted): (u64, bool),
        device: Option<Device>,
    ) -> Result<(), BenchError> {
        let counts = || device.and_then(|device| device.counts());
        let counts_before = counts();
        let meter = Meter::begin(None);
        let begun = Instant::now();
        group.sample(&*self.store, workload, sample).map_err(|error| named(self.subject, error))?;
        let took = begun.elapsed();
        let clocks = meter.clocks();
        let counted = counts().zip(counts_before).map(|(after, before)| after.since(&before));
        group.verify(&*self.store, workload, sample).map_err(|error| named(self.subject, error))?;
        if !is_counted {
            return Ok(());
        }
        self.micros.push(took.as_secs_f64() * 1e6 / group.operations() as f64);
        self.operations += group.operations();
        self.clocks = Some(self.clocks.map_or(clocks, |earlier| earlier.and(&clocks)));
        self.device = self.device.zip(counted).map(|(sum, more)| DeviceCounts {
            flushes: sum.flushes + more.flushes,
            written_bytes: sum.written_bytes + more.written_bytes,
        });
        Ok(())
    }

    fn finish(self, group: Group, seed: u64) -> Cell {
        let per_operation = |count: u64| count as f64 / self.operations as f64;
        Cell {
            group,
            store: self.subject.name.clone(),
            mode: self.subject.mode,
            statistics: Statistics::of(&self.micros, seed),
            flushes: self.device.map(|counts| per_operation(counts.flushes)),
            written_bytes: self.device.map(|counts| per_operation(counts.written_bytes)),
            clocks: self.clocks.unwrap_or_default(),
            micros: self.micros,
        }
    }
}

/// Adds the name of the store `subject` to an error.
fn named(subject: &Subject<'_>, error: BenchError) -> BenchError {
    let name = format!("{}, {}", subject.name, subject.mode.name());
    match error {
        BenchError::Subject { doing, message, .. } => BenchError::Subject { subject: name, doing, message },
        BenchError::WrongData { doing, message, .. } => BenchError::WrongData { subject: name, doing, message },
        other => other,
    }
}
