//! Options of a node as a member of a cluster.

use std::{net::SocketAddr, time::Duration};

use thalweg_raft::ConsensusOptions;
use thalweg_serving::cluster::{ElapsedMillis, Triggers};
use thalweg_transport::PeerTls;
use thalweg_wire::peer::VERSION;

use crate::{detector::DetectorOptions, secret::Secret};

/// Options of a node as a member of a cluster.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Address at which this node accepts connections of other nodes.
    pub listen: SocketAddr,
    /// Address at which the other nodes reach this node; empty if it is the address in `listen`.
    pub advertise: String,
    /// Name of this node, which people use to tell nodes apart.
    pub name: String,
    /// Zone of this node, for people; empty if it has none.
    pub zone: String,
    /// Secret of the cluster.
    pub secret: Secret,
    /// TLS of the links to other nodes. Either all nodes of a cluster use TLS, or none does. `None` (plain TCP) is
    /// permitted only if `listen` is a loopback address.
    pub tls: Option<PeerTls>,
    /// Addresses of members. This node asks them to let it join, until it is a member.
    pub join: Vec<String>,
    /// Number of new nodes, including this one, that found the cluster together; the others are at the addresses in
    /// `join`. 0 if the cluster exists. If one of the others has data, this node joins instead.
    pub expect: usize,
    /// Timing and bounds of consensus.
    pub consensus: ConsensusOptions,
    /// Timing of the failure detection.
    pub detector: DetectorOptions,
    /// Limits on the log entries or time by which a replica may be behind before it is reported as lagging or stale.
    pub triggers: Triggers,
    /// Time between two comparisons of this node's running hashes (hashes over all applied log entries) with those of
    /// the other members; zero for none.
    pub compare_every: Duration,
    /// Interval at which the leader requests a digest of all rows (keys and values of the state) from all members,
    /// which then compare their digests; zero for never. The interval must be longer than a member takes to compute a
    /// digest: a new request replaces an earlier one that a member has not begun.
    pub digest_every: Duration,
    /// Highest version of the protocol between nodes that this node offers. A lower version than the newest is for
    /// tests with nodes of different versions.
    pub max_version: u16,
    /// True if a node with a wrong or damaged state repairs itself: it requests its own stop to get the state of
    /// another member ([`repair`](fn@crate::repair)). False if it waits for an operator.
    pub repairs_itself: bool,
}

impl NodeOptions {
    /// Default limits on the log entries or time by which a replica may be behind before it is reported as lagging or
    /// stale.
    pub const DEFAULT_TRIGGERS: Triggers =
        Triggers { lag_entries: 1000, lag_bytes: 64 * 1024 * 1024, stale_after: ElapsedMillis(30_000) };
    /// Default time between two comparisons of a node's running hashes with those of the other members.
    pub const DEFAULT_COMPARE_EVERY: Duration = Duration::from_secs(10);
    /// Default interval at which the leader requests a digest of all rows of the state from all members.
    pub const DEFAULT_DIGEST_EVERY: Duration = Duration::from_secs(7 * 24 * 3600);

    /// Highest version of the protocol between nodes.
    pub const NEWEST_VERSION: u16 = VERSION;

    /// Sets the time between two heartbeats, and the silences after which another node is suspected and down. Scales
    /// the times of elections and of the failure detection in proportion to the heartbeat.
    #[must_use]
    pub fn with_timing(self, heartbeat: Duration, suspect_after: Duration, down_after: Duration) -> Self {
        let (consensus, detector) = (ConsensusOptions::DEFAULTS, DetectorOptions::DEFAULTS);
        let scaled = |time: Duration| time.mul_f64(heartbeat.as_secs_f64() / consensus.heartbeat.as_secs_f64());
        Self {
            consensus: ConsensusOptions {
                heartbeat,
                min_election: scaled(consensus.min_election),
                max_election: scaled(consensus.max_election),
                ..self.consensus
            },
            detector: DetectorOptions {
                interval: scaled(detector.interval),
                min_silence: scaled(detector.min_silence).min(suspect_after),
                suspect_after,
                down_after,
                ..self.detector
            },
            ..self
        }
    }

    /// Returns the default options of a node that listens at an address.
    #[must_use]
    pub fn new(listen: SocketAddr, secret: Secret) -> Self {
        Self {
            listen,
            advertise: String::new(),
            name: String::new(),
            zone: String::new(),
            secret,
            tls: None,
            join: Vec::new(),
            expect: 0,
            consensus: ConsensusOptions::DEFAULTS,
            detector: DetectorOptions::DEFAULTS,
            triggers: Self::DEFAULT_TRIGGERS,
            compare_every: Self::DEFAULT_COMPARE_EVERY,
            digest_every: Self::DEFAULT_DIGEST_EVERY,
            max_version: Self::NEWEST_VERSION,
            repairs_itself: false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elections_keep_their_ratio_to_the_heartbeat() {
        let options = || NodeOptions::new(([127, 0, 0, 1], 0).into(), Secret::new(&[7; 32]));
        let seconds = Duration::from_secs;
        let slow = options().with_timing(seconds(5), seconds(10), seconds(15));
        assert_eq!((slow.consensus.heartbeat, slow.consensus.min_election), (seconds(5), seconds(15) + seconds(5) / 8));
        assert_eq!(slow.consensus.max_election, seconds(25));
        assert_eq!((slow.detector.min_silence, slow.detector.down_after), (seconds(10), seconds(15)));
        assert_eq!(slow.consensus.max_sync_age, ConsensusOptions::DEFAULTS.max_sync_age, "a disk does not get slower");
    }
}
