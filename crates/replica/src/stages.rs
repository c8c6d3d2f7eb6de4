//! Times of the stages of writes that wait for an fsync.
//!
//! Owns: the stages of a single node and their histograms. Does not own: the stages' work, which the holder of the
//! writer role does, and the stages of replicated writes (`replication`). Writes that wait for no fsync are not timed,
//! because reading the clock would be a noticeable part of their time.

use std::{
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use thalweg_types::{Durability, Log2Histogram, histogram::LOG2_BUCKETS};

use crate::{clock::SpaceClock, pending::Pending};

/// Stage of a write that waits for an fsync, in the order of the stages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteStage {
    /// The command waits in the queue for a thread that takes the writer role (the right to write log entries).
    Queue,
    /// The commands taken from the queue are divided into log entries.
    Form,
    /// The entries are framed, checksummed and written to the log's file.
    Write,
    /// The log entries wait until they are on disk.
    Sync,
    /// The log entries are applied to the state.
    Apply,
    /// The proposers get their answers. The stage ends for each command when its proposer is woken.
    Answer,
}

impl WriteStage {
    /// All stages, in order.
    pub const ALL: [Self; 6] = [Self::Queue, Self::Form, Self::Write, Self::Sync, Self::Apply, Self::Answer];

    /// Returns the stage's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Form => "form",
            Self::Write => "write",
            Self::Sync => "sync",
            Self::Apply => "apply",
            Self::Answer => "answer",
        }
    }
}

/// Histograms of the times of all stages in nanoseconds. Each command of a batch is counted.
pub type WriteStages = [Log2Histogram; WriteStage::ALL.len()];

/// Number of commands that are committed together and wait for an fsync, and the time at which their present stage
/// began.
#[derive(Clone, Copy, Debug)]
pub(crate) struct TimedBatch {
    /// Number of commands that are committed together.
    count: u64,
    /// Monotonic time at which the present stage began.
    since: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct StageTimes([StageHistogram; WriteStage::ALL.len()]);

/// Histogram of the times of one stage in nanoseconds, to which several threads add.
#[derive(Debug)]
pub(crate) struct StageHistogram {
    sum_nanos: AtomicU64,
    /// Counts of the times in each bucket; [`Log2Histogram::bucket_of`] returns the bucket of a time.
    buckets: [AtomicU64; LOG2_BUCKETS],
}

impl Default for StageHistogram {
    fn default() -> Self {
        Self { sum_nanos: AtomicU64::new(0), buckets: [const { AtomicU64::new(0) }; LOG2_BUCKETS] }
    }
}

impl StageHistogram {
    /// Adds the time `time` to the histogram `count` times.
    pub(crate) fn record(&self, time: Duration, count: u64) {
        let nanos = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.sum_nanos.fetch_add(nanos.saturating_mul(count), Relaxed);
        self.buckets[Log2Histogram::bucket_of(nanos)].fetch_add(count, Relaxed);
    }

    pub(crate) fn read(&self) -> Log2Histogram {
        Log2Histogram {
            sum: self.sum_nanos.load(Relaxed),
            buckets: std::array::from_fn(|at| self.buckets[at].load(Relaxed)),
        }
    }
}

impl StageTimes {
    /// Adds the time of a stage for `count` commands.
    fn record(&self, stage: WriteStage, time: Duration, count: u64) {
        self.0[stage as usize].record(time, count);
    }

    /// Notes the time at which a command is queued if the command waits for an fsync.
    pub(crate) fn begin_queueing(&self, pending: &mut Pending, clock: &SpaceClock) {
        if pending.level.waits_for_sync() {
            pending.queued_at = clock.monotonic();
        }
    }

    /// Ends the stage `Queue` of commands that were taken from the queue at `now`. Returns the commands that wait for
    /// an fsync as a batch; `None` if there are none.
    pub(crate) fn end_queueing(&self, taken: &[Pending], now: Duration) -> Option<TimedBatch> {
        let mut batch = TimedBatch { count: 0, since: now };
        for pending in taken.iter().filter(|pending| !pending.queued_at.is_zero()) {
            self.record(WriteStage::Queue, now.saturating_sub(pending.queued_at), 1);
            batch.count += 1;
        }
        (batch.count > 0).then_some(batch)
    }

    /// Begins the stage `Write` of a batch, or of a command that was not queued. Returns `None` at a durability level
    /// that does not wait for an fsync, because such writes are not timed.
    #[inline]
    pub(crate) fn begin_write(
        &self,
        batch: Option<TimedBatch>,
        level: Durability,
        clock: &SpaceClock,
    ) -> Option<TimedBatch> {
        level.waits_for_sync().then(|| self.begin_timed_write(batch, clock.monotonic()))
    }

    #[cold]
    fn begin_timed_write(&self, batch: Option<TimedBatch>, now: Duration) -> TimedBatch {
        match batch {
            Some(batch) => self.end_stage(WriteStage::Form, batch, now),
            None => {
                for stage in [WriteStage::Queue, WriteStage::Form, WriteStage::Answer] {
                    self.record(stage, Duration::ZERO, 1);
                }
                TimedBatch { count: 1, since: now }
            }
        }
    }

    /// Ends the stages `Write` and `Sync` of a batch. `waited` is the time for which the writer waited for the fsync;
    /// the rest of the time since the beginning of `Write` counts for `Write`.
    #[inline]
    pub(crate) fn end_write(
        &self,
        batch: Option<TimedBatch>,
        waited: Duration,
        clock: &SpaceClock,
    ) -> Option<TimedBatch> {
        let TimedBatch { count, since } = batch?;
        let now = clock.monotonic();
        let both = now.saturating_sub(since);
        self.record(WriteStage::Write, both.saturating_sub(waited), count);
        self.record(WriteStage::Sync, waited.min(both), count);
        Some(TimedBatch { count, since: now })
    }

    /// Ends the stage `Apply` of a batch.
    #[inline]
    pub(crate) fn end_apply(&self, batch: Option<TimedBatch>, clock: &SpaceClock) {
        if let Some(batch) = batch {
            self.end_stage(WriteStage::Apply, batch, clock.monotonic());
        }
    }

    /// Ends the stage `Answer`, the last one, of a command; `applied` is the monotonic time at which its batch was
    /// applied.
    pub(crate) fn answered(&self, pending: &Pending, applied: Duration, clock: &SpaceClock) {
        if !pending.queued_at.is_zero() {
            self.record(WriteStage::Answer, clock.monotonic().saturating_sub(applied), 1);
        }
    }

    fn end_stage(&self, stage: WriteStage, batch: TimedBatch, now: Duration) -> TimedBatch {
        self.record(stage, now.saturating_sub(batch.since), batch.count);
        TimedBatch { since: now, ..batch }
    }

    pub(crate) fn stats(&self) -> WriteStages {
        std::array::from_fn(|at| self.0[at].read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_command_of_a_batch_counts() {
        let times = StageTimes::default();
        times.record(WriteStage::Sync, Duration::from_micros(100), 3);
        times.record(WriteStage::Sync, Duration::ZERO, 1);
        let stats = times.stats();
        let sync = &stats[WriteStage::Sync as usize];
        assert_eq!((sync.count(), sync.sum), (4, 300_000));
        assert!(WriteStage::ALL.iter().enumerate().all(|(at, stage)| *stage as usize == at));
        assert_eq!(stats[WriteStage::Apply as usize].count(), 0);
    }
}
