//! Consensus of a member that reaches no other node, to test what it finds in the member's files.

use std::sync::{Arc, OnceLock};

use openraft::{
    OptionalSend, RaftNetworkFactory, RaftNetworkV2,
    errors::{RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::RPCOption,
    raft::{AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, VoteRequest, VoteResponse},
};
use openraft_rt_tokio::TokioRuntime;
use thalweg_engine::{Database, MemberParts};
use thalweg_raft::{
    Consensus, ConsensusOptions, ConsensusParts, ConsensusStatus, RaftSnapshot, RaftVote, SnapshotHandle, StartError,
    SyncDriver, SyncQueue,
};
use thalweg_replica::NodeInfo;

type Types = thalweg_raft::Types<TokioRuntime>;

/// A network without other nodes.
#[derive(Clone, Debug)]
struct Nowhere;

fn unreachable() -> Unreachable<Types> {
    Unreachable::from_string("there is no other node")
}

impl RaftNetworkFactory<Types> for Nowhere {
    type Network = Self;

    async fn new_client(&mut self, _: u64, _: &NodeInfo) -> Self {
        Self
    }
}

impl RaftNetworkV2<Types> for Nowhere {
    type SnapshotData = SnapshotHandle;

    async fn append_entries(
        &mut self,
        _: AppendEntriesRequest<Types>,
        _: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        Err(unreachable().into())
    }

    async fn vote(&mut self, _: VoteRequest<Types>, _: RPCOption) -> Result<VoteResponse<Types>, RPCError<Types>> {
        Err(unreachable().into())
    }

    async fn full_snapshot(
        &mut self,
        _: RaftVote,
        _: RaftSnapshot,
        _: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        _: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        Err(unreachable().into())
    }
}

/// Syncs when it is notified.
struct SyncsAtOnce(OnceLock<Arc<SyncQueue<TokioRuntime>>>);

impl SyncDriver for SyncsAtOnce {
    fn notify(&self) {
        if let Some(queue) = self.0.get() {
            queue.step();
        }
    }
}

/// Starts consensus of a member as its server does, and ends it again. Returns its first status.
#[allow(clippy::arc_with_non_send_sync, reason = "consensus takes any driver")]
pub fn start(db: &Database) -> Result<ConsensusStatus, StartError> {
    let MemberParts { log, member, .. } = db.member_parts().expect("a member");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let queue = Arc::new(SyncQueue::new(log));
        let driver = Arc::new(SyncsAtOnce(OnceLock::from(Arc::clone(&queue))));
        let parts = ConsensusParts { member, queue, driver, network: Nowhere, snapshots: None, forwarder: None };
        let consensus = Consensus::start(parts, ConsensusOptions::DEFAULTS).await?;
        let status = consensus.status();
        consensus.stop().await;
        Ok(status)
    })
}
