//! Appends to a stream through the engine, in batches of 100 × 1 KB. The test measures their rate, and the bytes that
//! are written to the disk for each byte of payload.

use std::{ops::ControlFlow, path::Path, time::Instant};

use thalweg_engine::{BackendKind, Compaction, Database, Stream};
use thalweg_types::{Offset, record::RecordBatch};

use super::{
    database::engine_options,
    subject::{Level, StoreOptions},
};
use crate::{
    BenchError,
    data::Values,
    latency::{Latencies, Quantiles},
    usage::{Cost, MeasuredProcess, Usage},
};

/// Number of records in each appended batch.
pub(super) const BATCH: u64 = 100;
/// Size of an appended record in bytes.
pub(super) const RECORD_BYTES: usize = 1024;
const NAME: &str = "thalweg";

/// Figures of one round of stream appends.
#[derive(Clone, Debug)]
pub(super) struct StreamRound {
    /// Payload bytes per second, up to the acknowledgement of the last append.
    pub(super) bytes_per_second: f64,
    /// Payload bytes per second, up to the last fsync of the log.
    pub(super) synced_bytes_per_second: f64,
    pub(super) payload_bytes: u64,
    pub(super) quantiles: Quantiles,
    /// Resources that the process used from just before the first append until after the log's last fsync.
    pub(super) cost: Cost,
    /// Bytes of zeroes that the log wrote to prepare new segments.
    pub(super) zeroed_bytes: u64,
    /// Bytes that the log wrote, by its own count.
    pub(super) log_bytes: u64,
}

/// Appends `batches` batches one after the other at the durability level `interval`. Then reads all records back and
/// compares them.
pub(super) fn run(dir: &Path, batches: u64, cache_bytes: u64, seed: u64) -> Result<StreamRound, BenchError> {
    let compaction = Compaction::Automatic;
    let options = StoreOptions { level: Level::Interval, cache_bytes, memtable_bytes: None, compaction };
    let database = Database::open(dir, engine_options(BackendKind::Lsm, &options))
        .map_err(BenchError::subject(NAME, "opening"))?;
    let stream = database.stream("bench").map_err(BenchError::subject(NAME, "creating a stream"))?;
    let values = Values::new(RECORD_BYTES, seed);
    let (before, log_before) = (Usage::read(MeasuredProcess::Own), database.stats().log);
    let mut times = Latencies::default();
    let mut batch = RecordBatch::with_capacity((BATCH as usize) * (RECORD_BYTES + 16));
    let begun = Instant::now();
    for number in 0..batches {
        batch.clear();
        for record in 0..BATCH {
            batch
                .push_payload(values.of(number * BATCH + record))
                .map_err(BenchError::subject(NAME, "building a batch"))?;
        }
        let began = Instant::now();
        stream.append(&batch).map_err(BenchError::subject(NAME, "appending"))?;
        times.record(began.elapsed());
    }
    let acknowledged = begun.elapsed();
    database.sync().map_err(BenchError::subject(NAME, "syncing"))?;
    let synced = begun.elapsed();
    let mut cost = Usage::read(MeasuredProcess::Own).since(&before);
    let log = database.stats().log;
    cost.fsyncs = Some(log.syncs - log_before.syncs);
    compare(&stream, batches * BATCH, &values)?;
    database.close().map_err(BenchError::subject(NAME, "closing"))?;
    let payload_bytes = batches * BATCH * RECORD_BYTES as u64;
    Ok(StreamRound {
        bytes_per_second: payload_bytes as f64 / acknowledged.as_secs_f64(),
        synced_bytes_per_second: payload_bytes as f64 / synced.as_secs_f64(),
        payload_bytes,
        quantiles: times.quantiles(),
        cost,
        zeroed_bytes: log.zeroed_bytes - log_before.zeroed_bytes,
        log_bytes: log.bytes - log_before.bytes,
    })
}

fn compare(stream: &Stream, records: u64, values: &Values) -> Result<(), BenchError> {
    let wrong = |message: String| BenchError::wrong(NAME, "reading the stream", message);
    let mut next = 0;
    while next < records {
        let page = stream.read(Offset(next), 10_000, 16 << 20).map_err(BenchError::subject(NAME, "reading"))?;
        let (from, mut bad) = (next, None);
        let mut check = |offset: Offset, _, record: &thalweg_types::record::Record<'_>| {
            if offset.0 != next || record.payload != values.of(next) {
                bad = Some(offset);
                return ControlFlow::Break(());
            }
            next += 1;
            ControlFlow::Continue(())
        };
        page.for_each(&mut check).map_err(BenchError::subject(NAME, "reading"))?;
        if let Some(offset) = bad {
            return Err(wrong(format!("the record at offset {offset} differs from the record appended as {next}")));
        }
        if next == from {
            return Err(wrong(format!("it ends at offset {next} of {records}")));
        }
    }
    Ok(())
}
