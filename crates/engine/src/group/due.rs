//! Time at which a consumer group can deliver records next.

use thalweg_types::SpaceTime;

/// Time at which a fetch from a consumer group would deliver records: now, or at a later time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DeliveryDue {
    Now,
    /// A fetch would deliver records from this time on; `None` if it can deliver only appended or returned records.
    At(Option<SpaceTime>),
}
