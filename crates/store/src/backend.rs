//! The interface of a state backend: an ordered map of bytes to bytes that stores the data of a space (a Raft group).
//!
//! Owns: the traits, and the values that cross them: batches, positions, statistics. Does not own: the backends, the
//! meaning of keys and values, or the decision when to flush and compact.
//!
//! Invariants, which every backend keeps:
//! * A batch and its position take effect together, for readers and after a crash. The newest persisted position is at
//!   most the applied one.
//! * A backend calls its [`LogBarrier`] before it persists anything, so the persisted state is never ahead of the log
//!   on disk.
//! * A view never changes.

use std::{any::Any, fmt, io, ops::Bound, ops::ControlFlow, sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_types::{Action, Classified, Index, Lsn, Revision, SpaceTime, Term};

/// Position in a space's log up to which its log records are applied to the state (a space is a Raft group). The
/// backend stores this position together with the data of the same batch, so the position and the data never disagree.
///
/// Invariant: the position never decreases. `lsn` is exclusive: all records of the space below it are applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Exclusive end of the applied records: the first LSN that a replay of the log applies.
    pub lsn: Lsn,
    /// Raft term of the last applied log entry.
    pub term: Term,
    /// Raft index of the last applied log entry.
    pub index: Index,
    /// Revision (number of successful commits) after the last applied command.
    pub revision: Revision,
    /// Timestamp of the last applied log entry, by the clock that all replicas share (space time).
    pub time: SpaceTime,
    /// Hash over the outcomes and the replicated writes of all applied entries. All replicas have the same hash at
    /// the same index (see `docs/formats/state.md`).
    pub running_hash: u64,
}

impl Applied {
    /// Version of the encoding of an applied position. Version 1 had no running hash (a hash over all applied entries).
    pub(crate) const VERSION: u8 = 2;
    const FIELDS: usize = 6;
    /// Size of an encoded applied position in bytes.
    pub(crate) const ENCODED_BYTES: usize = 1 + Self::FIELDS * 8;

    /// Returns the fields of the applied position in their stored order.
    pub(crate) fn fields(&self) -> [u64; Self::FIELDS] {
        [self.lsn.0, self.term.0, self.index.0, self.revision.0, self.time.0, self.running_hash]
    }

    pub(crate) fn of_fields([lsn, term, index, revision, time, running_hash]: [u64; Self::FIELDS]) -> Self {
        Self {
            lsn: Lsn(lsn),
            term: Term(term),
            index: Index(index),
            revision: Revision(revision),
            time: SpaceTime(time),
            running_hash,
        }
    }

    /// Encodes the applied position as a version byte and six little-endian numbers. Backends store these bytes with
    /// their data.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::ENCODED_BYTES);
        bytes.push(Self::VERSION);
        for field in self.fields() {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Decodes an applied position. Returns [`BackendError::Format`] for another version of the encoding, and the error
    /// that `corrupt` creates for all other invalid bytes.
    pub(crate) fn decode(bytes: &[u8], corrupt: impl FnOnce() -> BackendError) -> Result<Self, BackendError> {
        let Some((&version, fields)) = bytes.split_first() else { return Err(corrupt()) };
        if version != Self::VERSION {
            return Err(BackendError::Format { found: version, supported: Self::VERSION });
        }
        let (fields, rest) = fields.as_chunks::<8>();
        match <[_; Self::FIELDS]>::try_from(fields) {
            Ok(fields) if rest.is_empty() => Ok(Self::of_fields(fields.map(u64::from_le_bytes))),
            _ => Err(corrupt()),
        }
    }
}

/// Choice of when an applied batch of changes becomes durable on disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// The backend persists batches later, in bulk, and never before their log records are durable. After a crash, the
    /// log is replayed. Applying a batch only changes memory.
    #[default]
    BehindLog,
    /// Each batch is durable when `apply` returns. This mode is for a state without a log, and for comparing backends
    /// alone. Applying a batch costs at least one fsync.
    PerBatch,
}

impl SyncMode {
    /// All choices of when applied batches become durable.
    pub const ALL: [Self; 2] = [Self::BehindLog, Self::PerBatch];
}

/// Maximum memory in bytes that a cleared batch keeps for its bytes, and separately for its list of changes. Batches of
/// ordinary log entries fit, because an entry has at most 4 MiB of commands.
const MAX_IDLE_BYTES: usize = 8 * 1024 * 1024;

/// A batch of changes that become visible together and survive a crash together. Clearing the batch keeps its allocated
/// memory.
///
/// If a key occurs more than once in the batch, the last change of the key wins.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    key_at: usize,
    key_len: u32,
    /// Length in bytes of the value that the change writes; `u32::MAX` for a delete.
    value_len: u32,
}

/// One change of a [`WriteBatch`]: a put or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Sets a key (first field) to a value (second field).
    Put(&'a [u8], &'a [u8]),
    /// Removes a key, if it exists.
    Delete(&'a [u8]),
}

impl WriteBatch {
    /// Creates a batch without changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a change that sets a key to a value. Key and value are each concatenated from the given slices.
    #[inline]
    pub fn put(&mut self, key: &[&[u8]], value: &[&[u8]]) {
        let key_at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let value_at = self.bytes.len();
        value.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let (key_len, value_len) = ((value_at - key_at) as u32, (self.bytes.len() - value_at) as u32);
        self.ops.push(Op { key_at, key_len, value_len });
    }

    /// Adds a change that removes a key. The key is concatenated from the given slices.
    #[inline]
    pub fn delete(&mut self, key: &[&[u8]]) {
        let key_at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ops.push(Op { key_at, key_len: (self.bytes.len() - key_at) as u32, value_len: u32::MAX });
    }

    /// Iterates over the changes of the batch, in the order in which they were added.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = Change<'_>> {
        self.ops.iter().map(|op| self.change_of(op))
    }

    /// Iterates over the changes in the order in which they were added. Each change is returned with one slice that
    /// contains its key and its value, one after the other.
    pub fn changes_whole(&self) -> impl ExactSizeIterator<Item = (Change<'_>, &[u8])> {
        self.ops.iter().map(|op| {
            let value_len = if op.value_len == u32::MAX { 0 } else { op.value_len as usize };
            (self.change_of(op), &self.bytes[op.key_at..op.key_at + op.key_len as usize + value_len])
        })
    }

    /// Returns the change with this index, counted from 0, or `None` if the batch has no such change.
    #[inline]
    pub fn change(&self, number: u32) -> Option<Change<'_>> {
        self.ops.get(number as usize).map(|op| self.change_of(op))
    }

    #[inline]
    fn change_of(&self, op: &Op) -> Change<'_> {
        let key_end = op.key_at + op.key_len as usize;
        let key = &self.bytes[op.key_at..key_end];
        if op.value_len == u32::MAX {
            Change::Delete(key)
        } else {
            Change::Put(key, &self.bytes[key_end..key_end + op.value_len as usize])
        }
    }

    /// Overwrites the beginning of the value of the put with index `number`, and returns the replaced bytes. Returns
    /// `None` if this change does not exist, is a delete, or has a value shorter than `beginning`. A later change of
    /// the same key in the batch still wins.
    pub fn overwrite(&mut self, number: u32, beginning: &[u8]) -> Option<Box<[u8]>> {
        let op = self.ops.get(number as usize)?;
        if op.value_len == u32::MAX || (op.value_len as usize) < beginning.len() {
            return None;
        }
        let value_at = op.key_at + op.key_len as usize;
        let bytes = &mut self.bytes[value_at..value_at + beginning.len()];
        let before = (&*bytes).into();
        bytes.copy_from_slice(beginning);
        Some(before)
    }

    /// Removes all changes of the batch except the first `len`.
    pub fn truncate(&mut self, len: usize) {
        if let Some(op) = self.ops.get(len) {
            self.bytes.truncate(op.key_at);
            self.ops.truncate(len);
        }
    }

    /// Returns the number of changes in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Returns true if the batch has no changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Returns the total size in bytes of all keys and values in the batch.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Checks that each key in the batch satisfies the rules of [`Backend`].
    pub(crate) fn check(&self) -> Result<(), BackendError> {
        for op in &self.ops {
            match (op.key_len, self.bytes.get(op.key_at)) {
                (0, _) => return Err(BackendError::BadBatch("a key is empty")),
                (65_536.., _) => return Err(BackendError::BadBatch("a key is longer than 65,535 bytes")),
                (_, Some(0xff)) => return Err(BackendError::BadBatch("a key begins with the reserved byte 0xff")),
                _ => {}
            }
        }
        Ok(())
    }

    /// Removes all changes from the batch. The batch keeps its allocated memory, up to 8 MiB for the bytes and 8 MiB
    /// for the list of changes.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
        self.bytes.shrink_to(MAX_IDLE_BYTES);
        self.ops.shrink_to(MAX_IDLE_BYTES / size_of::<Op>());
    }
}

/// Order in which a scan visits keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// The scan visits keys in ascending order.
    #[default]
    Forward,
    /// The scan visits keys in descending order.
    Reverse,
}

/// Callback that a scan calls with each key and value. Both are borrowed only for the duration of the call. If the
/// callback returns `Break`, the scan ends.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Returns true if no key can lie within the bounds. Callers check this before they use a map that panics on
/// inverted bounds.
pub fn bounds_are_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    use Bound::{Excluded, Included};
    match (lower, upper) {
        (Included(low), Included(high)) => low > high,
        (Included(low) | Excluded(low), Included(high) | Excluded(high)) => low >= high,
        _ => false,
    }
}

/// A consistent, immutable view of a backend's map, as the map was after one batch. A view keeps old data alive while
/// the view exists.
pub trait View: Send + Sync {
    /// Returns the value of a key; `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;
    /// Calls `show` with the value of a key, without copying the value if it is in memory. Does not call `show` if the
    /// key does not exist.
    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        if let Some(value) = self.get(key)? {
            show(&value);
        }
        Ok(())
    }
    /// Requests from the disk the bytes that a read of this key will need, if they are not in memory, and does not wait
    /// for them. A caller that reads several keys first requests all of them, so that the disk has several reads at a
    /// time. The default implementation does nothing.
    fn read_ahead(&self, _key: &[u8]) {}
    /// Calls `visit` with the pairs of key and value within the bounds, in order. Keys compare as unsigned bytes.
    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError>;
    /// Calls `visit` with the pairs from a bound to the end of the map, in ascending order. Meant for reading the whole
    /// map once: caches no blocks, so that other readers' blocks stay cached, and shares no lock with other readers.
    fn scan_once(&self, lower: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        self.scan(lower, Bound::Unbounded, Direction::Forward, visit)
    }
    /// Returns a cursor over the pairs within the bounds, in the order of a [scan](Self::scan). The cursor keeps the
    /// view's data alive. Returns `None` if views of this backend have no cursors; callers then scan.
    fn cursor(
        &self,
        _lower: Bound<&[u8]>,
        _upper: Bound<&[u8]>,
        _direction: Direction,
    ) -> Result<Option<Box<dyn PairCursor>>, BackendError> {
        Ok(None)
    }
    /// Returns the position in the log up to which the view's data is applied.
    fn applied(&self) -> Applied;
}

/// A cursor over the pairs of a view. At first it is before the first pair.
pub trait PairCursor: Send + Sync {
    /// Moves to the next pair. Returns false after the last pair. Also returns false if the
    /// [budget](thalweg_types::budget) of the thread's read is spent; a later call then continues from the same
    /// position.
    fn advance(&mut self) -> Result<bool, BackendError>;
    /// Returns key and value of the pair on which the cursor is positioned; `None` before the first pair and after the
    /// last.
    fn pair(&self) -> Option<(&[u8], &[u8])>;
    /// Returns a copy of the cursor, at the same position over the same pairs.
    fn boxed_clone(&self) -> Box<dyn PairCursor>;
}

impl Clone for Box<dyn PairCursor> {
    fn clone(&self) -> Self {
        (**self).boxed_clone()
    }
}

/// Makes the log durable up to an LSN. A backend calls this barrier before it persists changes, so that the persisted
/// state is never ahead of the log on disk.
pub trait LogBarrier: Send + Sync {
    /// Blocks until all log records below `lsn` are on disk. An error is final: the backend must persist nothing
    /// afterwards.
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed>;
}

/// Error returned when the log could not be made durable. The backend must persist nothing afterwards.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has failed: {0}")]
pub struct BarrierFailed(pub String);

/// An ordered map of bytes to bytes with atomic batches. Keys are 1 to 65,535 bytes long and don't begin with the
/// byte 0xff, which backends reserve for their own data.
///
/// `apply` and `flush` may be called during reads. Two threads never call `apply` at the same time; any thread may
/// call every other method at any time.
pub trait Backend: Any + Send + Sync + fmt::Debug {
    /// Applies a batch atomically and stores the position `applied` with the batch. While flushes and compactions are
    /// behind, the call may pause for up to 50 ms, and may block until there is room (a write stall); the statistics
    /// count both. Every view created afterwards contains the whole batch. The batch is not durable yet when the call
    /// returns, except in [`SyncMode::PerBatch`].
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError>;
    /// Returns the log position up to which batches have been applied; `None` for a new state.
    fn applied(&self) -> Option<Applied>;
    /// Returns the applied position that would survive a power loss now. The log may drop all records below this
    /// position.
    fn persisted(&self) -> Option<Applied>;
    /// Returns the newest value of a key; `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;
    /// Calls `show` with the newest value of a key, without copying the value. Does not call `show` if the key does not
    /// exist.
    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        if let Some(value) = self.get(key)? {
            show(&value);
        }
        Ok(())
    }
    /// Hints that the caller will read these keys next. A backend can load the memory of all keys into the processor's
    /// cache in one pass, so that the cache misses overlap. The default implementation does nothing.
    fn warm(&self, _keys: &[&[u8]]) {}
    /// Blocks until flushes and compactions have caught up so far that the next [`apply`](Self::apply) does not wait
    /// for them; `bytes` is the expected size of its batch. A caller that holds a lock during `apply` calls this
    /// function before it takes the lock. If the batch turns out larger, `apply` may exceed the bound on memory by one
    /// memtable instead of waiting. The default implementation does nothing, for backends whose `apply` never waits.
    fn make_room(&self, _bytes: usize) -> Result<(), BackendError> {
        Ok(())
    }
    /// Returns true if the next [`apply`](Self::apply) may pause or block, because flushes and compactions are behind.
    /// In this case, a thread that must not wait passes the batch to another thread. Takes no lock.
    fn may_wait(&self) -> bool {
        false
    }
    /// Makes [`apply`](Self::apply) and [`make_room`](Self::make_room) skip the pauses that slow writes down. The
    /// caller then sleeps for [`take_pause`](Self::take_pause). Both functions still block when there is no room.
    fn leave_pauses(&self) {}
    /// Returns the sum of the pauses, at most 1 s, that writes have skipped since the last call.
    fn take_pause(&self) -> Duration {
        Duration::ZERO
    }
    /// Returns the newest consistent view of the backend's map.
    fn view(&self) -> Arc<dyn View>;
    /// Persists all batches that were applied before the call: first makes the log durable (through the barrier), then
    /// the state. Returns the position that is persisted afterwards. Blocks.
    fn flush(&self) -> Result<Option<Applied>, BackendError>;
    /// Flushes the state to disk, and removes overwritten and deleted data if the backend supports this: an LSM tree
    /// merges all its tables. Other backends only flush. Blocks.
    fn compact(&self) -> Result<(), BackendError> {
        self.flush().map(drop)
    }
    /// Flushes the state to disk if so much has changed since the last flush that a replay of the log would take long.
    /// A background thread calls this function periodically. Blocks.
    fn maintain(&self) -> Result<(), BackendError>;
    /// Flushes the state to disk if the changes since the last flush take at least `bytes` bytes of memory. Returns
    /// true if it did. A caller that has seen no writes for a while calls this, so that the log need not keep the
    /// changes. Blocks. The default implementation does nothing, for backends whose flush writes the whole state.
    fn flush_above(&self, _bytes: usize) -> Result<bool, BackendError> {
        Ok(false)
    }
    /// Reads all persisted data and verifies it. This also finds damage that reads would not notice. Calls `step` with
    /// the number of bytes read since the last call; if `step` returns `Break`, the verification ends early. Returns
    /// [`BackendError::Corrupt`] for the first damage. The default implementation is for a backend that persists
    /// nothing.
    fn verify(&self, _step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        Ok(VerifiedRows { is_complete: true, ..VerifiedRows::default() })
    }
    /// Returns the backend's ability to persist batches.
    fn health(&self) -> BackendHealth {
        BackendHealth::Good
    }
    /// Returns an estimate, cheap to compute, of the bytes of disk space that persisting all applied batches takes at
    /// most.
    fn bytes_to_persist(&self) -> u64 {
        0
    }
    /// Returns the number of free bytes within the backend's files, which the backend uses again before its files grow.
    /// This is an estimate; the true number is usually larger.
    fn reusable_bytes(&self) -> u64 {
        0
    }
    /// Does pending background work on the caller's thread, if the backend was opened without threads for this work
    /// ([`Background::Stepped`](crate::Background::Stepped)). Returns true if anything was persisted or compacted.
    /// Blocks during file operations.
    fn step(&self) -> bool {
        false
    }
    /// Asks a background thread to return the space of overwritten and deleted data to the disk. The thread uses only
    /// the disk space that is free now. Does not wait. Backends that keep this space for later data do nothing.
    fn reclaim_space(&self) {}
    /// Returns the backend's statistics for reports and metrics.
    fn stats(&self) -> BackendStats;
    /// Makes this backend continue with the state of `other`, a backend of the same kind in another directory. Readers
    /// see the new state immediately: a caller that has seen it does not see the former state again. Views that were
    /// taken before stay valid while they exist. The former state is not persisted any further.
    ///
    /// No thread may call `apply` of either backend during the call, and `other` must only be dropped afterwards. Takes
    /// a few microseconds; dropping the result waits for the threads of the former state.
    ///
    /// # Errors
    /// [`BackendError::OtherKind`]: the backend cannot continue with `other`. Nothing has changed.
    fn replace_with(&self, other: &dyn Backend) -> Result<Replaced, BackendError> {
        let _ = other;
        Err(BackendError::OtherKind { kind: self.name() })
    }
    /// Returns the backend's name in the configuration, such as `memory` or `lsm`.
    fn name(&self) -> &'static str;
}

/// The former state of a backend after [`Backend::replace_with`]. Dropping this value stops the threads of the former
/// state and waits for them; afterwards its files may be removed.
pub struct Replaced {
    _former: Box<dyn Send>,
}

impl Replaced {
    pub(crate) fn new(former: impl Send + 'static) -> Self {
        Self { _former: Box::new(former) }
    }
}

impl fmt::Debug for Replaced {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Replaced").finish_non_exhaustive()
    }
}

/// Amount of persisted data that a verification has read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct VerifiedRows {
    /// Number of rows (pairs of key and value) read, including overwritten and deleted versions of rows in the files.
    pub rows: u64,
    /// Number of bytes that the verification has read.
    pub bytes: u64,
    /// True if all persisted data was read; false if the caller ended the verification early.
    pub is_complete: bool,
}

/// Ability of a backend to persist batches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BackendHealth {
    /// The backend persists batches.
    #[default]
    Good,
    /// The disk has no room for what the backend must write. Reads and batches continue, and the backend continues to
    /// persist when there is room. Contains the error's message.
    DiskFull(String),
    /// The backend persists nothing any more until it is opened again, because a background thread has ended with this
    /// error.
    Failed(String),
}

/// Statistics of a backend. A value that does not apply to the kind of backend is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    /// Bytes of memory used by memtables, or by the map of the memory backend.
    pub memory_bytes: u64,
    /// Bytes of the tables (sorted files) on disk.
    pub disk_bytes: u64,
    /// Number of tables (sorted files) on disk.
    pub tables: u64,
    /// Number of tables on each level of the LSM tree, level 0 first.
    pub tables_per_level: Vec<u64>,
    /// Bytes of the tables on each level of the LSM tree, level 0 first.
    pub bytes_per_level: Vec<u64>,
    /// Number of deletions (tombstones) in the tables. A compaction drops a deletion together with the deleted row.
    pub deletions: u64,
    /// Number of sealed memtables that wait to be flushed to disk.
    pub sealed_memtables: u64,
    /// Number of flushes finished since the backend was opened.
    pub flushes: u64,
    /// Number of compactions finished since the backend was opened.
    pub compactions: u64,
    /// True while a compaction is running.
    pub is_compacting: bool,
    /// Bytes written by flushes since the backend was opened.
    pub flushed_bytes: u64,
    /// Bytes written by compactions since the backend was opened.
    pub compacted_bytes: u64,
    /// Number of calls of `apply` that had to wait until flushes or compactions made room (write stalls).
    pub stalls: u64,
    /// Total time in microseconds that calls of `apply` have waited in write stalls.
    pub stall_micros: u64,
    /// Number of pauses that slowed writes down because compactions were behind.
    pub pauses: u64,
    /// Total time in microseconds for which writes have paused because compactions were behind.
    pub pause_micros: u64,
    /// Total microseconds that flushes slept after writing a piece of a table, so that clients could use the disk.
    pub flush_rest_micros: u64,
    /// Total microseconds that compactions slept after writing a piece of a table, so that clients could use the disk.
    pub compaction_rest_micros: u64,
    /// Rate in bytes per second at which compactions have lately removed data from level 0. If compactions are behind,
    /// the backend slows writes down to this rate.
    pub slowdown_bytes_per_second: u64,
    /// Estimated number of stored keys, including overwritten and deleted versions of keys.
    pub estimated_keys: u64,
    /// Bytes of blocks of tables (sorted files) that are cached in memory.
    pub cache_bytes: u64,
}

/// Error that a state backend returns.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// A file could not be read or written.
    #[error("state {operation} failed: {message}")]
    Io {
        /// Name of the file operation that failed.
        operation: &'static str,
        /// Error message of the operating system or of the storage library.
        message: String,
    },
    /// The disk, or the quota on it, has no room for a file of the backend. Nothing is lost, and the backend continues
    /// when there is room.
    #[error("state {operation} found the disk full: {message}")]
    DiskFull {
        /// Name of the file operation that failed.
        operation: &'static str,
        /// Error message of the operating system or of the storage library.
        message: String,
    },
    /// Files of the backend on disk are damaged.
    #[error(
        "state is corrupt in {what}: {message}; `thalweg state rebuild` computes it again if the log still has all \
         entries, and otherwise restore a backup"
    )]
    Corrupt {
        /// File, or part of a file, that is damaged.
        what: String,
        /// Description of the damage to the file.
        message: String,
    },
    /// The files were written by a version of the program that encodes the applied position in another format.
    #[error(
        "the state's applied position has format {found}, this version reads {supported}: use the version that wrote it"
    )]
    Format {
        /// Version of the encoding of the applied position that was found in the files.
        found: u8,
        /// Version of the encoding of the applied position that this program reads and writes.
        supported: u8,
    },
    /// The options or an existing table use a compression that this build of the program does not contain.
    #[error(
        "this build has no compression {compression} of the state's tables: build it with `--features {compression}`"
    )]
    CompressionNotBuilt {
        /// Name of the missing compression, such as `lz4`.
        compression: &'static str,
    },
    /// The log could not be made durable, so the backend must not persist anything.
    #[error(transparent)]
    Barrier(#[from] BarrierFailed),
    /// The batch breaks a rule of [`Backend`]; none of its changes was applied.
    #[error("the state can't apply the batch: {0}")]
    BadBatch(&'static str),
    /// The argument of [`Backend::replace_with`] is a backend of another kind, or is the same backend.
    #[error("the {kind} backend can't continue with the state of this other backend")]
    OtherKind {
        /// Name of the kind of backend that was to be replaced, such as `lsm`.
        kind: &'static str,
    },
    /// An earlier failure closed the backend for writes.
    #[error("the state rejects writes after an earlier failure: {0}")]
    Failed(String),
}

impl BackendError {
    /// Creates the error for an operation that failed in the operating system or in the storage library.
    pub(crate) fn io(operation: &'static str, error: impl fmt::Display) -> Self {
        Self::Io { operation, message: error.to_string() }
    }

    /// Creates `DiskFull` if the disk or its quota is full, and `Io` for other errors of the operating system.
    pub(crate) fn of_io(operation: &'static str, error: &io::Error) -> Self {
        if thalweg_disk::is_out_of_space(error.kind()) {
            return Self::DiskFull { operation, message: error.to_string() };
        }
        Self::io(operation, error)
    }

    /// Returns true if the operation failed because the disk was full.
    #[must_use]
    pub fn is_disk_full(&self) -> bool {
        matches!(self, Self::DiskFull { .. })
    }

    /// Creates the error for damage to `what`, a file or a part of a file.
    pub(crate) fn corrupt(what: impl fmt::Display, message: impl fmt::Display) -> Self {
        Self::Corrupt { what: what.to_string(), message: message.to_string() }
    }
}

impl Classified for BackendError {
    fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "state_io",
            Self::DiskFull { .. } => "disk_full",
            Self::Corrupt { .. } => "state_corrupt",
            Self::Format { .. } => "state_format",
            Self::CompressionNotBuilt { .. } => "compression_not_built",
            Self::Barrier(_) => "log_failed",
            Self::BadBatch(_) => "state_bad_batch",
            Self::OtherKind { .. } => "state_other_kind",
            Self::Failed(_) => "state_failed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::BadBatch(_) | Self::OtherKind { .. } | Self::CompressionNotBuilt { .. } => Action::Fix,
            Self::DiskFull { .. } => Action::Retry,
            _ => Action::Stop,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn corrupt() -> BackendError {
        BackendError::Corrupt { what: "test".to_owned(), message: String::new() }
    }

    #[test]
    fn what_is_applied_has_a_pinned_layout() {
        let applied = Applied {
            lsn: Lsn(1),
            term: Term(2),
            index: Index(3),
            revision: Revision(4),
            time: SpaceTime(5),
            running_hash: 0x0706,
        };
        let bytes = b"\x02\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\
            \x05\0\0\0\0\0\0\0\x06\x07\0\0\0\0\0\0";
        assert_eq!(applied.encode(), bytes);
        assert_eq!(bytes.len(), Applied::ENCODED_BYTES);
        assert_eq!(Applied::decode(bytes, corrupt).unwrap(), applied);
    }

    #[test]
    fn another_version_is_another_format_and_all_else_is_corrupt() {
        let bytes = Applied::default().encode();
        for version in [0, 1, 3] {
            let other = [&[version], &bytes[1..41]].concat();
            let error = Applied::decode(&other, corrupt).unwrap_err();
            assert!(matches!(error, BackendError::Format { found, supported: 2 } if found == version), "{error}");
            assert_eq!((error.code(), error.action()), ("state_format", Action::Stop));
        }
        for broken in [&bytes[..0], &bytes[..1], &bytes[..41], &bytes[..48], &[&bytes[..], b"\0"].concat()] {
            let error = Applied::decode(broken, corrupt).unwrap_err();
            assert!(matches!(error, BackendError::Corrupt { .. }), "{broken:?}: {error}");
        }
    }
}
