//! The stores that the backends suite compares: each of the engine's storage backends behind the engine's log, each
//! backend alone, and other systems' stores.

use std::path::Path;

use thalweg_engine::{BackendKind, Compaction, Options};

use super::bare_backend::BareBackend;
use crate::{
    BenchError,
    engine::{self, Contender, KvSubject, Level, StoreOptions},
};

/// Way in which a store makes a write durable before it acknowledges the write: by the engine's log, or by the backend
/// itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, clap::ValueEnum)]
pub enum Mode {
    /// The engine's log is synced before a write is acknowledged. Concurrent writers share one fsync. The backend is
    /// not synced; after a crash the engine replays the log into it.
    BehindLog,
    /// The backend runs without the engine, and syncs each batch of writes. Concurrent writers share no fsync.
    PerBatch,
}

impl Mode {
    /// All modes: behind the log, and synced for each batch.
    pub const ALL: [Self; 2] = [Self::BehindLog, Self::PerBatch];

    /// Returns the name under which reports show the mode.
    pub const fn name(self) -> &'static str {
        match self {
            Self::BehindLog => "behind the log",
            Self::PerBatch => "synced per batch",
        }
    }
}

/// A store that the suite measures, in one mode.
pub(super) struct Subject<'a> {
    /// Name of the measured Thalweg backend, or of the measured store of another system.
    pub name: String,
    /// Way in which the store makes a write durable before it acknowledges the write.
    pub mode: Mode,
    contender: SubjectKind<'a>,
}

enum SubjectKind<'a> {
    Engine(BackendKind),
    BareBackend(BareBackend),
    Peer(&'a dyn Contender),
}

/// Size of a log segment in bytes. A new store fills small segments with zeroes quickly, so this does not extend into
/// the timed part.
const SEGMENT_BYTES: u32 = 16 << 20;

impl<'a> Subject<'a> {
    /// Describes one of Thalweg's own backends as the measured store.
    pub(super) fn own(backend: BackendKind, mode: Mode) -> Self {
        let contender = match mode {
            Mode::BehindLog => SubjectKind::Engine(backend),
            Mode::PerBatch => SubjectKind::BareBackend(BareBackend { backend }),
        };
        Self { name: backend.name().to_owned(), mode, contender }
    }

    /// Describes the store of another system as the measured store. It syncs each write.
    pub(super) fn peer(contender: &'a dyn Contender) -> Self {
        Self { name: contender.name().to_owned(), mode: Mode::PerBatch, contender: SubjectKind::Peer(contender) }
    }

    /// Describes how the store works, for the head of the report.
    pub(super) fn describe(&self) -> String {
        match &self.contender {
            SubjectKind::Engine(backend) => format!("{}: the engine, durability disk", backend.name()),
            SubjectKind::BareBackend(alone) => alone.describe(),
            SubjectKind::Peer(peer) => peer.describe(),
        }
    }

    /// Opens a new store in the empty directory `dir`.
    pub(super) fn open(&self, dir: &Path, cache_bytes: u64) -> Result<Box<dyn KvSubject>, BenchError> {
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
