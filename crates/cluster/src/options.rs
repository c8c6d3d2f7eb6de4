//! Options of a node's place in a cluster.

use std::{net::SocketAddr, time::Duration};

use thalweg_raft::ConsensusOptions;
use thalweg_serving::cluster::{Since, Triggers};
use thalweg_transport::PeerTls;

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
    /// TLS of the links to other nodes, which all nodes use, or none. `None` is allowed at a loopback address only.
    pub tls: Option<PeerTls>,
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
            tls: None,
            join: Vec::new(),
            expect: 0,
            consensus: ConsensusOptions::DEFAULTS,
            detector: DetectorOptions::DEFAULTS,
            triggers: Self::DEFAULT_TRIGGERS,
            compare_every: Self::DEFAULT_COMPARE_EVERY,
        }
    }
}
