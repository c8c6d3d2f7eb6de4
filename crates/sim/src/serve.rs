//! Requests of clients, as a simulated node serves them.
//!
//! Owns: which errors mean that a request had no effect. Does not own: clients, or the node (`running`).

use bytes::Bytes;
use thalweg_raft::BarrierError;
use thalweg_replica::ProposeError;
use thalweg_types::Durability;

use crate::{
    cluster::Cluster,
    history::{Action, Answer, Key, Level},
    running::Running,
    runtime::ProcessId,
};

/// Result of a request, as its client knows it.
pub(crate) enum Reply {
    /// The request was answered.
    Answered(Answer),
    /// The node rejected the request, which had no effect. It may know the leader.
    Rejected(Option<ProcessId>),
    /// The answer is missing.
    Unknown,
}

/// Serves a request.
pub(crate) async fn serve(cluster: &Cluster, node: ProcessId, action: &Action, command: Bytes) -> Reply {
    let Some(running) = cluster.running(node) else { return Reply::Rejected(None) };
    match action {
        Action::Read { keys, level } => read(cluster, node, &running, keys, *level).await,
        _ => write(cluster, node, &running, &command).await,
    }
}

async fn write(cluster: &Cluster, node: ProcessId, running: &Running, command: &[u8]) -> Reply {
    match running.propose(command).await {
        Ok(committed) => match committed.outcome {
            Some(outcome) if committed.durability == Durability::Quorum => Reply::Answered(Answer::Outcome(outcome)),
            _ => {
                cluster.truth().violation(node, format!("a write at level quorum was answered {committed:?}"));
                Reply::Unknown
            }
        },
        Err(ProposeError::NotLeader { leader }) => Reply::Rejected(leader.map(|(node, _)| node.0)),
        Err(
            ProposeError::NoLeader
            | ProposeError::Overloaded { .. }
            | ProposeError::NoRoom { .. }
            | ProposeError::Closed,
        ) => Reply::Rejected(None),
        Err(_) => Reply::Unknown,
    }
}

async fn read(cluster: &Cluster, node: ProcessId, running: &Running, keys: &[Key], level: Level) -> Reply {
    match running.read(keys, level).await {
        Ok(Ok((revision, values))) => Reply::Answered(Answer::Values { revision, values }),
        Ok(Err(error)) => {
            cluster.node_failed(node, &format!("a read failed: {error}"));
            Reply::Unknown
        }
        Err(BarrierError::NotLeader { leader }) => Reply::Rejected(leader.map(|(node, _)| node.0)),
        Err(_) => Reply::Rejected(None),
    }
}
