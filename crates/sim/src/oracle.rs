//! The oracle: decides whether a history is possible in a correct cluster.
//!
//! The committed entries give one order of all writes. The order is a witness: the history is linearizable if the order
//! explains every answer, and if it agrees with real time. Both are checked per key, because a history is linearizable
//! if the history of each object is (M. Herlihy and J. M. Wing, "Linearizability", ACM TOPLAS 12(3), 1990).
//!
//! Algorithm. Each write has the position of its entry. A read of a value may lie anywhere between the write of this
//! value and the next write of the key. One pass over all moments in order keeps the highest position that an ended
//! operation must have: an operation lies at or above this position when it begins, and takes the lowest position that
//! it may have. If that is above its range, then no placement of the reads agrees with real time, because every
//! operation before it has the lowest possible position. The pass takes O(n log n) for n operations.
//!
//! The oracle also checks that each acknowledged write is among the committed entries, at the reported index, and that
//! the stream gives its appends offsets without gaps, in the order of the entries.

use std::collections::BTreeMap;

use crate::{
    history::{Action, Answer, Operation},
    truth::Truth,
};

/// Result of the check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    /// Number of operations with an answer that were checked.
    pub checked: usize,
    /// Number of writes without an answer.
    pub unknown: usize,
    /// Descriptions of what is impossible.
    pub violations: Vec<String>,
}

/// Positions at which an operation may lie, and its moments. The write of the entry with index `i` lies at `2 * i`; reads
/// of its value lie behind it, from `2 * i + 1` on.
struct Range {
    begin: u64,
    end: u64,
    low: u64,
    high: u64,
    text: String,
}

/// Checks a history against the committed entries.
#[must_use]
pub fn check(operations: &[Operation], truth: &Truth) -> Verdict {
    let mut verdict = Verdict::default();
    let mut keys: BTreeMap<u64, Vec<(&Operation, Option<u64>)>> = BTreeMap::new();
    let mut appends: BTreeMap<u64, &Operation> = BTreeMap::new();
    for operation in operations {
        let committed = if operation.action == Action::Get { None } else { truth.index_of(&operation.payload) };
        check_durable(operation, committed, &mut verdict);
        match (operation.action, committed) {
            (Action::Append, Some(index)) => _ = appends.insert(index, operation),
            (Action::Append, None) => {}
            _ => keys.entry(operation.key).or_default().push((operation, committed)),
        }
    }
    for (key, operations) in keys {
        check_key(key, &operations, &mut verdict.violations);
    }
    check_stream(&appends, &mut verdict.violations);
    verdict
}

/// Checks that an acknowledged write is committed, where its client was told.
fn check_durable(operation: &Operation, committed: Option<u64>, verdict: &mut Verdict) {
    let is_write = operation.action != Action::Get;
    match operation.end {
        None => verdict.unknown += usize::from(is_write),
        Some(_) => {
            verdict.checked += 1;
            if is_write && committed.is_none() {
                verdict.violations.push(format!("an acknowledged write is lost: {operation:?}"));
            } else if is_write && committed != operation.index {
                verdict.violations.push(format!("a write is at index {committed:?}: {operation:?}"));
            }
        }
    }
}

/// Checks that offsets have no gaps: appends have ascending offsets in the order of their entries.
fn check_stream(appends: &BTreeMap<u64, &Operation>, violations: &mut Vec<String>) {
    for (offset, (index, operation)) in (0..).zip(appends) {
        if let Some((_, Answer::Offset(told))) = operation.end
            && told != offset
        {
            violations.push(format!("the append at index {index} has offset {offset}, and its client was told {told}"));
        }
    }
}

fn check_key(key: u64, operations: &[(&Operation, Option<u64>)], violations: &mut Vec<String>) {
    let mut writes: Vec<(u64, &Operation)> =
        operations.iter().filter_map(|(operation, index)| Some(((*index)?, *operation))).collect();
    writes.sort_unstable_by_key(|(index, _)| *index);
    let mut ranges = Vec::new();
    // Values of the key, each with the index of its write.
    let mut values: Vec<(u64, Option<u64>)> = vec![(0, None)];
    for (index, write) in &writes {
        let before = values.last().and_then(|(_, value)| *value);
        let after = match write.action {
            Action::Put(value) => Some(value),
            Action::Swap { expect, put } if expect == before => Some(put),
            _ => None,
        };
        if let Some((_, answer)) = write.end
            && (answer == Answer::Done) != after.is_some()
        {
            violations.push(format!("key {key} had {before:?} at index {index}, which does not explain {write:?}"));
        }
        if after.is_some() {
            values.push((*index, after));
        }
        let end = write.end.map_or(u64::MAX, |(moment, _)| moment);
        ranges.push(Range { begin: write.begin, end, low: 2 * index, high: 2 * index, text: format!("{write:?}") });
    }
    let reads = operations.iter().filter_map(|(operation, _)| match operation.end {
        Some((end, Answer::Value(value))) => Some((*operation, end, value)),
        _ => None,
    });
    for (read, end, value) in reads {
        let Some(at) = values.iter().position(|(_, written)| *written == value) else {
            violations.push(format!("key {key} never had the value of {read:?}"));
            continue;
        };
        let high = values.get(at + 1).map_or(u64::MAX, |(next, _)| 2 * next - 1);
        ranges.push(Range { begin: read.begin, end, low: 2 * values[at].0 + 1, high, text: format!("{read:?}") });
    }
    check_real_time(key, &ranges, violations);
}

/// Checks that operations can be placed in an order that agrees with real time.
fn check_real_time(key: u64, ranges: &[Range], violations: &mut Vec<String>) {
    // Moments with the operation and whether it ends.
    let mut moments: Vec<(u64, usize, bool)> =
        ranges.iter().enumerate().flat_map(|(at, range)| [(range.begin, at, false), (range.end, at, true)]).collect();
    moments.sort_unstable();
    let mut floors = vec![0; ranges.len()];
    let mut floor = 0;
    for (_, at, ends) in moments {
        if !ends {
            floors[at] = floor;
            continue;
        }
        let range = &ranges[at];
        let lowest = range.low.max(floors[at]);
        if lowest > range.high {
            violations.push(format!("key {key}: an operation that ended earlier lies after {}", range.text));
        }
        floor = floor.max(lowest.min(range.high));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(begin: u64, end: u64, low: u64, high: u64) -> Range {
        Range { begin, end, low, high, text: String::new() }
    }

    fn violations(ranges: &[Range]) -> usize {
        let mut violations = Vec::new();
        check_real_time(1, ranges, &mut violations);
        violations.len()
    }

    #[test]
    fn reads_lie_between_two_writes_and_agree_with_real_time() {
        // Writes at indexes 5 and 9, one after the other.
        let writes = || vec![range(1, 2, 10, 10), range(5, 6, 18, 18)];
        let with = |read: Range| violations(&writes().into_iter().chain([read]).collect::<Vec<_>>());
        assert_eq!(with(range(3, 4, 11, 17)), 0);
        assert_eq!(with(range(3, 10, 11, 17)), 0, "it overlaps the second write");
        assert_eq!(with(range(7, 8, 11, 17)), 1, "stale: the second write had ended");
        assert_eq!(with(range(3, 4, 19, u64::MAX)), 1, "from the future: the second write begins later");
        // Two reads that see the values in the wrong order while both writes are under way.
        let concurrent = [range(1, 20, 10, 10), range(2, 21, 18, 18), range(3, 4, 19, u64::MAX), range(6, 7, 11, 17)];
        assert_eq!(violations(&concurrent), 1);
        // Writes that real time orders otherwise.
        assert_eq!(violations(&[range(1, 2, 18, 18), range(3, 4, 10, 10)]), 1);
        assert_eq!(violations(&[range(1, u64::MAX, 18, 18), range(3, 4, 10, 10)]), 0, "its end is unknown");
    }
}
