//! Bytes that this node exchanges with each other node over their links.
//!
//! Owns: the counters, by node and channel. They count the bytes of frames with their headers, after compression and
//! before encryption, on connections that this node dials and on those that it accepts. Handshakes are not counted. The
//! channel for subjects has counters of messages instead (`broker`).
//!
//! Invariant: counters only rise while the node runs. The counters of a removed node are dropped after its connections
//! have ended, so the map contains the members and few other nodes.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use thalweg_serving::cluster::LinkTraffic;
use thalweg_types::NodeId;
use thalweg_wire::peer::Channel;

/// Channels that are counted, with their names in the metrics.
const CHANNELS: [(Channel, &str); 4] = [
    (Channel::Appends, "appends"),
    (Channel::Control, "control"),
    (Channel::Snapshots, "snapshots"),
    (Channel::Proposals, "proposals"),
];

/// Counters of the bytes that this node has exchanged with one other node on one channel.
#[derive(Debug, Default)]
struct ChannelBytes {
    sent: AtomicU64,
    received: AtomicU64,
}

/// Counters of the links to one other node. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkBytes(Arc<[ChannelBytes; CHANNELS.len()]>);

impl LinkBytes {
    /// Returns the counter of the bytes on one channel.
    pub(crate) fn of(&self, channel: Channel) -> ChannelCounter {
        ChannelCounter { bytes: self.clone(), at: CHANNELS.iter().position(|(counted, _)| *counted == channel) }
    }
}

/// Counter of one channel; for a channel without a counter, counting does nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct ChannelCounter {
    bytes: LinkBytes,
    at: Option<usize>,
}

impl ChannelCounter {
    pub(crate) fn sent(&self, bytes: usize) {
        if let Some(at) = self.at {
            self.bytes.0[at].sent.fetch_add(bytes as u64, Relaxed);
        }
    }

    pub(crate) fn received(&self, bytes: usize) {
        if let Some(at) = self.at {
            self.bytes.0[at].received.fetch_add(bytes as u64, Relaxed);
        }
    }
}

/// Counters of the links to all other nodes. Clones share the counters.
#[derive(Clone, Debug, Default)]
pub(crate) struct LinkCounters(Arc<Mutex<BTreeMap<NodeId, LinkBytes>>>);

impl LinkCounters {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<NodeId, LinkBytes>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the counters of the links to one other node. Creates them if there are none.
    pub(crate) fn of(&self, node: NodeId) -> LinkBytes {
        self.lock().entry(node).or_default().clone()
    }

    /// Drops the counters of nodes that are neither in `nodes` nor connected.
    pub(crate) fn keep(&self, nodes: &[NodeId]) {
        self.lock().retain(|node, bytes| nodes.contains(node) || Arc::strong_count(&bytes.0) > 1);
    }

    /// Returns the values of all counters, for each other node and channel.
    pub(crate) fn read(&self) -> Vec<LinkTraffic> {
        let counters = self.lock();
        let of_node = |(node, bytes): (&NodeId, &LinkBytes)| {
            let traffic = |((_, channel), counted): (&(Channel, &'static str), &ChannelBytes)| LinkTraffic {
                node: *node,
                channel,
                sent_bytes: counted.sent.load(Relaxed),
                received_bytes: counted.received.load(Relaxed),
            };
            CHANNELS.iter().zip(bytes.0.iter()).map(traffic).collect::<Vec<_>>()
        };
        counters.iter().flat_map(of_node).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_outlive_connections_and_go_with_their_node() {
        let counters = LinkCounters::default();
        let connected = counters.of(NodeId(1)).of(Channel::Control);
        counters.of(NodeId(2)).of(Channel::Appends).received(5);
        connected.sent(3);
        connected.received(4);
        counters.of(NodeId(1)).of(Channel::Subjects).sent(100);
        let bytes = |node: u64, channel: &str| {
            let all = counters.read();
            let found = all.iter().find(|traffic| traffic.node == NodeId(node) && traffic.channel == channel);
            found.map(|traffic| (traffic.sent_bytes, traffic.received_bytes))
        };
        assert_eq!((bytes(1, "control"), bytes(2, "appends")), (Some((3, 4)), Some((0, 5))));
        assert_eq!(bytes(1, "appends"), Some((0, 0)), "subjects count nowhere");
        counters.keep(&[NodeId(2)]);
        assert_eq!((bytes(1, "control"), bytes(2, "appends")), (Some((3, 4)), Some((0, 5))), "1 is still connected");
        drop(connected);
        counters.keep(&[NodeId(2)]);
        assert_eq!((bytes(1, "control"), bytes(2, "appends")), (None, Some((0, 5))));
    }
}
