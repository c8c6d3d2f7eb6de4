//! Query parameters of requests for the cluster's events.

use super::query::{number, query};

query! {
    /// Query parameters of `GET /v1/cluster/events`.
    pub(crate) struct EventsQuery {
        /// Sequence number after which the events begin; if missing, only new events.
        after: Option<u64> = number,
        /// Number of the node's run (from its start to its end) to which `after` belongs. The first event or line
        /// of an earlier reply states it.
        run: Option<u64> = number,
        /// Number of events after which the reply ends.
        limit: Option<u64> = number,
    }
}
