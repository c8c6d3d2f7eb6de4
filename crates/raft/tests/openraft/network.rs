//! Nodes of one process that call each other directly.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
};

use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2, Snapshot,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_replica::NodeInfo;

use crate::{
    applier::SnapshotPoint,
    types::{Raft, RaftVote, Types},
};

/// The nodes that can be called; cheap to clone.
#[derive(Clone, Default)]
pub struct Router(Arc<Mutex<BTreeMap<u64, Raft>>>);

impl Router {
    pub fn connect(&self, node: u64, raft: Raft) {
        self.0.lock().expect("never held across a panic").insert(node, raft);
    }

    fn raft(&self, node: u64) -> Result<Raft, Unreachable<Types>> {
        let rafts = self.0.lock().expect("never held across a panic");
        rafts.get(&node).cloned().ok_or_else(|| Unreachable::from_string(format!("node {node} is not connected")))
    }
}

impl RaftNetworkFactory<Types> for Router {
    type Network = Connection;

    async fn new_client(&mut self, target: u64, _: &NodeInfo) -> Connection {
        Connection { router: self.clone(), target }
    }
}

pub struct Connection {
    router: Router,
    target: u64,
}

impl RaftNetworkV2<Types> for Connection {
    type SnapshotData = SnapshotPoint;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let raft = self.router.raft(self.target)?;
        raft.append_entries(request).await.map_err(|error| Unreachable::new(&error).into())
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        _: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        let raft = self.router.raft(self.target)?;
        raft.vote(request).await.map_err(|error| Unreachable::new(&error).into())
    }

    async fn full_snapshot(
        &mut self,
        _: RaftVote,
        _: Snapshot<CommittedLeaderId<u64>, u64, NodeInfo, SnapshotPoint>,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(Unreachable::from_string("snapshots do not carry the state to another node yet").into())
    }
}
