//! openraft's types on tokio, and how a test's future runs.

use std::future::Future;

use openraft::vote::{RaftLeaderId, leader_id_std::CommittedLeaderId};
use openraft_rt_tokio::TokioRuntime;
pub use thalweg_raft::{Commands, RaftLogId, RaftVote};
use thalweg_replica::NodeInfo;

pub type Types = thalweg_raft::Types<TokioRuntime>;
pub type Store = thalweg_raft::LogStore<TokioRuntime>;
pub type StoredMembership = openraft::StoredMembership<CommittedLeaderId<u64>, u64, NodeInfo>;
pub type Raft = openraft::Raft<Types, crate::applier::Applier>;

pub fn raft_log_id(term: u64, index: u64) -> RaftLogId {
    RaftLogId { leader_id: CommittedLeaderId::new(term), index }
}

pub fn led_by(node: u64, term: u64) -> RaftVote {
    RaftVote { leader_id: RaftLeaderId::new(term, node), committed: true }
}

/// Runs a test's future, and all tasks of its spaces, on this thread.
pub fn run(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, test);
}
