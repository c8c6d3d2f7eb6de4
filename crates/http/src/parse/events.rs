//! Query parameters of the cluster's events.

use super::query::{number, query};

query! {
    /// Query parameters of `GET /v1/cluster/events`.
    pub(crate) struct EventsQuery {
        /// Sequence number after which the events begin; only events from now on if missing.
        after: Option<u64> = number,
        /// Number of the node's run to which `after` belongs, from the position that an earlier reply began with.
        run: Option<u64> = number,
        /// Number of events after which the reply ends.
        limit: Option<u64> = number,
    }
}
