//! The machine: what the applying thread and readers share.

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

/// How the machine stores. Changes nothing that a client sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MachineOptions {
    /// Longer values stay in the log, and the state keeps where they are. Raising it costs memory and
    /// write amplification in the state; lowering it costs a read of the log for more gets. At least
    /// [`MIN_INLINE_VALUE_BYTES`](thalweg_types::limits::MIN_INLINE_VALUE_BYTES), which the engine sees to: the running
    /// hash counts on it.
    pub inline_value_bytes: usize,
}

impl Default for MachineOptions {
    fn default() -> Self {
        Self { inline_value_bytes: DEFAULT_INLINE_VALUE_BYTES }
    }
}

/// The state machine. Writers: one thread at a time, in log order. Readers: any number, any time.
#[derive(Debug)]
pub struct Machine {
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) blobs: Arc<dyn Blobs>,
    pub(crate) options: MachineOptions,
    pub(crate) applier: Mutex<Applier>,
    pub(crate) published: Published,
    pub(crate) time_of_reads: TimeOfReads,
    /// Segments whose liveness rows go with the next batch.
    pub(crate) forgotten: Mutex<Vec<Generation>>,
    /// Whether there may be some: a record mostly finds none, without the lock.
    pub(crate) has_forgotten: AtomicBool,
    /// Held by the applier from the first command about a group until its record is applied, so readers see
    /// only what is. Whoever holds it takes no lock of `published`, other than the applier.
    pub(crate) groups: Mutex<GroupTable>,
    /// Whether `groups` names streams to be woken.
    pub(crate) groups_woken: AtomicBool,
    /// How many wait for settlements: readers of this node, so it decides nothing but who is woken.
    pub(crate) settlement_waiters: AtomicUsize,
    /// The highest version of the state machine that it carries out.
    pub(crate) known_version: u16,
    /// See [`inline_floor`](Self::inline_floor).
    pub(crate) inline_floor: usize,
    /// Asked for by the last digest command, and not taken yet.
    pub(crate) digest_view: Mutex<Option<DigestView>>,
}

/// What readers see beside the backend, as of the last applied entry. Held for short copies only.
#[derive(Debug)]
pub(crate) struct Published {
    pub(crate) keyspaces: RwLock<KeyspaceTable>,
    pub(crate) streams: RwLock<StreamTable>,
    pub(crate) liveness: RwLock<LivenessTable>,
    pub(crate) applied: RwLock<Applied>,
    /// `applied.lsn <= visible`: raised before a record's changes are shown, and `applied` after them.
    pub(crate) visible: AtomicU64,
    /// Entries above this index have no verdict: the last that got one, and at open all that were applied.
    pub(crate) judged: AtomicU64,
    /// Replaced whole: a reader takes it together with its view.
    pub(crate) clears: RwLock<Arc<ClearTable>>,
    /// Whether there are some: a get mostly finds none, without the lock.
    pub(crate) has_clears: AtomicBool,
    pub(crate) counts: RwLock<BTreeMap<KeyspaceId, Counts>>,
    /// Whether parts of collections may wait to be removed.
    pub(crate) has_trash: AtomicBool,
    /// The version of the state machine in force.
    pub(crate) version: AtomicU16,
}

impl Published {
    pub(crate) fn show_clears(&self, clears: Arc<ClearTable>) {
        self.has_clears.store(!clears.is_empty(), Ordering::Release);
        *write(&self.clears) = clears;
    }
}

impl Machine {
    /// Gives the machine the log that its pointers point into. Without one an entry that must look at a
    /// value there stops the machine.
    #[must_use]
    pub fn with_blobs(self, blobs: Arc<dyn Blobs>) -> Self {
        Self { blobs, ..self }
    }

    /// What is wholly applied: readers see all of it, and while a record is being applied perhaps that one, too
    /// (see [`visible`](Self::visible)).
    #[must_use]
    pub fn applied(&self) -> Applied {
        *read(&self.published.applied)
    }

    /// Exclusive bound of the records that a read which has ended by now may have seen. Above
    /// [`applied`](Self::applied) while a record is being applied: the backend shows its changes a moment before
    /// the machine counts it as applied. A caller that says how durable a read's result is asks after the read, and
    /// compares with this.
    #[must_use]
    pub fn visible(&self) -> Lsn {
        Lsn(self.published.visible.load(Ordering::Acquire))
    }

    /// The backend beneath.
    #[must_use]
    pub fn backend(&self) -> &Arc<dyn Backend> {
        &self.backend
    }

    /// The length up to which values of entries are always in the state: no row points into an entry for a value of at most
    /// this many bytes. A move record may hold shorter values that are live.
    #[must_use]
    pub fn inline_floor(&self) -> usize {
        self.inline_floor
    }

    /// What the state still wants of each segment, by generation.
    #[must_use]
    pub fn liveness(&self) -> Vec<(Generation, Liveness)> {
        read(&self.published.liveness).rows()
    }

    /// Drops the liveness row of a segment that has been freed. The row goes with the next batch; until
    /// that is persisted, opening again may bring it back, and the caller, who knows which segments the
    /// log has, forgets it again. Nothing but [`liveness`](Self::liveness) shows the difference.
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
