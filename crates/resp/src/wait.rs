//! The state of a blocking read. `blocking` has the commands and the wakeups.

use std::pin::Pin;

use thalweg_redis::streams::block::Blocked;
use thalweg_serving::admission::Reservation;
use tokio::time::Sleep;

use super::{database::Appended, waiting::Waiter};

/// A blocking `XREAD` or `XREADGROUP` that waits for entries.
#[derive(Debug)]
pub(crate) struct Wait {
    /// Condition that the read waits for.
    pub blocked: Blocked,
    /// Handle that Redis clients ring when they change one of the keys.
    pub waiter: Waiter,
    /// Notifications of appends by clients of other protocols.
    pub others: Vec<Appended>,
    /// Timer of the timeout; `None` if the read waits forever.
    pub until: Option<Pin<Box<Sleep>>>,
    /// Timer of the check that the group still exists; `None` if the read needs no group.
    pub recheck: Option<Pin<Box<Sleep>>>,
    /// True if the client wants no reply.
    pub muted: bool,
    /// Slot of the read under the limit on tails.
    pub _held: Reservation,
}
