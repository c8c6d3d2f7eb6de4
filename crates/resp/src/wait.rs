//! The state of a blocking read. The module `blocking` has the commands, and continues the reads of waiting clients.

use std::pin::Pin;

use thalweg_engine::GrowthWaiter;
use thalweg_redis::streams::block::{Blocked, Poll as Found};
use thalweg_serving::{admission::Reservation, readers::PendingRead};
use tokio::time::Sleep;

use super::{database::Appended, failure::Failure, waiting::Waiter};

/// A client's wait for entries, in a blocking `XREAD` or `XREADGROUP`.
#[derive(Debug)]
pub(crate) struct Wait {
    /// The blocked command. It can check if there is an entry for it.
    pub blocked: Blocked,
    /// Registration at which other Redis clients of this node notify this client when they change one of the awaited
    /// keys.
    pub waiter: Waiter,
    /// Futures that complete when clients of other protocols append to one of the awaited streams.
    pub others: Vec<Appended>,
    /// Registration that wakes the client when the node applies a log entry that adds to streams, whichever node has
    /// proposed it. `None` if the database is a cache, whose writes do not go through the log.
    pub _growth: Option<GrowthWaiter>,
    /// Timer that ends the read after its timeout; `None` if the read has no timeout.
    pub until: Option<Pin<Box<Sleep>>>,
    /// Timer for the regular check that the consumer group still exists; `None` if the read needs no such check.
    pub recheck: Option<Pin<Box<Sleep>>>,
    /// Check for new entries under the awaited keys, which reader threads perform; `None` if no check is running.
    pub look: Option<PendingRead<Result<Found, Failure>>>,
    /// True if a key may have changed since reader threads began to check the keys. Another check must then follow.
    pub is_look_outdated: bool,
    /// True if the client wants no reply to the read.
    pub muted: bool,
    /// Reservation of a slot under `max_tails`, the limit on waiting readers.
    pub _held: Reservation,
}
