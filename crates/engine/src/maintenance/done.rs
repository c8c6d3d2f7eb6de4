//! Counts of the work that maintenance has done.

/// Work done by maintenance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Number of expired keys removed.
    pub expired_keys: u64,
    /// Number of rows forgotten because their key has another expiry by now.
    pub stale_rows: u64,
    /// Number of streams trimmed.
    pub trimmed_streams: u64,
    /// Number of index entries forgotten, of trimmed or deleted batches.
    pub reclaimed_entries: u64,
    /// Number of rows read of deleted prefixes and dropped keyspaces.
    pub swept_rows: u64,
    /// Number of rows of versions read to forget those past their keyspace's bounds.
    pub pruned_versions: u64,
    /// Number of records moved to streams for dead letters.
    pub dead_letters: u64,
    /// Number of records that compaction dropped: superseded by a newer record of the same key, or tombstones past
    /// their grace.
    pub compacted_records: u64,
    /// Bytes copied forward.
    pub moved_bytes: u64,
    /// Number of segments freed.
    pub freed_segments: u64,
    /// Number of segments with live data although the state counted none. This is an error in the count; its only cost
    /// is the walk that found the data.
    pub undercounted_segments: u64,
    /// Number of segments with an unreadable record, each counted once: the disk has damaged it. Such a segment is
    /// kept, and the others are freed; `thalweg log verify` shows the position.
    pub unreadable_segments: u64,
}

impl Maintenance {
    pub(crate) fn add(&mut self, other: &Self) {
        self.expired_keys += other.expired_keys;
        self.stale_rows += other.stale_rows;
        self.trimmed_streams += other.trimmed_streams;
        self.reclaimed_entries += other.reclaimed_entries;
        self.swept_rows += other.swept_rows;
        self.pruned_versions += other.pruned_versions;
        self.dead_letters += other.dead_letters;
        self.compacted_records += other.compacted_records;
        self.moved_bytes += other.moved_bytes;
        self.freed_segments += other.freed_segments;
        self.undercounted_segments += other.undercounted_segments;
        self.unreadable_segments += other.unreadable_segments;
    }
}
