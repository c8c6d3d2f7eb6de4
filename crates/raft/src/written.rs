//! Times at which the newest appends of entries were written to this node's log. Metrics of replication use them.
//!
//! Bound: the times of [`MAX_APPENDS`] appends are kept. A newer append replaces the oldest one.
//!
//! Invariant: the appends are in the order of their indexes, and none overlaps another one.

use std::{collections::VecDeque, time::Duration};

use thalweg_types::Index;

/// Maximum number of appends whose times are kept. An entry is committed after a few more appends, so this number is
/// ample.
const MAX_APPENDS: usize = 1024;

/// Index of the first and of the last entry of one append, and the monotonic times at which its write began and ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Written {
    /// Index of the first entry of the append.
    pub first: Index,
    /// Index of the last entry of the append; `first <= last`.
    pub last: Index,
    pub begun: Duration,
    pub ended: Duration,
}

/// Write times of the newest appends, ascending by index.
#[derive(Debug, Default)]
pub(crate) struct WrittenTimes(VecDeque<Written>);

impl WrittenTimes {
    /// Adds the times of an append. Drops those of appends with the same or later entries, because these entries were
    /// truncated.
    pub(crate) fn push(&mut self, written: Written) {
        while self.0.back().is_some_and(|newest| newest.last >= written.first) {
            self.0.pop_back();
        }
        if self.0.len() == MAX_APPENDS {
            self.0.pop_front();
        }
        self.0.push_back(written);
    }

    /// Returns the append that wrote the entry at `index`; `None` if it is not among the newest appends.
    pub(crate) fn of(&self, index: Index) -> Option<Written> {
        let at = self.0.partition_point(|written| written.last < index);
        self.0.get(at).copied().filter(|written| written.first <= index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(first: u64, last: u64) -> Written {
        let at = Duration::from_micros(first);
        Written { first: Index(first), last: Index(last), begun: at, ended: at }
    }

    #[test]
    fn an_entry_is_found_in_its_append_until_that_is_truncated_or_too_old() {
        let mut times = WrittenTimes::default();
        [written(3, 3), written(4, 9), written(12, 13)].into_iter().for_each(|one| times.push(one));
        let first_of = |times: &WrittenTimes, index| times.of(Index(index)).map(|one| one.first.0);
        let found = [2, 3, 4, 9, 10, 12, 13, 14].map(|index| first_of(&times, index));
        assert_eq!(found, [None, Some(3), Some(4), Some(4), None, Some(12), Some(12), None]);
        times.push(written(7, 8));
        assert_eq!([5, 8, 12].map(|index| first_of(&times, index)), [None, Some(7), None], "4 to 9 was cut");
        (100..100 + MAX_APPENDS as u64).for_each(|index| times.push(written(index, index)));
        assert_eq!((first_of(&times, 8), first_of(&times, 100), times.0.len()), (None, Some(100), MAX_APPENDS));
    }
}
