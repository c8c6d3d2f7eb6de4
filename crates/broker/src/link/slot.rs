//! Identity of a subscription within its link: its slot in the link's table, and a tag against reuse of the slot.

use crate::options::Policy;

/// Kind of receiver to which a link leads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// The link leads to a client of this node.
    Client,
    /// The link leads to another node of the cluster.
    Node,
}

/// Number of the slot in which a link's table stores a subscription, and a tag. The tag distinguishes the subscription
/// from earlier subscriptions in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) slot: u32,
    pub(crate) tag: Tag,
}

/// Number that distinguishes successive subscriptions in one slot. Two of its bits can be read without the link's lock:
/// one is set if the subscription's policy is to block publishers, and one if the receiver is another node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) fn blocks(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns true if the receiver of the subscription is another node.
    pub(crate) fn is_of_node(self) -> bool {
        self.0 & 2 != 0
    }

    pub(super) fn new(life: u32, policy: Policy, receiver: Receiver) -> Self {
        Self(life << 2 | u32::from(receiver == Receiver::Node) << 1 | u32::from(policy == Policy::Block))
    }
}
