//! Opening of the log of a space (one Raft group's data): one pass over the node's log collects all facts about it.
//!
//! Owns: [`Base`], and the position at which the pass begins. Does not own: the recovery of the node's log, which has
//! ended before.

use thalweg_log::{Log, LogRecord, RecordKind};
use thalweg_replica::{Valid, Vote};
use thalweg_state::{machine::Machine, membership::LogId};
use thalweg_types::{Index, Lsn, SpaceId, SpaceTime};

use crate::{error::StoreError, space_log::SpaceLog};

/// Facts from log records that the state has already processed. The log may have freed these records.
///
/// The default belongs to a state that has processed nothing, so the log contains all records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base {
    /// Last vote of this node; `None` if it has not voted.
    pub vote: Option<Vote>,
    /// Last entry that the log may have freed (the purged entry); `None` if no entry was purged.
    pub purged: Option<LogId>,
    /// Last applied entry; `None` if the state has applied none.
    pub applied: Option<LogId>,
    /// Time of the last applied entry.
    pub time: SpaceTime,
    /// LSN below which the state has processed all records.
    pub lsn: Lsn,
}

impl Base {
    /// Reads the last vote, the purged entry and the applied position from the rows of the stored state (see
    /// `docs/formats/state.md`).
    pub fn of(machine: &Machine) -> Result<Self, StoreError> {
        let unreadable = |error: &dyn std::fmt::Display| StoreError::State(error.to_string());
        let applied = machine.applied();
        let malformed = || StoreError::Malformed { lsn: applied.lsn, what: "vote" };
        let vote = machine.vote().map_err(|error| unreadable(&error))?;
        let has_entries = machine.membership().map_err(|error| unreadable(&error))?.is_some();
        Ok(Self {
            vote: vote.map(|vote| Vote::decode(&vote).ok_or_else(malformed)).transpose()?,
            purged: machine.purged().map_err(|error| unreadable(&error))?,
            applied: has_entries.then_some(LogId { term: applied.term, index: applied.index }),
            time: applied.time,
            lsn: applied.lsn,
        })
    }
}

/// Reads the node's log, and returns the state of the replicated log in memory. Takes the memory of one read buffer.
/// Reading begins at the segment that contains the first entry after the last purged one.
pub(crate) fn recover(log: &Log, space: SpaceId, base: &Base, max_tail_bytes: usize) -> Result<SpaceLog, StoreError> {
    let mut space_log = SpaceLog::new(max_tail_bytes);
    space_log.vote = base.vote;
    space_log.last_time = base.time;
    if let Some(purged) = base.purged {
        space_log.purge(purged, base.time);
    }
    let valid = Valid::of(log, space);
    for record in log.records_from(first_lsn(log, space, base)?)? {
        let record = record?;
        if record.space == space && !valid.is_void(&record) {
            learn(&mut space_log, &record)?;
        }
    }
    check_start(&mut space_log, base)?;
    Ok(space_log)
}

/// Updates the state of the replicated log in memory from one record of the node's log.
fn learn(space_log: &mut SpaceLog, record: &LogRecord) -> Result<(), StoreError> {
    let id = LogId { term: record.term, index: record.index };
    match record.kind {
        RecordKind::Entry | RecordKind::Membership | RecordKind::Blank => {
            if let Some(purged) = space_log.purged
                && record.index <= purged.index
            {
                if id == purged {
                    space_log.purged_time = record.time;
                }
                return Ok(());
            }
            // The log may have freed the entries before this one. The record of their purge can follow later in the
            // log.
            if space_log.index.is_empty() && record.index > space_log.index.next() {
                space_log.index.begin_at(record.index);
            }
            space_log.push(record)
        }
        RecordKind::Vote => {
            let vote = Vote::decode(&record.payload);
            space_log.vote = Some(vote.ok_or(StoreError::Malformed { lsn: record.lsn, what: "vote" })?);
            Ok(())
        }
        RecordKind::Purged => {
            space_log.purge(id, record.time);
            Ok(())
        }
        // A truncation has already made the caller skip the entries that it voids.
        RecordKind::Truncate | RecordKind::Move => Ok(()),
    }
}

/// Checks that the log's entries begin directly after the last purged one (one that the log may have freed).
///
/// A single node can free a segment before the record of the purge is durable. After a power loss, both the entries and
/// the record can be missing. The state has applied all missing entries, so in this case its last applied entry counts
/// as the purged one.
fn check_start(space_log: &mut SpaceLog, base: &Base) -> Result<(), StoreError> {
    let expected = space_log.purged.map_or(Index::ZERO, |purged| purged.index.next());
    let found = space_log.index.first();
    if space_log.index.is_empty() || found <= expected {
        return Ok(());
    }
    match base.applied.filter(|applied| found <= applied.index.next()) {
        Some(applied) => space_log.purge(applied, base.time),
        None => return Err(StoreError::Gap { expected, found }),
    }
    Ok(())
}

/// Returns the LSN at which the pass over the log begins. All entries after the last purged one, and all records that
/// the state has not processed, are at or after this LSN.
///
/// If the index of a segment's first entry is at most that of the first needed entry, no needed entry lies before the
/// segment. This also holds for a void first entry, because the entries that reuse void indexes come later. So the
/// search goes from the newest segment back to the first one with this property, and reads little of each segment.
fn first_lsn(log: &Log, space: SpaceId, base: &Base) -> Result<Lsn, StoreError> {
    let start = log.start();
    let Some(purged) = base.purged else { return Ok(start) };
    let first_needed = purged.index.next();
    let segments = log.segments();
    let passed = segments.iter().rev().filter(|segment| segment.first <= base.lsn && segment.first >= start);
    for segment in passed {
        for record in log.segment_records(segment.generation)? {
            let record = record?;
            if record.space != space || !record.kind.has_index() {
                continue;
            }
            if record.index <= first_needed {
                return Ok(segment.first);
            }
            break;
        }
    }
    Ok(start)
}
