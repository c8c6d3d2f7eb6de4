//! The database handle that applications hold.
//!
//! Owns: `Database` with the calls about the whole database (open, close, sync, flush, compact, maintenance, scrub),
//! and its health. Does not own: the data that handles share (`inner`), the steps of opening (`open`), or the calls
//! about keyspaces, streams, groups and transactions, which their modules add.
//!
//! A [`Database`] is a pointer to the open database plus the default durability level of its writes. Handles of
//! keyspaces and streams consist of such a pointer and an id. The layers below do the work. This module turns a call
//! into a command, and the command's outcome into an ack or an error.

use std::{
    fmt,
    ops::ControlFlow,
    path::Path,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use thalweg_disk::Disk;
use thalweg_log::Purpose;
use thalweg_replica::{ReplayProgress, Replica};
use thalweg_store::BackendHealth;
use thalweg_types::{
    Clock, Durability,
    command::{CommandError, CommitBuilder},
};

use crate::{
    ack::{Ack, check_outcome_known, raised},
    blocking::block_on,
    digests::Digests,
    error::{OpenError, WriteError},
    fetch_gate::FetchGate,
    identity::OpenRole,
    inner::Inner,
    install_slot::InstallPermit,
    maintenance::Background,
    maintenance_counts::Maintenance,
    open::{self, OpenEnvironment, OpenReport, Opened},
    open_parts::Mode,
    options::Options,
    scrub::{Scrub, ScrubStats},
};

/// Ability of the database to accept writes, and the reason if it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// The database accepts writes.
    Good,
    /// The disk is nearly full: the database rejects new data, or will do so when the log segment in use is full.
    /// Reads, deletes and trims continue.
    DiskFull {
        /// Number of bytes that are free on the disk.
        free_bytes: u64,
    },
    /// This member serves neither writes nor reads, because its data may differ from that of the other members.
    StoppedServing {
        /// Reason why the member has stopped serving.
        reason: String,
    },
    /// The database accepts no writes until it is restarted or repaired. Reads continue.
    Failed {
        /// Description of the failure that made the database stop accepting writes.
        reason: String,
    },
    /// The database has been closed.
    Closed,
}

/// An open database. It is cheap to clone and safe to use from many threads.
///
/// Dropping the last handle stops the background thread and releases the directory. No acknowledged write is lost, but
/// the next open replays the log. A [`close`](Self::close) makes the next open fast.
#[derive(Clone)]
pub struct Database {
    /// Maintenance thread. Declared before `inner`, so it is dropped first: its drop waits for the thread, which uses
    /// `inner` during a round. So dropping the last handle releases the directory, and the thread does not keep it in
    /// use any longer.
    background: Arc<Background>,
    pub(crate) inner: Arc<Inner>,
    pub(crate) level: Durability,
}

impl Database {
    /// Opens the data directory at `path`. If there is none, creates it unless the options forbid this.
    pub fn open(path: impl AsRef<Path>, options: Options) -> Result<Self, OpenError> {
        Self::open_while(path, options, &mut |_| ControlFlow::Continue(()))
    }

    /// Opens a data directory like [`open`](Self::open), and calls `progress` after each log record that is replayed.
    /// If `progress` returns `Break`, the open ends with the error `interrupted`, and the next open continues.
    ///
    /// # Errors
    /// The directory cannot be opened, or `progress` has ended the open.
    pub fn open_while(
        path: impl AsRef<Path>,
        options: Options,
        progress: &mut dyn FnMut(&ReplayProgress) -> ControlFlow<()>,
    ) -> Result<Self, OpenError> {
        let opened = open::real(path.as_ref(), &options, None, progress)?;
        Ok(Self::start(opened, options))
    }

    /// Opens a data directory on any disk, with any clock and seed. The LSM and SQLite backends need a disk with a
    /// path in the operating system; the memory and redb backends also work on a simulated disk.
    pub fn open_on(disk: Arc<dyn Disk>, clock: Arc<dyn Clock>, seed: u64, options: Options) -> Result<Self, OpenError> {
        let environment = OpenEnvironment { disk, clock: &clock, seed, mode: Mode::Threaded, os_dir: None };
        let opened = open::on(environment, &options, OpenRole::Alone, &mut |_| ControlFlow::Continue(()))?;
        Ok(Self::start(opened, options))
    }

    pub(crate) fn start(open: Opened, options: Options) -> Self {
        let level = raised(options.durability, &open.replica);
        let interval = options.maintenance_interval;
        // A replayed command may have left a view of the state for a digest. No caller of this process has requested
        // it.
        open.machine.drop_digest_view();
        let digests = Digests::new(open.machine.applied().lsn);
        let (log, backend) = (open.log.clone(), open.backend.clone());
        let scrub = Scrub::start(log, backend, options.scrub_interval, options.scrub_bytes_per_second);
        let fetch_gate = FetchGate::new(open.backend.stats().disk_bytes > 0);
        let installs = Arc::new(InstallPermit::new(open.state_dir));
        let inner = Arc::new(Inner {
            scrub,
            open,
            options,
            totals: Mutex::default(),
            snapshots: Arc::default(),
            snapshot_counters: Arc::default(),
            installs,
            redis_views: AtomicU64::new(0),
            fetch_gate,
            maintenance_error: Mutex::default(),
            digests,
            follower_floor: AtomicU64::new(u64::MAX),
            stopped: OnceLock::new(),
            closed: AtomicBool::new(false),
            is_released: AtomicBool::new(false),
        });
        inner.note_state_space();
        let background = Arc::new(Background::start(Arc::downgrade(&inner), interval));
        Self { background, inner, level }
    }

    /// Report of opening the directory: the findings and actions of the open.
    #[must_use]
    pub fn report(&self) -> &OpenReport {
        &self.inner.open.report
    }

    /// Closes the database: commits queued writes, persists the state, and marks all of the log as durable. Later
    /// writes of all handles fail with `Closed`. Reads continue until the last handle is dropped.
    pub fn close(&self) -> Result<(), WriteError> {
        let inner = &self.inner;
        if inner.closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        self.background.stop();
        inner.scrub.stop();
        // Reads have hidden expired keys. Without an entry after those deadlines, a wall clock that is set back before
        // the next open would show the keys again. A full disk or a failed log may reject this entry; the error is
        // ignored. A member needs no such entry, because its reads only use times of entries.
        if let Replica::Alone(alone) = &inner.open.replica {
            let _ = block_on(inner.note_passed_deadlines(alone.term()));
        }
        inner.open.replica.close();
        inner.open.tails.close();
        inner.open.watches.close();
        // Both steps run even if the first fails: a state that was not flushed only makes the next open slower.
        let flushed = inner.open.backend.flush();
        inner.note_last_use();
        inner.open.log.close()?;
        flushed?;
        Ok(())
    }

    /// Returns a handle of the same database whose writes use the durability `level` by default. On a member of a
    /// cluster, every level but `none` is raised to `quorum`.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        let level = raised(level, &self.inner.open.replica);
        Self { background: self.background.clone(), inner: self.inner.clone(), level }
    }

    /// Default durability level of this handle's writes.
    #[must_use]
    pub fn durability(&self) -> Durability {
        self.level
    }

    /// Carries out a commit at the handle's durability level. The commit refers to objects by id:
    /// [`Keyspace::id`](crate::Keyspace::id), [`Stream::id`](crate::Stream::id).
    pub fn commit(&self, commit: &CommitBuilder) -> Result<Ack, WriteError> {
        check_outcome_known(commit.is_conditional(), self.level)?;
        let encode = |out: &mut Vec<u8>| {
            commit.encode(out);
            Ok::<_, CommandError>(())
        };
        self.inner.propose_for_ack(self.level, Purpose::Data, encode)
    }

    /// Returns the durability of the results of all reads that have ended: `Disk` if everything that they may have seen
    /// is on disk, else `Os`. On a member of a cluster it is always `Quorum`, because a member applies only what a
    /// majority has on disk. Call this after the read whose durability matters.
    #[must_use]
    pub fn visible_durability(&self) -> Durability {
        let open = &self.inner.open;
        if open.replica.member().is_some() {
            return Durability::Quorum;
        }
        if open.machine.visible() <= open.log.durable() { Durability::Disk } else { Durability::Os }
    }

    /// Fsyncs all log records written so far.
    pub fn sync(&self) -> Result<(), WriteError> {
        self.inner.open.log.sync()?;
        Ok(())
    }

    /// Persists the state to disk, so that the next open replays only later log entries.
    pub fn flush(&self) -> Result<(), WriteError> {
        self.inner.open.backend.flush()?;
        Ok(())
    }

    /// Persists the state, and removes overwritten and deleted data if the backend can do so on request. The LSM
    /// backend merges all its tables into one run; the other backends only flush. Reads and writes continue.
    pub fn compact(&self) -> Result<(), WriteError> {
        self.inner.open.backend.compact()?;
        Ok(())
    }

    /// Runs one round of maintenance: applies retention, persists the state, moves live bytes, and frees log segments.
    ///
    /// On the leader of a cluster, the call blocks until its proposals are committed, so it must not run on the thread
    /// of consensus; see [`maintain_async`](Self::maintain_async).
    pub fn maintain(&self) -> Result<Maintenance, WriteError> {
        self.background.run_round(&self.inner)
    }

    /// Runs one round of maintenance as a future. It waits for consensus asynchronously, unlike
    /// [`maintain`](Self::maintain). Does nothing while another round is in progress.
    pub async fn maintain_async(&self) -> Result<Maintenance, WriteError> {
        self.background.run_round_async(&self.inner).await
    }

    /// Does pending background work on the caller's thread, if the database was opened in stepped mode: prepares and
    /// syncs log segments, persists memtables, compacts tables, and dispatches changes to watches. Returns true if
    /// there was work. Proposals and maintenance are separate: consensus takes the proposals, and
    /// [`maintain_async`](Self::maintain_async) runs a round of maintenance.
    pub fn step(&self) -> bool {
        let open = &self.inner.open;
        if open.mode == Mode::Threaded {
            return false;
        }
        // Every part does its work in each step, even if another part has already done some.
        let did = [open.log.step(), open.backend.step(), open.watches.step()];
        did.contains(&true)
    }

    /// Reads all stored data on the caller's thread, as the scrub does in the background, and verifies it. Returns the
    /// statistics of all scrubs, including any damage found.
    pub fn scrub(&self) -> ScrubStats {
        self.inner.scrub.run();
        self.scrub_stats()
    }

    /// Returns the statistics of all scrubs so far, including any damage found, also damage that a snapshot of the
    /// state has met.
    #[must_use]
    pub fn scrub_stats(&self) -> ScrubStats {
        let mut stats = self.inner.scrub.stats();
        if let Some(damage) = self.inner.snapshot_counters.damage() {
            stats.damages += 1;
            stats.is_state_damaged = true;
            stats.damage.get_or_insert_with(|| damage.to_owned());
        }
        stats
    }

    /// Returns the database's ability to accept writes, with the reason if it accepts none.
    #[must_use]
    pub fn health(&self) -> Health {
        let inner = &self.inner;
        if let Some(reason) = inner.stop_reason() {
            return Health::StoppedServing { reason };
        }
        if let Some(reason) = inner.open.log.failure().or_else(|| inner.open.replica.failure()) {
            return Health::Failed { reason };
        }
        if inner.closed.load(Ordering::SeqCst) {
            return Health::Closed;
        }
        let state = inner.open.backend.health();
        if let BackendHealth::Failed(reason) = state {
            return Health::Failed { reason };
        }
        let is_full = state != BackendHealth::Good || inner.is_disk_full();
        if is_full { Health::DiskFull { free_bytes: inner.free_bytes() } } else { Health::Good }
    }
}

impl fmt::Debug for Database {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let report = self.report();
        let mut debug = f.debug_struct("Database");
        debug.field("node", &report.node).field("backend", &report.backend).field("level", &self.level);
        debug.finish_non_exhaustive()
    }
}
