//! The connection to which a request belongs, and its transfer to the handler of the request.
//!
//! Owns: passing the connection's [`Caller`] to the handler without an allocation for each request. The future of a
//! request puts it into a thread-local variable while the request is polled, and the handler takes it from there in its
//! first step.
//! A router that is called without a server has no connections; its requests belong to the local account.

use std::{cell::Cell, sync::Arc};

use thalweg_serving::admission::Account;

/// Operations that a connection may call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Service {
    /// All operations.
    Full,
    /// Health, readiness, metrics and status, because the connection is above the limit on connections.
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

thread_local! {
    static CALLER: Cell<Option<Caller>> = const { Cell::new(None) };
}

/// Runs `poll`, during which [`take`] on the same thread returns `caller`. Sets `caller` to `None` if it was taken.
pub(crate) fn offer<T>(caller: &mut Option<Caller>, poll: impl FnOnce() -> T) -> T {
    if caller.is_none() {
        return poll();
    }
    CALLER.set(caller.take());
    let result = poll();
    *caller = CALLER.take();
    result
}

/// Takes the caller of the request that is polled on this thread. Returns `None` if the request belongs to no
/// connection.
pub(crate) fn take() -> Option<Caller> {
    CALLER.take()
}
