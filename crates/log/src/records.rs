//! Iteration over records in order, without locking the writer.
//!
//! Owns: [`Records`]. Memory: a buffer of 1 MiB for each iterator, or of the size that its caller chose, or one batch
//! if that is larger.

use std::{collections::VecDeque, sync::Arc};

use thalweg_types::Lsn;

use crate::{
    cursor::{BatchRecords, CHUNK_BYTES, Expected, Window, read_batch},
    errors::{Corruption, Explain, ReadError},
    format::DATA_START,
    record::LogRecord,
    segment::{Segment, Table},
};

/// Iterator over records in LSN order. It holds the segments that it will read and the last one it has read,
/// so none of them is recycled in the meantime. Ends after the first error.
#[derive(Debug)]
pub struct Records {
    /// Segments still to read, each with the byte position at which reading ends.
    ahead: VecDeque<(Arc<Segment>, u32)>,
    position: Option<ReadPosition>,
    batch: Option<BatchRecords>,
    /// LSN at which the iteration begins; records below it are skipped.
    from: Lsn,
    /// Number of bytes that one read loads from a segment file.
    chunk_bytes: usize,
    sums: Vec<u8>,
}

#[derive(Debug)]
struct ReadPosition {
    segment: Arc<Segment>,
    window: Window,
    at: u32,
    /// LSN that the next batch must have, and the previous batch's checksum, which it must repeat; `None` if the
    /// iteration begins in the middle of a segment.
    expected: Option<Expected>,
}

impl ReadPosition {
    fn start(segment: Arc<Segment>, until: u32, at: u32, chunk_bytes: usize) -> Self {
        let expected = (at == DATA_START).then_some(Expected { first: segment.first, chain: segment.base_chain });
        let window = Window::new(Arc::clone(&segment.file), until, chunk_bytes);
        Self { segment, window, at, expected }
    }

    fn next_batch(&mut self, sums: &mut Vec<u8>) -> Result<BatchRecords, ReadError> {
        let segment = &self.segment;
        let batch = read_batch(&mut self.window, segment.key, self.at, self.expected, sums)
            .explain("read", &segment.path)?
            .map_err(|bad| Corruption::at(&segment.path, bad.offset, bad.damage))?;
        let records =
            BatchRecords::new(&mut self.window, segment.key, self.at, &batch.header).explain("read", &segment.path)?;
        self.at += batch.header.total_bytes();
        self.expected = Some(batch.expects());
        Ok(records)
    }
}

impl Records {
    pub(crate) fn new(segments: &[Arc<Segment>], from: Lsn, chunk_bytes: usize) -> Self {
        let mut ahead: VecDeque<_> = segments.iter().map(|segment| (Arc::clone(segment), segment.written())).collect();
        let position = ahead.pop_front().map(|(segment, until)| {
            let at = segment.seek(from).min(until);
            ReadPosition::start(segment, until, at, chunk_bytes)
        });
        Self { ahead, position, batch: None, from, chunk_bytes, sums: Vec::new() }
    }

    /// Iterates over all records of a segment.
    pub(crate) fn of_segment(segment: &Arc<Segment>) -> Self {
        Self::new(std::slice::from_ref(segment), Lsn::ZERO, CHUNK_BYTES)
    }

    /// Returns the next record of the current batch, if there is one.
    fn next_in_batch(&mut self) -> Option<LogRecord> {
        let from = self.from;
        let record = self.batch.as_mut()?.find(|record| record.lsn >= from);
        if record.is_none() {
            self.batch = None;
        }
        record
    }

    /// Extends the iteration to all records that are now written in the segments of `table`.
    pub(crate) fn extend(&mut self, table: &Table) -> Result<(), ReadError> {
        let Some(position) = &mut self.position else { return Ok(()) };
        position.window.raise_end(position.segment.written());
        for (segment, until) in &mut self.ahead {
            *until = segment.written();
        }
        let mut last = Arc::clone(self.ahead.back().map_or(&position.segment, |(segment, _)| segment));
        let known = table.0.partition_point(|segment| segment.key.generation <= last.key.generation);
        for segment in &table.0[known..] {
            // A later segment follows `last`, so `last` is sealed and its end is final.
            if segment.first != last.next() {
                return Err(ReadError::Compacted { oldest: table.contiguous()[0].first });
            }
            self.ahead.push_back((Arc::clone(segment), segment.written()));
            last = Arc::clone(segment);
        }
        Ok(())
    }
}

impl Iterator for Records {
    type Item = Result<LogRecord, ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(record) = self.next_in_batch() {
                return Some(Ok(record));
            }
            let position = self.position.as_mut()?;
            if position.at >= position.window.end() {
                // Keeps the last position, because a later extension may read records written after it.
                let (segment, until) = self.ahead.pop_front()?;
                self.position = Some(ReadPosition::start(segment, until, DATA_START, self.chunk_bytes));
                continue;
            }
            match position.next_batch(&mut self.sums) {
                Ok(batch) => self.batch = Some(batch),
                Err(error) => {
                    self.position = None;
                    return Some(Err(error));
                }
            }
        }
    }
}
