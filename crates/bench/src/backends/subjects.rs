//! The compared stores: each backend behind the log, each backend alone, and peers.

use std::path::Path;

use thalweg_engine::{BackendKind, Compaction, Options};

use super::bare_backend::BareBackend;
use crate::{
    BenchError,
    engine::{self, Contender, KvSubject, Level, StoreOptions},
};

/// Cost of a write before it is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Mode {
    /// An fsync of the log, shared by concurrent writers; the backend is not synced, and replayed after a crash.
    BehindLog,
    /// The backend alone, which syncs each batch; nothing is shared.
    PerBatch,
}

impl Mode {
    /// Both modes.
    pub const ALL: [Self; 2] = [Self::BehindLog, Self::PerBatch];

    /// Returns the mode's name in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BehindLog => "behind the log",
            Self::PerBatch => "synced per batch",
        }
    }
}

/// A store to be measured.
pub struct Subject<'a> {
    /// The backend's name, or the peer's.
    pub name: String,
    /// Cost of its writes.
    pub mode: Mode,
    contender: SubjectKind<'a>,
}

enum SubjectKind<'a> {
    Engine(BackendKind),
    BareBackend(BareBackend),
    Peer(&'a dyn Contender),
}

/// Small segments: a fresh store is prepared quickly, and its zeroes don't run into the timed part.
const SEGMENT_BYTES: u32 = 16 << 20;

impl<'a> Subject<'a> {
    /// Creates a subject of one of our backends.
    pub fn own(backend: BackendKind, mode: Mode) -> Self {
        let contender = match mode {
            Mode::BehindLog => SubjectKind::Engine(backend),
            Mode::PerBatch => SubjectKind::BareBackend(BareBackend { backend }),
        };
        Self { name: backend.name().to_owned(), mode, contender }
    }

    /// Creates a subject of another store, which syncs each write.
    pub fn peer(contender: &'a dyn Contender) -> Self {
        Self { name: contender.name().to_owned(), mode: Mode::PerBatch, contender: SubjectKind::Peer(contender) }
    }

    /// Describes the store's make.
    pub fn describe(&self) -> String {
        match &self.contender {
            SubjectKind::Engine(backend) => format!("{}: the engine, durability disk", backend.name()),
            SubjectKind::BareBackend(alone) => alone.describe(),
            SubjectKind::Peer(peer) => peer.describe(),
        }
    }

    /// Opens a new store in an empty directory.
    pub fn open(&self, dir: &Path, cache_bytes: u64) -> Result<Box<dyn KvSubject>, BenchError> {
        let compaction = Compaction::Automatic;
        let options = StoreOptions { level: Level::Disk, cache_bytes, memtable_bytes: None, compaction };
        match &self.contender {
            SubjectKind::Engine(backend) => {
                let options = engine::engine_options(*backend, &options);
                let options = Options { segment_bytes: SEGMENT_BYTES, spare_segments: 2, ..options };
                engine::open(dir, options)
            }
            SubjectKind::BareBackend(alone) => alone.open(dir, &options),
            SubjectKind::Peer(peer) => peer.open(dir, &options),
        }
    }
}
