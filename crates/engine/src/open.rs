//! Opening a data directory: taking its lock, reading its identity, recovering its log, opening its state, and
//! replaying the log.
//!
//! The order matters. The identity is durable before any other file is created, so a directory without one contains no
//! data of Thalweg. The log is recovered before the state is read, and a state that is ahead of its log is rejected.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use thalweg_disk::{Disk, LockGuard, RealDisk};
use thalweg_log::Log;
use thalweg_replica::{NOTE_AHEAD, ReplayProgress, Solo, SoloOptions, SpaceClock, bridge, replay_while};
use thalweg_state::{
    blobs::{BlobUnreadable, Blobs},
    machine::{Machine, MachineOptions},
};
use thalweg_store::{Backend, BarrierFailed, LogBarrier};
use thalweg_types::{
    BlobRef, Clock, Index, Lsn, NodeId, Revision, SpaceId, SystemClock,
    command::{HistoryFloor, MoveTarget},
    limits::MIN_INLINE_VALUE_BYTES,
};

use crate::{
    backends,
    clock_file::{self, ClockFile},
    error::OpenError,
    group::WaitingFetches,
    identity::Identity,
    options::{BackendKind, Create, Options, Repair},
    snapshot::unfinished::is_unfinished,
    tails::Tails,
    watch::{Hub, Observers, Source},
};

const LOCK: &str = "LOCK";
pub(crate) const LOG_DIR: &str = "log";
/// Number of history rows that a repair deletes immediately. Maintenance deletes the others.
const HISTORY_ROWS: u32 = 1000;

/// Report of opening a data directory.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// True if this open has created the directory.
    pub created: bool,
    /// Id of the node, drawn when the directory was created.
    pub node: NodeId,
    /// Backend that keeps the directory's state.
    pub backend: BackendKind,
    /// True if the database was closed cleanly the last time.
    pub clean: bool,
    /// Number of bytes cut from the end of the log, because their write was torn. They were never acknowledged as
    /// durable.
    pub cut_bytes: u64,
    /// Number of log records replayed into the state.
    pub replayed_records: u64,
    /// Bytes of the payloads of the replayed records.
    pub replayed_bytes: u64,
    /// Time that opening took.
    pub took: Duration,
    /// Description, for people, of the data that `--repair` has given up; `None` if there was nothing to repair.
    pub repaired: Option<String>,
}

/// All parts of the database, after its directory is opened and its log is replayed.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: Log,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) machine: Arc<Machine>,
    pub(crate) solo: Solo,
    pub(crate) clock_file: Arc<ClockFile>,
    pub(crate) tails: Arc<Tails>,
    pub(crate) watches: Arc<Hub>,
    pub(crate) waits: WaitingFetches,
    pub(crate) report: OpenReport,
    /// Lock of the directory. It is the last field, so that it is released only after all other fields are dropped.
    pub(crate) _lock: Box<dyn LockGuard>,
}

/// Barrier that syncs the log before a backend persists any part of the state.
pub(crate) struct Barrier(pub(crate) Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

/// Reader of values that stay in the log, which the state machine uses while it applies entries.
#[derive(Debug)]
pub(crate) struct LogBlobs(pub(crate) Log);

impl Blobs for LogBlobs {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        self.0.read_blob(blob).map_err(|error| BlobUnreadable(error.to_string()))
    }
}

/// Opens a data directory on the real disk, with the system's clocks and a random seed.
pub(crate) fn real(path: &Path, options: &Options, progress: &mut Progress<'_>) -> Result<Opened, OpenError> {
    let there = path.join("IDENTITY").exists() || path.join("RESTORING").exists();
    if options.create == Create::Never && !there {
        return Err(OpenError::Missing { path: path.to_owned() });
    }
    if !there {
        let found = foreign_files(path);
        if !found.is_empty() {
            return Err(OpenError::NotEmpty { path: path.to_owned(), found });
        }
    }
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    on(Arc::new(disk), &clock, random_seed(), options, progress)
}

/// Names of files that a directory without an identity may have: those that an open creates before the identity, those
/// of a directory whose identity was lost (the open then fails with a better error), and those of file systems.
const KNOWN_FILES: [&str; 9] = [
    LOCK,
    "CLOCK",
    "IDENTITY.tmp",
    LOG_DIR,
    "state",
    "native-certificate.pem",
    "native-key.pem",
    "lost+found",
    ".snapshot",
];

/// Returns the names of all other files in a directory; none if the directory does not exist.
fn foreign_files(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    let mut found: Vec<_> = names.filter(|name| !KNOWN_FILES.contains(&name.as_str())).collect();
    found.sort();
    found
}

/// Function that is called after each log record that an open replays. If it returns `Break`, the open ends with an
/// error.
pub(crate) type Progress<'p> = dyn FnMut(&ReplayProgress) -> ControlFlow<()> + 'p;

/// Returns a random seed from the operating system.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

pub(crate) fn on(
    disk: Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    seed: u64,
    options: &Options,
    progress: &mut Progress<'_>,
) -> Result<Opened, OpenError> {
    let started = clock.monotonic();
    let path = backends::shown_path(&disk);
    let lock = lock(&disk, &path)?;
    let (identity, created) = identify(&disk, &path, seed, options)?;
    let swept = backends::remove_all_but(&disk, identity.backend);
    swept.map_err(|error| io_error(&path, "removing the leftovers of a migration", &error))?;
    let (log, recovery) = Log::open(disk.clone(), LOG_DIR, options.log(), clock.clone(), seed)?;
    let backend = backends::open(&disk, identity.backend, Arc::new(Barrier(log.clone())), options)?;
    let machine_options = MachineOptions { inline_value_bytes: options.inline_value_bytes.max(MIN_INLINE_VALUE_BYTES) };
    let machine = Machine::open(backend.clone(), machine_options)?.with_blobs(Arc::new(LogBlobs(log.clone())));
    let machine = Arc::new(machine);
    let space = SpaceId::ZERO;
    let bridged = match (options.repair, backend.applied()) {
        (Repair::CutAtCorruption, Some(applied)) => bridge(&log, space, applied)?,
        _ => 0,
    };
    let replayed = replay_while(&log, &machine, space, progress)?;
    let clock_file = ClockFile::open(&disk).map_err(|error| io_error(&path, "opening the file CLOCK", &error))?;
    let last = machine.applied().time.max(clock_file.found().unwrap_or_default());
    // A directory of an earlier version, and one that was just created or restored, has no file to compare with.
    if clock_file.found().is_some()
        && let Some(jump) = clock_file::jump(clock.wall(), last, options.max_clock_jump)
    {
        return Err(OpenError::ClockJump { path, jump, max: options.max_clock_jump });
    }
    let clock_file = Arc::new(clock_file);
    // Only a wall clock that was set back is behind by more than the notes are ahead.
    let went_back = clock.wall().plus(NOTE_AHEAD) < last;
    let anchor = if went_back { last } else { machine.applied().time };
    let space_clock = SpaceClock::anchor(clock.clone(), anchor).with_keeper(clock_file.clone());
    match clock_file.save(&disk, space_clock.now()) {
        // A directory on a full disk must open, so that data can be deleted.
        Err(error) if error.kind() != io::ErrorKind::StorageFull => {
            return Err(io_error(&path, "writing the file CLOCK", &error));
        }
        _ => {}
    }
    let solo_options = SoloOptions { space, node: identity.node, max_queue_bytes: options.max_queue_bytes };
    let solo = Solo::open_with(log.clone(), machine.clone(), space_clock, &solo_options)?;
    // Also when the previous open bridged the gap and ended before this step.
    let purged = machine.purged()?.map_or(Index::ZERO, |purged| purged.index);
    if purged > machine.history_floor()?.index {
        forget_history(&solo, &log)?;
    }
    let tails = Arc::new(Tails::new(machine.clone()));
    let watches =
        Hub::new(Source { log: log.clone(), machine: machine.clone(), space }, options.max_watch_queues_bytes);
    solo.observe(Arc::new(Observers { tails: tails.clone(), watches: watches.clone() }));
    let report = OpenReport {
        created,
        node: identity.node,
        backend: identity.backend,
        clean: recovery.clean,
        cut_bytes: recovery.cut_bytes,
        replayed_records: replayed.records,
        replayed_bytes: replayed.bytes,
        took: clock.monotonic().saturating_sub(started),
        repaired: repaired(recovery.repaired, bridged),
    };
    let waits = WaitingFetches::default();
    Ok(Opened { disk, log, backend, machine, solo, clock_file, tails, watches, waits, report, _lock: lock })
}

/// Describes the data that a repair gave up.
fn repaired(cut: Option<String>, bridged: u64) -> Option<String> {
    let bridged = (bridged > 0).then(|| {
        format!(
            "the state had applied {bridged} records more than the log still has: the state is kept, but long values \
            and stream records that were only in those log records can no longer be read"
        )
    });
    match (cut, bridged) {
        (Some(cut), Some(bridged)) => Some(format!("{cut}; {bridged}")),
        (cut, bridged) => cut.or(bridged),
    }
}

/// Raises the history floor (the oldest position from which watches can read changes) above the gap that a repair has
/// left between the log and the state. Watches that begin before the gap must fail, because the log has no changes
/// from there. The floor rises at most to the applied position, which is above the gap.
fn forget_history(solo: &Solo, log: &Log) -> Result<(), OpenError> {
    let everything = HistoryFloor { revision: Revision(u64::MAX), index: Index(u64::MAX) };
    let raise = MoveTarget::HistoryFloor { floor: everything, max: HISTORY_ROWS };
    let raised = solo.relocate(&raise.encode_alone()).map_err(|error| error.to_string());
    let synced = raised.and_then(|_| log.sync().map_err(|error| error.to_string()));
    synced.map(drop).map_err(|reason| OpenError::Repair { reason })
}

/// Locks the data directory for this process.
pub(crate) fn lock(disk: &Arc<dyn Disk>, path: &Path) -> Result<Box<dyn LockGuard>, OpenError> {
    disk.lock(LOCK).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => OpenError::Locked { path: path.to_owned() },
        _ => io_error(path, "taking the lock", &error),
    })
}

/// Reads the identity file of a directory; `None` if the directory has none.
pub(crate) fn read_identity(disk: &Arc<dyn Disk>, path: &Path) -> Result<Option<Identity>, OpenError> {
    Identity::read(disk).map_err(|error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
            OpenError::Identity { path: path.to_owned(), message: error.to_string() }
        }
        _ => io_error(path, "reading the identity", &error),
    })
}

fn identify(disk: &Arc<dyn Disk>, path: &Path, seed: u64, options: &Options) -> Result<(Identity, bool), OpenError> {
    let read = read_identity(disk, path)?;
    if let Some(identity) = read {
        return match options.backend {
            Some(wanted) if wanted != identity.backend => Err(OpenError::OtherBackend {
                path: path.to_owned(),
                found: identity.backend.name(),
                wanted: wanted.name(),
            }),
            _ => Ok((identity, false)),
        };
    }
    if is_unfinished(disk) {
        return Err(OpenError::Unfinished { path: path.to_owned() });
    }
    if options.create == Create::Never {
        return Err(OpenError::Missing { path: path.to_owned() });
    }
    if disk.list(LOG_DIR).is_ok_and(|files| !files.is_empty()) {
        let message = "it is missing, but there is a log; restore it from a backup".to_owned();
        return Err(OpenError::Identity { path: path.to_owned(), message });
    }
    let backend = options.backend.unwrap_or_default();
    if !backend.is_built() {
        return Err(OpenError::NotBuilt { backend: backend.name() });
    }
    let identity = Identity { node: NodeId(seed), backend };
    identity.write(disk).map_err(|error| io_error(path, "writing the identity", &error))?;
    Ok((identity, true))
}

pub(crate) fn io_error(path: &Path, operation: &'static str, error: &io::Error) -> OpenError {
    OpenError::Io { path: path.to_owned(), operation, message: error.to_string() }
}
