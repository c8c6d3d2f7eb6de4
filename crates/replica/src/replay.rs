//! Replay: applies the records of the log to the state when a space is opened.

use std::ops::ControlFlow;

use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_state::{
    machine::{Entry, Machine},
    membership::LogId,
};
use thalweg_types::{Index, Lsn, SpaceId, command::Outcome};

use crate::{
    error::OpenError,
    membership::{Membership, Vote},
    valid::Valid,
};

/// Result of a replay of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of log records of the space that the replay applied to the state.
    pub records: u64,
    /// Total payload size in bytes of the applied records.
    pub bytes: u64,
}

/// Progress of a replay after one of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplayProgress {
    /// Records and bytes that the replay has applied so far.
    pub replayed: Replayed,
    /// LSN at which the replay began.
    pub from: Lsn,
    /// LSN after the last applied record.
    pub at: Lsn,
    /// LSN at which the log ends, and with it the replay.
    pub end: Lsn,
}

impl ReplayProgress {
    /// Returns the part of the log's records that the replay has passed, from 0 to 1.
    #[must_use]
    pub fn part(&self) -> f64 {
        let all = self.end.0.saturating_sub(self.from.0).max(1);
        self.at.0.saturating_sub(self.from.0) as f64 / all as f64
    }
}

/// Replays the log like [`replay_while`], to its end.
pub fn replay(
    log: &Log,
    machine: &Machine,
    space: SpaceId,
    progress: &mut dyn FnMut(&Replayed),
) -> Result<Replayed, OpenError> {
    replay_while(log, machine, space, &mut |reached| {
        progress(&reached.replayed);
        ControlFlow::Continue(())
    })
}

/// Applies all records of the log beyond the state's applied position. The memory used is bounded by the size of the
/// log's read buffer and of the largest record.
///
/// If this node is the only voter of the space, all entries of its log are agreed on. If other nodes vote too, entries
/// may lack agreement, so replay returns an error before it applies entries that depend on other voters.
///
/// Entries that a truncation voids are skipped. The log knows its truncations before it is read
/// ([`Log::truncations`]), so no record is read twice or delayed.
///
/// Calls `progress` after each record. If it returns `Break`, the replay ends with [`OpenError::Interrupted`]. The state
/// is consistent then, and a later replay continues after it.
pub fn replay_while(
    log: &Log,
    machine: &Machine,
    space: SpaceId,
    progress: &mut dyn FnMut(&ReplayProgress) -> ControlFlow<()>,
) -> Result<Replayed, OpenError> {
    let from = machine.applied().lsn;
    let (start, end) = (log.start(), log.end());
    if from > end {
        return Err(OpenError::StateAhead { applied: from, end });
    }
    if from < start {
        return Err(OpenError::LogTooShort { needed: from, start });
    }
    if let Some(membership) = machine.membership()? {
        let lsn = from;
        check_single_member(&membership.payload, lsn)?;
    }
    let valid = Valid::of(log, space);
    let mut replayed = Replayed::default();
    let mut outcomes = Vec::new();
    if from == end {
        return Ok(replayed);
    }
    for record in log.records_from(from)? {
        let record = record?;
        // A void record does not advance the state's applied position; the later truncation does.
        if record.space != space || valid.is_void(&record) {
            continue;
        }
        replayed.records += 1;
        replayed.bytes += record.payload.len() as u64;
        apply_record(machine, &record, &mut outcomes)?;
        outcomes.clear();
        if progress(&ReplayProgress { replayed, from, at: record.lsn.next(), end }).is_break() {
            return Err(OpenError::Interrupted);
        }
    }
    Ok(replayed)
}

fn apply_record(machine: &Machine, record: &LogRecord, outcomes: &mut Vec<Outcome>) -> Result<(), OpenError> {
    let next_lsn: Lsn = record.lsn.next();
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
            machine.apply(&entry, outcomes)?;
        }
        RecordKind::Membership => {
            if record.index > Index::ZERO {
                check_follows(machine, record)?;
            }
            check_single_member(&record.payload, record.lsn)?;
            let id = LogId { term: record.term, index: record.index };
            machine.apply_membership(id, record.time, &record.payload, next_lsn)?;
        }
        RecordKind::Blank => {
            check_follows(machine, record)?;
            machine.skip(next_lsn, Some((record.term, record.index, record.time)))?;
        }
        RecordKind::Move => {
            machine.apply_move(&record.payload, record.payload_at, next_lsn)?;
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
    Ok(())
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

/// Checks that a truncation record declares void only entries that the state has not applied.
fn check_truncation(machine: &Machine, record: &LogRecord) -> Result<(), OpenError> {
    let (applied, index) = (machine.applied().index, record.index);
    // Index 0 belongs to the first membership, if there is one.
    let has_entries = applied > Index::ZERO || machine.membership()?.is_some();
    if has_entries && index <= applied {
        return Err(OpenError::Truncated { lsn: record.lsn, index, applied });
    }
    Ok(())
}

fn check_single_member(membership: &[u8], lsn: Lsn) -> Result<(), OpenError> {
    let membership = Membership::decode(membership).ok_or(OpenError::Malformed { lsn, what: "membership" })?;
    match membership.sole_voter() {
        Some(_) => Ok(()),
        None => Err(OpenError::NotAlone { voters: membership.voters().into_iter().collect() }),
    }
}
