//! Requests that a follower passes to its leader.
//!
//! Owns: the trait [`Forwarder`]. Does not own: the transport of requests (the network), or their service on the leader
//! (`consensus`).

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use thalweg_log::Purpose;
use thalweg_replica::{NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId};

use crate::error::BarrierError;

/// Carries requests from this node to the leader.
pub trait Forwarder: fmt::Debug + 'static {
    /// Forwards the commands of one entry, and returns the index of the entry once it is committed. The follower
    /// computes the outcomes of the commands itself when it applies the entry, because they are equal on all nodes. If
    /// the connection fails after the commands were sent, the error is [`ProposeError::OutcomeUnknown`]. `requests` is
    /// a text with the request ids of the client requests that contained the commands, which the leader writes to its
    /// log lines; the text may be empty.
    fn propose(
        &self,
        leader: (NodeId, NodeInfo),
        payload: Bytes,
        purpose: Purpose,
        requests: String,
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, ProposeError>>;

    /// Asks the leader for the index of the entry that a linearizable read on this node must wait for.
    fn read_index(
        &self,
        leader: (NodeId, NodeInfo),
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, BarrierError>>;
}
