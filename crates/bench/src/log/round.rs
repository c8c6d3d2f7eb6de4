//! One round of a cell: threads that append until the time is up, and a look at what they wrote.

use std::{
    io::IoSlice,
    sync::{
        Barrier,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_log::{Draft, Log, Purpose, RecordKind};
use thalweg_types::{Index, Lsn, SpaceId, SpaceTime, Term};

use super::cells::Cell;
use crate::{
    BenchError,
    data::Values,
    latency::Latencies,
    usage::{Cost, Usage, Whose},
};

/// What a round gave.
pub(super) struct Round {
    /// Appends per second.
    pub(super) rate: f64,
    pub(super) times: Latencies,
    pub(super) cost: Cost,
}

/// Records compared after a round; more would take longer than the round.
const MAX_COMPARED: u64 = 20_000;
const JANITOR_PAUSE: Duration = Duration::from_millis(10);

/// Runs one round. `number` makes the records of each round differ.
pub(super) fn run(log: &Log, cell: &Cell, values: &Values, time: Duration, number: u32) -> Result<Round, BenchError> {
    let first_lsn = log.end();
    let next_index = AtomicU64::new(u64::from(number) << 40 | 1);
    let over = AtomicBool::new(false);
    let start = Barrier::new(cell.writers + 1);
    let before = (Usage::read(Whose::Own), log.stats().syncs);
    let (times, seconds) = std::thread::scope(|scope| {
        let janitor = scope.spawn(|| keep_clean(log, &over));
        let writers: Vec<_> = (0..cell.writers)
            .map(|_| {
                scope.spawn(|| {
                    start.wait();
                    append(log, cell, values, time, &next_index)
                })
            })
            .collect();
        start.wait();
        let begun = Instant::now();
        let times: Result<Vec<Latencies>, BenchError> = writers.into_iter().map(join).collect();
        let seconds = begun.elapsed().as_secs_f64();
        over.store(true, Ordering::Relaxed);
        janitor.thread().unpark();
        join(janitor)?;
        times.map(|times| (times, seconds))
    })?;
    let mut cost = Usage::read(Whose::Own).since(&before.0);
    cost.fsyncs = Some(log.stats().syncs - before.1);
    let mut all = Latencies::default();
    times.iter().for_each(|times| all.merge(times));
    // Settling is not timed: what was left unsynced must not slow down whoever is measured next.
    log.sync().map_err(BenchError::subject("log", "syncing"))?;
    compare(log, first_lsn, values)?;
    Ok(Round { rate: all.count() as f64 / seconds, times: all, cost })
}

fn join<T>(thread: std::thread::ScopedJoinHandle<'_, Result<T, BenchError>>) -> Result<T, BenchError> {
    thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Appends one batch after the other; the record's index says what its payload must be.
fn append(
    log: &Log,
    cell: &Cell,
    values: &Values,
    time: Duration,
    next_index: &AtomicU64,
) -> Result<Latencies, BenchError> {
    let mut times = Latencies::default();
    let begun = Instant::now();
    let mut last = begun;
    while last - begun < time {
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
        last = Instant::now();
        log.append(&drafts, cell.level, Purpose::Data).map_err(BenchError::subject("log", "appending"))?;
        let now = Instant::now();
        times.record(now - last);
        last = now;
    }
    Ok(times)
}

/// Gives back segments as soon as they are synced, as the state's persistence would.
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

/// Reads back what is still there of the round, and compares each payload with its index's.
fn compare(log: &Log, first: Lsn, values: &Values) -> Result<(), BenchError> {
    let wrong = |message: String| BenchError::WrongData { subject: "log".to_owned(), doing: "reading back", message };
    let from = first.max(log.start()).max(Lsn(log.end().0.saturating_sub(MAX_COMPARED)));
    let records = log.records_from(from).map_err(BenchError::subject("log", "reading back"))?;
    let mut expected = from;
    for record in records {
        let record = record.map_err(BenchError::subject("log", "reading back"))?;
        if record.lsn != expected {
            return Err(wrong(format!("LSN {} follows where {expected} should", record.lsn)));
        }
        if record.kind == RecordKind::Entry && record.payload != values.of(record.index.0) {
            return Err(wrong(format!("the record at LSN {} is not what was appended", record.lsn)));
        }
        expected = expected.next();
    }
    if expected != log.end() {
        return Err(wrong(format!("reading ended at LSN {expected} and the log at {}", log.end())));
    }
    Ok(())
}
