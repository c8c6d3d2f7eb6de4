//! Pages of a stream's records: batches as the log stores them, decoded while they are iterated.

use std::ops::ControlFlow;

use bytes::Bytes;
use thalweg_state::streams::{BatchForm, BatchRef};
use thalweg_types::{
    Offset, SpaceTime,
    record::{Record, Records},
    sparse::{Run, Runs},
};

use crate::error::ReadError;

/// Reads the encoded bytes of a batch from the log. Returns no bytes if compaction has dropped all records of the
/// batch.
pub(crate) fn read_batch(log: &thalweg_log::Log, batch: &BatchRef) -> Result<Bytes, thalweg_log::ReadError> {
    if batch.blob.len == 0 { Ok(Bytes::new()) } else { log.read_blob(&batch.blob) }
}

/// Splits a batch into parts that were one append each. An original batch is one part. A sparse (compacted) batch has
/// one part for each run of remaining records.
pub(crate) fn parts(batch: &BatchRef, bytes: &Bytes) -> Result<Vec<StreamBatch>, ReadError> {
    if batch.form == BatchForm::Whole {
        let BatchRef { first, count, time, .. } = *batch;
        return Ok(vec![StreamBatch { first, count, skip: 0, total: count, time, bytes: bytes.clone() }]);
    }
    let part = |run: Run<'_>| StreamBatch {
        first: batch.first.plus(u64::from(run.delta)),
        count: run.count,
        skip: 0,
        total: run.count,
        time: run.time,
        bytes: bytes.slice(run.batch_at..run.batch_at + run.batch.len()),
    };
    let within = |part: &StreamBatch| part.end() <= batch.end();
    let found: Option<Vec<_>> = Runs::new(bytes).map(|run| run.ok().map(part).filter(within)).collect();
    found.ok_or_else(|| ReadError::Corrupt(format!("the sparse batch at offset {} does not decode", batch.first)))
}

/// Returns the part of a batch that begins at the offset `from` and has at most `left` records.
pub(crate) fn cut(batch: StreamBatch, from: Offset, left: u64) -> StreamBatch {
    let skip = u32::try_from(from.0.saturating_sub(batch.first.0)).unwrap_or(u32::MAX).min(batch.count);
    let count = (batch.count - skip).min(u32::try_from(left).unwrap_or(u32::MAX));
    StreamBatch { first: batch.first.plus(u64::from(skip)), count, skip, ..batch }
}

/// A page of a stream's records: encoded batches, which are decoded as they are iterated.
#[derive(Clone, Debug, Default)]
pub struct StreamPage {
    /// Batches of the page in order. There are gaps between them only where compaction has dropped records.
    pub batches: Vec<StreamBatch>,
    /// Offset at which the reader continues after this page.
    pub next: Offset,
    /// Next offset of the stream at the time when the page was read.
    pub high_watermark: Offset,
}

/// Consecutive records of one append, which share a timestamp. `first` and `count` describe the records that the reader
/// wants.
#[derive(Clone, Debug)]
pub struct StreamBatch {
    /// Offset of the first record that the reader wants.
    pub first: Offset,
    /// Number of records that the reader wants.
    pub count: u32,
    /// Number of records in `bytes` that precede the first wanted record.
    pub skip: u32,
    /// Number of all records in `bytes`.
    pub total: u32,
    /// Time at which the records of the batch were appended.
    pub time: SpaceTime,
    /// The encoded batch, see [`thalweg_types::record`].
    pub bytes: Bytes,
}

impl StreamBatch {
    /// Returns the offset after the last wanted record.
    #[must_use]
    pub fn end(&self) -> Offset {
        self.first.plus(u64::from(self.count))
    }

    /// Iterates over the wanted records of the batch with their offsets.
    pub fn records(&self) -> impl Iterator<Item = Result<(Offset, Record<'_>), ReadError>> {
        let mut records = Records::new(&self.bytes);
        for _ in 0..self.skip {
            if !matches!(records.skip_one(), Some(Ok(()))) {
                break;
            }
        }
        let offsets = (self.first.0..).map(Offset);
        records.take(self.count as usize).zip(offsets).map(|(record, offset)| match record {
            Ok(record) => Ok((offset, record)),
            Err(malformed) => Err(ReadError::Corrupt(format!("record at offset {offset}: {malformed}"))),
        })
    }
}

impl StreamPage {
    /// Removes the records at offsets from `end` on. Needed because in a stream with gaps, `n` records can span more
    /// than `n` offsets.
    pub(crate) fn truncate(&mut self, end: Offset) {
        self.next = self.next.min(end);
        self.batches.retain_mut(|batch| {
            let wanted = end.0.saturating_sub(batch.first.0);
            batch.count = batch.count.min(u32::try_from(wanted).unwrap_or(u32::MAX));
            batch.count > 0
        });
    }

    /// Calls `visit` with the offset, time and content of each record in order, until `visit` breaks.
    pub fn for_each(
        &self,
        visit: &mut dyn FnMut(Offset, SpaceTime, &Record<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        for batch in &self.batches {
            for record in batch.records() {
                let (offset, record) = record?;
                if visit(offset, batch.time, &record).is_break() {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    /// Returns the size in bytes of the batches that contain the records.
    pub(crate) fn stored_bytes(&self) -> usize {
        self.batches.iter().map(|batch| batch.bytes.len()).sum()
    }

    /// Number of records in the page.
    #[must_use]
    pub fn record_count(&self) -> u64 {
        self.batches.iter().map(|batch| u64::from(batch.count)).sum()
    }
}
