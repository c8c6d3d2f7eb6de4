//! Options of a space.

use std::{sync::Arc, time::Duration};

use openraft::{Config, SnapshotPolicy};
use thalweg_types::limits::{MAX_FORWARDED_OUTCOME_BYTES, MAX_IN_FLIGHT_BYTES};

use crate::{error::StartError, store::StoreOptions};

/// Timing and bounds of a space. `docs/performance.md` has measurements of failover with the default times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConsensusOptions {
    /// Time between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// Shortest time without a leader after which a follower stands for election.
    pub min_election: Duration,
    /// Longest time without a leader after which a follower stands for election. It is also the lease of a leader.
    pub max_election: Duration,
    /// Maximum bytes of entries that this node has proposed or forwarded and whose outcome it does not know. Beyond it,
    /// commands wait in the queue. One entry may exceed it.
    pub max_in_flight_bytes: u64,
    /// Maximum bytes of the outcomes of forwarded commands that this node keeps until the leader's answers name their
    /// entries. One entry's outcomes may exceed it.
    pub max_outcome_bytes: usize,
    /// Age of the oldest write without an fsync at which a leader gives up its leadership.
    pub max_sync_age: Duration,
    /// Bytes of entries without an fsync at which a leader gives up its leadership.
    pub max_unsynced_bytes: u64,
    /// Time, at least two heartbeats, for which a new leader waits for the wall clocks of a majority. After that it
    /// gives its time to entries without them.
    pub max_catch_up: Duration,
    /// Number of entries that a learner may lack when it becomes a voter.
    pub max_promotion_lag: u64,
    /// Bounds of the space's memory.
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

    /// Time after a follower's acknowledgement in which it elects no other leader.
    #[must_use]
    pub const fn lease(&self) -> Duration {
        self.max_election
    }

    /// Time after which a follower ignores a leader that has not answered one of its pings. The follower then still
    /// waits for the end of its lease, so a silent leader is replaced after about the sum of both times.
    #[must_use]
    pub const fn deaf_after(&self) -> Duration {
        self.min_election
    }

    /// Age of the last report at which a member counts as silent. Members report once in a heartbeat, so several
    /// reports must be missing, however slow the heartbeat is.
    #[must_use]
    pub fn silent_after(&self) -> Duration {
        Duration::from_secs(5).max(4 * self.heartbeat)
    }

    /// Time after the beginning of a leadership in which every voter that lives has reported: members report once in a
    /// heartbeat.
    pub(crate) fn hear_all_for(&self) -> Duration {
        2 * self.heartbeat
    }

    /// Time after the beginning of a leadership at which the leader takes commands although no majority has reported.
    pub(crate) fn catch_up_within(&self) -> Duration {
        self.max_catch_up.max(self.hear_all_for())
    }

    /// Returns openraft's configuration. `may_elect` is false for a node that may have promised its vote to a leader
    /// and does not know until when.
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
            // The node's maintenance decides which entries are purged, and the state can be sent as a snapshot at any
            // time.
            snapshot_policy: SnapshotPolicy::Never,
            max_in_snapshot_log_to_keep: u64::MAX,
            enable_leader_restore: Some(false),
            // A member on an older copy of its directory gets again what it has lost. Without this, the leader would
            // repeat an append for ever that the member cannot take, and with debug assertions its consensus would end.
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
