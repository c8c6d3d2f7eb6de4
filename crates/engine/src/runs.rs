//! Runs: consecutive records of a stream in encoded form, as the log stores them. Their bytes are shared, not copied.
//!
//! Owns: cutting a page of records to the limits of a client. A batch that the client wants completely is returned as
//! it was read. Only if the batch must be cut does the code step through its records, by their length fields.

use std::ops::Range;

use bytes::Bytes;
use thalweg_types::{Offset, SpaceTime, record::Records};

use crate::{
    error::ReadError,
    stream_page::{StreamBatch, StreamPage},
};

/// A run: consecutive records of one append, in encoded form.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRun {
    /// Offset of the first record in the run.
    pub first: Offset,
    /// Time at which the records of the run were appended.
    pub time: SpaceTime,
    /// Number of records in the run.
    pub count: u32,
    /// The records of the run and no others, encoded as in [`thalweg_types::record`].
    pub bytes: Bytes,
}

/// Limits for converting a page of records to runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunLimits {
    /// Maximum number of bytes of all runs together. At least one record is returned, however large it is.
    pub max_bytes: u64,
    /// Bytes that each run adds to the sum which `max_bytes` limits, besides its records.
    pub per_run_bytes: u64,
    /// Number of records after which no further run begins. A run that has begun is not cut because of this number.
    pub enough_records: u64,
}

impl StreamPage {
    /// Converts the page to runs of encoded records. Also returns the offset at which to continue reading.
    pub fn into_runs(self, limits: RunLimits) -> Result<(Vec<StreamRun>, Offset), ReadError> {
        let Self { batches, next, .. } = self;
        let mut runs = Vec::with_capacity(batches.len());
        let (mut left, mut records) = (limits.max_bytes, 0);
        for batch in batches {
            if records >= limits.enough_records {
                return Ok((runs, batch.first));
            }
            let room = left.saturating_sub(limits.per_run_bytes);
            let bytes = batch.encoded()?;
            if bytes.len() as u64 <= room {
                left = room - bytes.len() as u64;
                records += u64::from(batch.count);
                runs.push(StreamRun { first: batch.first, time: batch.time, count: batch.count, bytes });
                continue;
            }
            let (count, end) = fitting(&batch, &bytes, room)?;
            // Return at least one record, even if it is larger than the limit.
            let (count, end) =
                if count == 0 && runs.is_empty() { (1, batch.skipped(&bytes, 1)?) } else { (count, end) };
            if count > 0 {
                let bytes = part(&bytes, 0..end);
                runs.push(StreamRun { first: batch.first, time: batch.time, count, bytes });
            }
            let next = batch.first.plus(u64::from(count));
            return Ok((runs, next));
        }
        Ok((runs, next))
    }
}

/// Returns a range of a batch's bytes. If the range is less than half of the batch, it is copied, so that a slow
/// receiver of few records does not keep the whole batch in memory.
fn part(bytes: &Bytes, range: Range<usize>) -> Bytes {
    if range.len() < bytes.len() / 2 { Bytes::copy_from_slice(&bytes[range]) } else { bytes.slice(range) }
}

/// Returns the number of records from the beginning of a batch that fit into `room` bytes, and their size in bytes.
fn fitting(batch: &StreamBatch, bytes: &Bytes, room: u64) -> Result<(u32, usize), ReadError> {
    let (mut count, mut end) = (0, 0);
    let mut records = Records::new(bytes);
    while let Some(framed) = records.next_framed() {
        let len = framed.map_err(|malformed| batch.corrupt(&malformed))?.len();
        if (end + len) as u64 > room {
            break;
        }
        (count, end) = (count + 1, end + len);
    }
    Ok((count, end))
}

impl StreamBatch {
    /// Returns the encoded bytes of the batch's wanted records, without a copy if the whole batch is wanted.
    pub fn encoded(&self) -> Result<Bytes, ReadError> {
        if self.skip == 0 && self.count == self.total {
            return Ok(self.bytes.clone());
        }
        let begin = self.skipped(&self.bytes, self.skip)?;
        let end = begin + self.skipped(&self.bytes.slice(begin..), self.count)?;
        Ok(part(&self.bytes, begin..end))
    }

    /// Returns the size in bytes of the first `count` records in `bytes`.
    fn skipped(&self, bytes: &Bytes, count: u32) -> Result<usize, ReadError> {
        let mut records = Records::new(bytes);
        let mut at = 0;
        for _ in 0..count {
            match records.next_framed() {
                Some(Ok(framed)) => at += framed.len(),
                Some(Err(malformed)) => return Err(self.corrupt(&malformed)),
                None => {
                    return Err(ReadError::Corrupt(format!("the batch of offset {} ends too early", self.first)));
                }
            }
        }
        Ok(at)
    }

    fn corrupt(&self, malformed: &thalweg_types::codec::Malformed) -> ReadError {
        ReadError::Corrupt(format!("the batch of offset {}: {malformed}", self.first))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_types::record::{Record, RecordBatch};

    fn batch(first: u64, payloads: &[usize]) -> StreamBatch {
        let mut encoded = RecordBatch::new();
        for len in payloads {
            encoded.push(&Record { payload: &vec![7; *len], ..Record::default() }).unwrap();
        }
        let count = payloads.len() as u32;
        let bytes = Bytes::copy_from_slice(encoded.bytes());
        StreamBatch { first: Offset(first), count, skip: 0, total: count, time: SpaceTime(1), bytes }
    }

    fn page(batches: Vec<StreamBatch>) -> StreamPage {
        let next = batches.last().map_or(Offset(0), StreamBatch::end);
        StreamPage { batches, next, high_watermark: next }
    }

    fn shape(page: StreamPage, max_bytes: u64, enough_records: u64) -> (Vec<(u64, u32, usize)>, u64) {
        let limits = RunLimits { max_bytes, per_run_bytes: 10, enough_records };
        let (runs, next) = page.into_runs(limits).unwrap();
        for run in &runs {
            assert_eq!(Records::new(&run.bytes).count(), run.count as usize);
        }
        (runs.iter().map(|run| (run.first.0, run.count, run.bytes.len())).collect(), next.0)
    }

    #[test]
    fn whole_batches_are_shared_and_what_is_cut_is_cut_between_records() {
        let both = || page(vec![batch(5, &[100, 100]), batch(7, &[100, 100, 100])]);
        let each = batch(0, &[100]).bytes.len();
        assert_eq!(shape(both(), u64::MAX, u64::MAX), (vec![(5, 2, 2 * each), (7, 3, 3 * each)], 10));
        let source = both();
        let (runs, _) =
            source.clone().into_runs(RunLimits { max_bytes: u64::MAX, per_run_bytes: 0, enough_records: 9 }).unwrap();
        assert_eq!(runs[0].bytes.as_ptr(), source.batches[0].bytes.as_ptr(), "the bytes are shared");
        assert_eq!(shape(both(), 20 + 4 * each as u64, u64::MAX), (vec![(5, 2, 2 * each), (7, 2, 2 * each)], 9));
        assert_eq!(shape(both(), 19 + 3 * each as u64, u64::MAX), (vec![(5, 2, 2 * each)], 7), "no partial record");
        assert_eq!(shape(both(), 0, u64::MAX), (vec![(5, 1, each)], 6), "at least one record");
        assert_eq!(shape(both(), u64::MAX, 1), (vec![(5, 2, 2 * each)], 7), "the record limit does not cut a run");
        assert_eq!(shape(page(Vec::new()), 0, 0), (vec![], 0));
    }

    #[test]
    fn a_batch_that_is_wanted_in_part_gives_those_records() {
        let whole = batch(5, &[1, 2, 3, 4]);
        let part = StreamBatch { first: Offset(6), skip: 1, count: 2, ..whole.clone() };
        let encoded = part.encoded().unwrap();
        let lens: Vec<_> = Records::new(&encoded).map(|record| record.unwrap().payload.len()).collect();
        assert_eq!(lens, [2, 3]);
        let torn = StreamBatch { count: 4, total: 9, ..whole };
        assert!(torn.encoded().is_ok(), "the wanted records are complete");
        assert!(StreamBatch { count: 5, ..torn }.encoded().is_err());
    }
}
