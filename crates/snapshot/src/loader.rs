//! Loads the rows of a full snapshot into an empty state. The bytes that rows point to are appended to the log of the
//! new node.
//!
//! Owns: [`Loader`], which the engine uses for restores and installs. Does not own: the check of the snapshot's
//! contents (`read`), or the rows that describe the new node, which the engine adds.
//!
//! Memory: one batch of rows, in addition to the memtables of the backend. Invariant: the state has no valid position
//! before [`Loader::finish`], so a partly loaded state can be recognised.

use std::{io::IoSlice, sync::Arc};

use thalweg_log::{AppendError, Draft, Log, Purpose, RecordKind};
use thalweg_state::{
    machine::MachineError,
    portable::{self, PointerRow, RelocatedBytes, Row},
};
use thalweg_store::{Applied, Backend, BackendError, WriteBatch};
use thalweg_types::{Durability, Index, LogPosition, SpaceId, SpaceTime, Term, command::Move};

use crate::format::Item;

/// Maximum number of rows that are written to the backend in one batch.
const BATCH_ROWS: usize = 10_000;
const BATCH_BYTES: usize = 1 << 20;
/// Bytes of memory for memtables and caches that suffice to load a snapshot, however long it is.
pub const LEAST_MEMORY_BYTES: u64 = 4 << 20;

/// Error returned when the rows of a snapshot cannot be loaded into a new state.
#[derive(Debug)]
pub enum LoadError {
    /// The rows could not be written to the new state.
    State(MachineError),
    /// Bytes that rows point to could not be appended to the new log.
    Log(AppendError),
}

impl From<MachineError> for LoadError {
    fn from(error: MachineError) -> Self {
        Self::State(error)
    }
}

impl From<BackendError> for LoadError {
    fn from(error: BackendError) -> Self {
        Self::State(error.into())
    }
}

impl From<AppendError> for LoadError {
    fn from(error: AppendError) -> Self {
        Self::Log(error)
    }
}

/// Loads the rows of a full snapshot into an empty state.
pub struct Loader {
    log: Log,
    backend: Arc<dyn Backend>,
    /// Time that the loader writes into the log records that hold the bytes of rows.
    time: SpaceTime,
    batch: WriteBatch,
    batches: u64,
    placed: RelocatedBytes,
    payload: Vec<u8>,
    /// Size in bytes from which a batch of rows is persisted immediately instead of waiting in a memtable. With large
    /// memtables, this size exceeds the usual batch of about [`BATCH_BYTES`], so that only batches of unusually large
    /// rows reach it. With small memtables, usual batches reach it, too.
    flush_bytes: usize,
}

impl Loader {
    /// Creates a loader that fills an empty backend. `memtable_bytes` is the size of the backend's memtables in bytes.
    /// `time` is the time of the records that the loader appends to the log.
    #[must_use]
    pub fn new(log: Log, backend: Arc<dyn Backend>, time: SpaceTime, memtable_bytes: usize) -> Self {
        let (batch, placed) = (WriteBatch::new(), RelocatedBytes::default());
        let is_short = memtable_bytes as u64 <= LEAST_MEMORY_BYTES;
        let flush_bytes = if is_short { BATCH_BYTES / 4 } else { 2 * BATCH_BYTES };
        Self { log, backend, time, batch, batches: 0, placed, payload: Vec::new(), flush_bytes }
    }

    /// Loads a row. If the row points to bytes in the log, appends these bytes to the new log. Does nothing with a log
    /// entry.
    pub fn load(&mut self, item: &Item<'_>) -> Result<(), LoadError> {
        let Item::Row { key, value, bytes } = *item else { return Ok(()) };
        match (portable::sort(key, value)?, bytes) {
            (Row::Pointing(pointing), Some(bytes)) => {
                let at = self.append_bytes(&pointing, bytes)?;
                let pointer = self.placed.relocate(&pointing, at).encode();
                let (before, after) = (&value[..pointing.at], &value[pointing.at + pointer.len()..]);
                self.batch.put(&[key], &[before, &pointer, after]);
            }
            _ => self.batch.put(&[key], &[value]),
        }
        if self.batch.len() >= BATCH_ROWS || self.batch.byte_len() >= BATCH_BYTES {
            self.apply()?;
        }
        Ok(())
    }

    /// Appends to the log the bytes that a row points to, as a move record: a record that contains the bytes and names
    /// the row. By this name, the node finds the row when it later moves the bytes to free the segment.
    fn append_bytes(&mut self, pointing: &PointerRow<'_>, bytes: &[u8]) -> Result<LogPosition, LoadError> {
        self.payload.clear();
        Move::encode(&mut self.payload, &portable::without_position(&pointing.blob), &pointing.owner.target(), bytes);
        let draft = Draft {
            space: SpaceId::ZERO,
            kind: RecordKind::Move,
            term: Term::ZERO,
            index: Index::ZERO,
            time: self.time,
            payload: &[IoSlice::new(&self.payload)],
        };
        let at = self.log.append(&[draft], Durability::Os, Purpose::Data)?.payload_at;
        let bytes_at = (self.payload.len() - bytes.len()) as u32;
        Ok(LogPosition { offset: at.offset + bytes_at, ..at })
    }

    fn apply(&mut self) -> Result<(), LoadError> {
        self.batches += 1;
        // Backends distinguish states by this position. Its LSN is 0, because not all rows are loaded yet.
        let unfinished = Applied { index: Index(self.batches), ..Applied::default() };
        self.backend.apply(&self.batch, unfinished)?;
        if self.batch.byte_len() >= self.flush_bytes {
            // The batch is freed first, because the flush copies its rows once more.
            self.batch = WriteBatch::new();
            self.backend.flush()?;
        }
        self.batch.clear();
        Ok(())
    }

    /// Writes the remaining rows, the counts of live bytes in the log segments, and the rows that `add` adds. Records
    /// that the state has applied all log entries up to `applied`. The state is complete afterwards.
    pub fn finish(mut self, applied: Applied, add: impl FnOnce(&mut WriteBatch)) -> Result<(), LoadError> {
        self.placed.write(&mut self.batch);
        add(&mut self.batch);
        self.backend.apply(&self.batch, applied)?;
        Ok(())
    }
}
