//! Requests that a follower passes to its leader.
//!
//! Owns: the trait. Does not own: how requests travel (the network), or how the leader serves them (`consensus`).

use std::{fmt, time::Duration};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use thalweg_log::Purpose;
use thalweg_replica::{NodeInfo, ProposeError};
use thalweg_types::{Index, NodeId, command::Outcome};

use crate::error::BarrierError;

/// Answer of a leader to commands that were forwarded to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Index of the entry that contains the commands.
    pub index: Index,
    /// Outcomes of the commands.
    pub outcomes: Vec<Outcome>,
}

/// Carries requests from this node to the leader.
pub trait Forwarder: fmt::Debug + 'static {
    /// Forwards the commands of one entry. If the connection fails after they were sent, the error is
    /// [`ProposeError::OutcomeUnknown`].
    fn propose(
        &self,
        leader: (NodeId, NodeInfo),
        payload: Bytes,
        purpose: Purpose,
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Forwarded, ProposeError>>;

    /// Asks the leader for the entry that a linearizable read must wait for.
    fn read_index(
        &self,
        leader: (NodeId, NodeInfo),
        within: Duration,
    ) -> LocalBoxFuture<'static, Result<Index, BarrierError>>;
}
