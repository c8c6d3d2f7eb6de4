//! A journal (write-ahead log) in front of a backend. It is for a state that is used without the node's log.
//!
//! Owns: [`Journaled`]. Each batch is written to the journal's file and synced before the backend behind the journal
//! applies the batch. At open, batches that the backend had not persisted are applied again. The memory and LSM
//! backends use it for [`SyncMode::PerBatch`](crate::SyncMode::PerBatch); redb and SQLite sync each batch themselves.
//! Does not own: the file's bytes (`file.rs`), or the backend.
//!
//! A state behind the node's log does not use the journal, because each write would be synced twice.
//!
//! Invariant: every applied batch is persisted by the backend or is in the journal. The journal restarts only after
//! a flush that persisted all its batches.

mod file;

use std::{
    ops::ControlFlow,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use bytes::Bytes;
use thalweg_disk::Disk;

use crate::backend::{
    Applied, Backend, BackendError, BackendHealth, BackendStats, BarrierFailed, Change, LogBarrier, VerifiedRows, View,
    WriteBatch,
};
use file::JournalFile;

/// Options of a [`Journaled`] backend.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JournalOptions {
    /// Directory of the journal, relative to the disk's root. Created if missing.
    pub dir: String,
    /// Size in bytes of all records in the journal after which the backend is flushed and the journal is emptied. A
    /// larger size takes more disk space, and more memory and time at open; a smaller size causes more flushes.
    pub max_bytes: u64,
}

impl JournalOptions {
    /// Creates the default options with the given directory.
    #[must_use]
    pub fn new(dir: impl Into<String>) -> Self {
        Self { dir: dir.into(), max_bytes: 64 << 20 }
    }
}

/// A backend with a journal in front of it; see the [module](self).
pub struct Journaled<B> {
    backend: B,
    barrier: Arc<dyn LogBarrier>,
    max_bytes: u64,
    journal: Mutex<Journal>,
}

struct Journal {
    file: JournalFile,
    payload: Vec<u8>,
    /// First failure of the journal. No write succeeds after a failure, because the content of the file is then
    /// unknown.
    failure: Option<BackendError>,
}

impl<B: Backend> std::fmt::Debug for Journaled<B> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journaled").field("backend", &self.backend).finish_non_exhaustive()
    }
}

/// Log barrier for the backend behind the journal. The barrier returns immediately, because the journal already
/// contains each applied batch.
struct InJournal;

impl LogBarrier for InJournal {
    fn sync_through(&self, _: thalweg_types::Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

impl<B: Backend> Journaled<B> {
    /// Opens the backend with the log barrier that `open` receives, and applies those batches of the journal that the
    /// backend has not persisted.
    pub fn open(
        disk: &dyn Disk,
        options: &JournalOptions,
        barrier: Arc<dyn LogBarrier>,
        open: impl FnOnce(Arc<dyn LogBarrier>) -> Result<B, BackendError>,
    ) -> Result<Self, BackendError> {
        let backend = open(Arc::new(InJournal))?;
        let mut batch = WriteBatch::new();
        let file = JournalFile::open(disk, &options.dir, &mut |payload| {
            let applied = decode(payload, &mut batch)?;
            let is_new = backend.applied().is_none_or(|known| known.lsn < applied.lsn);
            if is_new { backend.apply(&batch, applied) } else { Ok(()) }
        })?;
        let journal = Mutex::new(Journal { file, payload: Vec::new(), failure: None });
        Ok(Self { backend, barrier, max_bytes: options.max_bytes, journal })
    }

    fn lock(&self) -> MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self, journal: &mut Journal, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        self.barrier.sync_through(applied.lsn)?;
        encode(batch, applied, &mut journal.payload);
        journal.file.append(&journal.payload)?;
        self.backend.apply(batch, applied)?;
        if journal.file.bytes() > self.max_bytes {
            self.backend.flush()?;
            journal.file.restart()?;
        }
        Ok(())
    }
}

impl<B: Backend> Backend for Journaled<B> {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        batch.check()?;
        let mut journal = self.lock();
        if let Some(failure) = &journal.failure {
            return Err(BackendError::Failed(failure.to_string()));
        }
        let written = self.write(&mut journal, batch, applied);
        journal.failure = written.clone().err();
        written
    }

    fn applied(&self) -> Option<Applied> {
        self.backend.applied()
    }

    fn persisted(&self) -> Option<Applied> {
        self.backend.applied()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.backend.get(key)
    }

    fn make_room(&self, bytes: usize) -> Result<(), BackendError> {
        self.backend.make_room(bytes)
    }

    fn may_wait(&self) -> bool {
        self.backend.may_wait()
    }

    fn view(&self) -> Arc<dyn View> {
        self.backend.view()
    }

    fn compact(&self) -> Result<(), BackendError> {
        self.flush()?;
        self.backend.compact()
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        let mut journal = self.lock();
        if let Some(failure) = &journal.failure {
            return Err(failure.clone());
        }
        let persisted = self.backend.flush()?;
        // After a failed restart, the file on disk may still have the former generation. New records would be invalid
        // in it.
        let restarted = journal.file.restart();
        journal.failure = restarted.clone().err();
        restarted.map(|()| persisted)
    }

    fn maintain(&self) -> Result<(), BackendError> {
        self.backend.maintain()
    }

    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        self.backend.verify(step)
    }

    fn health(&self) -> BackendHealth {
        match &self.lock().failure {
            Some(failure) => BackendHealth::Failed(failure.to_string()),
            None => self.backend.health(),
        }
    }

    fn bytes_to_persist(&self) -> u64 {
        self.backend.bytes_to_persist()
    }

    fn reusable_bytes(&self) -> u64 {
        self.backend.reusable_bytes()
    }

    fn reclaim_space(&self) {
        self.backend.reclaim_space();
    }

    fn stats(&self) -> BackendStats {
        let mut stats = self.backend.stats();
        stats.disk_bytes += self.lock().file.bytes();
        stats
    }

    fn name(&self) -> &'static str {
        self.backend.name()
    }
}

/// Encodes a batch: the position `applied` (49 bytes), then for each change the key length, the value length (or
/// `u32::MAX` for a delete), the key and the value.
fn encode(batch: &WriteBatch, applied: Applied, out: &mut Vec<u8>) {
    out.clear();
    out.extend_from_slice(&applied.encode());
    for change in batch.changes() {
        let (key, value, value_len) = match change {
            Change::Put(key, value) => (key, value, value.len() as u32),
            Change::Delete(key) => (key, &b""[..], u32::MAX),
        };
        out.extend_from_slice(&(key.len() as u32).to_le_bytes());
        out.extend_from_slice(&value_len.to_le_bytes());
        out.extend_from_slice(key);
        out.extend_from_slice(value);
    }
}

fn decode(payload: &[u8], batch: &mut WriteBatch) -> Result<Applied, BackendError> {
    let corrupt = || BackendError::corrupt("the journal", "a record with a valid checksum does not decode");
    let (applied, changes) = payload.split_at_checked(Applied::ENCODED_BYTES).unwrap_or((payload, b""));
    let applied = Applied::decode(applied, corrupt)?;
    decode_changes(changes, batch).ok_or_else(corrupt)?;
    Ok(applied)
}

fn decode_changes(mut rest: &[u8], batch: &mut WriteBatch) -> Option<()> {
    batch.clear();
    while !rest.is_empty() {
        let (key_len, value_len);
        (key_len, rest) = take_u32(rest)?;
        (value_len, rest) = take_u32(rest)?;
        let (key, value);
        (key, rest) = rest.split_at_checked(key_len as usize)?;
        if value_len == u32::MAX {
            batch.delete(&[key]);
        } else {
            (value, rest) = rest.split_at_checked(value_len as usize)?;
            batch.put(&[key], &[value]);
        }
    }
    Some(())
}

fn take_u32(bytes: &[u8]) -> Option<(u32, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u32::from_le_bytes(*number), rest))
}
