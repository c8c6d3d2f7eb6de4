//! Reads of an open log: records in order, and bytes by reference. No read locks the writer.

use std::{io, sync::Arc};

use bytes::Bytes;
use thalweg_types::{BlobRef, Generation, Lsn, budget};

use crate::{
    crc::crc32c,
    cursor::CHUNK_BYTES,
    errors::{Corruption, Explain, ReadError},
    format::{DATA_START, Damage},
    log::Log,
    records::Records,
};

impl Log {
    /// Iterates over the records from `lsn` to the end that the log has at the time of the call.
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
        self.records_in_chunks(lsn, CHUNK_BYTES)
    }

    /// Iterates like [`records_from`](Self::records_from), and loads `chunk_bytes` bytes of the log at a time, or one
    /// batch if that is larger. Meant for readers that read little before they are dropped.
    pub fn records_in_chunks(&self, lsn: Lsn, chunk_bytes: usize) -> Result<Records, ReadError> {
        let table = self.shared().table.load_full();
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
        Ok(Records::new(&segments[at..], lsn, chunk_bytes))
    }

    /// Extends an iteration of [`records_from`](Self::records_from) to the current end of the log. The
    /// extended iteration reads no record twice. A reader can follow the log by calling this repeatedly,
    /// before the segments that it still needs are freed.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if segments between the end of the iteration and the next existing segment
    /// were freed.
    pub fn extend_records(&self, records: &mut Records) -> Result<(), ReadError> {
        records.extend(&self.shared().table.load_full())
    }

    /// Iterates over the readable records of one segment.
    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        let table = self.shared().table.load_full();
        let segment = table.find(generation).ok_or(ReadError::Gone { generation })?;
        Ok(Records::of_segment(segment))
    }

    /// Asks the disk to load the bytes to which a reference points into memory, and does not wait for them. Ignores a
    /// reference that cannot be read; a later read of its bytes returns the error.
    pub fn read_ahead(&self, blob: &BlobRef) {
        let table = self.shared().table.load();
        let Some(segment) = table.find(blob.generation) else { return };
        let (offset, len) = (u64::from(blob.offset), u64::from(blob.len));
        if offset + len <= u64::from(segment.written()) && segment.file.read_ahead(offset, len).is_ok() {
            budget::note_read_ahead();
        }
    }

    /// Reads the bytes to which a reference points, and verifies their checksum. If the bytes are not in memory and the
    /// [budget] of the thread's read forbids waiting for the disk, the call fails without reading.
    pub fn read_blob(&self, blob: &BlobRef) -> Result<Bytes, ReadError> {
        let table = self.shared().table.load();
        let segment = table.find(blob.generation).ok_or(ReadError::Gone { generation: blob.generation })?;
        let segment = Arc::clone(segment);
        drop(table);
        let written = segment.written();
        let end = u64::from(blob.offset) + u64::from(blob.len);
        if blob.offset < DATA_START || end > u64::from(written) {
            let damage = Damage::new("reference within the written bytes", written, end);
            return Err(Corruption::at(&segment.path, blob.offset, damage).into());
        }
        let (file, len, offset) = (&segment.file, blob.len as usize, u64::from(blob.offset));
        let bytes =
            budget::read_file(|| file.read_resident_at(len, offset).transpose(), || file.read_new_at(len, offset));
        let bytes = bytes.unwrap_or_else(|spent| Err(io::Error::other(spent))).explain("read", &segment.path)?;
        let crc = crc32c(&bytes);
        if crc != blob.crc {
            let damage = Damage::new("checksum of referenced bytes", blob.crc, crc);
            return Err(Corruption::at(&segment.path, blob.offset, damage).into());
        }
        Ok(bytes.into())
    }
}
