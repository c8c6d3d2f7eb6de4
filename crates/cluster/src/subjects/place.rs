//! Addresses of other nodes, each with a flag that the node accepts messages of subscribers.

/// Address of another node, with a flag that the node accepts messages of subscribers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    /// Address at which the node accepts connections of other nodes; empty if it is not known.
    pub address: String,
    /// True if the node knows the channel for messages and is not down.
    pub is_usable: bool,
}

impl PeerAddress {
    /// Returns true if the node has an address and accepts messages of subscribers, so that this node can dial it.
    pub(super) fn is_open(&self) -> bool {
        self.is_usable && !self.address.is_empty()
    }
}
