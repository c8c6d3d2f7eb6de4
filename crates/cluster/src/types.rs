//! openraft's types with tokio as the async runtime, as this crate's nodes use them.

/// Async runtime on which the consensus of a node runs.
pub(crate) type Rt = openraft_rt_tokio::TokioRuntime;
/// Set of types with which openraft runs on a node.
pub(crate) type Types = thalweg_raft::Types<Rt>;
