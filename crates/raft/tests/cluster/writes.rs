//! Writes on any node, restarts, and records of nodes alone.

use std::time::Duration;

use futures_util::future::{join, join_all};
use thalweg_log::Purpose;
use thalweg_replica::ProposeError;
use thalweg_state::machine::LocalOutcome;
use thalweg_types::{
    Classified, Durability, Index, StreamId,
    command::{MoveTarget, Outcome},
};

use crate::{
    commands::{put, run},
    node::Cluster,
};

/// A value length that keeps the value in the log.
const LARGE: usize = 10_000;

#[test]
fn writes_on_all_nodes_reach_all_nodes_in_one_order() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.follower().await;
        let nodes = cluster.nodes();
        for round in 0..20_usize {
            let value = if round % 5 == 0 { vec![round as u8; LARGE] } else { vec![round as u8; 10] };
            let writes = nodes.iter().flat_map(|node| {
                (0..5).map(|number| node.propose(put(&format!("{} {round} {number}", node.id), &value)))
            });
            for written in join_all(writes).await {
                let written = written.unwrap();
                assert_eq!(written.durability, Durability::Quorum);
                assert!(matches!(written.outcome, Some(Outcome::Committed { .. })));
            }
            for node in &nodes {
                assert_eq!(
                    node.get(&format!("{} {round} 4", node.id)),
                    Some(value.clone()),
                    "a node reads its own writes"
                );
            }
        }
        cluster.wait_equal(Index(1)).await;
        for node in &nodes {
            assert_eq!(node.get("2 10 3"), Some(vec![10; LARGE]));
        }
        let stats = cluster.leader().await.member.stats();
        assert!(stats.commands >= 300 && stats.entries < 300, "commands that wait together share an entry: {stats:?}");
    });
}

#[test]
fn a_write_at_level_none_is_acknowledged_when_it_is_queued() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let written =
            leader.member.propose_async(put("k", b"v"), Durability::None, Purpose::Data).unwrap().await.unwrap();
        assert_eq!((written.durability, written.outcome), (Durability::None, None));
        cluster.wait("the write", || leader.get("k")).await;
    });
}

#[test]
fn every_node_restarts_from_its_directory_after_a_loss_of_power() {
    run(async {
        let cluster = Cluster::founded(3).await;
        for round in 0..6_u64 {
            let victim = round % 3 + 1;
            cluster.leader().await.propose(put(&format!("before {round}"), &[1; LARGE])).await.unwrap();
            cluster.lose_power(victim, round).await;
            let leader = cluster.leader_except(&[victim]).await;
            // A node that has just lost its leader can still refuse.
            let write = || leader.propose(put(&format!("without {round}"), b"v"));
            let mut written = write().await;
            while let Err(ProposeError::NoLeader) = written {
                tokio::time::sleep(Duration::from_millis(10)).await;
                written = write().await;
            }
            written.unwrap();
            cluster.start(victim).await;
            cluster.wait_equal(Index(1)).await;
        }
        for round in 0..6 {
            for node in cluster.nodes() {
                assert_eq!(node.get(&format!("before {round}")), Some(vec![1; LARGE]));
                assert_eq!(node.get(&format!("without {round}")), Some(b"v".to_vec()));
            }
        }
    });
}

#[test]
fn all_nodes_restart_together() {
    run(async {
        let cluster = Cluster::founded(3).await;
        for number in 0..50 {
            cluster.leader().await.propose(put(&format!("{number}"), &[2; 100])).await.unwrap();
        }
        let applied = cluster.leader().await.machine.applied();
        for id in 1..=3 {
            cluster.lose_power(id, id).await;
        }
        for id in 1..=3 {
            let node = cluster.start(id).await;
            assert_eq!(node.machine.applied().index, Index::ZERO, "the memory backend has no checkpoint");
        }
        cluster.wait_equal(applied.index).await;
        cluster.leader().await.propose(put("after", b"v")).await.unwrap();
        let time = cluster.leader().await.machine.applied().time;
        assert!(time >= applied.time, "space time never goes back");
        assert_eq!(cluster.node(1).get("49"), Some(vec![2; 100]));
    });
}

/// A move that changes nothing: it reclaims the space of a stream that does not exist.
fn idle_move() -> Vec<u8> {
    MoveTarget::Reclaimed { stream: StreamId(1_000), max: 1 }.encode_alone()
}

#[test]
fn moves_are_applied_in_log_order_and_wait_for_the_entries_before_them() {
    run(async {
        let cluster = Cluster::founded_with(3, Duration::from_secs(1)).await;
        let node = cluster.follower().await;
        relocate_on(&node).await.unwrap();
        let leader = cluster.leader().await;
        for number in 0..20 {
            let (written, moved) = join(leader.propose(put(&format!("{number}"), b"v")), relocate_on(&leader)).await;
            moved.unwrap();
            written.unwrap();
        }
        // Alone, the leader appends an entry that nobody acknowledges. A move behind it waits for nothing.
        cluster.network.isolate(leader.id);
        let (written, moved) = join(leader.propose(put("alone", b"v")), async {
            let end = leader.log.end();
            cluster.wait("the entry", || (leader.log.end() > end).then_some(())).await;
            relocate_on(&leader).await
        })
        .await;
        assert!(matches!(moved, Err(ProposeError::Behind)), "{moved:?}");
        assert!(matches!(written, Err(ProposeError::OutcomeUnknown { .. })), "{written:?}");
        let next = cluster.leader_except(&[leader.id]).await;
        next.propose(put("together", b"v")).await.unwrap();
        cluster.network.heal();
        cluster.wait_equal(next.machine.applied().index).await;
        assert_eq!(leader.get("alone"), None, "the entry was truncated and never shown");
        relocate_on(&leader).await.unwrap();
        cluster.lose_power(leader.id, 1).await;
        cluster.start(leader.id).await;
        cluster.wait_equal(next.machine.applied().index).await;
    });
}

async fn relocate_on(node: &crate::node::Node) -> Result<LocalOutcome, ProposeError> {
    let member = node.member.clone();
    tokio::task::spawn_blocking(move || member.relocate(&idle_move())).await.unwrap()
}

#[test]
fn a_purge_is_noted_in_the_log_and_in_the_state() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        for number in 0..30 {
            leader.propose(put(&format!("{number}"), b"v")).await.unwrap();
        }
        let applied = leader.machine.applied();
        let member = leader.member.clone();
        let noted = tokio::task::spawn_blocking(move || member.note_purged(applied.term, Index(20))).await.unwrap();
        noted.unwrap();
        assert_eq!(leader.machine.purged().unwrap().map(|id| id.index), Some(Index(20)));
        assert_eq!(leader.consensus.reader().purged().map(|id| id.index), Some(Index(20)));
        leader.propose(put("after", b"v")).await.unwrap();
        cluster.lose_power(leader.id, 9).await;
        cluster.start(leader.id).await;
        cluster.wait_equal(applied.index).await;
    });
}

#[test]
fn an_unknown_outcome_says_so_and_can_be_retried() {
    run(async {
        let cluster = Cluster::founded_with(3, Duration::from_millis(300)).await;
        let leader = cluster.leader().await;
        cluster.network.isolate(leader.id);
        let written = leader.propose(put("k", b"v")).await;
        let error = written.unwrap_err();
        assert!(matches!(error, ProposeError::OutcomeUnknown { .. }), "{error}");
        assert_eq!(error.code(), "outcome_unknown");
        assert_eq!(leader.get("k"), None);
    });
}
