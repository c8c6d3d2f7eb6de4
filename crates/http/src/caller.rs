//! Facts about the connection of a request that its handler needs: the connection's account, and the operations that it
//! may call. Does not own: the connection (`listen`).

use std::sync::Arc;

use thalweg_serving::admission::Account;

/// Operations that a connection may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// The connection may call every operation.
    Full,
    /// The connection may call only health, readiness, metrics and status, because it is above the limit on
    /// connections.
    StatusOnly,
}

/// The connection to which a request belongs.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    /// Account of the connection: it counts the server's resources that the connection uses, such as memory.
    pub account: Arc<Account>,
    /// Operations that the connection may call.
    pub service: Service,
}
