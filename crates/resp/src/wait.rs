//! The state of a blocking read. The module `blocking` has the commands and wakes their clients.

use std::pin::Pin;

use thalweg_engine::GrowthWaiter;
use thalweg_redis::streams::block::{Blocked, Poll as Found};
use thalweg_serving::{admission::Reservation, readers::PendingRead};
use tokio::time::Sleep;

use super::{database::Appended, failure::Failure, waiting::Waiter};

/// A blocking `XREAD` or `XREADGROUP` that waits for entries.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The blocked command, which can check whether there is an entry for it.
    pub blocked: Blocked,
    /// Handle that Redis clients ring when they change one of the keys.
    pub waiter: Waiter,
    /// Futures that complete when clients of other protocols append to one of the streams.
    pub others: Vec<Appended>,
    /// Registration for entries that other nodes have proposed; `None` in a cache.
    pub _growth: Option<GrowthWaiter>,
    /// Timer that ends the read after its timeout; `None` if the read waits forever.
    pub until: Option<Pin<Box<Sleep>>>,
    /// Timer of the regular check that the consumer group still exists; `None` if the read needs no such check.
    pub recheck: Option<Pin<Box<Sleep>>>,
    /// Look at the keys by the readers, while it is under way.
    pub look: Option<PendingRead<Result<Found, Failure>>>,
    /// True if a key may have changed since that look began, so another look must follow it.
    pub is_look_outdated: bool,
    /// True if the client wants no reply to the read.
    pub muted: bool,
    /// Slot of the read under the limit `max_tails` on waiting readers.
    pub _held: Reservation,
}
