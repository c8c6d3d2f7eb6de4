//! Performs one round of a measurement of the log: writers append records until the time is up. Then the records are
//! read back, and compared with the appended ones.
//!
//! Owns: the writers, as threads or as tasks, the freeing of old log segments meanwhile, and the comparison of the
//! records. Does not own: the choice of the measured combinations of parameters (`cells`), or the results over several
//! rounds (`figures`).

use std::{
    io::IoSlice,
    sync::{
        Arc, Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_log::{Draft, Log, Purpose, RecordKind};
use thalweg_types::{Durability, Index, Lsn, SpaceId, SpaceTime, Term};

use super::cells::{Cell, RunAs};
use crate::{
    BenchError,
    data::Values,
    latency::Latencies,
    usage::{Cost, MeasuredProcess, Usage},
};

/// Figures of one round, in which writers append to the log.
pub(super) struct Round {
    /// Number of appends per second.
    pub(super) rate: f64,
    pub(super) times: Latencies,
    pub(super) cost: Cost,
}

/// Maximum number of records that are read back and compared after a round. More would take longer than the round
/// itself.
const MAX_COMPARED: u64 = 20_000;
const JANITOR_PAUSE: Duration = Duration::from_millis(10);

/// Runs one round of the measurement that `cell` describes. `number` is the number of the round. It makes the records
/// of each round different.
pub(super) fn run(
    log: &Log,
    cell: &Cell,
    values: &Arc<Values>,
    time: Duration,
    number: u32,
) -> Result<Round, BenchError> {
    let first_lsn = log.end();
    let next_index = Arc::new(AtomicU64::new(u64::from(number) << 40 | 1));
    let writers = Writers { log, cell, values, time, next_index };
    let over = AtomicBool::new(false);
    let before = (Usage::read(MeasuredProcess::Own), log.stats().syncs);
    let (times, seconds) = std::thread::scope(|scope| {
        let janitor = scope.spawn(|| keep_clean(log, &over));
        let begun = Instant::now();
        let times = writers.run();
        let seconds = begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        janitor.thread().unpark();
        join(janitor)?;
        times.map(|times| (times, seconds))
    })?;
    let mut cost = Usage::read(MeasuredProcess::Own).since(&before.0);
    cost.fsyncs = Some(log.stats().syncs - before.1);
    let all = Latencies::sum(&times);
    // The final sync is not timed. Without it, unsynced bytes would slow down the next measurement.
    log.sync().map_err(BenchError::subject("log", "syncing"))?;
    compare(log, first_lsn, values)?;
    Ok(Round { rate: all.count() as f64 / seconds, times: all, cost })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Writers of one round: threads, or tasks on one thread.
struct Writers<'a> {
    log: &'a Log,
    cell: &'a Cell,
    values: &'a Arc<Values>,
    time: Duration,
    next_index: Arc<AtomicU64>,
}

impl Writers<'_> {
    fn run(&self) -> Result<Vec<Latencies>, BenchError> {
        match self.cell.run_as {
            RunAs::Threads => self.run_threads(),
            RunAs::Tasks => self.run_tasks(),
        }
    }

    fn run_threads(&self) -> Result<Vec<Latencies>, BenchError> {
        let start = Barrier::new(self.cell.writers);
        std::thread::scope(|scope| {
            let writer = || {
                start.wait();
                let mut times = Latencies::default();
                let begun = Instant::now();
                let mut last = begun;
                while last - begun < self.time {
                    let (began, _) = append(self.log, self.cell, self.cell.level, self.values, &self.next_index)?;
                    last = Instant::now();
                    times.record(last - began);
                }
                Ok(times)
            };
            let threads: Vec<_> = (0..self.cell.writers).map(|_| scope.spawn(writer)).collect();
            threads.into_iter().map(join).collect()
        })
    }

    /// Runs all writers as tasks on one thread. Each task appends a batch and waits until the log's durable position
    /// reaches the end of the batch. When no task can run, the thread does not sleep, but syncs the log. Then the tasks
    /// that waited for the sync can run.
    fn run_tasks(&self) -> Result<Vec<Latencies>, BenchError> {
        let log = self.log.clone();
        let runtime = tokio::runtime::Builder::new_current_thread()
            // If the sync fails, every waiting task gets the error.
            .on_thread_park(move || drop(log.sync()))
            .build()
            .map_err(BenchError::subject("tokio", "starting"))?;
        let tasks: Vec<_> = (0..self.cell.writers)
            .map(|_| {
                let (log, cell, values) = (self.log.clone(), *self.cell, Arc::clone(self.values));
                let (time, next_index) = (self.time, Arc::clone(&self.next_index));
                runtime.spawn(async move {
                    let mut times = Latencies::default();
                    let begun = Instant::now();
                    let mut last = begun;
                    while last - begun < time {
                        let (began, next) = append(&log, &cell, Durability::Os, &values, &next_index)?;
                        log.durable_at(next).await.map_err(BenchError::subject("log", "appending"))?;
                        last = Instant::now();
                        times.record(last - began);
                    }
                    Ok(times)
                })
            })
            .collect();
        runtime.block_on(async {
            let mut all = Vec::new();
            for task in tasks {
                all.push(task.await.unwrap_or_else(|failed| std::panic::resume_unwind(failed.into_panic()))?);
            }
            Ok(all)
        })
    }
}

/// Appends one batch. The payload of each record follows from its index. Returns the time at which the append began,
/// and the log's end after it.
fn append(
    log: &Log,
    cell: &Cell,
    level: Durability,
    values: &Values,
    next_index: &AtomicU64,
) -> Result<(Instant, Lsn), BenchError> {
    let first = next_index.fetch_add(cell.batch as u64, Ordering::Relaxed);
    let indices = first..first + cell.batch as u64;
    let payloads: Vec<[IoSlice<'_>; 1]> = indices.clone().map(|index| [IoSlice::new(values.of(index))]).collect();
    let drafts: Vec<Draft<'_>> = indices
        .zip(&payloads)
        .map(|(index, payload)| Draft {
            space: SpaceId(0),
            kind: RecordKind::Entry,
            term: Term(1),
            index: Index(index),
            time: SpaceTime(index),
            payload,
        })
        .collect();
    let began = Instant::now();
    let appended = log.append(&drafts, level, Purpose::Data).map_err(BenchError::subject("log", "appending"))?;
    Ok((began, appended.next))
}

/// Frees old segments of the log until `over` is true, so that the log does not grow. Here, records are released as
/// soon as they are synced. In the engine, the state machine releases records after it has persisted them.
fn keep_clean(log: &Log, over: &AtomicBool) -> Result<(), BenchError> {
    while !over.load(Ordering::Relaxed) {
        log.release(log.durable());
        for segment in log.freeable(SpaceTime(u64::MAX)) {
            log.free(segment.generation).map_err(BenchError::subject("log", "freeing a segment"))?;
        }
        std::thread::park_timeout(JANITOR_PAUSE);
    }
    Ok(())
}

/// Reads back those records of the round that the log still has, and compares each payload with the expected one.
fn compare(log: &Log, first: Lsn, values: &Values) -> Result<(), BenchError> {
    let wrong = |message: String| BenchError::wrong("log", "reading back", message);
    let from = first.max(log.start()).max(Lsn(log.end().0.saturating_sub(MAX_COMPARED)));
    let records = log.records_from(from).map_err(BenchError::subject("log", "reading back"))?;
    let mut expected = from;
    for record in records {
        let record = record.map_err(BenchError::subject("log", "reading back"))?;
        if record.lsn != expected {
            return Err(wrong(format!("LSN {} follows where {expected} should", record.lsn)));
        }
        if record.kind == RecordKind::Entry && record.payload != values.of(record.index.0) {
            return Err(wrong(format!("the record at LSN {} differs from the appended one", record.lsn)));
        }
        expected = expected.next();
    }
    if expected != log.end() {
        return Err(wrong(format!("reading ended at LSN {expected} and the log at {}", log.end())));
    }
    Ok(())
}
