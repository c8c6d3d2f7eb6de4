//! Elections without an election timeout: they replace a leader that does not hear this node, or repeat a split vote.
//!
//! Owns: the time at which a node asks for votes in these two cases. Does not own: the rule that decides if a leader is
//! deaf ([`Hearing`](crate::Hearing)), or all other elections and their rules (openraft).
//!
//! **Deaf leader.** A follower whose leader falls silent first waits for the end of the lease that it has given. Then
//! it waits for an election timeout, because the leader may only be slow. If the leader is deaf, a follower skips the
//! election timeout: it has already waited that long for the leader's answers before it began to ignore the leader. It
//! asks for votes as soon as its own lease ends:
//!
//! ```text
//! last append accepted ── lease ──> pre-vote, repeated after each pause ── election timeout ──> elections of openraft
//! ```
//! A pre-vote changes nothing on any node unless a majority would elect the asking node. Followers that the leader
//! still hears refuse, because the leader keeps renewing their leases. If the leader hears this node again, it renews
//! this node's lease too, and no election follows.
//!
//! **Split votes.** If a candidate receives a request for its vote in its own term, the votes are split. The candidate
//! asks again after a pause, but only once in an election timeout, because over slow links the votes could be split
//! again.
//!
//! Two nodes that ask at the same moment split the votes. So the pauses differ between nodes, and a node that has just
//! promised its vote to another node does not ask.

use std::time::Duration;

use openraft::{
    async_runtime::{AsyncRuntime, WatchReceiver},
    raft::VoteResponse,
    type_config::TypeConfigExt,
};
use thalweg_types::NodeId;

use crate::{
    consensus::Consensus,
    election_state::PAUSE_MICROS,
    types::{RaftVote, Types, detach},
};

impl<Rt: AsyncRuntime> Consensus<Rt> {
    /// Notes that this node has ignored an append of a leader that does not receive this node's messages. This node has
    /// given the leader a lease, and asks the other members for their votes as soon as the lease ends.
    pub fn ignored_deaf(&self, leader: NodeId) {
        let vote = self.vote_of_this_node();
        let is_followed = vote.committed && vote.leader_id.voted_for == leader.0;
        if !is_followed || self.0.elections.is_replacing.replace(true) {
            return;
        }
        let consensus = self.clone();
        detach::<Rt>(async move {
            consensus.replace_deaf(&vote).await;
            consensus.0.elections.is_replacing.set(false);
        });
    }

    /// Repeatedly asks the other voters to elect this node, instead of the leader whose vote is `ignored` and which
    /// this node ignores. Ends when this node has accepted another vote, at the latest after an election timeout.
    async fn replace_deaf(&self, ignored: &RaftVote) {
        let options = &self.0.options;
        let now = Types::<Rt>::now();
        // This node may have accepted its last append from the leader up to one heartbeat ago.
        let lease_ends = (now + (options.lease() - options.heartbeat)).max(self.0.trusts_itself_at);
        let given_up = lease_ends + options.heartbeat + options.max_election;
        Types::<Rt>::sleep_until(lease_ends).await;
        while self.vote_of_this_node() == *ignored && Types::<Rt>::now() < given_up && !self.0.is_stopped.get() {
            // While the lease lasts, openraft sends no requests for votes.
            self.ask_for_votes().await;
            self.pause().await;
        }
    }

    /// Notes this node's answer to a candidate's request for its vote. If this node is a candidate of the same term,
    /// the votes are split, and it asks again after a pause.
    pub(crate) fn note_vote(&self, wanted: &RaftVote, answer: &VoteResponse<Types<Rt>>) {
        let own = answer.vote;
        let stands = !own.committed && own.leader_id.voted_for == self.0.member.node().0;
        if answer.vote_granted || !stands || own.leader_id.term != wanted.leader_id.term {
            return;
        }
        let (now, elections) = (Types::<Rt>::now(), &self.0.elections);
        if elections.split_at.get().is_some_and(|at| at + self.0.options.max_election > now) {
            return;
        }
        elections.split_at.set(Some(now));
        let consensus = self.clone();
        detach::<Rt>(async move {
            consensus.pause().await;
            if consensus.vote_of_this_node() == own && !consensus.0.is_stopped.get() {
                consensus.ask_for_votes().await;
            }
        });
    }

    /// Notes this node's answer to a pre-vote request. After it has granted one, this node does not ask for votes
    /// itself for a while.
    pub(crate) fn note_pre_vote(&self, answer: &VoteResponse<Types<Rt>>) {
        if answer.vote_granted {
            self.0.elections.granted_at.set(Some(Types::<Rt>::now()));
        }
    }

    /// Asks all voters in a pre-vote if they would vote for this node. If a majority agrees, openraft holds the
    /// election. Asks nobody if this node has just promised its vote to another node.
    async fn ask_for_votes(&self) {
        let longest = Duration::from_micros(PAUSE_MICROS.end);
        let has_just_granted = self.0.elections.granted_at.get().is_some_and(|at| at + longest > Types::<Rt>::now());
        if !has_just_granted {
            // An error means that consensus has ended.
            let _ = self.0.raft.trigger().elect(true).await;
        }
    }

    async fn pause(&self) {
        let micros = self.0.elections.next_pause_micros(self.0.member.node());
        Types::<Rt>::sleep(Duration::from_micros(micros)).await;
    }

    /// Returns the vote that this node cast or accepted last, as openraft holds it in memory.
    pub(crate) fn vote_of_this_node(&self) -> RaftVote {
        self.0.raft.server_metrics().borrow_watched().vote
    }
}
