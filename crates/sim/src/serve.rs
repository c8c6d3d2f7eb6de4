//! Requests of clients, as a simulated node serves them.
//!
//! Owns: the way of a request through the node. Does not own: clients, or the state.

use bytes::Bytes;
use openraft::{
    ReadPolicy,
    errors::{ClientWriteError, RaftError},
};
use thalweg_raft::Commands;
use thalweg_types::{Clock, SpaceTime};

use crate::{
    cluster::Cluster,
    commands::payload,
    history::{Action, Answer, Key, Level},
    plant::Plant,
    runtime::{ProcessId, now},
    types::Types,
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
    match action {
        Action::Read { keys, level } => read(cluster, node, keys, *level).await,
        _ => write(cluster, node, &command).await,
    }
}

async fn write(cluster: &Cluster, node: ProcessId, command: &[u8]) -> Reply {
    let (Some(raft), Some(state)) = (cluster.network().raft(node), cluster.state(node)) else {
        return Reply::Rejected(None);
    };
    let time = leader_time(cluster, node, state.time());
    match raft.client_write(Commands { time, bytes: payload(command) }).await {
        Ok(written) => match written.data.into_iter().next() {
            Some(outcome) => Reply::Answered(Answer::Outcome(outcome)),
            None => {
                cluster.truth().violation(node, "an entry has no outcome".to_owned());
                Reply::Unknown
            }
        },
        Err(error) => match error.forward_to_leader() {
            // Nothing was appended.
            Some(forward) if is_rejection(&error) => Reply::Rejected(forward.leader_id),
            _ => Reply::Unknown,
        },
    }
}

/// Returns true if the error says that the proposal was not appended.
fn is_rejection(error: &RaftError<Types, ClientWriteError<Types>>) -> bool {
    matches!(error.api_error(), Some(ClientWriteError::ForwardToLeader(_)))
}

/// Returns the time of a new entry: that of the leader's clock, but never before an applied entry.
fn leader_time(cluster: &Cluster, node: ProcessId, applied: SpaceTime) -> SpaceTime {
    cluster.clock(node).wall().max(applied)
}

async fn read(cluster: &Cluster, node: ProcessId, keys: &[Key], level: Level) -> Reply {
    let (Some(raft), Some(state)) = (cluster.network().raft(node), cluster.state(node)) else {
        return Reply::Rejected(None);
    };
    let Level::Linearizable = level;
    let is_leading = if cluster.plant() == Some(Plant::UncheckedRead) {
        raft.current_leader().await == Some(node)
    } else {
        match raft.ensure_linearizable(ReadPolicy::ReadIndex).await {
            Ok(_) => true,
            Err(error) => return Reply::Rejected(error.forward_to_leader().and_then(|forward| forward.leader_id)),
        }
    };
    if !is_leading {
        return Reply::Rejected(None);
    }
    match state.read(keys) {
        Ok((revision, values)) => Reply::Answered(Answer::Values { revision, values }),
        Err(error) => {
            cluster.truth().violation(node, format!("a read failed after {:?}: {error}", now()));
            Reply::Unknown
        }
    }
}
