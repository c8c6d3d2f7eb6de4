//! Service of clients' requests on a simulated node.
//!
//! Owns: the rule that decides which errors mean that a request had no effect. Does not own: clients, or the node
//! (`running`).

use std::{ops::Range, time::Duration};

use bytes::Bytes;
use thalweg_raft::BarrierError;
use thalweg_replica::ProposeError;
use thalweg_types::Durability;

use crate::{
    cluster::Cluster,
    history::{Action, Answer, Key, Level},
    running::Running,
    runtime::{ProcessId, random, random_duration, sleep},
};

/// Range of the time between a leader's reads and its proposal of a command that depends on these reads.
const FORMING: Range<Duration> = Duration::from_millis(1)..Duration::from_millis(100);
/// Mean number of plain writes of which a leader proposes one for its present term only: if the leadership changes
/// first, that write fails. The database's own maintenance proposes its commands in the same way.
const FORMED: u64 = 8;

/// Result of a request from the client's point of view.
pub(crate) enum Reply {
    /// The request was answered.
    Answered(Answer),
    /// The node rejected the request, which had no effect. Contains the leader if the node knows it.
    Rejected(Option<ProcessId>),
    /// No answer has arrived, so the outcome is unknown.
    Unknown,
}

/// Serves a client's request on a node.
pub(crate) async fn serve(cluster: &Cluster, node: ProcessId, action: &Action, command: Bytes) -> Reply {
    let Some(running) = cluster.running(node) else { return Reply::Rejected(None) };
    match action {
        Action::Read { keys, level } => read(cluster, node, &running, keys, *level).await,
        _ => write(cluster, node, &running, (action, command)).await,
    }
}

async fn write(cluster: &Cluster, node: ProcessId, running: &Running, (action, command): (&Action, Bytes)) -> Reply {
    // A plain write is sent only once, so the oracle knows the term that it requires.
    let is_formed = matches!(action, Action::Write { .. }) && random(0..FORMED) == 0;
    let term = running.led_term().filter(|_| is_formed);
    if let Some(term) = term {
        cluster.truth().requires(command.clone(), term.0);
        sleep(random_duration(FORMING)).await;
    }
    let is_failed = running.has_failed_log();
    match running.propose(&command, term).await {
        Ok(_) if is_failed => {
            cluster.truth().violation(node, "a node whose log has failed acknowledges a write".to_owned());
            Reply::Unknown
        }
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
