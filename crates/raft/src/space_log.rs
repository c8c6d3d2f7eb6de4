//! State in memory of the log of one space (one Raft group's data), between openraft and the node's log.
//!
//! Owns: the range of the entries, this node's vote, the last purged entry, the memberships, and the time of the last
//! entry. Does not own: writing and reading (see `store`, `reader`).
//!
//! Invariants: `purged.index < first` of the index. A blank or a membership gets the time of the entry before it, so it
//! has the same time on all nodes.

use thalweg_log::{LogRecord, RecordKind};
use thalweg_replica::{Membership, Vote};
use thalweg_state::membership::LogId;
use thalweg_types::{Index, SpaceTime};

use crate::{error::StoreError, index::SparseIndex, tail::Tail, written::WrittenTimes};

/// Number of memberships kept: the committed one, and a newer one that can still be truncated.
const KEPT_MEMBERSHIPS: usize = 2;

/// Size of the replicated log on this node, and of the memory that it takes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreStats {
    /// Number of entries after the last purged entry.
    pub entries: u64,
    /// Memory in bytes of the index that maps entries to log positions.
    pub index_bytes: usize,
    /// Number of entries in the cache of the newest entries.
    pub cached_entries: usize,
    /// Size in bytes of the entries in the cache of the newest entries.
    pub cached_bytes: usize,
}

#[derive(Debug)]
pub(crate) struct SpaceLog {
    pub index: SparseIndex,
    pub tail: Tail,
    pub vote: Option<Vote>,
    pub purged: Option<LogId>,
    /// Time of the log's last entry, even if that entry is purged.
    pub last_time: SpaceTime,
    /// Time of the last purged entry.
    pub purged_time: SpaceTime,
    /// Newest memberships among the entries, oldest first.
    pub memberships: Vec<(LogId, Membership)>,
    /// True if entries before those in `memberships` may contain memberships too.
    has_older_memberships: bool,
    /// Number of truncations of the log so far. A read that a truncation interrupts starts again.
    pub truncations: u64,
    /// Times at which this node wrote the newest appends to its log.
    pub written: WrittenTimes,
}

impl SpaceLog {
    pub(crate) fn new(max_tail_bytes: usize) -> Self {
        Self {
            index: SparseIndex::default(),
            tail: Tail::new(max_tail_bytes),
            vote: None,
            purged: None,
            last_time: SpaceTime::default(),
            purged_time: SpaceTime::default(),
            memberships: Vec::new(),
            has_older_memberships: false,
            truncations: 0,
            written: WrittenTimes::default(),
        }
    }

    /// Returns the indexes of the entries with the newest two memberships of the log, if these indexes are from `from`
    /// to below `to`. Returns `None` if the newest two memberships are not known.
    pub(crate) fn newest_memberships(&self, from: Index, to: Index) -> Option<Vec<Index>> {
        if self.memberships.len() < KEPT_MEMBERSHIPS && self.has_older_memberships {
            return None;
        }
        let indexes = self.memberships.iter().map(|(id, _)| id.index);
        Some(indexes.filter(|index| (from..to).contains(index)).collect())
    }

    /// Returns the id of the log's last entry; if the log has none, that of the last purged entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        self.index.last().or(self.purged)
    }

    /// Checks that the next entry of the log may have this index. The first entry of a log from which no entry was
    /// purged may have any index.
    pub(crate) fn check_next(&self, index: Index) -> Result<(), StoreError> {
        let expected = self.index.next();
        let is_first = self.index.is_empty() && self.purged.is_none();
        if index == expected || is_first { Ok(()) } else { Err(StoreError::Gap { expected, found: index }) }
    }

    /// Adds an entry that was written to the node's log.
    pub(crate) fn push(&mut self, record: &LogRecord) -> Result<(), StoreError> {
        self.check_next(record.index)?;
        if self.index.is_empty() {
            self.index.begin_at(record.index);
        }
        self.index.push(record.term, record.lsn, record.payload_at, record.payload.len());
        self.last_time = record.time;
        if record.kind == RecordKind::Membership {
            let membership = Membership::decode(&record.payload);
            let membership = membership.ok_or(StoreError::Malformed { lsn: record.lsn, what: "membership" })?;
            self.memberships.push((LogId { term: record.term, index: record.index }, membership));
            if self.memberships.len() > KEPT_MEMBERSHIPS {
                self.memberships.remove(0);
                self.has_older_memberships = true;
            }
        }
        Ok(())
    }

    /// Removes the entries from index `from` on. `time` is the time of the entry before `from`.
    pub(crate) fn truncate(&mut self, from: Index, time: SpaceTime) {
        self.index.truncate(from);
        self.tail.truncate(from);
        self.memberships.retain(|(id, _)| id.index < from);
        self.last_time = time;
        self.truncations += 1;
    }

    /// Removes the entries up to `id`, inclusive. `time` is the time of the entry `id`.
    pub(crate) fn purge(&mut self, id: LogId, time: SpaceTime) {
        if self.purged.is_some_and(|purged| purged.index >= id.index) {
            return;
        }
        self.index.purge(id.index);
        self.tail.purge(id.index);
        self.purged = Some(id);
        self.purged_time = time;
        if self.index.is_empty() {
            // The last entry may have been replaced by an installed snapshot and belong to another history. Its time
            // could be later than the snapshot's, and the next blank entry would get this later time on this node only.
            self.last_time = time;
        }
    }

    pub(crate) fn stats(&self) -> StoreStats {
        StoreStats {
            entries: self.index.next().0 - self.index.first().0,
            index_bytes: self.index.bytes(),
            cached_entries: self.tail.len(),
            cached_bytes: self.tail.bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::{Generation, LogPosition, Lsn, SpaceId, Term};

    use super::*;

    fn entry(term: u64, index: u64, time: u64) -> LogRecord {
        LogRecord {
            lsn: Lsn(10 + index),
            space: SpaceId::ZERO,
            kind: RecordKind::Entry,
            term: Term(term),
            index: Index(index),
            time: SpaceTime(time),
            payload: Default::default(),
            payload_at: LogPosition { generation: Generation(1), offset: 100 * index as u32 },
        }
    }

    /// A snapshot beyond the end of the log replaces entries that no majority had. Their times have no effect any more.
    #[test]
    fn the_time_after_an_installed_snapshot_is_that_of_the_snapshot() {
        let mut space_log = SpaceLog::new(1 << 20);
        (0..3).for_each(|index| space_log.push(&entry(1, index, 900)).unwrap());
        space_log.purge(LogId { term: Term(2), index: Index(7) }, SpaceTime(500));
        assert_eq!((space_log.last_time, space_log.purged_time), (SpaceTime(500), SpaceTime(500)));
        space_log.push(&entry(2, 8, 600)).unwrap();
        space_log.purge(LogId { term: Term(2), index: Index(7) }, SpaceTime(1));
        assert_eq!((space_log.last_time, space_log.purged_time), (SpaceTime(600), SpaceTime(500)));
    }
}
