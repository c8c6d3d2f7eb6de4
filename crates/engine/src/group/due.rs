//! Time at which a consumer group can deliver records next.

use thalweg_types::SpaceTime;

/// Time at which a fetch from a consumer group would deliver records: now, or at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Due {
    Now,
    /// A fetch would deliver records at this time; `None` means that no pending record becomes free by time.
    At(Option<SpaceTime>),
}
