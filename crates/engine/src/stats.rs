//! Statistics of a database, for operators and for metrics.

use std::sync::PoisonError;

use thalweg_log::{LogStats, SegmentUse};
use thalweg_replica::{ReplicationStages, WriteStages};
use thalweg_snapshot::SnapshotStats;
use thalweg_store::BackendStats;
use thalweg_types::{Index, Log2Histogram, Lsn, Revision, SpaceTime};

use crate::{database::Database, inner::Inner, maintenance_counts::Maintenance, scrub::ScrubStats};

/// Statistics of a database. Counters start at 0 when the database is opened.
#[derive(Clone, Debug, Default)]
pub struct Stats {
    /// Statistics of the log.
    pub log: LogStats,
    /// Statistics of the state backend.
    pub state: BackendStats,
    /// Approximate number of bytes of log that would be replayed after a crash now.
    pub replay_bytes: u64,
    /// Index of the last log entry that is applied to the state.
    pub applied_index: Index,
    /// Revision of the last command that is applied to the state.
    pub applied_revision: Revision,
    /// Running hash (over all log entries so far) after the last applied entry. It is equal on all replicas that have
    /// applied that entry.
    pub running_hash: u64,
    /// LSN below which all log records are applied to the state.
    pub applied_lsn: Lsn,
    /// LSN below which all log records are on disk.
    pub durable_lsn: Lsn,
    /// Bytes of the commands that wait for the writer now.
    pub queue_bytes: u64,
    /// Number of commands that wait for the writer now.
    pub queue_commands: u64,
    /// Number of commands committed since the database was opened.
    pub commands: u64,
    /// Number of log entries that contained the committed commands.
    pub entries: u64,
    /// Histogram of the number of commands per log entry, which is the size of commit groups.
    pub entry_commands: Log2Histogram,
    /// Times of the stages of writes that wait for an fsync. Empty on a member of a cluster.
    pub write_stages: WriteStages,
    /// Times of the stages of replicated writes. Empty on a node alone.
    pub replication_stages: ReplicationStages,
    /// Number of reads of files by the thread that applies entries, including reads from the page cache. No command is
    /// committed during such a read.
    pub apply_file_reads: u64,
    /// Number of keyspaces.
    pub keyspaces: u64,
    /// Number of streams.
    pub streams: u64,
    /// Total work that maintenance has done since the database was opened.
    pub maintenance: Maintenance,
    /// Error of the last round of maintenance; `None` if that round succeeded.
    pub maintenance_error: Option<String>,
    /// Statistics of snapshots taken from the database.
    pub snapshots: SnapshotStats,
    /// Number of maintenance rounds that could free log segments because no snapshot was open or the disk was full.
    pub freeing_rounds: u64,
    /// Progress and results of the scrub.
    pub scrub: ScrubStats,
    /// Current time of the database's own clock (space time), with which deadlines are compared.
    pub space_time: SpaceTime,
}

/// Reasons why the log is as large as it is: the bytes of its segments, each counted under the first reason that keeps
/// it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogHolders {
    /// Bytes of segments with records that the persisted state does not include, and of the segment that is written to.
    pub replay_bytes: u64,
    /// Bytes of segments that are kept only for the history: watches of the past and followers that are behind. On a
    /// full disk they are freed anyway.
    pub history_bytes: u64,
    /// Bytes of segments with stream records and large values that are still in use, and of segments that are freed
    /// next.
    pub data_bytes: u64,
    /// True if a follower that is behind needs some of the log that is kept for history.
    pub is_kept_for_follower: bool,
    /// Number of snapshots in progress. While there are any, no segment is freed, unless the disk is full.
    pub open_snapshots: u64,
}

impl Database {
    /// Returns the statistics of the database.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.inner.stats()
    }

    /// Returns the reasons for the size of the log, with the bytes that each keeps.
    #[must_use]
    pub fn log_holders(&self) -> LogHolders {
        let open = &self.inner.open;
        let uses = open.log.segment_uses(open.replica.now());
        let bytes_of = |wanted: SegmentUse| {
            let bytes = uses.iter().filter(|(_, found)| *found == wanted).map(|(segment, _)| u64::from(segment.bytes));
            bytes.sum()
        };
        LogHolders {
            replay_bytes: bytes_of(SegmentUse::Needed),
            history_bytes: bytes_of(SegmentUse::History),
            data_bytes: bytes_of(SegmentUse::Past),
            is_kept_for_follower: self.inner.has_follower_floor(),
            open_snapshots: self.inner.snapshot_counters.get().open,
        }
    }

    /// Returns a number that rises when the log begins another segment.
    #[must_use]
    pub fn log_generation(&self) -> u64 {
        self.inner.open.log.newest_generation().map_or(0, |generation| generation.0)
    }
}

impl Inner {
    pub(crate) fn stats(&self) -> Stats {
        let open = &self.open;
        let applied = open.machine.applied();
        let solo = open.replica.stats();
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
            write_stages: solo.write_stages,
            replication_stages: solo.replication_stages,
            apply_file_reads: open.machine.file_reads(),
            keyspaces: open.machine.keyspaces().len() as u64,
            streams: open.machine.stream_count() as u64,
            maintenance: *self.totals.lock().unwrap_or_else(PoisonError::into_inner),
            maintenance_error: self.maintenance_error(),
            snapshots: self.snapshot_counters.get(),
            freeing_rounds: self.snapshots.permitted_rounds(),
            scrub: self.scrub.stats(),
            space_time: open.replica.now(),
        }
    }

    /// Returns the bytes of all log segments with records that the persisted state does not include.
    pub(crate) fn replay_bytes(&self) -> u64 {
        let persisted = self.open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        let behind = |segment: &thalweg_log::SegmentInfo| segment.next > persisted;
        let segments = self.open.log.segments();
        segments.iter().filter(|segment| behind(segment)).map(|segment| u64::from(segment.bytes)).sum()
    }
}
