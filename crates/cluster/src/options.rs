//! Options of a node's place in a cluster.

use std::{net::SocketAddr, time::Duration};

use thalweg_raft::ConsensusOptions;
use thalweg_serving::cluster::{Since, Triggers};

use crate::{detector::DetectorOptions, secret::Secret};

/// Options of a node's place in a cluster.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// Address at which this node accepts connections of other nodes.
    pub listen: SocketAddr,
    /// Address at which the other nodes reach this one; empty for the one at which it listens.
    pub advertise: String,
    /// Name of this node, for people.
    pub name: String,
    /// Zone of this node, for people; empty if it has none.
    pub zone: String,
    /// Secret of the cluster.
    pub secret: Secret,
    /// True if links may leave this machine although they are not encrypted. Whoever can read or change the packets can
    /// then read and change the data.
    pub allow_plain: bool,
    /// Addresses of members that this node asks to let it join, until it is a member.
    pub join: Vec<String>,
    /// Number of new nodes that found the cluster together, with the others at the addresses in `join`; 0 if the cluster
    /// exists.
    pub expect: usize,
    /// Timing and bounds of consensus.
    pub consensus: ConsensusOptions,
    /// Timing of the failure detection.
    pub detector: DetectorOptions,
    /// Bounds from which a replica is reported as lagging or stale.
    pub triggers: Triggers,
    /// Time between two comparisons of this node's running hashes with those of the others; zero for none.
    pub compare_every: Duration,
}

impl NodeOptions {
    /// Default bounds from which a replica is reported as lagging or stale.
    pub const DEFAULT_TRIGGERS: Triggers =
        Triggers { lag_entries: 1000, lag_bytes: 64 * 1024 * 1024, stale_after: Since(30_000) };
    /// Default time between two comparisons of running hashes.
    pub const DEFAULT_COMPARE_EVERY: Duration = Duration::from_secs(10);

    /// Returns the default options of a node that listens at an address.
    #[must_use]
    pub fn new(listen: SocketAddr, secret: Secret) -> Self {
        Self {
            listen,
            advertise: String::new(),
            name: String::new(),
            zone: String::new(),
            secret,
            allow_plain: false,
            join: Vec::new(),
            expect: 0,
            consensus: ConsensusOptions::DEFAULTS,
            detector: DetectorOptions::DEFAULTS,
            triggers: Self::DEFAULT_TRIGGERS,
            compare_every: Self::DEFAULT_COMPARE_EVERY,
        }
    }
}
