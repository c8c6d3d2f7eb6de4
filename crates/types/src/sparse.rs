//! Sparse batches: the records of a range of a stream that compaction has kept.
//!
//! Owns the encoding of sparse batches. Their records are those of the original batches, byte for byte. Unlike a batch,
//! a sparse batch has gaps. So it consists of runs of consecutive records, and each run states its position and the
//! space time of its append.
//!
//! ```text
//! sparse := run*
//! run    := delta u32 | count u32 | time u64 | len u32 | batch          little-endian
//! ```
//! `delta` counts offsets from the first offset that the sparse batch covers. Deltas rise, and runs do not overlap.
//! `len` is the length of `batch`, which has `count` records (see [`crate::record`]).

use crate::{
    clock::SpaceTime,
    codec::{Malformed, Reader},
};

/// Size in bytes of the header of a run (consecutive records of a sparse batch).
pub const RUN_HEAD_BYTES: usize = 20;

/// A run: consecutive records of one append, within a sparse batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run<'a> {
    /// Offset of the first record of the run (consecutive records of one append), counted from the first offset that
    /// the sparse batch covers.
    pub delta: u32,
    /// Number of records in this run (consecutive records of a sparse batch).
    pub count: u32,
    /// Time of the append that wrote the run's records, by the clock that all replicas share (space time).
    pub time: SpaceTime,
    /// Encoded records of this run (consecutive records of a sparse batch).
    pub batch: &'a [u8],
    /// Byte offset of this run's records within the encoded sparse batch.
    pub batch_at: usize,
}

/// Builder of a sparse batch. Records are added in the order of their offsets.
#[derive(Clone, Debug, Default)]
pub struct SparseBuilder {
    bytes: Vec<u8>,
    /// Byte offset of the header of the last run (consecutive records of the sparse batch).
    run_at: usize,
    run: Option<(u32, u32, SpaceTime)>,
    kept: u32,
}

impl SparseBuilder {
    /// Creates a builder of a sparse batch without records.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a record, encoded with its length field. The record extends the previous run if it directly follows the
    /// run's last record and has the same append time; otherwise it begins a new run.
    pub fn push(&mut self, delta: u32, time: SpaceTime, framed: &[u8]) {
        self.kept += 1;
        match &mut self.run {
            Some((first, count, at)) if *at == time && u64::from(*first) + u64::from(*count) == u64::from(delta) => {
                *count += 1;
            }
            _ => {
                self.finish_run();
                self.run_at = self.bytes.len();
                self.bytes.extend_from_slice(&[0; RUN_HEAD_BYTES]);
                self.run = Some((delta, 1, time));
            }
        }
        self.bytes.extend_from_slice(framed);
    }

    /// Number of records added so far.
    #[must_use]
    pub fn kept(&self) -> u32 {
        self.kept
    }

    /// Returns the encoded sparse batch.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.finish_run();
        self.bytes
    }

    fn finish_run(&mut self) {
        let Some((delta, count, time)) = self.run.take() else { return };
        let len = u32::try_from(self.bytes.len() - self.run_at - RUN_HEAD_BYTES).expect("sparse batches are small");
        let head = &mut self.bytes[self.run_at..self.run_at + RUN_HEAD_BYTES];
        head[..4].copy_from_slice(&delta.to_le_bytes());
        head[4..8].copy_from_slice(&count.to_le_bytes());
        head[8..16].copy_from_slice(&time.0.to_le_bytes());
        head[16..].copy_from_slice(&len.to_le_bytes());
    }
}

/// Iterator over the runs (ranges of consecutive records) of a sparse batch. The iteration ends after the first
/// malformed run, which it returns as an error.
#[derive(Clone, Debug)]
pub struct Runs<'a> {
    reader: Reader<'a>,
    /// Lowest delta (offset within the sparse batch) that the next run may have.
    low: u64,
    failed: bool,
}

impl<'a> Runs<'a> {
    /// Creates an iterator over an encoded sparse batch.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { reader: Reader::at(bytes, 0), low: 0, failed: false }
    }

    fn read(&mut self) -> Result<Run<'a>, Malformed> {
        let at = self.reader.position();
        let delta = self.reader.u32("run delta")?;
        let count = self.reader.u32("run count")?;
        let time = SpaceTime(self.reader.u64("run time")?);
        let len = self.reader.u32("run length")? as usize;
        let batch_at = self.reader.position();
        let batch = self.reader.take(len, "run's records")?;
        if count == 0 || u64::from(delta) < self.low {
            return Err(Malformed { at, expected: "a run that follows the previous one" });
        }
        self.low = u64::from(delta) + u64::from(count);
        Ok(Run { delta, count, time, batch, batch_at })
    }
}

impl<'a> Iterator for Runs<'a> {
    type Item = Result<Run<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.failed || self.reader.is_empty() {
            return None;
        }
        let run = self.read();
        self.failed = run.is_err();
        Some(run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn example() -> Vec<u8> {
        let mut builder = SparseBuilder::new();
        builder.push(1, SpaceTime(5), b"\x02\0\0\0\0a");
        builder.push(2, SpaceTime(5), b"\x02\0\0\0\0b");
        builder.push(3, SpaceTime(6), b"\x02\0\0\0\0c");
        builder.push(9, SpaceTime(6), b"\x02\0\0\0\0d");
        assert_eq!(builder.kept(), 4);
        builder.finish()
    }

    #[test]
    fn layout_is_pinned() {
        let expected: &[&[u8]] = &[
            b"\x01\0\0\0\x02\0\0\0\x05\0\0\0\0\0\0\0\x0c\0\0\0\x02\0\0\0\0a\x02\0\0\0\0b",
            b"\x03\0\0\0\x01\0\0\0\x06\0\0\0\0\0\0\0\x06\0\0\0\x02\0\0\0\0c",
            b"\x09\0\0\0\x01\0\0\0\x06\0\0\0\0\0\0\0\x06\0\0\0\x02\0\0\0\0d",
        ];
        assert_eq!(example(), expected.concat());
        assert_eq!(SparseBuilder::new().finish(), b"");
    }

    #[test]
    fn runs_come_back_and_any_cut_is_an_error_or_fewer() {
        let bytes = example();
        let runs: Vec<_> = Runs::new(&bytes).collect::<Result<_, _>>().unwrap();
        let found: Vec<_> = runs.iter().map(|run| (run.delta, run.count, run.time.0)).collect();
        assert_eq!(found, [(1, 2, 5), (3, 1, 6), (9, 1, 6)]);
        assert!(runs.iter().all(|run| &bytes[run.batch_at..run.batch_at + run.batch.len()] == run.batch));
        for cut in 0..bytes.len() {
            let cut: Result<Vec<_>, _> = Runs::new(&bytes[..cut]).collect();
            assert!(cut.is_err() || cut.unwrap().len() < runs.len());
        }
        let mut backwards = bytes.clone();
        backwards[RUN_HEAD_BYTES + 12] = 2;
        assert!(Runs::new(&backwards).any(|run| run.is_err()), "runs that overlap");
    }
}
