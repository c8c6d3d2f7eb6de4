//! Figures for people and metrics.

use std::sync::PoisonError;

use thalweg_log::LogStats;
use thalweg_store::BackendStats;
use thalweg_types::{Index, Log2Histogram, Lsn, Revision, SpaceTime};

use crate::{database::Inner, maintenance::Maintenance, snapshot::SnapshotStats};

/// Figures of a database; counters count since open.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// The log's.
    pub log: LogStats,
    /// The state backend's.
    pub state: BackendStats,
    /// About how many bytes of log a crash now would replay.
    pub replay_bytes: u64,
    /// Index of the last applied entry.
    pub applied_index: Index,
    /// Revision of the last applied command.
    pub applied_revision: Revision,
    /// The running hash after the last applied entry: equal on all replicas that have applied it.
    pub running_hash: u64,
    /// Exclusive bound of what is wholly applied.
    pub applied_lsn: Lsn,
    /// Exclusive bound of what is on disk.
    pub durable_lsn: Lsn,
    /// Bytes of commands that wait for the writer.
    pub queue_bytes: u64,
    /// Commands that wait for the writer.
    pub queue_commands: u64,
    /// Commands committed.
    pub commands: u64,
    /// Entries that carried them.
    pub entries: u64,
    /// Commands per entry: how large groups get.
    pub entry_commands: Log2Histogram,
    /// Keyspaces.
    pub keyspaces: u64,
    /// Streams.
    pub streams: u64,
    /// What maintenance did in all.
    pub maintenance: Maintenance,
    /// Why the last round of maintenance failed, if it did.
    pub maintenance_error: Option<String>,
    /// Snapshots that were taken, and those that are.
    pub snapshots: SnapshotStats,
    /// The space's time.
    pub space_time: SpaceTime,
}

impl Inner {
    pub(crate) fn stats(&self) -> Stats {
        let open = &self.open;
        let applied = open.machine.applied();
        let solo = open.solo.stats();
        Stats {
            log: open.log.stats(),
            state: open.backend.stats(),
            replay_bytes: self.replay_bytes(),
            applied_index: applied.index,
            applied_revision: applied.revision,
            running_hash: applied.running_hash,
            applied_lsn: applied.lsn,
            durable_lsn: open.log.durable(),
            queue_bytes: solo.queue_bytes,
            queue_commands: solo.queue_commands,
            commands: solo.commands,
            entries: solo.entries,
            entry_commands: solo.entry_commands,
            keyspaces: open.machine.keyspaces().len() as u64,
            streams: open.machine.stream_count() as u64,
            maintenance: *self.totals.lock().unwrap_or_else(PoisonError::into_inner),
            maintenance_error: self.complaint(),
            snapshots: self.snapshot_counters.get(),
            space_time: open.solo.now(),
        }
    }

    /// Bytes of the segments that the persisted state does not cover.
    pub(crate) fn replay_bytes(&self) -> u64 {
        let persisted = self.open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        let behind = |segment: &thalweg_log::SegmentInfo| segment.next > persisted;
        let segments = self.open.log.segments();
        segments.iter().filter(|segment| behind(segment)).map(|segment| u64::from(segment.bytes)).sum()
    }
}
