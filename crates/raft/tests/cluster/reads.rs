//! Reads at each level.

use std::time::Duration;

use futures_util::future::join_all;
use thalweg_raft::BarrierError;
use thalweg_types::command::Outcome;

use crate::{
    commands::{put, run},
    node::Cluster,
};

const WITHIN: Duration = Duration::from_secs(5);

#[test]
fn a_linearizable_read_on_any_node_sees_what_was_acknowledged_before() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.wait_all_follow().await;
        for number in 0..30_u64 {
            let writer = cluster.node(number % 3 + 1);
            writer.propose(put("k", &number.to_le_bytes())).await.unwrap();
            for node in cluster.nodes() {
                node.consensus.read_linearizable(WITHIN).await.unwrap();
                assert_eq!(node.get("k"), Some(number.to_le_bytes().to_vec()));
                node.consensus.read_lease(WITHIN).await.unwrap();
                assert_eq!(node.get("k"), Some(number.to_le_bytes().to_vec()));
            }
        }
    });
}

#[test]
fn gathered_reads_share_a_round() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let reads = (0..1_000).map(|_| leader.consensus.read_linearizable(WITHIN));
        let begun = std::time::Instant::now();
        assert!(join_all(reads).await.into_iter().all(|read| read.is_ok()));
        assert!(begun.elapsed() < WITHIN);
    });
}

#[test]
fn an_isolated_leader_refuses_reads_and_a_new_one_serves_them() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let old = cluster.leader().await;
        cluster.network.isolate(old.id);
        let begun = std::time::Instant::now();
        let refused = old.consensus.read_linearizable(Duration::from_millis(400)).await;
        assert!(matches!(refused, Err(BarrierError::NoQuorum)), "{refused:?}");
        let new = cluster.leader_except(&[old.id]).await;
        cluster.write_except(&[old.id], &put("k", b"new")).await;
        // The lease is over, although the old leader has not heard of the new one.
        assert!(begun.elapsed() > crate::node::options().lease());
        let refused = old.consensus.read_lease(Duration::from_millis(300)).await;
        assert!(refused.is_err(), "{refused:?}");
        assert_eq!(old.get("k"), None);
        new.consensus.read_linearizable(WITHIN).await.unwrap();
        assert_eq!(new.get("k"), Some(b"new".to_vec()));
    });
}

/// The timer of the lease stands still during a suspension, in which the others may have elected a leader.
#[test]
fn a_leader_whose_machine_was_suspended_does_not_rely_on_its_lease() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.write(&put("k", b"v")).await;
        let leader = cluster.leader().await;
        leader.consensus.read_lease(WITHIN).await.unwrap();
        cluster.network.isolate(leader.id);
        cluster.clock.suspend(Duration::from_secs(60));
        let refused = leader.consensus.read_lease(Duration::from_millis(100)).await;
        assert!(refused.is_err(), "{refused:?}");
        cluster.network.heal();
        let begun = std::time::Instant::now();
        while let Err(error) = cluster.leader().await.consensus.read_lease(WITHIN).await {
            assert!(begun.elapsed() < crate::node::PATIENCE, "{error}");
        }
    });
}

/// Nobody was elected without its vote, and nobody answers it.
#[test]
fn a_sole_voter_serves_reads_by_lease_after_a_suspension() {
    run(async {
        let cluster = Cluster::founded(1).await;
        cluster.write(&put("k", b"v")).await;
        let leader = cluster.leader().await;
        cluster.clock.suspend(Duration::from_secs(60));
        leader.consensus.read_lease(WITHIN).await.unwrap();
        assert_eq!(leader.get("k"), Some(b"v".to_vec()));
    });
}

#[test]
fn a_read_waits_for_the_revision_that_a_client_has_seen() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let follower = cluster.follower().await;
        for number in 0..20_u64 {
            let written = cluster.write(&put("k", &number.to_le_bytes())).await;
            let Some(Outcome::Committed { revision, .. }) = written.outcome else { panic!("{written:?}") };
            follower.consensus.read_at_least(revision, WITHIN).await.unwrap();
            assert_eq!(follower.get("k"), Some(number.to_le_bytes().to_vec()));
        }
        let applied = follower.machine.applied();
        let never = follower.consensus.read_at_least(applied.revision.next(), Duration::from_millis(50)).await;
        assert_eq!(never, Err(BarrierError::Behind));
    });
}
