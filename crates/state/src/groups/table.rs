//! The table of all consumer groups: the records of their streams that they have delivered, and the state of each
//! delivery.
//!
//! Owns: the table of groups in memory and their rows, together with pending records (`parcels`), the rules of a group
//! (`group`), order per key (`order`) and members (`members`). Does not own: records. Groups handle only offsets, and
//! the code that serves a fetch reads the records from the log.
//!
//! ```text
//!    settled, except pending records         not delivered yet      to come
//! |----------------------------------------|--------------------|----------->  offsets of the stream
//! start                                  cursor                next
//! ```
//! All records below the cursor are settled unless a *parcel* contains them. A parcel has the records of one attempt
//! that are not settled yet, as runs of offsets, and a due time at which they become free for redelivery. Nacked
//! records are in parcels without a member. Dead letters are in parcels that never become free.
//!
//! So a fetch of 100 new records creates one parcel of one run, and the ack of all of them removes it: together they
//! write two rows in addition to the head. No row is written when a deadline passes; the next fetch finds the parcel by
//! its due time.
//!
//! The rows of a deleted group are removed immediately if there are few. Otherwise the group is in `former` until
//! commands of maintenance (`reclaim`) have removed all its rows. Its head row then has stream 0. Records that were
//! trimmed from the stream leave the parcels in the same way.
//!
//! Invariants: the parcels of a group, except dead letters, contain disjoint offsets below its cursor. Attempt numbers
//! increase strictly. A command leaves no parcel that it changes with more than 1,000 records. The rows of a group
//! equal its content in memory after an entry is applied.
//!
//! ```text
//! 0e                            := next group u32
//! 0e | group u32 BE             := stream u32 | cursor u64 | last attempt u64 | delivered u64 | acked u64
//!                                | dead u64 | dropped u64 | redelivered u64 | config | name
//! 0f | group u32 BE | id u32 BE := last fetch u64 | name                             a member
//! 14 | group u32 BE | attempt u64 BE := parcel              see thalweg_types::parcel
//! ```
//! Little-endian within rows.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use thalweg_store::{View, WriteBatch};
use thalweg_types::{GroupId, StreamId};

use crate::{
    error::MachineError,
    groups::{
        group::Group,
        head::{DELETED, Head},
    },
    keys::{self, KeyRange},
};

/// The table of all consumer groups, in memory.
#[derive(Debug)]
pub(crate) struct GroupTable {
    pub(super) groups: BTreeMap<GroupId, Group>,
    /// Deleted consumer groups whose rows are not all removed yet.
    pub(super) former: BTreeMap<GroupId, Group>,
    /// Groups that may have pending records or dead letters below the start of their stream. Tells maintenance where
    /// to look, and has no effect on the state.
    pub(super) trimmed: BTreeSet<GroupId>,
    by_name: BTreeMap<(StreamId, Arc<str>), GroupId>,
    next: GroupId,
    next_changed: bool,
    /// Groups that the log record being applied has changed.
    pub(super) changed: BTreeSet<GroupId>,
    /// Groups whose last rows the log record being applied removes.
    pub(super) removed: Vec<(GroupId, Group)>,
    /// Streams with a group that may have become able to deliver records, because records were settled or returned, or
    /// the group changed. Consumers that wait on these streams are woken.
    pub(crate) woken: BTreeSet<StreamId>,
    /// True while a log record is being applied, and after applying one has failed; then the table's content is not
    /// valid.
    pub(crate) applying: bool,
}

impl GroupTable {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let mut table = Self {
            groups: BTreeMap::new(),
            former: BTreeMap::new(),
            trimmed: BTreeSet::new(),
            by_name: BTreeMap::new(),
            next: GroupId(1),
            next_changed: false,
            changed: BTreeSet::new(),
            removed: Vec::new(),
            woken: BTreeSet::new(),
            applying: false,
        };
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_CONSUMERS]), |key, row| {
            let corrupt = |message| MachineError::corrupt("consumer group", key, message);
            if key.len() == 1 {
                let next = row.try_into().map(u32::from_le_bytes).map_err(|_| corrupt("row of a wrong length"))?;
                table.next = GroupId(next.max(1));
                return Ok(());
            }
            let id = keys::id_of(key).map(GroupId).ok_or_else(|| corrupt("key of a wrong length"))?;
            if id.0 == 0 || id >= table.next {
                return Err(corrupt("id was never assigned"));
            }
            let group = Group::new(Head::decode(key, row)?);
            if group.head.stream == DELETED {
                table.former.insert(id, group);
                return Ok(());
            }
            if table.by_name.insert((group.head.stream, group.head.name.clone()), id).is_some() {
                return Err(corrupt("a name occurs twice"));
            }
            table.groups.insert(id, group);
            Ok(())
        })?;
        table.load_rest(view)?;
        Ok(table)
    }

    fn load_rest(&mut self, view: &dyn View) -> Result<(), MachineError> {
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_MEMBER]), |key, row| {
            let corrupt = |message| MachineError::corrupt("group member", key, message);
            let (id, rest) = keys::group_and_rest(key).ok_or_else(|| corrupt("key of a wrong length"))?;
            let group = self.stored(id).ok_or_else(|| corrupt("its group does not exist"))?;
            group.load_member(rest, row).map_err(corrupt)
        })?;
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_PARCEL]), |key, row| {
            let corrupt = |message| MachineError::corrupt("pending records of a group", key, message);
            let (id, rest) = keys::group_and_rest(key).ok_or_else(|| corrupt("key of a wrong length"))?;
            let group = self.stored(id).ok_or_else(|| corrupt("its group does not exist"))?;
            group.load_parcel(rest, row).map_err(corrupt)
        })?;
        for (&id, group) in self.groups.iter_mut().chain(&mut self.former) {
            let check = group.finish_load();
            check.map_err(|message| MachineError::corrupt("consumer group", &keys::group_head(id), message))?;
        }
        Ok(())
    }

    /// Returns a consumer group that has rows in the state, even if it is deleted.
    fn stored(&mut self, id: GroupId) -> Option<&mut Group> {
        self.groups.get_mut(&id).or_else(|| self.former.get_mut(&id))
    }

    pub(crate) fn get(&self, id: GroupId) -> Option<&Group> {
        self.groups.get(&id)
    }

    /// Returns a group for a change, and marks it as changed, so that its rows are written.
    pub(crate) fn change(&mut self, id: GroupId) -> Option<&mut Group> {
        let group = self.groups.get_mut(&id)?;
        self.changed.insert(id);
        Some(group)
    }

    pub(crate) fn id(&self, stream: StreamId, name: &str) -> Option<GroupId> {
        self.by_name.get(&(stream, Arc::from(name))).copied()
    }

    pub(crate) fn len(&self) -> usize {
        self.groups.len()
    }

    /// Number of groups that count towards the maximum number of groups. Deleted groups with rows left also count.
    pub(crate) fn counted(&self) -> usize {
        self.groups.len() + self.former.len()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (GroupId, &Group)> {
        self.groups.iter().map(|(&id, group)| (id, group))
    }

    /// Iterates over the groups of a stream in the order of names.
    pub(crate) fn of_stream(&self, stream: StreamId) -> impl Iterator<Item = GroupId> {
        let from = (stream, Arc::from(""));
        self.by_name.range(from..).take_while(move |((of, _), _)| *of == stream).map(|(_, &id)| id)
    }

    pub(crate) fn create(&mut self, head: Head) -> GroupId {
        let id = self.next;
        self.next = id.next();
        self.next_changed = true;
        self.by_name.insert((head.stream, head.name.clone()), id);
        self.groups.insert(id, Group::new(head));
        self.changed.insert(id);
        id
    }

    /// Removes a group that is deleted from the table and returns it. Afterwards neither its id nor its name finds the
    /// group.
    pub(super) fn take(&mut self, id: GroupId) -> Option<Group> {
        let group = self.groups.remove(&id)?;
        self.by_name.remove(&(group.head.stream, group.head.name.clone()));
        self.trimmed.remove(&id);
        self.woken.insert(group.head.stream);
        Some(group)
    }

    /// Writes the rows of groups that the log record being applied has changed or deleted.
    pub(crate) fn write(&mut self, batch: &mut WriteBatch) {
        if std::mem::take(&mut self.next_changed) {
            batch.put(&[&[keys::TAG_CONSUMERS]], &[&self.next.0.to_le_bytes()]);
        }
        for id in std::mem::take(&mut self.changed) {
            if let Some(group) = self.stored(id) {
                group.write(id, batch);
            }
        }
        for (id, group) in self.removed.drain(..) {
            group.delete_rows(id, batch);
        }
    }
}
