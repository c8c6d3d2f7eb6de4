//! Creating a data directory from a backup.
//!
//! Owns: [`restore`]. Does not own: the choice of the backup's snapshots (`plan`), the check of their contents, or the
//! loading of rows (both `thalweg-snapshot`).
//!
//! ```text
//! RESTORING    marker: the directory is unfinished and cannot be opened
//! log/         moves with the bytes that rows point at | purged | entries of increments ... | vote
//! state/       rows, as of the full snapshot, then the effects of the entries
//! IDENTITY     a new node: from here on it is a normal directory, and the marker is removed
//! ```
//! Invariants: the log of the new directory begins above every LSN of the parts (snapshots of the backup). Terms,
//! indexes, revisions, offsets and times continue from the restored ones, in the next term. The node is a new one: its
//! increments cannot be combined with backups of the old node. `IDENTITY` is written last, and the directory cannot be
//! opened before. If a restore ends early, the next restore into the same directory removes the remains.

use std::{
    fs,
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_log::{Draft, Log, LogOptions, Purpose, RECORD_HEADER_BYTES, RecordKind};
use thalweg_replica::{Membership, Vote};
use thalweg_snapshot::{
    Contents, EntryId, EntryItem, EntryKind, Item, LEAST_MEMORY_BYTES, Loader, PartKind, SnapshotInfo, Totals,
    VisitError,
};
use thalweg_state::{
    machine::{Entry, Machine, MachineOptions},
    membership::LogId,
    portable,
};
use thalweg_store::Applied;
use thalweg_types::{
    Clock, Durability, Index, Lsn, NodeId, Revision, SpaceId, SpaceTime, SystemClock, Term,
    limits::MIN_INLINE_VALUE_BYTES,
};

use super::{Part, RestoreError, RestoreTo, plan};
use crate::{
    backends,
    clock_file::ClockFile,
    identity::Identity,
    open::{Barrier, LOG_DIR, lock, random_seed, read_identity},
    open_parts::{LogBlobs, Mode, io_error},
    options::{BackendKind, Options},
    state_dir::StateDir,
    unfinished_restore::{MARKER, is_unfinished},
};

const MARKER_TEXT: &[u8] = b"A restore into this directory did not finish. Run it again, or remove the directory.\n";
/// Maximum number of bytes of entries that a restore appends to the new log in one call.
const BATCH_BYTES: usize = 1 << 20;
/// Highest usual compression ratio: bytes of a snapshot's contents per stored byte.
const USUAL_RATIO: u64 = 8;
/// Maximum number of entries that a restore appends to the new log in one call.
const MAX_TOGETHER: usize = 1000;

/// Progress of a restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RestoreProgress {
    /// Number of parts (snapshots of the backup) that are restored completely.
    pub parts: usize,
    /// Number of all snapshots to be restored.
    pub of: usize,
    /// Numbers of rows, log entries and bytes restored so far, over all snapshots.
    pub totals: Totals,
}

/// Result of a finished restore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Restored {
    /// Id of the node from which the backup was taken.
    pub from: NodeId,
    /// Id of the new node.
    pub node: NodeId,
    /// Backend that keeps the restored state.
    pub backend: BackendKind,
    /// Number of parts (snapshots of the backup) restored.
    pub parts: usize,
    /// LSN of the old node's log below which all entries are restored.
    pub lsn: Lsn,
    /// Revision of the last restored command.
    pub revision: Revision,
    /// Time of the last restored log entry.
    pub time: SpaceTime,
    /// Numbers of rows, log entries and bytes restored.
    pub totals: Totals,
    /// True if the remains of an earlier, unfinished restore into this directory were removed.
    pub removed_unfinished: bool,
}

/// Restores a backup into the directory at `path`. The directory must not exist, or must be empty, or must contain only
/// the remains of an unfinished restore.
pub fn restore(
    path: impl AsRef<Path>,
    parts: &[Part],
    to: RestoreTo,
    options: &Options,
    progress: &mut dyn FnMut(RestoreProgress),
) -> Result<Restored, RestoreError> {
    let path = path.as_ref();
    let exists = || RestoreError::Exists { path: path.display().to_string() };
    match fs::read_dir(path) {
        Ok(entries) => {
            let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
            let unfinished = names.iter().any(|name| name == MARKER) && !names.iter().any(|name| name == "IDENTITY");
            if !unfinished && names.iter().any(|name| name != "LOCK" && name != "lost+found") {
                return Err(exists());
            }
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(exists()),
        Err(error) => return Err(io_error(path, "reading the directory", &error).into()),
    }
    // The plan is made before anything is created: if a backup does not reach the target, no remains are left.
    plan::plan(parts, to)?;
    let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
    let clock: Arc<dyn Clock> = Arc::new(SystemClock::default());
    restore_on(&(Arc::new(disk) as _), &clock, random_seed(), parts, to, options, progress)
}

/// Restores a backup like [`restore`], but to any disk, with any clock and seed.
pub fn restore_on(
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    seed: u64,
    parts: &[Part],
    to: RestoreTo,
    options: &Options,
    progress: &mut dyn FnMut(RestoreProgress),
) -> Result<Restored, RestoreError> {
    let path = backends::shown_path(disk);
    let _lock = lock(disk, &path, Mode::Threaded)?;
    if read_identity(disk, &path)?.is_some() {
        return Err(RestoreError::Exists { path: path.display().to_string() });
    }
    let plan = plan::plan(parts, to)?;
    let backend = options.backend.unwrap_or_default();
    let io = |doing| {
        let path = path.clone();
        move |error: io::Error| io_error(&path, doing, &error)
    };
    let removed_unfinished = is_unfinished(disk);
    if removed_unfinished {
        clear(disk).map_err(io("removing an unfinished restore"))?;
    } else if disk.list(LOG_DIR).is_ok_and(|files| !files.is_empty()) {
        return Err(RestoreError::Exists { path: path.display().to_string() });
    }
    mark(disk).map_err(io("marking the directory as unfinished"))?;
    let node = NodeId(seed);
    let done = fill(disk, clock, node, &plan, to, &Options { backend: Some(backend), ..options.clone() }, progress)?;
    // The restore counts as the last use of the directory: the first open compares the wall clock with the present one.
    // If the present clock is wrong, the backup can be restored once more.
    let used = clock.wall().max(done.time);
    ClockFile::open(disk).and_then(|file| file.save(disk, used)).map_err(io("writing the file CLOCK"))?;
    Identity { node, backend, cluster: None }.write(disk).map_err(io("writing the identity"))?;
    disk.remove(MARKER).and_then(|()| disk.sync_dir("")).map_err(io("removing the marker"))?;
    Ok(Restored { removed_unfinished, ..done })
}

fn mark(disk: &Arc<dyn Disk>) -> io::Result<()> {
    if !is_unfinished(disk) {
        let file = disk.create(MARKER)?;
        file.write_all_at(MARKER_TEXT, 0)?;
        file.sync_all()?;
    }
    disk.sync_dir("")
}

/// Removes the remains of an unfinished restore from a directory, except for the file `RESTORING`.
fn clear(disk: &Arc<dyn Disk>) -> io::Result<()> {
    backends::remove_dir(disk, LOG_DIR)?;
    BackendKind::ALL.into_iter().try_for_each(|kind| backends::remove_dir(disk, &StateDir::FIRST.path(kind)))
}

/// Creates the log and the state of the new directory from the snapshots of the plan. Both are on disk when this
/// returns.
fn fill(
    disk: &Arc<dyn Disk>,
    clock: &Arc<dyn Clock>,
    node: NodeId,
    plan: &[(&Part, SnapshotInfo)],
    to: RestoreTo,
    options: &Options,
    progress: &mut dyn FnMut(RestoreProgress),
) -> Result<Restored, RestoreError> {
    // A plan begins with a full snapshot.
    let Some(((full, info), increments)) = plan.split_first() else { return Err(RestoreError::NoFull { parts: 0 }) };
    let options = &within_memory(options, plan);
    let first_lsn = plan.iter().map(|(_, info)| info.applied.lsn).max().unwrap_or_default();
    let log_options = LogOptions { first_lsn, ..options.log() };
    let opened = Log::open(disk.clone(), LOG_DIR, log_options, clock.clone(), node.0);
    let (log, _) = opened.map_err(crate::error::OpenError::from)?;
    let backend = backends::open(
        disk,
        options.backend.unwrap_or_default(),
        StateDir::FIRST,
        Arc::new(Barrier(log.clone())),
        options,
    )?;
    let mut totals = Totals::default();
    let mut tell = |parts, totals| progress(RestoreProgress { parts, of: plan.len(), totals });
    let mut loader = Loader::new(log.clone(), backend.clone(), info.applied.time, options.memtable_bytes);
    visit(full, |items| {
        for item in items {
            loader.load(item)?;
            totals.add(item);
        }
        tell(0, totals);
        Ok(())
    })?;
    let membership = Membership::of_one(node).encode();
    let applied = Applied { lsn: log.end(), ..info.applied };
    loader.finish(applied, |batch| portable::begin(batch, &applied, &membership))?;
    let inline_value_bytes = options.inline_value_bytes.max(MIN_INLINE_VALUE_BYTES);
    let machine = Machine::open(backend.clone(), MachineOptions { inline_value_bytes })?;
    let machine = machine.with_blobs(Arc::new(LogBlobs(log.clone())));
    let most_bytes = (options.segment_bytes as usize / 4).min(BATCH_BYTES);
    let mut replay = Replay { log: &log, machine: &machine, to, most_bytes, lsn: info.applied.lsn, is_done: false };
    replay.node_record(RecordKind::Purged, info.applied.term, info.applied.index, &[])?;
    for (number, (part, increment)) in increments.iter().enumerate() {
        replay.begin(part, increment)?;
        visit(part, |items| {
            replay.entries(part, items, &mut totals)?;
            tell(number + 1, totals);
            Ok(())
        })?;
        replay.end(part, increment)?;
    }
    let applied = machine.applied();
    let vote = Vote { term: applied.term.next(), node, committed: true };
    replay.node_record(RecordKind::Vote, vote.term, Index::ZERO, &vote.encode())?;
    let lsn = replay.lsn;
    backend.flush()?;
    log.close()?;
    tell(plan.len(), totals);
    Ok(Restored {
        from: info.node,
        node,
        backend: options.backend.unwrap_or_default(),
        parts: plan.len(),
        lsn,
        revision: applied.revision,
        time: applied.time,
        totals,
        removed_unfinished: false,
    })
}

/// Returns the options with memtables and a cache that are not much larger than the backup. A short file may hold much
/// compressed data, which must not fill the memory of this machine.
fn within_memory(options: &Options, plan: &[(&Part, SnapshotInfo)]) -> Options {
    let stored: Option<u64> = plan.iter().map(|(part, _)| part.stored_bytes()).sum();
    let most = stored.map_or(u64::MAX, |stored| stored.saturating_mul(USUAL_RATIO).max(LEAST_MEMORY_BYTES));
    Options {
        memtable_bytes: options.memtable_bytes.min(usize::try_from(most).unwrap_or(usize::MAX)),
        cache_bytes: options.cache_bytes.min(most),
        ..options.clone()
    }
}

fn visit(part: &Part, mut each: impl FnMut(&[Item<'_>]) -> Result<(), RestoreError>) -> Result<(), RestoreError> {
    let contents = part.open().map_err(Into::into).and_then(Contents::open);
    match contents.map_err(|error| part.fault(error))?.visit(&mut each) {
        Ok(_) => Ok(()),
        Err(VisitError::Read(error)) => Err(part.fault(error)),
        Err(VisitError::Visitor(error)) => Err(error),
    }
}

/// Replay of increments: appends their entries to the new log, and applies them to the state.
struct Replay<'a> {
    log: &'a Log,
    machine: &'a Machine,
    to: RestoreTo,
    /// Maximum number of bytes of entries that are appended to the log in one call.
    most_bytes: usize,
    /// LSN of the old node's log below which all entries are applied.
    lsn: Lsn,
    /// True if all log entries up to the target of the restore are applied, so that later ones are ignored.
    is_done: bool,
}

impl Replay<'_> {
    /// Appends a record about the new node itself (its vote, or the last purged entry) to the log, and applies it.
    fn node_record(&self, kind: RecordKind, term: Term, index: Index, payload: &[u8]) -> Result<(), RestoreError> {
        let time = self.machine.applied().time;
        let payload_parts = [IoSlice::new(payload)];
        let draft = Draft { space: SpaceId::ZERO, kind, term, index, time, payload: &payload_parts };
        let next = self.log.append(&[draft], Durability::Os, Purpose::Data)?.next;
        match kind {
            RecordKind::Vote => self.machine.apply_vote(payload, next)?,
            _ => self.machine.apply_purged(LogId { term, index }, next)?,
        }
        Ok(())
    }

    fn begin(&self, part: &Part, info: &SnapshotInfo) -> Result<(), RestoreError> {
        debug_assert_eq!(info.kind, PartKind::Increment);
        let applied = self.machine.applied();
        let here = (applied.term, applied.index, applied.time);
        let before = (info.before.term, info.before.index, info.before.time);
        if info.since == self.lsn && info.before != EntryId::default() && before != here {
            let what = format!(
                "it continues after entry {} (time {} µs), but the last restored entry is {} (time {} µs)",
                before.1, before.2.0, here.1, here.2.0
            );
            return Err(not_contiguous(part, what));
        }
        Ok(())
    }

    fn entries(&mut self, part: &Part, items: &[Item<'_>], totals: &mut Totals) -> Result<(), RestoreError> {
        let mut together = Vec::new();
        let mut bytes = 0;
        for item in items {
            let Item::Entry(entry) = item else { continue };
            if self.is_done || self.is_past(entry) {
                self.is_done = true;
                break;
            }
            if entry.lsn < self.lsn {
                continue;
            }
            let len = entry.payload.len() + RECORD_HEADER_BYTES;
            if together.len() == MAX_TOGETHER || (bytes + len > self.most_bytes && !together.is_empty()) {
                self.apply(part, &together)?;
                together.clear();
                bytes = 0;
            }
            bytes += len;
            together.push(*entry);
            totals.add(item);
        }
        self.apply(part, &together)
    }

    fn is_past(&self, entry: &EntryItem<'_>) -> bool {
        match self.to {
            RestoreTo::End => false,
            RestoreTo::Lsn(lsn) => entry.lsn >= lsn,
            RestoreTo::Time(time) => entry.id.time > time,
        }
    }

    fn apply(&mut self, part: &Part, entries: &[EntryItem<'_>]) -> Result<(), RestoreError> {
        if entries.is_empty() {
            return Ok(());
        }
        self.check_order(part, entries)?;
        let payloads: Vec<_> = entries.iter().map(|entry| [IoSlice::new(entry.payload)]).collect();
        let drafts: Vec<_> = entries
            .iter()
            .zip(&payloads)
            .map(|(entry, payload)| Draft {
                space: SpaceId::ZERO,
                kind: match entry.kind {
                    EntryKind::Commands => RecordKind::Entry,
                    EntryKind::Blank => RecordKind::Blank,
                },
                term: entry.id.term,
                index: entry.id.index,
                time: entry.id.time,
                payload,
            })
            .collect();
        let appended = self.log.append(&drafts, Durability::Os, Purpose::Data)?;
        let (mut at, mut next_lsn) = (appended.payload_at, appended.first);
        let mut outcomes = Vec::new();
        for entry in entries {
            next_lsn = next_lsn.next();
            let EntryId { term, index, time } = entry.id;
            match entry.kind {
                EntryKind::Commands => {
                    let entry = Entry { term, index, time, payload: entry.payload, at, next_lsn };
                    self.machine.apply_for(&entry, false, &mut outcomes)?;
                    outcomes.clear();
                }
                EntryKind::Blank => self.machine.skip(next_lsn, Some((term, index, time)))?,
            }
            at.offset += (entry.payload.len() + RECORD_HEADER_BYTES) as u32;
            self.lsn = entry.lsn.next();
        }
        Ok(())
    }

    /// Checks that the terms, indexes and times of an increment's log entries never go back.
    fn check_order(&self, part: &Part, entries: &[EntryItem<'_>]) -> Result<(), RestoreError> {
        let applied = self.machine.applied();
        let (mut term, mut index, mut time) = (applied.term, applied.index, applied.time);
        for entry in entries {
            if entry.id.index.0 != index.0.saturating_add(1) || entry.id.term < term {
                let what = format!(
                    "entry {index} of term {term} is followed by entry {} of term {}",
                    entry.id.index, entry.id.term
                );
                return Err(not_contiguous(part, what));
            }
            // If the entry were applied with the previous time, `mover::window` could not find its batch by the time in
            // the log's record.
            if entry.id.time < time {
                let what = format!(
                    "entry {index} has time {} µs, and entry {} after it has time {} µs",
                    time.0, entry.id.index, entry.id.time.0
                );
                return Err(not_contiguous(part, what));
            }
            (term, index, time) = (entry.id.term, entry.id.index, entry.id.time);
        }
        Ok(())
    }

    /// Checks, at the end of an increment, that the restored state has reached the position that the increment states.
    fn end(&mut self, part: &Part, info: &SnapshotInfo) -> Result<(), RestoreError> {
        if self.is_done {
            return Ok(());
        }
        let applied = self.machine.applied();
        let (here, there) = ((applied.index, applied.revision), (info.applied.index, info.applied.revision));
        if here != there {
            let what = format!(
                "it states entry {} and revision {} as its end, but its entries end at {} and {}",
                there.0, there.1, here.0, here.1
            );
            return Err(not_contiguous(part, what));
        }
        if applied.running_hash != info.applied.running_hash {
            let what = format!(
                "its entries should produce the running hash {:016x}, but produced {:016x}",
                info.applied.running_hash, applied.running_hash
            );
            return Err(not_contiguous(part, what));
        }
        // The records between the last entry and the end of the increment concern only the old node.
        self.lsn = match self.to {
            RestoreTo::Lsn(lsn) => info.applied.lsn.min(lsn),
            _ => info.applied.lsn,
        };
        Ok(())
    }
}

fn not_contiguous(part: &Part, what: String) -> RestoreError {
    RestoreError::DoesNotFollow { part: part.name().to_owned(), what }
}
