//! Checks of the settings of a node's membership in a cluster.

use std::{net::SocketAddr, time::Duration};

use super::{Advertise, Config, ConfigError, PeerPem};

/// Largest number of nodes that can found a cluster together.
const MAX_FOUNDERS: u32 = 7;
/// Minimum time between two heartbeats. The node checks the others every 100 ms, and shorter heartbeats would keep an
/// idle node busy.
const MIN_HEARTBEAT: Duration = Duration::from_millis(10);
const MAX_HEARTBEAT: Duration = Duration::from_secs(60);

impl Config {
    /// Returns the address at which clients reach this node over one protocol. `listening` is the address at which the
    /// protocol listens. If that is the unspecified address (such as 0.0.0.0) and `advertise` is set, the host is that
    /// of `advertise`.
    #[must_use]
    pub fn reachable(&self, listening: SocketAddr) -> String {
        match &self.advertise {
            Advertise::At(address) if listening.ip().is_unspecified() => {
                let host = address.host();
                format!("{host}:{}", listening.port())
            }
            _ => listening.to_string(),
        }
    }

    /// Returns true if the links to other nodes use TLS.
    #[must_use]
    pub fn links_use_tls(&self) -> bool {
        let is_remote = self.cluster.address().is_some_and(|address| !address.ip().is_loopback());
        is_remote || self.cluster_tls || self.cluster_certificate != PeerPem::None
    }

    /// Checks that all three TLS files for the links between nodes are set, or none of them.
    fn check_link_files(&self) -> Result<(), ConfigError> {
        let files = [
            ("cluster_ca", &self.cluster_ca),
            ("cluster_certificate", &self.cluster_certificate),
            ("cluster_key", &self.cluster_key),
        ];
        let missing = files.iter().find(|(_, file)| **file == PeerPem::None);
        match missing {
            Some((name, _)) if files.iter().any(|(_, file)| **file != PeerPem::None) => {
                let expected = "a PEM file, because cluster_ca, cluster_certificate and cluster_key belong together; \
                                `thalweg cluster create-ca` and `thalweg cluster create-cert` make them";
                Err(ConfigError::Range { name, expected })
            }
            _ => Ok(()),
        }
    }

    /// Checks the settings for heartbeats and for failure detection.
    fn check_timing(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        let heartbeat = self.cluster_heartbeat.0;
        if !(MIN_HEARTBEAT..=MAX_HEARTBEAT).contains(&heartbeat) {
            return wrong("cluster_heartbeat", "from 10ms to 1m");
        }
        if self.cluster_suspect_after.0 < 2 * heartbeat {
            return wrong("cluster_suspect_after", "at least twice cluster_heartbeat");
        }
        if self.cluster_down_after < self.cluster_suspect_after {
            return wrong("cluster_down_after", "at least cluster_suspect_after");
        }
        Ok(())
    }

    /// Checks that the settings for a cluster fit together, and that a node without a cluster sets none of them.
    pub(super) fn check_cluster(&self) -> Result<(), ConfigError> {
        let wrong = |name, expected: &'static str| Err(ConfigError::Range { name, expected });
        let Some(address) = self.cluster.address() else {
            for (name, is_set) in [
                ("cluster_init", self.cluster_init),
                ("join", !self.join.0.is_empty()),
                ("expect", self.expect > 0),
                ("join_token", self.join_token.is_set()),
                ("cluster_tls", self.cluster_tls),
                ("cluster_ca", self.cluster_ca != PeerPem::None),
                ("cluster_certificate", self.cluster_certificate != PeerPem::None),
                ("cluster_key", self.cluster_key != PeerPem::None),
                ("cluster_repair", self.cluster_repair),
            ] {
                if is_set {
                    return wrong(name, "given together with cluster, the address for the other nodes");
                }
            }
            return Ok(());
        };
        if self.cluster_init && !self.join.0.is_empty() {
            return wrong("join", "given without cluster_init: a node creates a cluster, or joins one");
        }
        if self.expect > 0 && self.join.0.is_empty() {
            return wrong("expect", "given together with join, the addresses of the nodes that found the cluster");
        }
        if self.expect > MAX_FOUNDERS {
            return wrong("expect", "at most 7");
        }
        self.check_link_files()?;
        self.check_timing()?;
        if address.ip().is_unspecified() && self.advertise == Advertise::Listening {
            return wrong("advertise", "HOST:PORT, because cluster listens on all addresses of the machine");
        }
        Ok(())
    }
}
