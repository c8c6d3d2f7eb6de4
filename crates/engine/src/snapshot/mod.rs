//! Snapshots: the state, or what was written since an LSN, as bytes that any directory can begin with.
//!
//! Owns: taking one ([`Database::snapshot`]), reading and checking one ([`verify`], [`survey`]), beginning a
//! directory with some ([`restore`]). Does not own: files, directories of backups, sockets; those who take a
//! snapshot write its chunks where they like.
//!
//! ```text
//! full       begin | rows of one view, in order, with the bytes that they point at ... | end
//! increment  begin | entries of the log from an LSN on, in order ...                   | end
//! ```
//! Invariants: a full snapshot is of one view, so of one moment between two entries; everything in a snapshot
//! was on disk before its first chunk was given out, so that no power loss takes from the node what a backup
//! of it has; nothing of the node itself (where bytes lie, who votes, what the log can tell) is in it.
//! While one is open no segment of the log is freed, unless the disk is full.

mod chunk;
mod error;
mod format;
mod gather;
mod pins;
mod plan;
mod read;
mod restore;

use std::{
    collections::VecDeque,
    io::{self, Write},
    sync::Arc,
};

use bytes::Bytes;
use thalweg_types::{
    Lsn,
    limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_REWIND_CHUNKS},
};

use self::{
    chunk::{Link, Sealer},
    format::ChunkKind,
    gather::{Cursor, Gathered, Gathering, Source},
    pins::Pin,
};
use crate::database::{Database, Inner};

pub use error::{RestoreError, SnapshotError, SnapshotReadError};
pub use format::{Compression, EntryId, PartKind, SnapshotInfo, Totals};
pub(crate) use pins::Pins;
pub use plan::{Part, RestoreTo, chain};
pub use read::{PartialSnapshot, Verified, survey, verify};
pub(crate) use restore::is_unfinished;
pub use restore::{RestoreProgress, Restored, restore, restore_on};

/// What to take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// Only what was written since; `None`: all of the state.
    pub since: Option<Lsn>,
    /// How the chunks are compressed.
    pub compression: Compression,
    /// Bytes that a chunk gathers, at most [`SNAPSHOT_CHUNK_BYTES`].
    pub chunk_bytes: usize,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { since: None, compression: Compression::default(), chunk_bytes: SNAPSHOT_CHUNK_BYTES }
    }
}

/// A snapshot that is being taken: gives one chunk after the other.
///
/// One thread of its own reads ahead by a chunk or two; compression is done by whoever asks for the next one.
/// Memory: about four chunks. Dropping it gives everything back.
pub struct Snapshot {
    info: SnapshotInfo,
    estimated_rows: u64,
    chunk_bytes: usize,
    source: Source,
    sealer: Sealer,
    gathering: Option<Gathering>,
    next: Cursor,
    /// What comes before each of the latest chunks, the oldest first.
    cursors: VecDeque<(Link, Cursor)>,
    _pin: Pin,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("info", &self.info).field("next", &self.sealer.link).finish_non_exhaustive()
    }
}

impl Database {
    /// Begins a snapshot of what is applied now. Writes go on meanwhile.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<Snapshot, SnapshotError> {
        Snapshot::begin(&self.inner, options)
    }
}

impl Snapshot {
    fn begin(inner: &Arc<Inner>, options: &SnapshotOptions) -> Result<Self, SnapshotError> {
        let pin = inner.snapshots.pin()?;
        let (source, info) = match options.since {
            None => Source::of_state(inner)?,
            Some(since) => Source::of_log(inner, since)?,
        };
        inner.open.log.sync_through(info.applied.lsn).map_err(|error| SnapshotError::Log(error.to_string()))?;
        let estimated_rows = match info.kind {
            PartKind::Full => inner.open.backend.stats().estimated_keys,
            PartKind::Increment => 0,
        };
        Ok(Self {
            info,
            estimated_rows,
            chunk_bytes: options.chunk_bytes.clamp(1, SNAPSHOT_CHUNK_BYTES),
            source,
            sealer: Sealer::new(options.compression)?,
            gathering: None,
            next: Cursor::Begin,
            cursors: VecDeque::new(),
            _pin: pin,
        })
    }

    /// What it is of.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.info
    }

    /// About how many rows there are, for a progress bar; 0 if nobody knows.
    #[must_use]
    pub fn estimated_rows(&self) -> u64 {
        self.estimated_rows
    }

    /// What has been given out.
    #[must_use]
    pub fn so_far(&self) -> Totals {
        self.next.totals()
    }

    /// Number of the chunk that comes next.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.sealer.link.number
    }

    /// The next chunk; `None` after the last.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let before = (self.sealer.link, self.next.clone());
        let sealed = match &self.next {
            Cursor::Done(_) => return Ok(None),
            Cursor::Begin => {
                let sealed = self.sealer.seal(ChunkKind::Begin, &self.info.encode())?;
                self.next = self.source.first();
                sealed
            }
            Cursor::Rows(..) | Cursor::Entries(..) => {
                let gathering = match &self.gathering {
                    Some(gathering) => gathering,
                    None => self.gathering.insert(Gathering::start(&self.source, &self.next, self.chunk_bytes)?),
                };
                let Gathered { kind, plain, after } = gathering.next()?;
                let sealed = self.sealer.seal(kind, &plain)?;
                gathering.give_back(plain);
                self.next = after;
                sealed
            }
            Cursor::End(totals) => {
                let sealed = self.sealer.seal(ChunkKind::End, &totals.encode())?;
                self.next = Cursor::Done(*totals);
                self.gathering = None;
                sealed
            }
        };
        self.cursors.push_back(before);
        if self.cursors.len() > SNAPSHOT_REWIND_CHUNKS {
            self.cursors.pop_front();
        }
        Ok(Some(sealed))
    }

    /// Goes back, so that this chunk comes next, the same as the first time.
    ///
    /// # Errors
    /// [`SnapshotError::ChunkGone`] if it lies further back than [`SNAPSHOT_REWIND_CHUNKS`], or ahead.
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
            self.gathering = None;
            (self.sealer.link, self.next) = (link, cursor);
        }
        Ok(())
    }

    /// Writes all that is left.
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

    /// All of it, for small ones.
    pub fn into_bytes(mut self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, &mut |_| {})?;
        Ok(bytes)
    }
}

fn stopped() -> io::Error {
    io::Error::other("the thread that reads the state has stopped")
}
