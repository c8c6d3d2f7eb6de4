//! Settlements (acks and nacks of stream records) that a commit has checked but not applied yet.

use std::collections::BTreeSet;

use thalweg_types::{Attempt, GroupId, Offset};

/// Records of consumer groups that the writes of one commit settle (ack or nack). Two writes of a commit must not
/// settle the same record.
#[derive(Debug, Default)]
pub(crate) struct CheckedSettlements(BTreeSet<(GroupId, Attempt, Offset, Offset)>);

impl CheckedSettlements {
    pub(crate) fn clear(&mut self) {
        if !self.0.is_empty() {
            self.0.clear();
        }
    }

    /// Notes that a write of the commit settles the records `first..end` of a delivery attempt. Returns false if an
    /// earlier write of the same commit already settles one of these records.
    pub(crate) fn claim(&mut self, group: GroupId, attempt: Attempt, first: Offset, end: Offset) -> bool {
        let from = (group, attempt, Offset::ZERO, Offset::ZERO);
        // Claims of an attempt are disjoint, so the last one that begins below `end` also ends last.
        let before = self.0.range(from..(group, attempt, end, Offset::ZERO)).next_back();
        if before.is_some_and(|&(_, _, _, before_end)| before_end > first) {
            return false;
        }
        self.0.insert((group, attempt, first, end))
    }
}
