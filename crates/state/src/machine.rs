//! The deterministic state machine: entries in, outcomes out, over any backend.
//!
//! Owns: applying entries in log order (`entry`, `commit`, `admin`, `keyspace_admin`, `consumers`), what a
//! key is at the entry's time (`live`), what the commands so far have changed and how that is taken back (`staged`,
//! `savepoint`), transactions (`transaction`), deletes by prefix and their sweep (`clearing`), moves of bytes (`moves`),
//! what the space's group must find again when the log has been freed (`group`), what readers of the log
//! need to tell what its entries changed (`history`), versions of keys of keyspaces with history (`versions`,
//! `prune`), Redis commands and the parts of hashes and streams (`redis`, `parts`), the hash over all that
//! entries have done (`running_hash`), versions of the state machine itself (`upgrade`), views for digests (`digest_view`), and reads of what is applied (`reads`). Does not own the
//! log, the order of entries, time, or the bytes of streams and large values.
//!
//! Time: what ends (`timed`, `leases`, `expire`) does so by the time of entries; reads hide it by a time of their
//! own (`time`) that no later entry falls below.
//!
//! Invariants:
//! * Outcomes, and the replicated rows (see [`crate::digest`]), are functions of the commands alone: of which commands
//!   there are, in which order, and at which times. How they are grouped into entries, where those lie in the log,
//!   [`MachineOptions`], restarts, moves and compactions do not show.
//! * The same entries at the same log positions, applied from the same map with the same options, give the same map
//!   byte for byte.
//! * Everything one entry changes is one backend batch, and becomes visible with it: heads and names in
//!   memory are published after the batch, so a reader never sees a promise without what it promises.
//! * A revision is used by each command that commits and by each that removes keys which have ended, and by
//!   nothing else: a failed condition, an unknown name, or a command about a keyspace, a stream or a lease
//!   uses none.
//! * After an error in the middle of an entry, nothing of it is applied, and nothing more is accepted.

mod admin;
mod clearing;
mod commit;
mod compaction;
mod consumers;
mod digest_view;
mod entry;
mod error;
mod expire;
mod group;
mod history;
mod keyspace_admin;
mod leases;
mod live;
mod moves;
mod parts;
mod producers;
mod prune;
mod reads;
mod redis;
mod running_hash;
mod savepoint;
mod staged;
mod time;
mod timed;
mod transaction;
mod transaction_scan;
mod upgrade;
mod versions;

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicBool, AtomicU16, AtomicU64, AtomicUsize, Ordering},
    },
};

use thalweg_store::{Applied, Backend, Direction, View};
use thalweg_types::{
    Generation, Index, KeyspaceId, LogPosition, Lsn, SpaceTime, Term, command::Outcome,
    limits::DEFAULT_INLINE_VALUE_BYTES,
};

pub use consumers::SettlementWaiter;
pub use error::{MachineError, StreamReadError};
pub use expire::StaleCursor;
pub use group::{AppliedMembership, LogId};
pub use history::Verdicts;
pub(crate) use parts::{name_of as name_of_part, parts_range as range_of_parts};
pub(crate) use staged::Staged;
pub use time::{AttachedKey, LeaseInfo, ReadTime};
pub use upgrade::KNOWN_VERSION;

use crate::{
    blobs::{Blobs, NoBlobs},
    catalog::{KeyspaceTable, Meta},
    clears::ClearTable,
    counts::Counts,
    groups::GroupTable,
    inline_floor::InlineFloor,
    keys::KeyRange,
    liveness::{Liveness, LivenessTable},
    machine::{
        digest_view::DigestView,
        entry::{Applier, Applying, Position},
        time::TimeOfReads,
    },
    streams::StreamTable,
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

/// One log entry, decided and durable as its level asks.
#[derive(Clone, Copy, Debug)]
pub struct Entry<'a> {
    /// Its term.
    pub term: Term,
    /// Its index.
    pub index: Index,
    /// Its space time. Should one ever be below the one before, the one before counts.
    pub time: SpaceTime,
    /// Framed commands.
    pub payload: &'a [u8],
    /// Where the payload begins in the log.
    pub at: LogPosition,
    /// Exclusive bound of what is applied afterwards.
    pub next_lsn: Lsn,
}

/// What came of a move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Moved {
    /// The state points to the copy now.
    Applied,
    /// The state did not point to the original any more, or the record does not hold its bytes:
    /// nothing changed.
    Void,
    /// Rows of what the node need not know any more are gone.
    Forgot {
        /// So many.
        rows: u32,
        /// Whether there may be more.
        more: bool,
    },
}

/// The state machine. Writers: one thread at a time, in log order. Readers: any number, any time.
#[derive(Debug)]
pub struct Machine {
    backend: Arc<dyn Backend>,
    blobs: Arc<dyn Blobs>,
    options: MachineOptions,
    applier: Mutex<Applier>,
    published: Published,
    time_of_reads: TimeOfReads,
    /// Segments whose liveness rows go with the next batch.
    forgotten: Mutex<Vec<Generation>>,
    /// Whether there may be some: a record mostly finds none, without the lock.
    has_forgotten: AtomicBool,
    /// Held by the applier from the first command about a group until its record is applied, so readers see
    /// only what is. Whoever holds it takes no lock of `published`, other than the applier.
    groups: Mutex<GroupTable>,
    /// Whether `groups` names streams to be woken.
    groups_woken: AtomicBool,
    /// How many wait for settlements: readers of this node, so it decides nothing but who is woken.
    settlement_waiters: AtomicUsize,
    /// The highest version of the state machine that it carries out.
    known_version: u16,
    /// See [`inline_floor`](Self::inline_floor).
    inline_floor: usize,
    /// Asked for by the last digest command, and not taken yet.
    digest_view: Mutex<Option<DigestView>>,
}

/// What readers see beside the backend, as of the last applied entry. Held for short copies only.
#[derive(Debug)]
pub(crate) struct Published {
    keyspaces: RwLock<KeyspaceTable>,
    streams: RwLock<StreamTable>,
    liveness: RwLock<LivenessTable>,
    applied: RwLock<Applied>,
    /// `applied.lsn <= visible`: raised before a record's changes are shown, and `applied` after them.
    visible: AtomicU64,
    /// Entries above this index have no verdict: the last that got one, and at open all that were applied.
    judged: AtomicU64,
    /// Replaced whole: a reader takes it together with its view.
    clears: RwLock<Arc<ClearTable>>,
    /// Whether there are some: a get mostly finds none, without the lock.
    has_clears: AtomicBool,
    counts: RwLock<BTreeMap<KeyspaceId, Counts>>,
    /// Whether parts of collections may wait to be removed.
    has_trash: AtomicBool,
    /// The version of the state machine in force.
    version: AtomicU16,
}

impl Published {
    fn show_clears(&self, clears: Arc<ClearTable>) {
        self.has_clears.store(!clears.is_empty(), Ordering::Release);
        *write(&self.clears) = clears;
    }
}

impl Machine {
    /// Loads the catalog, the stream heads and the segments' liveness: memory is bounded by the limits
    /// on keyspaces and streams and by the number of segments, not by what they hold.
    pub fn open(backend: Arc<dyn Backend>, options: MachineOptions) -> Result<Self, MachineError> {
        Self::open_knowing(backend, options, KNOWN_VERSION)
    }

    /// As [`open`](Self::open), as a binary does that knows versions of the state machine up to `known`: for tests of
    /// what nodes of different versions do.
    #[doc(hidden)]
    pub fn open_knowing(backend: Arc<dyn Backend>, options: MachineOptions, known: u16) -> Result<Self, MachineError> {
        let view = backend.view();
        let stored = Meta::load(&*view)?;
        let meta = stored.unwrap_or_default();
        let applied = backend.applied().unwrap_or_default();
        upgrade::check_state(meta.version, known, applied.index)?;
        let streams = StreamTable::load(&*view, &meta)?;
        let clears = Arc::new(ClearTable::load(&*view)?);
        let counts = crate::counts::load(&*view)?;
        let groups = GroupTable::load(&*view)?;
        let published = Published {
            keyspaces: RwLock::new(KeyspaceTable::load(&*view, &meta)?),
            liveness: RwLock::new(LivenessTable::load(&*view)?),
            applied: RwLock::new(applied),
            visible: AtomicU64::new(applied.lsn.0),
            judged: AtomicU64::new(applied.index.0),
            streams: RwLock::new(streams),
            has_clears: AtomicBool::new(!clears.is_empty()),
            clears: RwLock::new(clears.clone()),
            counts: RwLock::new(counts.clone()),
            has_trash: AtomicBool::new(parts::has_trash(&*view)?),
            version: AtomicU16::default(),
        };
        if stored.is_none() && (backend.applied().is_some() || read(&published.streams).len() > 0) {
            return Err(MachineError::corrupt("meta row", &crate::keys::META, "missing"));
        }
        let (stream_count, keyspaces) = (read(&published.streams).counted(), read(&published.keyspaces));
        let lease_count = time::count_leases(&*view)?;
        let mut applier = Applier::new(stored, applied, stream_count, &keyspaces, lease_count);
        drop(keyspaces);
        (applier.clears, applier.counts) = (clears, counts);
        applier.history_floor = history::load_floor(&*view)?;
        applier.histories = versions::load(&*view)?;
        applier.inline_floor = InlineFloor::load(&*view, options.inline_value_bytes, stored.is_none())?;
        let inline_floor = applier.inline_floor.bytes();
        let machine = Self {
            backend,
            blobs: Arc::new(NoBlobs),
            options,
            applier: Mutex::new(applier),
            published,
            time_of_reads: TimeOfReads::load(&*view)?,
            forgotten: Mutex::default(),
            has_forgotten: AtomicBool::new(false),
            groups: Mutex::new(groups),
            groups_woken: AtomicBool::new(false),
            settlement_waiters: AtomicUsize::new(0),
            known_version: known,
            inline_floor,
            digest_view: Mutex::default(),
        };
        machine.show_version(meta.version);
        Ok(machine)
    }

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

    /// Applies one entry and appends one outcome per command. A payload whose framing breaks off gives
    /// one [`Outcome::Malformed`] for its rest.
    ///
    /// # Errors
    /// [`MachineError::AlreadyApplied`] and [`MachineError::Unaddressable`] change nothing; every other
    /// error stops the machine. On any error `outcomes` is as it was.
    pub fn apply(&self, entry: &Entry<'_>, outcomes: &mut Vec<Outcome>) -> Result<(), MachineError> {
        entry::check_addressable(entry.payload, entry.at)?;
        let position = Position { next_lsn: entry.next_lsn, entry: Some((entry.term, entry.index, entry.time)) };
        let before = outcomes.len();
        let payload = Some((entry.payload, entry.at));
        let result = self.with_applier(&position, payload, |applying| entry::apply_commands(applying, entry, outcomes));
        if result.is_err() {
            outcomes.truncate(before);
        }
        result
    }

    /// Applies a node-local record of kind move, whose payload begins at `at`. Moves neither term nor
    /// index nor time on.
    pub fn apply_move(&self, payload: &[u8], at: LogPosition, next_lsn: Lsn) -> Result<Moved, MachineError> {
        entry::check_addressable(payload, at)?;
        self.with_applier(&Position { next_lsn, entry: None }, None, |applying| moves::apply(applying, payload, at))
    }

    /// Passes over a record that carries nothing for the state: moves `lsn` on and, if it is an entry
    /// of the space (blank), term, index and time.
    pub fn skip(&self, next_lsn: Lsn, entry: Option<(Term, Index, SpaceTime)>) -> Result<(), MachineError> {
        self.with_applier(&Position { next_lsn, entry }, None, |_| Ok(()))
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

    /// Runs one record's changes and applies them as one batch.
    fn with_applier<T>(
        &self,
        position: &Position,
        payload: Option<(&[u8], LogPosition)>,
        change: impl FnOnce(&mut Applying<'_>) -> Result<T, MachineError>,
    ) -> Result<T, MachineError> {
        let mut applier = self.applier.lock().map_err(|_| MachineError::Stopped)?;
        applier.check(position)?;
        // Set until all is well: an error, or a panic that the lock does not see, leaves it set.
        applier.stopped = true;
        let mut applying = Applying::begin(&mut applier, self, position, payload);
        let result = change(&mut applying)?;
        applying.finish()?;
        applier.stopped = false;
        Ok(result)
    }

    fn take_forgotten(&self) -> Vec<Generation> {
        if !self.has_forgotten.load(Ordering::Acquire) {
            return Vec::new();
        }
        let mut forgotten = lock(&self.forgotten);
        self.has_forgotten.store(false, Ordering::Release);
        std::mem::take(&mut *forgotten)
    }
}

/// Calls `each` with every row of a range; a failure of `each` ends it.
pub(crate) fn load_rows(
    view: &dyn View,
    range: &KeyRange,
    mut each: impl FnMut(&[u8], &[u8]) -> Result<(), MachineError>,
) -> Result<(), MachineError> {
    let mut failure = None;
    view.scan(range.lower(), range.upper(), Direction::Forward, &mut |key, row| match each(key, row) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failure = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failure.map_or(Ok(()), Err)
}

// The published tables are replaced in steps that cannot panic half-way, so a poisoned lock only says
// that some reader panicked while it looked.
fn read<T>(lock: &RwLock<T>) -> RwLockReadGuard<'_, T> {
    lock.read().unwrap_or_else(PoisonError::into_inner)
}

fn write<T>(lock: &RwLock<T>) -> RwLockWriteGuard<'_, T> {
    lock.write().unwrap_or_else(PoisonError::into_inner)
}

fn lock<T>(lock: &Mutex<T>) -> MutexGuard<'_, T> {
    lock.lock().unwrap_or_else(PoisonError::into_inner)
}
