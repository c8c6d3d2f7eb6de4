//! The connection to which a request belongs, as its handler sees it.
//!
//! Owns: the account of the connection, and the operations that it may call. Does not own: the connection (`listen`).

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
    /// Account that holds the connection's shares of the server's resources.
    pub account: Arc<Account>,
    /// Operations that the connection may call.
    pub service: Service,
}
