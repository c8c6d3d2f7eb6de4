//! Work on the state files of a directory that is not open: verifying them, and rebuilding them from the log.
//!
//! Owns: [`verify`] and [`rebuild`]. Does not own: the verification itself, which is part of each backend, or the
//! replay.
//!
//! ```text
//! rebuild:   check that the log has all entries, and that no other node votes
//!            state/default/BACKEND -> state/default/BACKEND.old      rename
//!            replay of the whole log into a new state/default/BACKEND, flush
//!            remove state/default/BACKEND.old
//! ```
//! Invariant: the old state is removed only after the new one is complete and on disk. A rebuild that is interrupted
//! leaves the old state beside an incomplete new one. The next open completes the new one by replay, persists it and
//! removes the old one; the next rebuild starts again.

use std::{ops::ControlFlow, path::Path, sync::Arc};

use thalweg_disk::{Disk, RealDisk};
use thalweg_log::Log;
use thalweg_replica::check_sole_voter;
use thalweg_store::{BackendError, BarrierFailed, LogBarrier, VerifiedRows};
use thalweg_types::{Action, Classified, Clock, Lsn, SpaceId, SystemClock};

use crate::{
    backends::{self, BackendLocation},
    error::{OpenError, WriteError},
    identity::{Identity, Origin},
    open::{self, LOG_DIR, lock, random_seed, read_identity, read_state_dir},
    open_parts::{Mode, io_error},
    options::{BackendKind, Create, Options},
    state_dir::StateDir,
};

/// Result of verifying the state of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateVerified {
    /// Backend that stores the state.
    pub backend: BackendKind,
    /// Number of rows read, including overwritten and deleted versions of rows that the backend still stores.
    pub rows: u64,
    /// Number of bytes of the state that were read.
    pub bytes: u64,
}

/// Result of rebuilding the state of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StateRebuilt {
    /// Backend that stores the state.
    pub backend: BackendKind,
    /// Number of log records applied to the new state.
    pub records: u64,
    /// LSN up to which the log is applied, exclusive.
    pub lsn: Lsn,
}

/// Error returned when the state of a directory cannot be verified or rebuilt.
#[derive(Clone, Debug, thiserror::Error)]
pub enum StateFilesError {
    /// The directory, its log or its state could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The state is damaged or could not be read.
    #[error(transparent)]
    Backend(#[from] BackendError),
    /// The log no longer has all entries, so it cannot produce the state. Nothing was changed.
    #[error(
        "the log begins at LSN {first}, because the node has freed older entries, was restored from a backup, or has \
         installed a snapshot: the state can't be rebuilt from it. Restore the newest backup into a new directory"
    )]
    LogIncomplete {
        /// Oldest LSN that the log still has.
        first: Lsn,
    },
    /// The new state could not be written. The old state is kept beside it.
    #[error("the new state could not be written: {0}; free disk space, then run the command again")]
    Write(#[from] WriteError),
}

impl Classified for StateFilesError {
    fn code(&self) -> &'static str {
        match self {
            Self::Open(error) => error.code(),
            Self::Backend(error) => error.code(),
            Self::LogIncomplete { .. } => "log_incomplete",
            Self::Write(error) => error.code(),
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Open(error) => error.action(),
            Self::Backend(error) => error.action(),
            Self::LogIncomplete { .. } => Action::Fix,
            Self::Write(error) => error.action(),
        }
    }
}

/// Log barrier (called before a backend persists data) for a state that is only read: the log need not be synced.
struct NothingNew;

impl LogBarrier for NothingNew {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

fn disk_at(path: &Path) -> Result<Arc<dyn Disk>, OpenError> {
    if !path.join("IDENTITY").exists() {
        return Err(OpenError::Missing { path: path.to_owned() });
    }
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    Ok(Arc::new(disk))
}

fn identity_of(disk: &Arc<dyn Disk>, path: &Path) -> Result<Identity, OpenError> {
    read_identity(disk, path)?.ok_or_else(|| OpenError::Missing { path: path.to_owned() })
}

/// Checks that this node is the only voter. A rebuild replays the whole log alone. With other voters, replay would stop
/// at the entry that names them, before the new state is complete.
fn check_alone(log: &Log, path: &Path, identity: &Identity) -> Result<(), OpenError> {
    let Some(cluster) = identity.cluster else { return Ok(()) };
    if cluster.origin != Origin::Founded {
        return Err(OpenError::NotAlone { path: path.to_owned(), cluster: cluster.id });
    }
    Ok(check_sole_voter(log, SpaceId::ZERO, identity.node)?)
}

/// Reads and verifies the persisted state of the data directory at `path`. The directory must not be open. Calls
/// `progress` with the number of bytes read so far.
pub fn verify(
    path: impl AsRef<Path>,
    options: &Options,
    progress: &mut dyn FnMut(u64),
) -> Result<StateVerified, StateFilesError> {
    let path = path.as_ref();
    let disk = disk_at(path)?;
    let _lock = lock(&disk, path, Mode::Threaded)?;
    let backend = identity_of(&disk, path)?.backend;
    let state_dir = read_state_dir(BackendLocation::on(&disk), backend, path)?;
    let state = backends::open(&disk, backend, state_dir, Arc::new(NothingNew), options)?;
    let mut bytes = 0;
    let VerifiedRows { rows, bytes, .. } = state.verify(&mut |read| {
        bytes += read;
        progress(bytes);
        ControlFlow::Continue(())
    })?;
    Ok(StateVerified { backend, rows, bytes })
}

/// Replaces the state of the data directory at `path` with one that is computed from its log alone. The directory must
/// not be open, and the log must reach back to its beginning. No data is lost, because the state is a function of the
/// log. The node must be the only voter of its cluster.
pub fn rebuild(path: impl AsRef<Path>, options: &Options) -> Result<StateRebuilt, StateFilesError> {
    let path = path.as_ref();
    let disk = disk_at(path)?;
    let backend;
    {
        let _lock = lock(&disk, path, Mode::Threaded)?;
        let identity = identity_of(&disk, path)?;
        backend = identity.backend;
        let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
        let (log, _) =
            Log::open(disk.clone(), LOG_DIR, options.log(), clock, random_seed()).map_err(OpenError::from)?;
        let first = log.segments().first().map_or(Lsn::ZERO, |segment| segment.first);
        // A state that was installed cannot be computed from the log.
        let is_installed = read_state_dir(BackendLocation::on(&disk), backend, path)? != StateDir::FIRST;
        if is_installed || log.start() != Lsn::ZERO || first != Lsn::ZERO {
            return Err(StateFilesError::LogIncomplete { first: log.start() });
        }
        check_alone(&log, path, &identity)?;
        drop(log);
        backends::set_aside(&disk, backend).map_err(|error| io_error(path, "setting the old state aside", &error))?;
    }
    let options = Options { create: Create::Never, maintenance_interval: std::time::Duration::ZERO, ..options.clone() };
    let opened = open::real(path, &options, None, &mut |_| ControlFlow::Continue(()))?;
    opened.backend.flush().map_err(WriteError::from)?;
    let rebuilt = StateRebuilt {
        backend,
        records: opened.report.replayed_records,
        lsn: opened.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn),
    };
    opened.replica.close();
    opened.log.close().map_err(WriteError::from)?;
    backends::remove_set_aside(&disk, backend).map_err(|error| io_error(path, "removing the old state", &error))?;
    Ok(rebuilt)
}
