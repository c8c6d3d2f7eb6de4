//! Opens the state and the replica of a data directory after its log is recovered: alone, or as a member of a cluster.
//!
//! Owns: replay, the check of the wall clock, and founding a cluster. Does not own: the recovery of the log, or
//! consensus.
//!
//! A node alone replays its whole log. A member applies nothing at open, because it does not know which entries after
//! its state are committed.
//!
//! In two cases a member first opens its directory alone and closes it again. If the node founds a cluster, its log
//! must be complete before its identity file names the cluster. If the node ran alone after its last entry, clients may
//! have seen a key expire after the time of this entry. The opening must make sure that the key does not appear again.

use std::{path::PathBuf, sync::Arc};

use thalweg_disk::{Disk, is_out_of_space};
use thalweg_log::{Log, Purpose};
use thalweg_replica::{
    Member, MemberOptions, Membership, NOTE_AHEAD, Replayed, Replica, Solo, SoloOptions, SpaceClock, bridge,
    replay_while,
};
use thalweg_state::machine::{Machine, MachineOptions};
use thalweg_store::Backend;
use thalweg_types::{
    Clock, ClusterId, Durability, Index, Lsn, Revision, SpaceId, SpaceTime,
    command::{CommandError, Framed, HistoryFloor, MoveTarget, encode_expire},
};

use crate::{
    clock_file::{self, ClockFile},
    error::OpenError,
    identity::{Identity, MemberIdentity, OpenRole, Origin},
    open_parts::{LogBlobs, Mode, Progress, io_error},
    options::{Options, Repair},
    plant::min_inline_value_bytes,
};

/// Maximum number of rows about freed or lost parts of the log that a repair deletes; maintenance deletes the others.
const HISTORY_ROWS: u32 = 1000;
/// Number of expired keys that are removed when a member opens a directory that was possibly in use alone before. One
/// is enough: the time of the removal's log entry hides the others.
const EXPIRED_KEYS: u32 = 1;

/// Parts of a data directory from which its state and replica are opened.
pub(crate) struct SpaceParts<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    pub(crate) log: Log,
    pub(crate) backend: Arc<dyn Backend>,
    pub(crate) clock: &'a Arc<dyn Clock>,
    pub(crate) options: &'a Options,
    pub(crate) identity: Identity,
    pub(crate) mode: Mode,
}

/// State and replica of an opened directory, with a report of the replay.
pub(crate) struct OpenedSpace {
    pub(crate) machine: Arc<Machine>,
    pub(crate) replica: Replica,
    pub(crate) clock_file: Arc<ClockFile>,
    pub(crate) identity: Identity,
    pub(crate) replayed: Replayed,
    /// Number of log records that a repair skipped because they are missing from the log.
    pub(crate) bridged: u64,
}

impl SpaceParts<'_> {
    pub(crate) fn open(self, role: OpenRole, progress: &mut Progress<'_>) -> Result<OpenedSpace, OpenError> {
        match role {
            OpenRole::Alone => self.alone(progress),
            OpenRole::Member(member, drawn) => self.member(member, drawn, progress),
        }
    }

    fn machine(&self) -> Result<Arc<Machine>, OpenError> {
        let inline_value_bytes = self.options.inline_value_bytes.max(min_inline_value_bytes());
        let machine = Machine::open(self.backend.clone(), MachineOptions { inline_value_bytes })?;
        Ok(Arc::new(machine.with_blobs(Arc::new(LogBlobs(self.log.clone())))))
    }

    fn clock_file(&self) -> Result<ClockFile, OpenError> {
        ClockFile::open(self.disk).map_err(|error| io_error(&self.path, "opening the file CLOCK", &error))
    }

    fn save_clock(&self, file: &ClockFile, time: SpaceTime) -> Result<(), OpenError> {
        match file.save(self.disk, time) {
            // A directory on a full disk, or at its quota, must open, so that data can be deleted.
            Err(error) if !is_out_of_space(error.kind()) => Err(io_error(&self.path, "writing the file CLOCK", &error)),
            _ => Ok(()),
        }
    }

    fn alone(&self, progress: &mut Progress<'_>) -> Result<OpenedSpace, OpenError> {
        let (machine, options, clock) = (self.machine()?, self.options, self.clock);
        self.check_sole_voter(&machine)?;
        let bridged = match (options.repair, self.backend.applied()) {
            (Repair::CutAtCorruption, Some(applied)) => bridge(&self.log, SpaceId::ZERO, applied)?,
            _ => 0,
        };
        let replayed = replay_while(&self.log, &machine, SpaceId::ZERO, progress)?;
        let clock_file = self.clock_file()?;
        // The file is written for the first time when the first records of the log are on disk.
        let founds = self.log.end() == Lsn::ZERO;
        if founds && clock_file.found().is_some() && options.repair == Repair::Refuse {
            return Err(OpenError::LogMissing { path: self.path.clone() });
        }
        let last = machine.applied().time.max(clock_file.found().unwrap_or_default());
        // A directory that was just created has no earlier time. If its file is damaged, the time of its last entry
        // counts.
        if last > SpaceTime::default()
            && let Some(jump) = clock_file::jump(clock.wall(), last, options.max_clock_jump)
        {
            return Err(OpenError::ClockJump { path: self.path.clone(), jump, max: options.max_clock_jump });
        }
        let clock_file = Arc::new(clock_file);
        // The noted time is at most [`NOTE_AHEAD`] ahead of the clock, so a larger lag means that the wall clock was
        // set back.
        let went_back = clock.wall().plus(NOTE_AHEAD) < last;
        let anchor = if went_back { last } else { machine.applied().time };
        let space_clock = SpaceClock::anchor(clock.clone(), anchor).with_keeper(clock_file.clone());
        if !founds {
            self.save_clock(&clock_file, space_clock.now())?;
        }
        let solo_options =
            SoloOptions { space: SpaceId::ZERO, node: self.identity.node, max_queue_bytes: options.max_queue_bytes };
        let solo = Solo::open_with(self.log.clone(), machine.clone(), space_clock, &solo_options)?;
        if founds {
            self.save_clock(&clock_file, solo.now())?;
        }
        // The call is also needed if an earlier open bridged the gap and ended before this step.
        let purged = machine.purged()?.map_or(Index::ZERO, |purged| purged.index);
        if purged > machine.history_floor()?.index {
            forget_history(&solo, &self.log)?;
        }
        let (replica, identity) = (Replica::Alone(solo), self.identity);
        Ok(OpenedSpace { machine, replica, clock_file, identity, replayed, bridged })
    }

    fn member(
        mut self,
        member: MemberIdentity,
        drawn: ClusterId,
        progress: &mut Progress<'_>,
    ) -> Result<OpenedSpace, OpenError> {
        if self.options.repair != Repair::Refuse {
            return Err(OpenError::CannotRepairMember { path: self.path.clone() });
        }
        let founds = self.identity.cluster.is_none();
        debug_assert!(!founds || member == MemberIdentity::Found, "checked with the identity");
        let anchor = if founds || self.may_have_been_alone()? { self.begin_alone(progress)? } else { None };
        if founds {
            self.identity = self.identity.with_cluster(drawn, Origin::Founded);
            let written = self.identity.write(self.disk);
            written.map_err(|error| io_error(&self.path, "writing the identity", &error))?;
        }
        // A state machine that was used alone takes the time from a clock, so a new one is created.
        let machine = self.machine()?;
        let clock_file = Arc::new(self.clock_file()?);
        self.save_clock(&clock_file, machine.applied().time)?;
        let defaults = MemberOptions::new(SpaceId::ZERO, self.identity.node, self.options.max_queue_bytes);
        let max_move_wait = match self.mode {
            Mode::Threaded => defaults.max_move_wait,
            Mode::Stepped => std::time::Duration::ZERO,
        };
        let max_clock_jump = self.options.max_clock_jump;
        let member_options = MemberOptions { max_move_wait, anchor, max_clock_jump, ..defaults };
        let member = Member::open(self.log.clone(), machine.clone(), self.clock.clone(), &member_options)?;
        let (replica, identity) = (Replica::Member(member), self.identity);
        Ok(OpenedSpace { machine, replica, clock_file, identity, replayed: Replayed::default(), bridged: 0 })
    }

    /// Checks that this node is the only voter, so that it may apply its log without consensus. If the state has no
    /// list of members, this directory must have founded its cluster. A later list of members with other nodes ends the
    /// replay.
    fn check_sole_voter(&self, machine: &Machine) -> Result<(), OpenError> {
        let Some(cluster) = self.identity.cluster else { return Ok(()) };
        let is_sole_voter = match machine.membership()? {
            None => cluster.origin == Origin::Founded,
            Some(membership) => {
                let membership = Membership::decode(&membership.payload);
                membership.is_some_and(|membership| membership.sole_voter() == Some(self.identity.node))
            }
        };
        let not_alone = || OpenError::NotAlone { path: self.path.clone(), cluster: cluster.id };
        is_sole_voter.then_some(()).ok_or_else(not_alone)
    }

    /// Returns true if this node may have been opened alone since its last log entry. Then clients may have seen keys
    /// expire after the time of that entry.
    fn may_have_been_alone(&self) -> Result<bool, OpenError> {
        let is_founder = self.identity.cluster.is_some_and(|cluster| cluster.origin == Origin::Founded);
        let applied = self.machine()?.applied().time;
        Ok(is_founder && self.clock_file()?.found().is_some_and(|found| found > applied))
    }

    /// Opens the database alone and closes it again. If a deadline has passed, appends a log entry with a later time.
    /// Returns the time that the database's clock has reached; `None` if other nodes vote.
    fn begin_alone(&self, progress: &mut Progress<'_>) -> Result<Option<SpaceTime>, OpenError> {
        let opened = match self.alone(progress) {
            Ok(opened) => opened,
            Err(OpenError::NotAlone { .. } | OpenError::Replica(thalweg_replica::OpenError::NotAlone { .. })) => {
                return Ok(None);
            }
            Err(error) => return Err(error),
        };
        let OpenedSpace { machine, replica, .. } = opened;
        if machine.expiry_due(replica.now())? {
            let mut command = Framed::new();
            let encode = |out: &mut Vec<u8>| {
                encode_expire(out, EXPIRED_KEYS);
                Ok::<_, CommandError>(())
            };
            // The command is constant and short, so it encodes.
            let encoded = command.encode(encode).map_err(|error| error.to_string());
            let proposed = encoded.and_then(|()| {
                let proposed = replica.propose(&command, Durability::Disk, Purpose::Reclaim);
                proposed.map_err(|error| error.to_string())
            });
            proposed.map_err(|reason| OpenError::Founding { reason })?;
        }
        let reached = replica.now();
        replica.close();
        self.log.sync().map_err(thalweg_replica::OpenError::from)?;
        Ok(Some(reached))
    }
}

/// Raises the history floor (the oldest position from which watches can read changes) above the gap that a repair has
/// left between the log and the state. A watch that begins before the gap must fail, because the log lacks the changes
/// in the gap. The floor rises at most to the applied position, which is above the gap.
fn forget_history(solo: &Solo, log: &Log) -> Result<(), OpenError> {
    let everything = HistoryFloor { revision: Revision(u64::MAX), index: Index(u64::MAX) };
    let raise = MoveTarget::HistoryFloor { floor: everything, max: HISTORY_ROWS };
    let raised = solo.relocate(&raise.encode_alone()).map_err(|error| error.to_string());
    let synced = raised.and_then(|_| log.sync().map_err(|error| error.to_string()));
    synced.map(drop).map_err(|reason| OpenError::Repair { reason })
}
