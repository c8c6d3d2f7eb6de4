//! Replacing a node of a running cluster: a new node joins as a learner and is promoted, then the old node is removed.
//! A node with damaged files that can still open is repaired in place instead, once. In the product, the command
//! `thalweg cluster repair` and the option `cluster_repair` make such a repair.
//!
//! Owns: the steps, each of which is repeated until it succeeds or its time limit is over. Does not own: the rules of a
//! change of the membership (`raft`).

use std::{future::Future, time::Duration};

use thalweg_raft::ChangeError;
use thalweg_types::{NodeId, info::Removal};

use super::{Cluster, info_of};
use crate::{
    faults::FaultKind,
    node::NodeParts,
    runtime::{OUTSIDE, ProcessId, now, random, record, sleep, spawn, timeout},
    types::SimConsensus,
};

/// Maximum time until a change of the membership must have succeeded.
const PATIENCE: Duration = Duration::from_secs(15);
/// Time limit of one attempt to change the membership.
const ATTEMPT: Duration = Duration::from_secs(2);

impl Cluster {
    /// Begins to replace a node, unless another one is being replaced.
    pub(super) fn replace(&self, old: ProcessId) {
        if self.0.is_replacing.replace(true) {
            return;
        }
        let cluster = self.clone();
        spawn(OUTSIDE, async move {
            cluster.replace_node(old).await;
            cluster.0.is_replacing.set(false);
        });
    }

    /// Repairs or replaces a node that has found its files damaged. Repeats this until it succeeds.
    pub(super) fn replace_broken(&self, old: ProcessId) {
        let cluster = self.clone();
        spawn(OUTSIDE, async move {
            if cluster.repair_in_place(old) {
                cluster.0.broken.borrow_mut().remove(&old);
                return cluster.restart(old).await;
            }
            while cluster.ids().contains(&old) {
                if !cluster.0.is_replacing.replace(true) {
                    cluster.replace_node(old).await;
                    cluster.0.is_replacing.set(false);
                }
                sleep(Duration::from_millis(50)).await;
            }
            cluster.0.broken.borrow_mut().remove(&old);
        });
    }

    /// Replaces the state of a node that is down with a snapshot of another member. Returns false if no member has a
    /// snapshot with all entries of the node's log, or if the node was repaired before.
    fn repair_in_place(&self, id: ProcessId) -> bool {
        let parts = self.parts(id);
        let others = self.ids().into_iter().filter(|other| *other != id);
        let others: Vec<_> = others.filter_map(|other| self.running(other)).collect();
        if others.is_empty() || parts.was_repaired.replace(true) {
            return false;
        }
        let first = random(0..others.len() as u64) as usize;
        for running in others.iter().cycle().skip(first).take(others.len()) {
            match running.snapshot().and_then(|snapshot| parts.install(&snapshot, self.plant())) {
                Ok(index) => {
                    record(id, format!("is repaired in place, up to entry {index}"));
                    return true;
                }
                Err(error) => record(id, format!("cannot be repaired in place: {error}")),
            }
        }
        false
    }

    /// Adds a node to the cluster, without a vote. Returns false if that takes too long.
    pub(super) async fn add_learner(&self, new: ProcessId) -> bool {
        self.until_done(move |leader| async move { leader.add_learner(NodeId(new), info_of(new)).await }).await
    }

    async fn replace_node(&self, old: ProcessId) {
        let new = self.0.nodes.borrow().keys().max().map_or(1, |last| last + 1);
        let parts = NodeParts::new(new, self.0.settings.seed * 100 + new);
        self.0.nodes.borrow_mut().insert(new, parts.into());
        self.start(new).await;
        record(new, format!("joins for node {old}"));
        if !self.add_learner(new).await {
            record(new, "did not become a learner in time");
            return self.crash(new, FaultKind::Kill);
        }
        let is_learner = self.0.learner.get() == Some(old);
        if is_learner {
            self.0.learner.set(Some(new));
            self.0.network.set_learner(Some(new));
        }
        // From here on the node may be a voter, so it must not be removed from the simulation.
        self.0.present.borrow_mut().push(new);
        let promote = move |leader: SimConsensus| async move {
            match leader.promote(NodeId(new)).await {
                Err(ChangeError::AlreadyVotes(_)) => Ok(()),
                done => done,
            }
        };
        if !is_learner && !self.until_done(promote).await {
            return record(new, "did not become a voter in time");
        }
        let remove = move |leader: SimConsensus| async move {
            match leader.remove(NodeId(old), Removal::Safe).await {
                Err(ChangeError::Removed(_)) => Ok(()),
                Err(ChangeError::Leads(_)) => leader.transfer(None).await.and(Err(ChangeError::Leads(NodeId(old)))),
                done => done,
            }
        };
        if !self.until_done(remove).await {
            return record(old, "was not removed in time");
        }
        record(old, format!("is removed for node {new}"));
        self.0.present.borrow_mut().retain(|id| *id != old);
        self.crash(old, FaultKind::Kill);
    }

    /// Asks the leader for a change of the membership again and again, in the leader's process, until one attempt
    /// succeeds. Returns false if none succeeds within [`PATIENCE`]. An attempt without an answer may have succeeded;
    /// repeating a change does no harm.
    async fn until_done<F, T, E>(&self, change: impl Fn(SimConsensus) -> F) -> bool
    where
        F: Future<Output = Result<T, E>> + 'static,
    {
        let end = now() + PATIENCE;
        while now() < end {
            if let Some((leader, consensus)) = self.leader().and_then(|id| Some((id, self.0.network.node(id)?))) {
                let attempt = change(consensus);
                let (sender, receiver) = tokio::sync::oneshot::channel();
                spawn(leader, async move {
                    // The waiting task may have given up the attempt.
                    let _ = sender.send(attempt.await.is_ok());
                });
                if matches!(timeout(ATTEMPT, receiver).await, Ok(Ok(true))) {
                    return true;
                }
            }
            sleep(Duration::from_millis(100)).await;
        }
        false
    }
}
