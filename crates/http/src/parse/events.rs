//! Query parameters of the cluster's events.

use super::query::{number, query};

query! {
    /// Query parameters of `GET /v1/cluster/events`.
    pub(crate) struct EventsQuery {
        /// Sequence number after which the events begin; if missing, only new events.
        after: Option<u64> = number,
        /// Number of the node's run to which `after` belongs. An earlier reply has stated it in its first position.
        run: Option<u64> = number,
        /// Number of events after which the reply ends.
        limit: Option<u64> = number,
    }
}
