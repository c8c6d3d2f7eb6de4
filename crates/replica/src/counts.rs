//! Counters of a space (Raft group) since it was opened, and the statistics that callers read.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use thalweg_types::{Log2Histogram, histogram::LOG2_BUCKETS};

use crate::{
    queue::Queue,
    replication::{ReplicationStages, ReplicationTimes},
    stages::{StageTimes, WriteStages},
};

/// Statistics of a space (Raft group) since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReplicaStats {
    /// Number of committed commands since the space (Raft group) was opened.
    pub commands: u64,
    /// Number of log entries that contain the applied commands.
    pub entries: u64,
    /// Histogram of the number of commands in each log entry.
    pub entry_commands: Log2Histogram,
    /// Total size in bytes of the commands that are queued now.
    pub queue_bytes: u64,
    /// Number of commands that are queued now.
    pub queue_commands: u64,
    /// Times of the stages of writes that wait for an fsync. All histograms are empty on a member of a cluster.
    pub write_stages: WriteStages,
    /// Times of the stages of replicated writes. All histograms are empty on a node alone.
    pub replication_stages: ReplicationStages,
}

/// Counters of the log entries that were applied to a space (Raft group).
#[derive(Debug)]
pub(crate) struct Counts {
    commands: AtomicU64,
    entries: AtomicU64,
    /// Number of log entries in each bucket of sizes. The size of an entry is its number of commands;
    /// [`Log2Histogram::bucket_of`] returns the bucket of a size.
    entry_sizes: [AtomicU64; LOG2_BUCKETS],
    /// Times of the stages of writes that wait for an fsync.
    pub(crate) stages: StageTimes,
    /// Times of the stages of replicated writes.
    pub(crate) replication: ReplicationTimes,
}

impl Default for Counts {
    fn default() -> Self {
        Self {
            commands: AtomicU64::new(0),
            entries: AtomicU64::new(0),
            entry_sizes: [const { AtomicU64::new(0) }; LOG2_BUCKETS],
            stages: StageTimes::default(),
            replication: ReplicationTimes::default(),
        }
    }
}

impl Counts {
    /// Counts an applied entry with this number of commands. The caller holds the lock under which entries are applied:
    /// on a node alone the lock of the writer role (the right to write log entries), on a member of a cluster the lock
    /// of the cursor (the position up to which the log is applied). So only one thread counts at a time, and the
    /// counters need no atomic additions.
    #[inline]
    pub(crate) fn count(&self, commands: u64) {
        let add = |counter: &AtomicU64, count| counter.store(counter.load(Relaxed).wrapping_add(count), Relaxed);
        add(&self.entries, 1);
        add(&self.commands, commands);
        add(&self.entry_sizes[Log2Histogram::bucket_of(commands)], 1);
    }

    pub(crate) fn stats(&self, queue: &Queue) -> ReplicaStats {
        let (bytes, len) = queue.bytes_and_len();
        ReplicaStats {
            commands: self.commands.load(Relaxed),
            entries: self.entries.load(Relaxed),
            entry_commands: Log2Histogram {
                sum: self.commands.load(Relaxed),
                buckets: std::array::from_fn(|at| self.entry_sizes[at].load(Relaxed)),
            },
            queue_bytes: bytes as u64,
            queue_commands: len as u64,
            write_stages: self.stages.stats(),
            replication_stages: self.replication.stats(),
        }
    }
}
