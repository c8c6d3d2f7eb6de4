//! openraft's state machine on top of ours.
//!
//! Invariant: records are applied in log order. The node's own records (moves, votes, purges) before an entry
//! are applied before that entry.

use std::{collections::BTreeSet, io, sync::Arc};

use futures_util::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta,
    storage::{EntryResponder, RaftStateMachine},
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_raft::{LogReader, RaftMembership, Response};
use thalweg_replica::{Membership, NodeInfo, Valid};
use thalweg_state::{
    machine::{Entry, Machine},
    membership::LogId,
};
use thalweg_types::{Index, SpaceId, command::Outcome};

use crate::types::{RaftLogId, StoredMembership, Types, raft_log_id};

/// Applies committed entries.
#[derive(Clone, Debug)]
pub struct Applier {
    pub machine: Arc<Machine>,
    log: Log,
    reader: LogReader,
}

/// A snapshot contains only the position of its node's state; it does not carry the state to another node
/// yet.
#[derive(Clone, Copy, Debug)]
pub struct SnapshotPoint;

type RaftSnapshot = Snapshot<CommittedLeaderId<u64>, u64, NodeInfo, SnapshotPoint>;

impl Applier {
    pub fn new(machine: Arc<Machine>, log: Log, reader: LogReader) -> Self {
        Self { machine, log, reader }
    }

    fn applied(&self) -> io::Result<(Option<RaftLogId>, StoredMembership)> {
        // Every space begins with a membership, so a state without one has applied no entry.
        let Some(stored) = self.machine.membership().map_err(io::Error::other)? else {
            return Ok((None, StoredMembership::default()));
        };
        let applied = self.machine.applied();
        let membership = Membership::decode(&stored.payload).ok_or(io::ErrorKind::InvalidData)?;
        let id = raft_log_id(stored.id.term.0, stored.id.index.0);
        let membership = StoredMembership::new(Some(id), raft_membership(&membership));
        Ok((Some(raft_log_id(applied.term.0, applied.index.0)), membership))
    }

    /// Applies the records of the log up to an entry.
    fn apply_through(&self, index: Index) -> io::Result<Vec<Outcome>> {
        let wanted = self.reader.records(index, index.next(), 0).map_err(io::Error::other)?;
        let last = wanted.first().ok_or(io::ErrorKind::NotFound)?.lsn;
        let valid = Valid::of(&self.log, SpaceId::ZERO);
        let mut outcomes = Vec::new();
        for record in self.log.records_from(self.machine.applied().lsn).map_err(io::Error::other)? {
            let record = record.map_err(io::Error::other)?;
            if record.lsn > last {
                break;
            }
            if !valid.is_void(&record) {
                outcomes = self.apply_record(&record)?;
            }
        }
        Ok(outcomes)
    }

    fn apply_record(&self, record: &LogRecord) -> io::Result<Vec<Outcome>> {
        let next_lsn = record.lsn.next();
        let id = LogId { term: record.term, index: record.index };
        let mut outcomes = Vec::new();
        match record.kind {
            RecordKind::Membership => {
                self.machine.apply_membership(id, record.time, &record.payload, &BTreeSet::new(), next_lsn)
            }
            RecordKind::Blank => self.machine.skip(next_lsn, Some((id.term, id.index, record.time))),
            RecordKind::Entry => {
                let (payload, at) = (&record.payload[..], record.payload_at);
                let entry = Entry { term: id.term, index: id.index, time: record.time, payload, at, next_lsn };
                self.machine.apply(&entry, &mut outcomes)
            }
            RecordKind::Move => self.machine.apply_move(&record.payload, record.payload_at, next_lsn).map(|_| ()),
            RecordKind::Vote => self.machine.apply_vote(&record.payload, next_lsn),
            RecordKind::Purged => self.machine.apply_purged(id, next_lsn),
            RecordKind::Truncate => self.machine.skip(next_lsn, None),
        }
        .map_err(io::Error::other)?;
        Ok(outcomes)
    }
}

fn raft_membership(membership: &Membership) -> RaftMembership {
    let configs = membership.configs().iter().map(|config| config.iter().map(|voter| voter.0).collect()).collect();
    let nodes: std::collections::BTreeMap<u64, NodeInfo> =
        membership.members().iter().map(|(node, info)| (node.0, info.clone())).collect();
    RaftMembership::new(configs, nodes).unwrap()
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
            let outcomes = self.apply_through(Index(entry.log_id.index))?;
            if let Some(responder) = responder {
                responder.send(Response { outcomes, steps: 0, times: None });
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMeta<CommittedLeaderId<u64>, u64, NodeInfo>,
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
