//! The node that should get a request.

/// Node of a cluster that should get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The leader, because the request proposes a command.
    Leader,
    /// Any node that can answer at the client's read level.
    Readable,
    /// The node to which the client is connected.
    Connected,
}
