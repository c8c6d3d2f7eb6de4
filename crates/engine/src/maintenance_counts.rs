//! Counts of the work that maintenance has done.

/// Work that maintenance has done, in one round or since the database was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Maintenance {
    /// Number of expired keys removed.
    pub expired_keys: u64,
    /// Number of index rows deleted because the deadline or lease of their key has changed since.
    pub stale_rows: u64,
    /// Number of streams trimmed.
    pub trimmed_streams: u64,
    /// Number of index entries of trimmed or deleted stream batches removed.
    pub reclaimed_entries: u64,
    /// Number of rows examined by commands (sweeps) that remove the hidden rows of large deletes and dropped keyspaces.
    pub swept_rows: u64,
    /// Number of rows examined by commands (prunes) that remove former values which a keyspace no longer keeps.
    pub pruned_versions: u64,
    /// Number of dead letters moved from consumer groups to dead-letter streams.
    pub dead_letters: u64,
    /// Number of stream records that compaction dropped: superseded by a newer record of the same key, or tombstones
    /// past their grace period.
    pub compacted_records: u64,
    /// Number of live bytes copied from old log segments to the end of the log.
    pub moved_bytes: u64,
    /// Number of log segments freed.
    pub freed_segments: u64,
    /// Number of log segments that contained live data although the state's counter for them was 0. The wrong counter
    /// costs only the time of reading the segment.
    pub undercounted_segments: u64,
    /// Number of log segments with a record that cannot be read because it is damaged on disk; each segment counts
    /// once. Such a segment is not freed. `thalweg log verify` shows the position of the damage.
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
