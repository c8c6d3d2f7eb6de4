//! Application of log records to the state. Replay calls it at open, and a member of a cluster calls it for committed
//! entries.
//!
//! Owns: the effect of each kind of record, and the checks that an entry follows the previous one. Does not own: which
//! records are valid (`valid`), and when an entry may be applied.

use std::collections::BTreeSet;

use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_state::{
    machine::{Entry, LocalOutcome, Machine},
    membership::LogId,
};
use thalweg_types::{Index, Lsn, NodeId, command::Outcome};

use crate::{
    error::OpenError,
    membership::{Membership, Vote},
};

/// Checks that the log still has all records that the state has not applied: it starts at or before the state's applied
/// position, and ends at or after it.
pub(crate) fn check_log_covers(log: &Log, applied: Lsn) -> Result<(), OpenError> {
    let (start, end) = (log.start(), log.end());
    if applied > end {
        return Err(OpenError::StateAhead { applied, end });
    }
    if applied < start {
        return Err(OpenError::LogTooShort { needed: applied, start });
    }
    Ok(())
}

/// Applies a valid log record of the space (Raft group) to the state. If the record is an entry with commands, appends
/// the outcomes of the commands to `outcomes`; `is_awaited` is true if a client of this node waits for these outcomes.
/// If the record is a move (it says that bytes were copied within the log), returns the outcome of the move; otherwise
/// `None`.
pub(crate) fn apply_record(
    machine: &Machine,
    record: &LogRecord,
    is_awaited: bool,
    outcomes: &mut Vec<Outcome>,
) -> Result<Option<LocalOutcome>, OpenError> {
    let next_lsn = record.lsn.next();
    match record.kind {
        RecordKind::Entry => {
            check_follows(machine, record)?;
            let entry = Entry {
                term: record.term,
                index: record.index,
                time: record.time,
                payload: &record.payload,
                at: record.payload_at,
                next_lsn,
            };
            machine.apply_for(&entry, is_awaited, outcomes)?;
        }
        RecordKind::Membership => {
            if record.index > Index::ZERO {
                check_follows(machine, record)?;
            }
            let id = LogId { term: record.term, index: record.index };
            let removed = removed_by(machine, record)?;
            machine.apply_membership(id, record.time, &record.payload, &removed, next_lsn)?;
        }
        RecordKind::Blank => {
            check_follows(machine, record)?;
            machine.skip(next_lsn, Some((record.term, record.index, record.time)))?;
        }
        RecordKind::Move => {
            return Ok(Some(machine.apply_move(&record.payload, record.payload_at, next_lsn)?));
        }
        RecordKind::Vote => {
            Vote::decode(&record.payload).ok_or(OpenError::Malformed { lsn: record.lsn, what: "vote" })?;
            machine.apply_vote(&record.payload, next_lsn)?;
        }
        RecordKind::Purged => machine.apply_purged(LogId { term: record.term, index: record.index }, next_lsn)?,
        RecordKind::Truncate => {
            check_truncation(machine, record)?;
            machine.skip(next_lsn, None)?;
        }
    }
    Ok(None)
}

/// Returns the nodes that are in the applied membership but not in the membership of `record`.
fn removed_by(machine: &Machine, record: &LogRecord) -> Result<BTreeSet<NodeId>, OpenError> {
    let decode = |payload: &[u8]| Membership::decode(payload);
    let malformed = || OpenError::Malformed { lsn: record.lsn, what: "membership" };
    let next = decode(&record.payload).ok_or_else(malformed)?;
    let Some(applied) = machine.membership()? else { return Ok(BTreeSet::new()) };
    let applied = decode(&applied.payload).ok_or_else(malformed)?;
    Ok(applied.members().keys().filter(|node| !next.members().contains_key(node)).copied().collect())
}

/// Checks that the index and term of an entry follow those of the previous entry. The membership at index 0 has no
/// previous entry, so it must not be checked.
fn check_follows(machine: &Machine, record: &LogRecord) -> Result<(), OpenError> {
    let applied = machine.applied();
    if record.index != applied.index.next() {
        return Err(OpenError::Gap { last: applied.index, found: record.index });
    }
    if record.term < applied.term {
        return Err(OpenError::TermWentBack { last: applied.term, found: record.term });
    }
    Ok(())
}

/// Checks that a truncation record does not void an entry that the state has applied.
///
/// There is one exception: a node that has replaced its state with a snapshot, while its log still holds entries of
/// another history at indexes up to that of the snapshot. Consensus truncates these entries. The new state records the
/// snapshot's index as its last purged entry, so this function accepts a truncation that begins at or below this index.
/// In all other cases consensus truncates only entries above the last purged index.
fn check_truncation(machine: &Machine, record: &LogRecord) -> Result<(), OpenError> {
    let (applied, index) = (machine.applied().index, record.index);
    // Index 0 belongs to the first membership, if there is one.
    let has_entries = applied > Index::ZERO || machine.membership()?.is_some();
    let is_of_replaced = || Ok::<_, OpenError>(machine.purged()?.is_some_and(|purged| index <= purged.index));
    if has_entries && index <= applied && !is_of_replaced()? {
        return Err(OpenError::Truncated { lsn: record.lsn, index, applied });
    }
    Ok(())
}
