//! A database that is a member of a cluster.
//!
//! Owns: the calls between the database and the crate that runs consensus for it. Does not own: consensus, membership,
//! links between nodes.

use std::{
    io,
    ops::ControlFlow,
    path::Path,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use thalweg_disk::{Disk, RealDisk};
use thalweg_log::Log;
use thalweg_replica::{Member, Observer, ReplayProgress};
use thalweg_state::machine::Machine;
use thalweg_types::{Clock, ClusterId, Index, Lsn};

use crate::{
    database::Database,
    error::{OpenError, WriteError},
    identity::{MemberIdentity, OpenRole, Origin},
    inner::Inner,
    open::{self, OpenEnvironment},
    open_parts::{Mode, io_error},
    options::Options,
    repair_note::RepairNote,
};

/// Parts of a member's database on which consensus works.
#[derive(Clone, Debug)]
pub struct MemberParts {
    /// Log of the node.
    pub log: Log,
    /// State machine of the node.
    pub machine: Arc<Machine>,
    /// Proposal queue of this node, and the application of committed entries to its state.
    pub member: Member,
}

/// Disk, clock and seed of a database that is opened in stepped mode, without threads of its own. A member that is
/// opened in this mode may have segments of any size: the caller must ensure that log entries fit.
#[derive(Clone, Debug)]
pub struct SteppedOptions<'a> {
    /// Disk of the node.
    pub disk: Arc<dyn Disk>,
    /// Clock of the node.
    pub clock: Arc<dyn Clock>,
    /// Seed of the node's id, and of the cluster's id if the node founds it.
    pub seed: u64,
    /// Directory in the operating system for the tables of the LSM backend, which does its own I/O; other backends need
    /// none.
    pub os_dir: Option<&'a Path>,
}

impl Database {
    /// Returns true if `path` has a data directory that was never a member of a cluster. The directory may be open.
    ///
    /// # Errors
    /// Its identity cannot be read.
    pub fn is_of_single_node(path: impl AsRef<Path>) -> Result<bool, OpenError> {
        let path = path.as_ref();
        if !path.join("IDENTITY").exists() {
            return Ok(false);
        }
        let disk = RealDisk::open(path).map_err(|error| io_error(path, "opening the directory", &error))?;
        let disk: Arc<dyn Disk> = Arc::new(disk);
        Ok(open::read_identity(&disk, path)?.is_some_and(|identity| identity.cluster.is_none()))
    }

    /// Opens the data directory at `path` as a member of a cluster. The database applies nothing and has no leader
    /// until consensus runs on its [parts](Self::member_parts).
    ///
    /// # Errors The directory cannot be opened, or may not be opened as this member.
    pub fn open_member(path: impl AsRef<Path>, options: Options, identity: MemberIdentity) -> Result<Self, OpenError> {
        Self::open_member_while(path, options, identity, open::random_cluster(), &mut |_| ControlFlow::Continue(()))
    }

    /// Opens a data directory like [`open_member`](Self::open_member). `founded` is the id of the cluster if the
    /// directory founds one. Calls `progress` after each log record that is replayed; if it returns `Break`, the open
    /// ends.
    ///
    /// # Errors
    /// Those of [`open_member`](Self::open_member), and an error if `progress` ends the open.
    pub fn open_member_while(
        path: impl AsRef<Path>,
        options: Options,
        identity: MemberIdentity,
        founded: ClusterId,
        progress: &mut dyn FnMut(&ReplayProgress) -> ControlFlow<()>,
    ) -> Result<Self, OpenError> {
        let opened = open::real(path.as_ref(), &options, Some((identity, founded)), progress)?;
        Ok(Self::start(opened, options))
    }

    /// Opens a data directory like [`open_member`](Self::open_member), on any disk, with any clock and seed.
    ///
    /// # Errors
    /// Those of [`open_member`](Self::open_member).
    pub fn open_member_on(
        disk: Arc<dyn Disk>,
        clock: Arc<dyn Clock>,
        seed: u64,
        options: Options,
        identity: MemberIdentity,
    ) -> Result<Self, OpenError> {
        let environment = OpenEnvironment { disk, clock: &clock, seed, mode: Mode::Threaded, os_dir: None };
        let role = OpenRole::Member(identity, drawn_from(seed));
        let opened = open::on(environment, &options, role, &mut |_| ControlFlow::Continue(()))?;
        Ok(Self::start(opened, options))
    }

    /// Opens a data directory without any thread of its own, alone or as a member. The caller does the background work
    /// with [`step`](Self::step) and [`maintain_async`](Self::maintain_async). Calls that block for an fsync perform it
    /// on the caller's thread. Meant for simulations. Only a scrub, which runs on request, starts a thread.
    ///
    /// # Errors
    /// Those of [`open`](Self::open) and [`open_member`](Self::open_member).
    pub fn open_stepped(
        stepped: &SteppedOptions<'_>,
        options: Options,
        identity: Option<MemberIdentity>,
    ) -> Result<Self, OpenError> {
        let SteppedOptions { disk, clock, seed, os_dir } = stepped;
        let mode = Mode::Stepped;
        let environment = OpenEnvironment { disk: Arc::clone(disk), clock, seed: *seed, mode, os_dir: *os_dir };
        let role = identity.map_or(OpenRole::Alone, |identity| OpenRole::Member(identity, drawn_from(*seed)));
        let zero = std::time::Duration::ZERO;
        let options = Options { maintenance_interval: zero, scrub_interval: zero, ..options };
        let opened = open::on(environment, &options, role, &mut |_| ControlFlow::Continue(()))?;
        Ok(Self::start(opened, options))
    }

    /// Returns the parts on which consensus works; `None` on a node alone.
    #[must_use]
    pub fn member_parts(&self) -> Option<MemberParts> {
        let open = &self.inner.open;
        let member = open.replica.member()?.clone();
        Some(MemberParts { log: open.log.clone(), machine: open.machine.clone(), member })
    }

    /// Sets an observer that is called after each log entry that this member applies, on the thread that applies it.
    /// Only the first call has an effect. On a node alone, the observer is never called.
    pub fn observe_applied(&self, observer: Arc<dyn Observer>) {
        let _ = self.inner.open.witness.set(observer);
    }

    /// Keeps the log from the entry `floor` on, because a live follower still needs it. The kept part may be older than
    /// `history_age`, but not larger than `history_bytes`. `None` keeps nothing for followers.
    pub fn set_follower_floor(&self, floor: Option<Index>) {
        let floor = floor.unwrap_or(Index(u64::MAX));
        self.inner.follower_floor.store(floor.0, Ordering::Release);
    }

    /// Stops serving: writes fail with `StoppedServing` from now on, tails and watches end, and the health shows the
    /// reason. Callers that serve reads check [`stopped_serving`](Self::stopped_serving) first. Only opening the
    /// directory again ends this. Later calls have no effect.
    pub fn stop_serving(&self, reason: impl Into<String>) {
        if self.inner.stopped.set(Mutex::new(reason.into())).is_ok() {
            self.inner.open.tails.close();
            self.inner.open.watches.close();
        }
    }

    /// Stops serving like [`stop_serving`](Self::stop_serving), but with a reason that replaces an earlier one because
    /// it is more serious or more specific.
    pub fn stop_serving_for_graver(&self, reason: impl Into<String>) {
        let reason = reason.into();
        match self.inner.stopped.get() {
            Some(former) => *former.lock().unwrap_or_else(PoisonError::into_inner) = reason,
            None => self.stop_serving(reason),
        }
    }

    /// Returns the note about repairs that this member made without an operator.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged (`InvalidData`).
    pub fn repair_note(&self) -> io::Result<RepairNote> {
        RepairNote::read(&self.inner.open.disk)
    }

    /// Replaces the note about repairs that this member made without an operator. The default `note` removes it.
    ///
    /// # Errors
    /// The file cannot be written. Either the former note or the new one is in force then.
    pub fn note_repair(&self, note: &RepairNote) -> io::Result<()> {
        note.write(&self.inner.open.disk)
    }

    /// Returns the reason why the database has [stopped serving](Self::stop_serving); `None` if it serves.
    #[must_use]
    pub fn stopped_serving(&self) -> Option<String> {
        self.inner.stop_reason()
    }
}

/// Draws the id of a cluster from a seed.
fn drawn_from(seed: u64) -> ClusterId {
    // SplitMix64 (Steele, Lea, Flood 2014).
    let mixed = |number: u64| {
        let first = (number ^ (number >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let second = (first ^ (first >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        second ^ (second >> 31)
    };
    let step = 0x9e37_79b9_7f4a_7c15_u64;
    let [high, low] = [1, 2].map(|times| mixed(seed.wrapping_add(step.wrapping_mul(times))));
    ClusterId(u128::from(high) << 64 | u128::from(low))
}

impl Inner {
    /// Tells the log the LSN from which a live follower needs records. The state stores the LSNs of only some entries,
    /// so this passes the last stored LSN before the needed entry: the log keeps some hundred records too many.
    pub(crate) fn keep_for_followers(&self) {
        let floor = Index(self.follower_floor.load(Ordering::Acquire));
        let from = (floor < Index::MAX).then(|| match self.open.machine.history_mark_before(floor) {
            Ok(Some(mark)) => mark.lsn,
            // Without a mark the position is unknown, so the whole log is kept.
            Ok(None) | Err(_) => Lsn::ZERO,
        });
        self.open.log.keep_from(from);
    }

    /// Returns true if the log keeps records for a follower that is behind.
    pub(crate) fn has_follower_floor(&self) -> bool {
        self.follower_floor.load(Ordering::Acquire) < Index::MAX.0
    }

    /// Writes to the identity file that the directory has received records, once these records survive a power loss.
    pub(crate) fn note_joined(&self) -> Result<(), WriteError> {
        let mut identity = self.open.identity.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(cluster) = identity.cluster.filter(|cluster| cluster.origin == Origin::Joining) else { return Ok(()) };
        if self.open.log.durable() == Lsn::ZERO {
            return Ok(());
        }
        let joined = identity.with_cluster(cluster.id, Origin::Joined);
        let failed = |error: io::Error| WriteError::StateFailed { reason: format!("IDENTITY: {error}") };
        joined.write(&self.open.disk).map_err(failed)?;
        *identity = joined;
        Ok(())
    }
}
