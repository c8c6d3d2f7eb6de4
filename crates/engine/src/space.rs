//! Reports on the disk space of a data directory: how many bytes serve which purpose.
//!
//! Owns: the reports on an open database ([`Database::space`]) and on a closed directory ([`space_at_rest`]). Does not
//! own: the rule by which the log keeps segments (`thalweg_log`), or counting keys and values (`thalweg_state`).
//!
//! Each block of each file counts once, so the parts add up to what the operating system reports for the directory. The
//! blocks of a log segment are divided:
//!
//! ```text
//! | header | records                                | not written yet |
//! |  rest  |  live: rows point to them  |   rest    |    prepared     |
//! ```
//! The rest of a segment is counted by the purpose for which the segment is kept: a replay, history, or none. Bytes of
//! overwritten values count as live until the mover has walked the segment, because a put does not read the row that it
//! replaces.

mod files;

use std::{
    collections::{BTreeMap, HashMap},
    io,
    ops::ControlFlow,
    path::Path,
    sync::Arc,
    thread,
    time::Duration,
};

use thalweg_disk::{Disk, Priority, RealDisk};
use thalweg_log::{
    HistoryBounds, SegmentInfo, SegmentUse,
    offline::{self, OfflineError},
    segment_uses,
};
pub use thalweg_state::payload::Payload;
use thalweg_state::{
    payload::{payload, segment_liveness},
    segments::Liveness,
};
use thalweg_store::{Backend, BackendError, BarrierFailed, LogBarrier, View, lsm::Compaction};
use thalweg_types::{Action, Classified, Clock, Generation, Lsn, SystemClock};

use self::files::FoundFile;
use crate::{
    backends::{self, BackendLocation},
    database::Database,
    error::{OpenError, ReadError},
    inner::Inner,
    open::{LOG_DIR, lock, read_identity, read_state_dir},
    open_parts::{Mode, io_error},
    options::{BackendKind, Options},
    state_dir::StateDir,
};

/// Maximum size in bytes of a state, on disk and in memory, of which [`Count::IfQuick`] counts the keys, values and
/// records. Reading a state of this size takes a second or two.
pub const QUICK_COUNT_BYTES: u64 = 1 << 30;
/// Bytes at the beginning of a segment file before its first record.
const SEGMENT_HEAD_BYTES: u64 = thalweg_log::SEGMENT_HEAD_BYTES as u64;

/// Purpose of bytes in a data directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SpaceKind {
    /// Records of streams and large values in the log, to which the state points.
    LogLive,
    /// Log records that the persisted state does not include. An open replays them.
    LogReplay,
    /// Log records kept only for watches from a past revision, incremental backups and followers.
    LogHistory,
    /// Log records that are no longer needed, in segments that have other live records or are freed soon.
    LogDead,
    /// Segments prepared for the writer, and the part of the newest segment that is not written yet.
    LogPrepared,
    /// Files of the backend that stores the state.
    State,
    /// Write-ahead log of the SQLite backend, and the index of this log.
    StateJournal,
    /// Directories of a state that is not in use, left from an interrupted migration, install or rebuild.
    Leftovers,
    /// Identity, clock and lock files of the node, and the directories themselves.
    Node,
    /// Files that the node did not create.
    Foreign,
}

impl SpaceKind {
    /// All kinds of use, in the order of reports.
    pub const ALL: [Self; 10] = [
        Self::LogLive,
        Self::LogReplay,
        Self::LogHistory,
        Self::LogDead,
        Self::LogPrepared,
        Self::State,
        Self::StateJournal,
        Self::Leftovers,
        Self::Node,
        Self::Foreign,
    ];

    /// Returns the name of this kind of use in JSON.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::LogLive => "log_live",
            Self::LogReplay => "log_replay",
            Self::LogHistory => "log_history",
            Self::LogDead => "log_dead",
            Self::LogPrepared => "log_prepared",
            Self::State => "state",
            Self::StateJournal => "state_journal",
            Self::Leftovers => "leftovers",
            Self::Node => "node",
            Self::Foreign => "foreign",
        }
    }
}

/// Number of files and bytes in a data directory that have one kind of use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpacePart {
    /// Number of files. A log segment whose blocks have several kinds of use counts once, for the use of most blocks.
    pub files: u64,
    /// Size in bytes of the disk blocks that have this kind of use.
    pub bytes: u64,
}

/// Tables of one level of the LSM backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LevelSpace {
    /// Number of tables in the level.
    pub tables: u64,
    /// Bytes of the files of the level's tables.
    pub bytes: u64,
}

/// Report about the disk space of a data directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpaceReport {
    /// Backend that stores the directory's state.
    pub backend: BackendKind,
    /// Number of files and bytes for each kind of use that occurs in the directory.
    pub parts: BTreeMap<SpaceKind, SpacePart>,
    /// Levels of the LSM backend, level 0 first; empty for other backends.
    pub levels: Vec<LevelSpace>,
    /// Number of entries in the tables of the LSM backend; several entries can belong to one row. For other backends,
    /// the number of rows.
    pub entries: u64,
    /// Number of entries in the backend's tables that mark a deletion.
    pub deletions: u64,
    /// Bytes in the files of redb or SQLite that the backend reuses before the files grow.
    pub reusable_bytes: u64,
    /// Number of log segments with records.
    pub segments: u64,
    /// Number of snapshots in progress. While there are any, no segment is freed.
    pub open_snapshots: u64,
    /// Options that determine the log's size: those of the open database, or those passed for a closed directory.
    pub options: SpaceOptions,
    /// Numbers and bytes of the state's keys, values and records; `None` if they were not counted.
    pub payload: Option<Payload>,
    /// Approximate number of bytes that the report must read to count the keys, values and records of the state.
    pub count_bytes: u64,
}

/// Options that determine the size of a node's log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpaceOptions {
    /// Size of a log segment in bytes.
    pub segment_bytes: u64,
    /// Number of log segments prepared in advance.
    pub spare_segments: u32,
    /// Maximum number of bytes of log kept only for history (watches of past changes, backups, followers).
    pub history_bytes: u64,
    /// Maximum age of log kept only for history (watches of past changes, backups, followers).
    pub history_age: Duration,
}

impl SpaceOptions {
    fn of(options: &Options) -> Self {
        Self {
            segment_bytes: options.segment_bytes.into(),
            spare_segments: options.spare_segments,
            history_bytes: options.history_bytes,
            history_age: options.history_age,
        }
    }
}

/// Decides if a report on disk space counts the keys, values and records of the state. Counting reads the whole state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    /// The report counts keys, values and records only if the state has at most [`QUICK_COUNT_BYTES`] on disk.
    IfQuick,
    /// The report always counts keys, values and records.
    Always,
}

/// Error returned when the disk space of a directory cannot be reported.
#[derive(Debug, thiserror::Error)]
pub enum SpaceError {
    /// The directory could not be opened, or its files could not be listed.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The log of the closed directory could not be read.
    #[error(transparent)]
    Log(#[from] OfflineError),
    /// The state could not be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The last handle of the database was dropped before the report was complete.
    #[error("the database is closed")]
    Closed,
    /// The operating system could not start a thread for the report.
    #[error("no thread could be started for the report: {message}; retry")]
    Thread {
        /// Message of the operating system about the thread that it could not start.
        message: String,
    },
}

impl Classified for SpaceError {
    fn code(&self) -> &'static str {
        match self {
            Self::Open(error) => error.code(),
            Self::Log(error) => error.code(),
            Self::Read(error) => error.code(),
            Self::Closed => "closed",
            Self::Thread { .. } => "no_thread",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Open(error) => error.action(),
            Self::Log(error) => error.action(),
            Self::Read(error) => error.action(),
            Self::Closed | Self::Thread { .. } => Action::Retry,
        }
    }
}

impl From<BackendError> for SpaceError {
    fn from(error: BackendError) -> Self {
        Self::Open(error.into())
    }
}

impl Database {
    /// Reports the disk space of the directory. Blocks while it lists the files and, depending on `count`, while it
    /// reads the whole state to count keys, values and records.
    pub fn space(&self, count: Count) -> Result<SpaceReport, SpaceError> {
        self.inner.space(count)
    }

    /// Reports the disk space like [`space`](Self::space), but on a thread of its own with a low priority. Calls `done`
    /// with the result. If the last handle of the database is dropped, the report ends with an error.
    ///
    /// # Errors
    /// [`SpaceError::Thread`]; `done` is not called in that case.
    pub fn space_in_background(
        &self,
        count: Count,
        done: impl FnOnce(Result<SpaceReport, SpaceError>) + Send + 'static,
    ) -> Result<(), SpaceError> {
        let inner = Arc::clone(&self.inner);
        let work = move || {
            Priority::Low.take();
            let report = inner.space(count);
            // The database is released first, because the caller may open the directory again when it has the result.
            drop(inner);
            done(report);
        };
        let spawned = thread::Builder::new().name("thalweg-space".to_owned()).spawn(work);
        spawned.map(drop).map_err(|error| SpaceError::Thread { message: error.to_string() })
    }
}

impl Inner {
    fn space(&self, count: Count) -> Result<SpaceReport, SpaceError> {
        let open = &self.open;
        let liveness = open.machine.liveness();
        let segments = open.log.segment_uses(open.replica.now());
        let persisted = open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        let shares = Shares::of(segments.iter().map(|(segment, kept)| (segment, *kept)), persisted, &liveness);
        let path = backends::shown_path(&open.disk);
        let files = list(&open.disk, open.report.backend)?;
        let state_dir = read_state_dir(open.place(), open.report.backend, &path)?;
        let open_snapshots = self.snapshot_counters.get().open;
        let report = Figures { kind: open.report.backend, state_dir, files: &files, shares: &shares };
        let report = report.report(&*open.backend, &self.options, open_snapshots);
        let mut step = |_| if self.has_handles() { ControlFlow::Continue(()) } else { ControlFlow::Break(()) };
        counted(report, count, &*open.backend.view(), &mut step)
    }
}

/// Reports the disk space of the data directory at `path`, which must not be open. Changes no data. `options` are the
/// options with which the node usually opens the directory. Calls `progress` with the number of rows read so far.
pub fn space_at_rest(
    path: impl AsRef<Path>,
    options: &Options,
    count: Count,
    progress: &mut dyn FnMut(u64),
) -> Result<SpaceReport, SpaceError> {
    let path = path.as_ref();
    if !path.join("IDENTITY").exists() {
        return Err(OpenError::Missing { path: path.to_owned() }.into());
    }
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    let disk: Arc<dyn Disk> = Arc::new(disk);
    let _lock = lock(&disk, path, Mode::Threaded)?;
    let identity = read_identity(&disk, path)?.ok_or_else(|| OpenError::Missing { path: path.to_owned() })?;
    let kind = identity.backend;
    let state_dir = read_state_dir(BackendLocation::on(&disk), kind, path)?;
    // Opening a backend can change the size of its files a little, so the files are listed first.
    let files = list(&disk, kind)?;
    let segments = match offline::stats(&*disk, LOG_DIR) {
        Ok(stats) => stats.segment_infos(),
        Err(OfflineError::NoLog { .. }) => Vec::new(),
        Err(error) => return Err(error.into()),
    };
    // A compaction would change the measured sizes.
    let read_only = Options { compaction: Compaction::WhenAsked, ..options.clone() };
    let backend = backends::open(&disk, kind, state_dir, Arc::new(NothingNew), &read_only)?;
    let view = backend.view();
    let persisted = backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
    let last_time = segments.last().map(|segment| segment.last_time).unwrap_or_default();
    let bounds = HistoryBounds {
        bytes: options.history_bytes,
        oldest: SystemClock::default().wall().max(last_time).minus(options.history_age),
        kept_from: Lsn::MAX,
    };
    let liveness = segment_liveness(&*view).map_err(ReadError::from)?;
    let uses = segment_uses(&segments, persisted, bounds);
    let shares = Shares::of(segments.iter().zip(uses), persisted, &liveness);
    let report = Figures { kind, state_dir, files: &files, shares: &shares }.report(&*backend, options, 0);
    let mut step = |rows| {
        progress(rows);
        ControlFlow::Continue(())
    };
    counted(report, count, &*view, &mut step)
}

/// Log barrier (called before a backend persists data) for a state that is only read: the log need not be synced.
struct NothingNew;

impl LogBarrier for NothingNew {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

fn list(disk: &Arc<dyn Disk>, kind: BackendKind) -> Result<Vec<FoundFile>, OpenError> {
    let root = disk.os_path().ok_or(OpenError::NoOsPath { backend: kind.name() })?;
    files::list(root).map_err(|error: io::Error| io_error(root, "listing the files", &error))
}

/// Adds the numbers and bytes of keys, values and records to a report, if they are to be counted.
fn counted(
    mut report: SpaceReport,
    count: Count,
    view: &dyn View,
    step: &mut dyn FnMut(u64) -> ControlFlow<()>,
) -> Result<SpaceReport, SpaceError> {
    if count == Count::Always || report.count_bytes <= QUICK_COUNT_BYTES {
        let found = payload(view, step).map_err(ReadError::from)?;
        report.payload = Some(found.ok_or(SpaceError::Closed)?);
    }
    Ok(report)
}

/// Division of a log segment's bytes by their use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    /// Bytes of the segment's header and of all its records.
    used_bytes: u64,
    /// Bytes of the segment's records to which the state still points.
    live_bytes: u64,
    /// Kind of disk space as which the records count to which the state does not point.
    rest: SpaceKind,
    is_active: bool,
}

impl Share {
    fn divide(self, allocated_bytes: u64) -> [(SpaceKind, u64); 3] {
        // The unwritten end of a sealed segment is not used again. Its blocks are free only once the segment is freed.
        let used = if self.is_active { self.used_bytes.min(allocated_bytes) } else { allocated_bytes };
        let live = self.live_bytes.min(used);
        [(SpaceKind::LogLive, live), (self.rest, used - live), (SpaceKind::LogPrepared, allocated_bytes - used)]
    }
}

/// Divisions of log segments by the use of their bytes. The key is the path of the segment's file.
struct Shares(HashMap<String, Share>);

impl Shares {
    fn of<'a>(
        segments: impl Iterator<Item = (&'a SegmentInfo, SegmentUse)>,
        persisted: Lsn,
        liveness: &[(Generation, Liveness)],
    ) -> Self {
        let live: HashMap<_, _> = liveness.iter().map(|(generation, live)| (*generation, live.bytes())).collect();
        let share = |(segment, kept): (&SegmentInfo, SegmentUse)| {
            let records = u64::from(segment.bytes);
            let share = Share {
                used_bytes: SEGMENT_HEAD_BYTES + records,
                live_bytes: live.get(&segment.generation).copied().unwrap_or(0).min(records),
                rest: match kept {
                    _ if segment.next > persisted => SpaceKind::LogReplay,
                    SegmentUse::History => SpaceKind::LogHistory,
                    SegmentUse::Needed | SegmentUse::Past => SpaceKind::LogDead,
                },
                is_active: segment.active,
            };
            (segment.file.clone(), share)
        };
        Self(segments.map(share).collect())
    }
}

/// Input from which a report on disk space is computed.
struct Figures<'a> {
    kind: BackendKind,
    state_dir: StateDir,
    files: &'a [FoundFile],
    shares: &'a Shares,
}

impl Figures<'_> {
    fn report(&self, backend: &dyn Backend, options: &Options, open_snapshots: u64) -> SpaceReport {
        let mut parts: BTreeMap<SpaceKind, SpacePart> = BTreeMap::new();
        let state = self.state_dir.path(self.kind);
        for file in self.files {
            let divided = match self.shares.0.get(&file.path) {
                Some(share) => share.divide(file.allocated_bytes).to_vec(),
                None => vec![(kind_of(file, &state), file.allocated_bytes)],
            };
            for (kind, bytes) in divided.iter().filter(|(_, bytes)| *bytes > 0) {
                parts.entry(*kind).or_default().bytes += bytes;
            }
            if let Some((kind, _)) = divided.iter().max_by_key(|(_, bytes)| *bytes).filter(|_| !file.is_dir) {
                parts.entry(*kind).or_default().files += 1;
            }
        }
        let stats = backend.stats();
        let levels = stats.tables_per_level.iter().zip(&stats.bytes_per_level);
        SpaceReport {
            backend: self.kind,
            parts,
            levels: levels.map(|(&tables, &bytes)| LevelSpace { tables, bytes }).collect(),
            entries: stats.estimated_keys,
            deletions: stats.deletions,
            reusable_bytes: backend.reusable_bytes(),
            segments: self.shares.0.len() as u64,
            open_snapshots,
            options: SpaceOptions::of(options),
            payload: None,
            count_bytes: stats.disk_bytes + stats.memory_bytes,
        }
    }
}

/// Names of files at the root of a directory that the node creates. These names with a suffix, for example of an
/// unfinished replacement, count too.
const NODE_FILES: [&str; 9] =
    ["LOCK", "IDENTITY", "CLUSTER", "CLOCK", "INSTALLED", "REPAIR", "RESTORING", "native-certificate", "native-key"];

/// Returns the use of a file that is not a log segment with records. `state` is the path of the current state
/// directory.
fn kind_of(file: &FoundFile, state: &str) -> SpaceKind {
    let path = file.path.as_str();
    let is_within = |dir: &str| path.strip_prefix(dir).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    if is_within(state) {
        let is_journal = [".sqlite-wal", ".sqlite-shm"].iter().any(|ending| path.ends_with(ending));
        return if is_journal { SpaceKind::StateJournal } else { SpaceKind::State };
    }
    let is_own = |name: &&str| path == *name || path.strip_prefix(*name).is_some_and(|rest| rest.starts_with('.'));
    match path {
        "" | LOG_DIR | "state" | "state/default" => SpaceKind::Node,
        _ if is_within(LOG_DIR) => SpaceKind::LogPrepared,
        _ if is_within("state/default") => SpaceKind::Leftovers,
        _ if NODE_FILES.iter().any(is_own) => SpaceKind::Node,
        _ => SpaceKind::Foreign,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_is_divided_and_its_parts_add_up() {
        let share = |is_active| Share { used_bytes: 100, live_bytes: 60, rest: SpaceKind::LogHistory, is_active };
        let divided = |is_active, allocated| share(is_active).divide(allocated).map(|(_, bytes)| bytes);
        assert_eq!(divided(true, 150), [60, 40, 50], "the rest of the active segment is prepared");
        assert_eq!(divided(false, 150), [60, 90, 0], "a sealed segment has no room");
        assert_eq!(divided(true, 50), [50, 0, 0], "holes");
        for allocated in 0..200 {
            assert_eq!(divided(true, allocated).iter().sum::<u64>(), allocated);
        }
    }

    #[test]
    fn each_file_has_a_kind() {
        let kind = |path: &str| {
            kind_of(&FoundFile { path: path.to_owned(), is_dir: false, allocated_bytes: 1 }, "state/default/sqlite.2")
        };
        for (path, expected) in [
            ("", SpaceKind::Node),
            ("log", SpaceKind::Node),
            ("log/000001.seg", SpaceKind::LogPrepared),
            ("state/default/sqlite.2/state.sqlite", SpaceKind::State),
            ("state/default/sqlite.2/state.sqlite-wal", SpaceKind::StateJournal),
            ("state/default/sqlite.2", SpaceKind::State),
            ("state/default/sqlite.20/state.sqlite", SpaceKind::Leftovers),
            ("state/default/lsm.old/tables/1", SpaceKind::Leftovers),
            ("CLOCK", SpaceKind::Node),
            ("IDENTITY.tmp", SpaceKind::Node),
            ("native-key.pem", SpaceKind::Node),
            ("CLOCKWORK", SpaceKind::Foreign),
            ("logs/today", SpaceKind::Foreign),
        ] {
            assert_eq!(kind(path), expected, "{path}");
        }
    }
}
