//! Memory that a member of a cluster needs: for the links to the other nodes, and for the commands and entries that
//! consensus holds.
//!
//! Owns: the worst case that `--explain` shows. Does not own: the bounds (`thalweg_types::limits`), which the crates
//! `raft` and `cluster` enforce.

use thalweg_broker::MAX_FILTERS;
use thalweg_types::limits::{
    LINK_READ_BYTES, LINK_WRITE_BYTES, MAX_CLUSTER_CALLS, MAX_COMMAND_BYTES, MAX_ENTRY_NAME_BYTES,
    MAX_FORWARDED_OUTCOME_BYTES, MAX_HALF_OPEN_LINKS, MAX_IN_FLIGHT_BYTES, MAX_NODE_CONNECTIONS, MAX_NODE_QUEUE_BYTES,
    MAX_PIPELINED_BYTES, NEWEST_ENTRY_BYTES, SNAPSHOT_CHUNK_BYTES,
};

use super::{ByteSize, Config, explain::SNAPSHOT_CHUNKS};
use crate::limits::{HANDSHAKE_BYTES, SUBSCRIPTION_BYTES};

const MIB: u64 = 1024 * 1024;

/// Minimum of the limit, in bytes, on the outcomes of forwarded commands that a member of a cluster keeps until the
/// leader's answers arrive. The largest results of two transactions fit into this many bytes.
const LEAST_OUTCOME_BYTES: u64 = 32 * MIB;
/// Minimum number of other nodes for which memory of links is counted, even if the configuration names fewer. A cluster
/// of three nodes has this many.
const LEAST_OTHER_NODES: usize = 2;
/// Memory in bytes of a client's read, or of a change of the cluster, that waits for consensus.
const CALL_BYTES: u64 = 1024;
/// Memory in bytes of a connection from another node that has not sent its hello (the first frame) yet.
const STRANGER_BYTES: u64 = 4 * 1024;

/// Memory in bytes of the connections to one other node: log entries that are being sent; the next entry, and its
/// compressed frame; a forwarded command and a batch of messages that are arriving; a snapshot; and all buffers. On a
/// follower, the entries that it receives take as many bytes as the entries that a leader sends. Messages of subjects
/// that wait to be sent are not included.
const LINK_BYTES: u64 = MAX_PIPELINED_BYTES as u64
    + 2 * MAX_COMMAND_BYTES as u64
    + 2 * MAX_COMMAND_BYTES as u64
    + SNAPSHOT_CHUNKS * SNAPSHOT_CHUNK_BYTES as u64
    + (MAX_NODE_CONNECTIONS * (LINK_READ_BYTES + LINK_WRITE_BYTES)) as u64;

impl Config {
    /// Returns the maximum total bytes of the commands that a member of a cluster has proposed and whose outcome is not
    /// known yet. This is at most what the queue of commands may hold.
    #[must_use]
    pub fn cluster_in_flight_bytes(&self) -> u64 {
        self.max_queue_bytes.0.min(MAX_IN_FLIGHT_BYTES)
    }

    /// Returns the maximum number of bytes of outcomes of forwarded commands. A member keeps an outcome until the
    /// leader's answer to the command arrives. The maximum is a quarter of `max_reply_bytes_in_flight`, within fixed
    /// limits.
    #[must_use]
    pub fn cluster_outcome_bytes(&self) -> u64 {
        (self.max_reply_bytes_in_flight.0 / 4).clamp(LEAST_OUTCOME_BYTES, MAX_FORWARDED_OUTCOME_BYTES as u64)
    }

    /// Returns the number of other nodes that the configuration names, and at least [`LEAST_OTHER_NODES`].
    fn other_nodes(&self) -> u64 {
        let named = match self.expect as usize {
            0 => self.join.0.len(),
            all => all - 1,
        };
        named.max(LEAST_OTHER_NODES) as u64
    }

    /// Returns the memory that only a member of a cluster needs: a description of each use of memory, and its worst
    /// case in bytes. Empty for a node that runs alone.
    pub(super) fn cluster_memory(&self) -> Vec<(String, u64)> {
        if self.cluster.address().is_none() {
            return Vec::new();
        }
        let others = self.other_nodes();
        let filters = u64::from(self.max_subscriptions).min(2 * MAX_FILTERS as u64);
        let handshake = STRANGER_BYTES + HANDSHAKE_BYTES;
        vec![
            (
                "cluster: commands without an outcome, and their frames: 2 x max_queue_bytes, at most 64 MiB each"
                    .to_owned(),
                2 * self.cluster_in_flight_bytes(),
            ),
            ("cluster: outcomes of commands that were passed on".to_owned(), self.cluster_outcome_bytes()),
            (
                "cluster: the newest entries, and the names of their requests".to_owned(),
                (NEWEST_ENTRY_BYTES + MAX_ENTRY_NAME_BYTES) as u64,
            ),
            (
                format!("cluster: reads and changes that wait for consensus: {MAX_CLUSTER_CALLS} x {CALL_BYTES}"),
                MAX_CLUSTER_CALLS as u64 * CALL_BYTES,
            ),
            (
                format!("cluster: links to other nodes: {others} x {}", ByteSize(LINK_BYTES)),
                others.saturating_mul(LINK_BYTES),
            ),
            (
                format!("cluster: queued messages for other nodes: {others} x {}", ByteSize(MAX_NODE_QUEUE_BYTES)),
                others.saturating_mul(MAX_NODE_QUEUE_BYTES),
            ),
            (
                format!("cluster: filters of all nodes: {} x max_subscriptions x {SUBSCRIPTION_BYTES}", others + 1),
                (others + 1).saturating_mul(filters * SUBSCRIPTION_BYTES),
            ),
            (
                format!("cluster: handshakes of nodes: {MAX_HALF_OPEN_LINKS} x {}", ByteSize(handshake)),
                MAX_HALF_OPEN_LINKS as u64 * handshake,
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::config::{AvailableMemory, Layers};

    const MEMBER: &str = "cluster = \"127.0.0.1:7072\"\ncluster_init = true\n";

    fn config(text: &str, bytes: u64) -> Config {
        let layers = Layers::new().file_text(Path::new("t.toml"), text).unwrap();
        layers.resolve_within(Some(AvailableMemory { bytes, limited_by: None })).unwrap().config
    }

    fn sum(config: &Config) -> u64 {
        config.memory().last().unwrap().1.0
    }

    #[test]
    fn a_member_explains_its_links_and_a_node_alone_has_none() {
        let (alone, member) = (config("", 64 << 30), config(MEMBER, 64 << 30));
        let parts = member.memory();
        let (total, parts) = parts.split_last().unwrap();
        assert_eq!(total.1.0, parts.iter().map(|(_, bytes)| bytes.0).sum::<u64>());
        let of_cluster: Vec<_> = parts.iter().filter(|(what, _)| what.starts_with("cluster: ")).collect();
        assert_eq!(of_cluster.iter().map(|(_, bytes)| bytes.0).sum::<u64>(), sum(&member) - sum(&alone));
        assert!(alone.memory().iter().all(|(what, _)| !what.contains("cluster")));
        let links = of_cluster.iter().find(|(what, _)| what.contains("links to other nodes: 2 x ")).expect("a part");
        // Both followers may be slow at the same time. Each then has a large entry in flight in addition to the
        // pipeline.
        assert!(links.1.0 >= 2 * (MAX_PIPELINED_BYTES + MAX_COMMAND_BYTES) as u64);
        assert_eq!(member.cluster_in_flight_bytes(), MAX_IN_FLIGHT_BYTES);
        assert_eq!(member.cluster_outcome_bytes(), MAX_FORWARDED_OUTCOME_BYTES as u64);
    }

    #[test]
    fn the_links_to_all_nodes_that_the_configuration_names_count() {
        let three = config(MEMBER, 64 << 30);
        let five = config("cluster = \"127.0.0.1:7072\"\njoin = \"a:1,b:1,c:1,d:1\"\n", 64 << 30);
        let each = LINK_BYTES + MAX_NODE_QUEUE_BYTES + u64::from(five.max_subscriptions) * SUBSCRIPTION_BYTES;
        assert_eq!(sum(&five) - sum(&three), 2 * each);
    }

    #[test]
    fn the_bounds_of_clients_leave_room_for_the_links() {
        for memory in [1024 * MIB, 2048 * MIB, 4096 * MIB] {
            let member = config(&format!("{MEMBER}memory = \"{}MiB\"", memory / MIB), 64 << 30);
            assert!(sum(&member) <= memory, "{} of {} MiB", sum(&member) / MIB, memory / MIB);
        }
        // With less memory, the bounds on clients keep half of it.
        let small = config(&format!("{MEMBER}memory = \"512MiB\""), 64 << 30);
        let of_cluster = small.cluster_memory().iter().map(|(_, bytes)| bytes).sum::<u64>();
        assert!(sum(&small) - of_cluster <= 256 * MIB);
        assert!(small.cluster_in_flight_bytes() < MAX_IN_FLIGHT_BYTES);
    }
}
