//! Reads of entries from the replicated log.
//!
//! Owns: [`LogReader`], which openraft, the applier and replication all use. Does not own: the cache of the newest
//! entries (see `tail`), the positions of the others (see `index`), and the entries that are read ahead (`read_ahead`).
//!
//! Entries that are not cached are read from the file on the caller's thread. Such a read begins up to 1 MiB before the
//! first entry. If a follower lacks old entries, they are read for several appends at a time, on another thread if the
//! node has one ([`LogReader::read_old_entries_elsewhere`]). That thread may have a low priority, so it takes no lock
//! of the log. It also holds no handle of the log, because a handle would keep the directory of a stopped node locked.
//! Instead, the caller's thread looks up the position before the read, and checks it afterwards.
//!
//! At its start, openraft searches the entries that the state has not applied for the newest two memberships, 64
//! entries at a time, from the last entry back. After a kill there can be a million such entries. Until openraft has
//! started, readers therefore return only entries with a membership.

use std::{
    fmt::{self, Debug},
    io,
    ops::{Bound, Range, RangeBounds, RangeInclusive},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    vec,
};

use futures_util::{Stream, future::LocalBoxFuture, stream};
use openraft::{OptionalSend, RaftLogReader, async_runtime::AsyncRuntime};
use thalweg_log::{Log, LogRecord, ReadError, Records};
use thalweg_replica::{Membership, Valid};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, SpaceId, SpaceTime};

use crate::{
    convert::{entry_of, log_id, raft_log_id, raft_vote},
    error::StoreError,
    read_ahead::ReadAhead,
    space_log::{SpaceLog, StoreStats},
    types::{RaftEntry, RaftLogId, RaftVote, Types},
    written::Written,
};

/// Divisor for the size of a read of entries that are not cached: the read returns at most `max_read_bytes` divided by
/// this number. Copying 1 MiB would occupy the consensus thread for a millisecond.
const OLD_SHARE: usize = 4;
/// Bytes of entries that another thread reads from the file at a time, as a multiple of the most that one append takes.
/// The entries wait in memory until they are sent.
const READS_AHEAD: usize = 2;

/// Function that reads entries from the file. It can run on any thread.
pub type EntryRead = Box<dyn FnOnce() -> Result<Vec<RaftEntry>, StoreError> + Send>;

/// Function that runs a read of entries on another thread.
type RunElsewhere = Box<dyn Fn(EntryRead) -> LocalBoxFuture<'static, Result<Vec<RaftEntry>, StoreError>> + Send + Sync>;

/// Function that runs a read of entries on another thread; empty until the node sets it.
#[derive(Default)]
struct OtherThread(OnceLock<RunElsewhere>);

impl fmt::Debug for OtherThread {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OtherThread").field(&self.0.get().is_some()).finish()
    }
}

/// A prepared read of entries from the log's file that has not begun.
#[derive(Debug)]
struct FileRead {
    /// Reader of the node's log. It begins at or before the first entry to read.
    records: Result<Records, ReadError>,
    valid: Valid,
    wanted: Range<Index>,
    /// Number of truncations of the log when the read was prepared.
    truncations: u64,
}

impl FileRead {
    /// Performs the read. Returns the records of the entries, with the bounds of [`LogReader::records`].
    fn perform(self, max_bytes: usize) -> Result<Vec<LogRecord>, StoreError> {
        let Self { records, valid, wanted, .. } = self;
        let mut next = wanted.start;
        let (mut found, mut bytes) = (Vec::new(), 0);
        for record in records? {
            let record = record?;
            if !valid.is_entry(&record) || record.index < next {
                continue;
            }
            if record.index != next {
                return Err(StoreError::Gap { expected: next, found: record.index });
            }
            bytes += record.payload.len();
            if bytes > max_bytes && !found.is_empty() {
                return Ok(found);
            }
            found.push(record);
            next = next.next();
            if next == wanted.end {
                return Ok(found);
            }
        }
        Err(StoreError::Missing(next))
    }
}

/// Result of preparing a read of entries: the records, or a read of the file that must still be performed.
#[derive(Debug)]
enum EntryPlace {
    /// The records of the entries, which were in memory; empty if there are none.
    Memory(Vec<LogRecord>),
    File(Box<FileRead>),
}

/// Reader of the replicated log. Clones are cheap, and any thread may use one.
#[derive(Clone, Debug)]
pub struct LogReader {
    pub(crate) log: Log,
    pub(crate) space: SpaceId,
    max_read_bytes: usize,
    space_log: Arc<Mutex<SpaceLog>>,
    /// True while openraft starts. Readers then return only entries with memberships.
    is_start: Arc<AtomicBool>,
    other_thread: Arc<OtherThread>,
    ahead: ReadAhead,
}

impl LogReader {
    pub(crate) fn new(log: Log, space: SpaceId, max_read_bytes: usize, space_log: SpaceLog) -> Self {
        let (space_log, is_start) = (Arc::new(Mutex::new(space_log)), Arc::new(AtomicBool::new(false)));
        let (other_thread, ahead) = (Arc::default(), ReadAhead::default());
        Self { log, space, max_read_bytes, space_log, is_start, other_thread, ahead }
    }

    /// Makes all readers of this log pass their reads of old entries for followers to `run`, which runs them on another
    /// thread. Only the first call has an effect. Without such a call, as in the simulation, the caller's thread reads
    /// the entries itself.
    pub fn read_old_entries_elsewhere<F>(&self, run: F)
    where
        F: Fn(EntryRead) -> LocalBoxFuture<'static, Result<Vec<RaftEntry>, StoreError>> + Send + Sync + 'static,
    {
        let _ = self.other_thread.0.set(Box::new(run));
    }

    /// Returns true if the entry at `index` is not cached and must be read from the file.
    #[must_use]
    pub fn is_old(&self, index: Index) -> bool {
        self.cached(index).is_none()
    }

    /// Marks the begin of openraft's start. Until [`end_start`](Self::end_start), a read of more than one entry returns
    /// only the entries with the newest two memberships, on all readers of this log.
    pub fn begin_start(&self) {
        self.is_start.store(true, Relaxed);
    }

    /// Marks the end of openraft's start; see [`begin_start`](Self::begin_start).
    pub fn end_start(&self) {
        self.is_start.store(false, Relaxed);
    }

    /// Returns the entries with the newest two memberships among those from `from` to below `to`. Returns `None`, and
    /// the caller reads all entries, if openraft is not starting, if the range has only one entry, or if the newest
    /// memberships are not known.
    fn memberships_at_start(&self, from: Index, to: Index) -> Option<Result<Vec<RaftEntry>, StoreError>> {
        if !self.is_start.load(Relaxed) || to <= from.next() {
            return None;
        }
        let found = self.space_log().newest_memberships(from, to)?;
        let read = |index: Index| self.entries(index, index.next(), usize::MAX);
        Some(found.into_iter().map(read).collect::<Result<Vec<_>, _>>().map(|found| found.concat()))
    }

    pub(crate) fn space_log(&self) -> MutexGuard<'_, SpaceLog> {
        // The memory is changed only after the log on disk, in steps that do not panic. So a poisoned lock can be used.
        self.space_log.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the id of the last entry that the log may have freed; `None` if none was purged.
    #[must_use]
    pub fn purged(&self) -> Option<LogId> {
        self.space_log().purged
    }

    /// Returns the id of the log's last entry; if the log has none, that of the last purged entry.
    #[must_use]
    pub fn last(&self) -> Option<LogId> {
        self.space_log().last()
    }

    /// Returns the payload bytes of the entries after `index` that the log contains. The result is an estimate: the
    /// index of positions knows exact sums only every 64 KiB of the log, and between them all entries count as equally
    /// large.
    #[must_use]
    pub fn bytes_after(&self, index: Index) -> u64 {
        self.space_log().index.bytes_from(index.next())
    }

    /// Returns the newest membership among the entries; `None` if all memberships were purged or the log has none.
    #[must_use]
    pub fn membership(&self) -> Option<(LogId, Membership)> {
        self.space_log().memberships.last().cloned()
    }

    /// Returns true if this node has ever voted, or acknowledged a leader.
    pub(crate) fn has_voted(&self) -> bool {
        self.space_log().vote.is_some()
    }

    /// Returns the number of entries in the replicated log, and the memory that it takes.
    #[must_use]
    pub fn stats(&self) -> StoreStats {
        self.space_log().stats()
    }

    /// Returns the record of an entry that is in memory; `None` for an older one.
    pub(crate) fn cached(&self, index: Index) -> Option<LogRecord> {
        self.space_log().tail.from(index)?.next().cloned()
    }

    /// Returns the times of the append that wrote an entry; `None` if this node has not written the entry recently.
    pub(crate) fn written(&self, index: Index) -> Option<Written> {
        self.space_log().written.of(index)
    }

    /// Reads the records of the entries from `from` to below `to` that the log contains. Returns at most `max_bytes` of
    /// payload, but at least one entry. Never returns a void entry.
    pub fn records(&self, from: Index, to: Index, max_bytes: usize) -> Result<Vec<LogRecord>, StoreError> {
        loop {
            let read = match self.place(from, to, max_bytes)? {
                EntryPlace::Memory(records) => return Ok(records),
                EntryPlace::File(read) => read,
            };
            let (first, truncations) = (read.wanted.start, read.truncations);
            let found = read.perform(max_bytes);
            if self.is_current(first, truncations) {
                return found;
            }
        }
    }

    /// Returns the records of the entries from `from` to below `to` if they are in memory, and otherwise a prepared
    /// read of the file.
    fn place(&self, from: Index, to: Index, max_bytes: usize) -> Result<EntryPlace, StoreError> {
        let space_log = self.space_log();
        let from = from.max(space_log.index.first());
        let to = to.min(space_log.index.next());
        if from >= to {
            return Ok(EntryPlace::Memory(Vec::new()));
        }
        if let Some(cached) = space_log.tail.from(from) {
            let wanted = cached.take_while(|record| record.index < to).cloned();
            return Ok(EntryPlace::Memory(take_bytes(wanted, max_bytes)));
        }
        let anchor = space_log.index.seek(from).ok_or(StoreError::Missing(from))?;
        let (valid, truncations) = (Valid::of(&self.log, self.space), space_log.truncations);
        drop(space_log);
        // The anchor's segment may have been freed. The segment with the first entry after the purged one is still
        // there.
        let records = match self.log.records_from(anchor) {
            Err(ReadError::Compacted { oldest }) => self.log.records_from(oldest),
            records => records,
        };
        Ok(EntryPlace::File(Box::new(FileRead { records, valid, wanted: from..to, truncations })))
    }

    /// Returns true if the log was neither truncated nor purged during a read that began at entry `from`. `truncations`
    /// is the number of truncations before the read. With false, the result of the read may be wrong.
    fn is_current(&self, from: Index, truncations: u64) -> bool {
        let space_log = self.space_log();
        space_log.truncations == truncations && space_log.index.first() <= from
    }

    /// Reads the entries for several messages to a follower, beginning at `from`. If the entries are not in memory,
    /// passes the read of the file to `run`.
    async fn read_ahead(&self, from: Index, run: &RunElsewhere) -> Result<ReadAhead, StoreError> {
        let max_bytes = READS_AHEAD * self.max_read_bytes;
        loop {
            let truncations = self.space_log().truncations;
            let read = match self.place(from, Index(u64::MAX), max_bytes)? {
                EntryPlace::Memory(records) => {
                    let entries = records.iter().map(entry_of).collect::<Result<_, _>>()?;
                    return Ok(ReadAhead::new(entries, truncations));
                }
                EntryPlace::File(read) => read,
            };
            let (first, truncations) = (read.wanted.start, read.truncations);
            let perform = move || -> Result<Vec<RaftEntry>, StoreError> {
                read.perform(max_bytes)?.iter().map(entry_of).collect()
            };
            let found = run(Box::new(perform)).await;
            if self.is_current(first, truncations) {
                return Ok(ReadAhead::new(found?, truncations));
            }
        }
    }

    /// Returns the time of the very first entry; `None` if it was purged or there is none. The first entry is a
    /// membership. Memberships take the time of the entry before them, and here there is none, so the leader sends the
    /// time to a follower together with the entry.
    #[must_use]
    pub fn first_time(&self) -> Option<SpaceTime> {
        let is_here = {
            let space_log = self.space_log();
            space_log.purged.is_none() && !space_log.index.is_empty()
        };
        is_here.then(|| self.time_of(Index::ZERO).ok()).flatten()
    }

    /// Sets the time that the first entry will get, if the log has no entries yet.
    pub(crate) fn set_first_time(&self, time: SpaceTime) {
        let mut space_log = self.space_log();
        if space_log.purged.is_none() && space_log.index.is_empty() {
            space_log.last_time = space_log.last_time.max(time);
        }
    }

    /// Returns the time of the entry at `index`, by the members' common clock. The entry must be in the log.
    pub(crate) fn time_of(&self, index: Index) -> Result<SpaceTime, StoreError> {
        let found = self.records(index, index.next(), usize::MAX)?;
        found.first().map(|record| record.time).ok_or(StoreError::Missing(index))
    }

    fn entries(&self, from: Index, to: Index, max_bytes: usize) -> Result<Vec<RaftEntry>, StoreError> {
        self.records(from, to, max_bytes)?.iter().map(entry_of).collect()
    }
}

/// Takes records from the iterator up to `max_bytes` of payload in total, but at least one record.
fn take_bytes(records: impl Iterator<Item = LogRecord>, max_bytes: usize) -> Vec<LogRecord> {
    let (mut taken, mut bytes) = (Vec::new(), 0);
    for record in records {
        bytes += record.payload.len();
        if bytes > max_bytes && !taken.is_empty() {
            break;
        }
        taken.push(record);
    }
    taken
}

/// Returns the first index of a range, and the index after its last one.
fn bounds(range: &impl RangeBounds<u64>) -> (Index, Index) {
    let from = match range.start_bound() {
        Bound::Included(first) => *first,
        Bound::Excluded(before) => before.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let to = match range.end_bound() {
        Bound::Included(last) => last.saturating_add(1),
        Bound::Excluded(after) => *after,
        Bound::Unbounded => u64::MAX,
    };
    (Index(from), Index(to))
}

/// Iterator over the entries from one index to another. It reads them from the log in several reads of bounded size.
struct Entries {
    reader: LogReader,
    from: Index,
    to: Index,
    piece: vec::IntoIter<RaftEntry>,
}

impl Iterator for Entries {
    type Item = io::Result<RaftEntry>;

    fn next(&mut self) -> Option<io::Result<RaftEntry>> {
        if let Some(entry) = self.piece.next() {
            return Some(Ok(entry));
        }
        match self.reader.entries(self.from, self.to, self.reader.max_read_bytes) {
            Ok(piece) => {
                self.from = piece.last().map_or(self.to, |last| Index(last.log_id.index).next());
                self.piece = piece.into_iter();
                self.piece.next().map(Ok)
            }
            Err(error) => {
                self.from = self.to;
                Some(Err(error.into()))
            }
        }
    }
}

impl<Rt: AsyncRuntime> RaftLogReader<Types<Rt>> for LogReader {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        let found = self.memberships_at_start(from, to).unwrap_or_else(|| self.entries(from, to, usize::MAX));
        Ok(found?)
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.space_log().vote.map(raft_vote))
    }

    async fn limited_get_log_entries(&mut self, start: u64, end: u64) -> io::Result<Vec<RaftEntry>> {
        let (from, to) = (Index(start), Index(end));
        if !self.is_old(from) {
            self.ahead = ReadAhead::default();
            return Ok(self.entries(from, to, self.max_read_bytes)?);
        }
        let max_bytes = self.max_read_bytes / OLD_SHARE;
        let Some(run) = self.other_thread.0.get() else { return Ok(self.entries(from, to, max_bytes)?) };
        if !self.ahead.has(from, self.space_log().truncations) {
            // Releases the entries of the former read before the next read allocates memory.
            self.ahead = ReadAhead::default();
            self.ahead = self.read_ahead(from, run).await?;
        }
        Ok(self.ahead.take(to, max_bytes))
    }

    async fn entries_stream<RB>(&mut self, range: RB) -> impl Stream<Item = io::Result<RaftEntry>> + OptionalSend
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let (from, to) = bounds(&range);
        stream::iter(Entries { reader: self.clone(), from, to, piece: Vec::new().into_iter() })
    }

    async fn get_key_log_ids(&mut self, range: RangeInclusive<RaftLogId>) -> io::Result<Vec<RaftLogId>> {
        // Returns the last entry of each term. openraft's own implementation and its test suite agree with this; only
        // the documentation of this method still says the first entry of each term.
        let (first, last) = (log_id(range.start()), log_id(range.end()));
        let space_log = self.space_log();
        Ok(space_log.index.term_ends(first.index, last.index).chain([last]).map(raft_log_id).collect())
    }
}
