//! Choice of the node of a cluster that should get a request.

/// Node of a cluster that should get a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// The leader of the cluster, because the request proposes a command, such as a write.
    Leader,
    /// Any node that can answer at the client's read level.
    Readable,
    /// The node to which the client is connected.
    Connected,
}
