//! The state machine: data that the thread which applies log records and the readers share.
//!
//! Owns: `Machine` and its published tables; the fields state the order of locks. Does not own: applying (`applying`).

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
    },
};

use thalweg_redis::streams::growth::{GrownStreams, GrowthNotes, GrowthWaiter};
use thalweg_store::{Applied, Backend};
use thalweg_types::{Generation, KeyspaceId, Lsn, limits::DEFAULT_INLINE_VALUE_BYTES};

use crate::{
    blobs::Blobs,
    clears::table::ClearTable,
    digest::kept_view::DigestView,
    expiry::time_of_reads::TimeOfReads,
    groups::table::GroupTable,
    keyspaces::{catalog::KeyspaceTable, counts::Counts},
    machine::applier::Applier,
    segments::liveness::{Liveness, LivenessTable},
    streams::heads::StreamTable,
    sync::{lock, read, write},
};

/// Storage options of the state machine. They have no effect that a client can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineOptions {
    /// Maximum bytes of a value that the state stores. Longer values stay in the log, and the state stores their
    /// positions. Raising the option costs memory and write amplification in the state; lowering it costs a read of
    /// the log for more gets. At least [`MIN_INLINE_VALUE_BYTES`](thalweg_types::limits::MIN_INLINE_VALUE_BYTES),
    /// which the engine enforces, because the running hash depends on it.
    pub inline_value_bytes: usize,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self { inline_value_bytes: DEFAULT_INLINE_VALUE_BYTES }
    }
}

/// The state machine. One thread at a time applies log records, in log order. Any number of threads can read.
#[derive(Debug)]
pub struct Machine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) options: MachineOptions,
    pub(crate) applier: Mutex<Applier>,
    pub(crate) published: Published,
    pub(crate) time_of_reads: TimeOfReads,
    /// Freed segments whose rows of live bytes are deleted with the next batch.
    pub(crate) forgotten: Mutex<Vec<Generation>>,
    /// True if `forgotten` may have entries. Most log records find that it has none, without the lock.
    pub(crate) has_forgotten: AtomicBool,
    /// Table of consumer groups. The applying thread holds the lock from the first command about a group until its log
    /// record is applied, so readers see only applied records. The applying thread waits for flushes and compactions of
    /// the backend before it takes the lock, never while it holds it. A thread other than the applying one must not
    /// lock any field of `published` while it holds this lock.
    pub(crate) groups: Mutex<GroupTable>,
    /// True if `groups` lists streams whose waiting consumers must be woken.
    pub(crate) groups_woken: AtomicBool,
    /// Number of callers on this node that wait for settlements (acks and nacks). It affects only which of them are
    /// woken, never an outcome.
    pub(crate) settlement_waiters: AtomicUsize,
    /// Redis streams that may have got entries, for callers on this node that wait for entries.
    pub(crate) growth: Arc<GrowthNotes>,
    /// Highest version of the state machine that this machine executes.
    pub(crate) known_version: u16,
    /// Length in bytes up to which values are always stored in the state, see [`inline_floor`](Self::inline_floor).
    pub(crate) inline_floor: usize,
    /// View of the state that the last digest command requested and that no caller has taken yet.
    pub(crate) digest_view: Mutex<Option<DigestView>>,
    /// Number of times that the state was replaced by another one, for example by a snapshot.
    pub(crate) replacements: AtomicU64,
    /// Number of reads of files that the applying thread has begun.
    pub(crate) file_reads: AtomicU64,
}

/// Tables in memory that readers see beside the backend, as of the last applied entry. Locked only for short copies.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) keyspaces: RwLock<KeyspaceTable>,
    pub(crate) streams: RwLock<StreamTable>,
    pub(crate) liveness: RwLock<LivenessTable>,
    pub(crate) applied: RwLock<Applied>,
    /// Exclusive end of the log records that readers can see: `applied.lsn <= visible`. Raised before a record's
    /// changes are published; `applied` is raised afterwards.
    pub(crate) visible: AtomicU64,
    /// Index of the last log entry for which a verdict (row with facts that the entry's bytes do not determine) was
    /// stored. When the machine is opened, the field begins at the index of the last applied entry.
    pub(crate) judged: AtomicU64,
    /// Deleted prefixes that hide rows. The table is replaced as a whole, so that a reader can take it with its view.
    pub(crate) clears: RwLock<Arc<ClearTable>>,
    /// True if there are deleted prefixes that hide rows. Most gets find that there are none, without the lock.
    pub(crate) has_clears: AtomicBool,
    pub(crate) counts: RwLock<BTreeMap<KeyspaceId, Counts>>,
    /// True if there may be Redis collections without a key, whose parts (fields and entries) must be removed.
    pub(crate) has_trash: AtomicBool,
    /// True if a keyspace keeps or has kept former values. Only proposers use it, to estimate the cost of writes.
    pub(crate) has_histories: AtomicBool,
    /// Version of the state machine in force: commands that need a higher version are rejected.
    pub(crate) version: AtomicU16,
    /// Number of leases, including ended ones whose keys are not all removed yet.
    pub(crate) leases: AtomicUsize,
}

impl Published {
    pub(crate) fn show_clears(&self, clears: Arc<ClearTable>) {
        self.has_clears.store(!clears.is_empty(), Ordering::Release);
        *write(&self.clears) = clears;
    }
}

impl Machine {
    /// Gives the machine the log that the state's pointers refer to. Without the log, an entry that needs a value
    /// stored there stops the machine.
    #[must_use]
    pub fn with_blobs(self, blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs, ..self }
    }

    /// Returns the position up to which log records are completely applied. Readers see all records below this
    /// position, and possibly the record that is being applied (see [`visible`](Self::visible)).
    #[must_use]
    pub fn applied(&self) -> Applied {
        *read(&self.published.applied)
    }

    /// Returns an LSN above all log records whose effects a finished read may have seen. While a record is being
    /// applied, this LSN is above [`applied`](Self::applied), because the backend publishes the changes a moment before
    /// the machine counts the record as applied. A caller that reports the durability of a read's result calls this
    /// after the read, and compares the durable position with this LSN.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        Lsn(self.published.visible.load(Ordering::Acquire))
    }

    /// Registers a caller that waits for entries of Redis streams. While any caller is registered, the keys of grown
    /// streams are noted.
    #[must_use]
    pub fn await_stream_growth(&self) -> GrowthWaiter {
        self.growth.register()
    }

    /// Returns the Redis streams that may have got entries since the last call, all of them visible to readers. Without
    /// waiting callers, a call costs one atomic load and returns [`GrownStreams::None`].
    #[must_use]
    pub fn take_grown_streams(&self) -> GrownStreams {
        self.growth.take()
    }

    /// Returns the number of [steps](thalweg_types::steps) that the commands of all log entries have taken since the
    /// machine was opened. The number is a function of these commands alone.
    ///
    /// # Errors
    /// [`MachineError::Stopped`](crate::error::MachineError::Stopped) if a thread panicked while it applied a record.
    pub fn steps(&self) -> Result<u64, crate::error::MachineError> {
        Ok(self.applier.lock().map_err(|_| crate::error::MachineError::Stopped)?.steps)
    }

    /// Returns the number of steps that applying log entries has taken on this node since the machine was opened: those
    /// of [`steps`](Self::steps), and those of the reads that are performed only where a client waits. Proposers use
    /// the number to measure the cost of a client's commands.
    ///
    /// # Errors
    /// Those of [`steps`](Self::steps).
    pub fn work(&self) -> Result<u64, crate::error::MachineError> {
        let applier = self.applier.lock().map_err(|_| crate::error::MachineError::Stopped)?;
        Ok(applier.steps + applier.read_steps)
    }

    /// Returns the number of reads of files that the thread that applies log entries has begun since the machine was
    /// opened. Reads of bytes that the kernel had in memory count, too. The machine applies no command during such a
    /// read.
    #[must_use]
    pub fn file_reads(&self) -> u64 {
        self.file_reads.load(Ordering::Relaxed)
    }

    /// Returns true if a keyspace keeps former values, or kept them at some time since the machine was opened.
    #[must_use]
    pub fn keeps_history(&self) -> bool {
        self.published.has_histories.load(Ordering::Relaxed)
    }

    /// Returns the backend that stores the state's rows.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns the maximum length in bytes of values that are always in the state: no row points into an entry for a
    /// value of at most this length. A move record (bytes copied within the log) may contain shorter live values.
    #[must_use]
    pub fn inline_floor(&self) -> usize {
        self.inline_floor
    }

    /// Returns the number of live bytes in each log segment, by the segment's generation.
    #[must_use]
    pub fn liveness(&self) -> Vec<(Generation, Liveness)> {
        read(&self.published.liveness).rows()
    }

    /// Drops the liveness row of a segment that was freed. The next batch deletes the row. If the node is opened again
    /// before that batch is persisted, the row can reappear; the caller, which has the list of the log's segments,
    /// then drops it again. Only [`liveness`](Self::liveness) shows the difference.
    pub fn forget_segment(&self, generation: Generation) {
        lock(&self.forgotten).push(generation);
        self.has_forgotten.store(true, Ordering::Release);
    }

    pub(crate) fn take_forgotten(&self) -> Vec<Generation> {
        if !self.has_forgotten.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut forgotten = lock(&self.forgotten);
        self.has_forgotten.store(false, Ordering::Release);
        std::mem::take(&mut *forgotten)
    }
}
