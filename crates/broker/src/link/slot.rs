//! Identity of a subscription within its link.

use crate::options::Policy;

/// Receiver of the messages of a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Receiver {
    /// A client of this node.
    Client,
    /// Another node of the cluster.
    Node,
}

/// Slot of a subscription in its link's table, and the tag that distinguishes it from earlier subscriptions
/// in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) slot: u32,
    pub(crate) tag: Tag,
}

/// Number that distinguishes successive subscriptions in one slot. It also contains a bit for the policy to
/// block publishers and one for the kind of receiver, which are readable without the link's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) fn blocks(self) -> bool {
        self.0 & 1 != 0
    }

    /// Returns true if the subscription is one of another node.
    pub(crate) fn is_of_node(self) -> bool {
        self.0 & 2 != 0
    }

    pub(super) fn new(life: u32, policy: Policy, receiver: Receiver) -> Self {
        Self(life << 2 | u32::from(receiver == Receiver::Node) << 1 | u32::from(policy == Policy::Block))
    }
}
