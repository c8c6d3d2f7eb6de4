//! Options of consensus: times of elections and heartbeats, and limits of memory.

use std::{sync::Arc, time::Duration};

use openraft::{Config, SnapshotPolicy};
use thalweg_types::limits::{MAX_FORWARDED_OUTCOME_BYTES, MAX_IN_FLIGHT_BYTES};

use crate::{error::StartError, store::StoreOptions};

/// Options of consensus: times of elections and heartbeats, and bounds. `docs/performance.md` has measurements of
/// failover with the default times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsensusOptions {
    /// Interval at which a leader sends heartbeats.
    pub heartbeat: Duration,
    /// Shortest time without a leader after which a follower stands for election.
    pub min_election: Duration,
    /// Longest time without a leader after which a follower stands for election. It is also the length of a leader's
    /// lease.
    pub max_election: Duration,
    /// Maximum size in bytes of the entries that this node has proposed or forwarded without knowing their outcome yet.
    /// At the limit, commands wait in the queue. One entry alone may exceed the limit.
    pub max_in_flight_bytes: u64,
    /// Maximum size in bytes of the outcomes that this node keeps for forwarded commands. It keeps them until the
    /// leader's answer says which entry contains the commands. The outcomes of one entry alone may exceed the limit.
    pub max_outcome_bytes: usize,
    /// Maximum age of the oldest write to the log that is not durable yet. Beyond it, a leader gives up its leadership.
    pub max_sync_age: Duration,
    /// Maximum size in bytes of the written entries that are not durable yet. Beyond it, a leader gives up its
    /// leadership.
    pub max_unsynced_bytes: u64,
    /// Maximum time, at least two heartbeats, for which a new leader waits for reports of the wall clocks of a
    /// majority. After this time it accepts commands without these reports.
    pub max_catch_up: Duration,
    /// Maximum number of entries that a learner may lack to become a voter.
    pub max_promotion_lag: u64,
    /// Bounds of the memory that the replicated log takes.
    pub store: StoreOptions,
}

impl ConsensusOptions {
    /// Default value of every option.
    pub const DEFAULTS: Self = Self {
        heartbeat: Duration::from_millis(80),
        min_election: Duration::from_millis(250),
        max_election: Duration::from_millis(400),
        max_in_flight_bytes: MAX_IN_FLIGHT_BYTES,
        max_outcome_bytes: MAX_FORWARDED_OUTCOME_BYTES,
        max_sync_age: Duration::from_secs(1),
        max_unsynced_bytes: 64 * 1024 * 1024,
        max_catch_up: Duration::from_secs(1),
        max_promotion_lag: 1000,
        store: StoreOptions::DEFAULTS,
    };

    /// Returns the length of a lease: the time after a follower has acknowledged a leader during which the follower
    /// elects no other leader.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.max_election
    }

    /// Returns the age of an unanswered ping at which a follower begins to ignore its leader. The follower then waits
    /// for the end of the lease that it has given. So such a leader is replaced after about the sum of both times.
    #[must_use]
    pub const fn deaf_after(&self) -> Duration {
        self.min_election
    }

    /// Age of a member's last report (its disk space and wall clock) at which the member counts as silent. Members send
    /// a report once in each heartbeat interval. The age covers several intervals, so a single lost report does not
    /// count.
    #[must_use]
    pub fn silent_after(&self) -> Duration {
        Duration::from_secs(5).max(4 * self.heartbeat)
    }

    /// Time after the beginning of a leadership by which every living voter has told the leader its wall clock and disk
    /// space. Members send these reports once in each heartbeat interval.
    pub(crate) fn hear_all_for(&self) -> Duration {
        2 * self.heartbeat
    }

    /// Time after the beginning of a leadership after which the leader takes commands even if no majority has reported
    /// its wall clock.
    pub(crate) fn catch_up_within(&self) -> Duration {
        self.max_catch_up.max(self.hear_all_for())
    }

    /// Returns openraft's configuration. `may_elect` is false for a restarted node that may have promised its vote to a
    /// leader before the restart.
    pub(crate) fn config(&self, may_elect: bool) -> Result<Arc<Config>, StartError> {
        let millis = |time: Duration| time.as_millis() as u64;
        let config = Config {
            cluster_name: "thalweg".to_owned(),
            heartbeat_interval: millis(self.heartbeat),
            election_timeout_min: millis(self.min_election),
            election_timeout_max: millis(self.max_election),
            enable_elect: may_elect,
            enable_pre_vote: Some(true),
            broadcast_submitted_on_append: Some(true),
            backoff: "50ms 100ms ..200ms".to_owned(),
            // The node's maintenance decides which entries are purged. The state can be sent as a snapshot at any time,
            // so openraft need not build snapshots.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_leader_restore: Some(false),
            // A member that runs on an older copy of its directory must receive the lost entries again. Without this
            // option, the leader would repeat an append that the member cannot take for ever, and with debug assertions
            // the leader's consensus would end.
            allow_log_reversion: Some(true),
            ..Config::default()
        };
        Ok(Arc::new(config.validate().map_err(|error| StartError::Options(error.to_string()))?))
    }
}

impl Default for ConsensusOptions {
    fn default() -> Self {
        Self::DEFAULTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_is_silent_only_when_several_reports_are_missing() {
        let with = |heartbeat| ConsensusOptions { heartbeat, ..ConsensusOptions::DEFAULTS };
        let seconds = Duration::from_secs;
        assert_eq!(ConsensusOptions::DEFAULTS.silent_after(), seconds(5));
        assert_eq!(with(Duration::from_millis(10)).silent_after(), seconds(5));
        for heartbeat in [seconds(1), seconds(5), seconds(60)] {
            assert!(with(heartbeat).silent_after() >= 4 * heartbeat, "{heartbeat:?}");
            assert!(with(heartbeat).catch_up_within() >= 2 * heartbeat, "{heartbeat:?}");
        }
    }
}
