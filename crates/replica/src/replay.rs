//! Replay: applies the records of the log to the state when a space (Raft group) is opened.

use std::ops::ControlFlow;

use thalweg_log::{Log, RecordKind};
use thalweg_state::machine::Machine;
use thalweg_types::{Lsn, NodeId, SpaceId};

use crate::{
    apply::{apply_record, check_log_covers},
    error::OpenError,
    membership::Membership,
    valid::Valid,
};

/// Result of a replay of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Number of log records of the space (Raft group) that the replay applied to the state.
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
    /// LSN at which the log and the replay end.
    pub end: Lsn,
}

impl ReplayProgress {
    /// Returns the fraction of the replay that is done, from 0 to 1.
    #[must_use]
    pub fn part(&self) -> f64 {
        let all = self.end.0.saturating_sub(self.from.0).max(1);
        self.at.0.saturating_sub(self.from.0) as f64 / all as f64
    }
}

/// Applies the log records after the state's applied position to the state, up to the log's end; see [`replay_while`].
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
/// If this node is the only voter of the space (Raft group), all entries of its log are agreed on. If other nodes vote
/// too, entries may lack agreement, so replay returns an error before it applies entries that depend on other voters.
///
/// Entries that a truncation voids are skipped. The log knows its truncations before it is read ([`Log::truncations`]),
/// so no record is read twice or delayed.
///
/// Calls `progress` after each record. If `progress` returns `Break`, the replay ends with [`OpenError::Interrupted`].
/// The state is consistent then, and a later replay continues after the last applied record.
pub fn replay_while(
    log: &Log,
    machine: &Machine,
    space: SpaceId,
    progress: &mut dyn FnMut(&ReplayProgress) -> ControlFlow<()>,
) -> Result<Replayed, OpenError> {
    let (from, end) = (machine.applied().lsn, log.end());
    check_log_covers(log, from)?;
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
        if record.kind == RecordKind::Membership {
            check_single_member(&record.payload, record.lsn)?;
        }
        apply_record(machine, &record, false, &mut outcomes)?;
        outcomes.clear();
        if progress(&ReplayProgress { replayed, from, at: record.lsn.next(), end }).is_break() {
            return Err(OpenError::Interrupted);
        }
    }
    Ok(replayed)
}

/// Reads the log from its beginning to its end, and checks that no other node votes in the space (Raft group). After a
/// success, the log may be replayed into an empty state, and the state opened with [`Solo`](crate::Solo). Changes
/// nothing.
pub fn check_sole_voter(log: &Log, space: SpaceId, node: NodeId) -> Result<(), OpenError> {
    let valid = Valid::of(log, space);
    let mut sole_voter = node;
    for record in log.records_from(log.start())? {
        let record = record?;
        if record.space == space && record.kind == RecordKind::Membership && !valid.is_void(&record) {
            sole_voter = check_single_member(&record.payload, record.lsn)?;
        }
    }
    if sole_voter == node { Ok(()) } else { Err(OpenError::NotAlone { voters: vec![sole_voter] }) }
}

/// Checks that a membership has a single voter, and returns it.
fn check_single_member(membership: &[u8], lsn: Lsn) -> Result<NodeId, OpenError> {
    let membership = Membership::decode(membership).ok_or(OpenError::Malformed { lsn, what: "membership" })?;
    let not_alone = || OpenError::NotAlone { voters: membership.voters().into_iter().collect() };
    membership.sole_voter().ok_or_else(not_alone)
}
