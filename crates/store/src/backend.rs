//! What a state backend must do.

use std::{fmt, ops::Bound, ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_types::{Action, Classified, Index, Lsn, Revision, SpaceTime, Term};

/// How far the state has applied its space's log. Stored with the data of the same batch, so the two
/// never disagree.
///
/// Invariant: never goes back; `lsn` is exclusive: every record of the space below it is applied.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Exclusive: replay starts here.
    pub lsn: Lsn,
    /// Term of the last applied entry.
    pub term: Term,
    /// Index of the last applied entry.
    pub index: Index,
    /// Revision of the last applied command.
    pub revision: Revision,
    /// Space time of the last applied entry.
    pub time: SpaceTime,
    /// A hash over the outcomes and the replicated writes of all entries so far: equal on all replicas at the same
    /// index (see `docs/formats/state.md`).
    pub running_hash: u64,
}

impl Applied {
    /// The version of the encoding. Version 1 had no running hash.
    pub(crate) const VERSION: u8 = 2;
    const FIELDS: usize = 6;
    /// Bytes of the encoding.
    pub(crate) const ENCODED_BYTES: usize = 1 + Self::FIELDS * 8;

    /// The fields in the order in which they are stored.
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

    /// The bytes that backends keep with their data: a version, and six little-endian numbers.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::ENCODED_BYTES);
        bytes.push(Self::VERSION);
        for field in self.fields() {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
        bytes
    }

    /// Reads them. Bytes of another version are refused as another format, all others with the error of `corrupt`.
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

/// When the batches that a backend applies reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum SyncMode {
    /// Now and then, and never before the log: what was not persisted is replayed. An apply costs a
    /// change in memory.
    #[default]
    BehindLog,
    /// Before `apply` returns: for a state without a log, and to compare backends as they stand alone.
    /// An apply costs at least one fsync.
    PerBatch,
}

impl SyncMode {
    /// Both.
    pub const ALL: [Self; 2] = [Self::BehindLog, Self::PerBatch];
}

/// The largest allocation that a cleared batch keeps, for its bytes and for its list of changes each. Ordinary entries fit,
/// because an entry takes commands up to 4 MiB.
const MAX_IDLE_BYTES: usize = 8 * 1024 * 1024;

/// A batch of changes that become visible, and survive, together. Keeps its allocations when cleared.
///
/// Keys are unique within a batch only if the caller makes them so: the last op on a key wins.
#[derive(Clone, Debug, Default)]
pub struct WriteBatch {
    bytes: Vec<u8>,
    ops: Vec<Op>,
}

#[derive(Clone, Copy, Debug)]
struct Op {
    key_at: usize,
    key_len: u32,
    /// `u32::MAX`: a delete.
    value_len: u32,
}

/// One change of a [`WriteBatch`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change<'a> {
    /// Set `key` to a value.
    Put(&'a [u8], &'a [u8]),
    /// Remove the key.
    Delete(&'a [u8]),
}

impl WriteBatch {
    /// An empty batch.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets a key given in parts to a value given in parts.
    #[inline]
    pub fn put(&mut self, key: &[&[u8]], value: &[&[u8]]) {
        let key_at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let value_at = self.bytes.len();
        value.iter().for_each(|part| self.bytes.extend_from_slice(part));
        let (key_len, value_len) = ((value_at - key_at) as u32, (self.bytes.len() - value_at) as u32);
        self.ops.push(Op { key_at, key_len, value_len });
    }

    /// Removes a key given in parts.
    #[inline]
    pub fn delete(&mut self, key: &[&[u8]]) {
        let key_at = self.bytes.len();
        key.iter().for_each(|part| self.bytes.extend_from_slice(part));
        self.ops.push(Op { key_at, key_len: (self.bytes.len() - key_at) as u32, value_len: u32::MAX });
    }

    /// The changes in order.
    pub fn changes(&self) -> impl ExactSizeIterator<Item = Change<'_>> {
        self.ops.iter().map(|op| self.change_of(op))
    }

    /// The changes in order, each with its key and value as they lie, one behind the other.
    pub fn changes_whole(&self) -> impl ExactSizeIterator<Item = (Change<'_>, &[u8])> {
        self.ops.iter().map(|op| {
            let value_len = if op.value_len == u32::MAX { 0 } else { op.value_len as usize };
            (self.change_of(op), &self.bytes[op.key_at..op.key_at + op.key_len as usize + value_len])
        })
    }

    /// The change of that number, from 0, if there are so many.
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

    /// Overwrites the beginning of the value in a put, and returns the bytes it replaced. `None` if the change is a delete
    /// or its value is shorter. A later change of the same key still wins.
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

    /// Takes back all changes but the first so many.
    pub fn truncate(&mut self, len: usize) {
        if let Some(op) = self.ops.get(len) {
            self.bytes.truncate(op.key_at);
            self.ops.truncate(len);
        }
    }

    /// How many changes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.ops.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.ops.is_empty()
    }

    /// Bytes of all keys and values.
    #[must_use]
    pub fn byte_len(&self) -> usize {
        self.bytes.len()
    }

    /// Checks what [`Backend`] demands of keys.
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

    /// Forgets the changes and keeps the allocations, unless they are unusually large.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ops.clear();
        self.bytes.shrink_to(MAX_IDLE_BYTES);
        self.ops.shrink_to(MAX_IDLE_BYTES / size_of::<Op>());
    }
}

/// Which way a scan goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Direction {
    /// Ascending.
    #[default]
    Forward,
    /// Descending.
    Reverse,
}

/// What a scan calls for each pair; borrowed for the call only. `Break` ends the scan.
pub type Visit<'a> = dyn FnMut(&[u8], &[u8]) -> ControlFlow<()> + 'a;

/// Whether no key can lie within the bounds. Maps that panic on inverted bounds ask first.
pub fn bounds_are_empty(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
    use Bound::{Excluded, Included};
    match (lower, upper) {
        (Included(low), Included(high)) => low > high,
        (Included(low) | Excluded(low), Included(high) | Excluded(high)) => low >= high,
        _ => false,
    }
}

/// A consistent, immutable view of the map as of some batch. Holding one keeps old data alive.
pub trait View: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;
    /// Visits the pairs within the bounds in order. Bounds compare as bytes.
    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError>;
    /// Visits the pairs from a bound on, in ascending order. For walks over everything: what they read is not kept
    /// in memory, so it pushes nothing out that others read again, and no lock is shared with those.
    fn scan_once(&self, lower: Bound<&[u8]>, visit: &mut Visit<'_>) -> Result<(), BackendError> {
        self.scan(lower, Bound::Unbounded, Direction::Forward, visit)
    }
    /// What the view has applied.
    fn applied(&self) -> Applied;
}

/// Makes the log durable up to an LSN. A backend calls it before it persists anything, so that no
/// backend is ever ahead of the log on disk.
pub trait LogBarrier: Send + Sync {
    /// Returns once every record below `lsn` is on disk. An error is final: persist nothing.
    fn sync_through(&self, lsn: Lsn) -> Result<(), BarrierFailed>;
}

/// The log could not be made durable; nothing may be persisted any more.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the log has failed: {0}")]
pub struct BarrierFailed(pub String);

/// An ordered map of bytes to bytes with atomic batches. Keys are 1 to 65,535 bytes long and don't begin
/// with the byte 0xff, under which backends keep what is their own.
///
/// `apply` and `flush` may be called while readers read. `apply` is never called from two threads at
/// once; every other method may be called from any thread at any time.
pub trait Backend: Send + Sync + fmt::Debug + 'static {
    /// Applies a batch atomically and remembers `applied` with it. May wait, for a bounded time, for
    /// flushes and compactions to catch up (a write stall, counted in the statistics). Afterwards
    /// every new view sees all of it. Nothing is made durable.
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError>;
    /// What has been applied; `None` for a new state.
    fn applied(&self) -> Option<Applied>;
    /// What would survive a power loss now: everything up to here can be forgotten by the log.
    fn persisted(&self) -> Option<Applied>;
    /// The newest value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;
    /// Shows the newest value of a key where it lies, if there is one: for whoever keeps nothing of it.
    fn look(&self, key: &[u8], show: &mut dyn FnMut(&[u8])) -> Result<(), BackendError> {
        if let Some(value) = self.get(key)? {
            show(&value);
        }
        Ok(())
    }
    /// Says which keys will be read next. Who finds them in memory may bring what that takes near the processor, for all
    /// of them at once: then the misses of its caches overlap. No more than a hint.
    fn warm(&self, _keys: &[&[u8]]) {}
    /// The newest consistent view.
    fn view(&self) -> Arc<dyn View>;
    /// Persists everything applied before the call: first the log (through the barrier), then the
    /// state. Returns what is persisted afterwards. Blocks.
    fn flush(&self) -> Result<Option<Applied>, BackendError>;
    /// Flushes, and leaves behind what was overwritten or deleted, as far as the store can when asked: an LSM tree
    /// merges all its tables. Others only flush. Blocks.
    fn compact(&self) -> Result<(), BackendError> {
        self.flush().map(drop)
    }
    /// Flushes if enough has gathered since the last time that replay would take long; called now and
    /// then from a background thread. Blocks.
    fn maintain(&self) -> Result<(), BackendError>;
    /// Figures for people and metrics.
    fn stats(&self) -> BackendStats;
    /// The name that configuration uses: `memory`, `lsm`.
    fn name(&self) -> &'static str;
}

/// Figures of a backend; what does not apply to one is 0.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BackendStats {
    /// Bytes in memtables, or in the map of a backend that is all memory.
    pub memory_bytes: u64,
    /// Bytes of tables on disk.
    pub disk_bytes: u64,
    /// Number of tables on disk.
    pub tables: u64,
    /// Tables per level, level 0 first.
    pub tables_per_level: Vec<u64>,
    /// Sealed memtables waiting for a flush.
    pub sealed_memtables: u64,
    /// Flushes finished since open.
    pub flushes: u64,
    /// Compactions finished since open.
    pub compactions: u64,
    /// Whether a compaction is under way.
    pub is_compacting: bool,
    /// Bytes written by flushes since open.
    pub flushed_bytes: u64,
    /// Bytes written by compactions since open.
    pub compacted_bytes: u64,
    /// Applies that had to wait.
    pub stalls: u64,
    /// Microseconds that applies have waited in all.
    pub stall_micros: u64,
    /// Estimated number of keys, dead versions included.
    pub estimated_keys: u64,
    /// Bytes of blocks held in the cache.
    pub cache_bytes: u64,
}

/// What went wrong in a backend.
#[derive(Clone, Debug, thiserror::Error)]
pub enum BackendError {
    /// The files could not be read or written.
    #[error("state {operation} failed: {message}")]
    Io {
        /// What was tried.
        operation: &'static str,
        /// What the system said.
        message: String,
    },
    /// The files do not hold what they should.
    #[error("state is corrupt in {what}: {message}; rebuild it with `thalweg log verify` and a fresh state directory")]
    Corrupt {
        /// Which part.
        what: String,
        /// What was found.
        message: String,
    },
    /// The files were written by a version that says otherwise what a state has applied.
    #[error(
        "state stores what it has applied in format {found}, this version reads {supported}: use the version that wrote it"
    )]
    Format {
        /// As stored.
        found: u8,
        /// What this version reads.
        supported: u8,
    },
    /// The log barrier failed, so nothing may be persisted.
    #[error(transparent)]
    Barrier(#[from] BarrierFailed),
    /// The batch breaks a rule of [`Backend`]; nothing of it was applied.
    #[error("the state can't take the batch: {0}")]
    BadBatch(&'static str),
    /// An earlier failure closed the backend for writes.
    #[error("the state refuses writes after an earlier failure: {0}")]
    Failed(String),
}

impl Classified for BackendError {
    fn code(&self) -> &'static str {
        match self {
            Self::Io { .. } => "state_io",
            Self::Corrupt { .. } => "state_corrupt",
            Self::Format { .. } => "state_format",
            Self::Barrier(_) => "log_failed",
            Self::BadBatch(_) => "state_bad_batch",
            Self::Failed(_) => "state_failed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::BadBatch(_) => Action::Fix,
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
