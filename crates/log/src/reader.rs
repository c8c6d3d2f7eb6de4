//! Reads of an open log: records in order, and bytes by reference. No read locks the writer.

use std::sync::Arc;

use bytes::Bytes;
use thalweg_types::{BlobRef, Generation, Lsn};

use crate::{
    crc::crc32c,
    errors::{Corruption, Explain, ReadError},
    format::{DATA_START, Damage},
    log::Log,
    records::Records,
};

impl Log {
    /// Iterates over records from `lsn` to the end as of the call.
    pub fn records_from(&self, lsn: Lsn) -> Result<Records, ReadError> {
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
        Ok(Records::new(&segments[at..], lsn))
    }

    /// Extends an iteration of [`records_from`](Self::records_from) to the current end of the log. It reads
    /// no record twice, so it can follow the log, if it is called before the segments it still needs are
    /// freed.
    ///
    /// # Errors
    /// [`ReadError::Compacted`] if segments between the end of the iteration and the next existing segment
    /// were freed.
    pub fn extend_records(&self, records: &mut Records) -> Result<(), ReadError> {
        records.extend(&self.shared().table.load_full())
    }

    /// Iterates over the records of one segment that can be read.
    pub fn segment_records(&self, generation: Generation) -> Result<Records, ReadError> {
        let table = self.shared().table.load_full();
        let segment = table.find(generation).ok_or(ReadError::Gone { generation })?;
        Ok(Records::of_segment(segment))
    }

    /// Reads bytes by reference and verifies their checksum.
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
        let bytes = segment.file.read_new_at(blob.len as usize, blob.offset.into()).explain("read", &segment.path)?;
        let crc = crc32c(&bytes);
        if crc != blob.crc {
            let damage = Damage::new("checksum of referenced bytes", blob.crc, crc);
            return Err(Corruption::at(&segment.path, blob.offset, damage).into());
        }
        Ok(bytes.into())
    }
}
