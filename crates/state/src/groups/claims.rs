//! Settlements that a commit has checked and not done yet.

use std::collections::BTreeSet;

use thalweg_types::{Attempt, GroupId, Offset};

/// What the writes of one commit settle: two of them can't have the same record.
#[derive(Debug, Default)]
pub(crate) struct Claims(BTreeSet<(GroupId, Attempt, Offset, Offset)>);

impl Claims {
    pub(crate) fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0.clear();
        }
    }

    /// False if a part of `first..end` is claimed already.
    pub(crate) fn claim(&mut self, group: GroupId, attempt: Attempt, first: Offset, end: Offset) -> bool {
        let from = (group, attempt, Offset::ZERO, Offset::ZERO);
        // Claims of an attempt are disjoint, so the last one that begins below the end is also the last to end.
        let before = self.0.range(from..(group, attempt, end, Offset::ZERO)).next_back();
        if before.is_some_and(|&(_, _, _, before_end)| before_end > first) {
            return false;
        }
        self.0.insert((group, attempt, first, end))
    }
}
