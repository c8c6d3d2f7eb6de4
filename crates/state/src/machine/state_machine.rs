//! The machine: data shared by the applying thread and readers.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, RwLock,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
    },
};

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

/// Storage options of the machine. They have no effect that a client can see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineOptions {
    /// Maximum bytes of a value in the state. Longer values stay in the log, and the state stores their positions.
    /// Raising it costs memory and write amplification in the state; lowering it costs a read of the log for more
    /// gets. At least [`MIN_INLINE_VALUE_BYTES`](thalweg_types::limits::MIN_INLINE_VALUE_BYTES), which the engine
    /// enforces, because the running hash depends on it.
    pub inline_value_bytes: usize,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self { inline_value_bytes: DEFAULT_INLINE_VALUE_BYTES }
    }
}

/// The state machine. One thread at a time applies records, in log order. Any number of threads can read at any
/// time.
#[derive(Debug)]
pub struct Machine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) options: MachineOptions,
    pub(crate) applier: Mutex<Applier>,
    pub(crate) published: Published,
    pub(crate) time_of_reads: TimeOfReads,
    /// Freed segments whose liveness rows are deleted with the next batch.
    pub(crate) forgotten: Mutex<Vec<Generation>>,
    /// True if `forgotten` may have entries. Most records find none, without the lock.
    pub(crate) has_forgotten: AtomicBool,
    /// Consumer groups. The applier holds the lock from the first command about a group until its record is
    /// applied, so readers see only applied records. A thread other than the applier must not lock anything of
    /// `published` while it holds this lock.
    pub(crate) groups: Mutex<GroupTable>,
    /// True if `groups` lists streams whose waiters must be woken.
    pub(crate) groups_woken: AtomicBool,
    /// Number of local readers that wait for settlements. It affects only which of them are woken, never an
    /// outcome.
    pub(crate) settlement_waiters: AtomicUsize,
    /// Highest version of the state machine that this machine executes.
    pub(crate) known_version: u16,
    /// Value that [`inline_floor`](Self::inline_floor) returns.
    pub(crate) inline_floor: usize,
    /// View that the last digest command requested and that is not taken yet.
    pub(crate) digest_view: Mutex<Option<DigestView>>,
}

/// Data that readers see besides the backend, as of the last applied entry. Locked only for short copies.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) keyspaces: RwLock<KeyspaceTable>,
    pub(crate) streams: RwLock<StreamTable>,
    pub(crate) liveness: RwLock<LivenessTable>,
    pub(crate) applied: RwLock<Applied>,
    /// Exclusive end of the visible records: `applied.lsn <= visible`. Raised before a record's changes are
    /// published; `applied` is raised afterwards.
    pub(crate) visible: AtomicU64,
    /// Index of the last entry with a verdict, or at open of the last applied entry. Later entries have no verdict.
    pub(crate) judged: AtomicU64,
    /// Deleted prefixes. The table is replaced as a whole, so that a reader can take it together with its view.
    pub(crate) clears: RwLock<Arc<ClearTable>>,
    /// True if there are deleted prefixes. Most gets find none, without the lock.
    pub(crate) has_clears: AtomicBool,
    pub(crate) counts: RwLock<BTreeMap<KeyspaceId, Counts>>,
    /// True if parts of collections may have to be removed.
    pub(crate) has_trash: AtomicBool,
    /// Version of the state machine in force.
    pub(crate) version: AtomicU16,
}

impl Published {
    pub(crate) fn show_clears(&self, clears: Arc<ClearTable>) {
        self.has_clears.store(!clears.is_empty(), Ordering::Release);
        *write(&self.clears) = clears;
    }
}

impl Machine {
    /// Gives the machine the log that its pointers refer to. Without it, an entry that needs a value in the log
    /// stops the machine.
    #[must_use]
    pub fn with_blobs(self, blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs, ..self }
    }

    /// Returns the position that is completely applied. Readers see all records below it, and possibly the record
    /// that is being applied (see [`visible`](Self::visible)).
    #[must_use]
    pub fn applied(&self) -> Applied {
        *read(&self.published.applied)
    }

    /// Returns the exclusive end of the records that a finished read may have seen. It is above
    /// [`applied`](Self::applied) while a record is being applied, because the backend publishes the changes a
    /// moment before the machine counts the record as applied. A caller that reports the durability of a read's
    /// result calls this after the read, and compares with it.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        Lsn(self.published.visible.load(Ordering::Acquire))
    }

    /// Returns the backend of the state.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// Returns the maximum length in bytes of values that are always in the state: no row points into an entry for
    /// a value of at most this length. A move record may contain shorter live values.
    #[must_use]
    pub fn inline_floor(&self) -> usize {
        self.inline_floor
    }

    /// Returns the live bytes of each segment, by generation.
    #[must_use]
    pub fn liveness(&self) -> Vec<(Generation, Liveness)> {
        read(&self.published.liveness).rows()
    }

    /// Drops the liveness row of a freed segment. The next batch deletes the row. Until that batch is persisted,
    /// opening again can restore the row; the caller, which has the list of the log's segments, then drops it
    /// again. Only [`liveness`](Self::liveness) shows the difference.
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
