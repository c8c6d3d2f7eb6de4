//! openraft's state machine over ours.
//!
//! Invariant: records are applied in the order of the log: before an entry come the node's own records
//! (moves, votes, purges) that lie before it.

use std::{io, sync::Arc};

use futures_util::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    storage::{EntryResponder, RaftStateMachine},
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_log::RecordKind;
use thalweg_replica::Membership;
use thalweg_state::{
    machine::{Entry, Machine},
    membership::LogId,
};
use thalweg_types::{Index, Lsn, command::Outcome};

use crate::{
    store::Store,
    types::{RaftLogId, StoredMembership, Types, raft_log_id, raft_membership},
};

/// Applies committed entries.
#[derive(Clone, Debug)]
pub struct Applier {
    pub machine: Arc<Machine>,
    store: Store,
}

/// A snapshot says up to where its node's state goes; it does not carry the state to another node yet.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPoint;

type RaftSnapshot = Snapshot<CommittedLeaderId<u64>, u64, openraft::BasicNode, SnapshotPoint>;

impl Applier {
    pub fn new(machine: Arc<Machine>, store: Store) -> Self {
        Self { machine, store }
    }

    fn applied(&self) -> io::Result<(Option<RaftLogId>, StoredMembership)> {
        // Every group begins with a membership, so a state without one has applied no entry.
        let Some(stored) = self.machine.membership().map_err(io::Error::other)? else {
            return Ok((None, StoredMembership::default()));
        };
        let applied = self.machine.applied();
        let membership = Membership::decode(&stored.payload).ok_or(io::ErrorKind::InvalidData)?;
        let membership = StoredMembership::new(Some(raft_log_id(stored.id)), raft_membership(&membership));
        Ok((Some(raft_log_id(LogId { term: applied.term, index: applied.index })), membership))
    }

    fn apply_entry(&self, index: Index) -> io::Result<Vec<Outcome>> {
        let record = self.store.entry_record(index)?;
        for lsn in self.store.others_before(record.lsn) {
            self.apply_other(lsn)?;
        }
        let next_lsn = record.lsn.next();
        let id = LogId { term: record.term, index: record.index };
        let mut outcomes = Vec::new();
        match record.kind {
            RecordKind::Membership => self.machine.apply_membership(id, record.time, &record.payload, next_lsn),
            RecordKind::Blank => self.machine.skip(next_lsn, Some((id.term, id.index, record.time))),
            _ => {
                let (payload, at) = (&record.payload[..], record.payload_at);
                let entry = Entry { term: id.term, index: id.index, time: record.time, payload, at, next_lsn };
                self.machine.apply(&entry, &mut outcomes)
            }
        }
        .map_err(io::Error::other)?;
        Ok(outcomes)
    }

    fn apply_other(&self, lsn: Lsn) -> io::Result<()> {
        let record = self.store.record(lsn)?;
        let next_lsn = lsn.next();
        match record.kind {
            RecordKind::Move => self.machine.apply_move(&record.payload, record.payload_at, next_lsn).map(|_| ()),
            RecordKind::Vote => self.machine.apply_vote(&record.payload, next_lsn),
            RecordKind::Purged => self.machine.apply_purged(LogId { term: record.term, index: record.index }, next_lsn),
            _ => self.machine.skip(next_lsn, None),
        }
        .map_err(io::Error::other)
    }
}

impl RaftStateMachine<Types> for Applier {
    type SnapshotData = SnapshotPoint;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, StoredMembership)> {
        self.applied()
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let outcomes = self.apply_entry(Index(entry.log_id.index))?;
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMeta<CommittedLeaderId<u64>, u64, openraft::BasicNode>,
        _: SnapshotPoint,
    ) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        Ok(None)
    }
}

impl RaftSnapshotBuilder<Types> for Applier {
    type SnapshotData = SnapshotPoint;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        let (last_log_id, last_membership) = self.applied()?;
        Ok(Snapshot { meta: SnapshotMeta { last_log_id, last_membership }, snapshot: SnapshotPoint })
    }
}
