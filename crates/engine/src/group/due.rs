//! Time of the next delivery of a group.

use thalweg_types::SpaceTime;

/// Time at which a fetch would deliver records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// `None` means that no deadline will make records available.
    At(Option<SpaceTime>),
}
