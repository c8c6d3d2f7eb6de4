//! Consensus data that must survive after its log records are freed: the last applied membership (list of nodes), the
//! ids of removed nodes, this node's vote, and the last purged entry.
//!
//! Owns: the four rows and their layout. Does not own: the content of a membership or a vote. Both are the
//! payloads of their log records, as the replica layer encodes them.
//!
//! ```text
//! 05 1 := term u64 | index u64 | payload        membership, and the entry that carried it
//! 05 2 := payload                               vote
//! 05 3 := term u64 | index u64                  last purged entry
//! 05 4 := node u64*                             removed nodes, ascending; no row before the first
//! ```
//! Little-endian. Each row is written in the batch that moves `applied.lsn` past its record. So the log retains the
//! record until the state has persisted the row, and after a crash the record or the row exists.
//!
//! No digest covers these rows. A vote and a purged entry belong to this node alone. A snapshot for another member
//! carries the membership and the removed nodes; a restored snapshot begins a new Raft group without them.

use std::collections::BTreeSet;

use bytes::Bytes;
use thalweg_store::View;
use thalweg_types::{Index, Lsn, NodeId, SpaceTime, Term};

use crate::{
    entry::Position,
    error::MachineError,
    keys::{MEMBERSHIP, PURGED, REMOVED, VOTE},
    machine::state_machine::Machine,
};

const LOG_ID_LEN: usize = 16;

/// Term and index of a log entry. Both together identify the entry within its Raft group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// Term of the log entry.
    pub term: Term,
    /// Index of the log entry.
    pub index: Index,
}

impl LogId {
    pub(crate) fn encode(self) -> [u8; LOG_ID_LEN] {
        let mut out = [0; LOG_ID_LEN];
        out[..8].copy_from_slice(&self.term.0.to_le_bytes());
        out[8..].copy_from_slice(&self.index.0.to_le_bytes());
        out
    }

    fn decode(bytes: &[u8; LOG_ID_LEN]) -> Self {
        let (term, index) = bytes.split_at(8);
        let field = |half: &[u8]| half.iter().rev().fold(0, |sum, &byte| sum << 8 | u64::from(byte));
        Self { term: Term(field(term)), index: Index(field(index)) }
    }
}

/// The last applied membership (list of members), and the id of the entry that contained it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMembership {
    /// Term and index of the entry that contained the membership.
    pub id: LogId,
    /// The membership as encoded in the payload of its log record.
    pub payload: Bytes,
    /// Nodes that were members earlier. Their ids are never used again.
    pub removed: BTreeSet<NodeId>,
}

impl AppliedMembership {
    /// Reads the last applied membership from a view of the state.
    pub fn in_view(view: &dyn View) -> Result<Option<Self>, MachineError> {
        view.get(&MEMBERSHIP)?.map(|row| Self::decode(&row, view.get(&REMOVED)?)).transpose()
    }

    fn decode(row: &Bytes, removed: Option<Bytes>) -> Result<Self, MachineError> {
        let Some(id) = row.first_chunk() else {
            return Err(MachineError::corrupt("membership row", &MEMBERSHIP, "row of a wrong length"));
        };
        let removed = removed.as_deref().map_or_else(|| Ok(BTreeSet::new()), decode_removed)?;
        Ok(Self { id: LogId::decode(id), payload: row.slice(LOG_ID_LEN..), removed })
    }
}

fn decode_removed(row: &[u8]) -> Result<BTreeSet<NodeId>, MachineError> {
    let (ids, []) = row.as_chunks() else {
        return Err(MachineError::corrupt("removed row", &REMOVED, "row of a wrong length"));
    };
    Ok(ids.iter().map(|id| NodeId(u64::from_le_bytes(*id))).collect())
}

/// Encodes the row with the ids of nodes that were removed from the membership.
pub(crate) fn encode_removed(removed: &BTreeSet<NodeId>) -> Vec<u8> {
    removed.iter().flat_map(|node| node.0.to_le_bytes()).collect()
}

fn decode_purged(row: &[u8]) -> Result<LogId, MachineError> {
    let id = row.try_into().map_err(|_| MachineError::corrupt("purged row", &PURGED, "row of a wrong length"))?;
    Ok(LogId::decode(id))
}

impl Machine {
    /// Applies an entry that contains a membership (list of nodes): stores the entry's payload and its log id. Nodes
    /// that are not in the membership any more are added to the removed nodes.
    pub fn apply_membership(
        &self,
        id: LogId,
        time: SpaceTime,
        payload: &[u8],
        removed: &BTreeSet<NodeId>,
        next_lsn: Lsn,
    ) -> Result<(), MachineError> {
        let position = Position { next_lsn, entry: Some((id.term, id.index, time)) };
        self.with_applier(&position, None, |applying| {
            if !removed.is_empty() {
                let earlier = applying.get(&REMOVED)?;
                let mut all = earlier.as_deref().map_or_else(|| Ok(BTreeSet::new()), decode_removed)?;
                all.extend(removed);
                applying.applier.staged.put(&[&REMOVED], &[&encode_removed(&all)]);
            }
            applying.applier.staged.put(&[&MEMBERSHIP], &[&id.encode(), payload]);
            Ok(())
        })
    }

    /// Stores the payload of a vote's record. The state's applied term, index and time do not change, because a vote is
    /// not a log entry.
    pub fn apply_vote(&self, payload: &[u8], next_lsn: Lsn) -> Result<(), MachineError> {
        self.with_applier(&Position { next_lsn, entry: None }, None, |applying| {
            applying.applier.staged.put(&[&VOTE], &[payload]);
            Ok(())
        })
    }

    /// Stores that entries up to `id`, inclusive, may be missing from the log. The state's applied term, index and time
    /// do not change. If `id` is before the stored entry, nothing changes: after an install of a snapshot, the log can
    /// still free segments with older entries.
    pub fn apply_purged(&self, id: LogId, next_lsn: Lsn) -> Result<(), MachineError> {
        self.with_applier(&Position { next_lsn, entry: None }, None, |applying| {
            let stored = applying.get(&PURGED)?.map(|row| decode_purged(&row)).transpose()?;
            if stored.is_none_or(|stored| stored.index < id.index) {
                applying.applier.staged.put(&[&PURGED], &[&id.encode()]);
            }
            Ok(())
        })
    }

    /// Returns the last applied membership; `None` if no membership was ever applied.
    pub fn membership(&self) -> Result<Option<AppliedMembership>, MachineError> {
        let Some(row) = self.backend.get(&MEMBERSHIP)? else { return Ok(None) };
        AppliedMembership::decode(&row, self.backend.get(&REMOVED)?).map(Some)
    }

    /// Returns true if the node was a member in an applied membership, and was removed by a later one.
    pub fn is_removed(&self, node: NodeId) -> Result<bool, MachineError> {
        let removed = self.backend.get(&REMOVED)?;
        Ok(removed.as_deref().map(decode_removed).transpose()?.is_some_and(|removed| removed.contains(&node)))
    }

    /// Returns the payload of the last applied record of a vote; `None` if this node never voted.
    pub fn vote(&self) -> Result<Option<Bytes>, MachineError> {
        Ok(self.backend.get(&VOTE)?)
    }

    /// Returns the id of the last entry that the log no longer has to retain; `None` if no entry was ever purged.
    pub fn purged(&self) -> Result<Option<LogId>, MachineError> {
        self.backend.get(&PURGED)?.map(|row| decode_purged(&row)).transpose()
    }
}
