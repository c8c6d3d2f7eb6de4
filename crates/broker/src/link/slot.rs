//! Identity of a subscription within its link.

use crate::options::Policy;

/// Slot of a subscription, and the tag that identifies the slot's occupant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotId {
    pub(crate) slot: u32,
    pub(crate) tag: Tag,
}

/// Distinguishes successive occupants of a slot. Also contains one bit for the policy to block, readable
/// without the link's lock.
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
