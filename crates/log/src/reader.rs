//! Reads records in order, and single payloads to which a reference points, without locking the writer.
//!
//! Owns: [`Records`]. Memory: about 1 MiB of buffer for each iterator, or one batch if that is larger.

use std::{collections::VecDeque, sync::Arc};

use bytes::Bytes;
use thalweg_types::{BlobRef, Generation, Lsn};

use crate::{
    crc::crc32c,
    cursor::{BatchRecords, CHUNK_BYTES, Expected, Window, read_batch},
    errors::{Corruption, Explain, ReadError},
    format::{DATA_START, Damage},
    log::Shared,
    record::LogRecord,
    segment::{Segment, Table},
};

/// Iterator over records in LSN order. It holds the segments that it will read and the last one it has read,
/// so none of them is recycled in the meantime. Ends after the first error.
#[derive(Debug)]
pub struct Records {
    /// Segments still to read, each with the byte position at which reading ends.
    ahead: VecDeque<(Arc<Segment>, u32)>,
    place: Option<Place>,
    batch: Option<BatchRecords>,
    /// LSN at which the iteration begins; records below it are skipped.
    from: Lsn,
    sums: Vec<u8>,
}

#[derive(Debug)]
struct Place {
    segment: Arc<Segment>,
    window: Window,
    at: u32,
    /// LSN and chain value that the next batch must have; `None` if the iteration begins in the middle of a
    /// segment.
    expected: Option<Expected>,
}

impl Place {
    fn start(segment: Arc<Segment>, until: u32, at: u32) -> Self {
        let expected = (at == DATA_START).then_some(Expected { first: segment.first, chain: segment.base_chain });
        let window = Window::new(Arc::clone(&segment.file), until, CHUNK_BYTES);
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
    fn new(segments: &[Arc<Segment>], from: Lsn) -> Self {
        let mut ahead: VecDeque<_> = segments.iter().map(|segment| (Arc::clone(segment), segment.written())).collect();
        let place = ahead.pop_front().map(|(segment, until)| {
            let at = segment.seek(from).min(until);
            Place::start(segment, until, at)
        });
        Self { ahead, place, batch: None, from, sums: Vec::new() }
    }

    /// Iterates over all records of a segment.
    pub(crate) fn of_segment(segment: &Arc<Segment>) -> Self {
        Self::new(std::slice::from_ref(segment), Lsn::ZERO)
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
}

impl Records {
    /// Extends the iteration to all records that are now written in the segments of `table`.
    fn extend(&mut self, table: &Table) -> Result<(), ReadError> {
        let Some(place) = &mut self.place else { return Ok(()) };
        place.window.raise_end(place.segment.written());
        for (segment, until) in &mut self.ahead {
            *until = segment.written();
        }
        let mut last = Arc::clone(self.ahead.back().map_or(&place.segment, |(segment, _)| segment));
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
            let place = self.place.as_mut()?;
            if place.at >= place.window.end() {
                // Keeps the last position, because a later extension may read records written after it.
                let (segment, until) = self.ahead.pop_front()?;
                self.place = Some(Place::start(segment, until, DATA_START));
                continue;
            }
            match place.next_batch(&mut self.sums) {
                Ok(batch) => self.batch = Some(batch),
                Err(error) => {
                    self.place = None;
                    return Some(Err(error));
                }
            }
        }
    }
}

impl Shared {
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
        let table = self.table.load_full();
        let segments = table.contiguous();
        let oldest = segments[0].first;
        if lsn < oldest {
            return Err(ReadError::Compacted { oldest });
        }
        let end = segments[segments.len() - 1].next();
        if lsn > end {
            return Err(ReadError::PastEnd { lsn, end });
        }
        let at = segments.partition_point(|segment| segment.first <= lsn) - 1;
        Ok(Records::new(&segments[at..], lsn))
    }

    pub fn extend_records(&self, records: &mut Records) -> Result<(), ReadError> {
        records.extend(&self.table.load_full())
    }

    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        let table = self.table.load_full();
        let segment = table.find(generation).ok_or(ReadError::Gone { generation })?;
        Ok(Records::of_segment(segment))
    }

    pub fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, ReadError> {
        let table = self.table.load();
        let segment = table.find(blob.generation).ok_or(ReadError::Gone { generation: blob.generation })?;
        let segment = Arc::clone(segment);
        drop(table);
        let written = segment.written();
        let end = u64::from(blob.offset) + u64::from(blob.len);
        if blob.offset < DATA_START || end > u64::from(written) {
            let damage = Damage::new("reference within the written bytes", written, end);
            return Err(Corruption::at(&segment.path, blob.offset, damage).into());
        }
        let bytes = segment.file.read_new_at(blob.len as usize, blob.offset.into()).explain("read", &segment.path)?;
        let crc = crc32c(&bytes);
        if crc != blob.crc {
            let damage = Damage::new("checksum of referenced bytes", blob.crc, crc);
            return Err(Corruption::at(&segment.path, blob.offset, damage).into());
        }
        Ok(bytes.into())
    }
}
