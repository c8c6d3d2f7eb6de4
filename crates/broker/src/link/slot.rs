//! Identity of a subscription within its link.

use crate::options::Policy;

/// Slot of a subscription in its link's table, and the tag that distinguishes it from earlier subscriptions
/// in this slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) slot: u32,
    pub(crate) tag: Tag,
}

/// Number that distinguishes successive subscriptions in one slot. It also contains one bit for the policy to
/// block publishers, which is readable without the link's lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Tag(u32);

impl Tag {
    pub(crate) fn blocks(self) -> bool {
        self.0 & 1 != 0
    }

    pub(super) fn new(life: u32, policy: Policy) -> Self {
        Self(life << 1 | u32::from(policy == Policy::Block))
    }
}
