//! Debug lines in the node's log that state the ids of the client requests in each applied entry. The *name* of an
//! entry is the text with these ids.
//!
//! Owns: the leader's decision to keep the names of entries, the questions to another leader for its names, and the
//! log lines. Does not own: the names that a leader keeps (`EntryNames` of `raft`).
//!
//! A node that logs at level `debug` asks the leader for names once a second. A leader keeps names while it logs at
//! this level itself, or if a member has asked within the last [`WANTED_FOR`]. So a cluster that does not log at this
//! level does none of this work. Entries are the same in both cases. A leader loses its names when it loses the
//! leadership.

use std::{
    rc::Rc,
    sync::atomic::Ordering::Relaxed,
    time::{Duration, Instant},
};

use thalweg_replica::Leadership;
use thalweg_types::{Index, NodeId, Term};
use thalweg_wire::peer::AskRequests;
use tokio::time::sleep;

use crate::{
    link::NameList,
    service::printable,
    tasks::{ASK_LIMIT, Tasks},
};

/// Time between two questions of this node to the leader for the ids of the client requests in recent entries.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Time for which a leader continues to collect the ids of client requests after a member has asked for them.
const WANTED_FOR: Duration = Duration::from_secs(5);

/// Names of log entries that this node has received from a leader. The name of an entry is a text with the ids of the
/// client requests in this entry.
#[derive(Debug, Default)]
struct LeaderNames {
    /// The leader that sent the names (request ids), and its term.
    of: Option<(NodeId, Term)>,
    /// Number of the last name received from this leader. A name is a text with the ids of the client requests in one
    /// entry. The leader numbers the names that it collects in order.
    number: u64,
    /// Request ids of entries that this node has not applied yet, each text with the index of its entry.
    waiting: Vec<(Index, String)>,
}

impl LeaderNames {
    /// Prepares for request ids (names) from this leader in this term. Drops all names that came from another leader or
    /// term.
    fn continue_with(&mut self, of: (NodeId, Term)) {
        if self.of != Some(of) {
            *self = Self { of: Some(of), ..Self::default() };
        }
    }

    /// Adds names of log entries: the ids of client requests, each with the index of its entry. The leader numbers
    /// names in order; `first` is the number of the first element of `names`.
    fn add(&mut self, first: u64, names: Vec<(Index, String)>) {
        let missed = first.saturating_sub(self.number.saturating_add(1));
        if missed > 0 && self.number > 0 {
            tracing::debug!(missed, "the leader does not keep the names of the requests in some entries any more");
        }
        self.number = first.saturating_add(names.len() as u64).saturating_sub(1);
        self.waiting.extend(names);
    }

    /// Removes and returns the names (ids of client requests) that belong to entries up to `applied`.
    fn applied(&mut self, applied: Index) -> Vec<(Index, String)> {
        self.waiting.extract_if(.., |(index, _)| *index <= applied).collect()
    }
}

fn logs_requests() -> bool {
    tracing::enabled!(tracing::Level::DEBUG)
}

impl Tasks {
    /// Makes consensus collect the ids of clients' requests while this node leads and the ids are needed: a member has
    /// asked for them recently, or this node itself logs at level `debug`.
    pub(crate) fn keep_names(&self) {
        let is_asked = self.requests.names_asked.get().is_some_and(|at: Instant| at.elapsed() < WANTED_FOR);
        let keeps = self.consensus.member().leads() && (is_asked || logs_requests());
        self.consensus.names().want(keeps);
        self.shared.names_requests.store(keeps, Relaxed);
    }

    /// While this node logs at level `debug`, gets the ids of the client requests in recent entries once a second.
    /// Writes a log line for each of these entries that this node has applied.
    pub(crate) async fn log_requests(self: Rc<Self>) {
        let mut names = LeaderNames::default();
        loop {
            sleep(ASK_EVERY).await;
            if !logs_requests() {
                names = LeaderNames::default();
                continue;
            }
            // New names are requested only when all earlier ones are logged, so their number needs no other limit.
            if names.waiting.is_empty() {
                self.get_names(&mut names).await;
            }
            let Some(applied) = self.consensus.applied() else { continue };
            for (index, request_id) in names.applied(applied) {
                tracing::debug!(index = index.0, request_id, "an entry with commands of these requests is applied");
            }
        }
    }

    async fn get_names(&self, names: &mut LeaderNames) {
        match self.consensus.member().leadership() {
            Leadership::Leader { term } => {
                names.continue_with((self.here(), term));
                let (first, new) = self.consensus.names().after(names.number);
                names.add(first, new);
            }
            Leadership::Follower { leader: Some((leader, info)), term } => {
                names.continue_with((leader, term));
                let link = self.network.peer(leader, &info.address).control;
                let deadline = tokio::time::Instant::now() + ASK_LIMIT;
                let ask = AskRequests { after: names.number };
                // A leader with an earlier build does not know this question.
                if let Ok((first, new)) = link.call::<_, NameList, _>(&ask, deadline).await {
                    names.add(first, new.into_iter().map(|(index, names)| (index, printable(&names))).collect());
                }
            }
            Leadership::Follower { leader: None, .. } => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_wait_until_their_entries_are_applied() {
        let (leader, name) = ((NodeId(1), Term(3)), |index: u64| (Index(index), format!("r{index}")));
        let mut names = LeaderNames::default();
        names.continue_with(leader);
        names.add(1, vec![name(7), name(5), name(9)]);
        assert!(names.applied(Index(4)).is_empty());
        assert_eq!(names.applied(Index(8)), [name(7), name(5)]);
        names.continue_with(leader);
        assert_eq!((names.number, names.waiting.len()), (3, 1));
        names.add(10, vec![name(10)]);
        assert_eq!((names.number, names.applied(Index(10))), (10, vec![name(9), name(10)]));
        names.add(11, vec![]);
        assert_eq!(names.number, 10);
        names.continue_with((NodeId(2), Term(4)));
        assert_eq!(names.number, 0, "another leader has its own numbers");
    }
}
