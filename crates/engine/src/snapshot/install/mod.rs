//! Installing a snapshot of another node into a running database.
//!
//! Owns: [`Install`], which takes the chunks of a snapshot in order and, at the end, makes the snapshot's state the
//! state of the database. Does not own: the transfer of chunks, or the decision to install.
//!
//! ```text
//! chunks ─► check ─► rows ──► state/default/BACKEND.n+1            beside the running state
//!                └─► bytes that rows point to ──► log              as records of kind move
//! prepare:  log synced ─► last rows, state flushed ─► opened again, tables loaded ─► own records after the snapshot
//!           ─► INSTALLED.tmp names n+1, synced
//! finish:   later own records ─► log synced ─► renamed to INSTALLED, synced ─► readers see the new state ─► BACKEND.n removed
//! ```
//! The last line runs while no log record is applied. All steps that need disk space come before it, so a member whose
//! disk is full refuses a snapshot before consensus relies on the snapshot. Reads continue all the time. A read sees
//! the former state or the new one, and an earlier view stays valid. If bytes that the view refers to are freed later,
//! as after any change of the state, the read looks the key up again or ends with `view_expired`.
//!
//! Invariants:
//! - `INSTALLED` names a state that is complete and on disk, with all bytes that it points to. So a crash at any step
//!   leaves the former state or the new one (the table in `docs/formats/directory.md`).
//! - Truncations by consensus before the switch are on disk before `INSTALLED` names the new state. Otherwise a power
//!   loss could bring back void entries after the snapshot, and consensus would not start.
//! - From its first record to its end, an install keeps the log segments that it appends to from being walked and freed
//!   (`install_slot`). The segments of the former state are walked afterwards like all others.
//! - The vote is the node's own. The applied index and LSN do not decrease.
//!
//! Memory: one chunk, and memtables and a cache of at most [`LOAD_MEMORY_BYTES`] each while rows are loaded. The memory
//! backend holds both states in memory.

mod log_tail;

// These tests need private parts, so they are a module of the crate. Their files lie in `tests`, with the other tests.
#[cfg(test)]
#[path = "../../../tests/install/mod.rs"]
mod tests;

use std::{
    io::{Cursor, IoSlice, Read},
    sync::{Arc, PoisonError, atomic::Ordering},
};

use bytes::Bytes;
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_snapshot::{Contents, Item, Loader, PartKind, SnapshotInfo, Totals, VisitError, read_unchecked};
use thalweg_state::{
    machine::{Machine, MachineOptions},
    membership::AppliedMembership,
    portable,
};
use thalweg_store::{Applied, Backend};
use thalweg_types::{
    Durability, Index, NodeId, SpaceId, Term,
    command::{HistoryFloor, MoveTarget},
};

use self::log_tail::{LogTail, PassedRecords, catch_up};
use crate::{
    backends,
    database::Database,
    inner::Inner,
    install_error::InstallError,
    install_slot::InstallGuard,
    open::Barrier,
    open_parts::{LogBlobs, io_error},
    options::Options,
    plant::min_inline_value_bytes,
    state_dir::{StateDir, SwitchError},
};

/// Maximum size of a memtable and of the cache of the new state while rows are loaded. Larger sizes would hardly speed
/// up the load, because the rows come in order.
const LOAD_MEMORY_BYTES: u64 = 16 << 20;

/// Progress of installing a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InstallProgress {
    /// Number of the snapshot's chunk that the install needs next.
    pub next: u64,
    /// Numbers of rows and bytes installed so far.
    pub totals: Totals,
    /// True if the last chunk was passed, so that the install can be [finished](Install::finish).
    pub is_complete: bool,
}

/// Result of a finished install of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Node from which the snapshot was taken.
    pub from: NodeId,
    /// Log position up to which the database's state has applied entries after the install.
    pub applied: Applied,
    /// Members of the cluster as of the snapshot, and the log entry that contained them.
    pub membership: AppliedMembership,
    /// Numbers of rows and bytes installed.
    pub totals: Totals,
    /// Error message, if the files of the replaced state could not be removed. The next open removes them.
    pub leftover: Option<String>,
}

/// An install of a snapshot into a running database, which takes one chunk after the other.
///
/// All methods block on the disk. Dropping an install that is not finished removes its files; the bytes that it has
/// appended to the log become free space. The database is not released, and no other install can begin, until the
/// install has ended: it is finished, has failed, or is dropped.
#[derive(Debug)]
pub struct Install(
    /// The install in progress; `None` once it has ended.
    Option<InstallInProgress>,
);

#[derive(Debug)]
struct InstallInProgress {
    inner: Arc<Inner>,
    phase: InstallPhase,
    /// Guard against other installs. It is released after the files of an unfinished install are removed.
    hold: Option<InstallGuard>,
}

enum InstallPhase {
    /// The install has received no chunk of the snapshot yet.
    Begin,
    Loading(Box<Loading>),
    /// The new state is complete and on disk, and the database still has to switch to it.
    Prepared(Box<Prepared>),
    /// The install has failed or is finished. Once a call ends in this phase, [`Install`] drops the install's data.
    Ended,
}

impl std::fmt::Debug for InstallPhase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Begin => f.write_str("Begin"),
            Self::Loading(loading) => f.debug_tuple("Loading").field(&loading.contents.next_number()).finish(),
            Self::Prepared(prepared) => f.debug_tuple("Prepared").field(&prepared.next).finish(),
            Self::Ended => f.write_str("Ended"),
        }
    }
}

/// A complete state on disk. The database only has to switch to it.
struct Prepared {
    machine: Machine,
    info: SnapshotInfo,
    membership: AppliedMembership,
    totals: Totals,
    /// Number of chunks in the snapshot.
    next: u64,
}

/// State of an install that has received the snapshot's first chunk and loads its rows.
struct Loading {
    contents: Contents<Cursor<Bytes>>,
    membership: AppliedMembership,
    backend: Arc<dyn Backend>,
    loader: Loader,
}

impl Database {
    /// Begins to install a snapshot. The database continues as before until the install is [finished](Install::finish).
    ///
    /// # Errors
    /// [`InstallError::Alone`] on a node alone, because its entries would not continue those of the snapshot.
    pub fn install(&self) -> Result<Install, InstallError> {
        if self.inner.open.replica.member().is_none() {
            return Err(InstallError::Alone);
        }
        Install::begin(&self.inner)
    }

    /// Repairs a member whose consensus does not run: replaces its state by a snapshot of another member. The votes and
    /// the log stay. Calls `progress` after each chunk of `from`.
    ///
    /// # Errors
    /// Those of an install, and [`InstallError::LogAhead`]. The member then has its former state, except after
    /// [`InstallError::SwitchFailed`].
    pub fn reinstall(
        &self,
        from: &mut dyn Read,
        progress: &mut dyn FnMut(&InstallProgress),
    ) -> Result<Installed, InstallError> {
        let mut install = self.install()?;
        install.push_all(from, progress)?;
        install.finish_alone()
    }
}

impl Install {
    fn begin(inner: &Arc<Inner>) -> Result<Self, InstallError> {
        InstallInProgress::begin(inner).map(|work| Self(Some(work)))
    }

    /// Number of the chunk that the install needs next; 0 once it has ended.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.0.as_ref().map_or(0, InstallInProgress::next_number)
    }

    /// Description of the snapshot; `None` before its first chunk was passed, and once the install has ended.
    #[must_use]
    pub fn info(&self) -> Option<&SnapshotInfo> {
        self.0.as_ref()?.info()
    }

    /// Takes the next chunk of the snapshot.
    ///
    /// # Errors
    /// [`InstallError::Chunk`] if the bytes are not the chunk with the number [`next_number`](Self::next_number). The
    /// install then continues with that chunk: the sender [rewinds](super::Snapshot::resume_at) to it. All other errors
    /// end the install.
    pub fn push(&mut self, chunk: Bytes) -> Result<InstallProgress, InstallError> {
        self.work(|work| work.push(chunk))
    }

    /// Takes all remaining chunks from a reader of the snapshot's bytes. Calls `progress` after each chunk.
    ///
    /// # Errors
    /// Those of [`push`](Self::push), and an error of the reader.
    pub fn push_all(
        &mut self,
        from: &mut dyn Read,
        progress: &mut dyn FnMut(&InstallProgress),
    ) -> Result<(), InstallError> {
        loop {
            let next = self.next_number();
            let chunk = read_unchecked(&mut &mut *from);
            match chunk.map_err(|error| InstallError::Chunk { next, error: error.into() })? {
                Some(chunk) => progress(&self.push(chunk)?),
                None => return Ok(()),
            }
        }
    }

    /// Completes the new state on disk, beside the running one. Does nothing if it is complete. All steps that need
    /// disk space happen here, so that [`finish`](Self::finish) only has to switch. Fails if chunks are missing.
    ///
    /// # Errors
    /// After [`InstallError::Incomplete`] the install continues. All other errors end it, and nothing has changed.
    pub fn prepare(&mut self) -> Result<(), InstallError> {
        self.work(InstallInProgress::prepare)
    }

    /// Makes the state of the snapshot the durable state of the database. [Prepares](Self::prepare) it first if
    /// necessary.
    ///
    /// # Errors
    /// After [`InstallError::NotSwitched`] nothing has changed, and the call can be repeated. After
    /// [`InstallError::SwitchFailed`], the database continues with the former state, and the next open uses either the
    /// former or the new state. All other errors end the install, and nothing has changed.
    pub fn finish(&mut self) -> Result<Installed, InstallError> {
        self.work(InstallInProgress::finish)
    }

    /// [Finishes](Self::finish) the install of a member whose consensus does not run.
    ///
    /// # Errors
    /// Those of [`finish`](Self::finish), and [`InstallError::LogAhead`].
    pub fn finish_alone(&mut self) -> Result<Installed, InstallError> {
        self.prepare()?;
        self.check_log()?;
        self.finish()
    }

    fn check_log(&mut self) -> Result<(), InstallError> {
        self.work(|work| work.check_log())
    }

    /// Performs one step of the install. If the install has ended with this step, releases the database.
    fn work<T>(
        &mut self,
        step: impl FnOnce(&mut InstallInProgress) -> Result<T, InstallError>,
    ) -> Result<T, InstallError> {
        let work = self.0.as_mut().ok_or(InstallError::Ended)?;
        let done = step(work);
        if matches!(work.phase, InstallPhase::Ended) {
            self.0 = None;
        }
        done
    }
}

impl InstallInProgress {
    fn begin(inner: &Arc<Inner>) -> Result<Self, InstallError> {
        let inner = Arc::clone(inner);
        let hold = inner.installs.take(|| inner.open.log.end())?;
        let work = Self { inner, phase: InstallPhase::Begin, hold: Some(hold) };
        work.check_open()?;
        Ok(work)
    }

    fn next_number(&self) -> u64 {
        match &self.phase {
            InstallPhase::Loading(loading) => loading.contents.next_number(),
            InstallPhase::Prepared(prepared) => prepared.next,
            InstallPhase::Begin | InstallPhase::Ended => 0,
        }
    }

    fn info(&self) -> Option<&SnapshotInfo> {
        match &self.phase {
            InstallPhase::Loading(loading) => Some(loading.contents.info()),
            InstallPhase::Prepared(prepared) => Some(&prepared.info),
            InstallPhase::Begin | InstallPhase::Ended => None,
        }
    }

    fn push(&mut self, chunk: Bytes) -> Result<InstallProgress, InstallError> {
        let pushed = self.check_open().and_then(|()| match &mut self.phase {
            InstallPhase::Begin => self.start(chunk),
            InstallPhase::Loading(loading) => loading.push(chunk),
            InstallPhase::Prepared(_) | InstallPhase::Ended => Err(InstallError::Ended),
        });
        if !matches!(pushed, Ok(_) | Err(InstallError::Chunk { .. })) {
            self.abandon();
        }
        pushed
    }

    /// Takes the first chunk, and creates the state beside the running one.
    fn start(&mut self, chunk: Bytes) -> Result<InstallProgress, InstallError> {
        let contents = Contents::open_whole(Cursor::new(chunk));
        let contents = contents.map_err(|error| InstallError::Chunk { next: 0, error })?;
        if contents.info().kind != PartKind::Full {
            return Err(InstallError::Unsuitable { what: "an increment" });
        }
        let membership = contents.membership().cloned();
        let membership = membership.ok_or(InstallError::Unsuitable { what: "without a membership" })?;
        let open = &self.inner.open;
        let (snapshot, applied) = (contents.info().applied.index, open.machine.applied().index);
        if snapshot < applied {
            return Err(InstallError::Outdated { snapshot, applied });
        }
        let (former, new) = self.dirs()?;
        // An earlier install may have left files that it could not remove.
        let identity = open.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let swept = backends::remove_all_but(open.place(), &identity, former);
        drop(identity);
        swept.map_err(|error| self.io("removing the leftovers of an install", &error))?;
        let named = former.sync_name(&open.disk);
        named.map_err(|error| self.io("syncing the names of the state directories", &error))?;
        let options = loading_options(&self.inner.options);
        let backend = self.open_backend(new, &options)?;
        if backend.applied().is_some() {
            return Err(self.io("creating the new state", &std::io::ErrorKind::AlreadyExists.into()));
        }
        let time = open.machine.applied().time;
        let loader = Loader::new(open.log.clone(), Arc::clone(&backend), time, options.memtable_bytes);
        let loading = Loading { contents, membership, backend, loader };
        let progress = loading.progress();
        self.phase = InstallPhase::Loading(Box::new(loading));
        Ok(progress)
    }

    fn prepare(&mut self) -> Result<(), InstallError> {
        self.check_open().inspect_err(|_| self.abandon())?;
        let loading = match std::mem::replace(&mut self.phase, InstallPhase::Ended) {
            InstallPhase::Loading(loading) if loading.contents.has_ended() => loading,
            InstallPhase::Ended => return Err(InstallError::Ended),
            other => {
                let is_prepared = matches!(other, InstallPhase::Prepared(_));
                self.phase = other;
                let next = self.next_number();
                return if is_prepared { Ok(()) } else { Err(InstallError::Incomplete { next }) };
            }
        };
        let (info, membership) = (*loading.contents.info(), loading.membership.clone());
        let (totals, next) = (loading.contents.totals(), loading.contents.next_number());
        let prepared = self.complete(*loading).and_then(|machine| {
            let (snapshot, applied) = (info.applied.index, self.inner.open.machine.applied().index);
            if snapshot < applied {
                return Err(InstallError::Outdated { snapshot, applied });
            }
            let (_, new) = self.dirs()?;
            let prepared = new.prepare(&self.inner.open.disk);
            prepared.map_err(|error| self.io("writing the file INSTALLED", &error))?;
            Ok(Prepared { machine, info, membership, totals, next })
        });
        self.phase = InstallPhase::Prepared(Box::new(prepared.inspect_err(|_| self.remove_new())?));
        Ok(())
    }

    /// Checks that the log has no entry after the snapshot. Such an entry may contradict the snapshot's history, and
    /// only consensus could undo it.
    fn check_log(&self) -> Result<(), InstallError> {
        let open = &self.inner.open;
        let last = self.info().map_or(Index::ZERO, |info| info.applied.index);
        match LogTail::read(&open.log, open.machine.applied().lsn, last)?.later {
            None => Ok(()),
            Some(entry) => Err(InstallError::LogAhead { snapshot: last, entry }),
        }
    }

    fn finish(&mut self) -> Result<Installed, InstallError> {
        self.prepare()?;
        let InstallPhase::Prepared(prepared) = std::mem::replace(&mut self.phase, InstallPhase::Ended) else {
            return Err(InstallError::Ended);
        };
        let (info, membership, totals) = (prepared.info, prepared.membership.clone(), prepared.totals);
        let leftover = self.switch(prepared)?;
        let applied = self.inner.open.machine.applied();
        Ok(Installed { from: info.node, applied, membership, totals, leftover })
    }

    /// Appends a record without an effect if the former state ends where the log ends, so that the new state gets a
    /// later LSN. Incremental backups from before and after the install are told apart only by this LSN.
    fn separate(&self) -> Result<(), InstallError> {
        let open = &self.inner.open;
        let Applied { lsn, time, .. } = open.machine.applied();
        if lsn < open.log.end() {
            return Ok(());
        }
        let payload = MoveTarget::HistoryFloor { floor: HistoryFloor::default(), max: 0 }.encode_alone();
        let draft = Draft {
            space: SpaceId::ZERO,
            kind: RecordKind::Move,
            term: Term::ZERO,
            index: Index::ZERO,
            time,
            payload: &[IoSlice::new(&payload)],
        };
        open.log.append(&[draft], Durability::Os, Purpose::Data)?;
        Ok(())
    }

    /// Completes the new state on disk, and loads its tables into memory.
    fn complete(&self, loading: Loading) -> Result<Machine, InstallError> {
        let Loading { contents, membership, backend, loader } = loading;
        let (open, info) = (&self.inner.open, contents.info());
        self.separate()?;
        open.log.sync()?;
        let tail = LogTail::read(&open.log, open.machine.applied().lsn, info.applied.index)?;
        let vote = match tail.vote {
            Some(vote) => Some(Bytes::from(vote)),
            None => open.machine.vote()?,
        };
        let applied = Applied { lsn: tail.start, ..info.applied };
        loader.finish(applied, |batch| portable::follow(batch, &applied, &membership, vote.as_deref()))?;
        backend.flush()?;
        drop(backend);
        let (_, new) = self.dirs()?;
        let backend = self.open_backend(new, &self.inner.options)?;
        if backend.persisted() != Some(applied) {
            let lost = std::io::Error::other("it has another position than was written");
            return Err(self.io("opening the new state", &lost));
        }
        let inline_value_bytes = self.inner.options.inline_value_bytes.max(min_inline_value_bytes());
        let machine = Machine::open(backend, MachineOptions { inline_value_bytes })?;
        let machine = machine.with_blobs(Arc::new(LogBlobs(open.log.clone())));
        if catch_up(&open.log, &machine, info.applied.index)? == PassedRecords::CoveredEntries {
            machine.backend().flush()?;
        }
        Ok(machine)
    }

    /// Switches to the new state: on disk, then in memory. No log record is applied during the switch. Returns the
    /// message of an error that left files of the former state behind.
    fn switch(&mut self, prepared: Box<Prepared>) -> Result<Option<String>, InstallError> {
        let inner = Arc::clone(&self.inner);
        let open = &inner.open;
        let machine = &prepared.machine;
        let Applied { index: last, time, .. } = prepared.info.applied;
        let (former, new) = self.dirs()?;
        // Other threads of the member first look up the next log record and then apply it. Without this pause, the new
        // state could pass that record in between.
        let applying = open.replica.member().map(|member| member.pause_applying());
        let replacement = open.machine.begin_replacement();
        let switched = catch_up(&open.log, machine, last).and_then(|passed| {
            if passed == PassedRecords::CoveredEntries {
                machine.backend().flush()?;
            }
            if !replacement.accepts(machine) {
                return Err(InstallError::Outdated { snapshot: last, applied: replacement.applied().index });
            }
            // Consensus may have truncated the log since `prepare`. If a power loss lost the record of the truncation
            // but not the new state, entries of another history would follow the snapshot.
            open.log.sync()?;
            Ok(new.switch_to_prepared(&open.disk))
        });
        match switched {
            Ok(Ok(())) => {}
            Ok(Err(SwitchError::NotSwitched(error))) => {
                self.phase = InstallPhase::Prepared(prepared);
                return Err(InstallError::NotSwitched { reason: error.to_string() });
            }
            Ok(Err(SwitchError::Unknown(error))) => return Err(self.keep_both(&error)),
            Err(error) => {
                drop(replacement);
                drop(prepared);
                self.remove_new();
                return Err(error);
            }
        }
        let replaced = match replacement.finish(prepared.machine) {
            Ok(replaced) => replaced,
            Err(error) => return Err(self.keep_both(&std::io::Error::other(error.to_string()))),
        };
        open.hashes.forget();
        inner.digests.forget();
        drop(applying);
        if let Some(hold) = self.hold.take() {
            hold.switched(new);
        }
        if let Some(member) = open.replica.member() {
            member.clock().raise_to(time);
        }
        open.tails.wake_all();
        open.watches.notify();
        open.growth.notify();
        inner.note_state_space();
        // Waits for the threads that still use the former state's files.
        drop(replaced);
        let removed = open.place().remove(&former.path(open.report.backend));
        Ok(removed.err().map(|error| error.to_string()))
    }

    fn keep_both(&mut self, error: &std::io::Error) -> InstallError {
        match self.hold.take() {
            Some(hold) => hold.keep(error),
            None => InstallError::Ended,
        }
    }

    fn dirs(&self) -> Result<(StateDir, StateDir), InstallError> {
        let current = self.hold.as_ref().ok_or(InstallError::Ended)?.current();
        Ok((current, current.next()))
    }

    fn open_backend(&self, dir: StateDir, options: &Options) -> Result<Arc<dyn Backend>, InstallError> {
        let open = &self.inner.open;
        let barrier = Arc::new(Barrier(open.log.clone()));
        Ok(backends::open_in(open.place(), open.report.backend, dir, barrier, options)?)
    }

    fn check_open(&self) -> Result<(), InstallError> {
        if self.inner.closed.load(Ordering::SeqCst) { Err(InstallError::Closed) } else { Ok(()) }
    }

    fn io(&self, operation: &'static str, error: &std::io::Error) -> InstallError {
        io_error(&backends::shown_path(&self.inner.open.disk), operation, error).into()
    }

    /// Ends an unfinished install, and removes its files.
    fn abandon(&mut self) {
        match std::mem::replace(&mut self.phase, InstallPhase::Ended) {
            InstallPhase::Loading(loading) => drop(loading),
            InstallPhase::Prepared(prepared) => drop(prepared),
            InstallPhase::Begin | InstallPhase::Ended => return,
        }
        self.remove_new();
    }

    /// Removes the files of the new state. If that fails, the next install or open removes them.
    fn remove_new(&self) {
        if let Ok((_, new)) = self.dirs() {
            let open = &self.inner.open;
            StateDir::forget_prepared(&open.disk);
            let _ = open.place().remove(&new.path(open.report.backend));
        }
    }
}

impl Drop for InstallInProgress {
    fn drop(&mut self) {
        self.abandon();
    }
}

impl Loading {
    fn push(&mut self, chunk: Bytes) -> Result<InstallProgress, InstallError> {
        let next = self.contents.next_number();
        let loader = &mut self.loader;
        let load = &mut |items: &[Item<'_>]| items.iter().try_for_each(|item| loader.load(item));
        match self.contents.visit_next(Cursor::new(chunk), load) {
            Ok(()) => Ok(self.progress()),
            Err(VisitError::Visitor(error)) => Err(error.into()),
            Err(VisitError::Read(error)) if self.contents.next_number() == next => {
                Err(InstallError::Chunk { next, error })
            }
            Err(VisitError::Read(error)) => Err(InstallError::Damaged(error)),
        }
    }

    fn progress(&self) -> InstallProgress {
        InstallProgress {
            next: self.contents.next_number(),
            totals: self.contents.totals(),
            is_complete: self.contents.has_ended(),
        }
    }
}

/// Returns the options with small memtables and a small cache, for a state that is only written.
fn loading_options(options: &Options) -> Options {
    Options {
        memtable_bytes: options.memtable_bytes.min(LOAD_MEMORY_BYTES as usize),
        cache_bytes: options.cache_bytes.min(LOAD_MEMORY_BYTES),
        ..options.clone()
    }
}
