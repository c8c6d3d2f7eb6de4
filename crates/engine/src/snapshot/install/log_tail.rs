//! Handles the end of a node's log, which its state has not applied yet, when a snapshot of another node is installed.
//!
//! Owns: finding the position from which the log continues the snapshot ([`LogTail`]), and applying the node's own
//! records after it ([`catch_up`]). Does not own: replay after a restart, or the entries after the snapshot, which are
//! applied when they are committed.
//!
//! The log of a node that installs a snapshot can contain, in any mixture: entries that the snapshot covers, also
//! entries that consensus has discarded; entries after the snapshot; votes; and records that move bytes within the log,
//! most of them written by the install.

use thalweg_log::{Log, RecordKind};
use thalweg_replica::Valid;
use thalweg_state::{
    machine::{Machine, MachineError},
    membership::LogId,
};
use thalweg_types::{Index, Lsn, SpaceId};

use crate::install_error::InstallError;

/// Positions found in the part of a log that the state has not applied yet, read up to the log's present end.
#[derive(Debug)]
pub(super) struct LogTail {
    /// LSN from which the records continue the snapshot: that of the first entry after the snapshot, or the end of the
    /// log.
    pub(super) start: Lsn,
    /// Index of the first log entry after the snapshot; `None` if there is none.
    pub(super) later: Option<Index>,
    /// Payload of the last vote (consensus record) in this part of the log; `None` if there is none.
    pub(super) vote: Option<Vec<u8>>,
}

impl LogTail {
    /// Reads the records from `from` on. `last` is the last log entry that the snapshot covers.
    pub(super) fn read(log: &Log, from: Lsn, last: Index) -> Result<Self, InstallError> {
        let (mut end, mut vote) = (from, None);
        let mut next_entry: Option<(Lsn, Index)> = None;
        for record in log.records_from(from)? {
            let record = record?;
            end = record.lsn.next();
            if record.space != SpaceId::ZERO {
                continue;
            }
            match record.kind {
                RecordKind::Vote => vote = Some(record.payload.to_vec()),
                // A truncation voids the entries from its index on.
                RecordKind::Truncate => next_entry = next_entry.filter(|(_, index)| *index < record.index),
                kind if kind.has_index() && record.index > last => {
                    next_entry.get_or_insert((record.lsn, record.index));
                }
                _ => {}
            }
        }
        let (start, later) = next_entry.map_or((end, None), |(lsn, index)| (lsn, Some(index)));
        Ok(Self { start, later, vote })
    }
}

/// Records of the log that [`catch_up`] has passed: only the node's own, or also entries that the snapshot covers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PassedRecords {
    OwnRecords,
    CoveredEntries,
}

/// Applies the node's own log records to an installed state: those from the state's position on, up to the end of the
/// log or the first entry after the snapshot.
pub(super) fn catch_up(log: &Log, machine: &Machine, last: Index) -> Result<PassedRecords, InstallError> {
    let mut passed = PassedRecords::OwnRecords;
    let from = machine.applied().lsn;
    if from == log.end() {
        return Ok(passed);
    }
    let valid = Valid::of(log, SpaceId::ZERO);
    for record in log.records_from(from)? {
        let record = record?;
        let next_lsn = record.lsn.next();
        if record.space != SpaceId::ZERO || valid.is_void(&record) {
            continue;
        }
        let applied: Result<(), MachineError> = match record.kind {
            RecordKind::Move => machine.apply_move(&record.payload, record.payload_at, next_lsn).map(drop),
            RecordKind::Vote => machine.apply_vote(&record.payload, next_lsn),
            RecordKind::Purged => machine.apply_purged(LogId { term: record.term, index: record.index }, next_lsn),
            RecordKind::Truncate => machine.skip(next_lsn, None),
            RecordKind::Entry | RecordKind::Blank | RecordKind::Membership if record.index > last => break,
            RecordKind::Entry | RecordKind::Blank | RecordKind::Membership => {
                passed = PassedRecords::CoveredEntries;
                machine.skip(next_lsn, None)
            }
        };
        applied?;
    }
    Ok(passed)
}
