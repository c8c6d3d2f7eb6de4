//! The state of a blocking read. `blocking` has the commands and the wakeups.

use std::pin::Pin;

use thalweg_redis::streams::block::Blocked;
use thalweg_serving::admission::Held;
use tokio::time::Sleep;

use super::{database::Appended, waiting::Waiter};

/// A read that waits.
#[derive(Debug)]
pub(crate) struct Wait {
    /// What it waits for.
    pub blocked: Blocked,
    /// Rung by Redis clients that change one of its keys.
    pub waiter: Waiter,
    /// Those who are no Redis clients.
    pub others: Vec<Appended>,
    /// When its time is up; none: never.
    pub until: Option<Pin<Box<Sleep>>>,
    /// When it looks whether there still is what it waits for; none: it does not depend on it.
    pub recheck: Option<Pin<Box<Sleep>>>,
    /// The client wants no reply.
    pub muted: bool,
    /// Its place among the tails.
    pub _held: Held,
}
