//! Consensus data that must survive after its log records are freed: the last applied membership (list of nodes), this
//! node's vote, and the last purged entry.
//!
//! Owns: the three rows and their layout. Does not own: the content of a membership or a vote. Both are the
//! payloads of their log records, as the replica layer encodes them.
//!
//! ```text
//! 05 1 := term u64 | index u64 | payload        membership, and the entry that carried it
//! 05 2 := payload                               vote
//! 05 3 := term u64 | index u64                  last purged entry
//! ```
//! Little-endian. Each row is written in the batch that moves `applied.lsn` past its record. So the log retains the
//! record until the state has persisted the row, and after a crash the record or the row exists.
//!
//! All three rows belong to this node alone: no snapshot carries them to another node, and no digest covers them. The
//! membership lists the nodes that have the state, and a restored snapshot begins a new group.

use bytes::Bytes;
use thalweg_store::View;
use thalweg_types::{Index, Lsn, SpaceTime, Term};

use crate::{
    entry::Position,
    error::MachineError,
    keys::{MEMBERSHIP, PURGED, VOTE},
    machine::state_machine::Machine,
};

const LOG_ID_LEN: usize = 16;

/// Term and index of a log entry. Both together identify the entry within its replication group.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct LogId {
    /// Term of the entry.
    pub term: Term,
    /// Index of the entry.
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

/// The last applied membership of the space, and the id of the entry that contained it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppliedMembership {
    /// Term and index of the entry that contained the membership.
    pub id: LogId,
    /// The membership as encoded in the payload of its log record.
    pub payload: Bytes,
}

impl AppliedMembership {
    /// Reads the membership from a view of the state.
    pub fn in_view(view: &dyn View) -> Result<Option<Self>, MachineError> {
        view.get(&MEMBERSHIP)?.map(Self::decode).transpose()
    }

    fn decode(row: Bytes) -> Result<Self, MachineError> {
        let Some(id) = row.first_chunk() else {
            return Err(MachineError::corrupt("membership row", &MEMBERSHIP, "row of a wrong length"));
        };
        Ok(Self { id: LogId::decode(id), payload: row.slice(LOG_ID_LEN..) })
    }
}

fn decode_purged(row: &[u8]) -> Result<LogId, MachineError> {
    let id = row.try_into().map_err(|_| MachineError::corrupt("purged row", &PURGED, "row of a wrong length"))?;
    Ok(LogId::decode(id))
}

impl Machine {
    /// Applies an entry that contains a membership: stores the entry's payload and its log id.
    pub fn apply_membership(
        &self,
        id: LogId,
        time: SpaceTime,
        payload: &[u8],
        next_lsn: Lsn,
    ) -> Result<(), MachineError> {
        let position = Position { next_lsn, entry: Some((id.term, id.index, time)) };
        self.keep(position, &MEMBERSHIP, &[&id.encode(), payload])
    }

    /// Stores the payload of a vote's record. The state's applied term, index and time do not change, because a vote is
    /// not an entry.
    pub fn apply_vote(&self, payload: &[u8], next_lsn: Lsn) -> Result<(), MachineError> {
        self.keep(Position { next_lsn, entry: None }, &VOTE, &[payload])
    }

    /// Stores that entries up to `id`, inclusive, may be missing from the log. The state's applied term, index and
    /// time do not change. An entry before the stored one changes nothing: after an install of a snapshot, the log can
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
        self.backend.get(&MEMBERSHIP)?.map(AppliedMembership::decode).transpose()
    }

    /// Returns the payload of the last applied record of a vote; `None` if this node never voted.
    pub fn vote(&self) -> Result<Option<Bytes>, MachineError> {
        Ok(self.backend.get(&VOTE)?)
    }

    /// Returns the id of the last entry that the log no longer has to retain; `None` if no entry was ever purged.
    pub fn purged(&self) -> Result<Option<LogId>, MachineError> {
        self.backend.get(&PURGED)?.map(|row| decode_purged(&row)).transpose()
    }

    fn keep(&self, position: Position, key: &[u8], row: &[&[u8]]) -> Result<(), MachineError> {
        self.with_applier(&position, None, |applying| {
            applying.applier.staged.put(&[key], row);
            Ok(())
        })
    }
}
