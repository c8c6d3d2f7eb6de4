//! The state of a simulated node: the product's state machine, as openraft applies entries to it.
//!
//! Owns: applying entries, and the membership of the group. Does not own: the log; persisting the
//! state (`backends`); the comparison of the nodes' states (`truth`).

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    io,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering::Relaxed},
    },
};

use futures_util::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder, StoredMembership,
    storage::{EntryResponder, RaftStateMachine},
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_raft::{LogReader, RaftLogId, RaftMembership};
use thalweg_replica::{Membership, NodeInfo};
use thalweg_state::{
    keyspaces::StoredValue,
    machine::{Entry, Machine},
    membership::{AppliedMembership, LogId},
};
use thalweg_types::{Index, NodeId, SpaceTime, command::Outcome};

use crate::{
    commands::{KEYSPACE, key_bytes, number_of},
    history::Key,
    plant::Plant,
    runtime::ProcessId,
    truth::Truth,
    types::{SPACE, Snap, Types},
};

pub(crate) type Meta = openraft::storage::SnapshotMeta<CommittedLeaderId<u64>, u64, NodeInfo>;
type Stored = StoredMembership<CommittedLeaderId<u64>, u64, NodeInfo>;

/// The handle of a node's Raft group.
pub type SimRaft = openraft::Raft<Types, ReplicaState>;

/// The state of one run of a node. A clone refers to the same state.
#[derive(Clone)]
pub struct ReplicaState(Rc<Inner>);

struct Inner {
    node: ProcessId,
    machine: Machine,
    log: Log,
    reader: LogReader,
    applied: Cell<Option<RaftLogId>>,
    membership: RefCell<Stored>,
    truth: Truth,
    plant: Option<Plant>,
    /// Error of the node's wall clock in microseconds.
    clock_error: Arc<AtomicI64>,
}

fn stored(membership: &AppliedMembership) -> io::Result<Stored> {
    let decoded = Membership::decode(&membership.payload).ok_or_else(|| failed("a malformed membership"))?;
    let raw = |nodes: &std::collections::BTreeSet<NodeId>| nodes.iter().map(|node| node.0).collect();
    let configs = decoded.configs().iter().map(raw).collect();
    let members: BTreeMap<u64, NodeInfo> =
        decoded.members().iter().map(|(node, info)| (node.0, info.clone())).collect();
    let LogId { term, index } = membership.id;
    let id = RaftLogId::new(CommittedLeaderId { term: term.0 }, index.0);
    Ok(Stored::new(Some(id), RaftMembership::new(configs, members).map_err(failed)?))
}

fn failed(error: impl std::fmt::Display) -> io::Error {
    io::Error::other(error.to_string())
}

impl ReplicaState {
    /// Creates the state of a node that starts, from what its backend has persisted.
    pub fn new(
        node: ProcessId,
        (log, reader): (Log, LogReader),
        machine: Machine,
        truth: Truth,
        plant: Option<Plant>,
        clock_error: Arc<AtomicI64>,
    ) -> io::Result<Self> {
        let membership = match machine.membership().map_err(failed)? {
            Some(membership) => stored(&membership)?,
            None => Stored::default(),
        };
        let has_entries = membership.log_id().is_some();
        let position = machine.applied();
        let id = RaftLogId::new(CommittedLeaderId { term: position.term.0 }, position.index.0);
        if has_entries {
            truth.opened(node, position);
        }
        let (applied, membership) = (Cell::new(has_entries.then_some(id)), RefCell::new(membership));
        Ok(Self(Rc::new(Inner { node, machine, log, reader, applied, membership, truth, plant, clock_error })))
    }

    /// Returns the values of keys at one point in time, as the node has applied them, and the revision of that point.
    pub fn read(&self, keys: &[Key]) -> io::Result<(u64, Vec<Option<u64>>)> {
        let view = self.0.machine.read_view();
        let values = keys.iter().map(|key| {
            let stored = view.get(KEYSPACE, &key_bytes(*key)).map_err(failed)?;
            let bytes = match stored.map(|stored| stored.value) {
                Some(StoredValue::Inline(bytes)) => bytes,
                Some(StoredValue::Blob(blob)) => self.0.log.read_blob(&blob).map_err(failed)?,
                Some(other) => return Err(failed(format!("the value is {other:?}"))),
                None => return Ok(None),
            };
            number_of(&bytes).map(Some).ok_or_else(|| failed(format!("the value is {bytes:?}")))
        });
        Ok((view.applied().revision.0, values.collect::<io::Result<_>>()?))
    }

    /// Returns the space time of the last applied entry.
    #[must_use]
    pub fn time(&self) -> SpaceTime {
        self.0.machine.applied().time
    }

    /// Returns the index of the last applied entry; `None` if none was applied.
    #[must_use]
    pub fn applied(&self) -> Option<u64> {
        self.0.applied.get().map(|applied| applied.index)
    }

    fn record(&self, index: u64) -> io::Result<LogRecord> {
        let index = Index(index);
        if self.0.plant == Some(Plant::VoidEntryRead) {
            let mut records = self.0.log.records_from(self.0.log.start()).map_err(failed)?;
            let first = records.find_map(|record| {
                record.ok().filter(|record| record.space == SPACE && record.kind.has_index() && record.index == index)
            });
            return first.ok_or_else(|| failed("the log has lost an entry"));
        }
        let found = self.0.reader.records(index, index.next(), usize::MAX)?;
        found.into_iter().next().ok_or_else(|| failed("the log has lost an entry"))
    }

    /// Returns the time with which an entry is applied: that of its record.
    fn time_of(&self, record: &LogRecord) -> SpaceTime {
        match self.0.plant {
            Some(Plant::OwnClock) => SpaceTime(record.time.0.saturating_add_signed(self.0.clock_error.load(Relaxed))),
            Some(Plant::OptionInApply) if self.0.node == 2 => SpaceTime(record.time.0 / 1000 * 1000),
            _ => record.time,
        }
    }

    fn apply_record(&self, record: &LogRecord) -> io::Result<Vec<Outcome>> {
        let machine = &self.0.machine;
        let (id, next_lsn) = (LogId { term: record.term, index: record.index }, record.lsn.next());
        let mut outcomes = Vec::new();
        match record.kind {
            RecordKind::Entry => {
                let entry = Entry {
                    term: record.term,
                    index: record.index,
                    time: self.time_of(record),
                    payload: &record.payload,
                    at: record.payload_at,
                    next_lsn,
                };
                machine.apply(&entry, &mut outcomes).map_err(failed)?;
            }
            RecordKind::Membership => {
                machine.apply_membership(id, record.time, &record.payload, next_lsn).map_err(failed)?;
            }
            _ => machine.skip(next_lsn, Some((record.term, record.index, record.time))).map_err(failed)?,
        }
        Ok(outcomes)
    }
}

impl RaftStateMachine<Types> for ReplicaState {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, Stored)> {
        Ok((self.0.applied.get(), self.0.membership.borrow().clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let record = self.record(entry.log_id.index)?;
            let outcomes = self.apply_record(&record)?;
            self.0.applied.set(Some(entry.log_id));
            if let EntryPayload::Membership(membership) = entry.payload {
                *self.0.membership.borrow_mut() = Stored::new(Some(entry.log_id), membership);
            }
            self.0.truth.applied(self.0.node, &record, &outcomes, self.0.machine.applied());
            if let Some(responder) = responder {
                responder.send(outcomes);
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, _: &Meta, (): ()) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snap>> {
        Ok(None)
    }
}

impl RaftSnapshotBuilder<Types> for ReplicaState {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<Snap> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
