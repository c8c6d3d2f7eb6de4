//! The journal's file.
//!
//! Owns: the bytes of the file, its recovery, and the write and sync of each record. Does not own: the content of
//! records, or the time at which they are dropped (`mod`).
//!
//! ```text
//! file    := header | zeroes up to 4096 | record ...
//! header  := "THWGJRN1" | generation u64 | crc u32
//! record  := magic u32 | len u32 | number u64 | crc u32 | 0 u32 | len bytes | zeroes up to a multiple of 8
//! ```
//! Little-endian. The header's crc covers the 16 bytes before it; a record's covers the generation, `len`, `number`
//! and its bytes. Records are numbered from 0. A new generation invalidates all records of the previous one with
//! one write of one sector, so the file is reused without being emptied.
//!
//! Invariants: after the last record of the generation, the file contains zeroes or records of older generations.
//! An invalid record ends the journal. If a later record of the same generation is valid, that is corruption,
//! because each record is on disk before the next is written. The file is zero-filled ahead of the records, because
//! a sync of a growing file takes nearly twice as long.
//!
//! An open writes the header and the records again, and syncs the file's name. A failed sync may have left them in the
//! memory of the kernel only, and a killed process may not have synced the name.

use std::{io, sync::Arc};

use thalweg_disk::{Disk, File};

use crate::{
    backend::BackendError,
    checksum::crc32c,
    files::{create_dir, io_error},
};

const MAGIC: [u8; 8] = *b"THWGJRN1";
const RECORD_MAGIC: u32 = 0x4a52_4e44;
const HEADER_BYTES: usize = 20;
const RECORDS_AT: u64 = 4096;
const RECORD_HEADER_BYTES: usize = 24;
/// Number of bytes of zeroes by which the journal file grows in one step.
const GROW_BYTES: u64 = 4 << 20;
/// Zeroes with which the file is filled, one slice of this size at a time. Larger writes would make the kernel use
/// large page groups (folios), which slow down small writes later.
static ZEROES: [u8; 64 * 1024] = [0; 64 * 1024];

/// The open journal file, to which records can be appended.
#[derive(Debug)]
pub(super) struct JournalFile {
    file: Arc<dyn File>,
    name: String,
    generation: u64,
    next_number: u64,
    /// Byte offset in the file at which the next record will be written.
    end: u64,
    /// Byte offset in the file up to which it is filled with zeroes or records and synced.
    filled: u64,
    record: Vec<u8>,
}

impl JournalFile {
    /// Opens or creates the journal file, and calls `replay` with the bytes of each record in order.
    pub(super) fn open(
        disk: &dyn Disk,
        dir: &str,
        replay: &mut dyn FnMut(&[u8]) -> Result<(), BackendError>,
    ) -> Result<Self, BackendError> {
        create_dir(disk, dir)?;
        let path = format!("{dir}/journal");
        match disk.open(&path) {
            Ok(file) => {
                disk.sync_dir(dir).map_err(io_error("sync the name of the journal"))?;
                Self::recover(file, path, replay)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Self::create(disk, dir, path),
            Err(error) => Err(io_error("open the journal")(error)),
        }
    }

    fn create(disk: &dyn Disk, dir: &str, path: String) -> Result<Self, BackendError> {
        let tmp = format!("{path}.tmp");
        disk.remove_if_there(&tmp).map_err(io_error("remove an unfinished file"))?;
        let file = disk.create(&tmp).map_err(io_error("create the journal"))?;
        let mut journal =
            Self { file, name: path, generation: 1, next_number: 0, end: RECORDS_AT, filled: 0, record: Vec::new() };
        journal.fill(RECORDS_AT)?;
        journal.write_header()?;
        disk.rename(&tmp, &journal.name).map_err(io_error("create the journal"))?;
        disk.sync_dir(dir).map_err(io_error("create the journal"))?;
        Ok(journal)
    }

    fn recover(
        file: Arc<dyn File>,
        name: String,
        replay: &mut dyn FnMut(&[u8]) -> Result<(), BackendError>,
    ) -> Result<Self, BackendError> {
        let len = file.len().map_err(io_error("read the journal"))?;
        let mut bytes = vec![0; usize::try_from(len).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut bytes, 0).map_err(io_error("read the journal"))?;
        let generation = decode_header(&bytes).ok_or_else(|| BackendError::corrupt(&name, "its header is damaged"))?;
        let (mut at, mut number) = (RECORDS_AT as usize, 0);
        while let Some(record) = decode_record(&bytes, at, generation).filter(|record| record.number == number) {
            replay(record.payload)?;
            at += record.bytes();
            number += 1;
        }
        let mut later = (at + 8..bytes.len()).step_by(8);
        if let Some(offset) =
            later.find(|offset| decode_record(&bytes, *offset, generation).is_some_and(|record| record.number > number))
        {
            let message = format_args!("the record at {at} is damaged, but a valid record follows at {offset}");
            return Err(BackendError::corrupt(&name, message));
        }
        let journal =
            Self { file, name, generation, next_number: number, end: at as u64, filled: len, record: Vec::new() };
        // The header comes first: records of its generation count only with it.
        journal.write_header()?;
        journal.write(&bytes[RECORDS_AT as usize..at], RECORDS_AT)?;
        // A torn record must not become valid later because of the records written before it.
        let torn = bytes[at..].iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        journal.zero(at as u64, at as u64 + torn as u64)?;
        journal.file.sync_data().map_err(io_error("sync the journal"))?;
        Ok(journal)
    }

    /// Writes a record to the file and syncs the file.
    pub(super) fn append(&mut self, payload: &[u8]) -> Result<(), BackendError> {
        let len = u32::try_from(payload.len()).map_err(|_| BackendError::BadBatch("it is larger than 4 GiB"))?;
        self.record.clear();
        self.record.extend_from_slice(&RECORD_MAGIC.to_le_bytes());
        self.record.extend_from_slice(&len.to_le_bytes());
        self.record.extend_from_slice(&self.next_number.to_le_bytes());
        let crc = crc32c(&[&self.generation.to_le_bytes(), &self.record[4..16], payload]);
        self.record.extend_from_slice(&crc.to_le_bytes());
        self.record.extend_from_slice(&[0; 4]);
        self.record.extend_from_slice(payload);
        self.record.resize(self.record.len().next_multiple_of(8), 0);
        let end = self.end + self.record.len() as u64;
        self.fill(end)?;
        self.file.write_all_at(&self.record, self.end).map_err(io_error("write the journal"))?;
        self.file.sync_data().map_err(io_error("sync the journal"))?;
        self.end = end;
        self.next_number += 1;
        Ok(())
    }

    /// Invalidates all records of the journal, so that the journal is empty again.
    pub(super) fn restart(&mut self) -> Result<(), BackendError> {
        self.generation += 1;
        self.next_number = 0;
        self.end = RECORDS_AT;
        self.write_header()
    }

    /// Returns the size of all records in the journal in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.end - RECORDS_AT
    }

    fn write_header(&self) -> Result<(), BackendError> {
        let mut header = MAGIC.to_vec();
        header.extend_from_slice(&self.generation.to_le_bytes());
        let crc = crc32c(&[&header]);
        header.extend_from_slice(&crc.to_le_bytes());
        self.file.write_all_at(&header, 0).map_err(io_error("write the journal"))?;
        self.file.sync_data().map_err(io_error("sync the journal"))
    }

    /// Fills the file with zeroes up to the byte offset `end` or beyond, and syncs it.
    fn fill(&mut self, end: u64) -> Result<(), BackendError> {
        if end <= self.filled {
            return Ok(());
        }
        let target = end.next_multiple_of(GROW_BYTES);
        self.zero(self.filled, target)?;
        self.file.sync_all().map_err(io_error("grow the journal"))?;
        self.filled = target;
        Ok(())
    }

    /// Writes bytes at the byte offset `at`, one slice at a time, without a sync.
    fn write(&self, bytes: &[u8], mut at: u64) -> Result<(), BackendError> {
        for piece in bytes.chunks(ZEROES.len()) {
            self.file.write_all_at(piece, at).map_err(io_error("write the journal"))?;
            at += piece.len() as u64;
        }
        Ok(())
    }

    fn zero(&self, from: u64, to: u64) -> Result<(), BackendError> {
        let mut at = from;
        while at < to {
            let len = (to - at).min(ZEROES.len() as u64);
            self.file.write_all_at(&ZEROES[..len as usize], at).map_err(io_error("grow the journal"))?;
            at += len;
        }
        Ok(())
    }
}

struct Record<'a> {
    number: u64,
    payload: &'a [u8],
}

impl Record<'_> {
    fn bytes(&self) -> usize {
        (RECORD_HEADER_BYTES + self.payload.len()).next_multiple_of(8)
    }
}

fn decode_header(bytes: &[u8]) -> Option<u64> {
    let header: &[u8; HEADER_BYTES] = bytes.first_chunk()?;
    let generation = u64::from_le_bytes(header[8..16].try_into().ok()?);
    let is_valid = header[..8] == MAGIC && header[16..] == crc32c(&[&header[..16]]).to_le_bytes();
    (is_valid && bytes.len() as u64 >= RECORDS_AT).then_some(generation)
}

fn decode_record(bytes: &[u8], at: usize, generation: u64) -> Option<Record<'_>> {
    let (header, rest) = bytes.get(at..)?.split_at_checked(RECORD_HEADER_BYTES)?;
    if header[..4] != RECORD_MAGIC.to_le_bytes() {
        return None;
    }
    let len = u32::from_le_bytes(header[4..8].try_into().ok()?);
    let number = u64::from_le_bytes(header[8..16].try_into().ok()?);
    let payload = rest.get(..len as usize)?;
    let expected = crc32c(&[&generation.to_le_bytes(), &header[4..16], payload]);
    (header[16..20] == expected.to_le_bytes()).then_some(Record { number, payload })
}
