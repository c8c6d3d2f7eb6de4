//! Times of the stages of replicated writes. An append is a request in which the leader sends log entries to its
//! followers.
//!
//! Owns: the stages and their histograms. Does not own: the stages' work, which consensus, the log and the network do.
//!
//! ```text
//! queue ─> propose ─> write ─> commit ─────────────────────────> apply ─> answer     a command, on the leader
//!                       ├────> sync                                                  an append, on the leader
//!                       └────> send ─> acknowledge                                   an append to one follower
//!                                        └─ follower_write ─> follower_sync          an append, on the follower
//! ```
//! A commit takes as long as the slower of `sync` and the acknowledgement of the follower that completes a majority.
//! The first six stages follow each other, so their times add up to the time of the command on the leader. Commands
//! that another member has forwarded are not timed.
//!
//! Cost: ten readings of the clock for an entry with two followers, and two additions for each of its commands. No
//! stage reads the clock for a single command: the deadline of a command already needs the time at which it was queued.

use std::time::Duration;

use thalweg_types::Log2Histogram;

use crate::stages::StageHistogram;

/// Stage of a replicated write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReplicationStage {
    /// The command waits in the leader's queue until consensus takes it.
    Queue,
    /// Consensus passes the entry to the leader's log, which begins to write it.
    Propose,
    /// The entry is framed, checksummed and written to the leader's log file.
    Write,
    /// The written log entry waits until a majority has it on disk and the leader begins to apply it.
    Commit,
    /// The leader applies the log entry to its state.
    Apply,
    /// The proposers get their answers. The stage ends when the log entry's last proposer is woken.
    Answer,
    /// An append (log entries that are written together), once written to the leader's log file, waits until it is on
    /// the leader's disk.
    Sync,
    /// An append (log entries that are sent together), once written by the leader, waits until the leader passes it to
    /// the connection to a follower.
    Send,
    /// An append (log entries that are sent together) is on its way to a follower, is written and fsynced there, and
    /// its acknowledgement returns.
    Acknowledge,
    /// A follower writes an append (log entries from the leader) to its log file.
    FollowerWrite,
    /// An append (log entries from the leader) that a follower has written waits until it is on the follower's disk.
    FollowerSync,
}

impl ReplicationStage {
    /// All stages: first those of a command, then those of an append (log entries that are sent together), each in
    /// order.
    pub const ALL: [Self; 11] = [
        Self::Queue,
        Self::Propose,
        Self::Write,
        Self::Commit,
        Self::Apply,
        Self::Answer,
        Self::Sync,
        Self::Send,
        Self::Acknowledge,
        Self::FollowerWrite,
        Self::FollowerSync,
    ];

    /// Returns the stage's name in metrics.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Propose => "propose",
            Self::Write => "write",
            Self::Commit => "commit",
            Self::Apply => "apply",
            Self::Answer => "answer",
            Self::Sync => "sync",
            Self::Send => "send",
            Self::Acknowledge => "acknowledge",
            Self::FollowerWrite => "follower_write",
            Self::FollowerSync => "follower_sync",
        }
    }
}

/// Histograms of the times of all stages in nanoseconds. Each command of a log entry is counted, and all have equal
/// times except in the stage [`ReplicationStage::Queue`].
pub type ReplicationStages = [Log2Histogram; ReplicationStage::ALL.len()];

/// Monotonic times of a log entry on the leader that wrote it: `write_begun <= written <= apply_begun <= applied`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EntryTimes {
    /// Time at which the leader begins to write the append that contains the entry.
    pub write_begun: Duration,
    /// Time at which the append that contains the entry is written to the leader's log file.
    pub written: Duration,
    /// Time at which the committed log entry begins to be applied by the leader.
    pub apply_begun: Duration,
    /// Time at which the leader has applied the log entry.
    pub applied: Duration,
}

#[derive(Debug, Default)]
pub(crate) struct ReplicationTimes([StageHistogram; ReplicationStage::ALL.len()]);

impl ReplicationTimes {
    /// Adds the time of a stage `count` times, once for each of `count` commands that had this time.
    pub(crate) fn record(&self, stage: ReplicationStage, time: Duration, count: u64) {
        self.0[stage as usize].record(time, count);
    }

    /// Records the times of the stages from [`Queue`](ReplicationStage::Queue) to [`Apply`](ReplicationStage::Apply)
    /// for each command of an applied entry. The commands were queued at the times `queued_at`, and consensus took them
    /// from the queue together at the time `taken`. Returns the number of commands.
    pub(crate) fn applied(
        &self,
        queued_at: impl Iterator<Item = Duration>,
        taken: Duration,
        times: &EntryTimes,
    ) -> u64 {
        let mut count = 0;
        for queued_at in queued_at {
            self.record(ReplicationStage::Queue, taken.saturating_sub(queued_at), 1);
            count += 1;
        }
        let EntryTimes { write_begun, written, apply_begun, applied } = *times;
        for (stage, from, to) in [
            (ReplicationStage::Propose, taken, write_begun),
            (ReplicationStage::Write, write_begun, written),
            (ReplicationStage::Commit, written, apply_begun),
            (ReplicationStage::Apply, apply_begun, applied),
        ] {
            self.record(stage, to.saturating_sub(from), count);
        }
        count
    }

    pub(crate) fn stats(&self) -> ReplicationStages {
        std::array::from_fn(|at| self.0[at].read())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_are_in_the_order_of_their_histograms() {
        assert!(ReplicationStage::ALL.iter().enumerate().all(|(at, stage)| *stage as usize == at));
        let times = ReplicationTimes::default();
        times.record(ReplicationStage::FollowerSync, Duration::from_micros(5), 2);
        let stats = times.stats();
        let counts: Vec<_> = stats.iter().map(Log2Histogram::count).collect();
        assert_eq!(counts, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 2]);
        assert_eq!(stats[10].sum, 10_000);
    }
}
