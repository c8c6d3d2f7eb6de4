//! Clients of the simulated cluster: each sends one request at a time to the node that it believes to lead.
//!
//! Owns: the mix of operations, and how a client finds the leader. Does not own: the record of requests and answers
//! (`history`).

use std::{cell::Cell, rc::Rc, time::Duration};

use bytes::Bytes;
use openraft::ReadPolicy;
use thalweg_raft::Commands;
use thalweg_types::{Clock, SpaceTime, command::Outcome};

use crate::{
    cluster::Cluster,
    commands::{KEYSPACE, commands, key_bytes},
    history::{Action, Answer},
    network::USUAL_DELAY,
    plant::Plant,
    runtime::{ProcessId, now, random, random_duration, sleep, spawn, timeout},
};

/// Number of keys.
const KEYS: u64 = 5;
/// Time after which a client gives a request up.
const PATIENCE: Duration = Duration::from_millis(700);

/// Result of a request, as its client knows it.
enum Reply {
    /// The request was answered; a write has the index of its entry.
    Answered(Answer, Option<u64>),
    /// The node rejected the request, which had no effect. It may know the leader.
    Rejected(Option<ProcessId>),
    /// The answer is missing.
    Unknown,
}

fn answer_of(outcome: Option<&Outcome>) -> Option<Answer> {
    match outcome? {
        Outcome::Committed { appends, .. } => {
            Some(appends.first().map_or(Answer::Done, |append| Answer::Offset(append.first.0)))
        }
        Outcome::ConditionFailed { .. } => Some(Answer::Refused),
        _ => None,
    }
}

/// One client.
pub(crate) struct Client {
    pub(crate) cluster: Cluster,
    /// Next unique number of all clients.
    pub(crate) numbers: Rc<Cell<u64>>,
    /// Node that the client asks next.
    pub(crate) target: ProcessId,
    /// Value that the client saw last, for its next swap.
    pub(crate) seen: Option<(u64, Option<u64>)>,
    /// Mean time between two requests.
    pub(crate) pause: Duration,
}

impl Client {
    /// Sends requests until the cluster's clients are stopped.
    pub(crate) async fn run(mut self) {
        while !self.cluster.is_stopping() {
            sleep(random_duration(Duration::from_micros(1)..2 * self.pause)).await;
            let number = self.numbers.replace(self.numbers.get() + 1);
            let (key, action) = self.next_action(number);
            self.perform(key, action, number).await;
        }
    }

    fn next_action(&self, number: u64) -> (u64, Action) {
        let key = random(0..KEYS);
        match (random(0..10), self.seen) {
            (0..4, _) => (key, Action::Get),
            (4..7, _) | (7..9, None) => (key, Action::Put(number)),
            (7..9, Some((key, expect))) => (key, Action::Swap { expect, put: number }),
            _ => (key, Action::Append),
        }
    }

    async fn perform(&mut self, key: u64, action: Action, number: u64) {
        let payload = commands(key, action, number);
        let history = self.cluster.history().clone();
        let id = history.begin(key, action, payload.clone());
        match self.ask(key, action, payload).await {
            Reply::Answered(answer, index) => {
                history.end(id, answer, index);
                self.cluster.answered(action);
                self.seen = match (action, answer) {
                    (_, Answer::Value(value)) => Some((key, value)),
                    (Action::Put(value), Answer::Done) => Some((key, Some(value))),
                    _ => self.seen,
                };
            }
            Reply::Rejected(leader) => {
                self.target = leader.unwrap_or_else(|| self.cluster.any_node());
                sleep(Duration::from_millis(random(1..20))).await;
            }
            Reply::Unknown => self.target = self.cluster.any_node(),
        }
    }

    /// Sends a request and waits for the answer.
    async fn ask(&self, key: u64, action: Action, payload: Bytes) -> Reply {
        let (cluster, node) = (self.cluster.clone(), self.target);
        let (sender, receiver) = tokio::sync::oneshot::channel();
        if cluster.network().raft(node).is_none() {
            return Reply::Rejected(None);
        }
        // The request runs in the node's process, and ends with it.
        spawn(node, async move {
            sleep(random_duration(USUAL_DELAY)).await;
            let reply = if action == Action::Get {
                read(&cluster, node, key).await
            } else {
                write(&cluster, node, payload).await
            };
            sleep(random_duration(USUAL_DELAY)).await;
            // The client may have given up.
            let _ = sender.send(reply);
        });
        match timeout(PATIENCE, receiver).await {
            Ok(Ok(reply)) => reply,
            _ => Reply::Unknown,
        }
    }
}

async fn write(cluster: &Cluster, node: ProcessId, payload: Bytes) -> Reply {
    let (Some(raft), Some(state)) = (cluster.network().raft(node), cluster.state(node)) else {
        return Reply::Rejected(None);
    };
    let time = leader_time(cluster, node, state.time());
    match raft.client_write(Commands { time, bytes: payload }).await {
        Ok(written) => match answer_of(written.data.outcomes.first()) {
            Some(answer) => Reply::Answered(answer, Some(written.log_id.index)),
            None => {
                cluster.truth().violation(node, format!("an entry has the outcome {:?}", written.data));
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
fn is_rejection(
    error: &openraft::errors::RaftError<crate::types::Types, openraft::errors::ClientWriteError<crate::types::Types>>,
) -> bool {
    matches!(error.api_error(), Some(openraft::errors::ClientWriteError::ForwardToLeader(_)))
}

/// Returns the time of a new entry: that of the leader's clock, but never before an applied entry.
fn leader_time(cluster: &Cluster, node: ProcessId, applied: SpaceTime) -> SpaceTime {
    cluster.clock(node).wall().max(applied)
}

async fn read(cluster: &Cluster, node: ProcessId, key: u64) -> Reply {
    let (Some(raft), Some(state)) = (cluster.network().raft(node), cluster.state(node)) else {
        return Reply::Rejected(None);
    };
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
    match state.get(KEYSPACE, &key_bytes(key)) {
        Ok(value) => {
            let value = value.map(|bytes| u64::from_le_bytes(bytes.try_into().expect("values are numbers")));
            Reply::Answered(Answer::Value(value), None)
        }
        Err(error) => {
            cluster.truth().violation(node, format!("a read failed after {:?}: {error}", now()));
            Reply::Unknown
        }
    }
}
