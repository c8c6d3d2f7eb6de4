//! Snapshots: all of the state, or all changes since an LSN, as bytes from which a new directory can be created.
//!
//! Owns: taking snapshots ([`Database::snapshot`]), reading and checking them ([`verify`], [`survey`]), creating a
//! directory from them ([`restore`]), and installing them into a running database ([`Install`]). Does not own: files,
//! directories of backups, or sockets; the caller writes the chunks of a snapshot to a destination of its choice.
//!
//! ```text
//! full       begin | rows of one view, in order, with the bytes that they point at ... | end
//! increment  begin | entries of the log from an LSN on, in order ...                   | end
//! ```
//! Invariants: a full snapshot is of one view, and therefore of one moment between two entries. Everything in a
//! snapshot was on disk before its first chunk was returned, so a power loss cannot take data from the node that a
//! backup of it has. A snapshot contains nothing that is specific to the node (positions of bytes, votes, the history
//! of the log). While a snapshot is open no segment of the log is freed, unless the disk is full.
//!
//! There is deliberately no asynchronous interface. Each chunk is a megabyte that is read from disk and compressed,
//! and beginning a snapshot waits for an fsync, so a future would only move blocking work to a blocking thread. A
//! [`Snapshot`] may move between threads. In an async runtime, begin the snapshot and request its chunks on threads
//! for blocking work (`spawn_blocking`), as the server does.

mod chunk;
mod error;
mod file;
mod format;
mod gather;
pub(crate) mod install;
mod loader;
mod pace;
mod pins;
mod pipeline;
mod plan;
mod read;
mod restore;
mod stats;
mod stop;
pub(crate) mod unfinished;

use std::{
    collections::VecDeque,
    io::{self, Write},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use self::{
    chunk::{Link, Packer},
    format::{Begin, ChunkKind},
    gather::{Cursor, Source},
    pins::Pin,
    pipeline::{PATIENCE, Pipeline, Ready},
    stats::SnapshotCounter,
};
use bytes::Bytes;
use thalweg_state::membership::AppliedMembership;
use thalweg_types::{
    Lsn,
    limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_REWIND_CHUNKS},
};

use crate::{database::Database, inner::Inner, open_parts::Mode, priority::Priority};

pub use error::{RestoreError, SnapshotError, SnapshotReadError};
pub use file::SnapshotFile;
pub use format::{Compression, EntryId, PartKind, SnapshotInfo, Totals};
pub use install::{Install, InstallError, InstallProgress, Installed};
pub(crate) use pins::Pins;
pub use plan::{Part, RestoreTo, chain};
pub use read::{PartialSnapshot, Verified, survey, verify};

pub use restore::{RestoreProgress, Restored, restore, restore_on};
pub(crate) use stats::Counters;
pub use stats::SnapshotStats;

/// Options for taking a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// LSN at which an increment begins; `None` for a full snapshot of the state.
    pub since: Option<Lsn>,
    /// Compression of the chunks.
    pub compression: Compression,
    /// Number of bytes of rows or entries in a chunk before compression, at most [`SNAPSHOT_CHUNK_BYTES`].
    pub chunk_bytes: usize,
    /// Maximum number of bytes that the snapshot reads per second, before compression, while clients write; `None` for
    /// no maximum. A lower pace uses less processor time, but the snapshot takes longer, and so delays the freeing of
    /// log for longer. The lowest pace is four chunks per second.
    pub pace: Option<NonZeroU64>,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { since: None, compression: Compression::default(), chunk_bytes: SNAPSHOT_CHUNK_BYTES, pace: None }
    }
}

/// A snapshot in progress, which returns one chunk after the other.
///
/// A snapshot has threads of its own with idle priority, which read and compress chunks before the caller requests
/// them; in a database in stepped mode it has none. Memory: six chunks, and six more for each compressing thread after the
/// first, of which there are at most four. Dropping the snapshot releases all of it.
pub struct Snapshot {
    begin: Begin,
    estimated_rows: u64,
    chunk_bytes: usize,
    compression: Compression,
    pace: Option<NonZeroU64>,
    source: Source,
    pipeline: Option<Pipeline>,
    /// Priority of the threads that read and compress.
    priority: Priority,
    /// In stepped mode, the caller's thread does the work.
    mode: Mode,
    /// Longest time that the threads may take for a chunk at idle priority. After it they are started again with a low
    /// priority.
    patience: Duration,
    link: Link,
    next: Cursor,
    /// Positions before each of the latest chunks, the oldest first, to which the snapshot can be rewound.
    cursors: VecDeque<(Link, Cursor)>,
    counted: SnapshotCounter,
    _pin: Pin,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("info", &self.begin.info).field("next", &self.link).finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a snapshot of the present applied state, or of the changes since an LSN. Writes go on concurrently.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<Snapshot, SnapshotError> {
        let mut counted = SnapshotCounter::begin(&self.inner.snapshot_counters);
        match Snapshot::source(&self.inner, options) {
            Ok((pin, source, begin)) => Ok(Snapshot::begin(&self.inner, options, pin, source, begin, counted)),
            Err(error) => {
                counted.failed();
                Err(error)
            }
        }
    }
}

impl Snapshot {
    fn source(inner: &Arc<Inner>, options: &SnapshotOptions) -> Result<(Pin, Source, Begin), SnapshotError> {
        let pin = inner.snapshots.pin()?;
        let (source, begin) = match options.since {
            None => Source::of_state(inner)?,
            Some(since) => Source::of_log(inner, since)?,
        };
        inner.open.log.sync_through(begin.info.applied.lsn).map_err(|error| SnapshotError::Log(error.to_string()))?;
        Ok((pin, source, begin))
    }

    fn begin(
        inner: &Arc<Inner>,
        options: &SnapshotOptions,
        pin: Pin,
        source: Source,
        begin: Begin,
        counted: SnapshotCounter,
    ) -> Self {
        let estimated_rows = match begin.info.kind {
            PartKind::Full => inner.open.backend.stats().estimated_keys,
            PartKind::Increment => 0,
        };
        Self {
            begin,
            estimated_rows,
            chunk_bytes: options.chunk_bytes.clamp(1, SNAPSHOT_CHUNK_BYTES),
            compression: options.compression,
            pace: options.pace,
            source,
            pipeline: None,
            priority: Priority::Idle,
            mode: inner.open.mode,
            patience: PATIENCE,
            link: Link::default(),
            next: Cursor::Begin,
            cursors: VecDeque::new(),
            counted,
            _pin: pin,
        }
    }

    /// Description of the snapshot, as stored in its first chunk.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.begin.info
    }

    /// Membership of the replication group as of the snapshot, and the entry that contained it; `None` in an increment.
    #[must_use]
    pub fn membership(&self) -> Option<&AppliedMembership> {
        self.begin.membership.as_ref()
    }

    /// Approximate number of rows that the snapshot will have, for a progress bar; 0 if there is no estimate.
    #[must_use]
    pub fn estimated_rows(&self) -> u64 {
        self.estimated_rows
    }

    /// Numbers of rows, entries and bytes in the chunks returned so far.
    #[must_use]
    pub fn so_far(&self) -> Totals {
        self.next.totals()
    }

    /// Number of the chunk that [`next_chunk`](Self::next_chunk) returns next.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.link.number
    }

    /// Returns the next chunk of the snapshot; `None` after the last chunk.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let made = self.make_next();
        if made.is_err() {
            self.counted.failed();
        }
        let chunk = made?;
        self.counted.count_chunk(chunk.as_ref().map_or(0, Bytes::len));
        if matches!(self.next, Cursor::Done(_)) {
            self.counted.taken();
        }
        Ok(chunk)
    }

    fn make_next(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let before = (self.link, self.next.clone());
        let sealed = match &self.next {
            Cursor::Done(_) => return Ok(None),
            Cursor::Begin => {
                let sealed = self.seal(ChunkKind::Begin, &self.begin.encode())?;
                self.next = self.source.first();
                sealed
            }
            Cursor::Rows(..) | Cursor::Entries(..) => {
                let Ready { kind, packed, after } = self.next_ready()?;
                self.next = after;
                self.link.seal(kind, packed)
            }
            Cursor::End(totals) => {
                let totals = *totals;
                let sealed = self.seal(ChunkKind::End, &totals.encode())?;
                self.next = Cursor::Done(totals);
                self.pipeline = None;
                sealed
            }
        };
        self.cursors.push_back(before);
        if self.cursors.len() > SNAPSHOT_REWIND_CHUNKS {
            self.cursors.pop_front();
        }
        Ok(Some(sealed))
    }

    fn next_ready(&mut self) -> Result<Ready, SnapshotError> {
        loop {
            let (patience, priority) = match self.priority {
                Priority::Idle => (self.patience, Priority::Idle),
                Priority::Low => (Duration::MAX, Priority::Low),
            };
            let pipeline = match &mut self.pipeline {
                Some(pipeline) => pipeline,
                none => {
                    let (source, next, pace) = (&self.source, &self.next, self.pace);
                    let (chunk_bytes, compression) = (self.chunk_bytes, self.compression);
                    none.insert(match self.mode {
                        Mode::Threaded => Pipeline::start(source, next, chunk_bytes, compression, priority, pace)?,
                        Mode::Stepped => Pipeline::here(source, next, chunk_bytes, compression)?,
                    })
                }
            };
            if let Some(ready) = pipeline.next(patience)? {
                return Ok(ready);
            }
            self.priority = Priority::Low;
            self.pipeline = None;
        }
    }

    /// Builds the first or the last chunk, which have a few bytes.
    fn seal(&mut self, kind: ChunkKind, plain: &[u8]) -> io::Result<Bytes> {
        Ok(self.link.seal(kind, Packer::new(self.compression)?.pack(plain)?))
    }

    /// Rewinds the snapshot, so that it returns the chunk with this number next, with the same bytes as the first
    /// time.
    ///
    /// # Errors
    /// [`SnapshotError::ChunkGone`] if the chunk lies further back than [`SNAPSHOT_REWIND_CHUNKS`], or ahead.
    pub fn resume_at(&mut self, chunk: u64) -> Result<(), SnapshotError> {
        let next = self.next_number();
        if chunk == next {
            return Ok(());
        }
        let oldest = self.cursors.front().map_or(next, |(link, _)| link.number);
        if chunk < oldest || chunk > next {
            return Err(SnapshotError::ChunkGone { chunk, oldest, next });
        }
        self.cursors.truncate((chunk - oldest) as usize + 1);
        if let Some((link, cursor)) = self.cursors.pop_back() {
            self.pipeline = None;
            (self.link, self.next) = (link, cursor);
        }
        Ok(())
    }

    /// Writes all remaining chunks to `out`. Calls `progress` after each chunk. Returns the totals of the snapshot.
    pub fn write_to(
        &mut self,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(&Totals),
    ) -> Result<Totals, SnapshotError> {
        while let Some(chunk) = self.next_chunk()? {
            out.write_all(&chunk)?;
            progress(&self.next.totals());
        }
        out.flush()?;
        Ok(self.next.totals())
    }

    /// Returns all remaining chunks together. Use it for small snapshots.
    pub fn into_bytes(mut self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, &mut |_| {})?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::Durability;

    use super::*;
    use crate::options::Options;

    #[test]
    fn a_snapshot_whose_idle_threads_get_nothing_goes_on_with_others_and_is_the_same() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), Options::default()).unwrap().with_durability(Durability::Os);
        let keyspace = db.keyspace("k").unwrap();
        for number in 0..2000_u32 {
            keyspace.put(&number.to_be_bytes(), &number.to_be_bytes().repeat(100)).unwrap();
        }
        let options = SnapshotOptions { chunk_bytes: 50_000, ..SnapshotOptions::default() };
        let patient = db.snapshot(&options).unwrap().into_bytes().unwrap();
        for after in [1, 5] {
            let mut hasty = db.snapshot(&options).unwrap();
            let mut bytes = Vec::new();
            while let Some(chunk) = hasty.next_chunk().unwrap() {
                bytes.extend_from_slice(&chunk);
                if hasty.next_number() == after {
                    hasty.patience = Duration::ZERO;
                }
            }
            assert!(bytes == patient);
            assert!(after > 1 || hasty.priority == Priority::Low, "the first chunk cannot be ready immediately");
        }
    }
}
