//! Addresses of other nodes, and flags that they accept messages.

/// Address of another node, with a flag that the node accepts messages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PeerAddress {
    /// Address at which the node accepts connections of other nodes; empty if it is not known.
    pub address: String,
    /// True if the node knows the channel for messages and is not down.
    pub is_usable: bool,
}

impl PeerAddress {
    /// Returns true if the node can be dialled for messages.
    pub(super) fn is_open(&self) -> bool {
        self.is_usable && !self.address.is_empty()
    }
}
