//! Facts about a node, such as its addresses for clients, that the node sends to the other nodes. The other nodes show
//! these facts to users.

use thalweg_serving::cluster::NodeAddresses;

/// Facts about a node that do not influence consensus.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct AboutNode {
    pub name: String,
    pub zone: String,
    pub version: String,
    /// Addresses at which the node serves clients.
    pub serves: NodeAddresses,
}
