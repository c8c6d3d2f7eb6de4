//! Removal of the rows that consumer groups no longer need: those of deleted groups, and records that were trimmed.
//!
//! A group can have 100,000 attempts, each with a row, and a stream can have many such groups. The command that deletes
//! a group, or that deletes or trims a stream, therefore removes a bounded number of rows. Maintenance proposes further
//! commands until none are left ([`reclaim`]).
//!
//! A deleted group is gone for readers and for other commands immediately, and its name is free. Trimmed records that
//! are left still count as pending or as dead letters, and may be delivered again; a consumer gets none of them,
//! because the node that serves its fetch finds them gone and acks them.
//!
//! Invariant: the number of rows that a command removes is a function of the committed entries alone.

use thalweg_types::{
    GroupId, Offset, StreamId,
    command::{Outcome, groups::GroupOutcome},
};

use crate::{
    error::MachineError,
    groups::{group::Group, table::GroupTable},
    machine::{
        applying::{Applying, MAX_RECLAIM_ENTRIES},
        state_machine::Machine,
    },
    refused::Refused,
    sync::read,
};

impl GroupTable {
    /// Deletes a consumer group. Returns false if it does not exist.
    pub(crate) fn remove(&mut self, id: GroupId) -> bool {
        let mut left = MAX_RECLAIM_ENTRIES;
        self.remove_within(id, &mut left)
    }

    /// Deletes a group. Removes its rows immediately if there are at most `left`, and lowers `left` by their number.
    fn remove_within(&mut self, id: GroupId, left: &mut u32) -> bool {
        let Some(mut group) = self.take(id) else { return false };
        match left.checked_sub(u32::try_from(group.rows()).unwrap_or(u32::MAX)) {
            Some(rest) => {
                *left = rest;
                self.changed.remove(&id);
                self.removed.push((id, group));
            }
            None => {
                group.mark_deleted();
                self.changed.insert(id);
                self.former.insert(id, group);
            }
        }
        true
    }

    /// Deletes all consumer groups of a deleted stream.
    pub(crate) fn stream_deleted(&mut self, stream: StreamId) {
        let ids: Vec<_> = self.of_stream(stream).collect();
        let mut left = MAX_RECLAIM_ENTRIES;
        ids.into_iter().for_each(|id| _ = self.remove_within(id, &mut left));
    }

    /// Drops the records below the offset `start` from all groups of the stream, in the order of names, because they
    /// were trimmed from the stream. Leaves the rest to [`reclaim`] if there are many.
    pub(crate) fn stream_trimmed(&mut self, stream: StreamId, start: Offset) {
        let ids: Vec<_> = self.of_stream(stream).collect();
        let mut left = MAX_RECLAIM_ENTRIES;
        for id in ids {
            let Some(group) = self.change(id) else { continue };
            group.skip_to(start);
            let (processed, more) = group.drop_below(start, left);
            left = left.saturating_sub(processed);
            if more {
                self.trimmed.insert(id);
            }
            self.woken.insert(stream);
        }
    }

    /// Finds the groups with records below the start of their stream, after the rows are loaded.
    pub(crate) fn find_trimmed(&mut self, start_of: impl Fn(StreamId) -> Option<Offset>) {
        let is_trimmed =
            |group: &Group| start_of(group.head.stream).is_some_and(|start| group.parcels.first_below(start).is_some());
        self.trimmed = self.groups.iter().filter(|(_, group)| is_trimmed(group)).map(|(&id, _)| id).collect();
    }
}

/// Removes at most `max` rows of a deleted group. For any other group, drops records that were trimmed from its stream.
/// It stops after the attempt that brings the number of processed runs (ranges of records) to `max` or more.
pub(crate) fn reclaim(applying: &mut Applying<'_>, id: GroupId, max: u32) -> Result<Outcome, Refused> {
    let max = max.min(MAX_RECLAIM_ENTRIES);
    let stream = applying.groups().get(id).map(|group| group.head.stream);
    let start = stream.and_then(|stream| applying.stream_bounds(stream)).map_or(Offset::ZERO, |(_, start, _)| start);
    let groups = applying.groups();
    if let Some(group) = groups.former.get_mut(&id) {
        let entries = group.remove_rows(max);
        let more = group.rows() > 0;
        groups.changed.insert(id);
        if !more && let Some(group) = groups.former.remove(&id) {
            groups.changed.remove(&id);
            groups.removed.push((id, group));
        }
        return Ok(Outcome::Reclaimed { entries, more });
    }
    let Some(group) = groups.change(id) else { return Ok(Outcome::Group(GroupOutcome::NoSuchGroup(id))) };
    let (entries, more) = group.drop_below(start, max);
    if !more {
        groups.trimmed.remove(&id);
    }
    groups.woken.extend(stream.filter(|_| entries > 0));
    Ok(Outcome::Reclaimed { entries, more })
}

impl Machine {
    /// Returns up to `limit` consumer groups with rows to remove: deleted groups, and groups with records that were
    /// trimmed from their stream.
    pub fn groups_to_reclaim(&self, limit: usize) -> Result<Vec<GroupId>, MachineError> {
        self.with_groups(|table| table.former.keys().chain(&table.trimmed).take(limit).copied().collect())
    }

    /// Finds the groups with trimmed records when the machine is opened.
    pub(crate) fn find_trimmed_groups(&self) -> Result<(), MachineError> {
        let streams = read(&self.published.streams);
        self.with_groups(|table| table.find_trimmed(|stream| streams.get(stream).map(|head| head.start)))
    }
}
