//! The oracle: decides if a history is possible in a correct cluster.
//!
//! Owns: the check of a history against the committed commands. Does not own: the meaning of the operations (`model`),
//! and the check of a short history without the committed commands (`search`).
//!
//! The committed entries give one order of all commands. The history is strictly serializable if this order explains
//! every answer and agrees with real time. For operations on one object, this property is linearizability (M. Herlihy
//! and J. M. Wing, "Linearizability", ACM TOPLAS 12(3), 1990). For transactions over several keys, separate checks of
//! the keys are not enough, so one order must explain all keys.
//!
//! Algorithm.
//! 1. Each command is carried out on the model, in order. The outcome on the nodes, and the outcome in the answer to
//!    the client, must be that of the model.
//! 2. A read reports the revision that it saw. The read lies after the last command with this revision or a lower one,
//!    and before the next command with a higher revision. It must have seen the values of the keys at that position.
//!    Only reads with a guarantee of recency take part in step 3.
//! 3. One pass over all moments, in order, keeps the highest position of the operations that have ended. An operation
//!    that begins must lie at or above this position, and gets the lowest position that it may have. If that position
//!    is above its range, no placement of the reads agrees with real time, because all earlier operations have their
//!    lowest possible positions.
//!
//! All of this takes O(n log n) for n operations. The oracle also checks that each acknowledged write is among the
//! committed commands, that no rejected write is among them, that a command that was sent once is not committed twice,
//! and that all records of the group are acked after the group was drained.

use std::collections::HashMap;

use bytes::Bytes;
use thalweg_types::command::Outcome;

use crate::{
    history::{Action, Answer, End, Level, Operation},
    model::Model,
    truth::{CommittedCommand, Truth, positions},
};

/// Result of the check of a history of client operations.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of operations with an answer that were checked.
    pub checked: usize,
    /// Number of writes in the history whose client got no answer.
    pub unknown: usize,
    /// Descriptions of findings that are impossible in a correct cluster; empty if there are none.
    pub violations: Vec<String>,
    /// Records that the stream should contain, in order.
    pub stream: Vec<u64>,
    /// Offsets of the records that no member of the consumer group has acked.
    pub unacked: Vec<u64>,
}

/// Positions in the order of commands at which an operation may lie, and the moments of its begin and end. The command
/// with the number `r` in this order (counted from 0) has the position `2 * r + 1`; the state after the first `n`
/// commands has the position `2 * n`.
struct Range<'a> {
    begin: u64,
    end: u64,
    low: u64,
    high: u64,
    operation: Option<&'a Operation>,
}

/// Checks if the answers in a history are possible, given the commands that the cluster has committed.
#[must_use]
pub fn check(operations: &[Operation], truth: &Truth) -> Verdict {
    let commands = truth.commands();
    let positions = positions(&commands);
    let mut verdict = Verdict::default();
    for operation in operations {
        count(operation, &mut verdict);
        check_durable(operation, &commands, &positions, &mut verdict.violations);
    }
    let owners = owners(operations, &positions, commands.len());
    let reads = reads(operations, &commands, truth.revision(), &mut verdict.violations);
    replay(&commands, &owners, &reads, &mut verdict);
    let is_recent = |read: &PlacedRead<'_>| {
        let action = read.range.operation.map(|operation| &operation.action);
        matches!(action, Some(Action::Read { level, .. }) if level.is_recent())
    };
    let mut ranges: Vec<Range<'_>> = reads.into_iter().filter(is_recent).map(|read| read.range).collect();
    for operation in operations.iter().filter(|operation| !operation.action.is_read()) {
        if let Some(rank) = positions.get(&operation.command).and_then(|ranks| ranks.first()) {
            let at = 2 * *rank as u64 + 1;
            let (begin, end) = (operation.begin, operation.ended());
            ranges.push(Range { begin, end, low: at, high: at, operation: Some(operation) });
        }
    }
    check_real_time(&ranges, &mut verdict.violations);
    verdict
}

fn count(operation: &Operation, verdict: &mut Verdict) {
    match operation.end {
        End::Unknown => verdict.unknown += usize::from(!operation.action.is_read()),
        End::Answered(..) => verdict.checked += 1,
        End::Rejected => {}
    }
}

/// Checks that an acknowledged write is committed with the outcome in the client's answer, and that a rejected write is
/// not committed. Also checks that no command is committed twice, except the append of a producer, which is sent
/// several times. The model alone would accept two entries with the same put or append.
fn check_durable(
    operation: &Operation,
    commands: &[CommittedCommand],
    positions: &HashMap<&Bytes, Vec<usize>>,
    violations: &mut Vec<String>,
) {
    let ranks = || positions.get(&operation.command).into_iter().flatten();
    let is_repeated = matches!(operation.action, Action::Append { stamp: Some(_), .. });
    let commits = ranks().count();
    if commits > 1 && !is_repeated {
        violations.push(format!("a command is committed {commits} times: {}", describe(operation)));
    }
    match &operation.end {
        End::Answered(_, Answer::Outcome(answered)) => {
            if ranks().next().is_none() {
                violations.push(format!("an acknowledged write is lost: {}", describe(operation)));
            } else if !ranks().any(|rank| commands[*rank].outcome == *answered) {
                let outcomes: Vec<_> = ranks().map(|rank| &commands[*rank].outcome).collect();
                violations.push(format!("the outcome was {outcomes:?}, its client was told: {}", describe(operation)));
            }
        }
        End::Rejected if ranks().next().is_some() => {
            violations.push(format!("a rejected write is committed: {}", describe(operation)));
        }
        _ => {}
    }
}

fn describe(operation: &Operation) -> String {
    format!("{:?} from moment {}, {:?}", operation.action, operation.begin, operation.end)
}

/// Returns for each committed command the client's operation that proposed it; `None` for a command that is not from a
/// client.
fn owners<'a>(
    operations: &'a [Operation],
    positions: &HashMap<&Bytes, Vec<usize>>,
    commands: usize,
) -> Vec<Option<&'a Operation>> {
    let mut owners = vec![None; commands];
    for operation in operations {
        for rank in positions.get(&operation.command).into_iter().flatten() {
            owners[*rank] = Some(operation);
        }
    }
    owners
}

fn revision_of(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Committed { revision, .. } | Outcome::Dropped { revision } => Some(revision.0),
        _ => None,
    }
}

/// A read, with its position in the order of commands.
struct PlacedRead<'a> {
    range: Range<'a>,
    values: &'a [Option<u64>],
}

/// Returns the reads that got an answer, each with its position, in the order of the commands that they follow.
fn reads<'a>(
    operations: &'a [Operation],
    commands: &[CommittedCommand],
    last_revision: u64,
    violations: &mut Vec<String>,
) -> Vec<PlacedRead<'a>> {
    let revisions: Vec<(u64, u64)> =
        (0..).zip(commands).filter_map(|(rank, command)| Some((revision_of(&command.outcome)?, rank))).collect();
    let mut reads = Vec::new();
    for operation in operations {
        let End::Answered(end, Answer::Values { revision, values }) = &operation.end else { continue };
        let seen = revisions.partition_point(|(other, _)| other <= revision);
        let low = seen.checked_sub(1).map_or(0, |at| 2 * (revisions[at].1 + 1));
        let high = revisions.get(seen).map_or(2 * commands.len() as u64, |(_, rank)| 2 * rank);
        if let Action::Read { level: Level::AtLeast(wanted), .. } = operation.action
            && *revision < wanted
        {
            violations.push(format!("revision {revision} is too old: {}", describe(operation)));
        }
        if *revision > last_revision {
            violations.push(format!("revision {revision} does not exist: {}", describe(operation)));
        }
        let range = Range { begin: operation.begin, end: *end, low, high, operation: Some(operation) };
        reads.push(PlacedRead { range, values });
    }
    reads.sort_by_key(|read| read.range.low);
    reads
}

/// Carries out all commands on the model, and compares the outcomes and the values of the reads.
fn replay(
    commands: &[CommittedCommand],
    owners: &[Option<&Operation>],
    reads: &[PlacedRead<'_>],
    verdict: &mut Verdict,
) {
    let mut model = Model::default();
    let mut reads = reads.iter().peekable();
    for rank in 0..=commands.len() {
        while let Some(read) = reads.next_if(|read| read.range.low <= 2 * rank as u64) {
            let Some(operation) = read.range.operation else { continue };
            let Action::Read { keys, .. } = &operation.action else { continue };
            let values = model.read(keys);
            if values != read.values {
                let text = format!("the values after {rank} commands were {values:?}: {}", describe(operation));
                verdict.violations.push(text);
            }
        }
        let (Some(command), Some(Some(owner))) = (commands.get(rank), owners.get(rank)) else { continue };
        if let Err(error) = model.apply(&owner.action, command.time, &command.outcome) {
            let text = format!("at index {}: {error}: {}", command.index, describe(owner));
            verdict.violations.push(text);
        }
    }
    verdict.unacked = model.unacked();
    verdict.stream = model.stream().to_vec();
}

/// Checks that the operations can be ordered within their ranges so that the order agrees with real time.
fn check_real_time(ranges: &[Range<'_>], violations: &mut Vec<String>) {
    // Each element has the moment, the operation, and true if the operation ends.
    let mut moments: Vec<(u64, usize, bool)> =
        ranges.iter().enumerate().flat_map(|(at, range)| [(range.begin, at, false), (range.end, at, true)]).collect();
    moments.sort_unstable();
    let mut floors = vec![0; ranges.len()];
    let mut floor = 0;
    for (moment, at, ends) in moments {
        if !ends {
            floors[at] = floor;
            continue;
        }
        let range = &ranges[at];
        let lowest = range.low.max(floors[at]);
        if lowest > range.high {
            let text = range.operation.map(describe).unwrap_or_default();
            violations.push(format!("an operation that ended earlier lies after {text}"));
        }
        if moment < u64::MAX {
            floor = floor.max(lowest.min(range.high));
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::SpaceTime;

    use super::*;

    /// Returns the number of violations that the check finds for one append. The append is committed once for each
    /// element of `outcomes`.
    fn durable(stamp: Option<(u64, u64)>, end: End, outcomes: &[Outcome]) -> usize {
        let command = Bytes::from_static(b"command");
        let committed = |(index, outcome): (u64, &Outcome)| CommittedCommand {
            index,
            time: SpaceTime::default(),
            command: command.clone(),
            outcome: outcome.clone(),
        };
        let commands: Vec<_> = (1..).zip(outcomes).map(committed).collect();
        let action = Action::Append { record: 1, stamp };
        let operation = Operation { action, begin: 1, end, command: command.clone() };
        let mut violations = Vec::new();
        check_durable(&operation, &commands, &positions(&commands), &mut violations);
        violations.len()
    }

    #[test]
    fn a_write_is_committed_once_if_it_was_acknowledged_and_not_at_all_if_it_was_rejected() {
        let answered = || End::Answered(2, Answer::Outcome(Outcome::Done));
        assert_eq!(durable(None, answered(), &[Outcome::Done]), 0);
        assert_eq!(durable(None, answered(), &[]), 1, "it is lost");
        assert_eq!(durable(None, answered(), &[Outcome::Version { in_force: 1 }]), 1, "it has another outcome");
        assert_eq!([durable(None, End::Rejected, &[]), durable(None, End::Unknown, &[])], [0, 0]);
        assert_eq!(durable(None, End::Rejected, &[Outcome::Done]), 1);
        assert_eq!(durable(None, End::Unknown, &[Outcome::Done]), 0);
        for end in [answered(), End::Unknown] {
            assert_eq!(durable(None, end.clone(), &[Outcome::Done, Outcome::Done]), 1, "it was sent once");
            assert_eq!(durable(Some((1, 0)), end, &[Outcome::Done, Outcome::Done]), 0, "a producer repeats its append");
        }
    }

    fn range(begin: u64, end: u64, low: u64, high: u64) -> Range<'static> {
        Range { begin, end, low, high, operation: None }
    }

    fn violations(ranges: &[Range<'_>]) -> usize {
        let mut violations = Vec::new();
        check_real_time(ranges, &mut violations);
        violations.len()
    }

    #[test]
    fn reads_lie_between_two_writes_and_agree_with_real_time() {
        // Two commands with ranks 5 and 9. The first ends before the second begins.
        let writes = || vec![range(1, 2, 11, 11), range(5, 6, 19, 19)];
        let with = |read: Range<'static>| violations(&writes().into_iter().chain([read]).collect::<Vec<_>>());
        assert_eq!(with(range(3, 4, 12, 18)), 0);
        assert_eq!(with(range(3, 10, 12, 18)), 0, "it overlaps the second write");
        assert_eq!(with(range(7, 8, 12, 18)), 1, "stale: the second write had ended");
        assert_eq!(with(range(3, 4, 20, u64::MAX)), 1, "from the future: the second write begins later");
        // Two reads see the writes in the wrong order, while both writes are in progress.
        let concurrent = [range(1, 20, 11, 11), range(2, 21, 19, 19), range(3, 4, 20, u64::MAX), range(6, 7, 12, 18)];
        assert_eq!(violations(&concurrent), 1);
        // Real time orders these two writes differently than their ranks do.
        assert_eq!(violations(&[range(1, 2, 19, 19), range(3, 4, 11, 11)]), 1);
        assert_eq!(violations(&[range(1, u64::MAX, 19, 19), range(3, 4, 11, 11)]), 0, "its end is unknown");
        assert_eq!(violations(&[range(1, 2, 19, 19), range(3, u64::MAX, 11, 11)]), 1, "it began after the other's end");
    }
}
