//! Opening a data directory: taking its lock, reading its identity, recovering its log, opening its state, and
//! replaying the log.
//!
//! The order matters. The identity is durable before any other file is created, so a directory without an identity
//! contains no data of Thalweg. The log is recovered before the state is read, and a state that is ahead of its log is
//! rejected.
//!
//! Owns: the order of these steps, the lock, and the report about the open. Does not own: the recovery of the log
//! (`thalweg-log`), the identity and the roles in which a directory may be opened (`identity`), replay and the clock
//! (`open_replica`), or the choice of the backend's files (`backends`).

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    io,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use thalweg_disk::{Disk, LOCK_PATIENCE, LockGuard, RealDisk};
use thalweg_log::Log;
use thalweg_replica::{Observer, Replica};
use thalweg_state::machine::Machine;
use thalweg_store::{Backend, BarrierFailed, LogBarrier};
use thalweg_types::{Clock, ClusterId, Lsn, NodeId, SpaceId, SystemClock, limits::MIN_MEMBER_SEGMENT_BYTES};

use crate::{
    backends::{self, BackendLocation},
    clock_file::ClockFile,
    digests::HashMarks,
    error::OpenError,
    identity::{Identity, MemberIdentity, OpenRole},
    open_parts::{Mode, Progress, io_error},
    open_replica::{OpenedSpace, SpaceParts},
    options::{BackendKind, Create, Options},
    repair_note::RepairNote,
    state_dir::{self, StateDir},
    stream_growth::StreamGrowth,
    tails::Tails,
    unfinished_restore::{forget_finished, is_unfinished},
    waiting_fetches::WaitingFetches,
    watches::{
        hub::Hub,
        observers::{MemberObservers, Observers},
        reader::Source,
    },
};

const LOCK: &str = "LOCK";
pub(crate) const LOG_DIR: &str = "log";

/// Report of opening a data directory.
#[derive(Clone, Debug)]
pub struct OpenReport {
    /// True if this open has created the directory.
    pub created: bool,
    /// Id of the node, chosen at random when the directory was created.
    pub node: NodeId,
    /// Cluster that the directory belongs to; `None` if it was never in one.
    pub cluster: Option<ClusterId>,
    /// Backend that keeps the directory's state.
    pub backend: BackendKind,
    /// True if the database was closed cleanly the last time.
    pub clean: bool,
    /// Number of bytes cut from the end of the log because a crash interrupted their write. They were never
    /// acknowledged as durable.
    pub cut_bytes: u64,
    /// Number of log records replayed into the state.
    pub replayed_records: u64,
    /// Bytes of the payloads of the replayed records.
    pub replayed_bytes: u64,
    /// Time that opening the directory took.
    pub took: Duration,
    /// Description for operators of the data that `--repair` has given up; `None` if there was nothing to repair.
    pub repaired: Option<String>,
}

/// All parts of the database, after its directory is opened and its log is replayed.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) log: Log,
    pub(crate) backend: Arc<dyn Backend>,
    /// Directory that held the state when the database was opened.
    pub(crate) state_dir: StateDir,
    pub(crate) machine: Arc<Machine>,
    pub(crate) replica: Replica,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) clock_file: Arc<ClockFile>,
    pub(crate) identity: Mutex<Identity>,
    pub(crate) hashes: Arc<HashMarks>,
    /// Observer of applied log entries that the caller has set on a member of a cluster.
    pub(crate) witness: Arc<OnceLock<Arc<dyn Observer>>>,
    pub(crate) mode: Mode,
    /// Data directory for backends that do their own I/O, not through a `Disk`; `None` for the path of the `Disk`.
    pub(crate) os_dir: Option<PathBuf>,
    pub(crate) tails: Arc<Tails>,
    pub(crate) watches: Arc<Hub>,
    pub(crate) growth: Arc<StreamGrowth>,
    pub(crate) waits: WaitingFetches,
    pub(crate) report: OpenReport,
    /// Lock of the directory. It is the last field, so that it is released only after all other fields are dropped.
    pub(crate) _lock: Box<dyn LockGuard>,
}

/// Syncs the log before a backend persists any part of the state, so that the state is never ahead of the log.
pub(crate) struct Barrier(pub(crate) Log);

impl LogBarrier for Barrier {
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed> {
        self.0.sync_through(lsn).map_err(|error| BarrierFailed(error.to_string()))
    }
}

/// Returns a random id for a new cluster.
pub(crate) fn random_cluster() -> ClusterId {
    ClusterId(u128::from(random_seed()) << 64 | u128::from(random_seed()))
}

/// Opens a data directory on the real disk, with the system's clocks and a random seed. `member` is `None` for a node
/// alone; otherwise it states how the node is a member, and the id of a cluster that it founds.
pub(crate) fn real(
    path: &Path,
    options: &Options,
    member: Option<(MemberIdentity, ClusterId)>,
    progress: &mut Progress<'_>,
) -> Result<Opened, OpenError> {
    if options.create == Create::Never && !is_database(path) {
        return Err(OpenError::Missing { path: path.to_owned() });
    }
    check_foreign(path)?;
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    let role = member.map_or(OpenRole::Alone, |(member, founded)| OpenRole::Member(member, founded));
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let environment = OpenEnvironment { disk, clock: &clock, seed: random_seed(), mode: Mode::Threaded, os_dir: None };
    on(environment, options, role, progress)
}

/// Checks, before a caller writes to a directory, that it can be opened: it has no files of other programs and, for a
/// member, no identity that forbids the requested role. The open repeats both checks.
pub fn check_directory(path: &Path, member: Option<(MemberIdentity, ClusterId)>) -> Result<(), OpenError> {
    check_foreign(path)?;
    let Some((member, cluster)) = member.filter(|_| path.join("IDENTITY").exists()) else { return Ok(()) };
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let _lock = lock(&disk, path, Mode::Threaded)?;
    match read_identity(&disk, path)? {
        Some(identity) => identity.check_role(path, OpenRole::Member(member, cluster)),
        None => Ok(()),
    }
}

/// Returns true if a directory has an identity, or will get one from a restore.
fn is_database(path: &Path) -> bool {
    path.join("IDENTITY").exists() || path.join("RESTORING").exists()
}

/// Checks that a directory without an identity has no files of other programs.
fn check_foreign(path: &Path) -> Result<(), OpenError> {
    let found = if is_database(path) { Vec::new() } else { foreign_files(path) };
    if found.is_empty() { Ok(()) } else { Err(OpenError::NotEmpty { path: path.to_owned(), found }) }
}

/// Names of files that a directory without an identity may have: files that an open creates before the identity, files
/// of a directory whose identity was lost (for which the open has a better error), and files of file systems.
const KNOWN_FILES: [&str; 14] = [
    LOCK,
    "CLOCK",
    "CLUSTER",
    "IDENTITY.tmp",
    state_dir::FILE,
    "INSTALLED.tmp",
    "REPAIR",
    "REPAIR.tmp",
    LOG_DIR,
    "state",
    "native-certificate.pem",
    "native-key.pem",
    "lost+found",
    ".snapshot",
];

/// Returns the names of files that are not in [`KNOWN_FILES`]; none if the directory does not exist.
fn foreign_files(path: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(path).into_iter().flatten().flatten();
    let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
    // Files with credentials that a killed process has not finished.
    let is_unfinished = |name: &str| name.starts_with("CLUSTER.") && name.ends_with(".new");
    let is_known = |name: &String| KNOWN_FILES.contains(&name.as_str()) || is_unfinished(name);
    let mut found: Vec<_> = names.filter(|name| !is_known(name)).collect();
    found.sort();
    found
}

/// Returns a random seed from the operating system.
pub(crate) fn random_seed() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Disk, clock, seed and mode with which a directory is opened.
pub(crate) struct OpenEnvironment<'a> {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) seed: u64,
    pub(crate) mode: Mode,
    /// Data directory for backends that do their own I/O, not through a `Disk`; `None` for the path of the `Disk`.
    pub(crate) os_dir: Option<&'a Path>,
}

/// Opens a data directory on the given disk, which can be a simulated one.
pub(crate) fn on(
    environment: OpenEnvironment<'_>,
    options: &Options,
    role: OpenRole,
    progress: &mut Progress<'_>,
) -> Result<Opened, OpenError> {
    let OpenEnvironment { disk, clock, seed, mode, os_dir } = environment;
    let started = clock.monotonic();
    let path = backends::shown_path(&disk);
    // In stepped mode, as in simulations, the caller limits the sizes of entries itself.
    if role != OpenRole::Alone && mode == Mode::Threaded && options.segment_bytes < MIN_MEMBER_SEGMENT_BYTES {
        return Err(OpenError::SmallSegments { got: options.segment_bytes });
    }
    let lock = lock(&disk, &path, mode)?;
    let (identity, created) = identify(&disk, &path, seed, options, role)?;
    let place = BackendLocation { os_dir, background: mode.background(), ..BackendLocation::on(&disk) };
    let state_dir = read_state_dir(place, identity.backend, &path)?;
    add_checksums(&disk, &path)?;
    let swept = backends::remove_all_but(place, &identity, state_dir);
    swept.map_err(|error| io_error(&path, "removing the leftovers of a migration or an install", &error))?;
    let open_log = match mode {
        Mode::Threaded => Log::open,
        Mode::Stepped => Log::open_stepped,
    };
    let (log, recovery) = open_log(disk.clone(), LOG_DIR, options.log(), clock.clone(), seed)?;
    let identity = match identity.check_log(&path, role, log.end() == Lsn::ZERO)? {
        None => identity,
        Some(changed) => {
            // The log must be on disk before the file says that the log is not empty.
            log.sync().map_err(thalweg_replica::OpenError::from)?;
            changed.write(&disk).map_err(|error| io_error(&path, "writing the identity", &error))?;
            changed
        }
    };
    let place = BackendLocation { pacer: Some(log.pacer()), ..place };
    let backend = backends::open_in(place, identity.backend, state_dir, Arc::new(Barrier(log.clone())), options)?;
    let parts =
        SpaceParts { disk: &disk, path, log: log.clone(), backend: backend.clone(), clock, options, identity, mode };
    let OpenedSpace { machine, replica, clock_file, identity, replayed, bridged } = parts.open(role, progress)?;
    backends::finish_rebuild(&disk, &*backend);
    let tails = Arc::new(Tails::new(machine.clone()));
    let hashes = Arc::<HashMarks>::default();
    let witness = Arc::<OnceLock<Arc<dyn Observer>>>::default();
    let source = Source { log: log.clone(), machine: machine.clone(), space: SpaceId::ZERO };
    let watches = Hub::new(source, mode, options.max_watch_queues_bytes);
    let growth = Arc::new(StreamGrowth::new(machine.clone()));
    let observers = Observers { tails: tails.clone(), watches: watches.clone(), growth: growth.clone() };
    match replica.member() {
        None => replica.observe(Arc::new(observers)),
        Some(_) => {
            let (machine, hashes, witness) = (machine.clone(), hashes.clone(), witness.clone());
            replica.observe(Arc::new(MemberObservers { observers, machine, hashes, witness }));
        }
    }
    let report = OpenReport {
        created,
        node: identity.node,
        cluster: identity.cluster.map(|cluster| cluster.id),
        backend: identity.backend,
        clean: recovery.clean,
        cut_bytes: recovery.cut_bytes,
        replayed_records: replayed.records,
        replayed_bytes: replayed.bytes,
        took: clock.monotonic().saturating_sub(started),
        repaired: repaired(recovery.repaired, bridged),
    };
    Ok(Opened {
        disk,
        log,
        backend,
        state_dir,
        os_dir: os_dir.map(Path::to_owned),
        machine,
        replica,
        clock: clock.clone(),
        clock_file,
        identity: Mutex::new(identity),
        hashes,
        witness,
        mode,
        tails,
        watches,
        growth,
        waits: WaitingFetches::default(),
        report,
        _lock: lock,
    })
}

impl Opened {
    /// Returns the location at which the backend stores its files.
    pub(crate) fn place(&self) -> BackendLocation<'_> {
        BackendLocation {
            disk: &self.disk,
            os_dir: self.os_dir.as_deref(),
            background: self.mode.background(),
            pacer: Some(self.log.pacer()),
        }
    }
}

/// Describes the data that a repair discarded.
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

/// Locks the data directory for this process. Waits for a moment if this process itself has the directory open, because
/// threads of a database that was just dropped may still release it. In stepped mode there are no such threads.
pub(crate) fn lock(disk: &Arc<dyn Disk>, path: &Path, mode: Mode) -> Result<Box<dyn LockGuard>, OpenError> {
    let patience = match mode {
        Mode::Threaded => LOCK_PATIENCE,
        Mode::Stepped => Duration::ZERO,
    };
    disk.lock_within(LOCK, patience).map_err(|error| match error.kind() {
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

/// Reads which state directory is the current one. Returns an error if this directory is missing, or if the file that
/// names it was lost. Otherwise the backend would begin an empty state, and another directory with the only complete
/// state could be removed.
pub(crate) fn read_state_dir(
    place: BackendLocation<'_>,
    kind: BackendKind,
    path: &Path,
) -> Result<StateDir, OpenError> {
    let read = || {
        StateDir::read(place.disk).map_err(|error| match error.kind() {
            io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => {
                OpenError::Identity { path: path.to_owned(), message: error.to_string() }
            }
            _ => io_error(path, "reading the file INSTALLED", &error),
        })
    };
    let current = read()?;
    if current == StateDir::FIRST {
        let installed = place.installed(kind);
        let installed = installed.map_err(|error| io_error(path, "listing the state directories", &error))?;
        let Some(found) = installed else { return Ok(current) };
        // A report on an open database can read the file just before the switch of the first install.
        return match read()? {
            StateDir::FIRST => Err(OpenError::InstalledMissing { path: path.to_owned(), dir: found.path(kind) }),
            switched => Ok(switched),
        };
    }
    let dir = current.path(kind);
    if place.has(&dir) { Ok(current) } else { Err(OpenError::StateMissing { path: path.to_owned(), dir }) }
}

/// Adds missing checksum lines to the text files that an early development build has written.
fn add_checksums(disk: &Arc<dyn Disk>, path: &Path) -> Result<(), OpenError> {
    let files = [Identity::add_checksum, StateDir::add_checksum, RepairNote::add_checksum];
    let added = files.into_iter().try_for_each(|add| add(disk));
    added.map_err(|error| io_error(path, "adding checksums to IDENTITY, INSTALLED and REPAIR", &error))
}

fn identify(
    disk: &Arc<dyn Disk>,
    path: &Path,
    seed: u64,
    options: &Options,
    role: OpenRole,
) -> Result<(Identity, bool), OpenError> {
    let read = read_identity(disk, path)?;
    if let Some(identity) = read {
        identity.check_role(path, role)?;
        forget_finished(disk);
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
    let exists = matches!(role, OpenRole::Member(MemberIdentity::Existing, _));
    if options.create == Create::Never || exists {
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
    let identity = Identity::new(NodeId(seed), backend, role);
    identity.write(disk).map_err(|error| io_error(path, "writing the identity", &error))?;
    Ok((identity, true))
}
