//! Writes on any node, restarts, and records of nodes alone.

use std::time::Duration;

use futures_util::future::{FutureExt, join, join_all};
use thalweg_disk::sim::{Errno, Fault, Operation};
use thalweg_log::Purpose;
use thalweg_replica::{Origin, ProposeError, ReplicationStage, Wake};
use thalweg_state::machine::LocalOutcome;
use thalweg_types::{
    Classified, Durability, Index, Offset, StreamId,
    command::{MoveTarget, Outcome, StreamConfig, encode_append, encode_create_stream, encode_delete_stream},
    record::RecordBatch,
};

use crate::{
    commands::{framed, put, run},
    node::{Cluster, Settings, options},
};

/// A value length that keeps the value in the log.
const LARGE: usize = 10_000;
const MINUTE: Duration = Duration::from_secs(60);

#[test]
fn writes_on_all_nodes_reach_all_nodes_in_one_order() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.wait_all_follow().await;
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
fn the_stages_of_writes_are_counted_where_they_happen() {
    run(async {
        let cluster = Cluster::founded(3).await;
        for number in 0..20 {
            cluster.write(&put(&format!("{number}"), b"v")).await;
        }
        cluster.wait_equal(Index(1)).await;
        // Another node may have become the leader meanwhile, so the stages of all nodes are added.
        let stages: Vec<_> = cluster.nodes().iter().map(|node| node.member.stats().replication_stages).collect();
        let count = |stage: ReplicationStage| stages.iter().map(|of| of[stage as usize].count()).sum::<u64>();
        let of_commands = &ReplicationStage::ALL[..6];
        assert!(of_commands.iter().all(|stage| count(*stage) == count(ReplicationStage::Queue)), "{stages:?}");
        assert!(count(ReplicationStage::Queue) >= 20, "{stages:?}");
        for stage in [ReplicationStage::Sync, ReplicationStage::FollowerWrite, ReplicationStage::FollowerSync] {
            assert!(count(stage) > 0, "{stage:?}: {stages:?}");
        }
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
            cluster.write(&put(&format!("before {round}"), &[1; LARGE])).await;
            cluster.lose_power(victim, round).await;
            cluster.write(&put(&format!("without {round}"), b"v")).await;
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
            cluster.write(&put(&format!("{number}"), &[2; 100])).await;
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
        cluster.write(&put("after", b"v")).await;
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
        let cluster = Cluster::impatient(3, Duration::from_secs(1)).await;
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
        cluster.write_except(&[leader.id], &put("together", b"v")).await;
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
            cluster.write(&put(&format!("{number}"), b"v")).await;
        }
        cluster.wait_equal(Index(30)).await;
        leader.machine.backend().flush().unwrap();
        let applied = leader.machine.applied();
        let member = leader.member.clone();
        let noted = tokio::task::spawn_blocking(move || member.note_purged(applied.term, Index(20))).await.unwrap();
        noted.unwrap();
        assert_eq!(leader.machine.purged().unwrap().map(|id| id.index), Some(Index(20)));
        assert_eq!(leader.consensus.reader().purged().map(|id| id.index), Some(Index(20)));
        cluster.write(&put("after", b"v")).await;
        cluster.lose_power(leader.id, 9).await;
        cluster.start(leader.id).await;
        cluster.wait_equal(applied.index).await;
    });
}

/// A node that lags finds a stream by its name although that stream was deleted. No id is used twice, so the append
/// cannot reach the stream that has the name now.
#[test]
fn an_append_to_a_former_stream_of_a_name_is_refused() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let (leader, node) = (cluster.leader().await, cluster.follower().await);
        let create = framed(|out| encode_create_stream(out, "s", &StreamConfig::default()));
        cluster.write(&create).await;
        let former = cluster.wait("the stream", || node.machine.stream_id("s")).await;
        cluster.network.cut(leader.id, node.id);
        let delete = framed(|out| {
            encode_delete_stream(out, former);
            Ok(())
        });
        cluster.write(&delete).await;
        cluster.write(&create).await;
        assert_eq!(node.machine.stream_id("s"), Some(former), "the node has not applied the commands");
        let mut batch = RecordBatch::new();
        batch.push_payload(b"record").unwrap();
        let append = framed(|out| {
            encode_append(out, former, None, &batch);
            Ok(())
        });
        let appended = node.member.propose_async(append, Durability::Disk, Purpose::Data).unwrap();
        cluster.network.heal();
        let appended = appended.await.unwrap();
        assert_eq!(appended.outcome, Some(Outcome::NoSuchStream(former)));
        cluster.wait_equal(leader.machine.applied().index).await;
        for node in cluster.nodes() {
            let now = node.machine.stream_id("s").unwrap();
            assert_ne!(now, former);
            assert_eq!(node.machine.stream(now).unwrap().next, Offset(0));
        }
    });
}

#[test]
fn an_unknown_outcome_says_so_and_can_be_retried() {
    run(async {
        let cluster = Cluster::impatient(3, Duration::from_millis(300)).await;
        let leader = cluster.leader().await;
        cluster.network.isolate(leader.id);
        let written = leader.propose(put("k", b"v")).await;
        let error = written.unwrap_err();
        assert!(matches!(error, ProposeError::OutcomeUnknown { .. }), "{error}");
        assert_eq!(error.code(), "outcome_unknown");
        assert_eq!(leader.get("k"), None);
    });
}

/// The other proposers of the entry keep waiting.
#[test]
fn a_write_ends_at_the_deadline_of_its_request() {
    run(async {
        let cluster = Cluster::impatient(3, Duration::from_secs(600)).await;
        let leader = cluster.leader().await;
        cluster.network.isolate(leader.id);
        let propose = |max_wait| {
            let origin = Origin { max_wait, ..Origin::default() };
            let (level, purpose) = (Durability::Disk, Purpose::Data);
            leader.member.propose_async_from(origin, put("k", b"v"), level, purpose, Wake::Now).unwrap()
        };
        let (short, long) = (propose(Some(Duration::from_millis(200))), propose(None));
        let error = short.await.unwrap_err();
        assert!(matches!(error, ProposeError::OutcomeUnknown { .. }), "{error}");
        assert!(long.now_or_never().is_none(), "it waits up to its own deadline");
    });
}

/// A follower that dials anew for each batch cannot make the leader hold more undecided bytes than its bound.
#[test]
fn bytes_of_a_forwarded_entry_count_until_it_is_decided_although_its_sender_is_gone() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let payload: bytes::Bytes = put("k", &[1; LARGE]).bytes().to_vec().into();
        let in_flight = || leader.consensus.status().in_flight_bytes;
        cluster.wait("nothing in flight", || (in_flight() == 0).then_some(())).await;
        cluster.network.isolate(leader.id);
        let last = leader.consensus.reader().last();
        let mut forwarded = Box::pin(leader.consensus.propose_forwarded(payload.clone(), Purpose::Data, MINUTE));
        cluster
            .wait("the write of the entry", || {
                assert!(forwarded.as_mut().now_or_never().is_none(), "no majority has it");
                (leader.consensus.reader().last() > last).then_some(())
            })
            .await;
        drop(forwarded);
        assert_eq!(in_flight(), payload.len() as u64);
        cluster.network.heal();
        cluster.wait("the decision", || (in_flight() == 0).then_some(())).await;
    });
}

/// A peer that is faulty, or has larger segments, forwards commands that no segment of the leader can hold.
#[test]
fn forwarded_commands_that_fit_in_no_segment_are_refused_and_consensus_goes_on() {
    run(async {
        let cluster = Cluster::founded(1).await;
        let leader = cluster.leader().await;
        let room = leader.log.max_batch_bytes() as usize - 48 - 40;
        for (bytes, is_refused) in [(room - 8, false), (room, true), (room + 1, true), (17 << 20, true)] {
            let forwarded = leader.consensus.propose_forwarded(vec![0xff; bytes].into(), Purpose::Data, MINUTE).await;
            match &forwarded {
                Err(error @ ProposeError::TooLarge { max, .. }) if is_refused => {
                    assert_eq!((error.code(), *max as usize), ("too_large", room - 8));
                }
                // The bytes are no commands, which the state notes as the outcome.
                Ok(_) if !is_refused => {}
                _ => panic!("{bytes}: {forwarded:?}"),
            }
        }
        cluster.write(&put("after", b"v")).await;
    });
}

#[test]
fn consensus_stops_while_a_write_waits_for_room_on_a_full_disk() {
    run(async {
        let cluster = Cluster::founded(1).await;
        let leader = cluster.leader().await;
        let disk = cluster.disks.borrow()[&1].clone();
        disk.fail(Fault::new(Operation::Create, 1, Errno::NoSpace).on_path(".tmp").for_good());
        // Fills the segments that are prepared; then a write waits.
        for number in 0.. {
            assert!(number < 100, "the disk is full");
            let write = leader.propose(put(&format!("{number}"), &[1; 500_000]));
            match tokio::time::timeout(Duration::from_secs(2), write).await {
                Ok(written) => _ = written.unwrap(),
                Err(_) => break,
            }
        }
        tokio::time::timeout(MINUTE, leader.consensus.stop()).await.expect("consensus ends");
        let refused = leader.propose(put("k", b"v")).await;
        assert!(refused.is_err(), "{refused:?}");
    });
}

#[test]
fn a_follower_that_cannot_forward_names_the_leader() {
    run(async {
        let cluster = Cluster::founded_with(3, Settings { forwards: false, ..Settings::default() }).await;
        let follower = cluster.follower().await;
        let refused = follower.propose(put("k", b"v")).await;
        let Err(ProposeError::NotLeader { leader: Some((leader, address)) }) = refused else { panic!("{refused:?}") };
        assert_eq!(address, format!("node{}:1", leader.0));
        assert!(cluster.node(leader.0).propose(put("k", b"v")).await.is_ok());
    });
}

#[test]
fn uncommitted_bytes_are_bounded_and_the_queue_rejects_the_rest() {
    run(async {
        const EACH: usize = 10_000;
        const MOST: u64 = 50_000;
        let consensus = thalweg_raft::ConsensusOptions { max_in_flight_bytes: MOST, ..options() };
        let cluster = Cluster::founded_with(3, Settings { consensus, ..Settings::default() }).await;
        let leader = cluster.leader().await;
        cluster.network.isolate(leader.id);
        let mut waiting = Vec::new();
        let (mut refused, mut most) = (0, 0);
        for number in 0..300 {
            let command = put(&format!("{number}"), &[1; EACH]);
            match leader.member.propose_async(command, Durability::Disk, Purpose::Data) {
                Ok(proposal) => waiting.push(proposal),
                Err(error) => {
                    assert!(matches!(error, ProposeError::Overloaded { .. }), "{error}");
                    refused += 1;
                }
            }
            // Lets consensus take a command before the next one comes.
            tokio::task::yield_now().await;
            most = most.max(leader.consensus.status().in_flight_bytes);
        }
        assert!(refused > 100, "the queue has room for about 100 commands: {refused}");
        assert!((MOST..MOST + (4 << 20)).contains(&most), "{most}");
        assert!(leader.consensus.status().in_flight_bytes >= MOST);
        cluster.network.heal();
        for outcome in join_all(waiting).await {
            match outcome {
                Ok(_) | Err(ProposeError::OutcomeUnknown { .. } | ProposeError::NoLeader) => {}
                Err(other) => panic!("{other}"),
            }
        }
        cluster.write(&put("after", b"v")).await;
        cluster.wait("nothing in flight", || (leader.consensus.status().in_flight_bytes == 0).then_some(())).await;
    });
}
