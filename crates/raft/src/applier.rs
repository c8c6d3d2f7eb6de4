//! Implementation of openraft's state machine: passes committed entries and received snapshots on to this node's
//! replica of the space (the *member*).
//!
//! Owns: the order in which committed entries and snapshots reach the member. Does not own: applying
//! (`replica::Member`).
//!
//! Entries are applied on the consensus thread. An entry is in this node's log before openraft passes it here.
//!
//! When openraft passes a snapshot to this module, openraft already counts the snapshot's entries as applied. So a
//! failed install ends consensus on this node. If a switch to the snapshot's state fails without a change, it is first
//! repeated after each of [`SWITCH_PAUSES`]. No entry is applied in the meantime.

use std::{fmt, io, rc::Rc, time::Duration};

use futures_util::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder,
    async_runtime::AsyncRuntime,
    storage::{EntryResponder, RaftStateMachine},
    type_config::TypeConfigExt,
};
use thalweg_replica::{EntryTimes, Member, Membership};
use thalweg_state::membership::LogId;
use thalweg_types::Index;

use crate::{
    applied::AppliedWatch,
    convert::{raft_log_id, raft_membership},
    reader::LogReader,
    snapshots::{SnapshotHandle, SnapshotWriter, Snapshots, Switch},
    types::{RaftLogId, RaftSnapshot, Response, SnapshotMeta, StoredMembership, Types},
};

/// Pauses before the second to the fifth attempt to switch to the state of a received snapshot.
const SWITCH_PAUSES: [Duration; 4] =
    [Duration::from_millis(10), Duration::from_millis(50), Duration::from_millis(200), Duration::from_millis(500)];

/// Handle through which this node uses openraft for one space (the data that one Raft group replicates).
pub type Raft<Rt> = openraft::Raft<Types<Rt>, Applier<Rt>>;

/// openraft's state machine of one Raft group: applies committed entries and installs snapshots.
pub struct Applier<Rt: AsyncRuntime> {
    member: Member,
    reader: LogReader,
    applied: AppliedWatch<Rt>,
    snapshots: Option<Rc<dyn Snapshots>>,
}

impl<Rt: AsyncRuntime> fmt::Debug for Applier<Rt> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Applier").field("member", &self.member).finish_non_exhaustive()
    }
}

impl<Rt: AsyncRuntime> Applier<Rt> {
    pub(crate) fn new(
        member: Member,
        reader: LogReader,
        applied: AppliedWatch<Rt>,
        snapshots: Option<Rc<dyn Snapshots>>,
    ) -> Self {
        Self { member, reader, applied, snapshots }
    }

    fn position(&self) -> io::Result<(Option<RaftLogId>, StoredMembership)> {
        let machine = self.member.machine();
        // Every space begins with a membership, so a state without one has applied no entry.
        let Some(stored) = machine.membership().map_err(io::Error::other)? else {
            return Ok((None, StoredMembership::default()));
        };
        let applied = machine.applied();
        let membership = Membership::decode(&stored.payload).and_then(|membership| raft_membership(&membership));
        let membership = StoredMembership::new(
            Some(raft_log_id(stored.id)),
            membership.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the membership is malformed"))?,
        );
        Ok((Some(raft_log_id(LogId { term: applied.term, index: applied.index })), membership))
    }

    fn snapshot(&self) -> io::Result<Option<RaftSnapshot>> {
        let (last_log_id, last_membership) = self.position()?;
        Ok(last_log_id.is_some().then(|| RaftSnapshot {
            meta: SnapshotMeta { last_log_id, last_membership },
            snapshot: SnapshotHandle::Send(self.snapshots.clone()),
        }))
    }

    /// Applies a committed entry. `is_awaited` is true if consensus on this node answers the entry's proposer.
    fn apply_entry(&self, index: Index, is_awaited: bool) -> io::Result<Response> {
        let begun = is_awaited.then(|| self.member.monotonic());
        let cached = self.reader.cached(index);
        let mut outcomes = Vec::new();
        let is_kept = self.applied.keeps_outcomes(cached.as_ref().map(|record| &record.payload[..]));
        let is_awaited = is_awaited || is_kept;
        let applied = self.member.apply(index, cached.as_ref(), is_awaited, &mut outcomes).map_err(io::Error::other)?;
        let times = begun.and_then(|begun| self.times(index, begun));
        let response = Response { outcomes, steps: applied.steps, times };
        if is_kept {
            self.applied.note_outcomes(index, &response);
        }
        self.applied.raise(index);
        Ok(response)
    }

    /// Returns the times at which an entry was written to the log and applied on this node. Returns `None` if this node
    /// has not written the entry recently.
    fn times(&self, index: Index, apply_begun: Duration) -> Option<EntryTimes> {
        let written = self.reader.written(index)?;
        let applied = self.member.monotonic();
        Some(EntryTimes { write_begun: written.begun, written: written.ended, apply_begun, applied })
    }
}

impl<Rt: AsyncRuntime> RaftStateMachine<Types<Rt>> for Applier<Rt> {
    type SnapshotData = SnapshotHandle;
    type SnapshotBuilder = SnapshotPoint;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, StoredMembership)> {
        self.position()
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<Rt>>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let response = self.apply_entry(Index(entry.log_id.index), responder.is_some())?;
            if let Some(responder) = responder {
                responder.send(response);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> SnapshotPoint {
        SnapshotPoint(self.snapshot())
    }

    async fn install_snapshot(&mut self, meta: &SnapshotMeta, handle: SnapshotHandle) -> io::Result<()> {
        let SnapshotHandle::Received(writer) = handle else {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "the snapshot was not received"));
        };
        let writer = writer.borrow_mut().take();
        let writer = writer.ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "the snapshot was installed"))?;
        switch::<Rt>(writer).await?;
        let (found, _) = self.position()?;
        if found != meta.last_log_id {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the snapshot has another position than it said"));
        }
        if let Some(last) = found {
            self.applied.raise(Index(last.index));
        }
        // A node that has received no entry yet took its time from its own wall clock.
        self.member.clock().received(self.member.machine().applied().time);
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        self.snapshot()
    }
}

/// Replaces the live state with that of a received snapshot. Tries again after an attempt that has failed and left the
/// state unchanged.
async fn switch<Rt: AsyncRuntime>(mut writer: Box<dyn SnapshotWriter>) -> io::Result<()> {
    for pause in SWITCH_PAUSES {
        match writer.install().await? {
            Switch::Done => return Ok(()),
            Switch::Failed(_) => Types::<Rt>::sleep(pause).await,
        }
    }
    match writer.install().await? {
        Switch::Done => Ok(()),
        Switch::Failed(error) => Err(error),
    }
}

/// The state as a snapshot for openraft. It contains only the state's position. openraft may then purge entries up to
/// this position.
#[derive(Debug)]
pub struct SnapshotPoint(io::Result<Option<RaftSnapshot>>);

impl<Rt: AsyncRuntime> RaftSnapshotBuilder<Types<Rt>> for SnapshotPoint {
    type SnapshotData = SnapshotHandle;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let taken = std::mem::replace(&mut self.0, Ok(None))?;
        taken.ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "the state has applied no entry"))
    }
}
