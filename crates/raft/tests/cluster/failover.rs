//! Loss of the leader, with proposals in flight.

use std::{io::IoSlice, time::Duration};

use futures_util::future::{join, join_all};
use thalweg_disk::sim::{Errno, Fault, Operation};
use thalweg_log::{AppendError, Draft, Purpose, RecordKind};
use thalweg_replica::{Leadership, NodeInfo, Origin, ProposeError, Wake};
use thalweg_types::{Durability, Index, NodeId, SpaceId, SpaceTime, Term, command::Outcome};

use crate::{
    commands::{put, run},
    node::{Cluster, Node, Settings, options},
};

#[test]
fn proposals_in_flight_end_typed_when_the_leader_is_isolated() {
    run(async {
        let cluster = Cluster::impatient(3, Duration::from_secs(3)).await;
        let old = cluster.leader().await;
        cluster.network.isolate(old.id);
        let lost = (0..10).map(|number| {
            let old = old.clone();
            async move { old.propose(put(&format!("lost {number}"), b"v")).await }
        });
        let lost = tokio::task::spawn_local(join_all(lost));
        let new = cluster.leader_except(&[old.id]).await;
        cluster.write_except(&[old.id], &put("new", b"v")).await;
        cluster.network.heal();
        for outcome in lost.await.unwrap() {
            match outcome {
                Err(ProposeError::OutcomeUnknown { .. } | ProposeError::NotLeader { .. } | ProposeError::NoLeader) => {}
                // Rejected before it was written, and then forwarded to the new leader.
                Ok(written) => assert!(matches!(written.outcome, Some(Outcome::Committed { .. }))),
                Err(other) => panic!("{other}"),
            }
        }
        cluster.wait_equal(new.machine.applied().index).await;
        let leadership = cluster.node(old.id).member.leadership();
        assert!(matches!(leadership, Leadership::Follower { leader: Some((id, _)), .. } if id.0 == new.id));
    });
}

#[test]
fn a_forwarded_write_ends_soon_after_its_leader_was_replaced() {
    run(async {
        const DEADLINE: Duration = Duration::from_secs(60);
        let cluster = Cluster::impatient(3, DEADLINE).await;
        let (old, follower) = (cluster.leader().await, cluster.follower().await);
        // The leader gets the command, and nobody gets its entry. Then the others lose it.
        for other in cluster.nodes().iter().filter(|node| node.id != old.id) {
            cluster.network.cut(old.id, other.id);
        }
        let forwarding = follower.clone();
        let forwarded = tokio::task::spawn_local(async move { forwarding.propose(put("k", b"v")).await });
        cluster.wait("the command", || (old.consensus.status().in_flight_bytes > 0).then_some(())).await;
        cluster.network.isolate(old.id);
        cluster.leader_except(&[old.id]).await;
        let begun = std::time::Instant::now();
        let outcome = forwarded.await.unwrap();
        assert!(matches!(outcome, Err(ProposeError::OutcomeUnknown { .. })), "{outcome:?}");
        assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
        // The former leader has nothing in flight, either.
        cluster.network.heal();
        cluster.write_except(&[old.id], &put("k", b"w")).await;
        cluster.wait("nothing in flight", || (old.consensus.status().in_flight_bytes == 0).then_some(())).await;
        assert!(begun.elapsed() < DEADLINE / 2, "{:?}", begun.elapsed());
    });
}

#[test]
fn a_write_that_its_former_leader_refuses_goes_to_the_next_one() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let (old, follower) = (cluster.leader().await, cluster.follower().await);
        let next = cluster.nodes().into_iter().find(|node| ![old.id, follower.id].contains(&node.id)).unwrap();
        // The follower does not learn that the leadership moves.
        cluster.network.cut(next.id, follower.id);
        transfer(&old, &next).await;
        let forwarding = follower.clone();
        let forwarded = tokio::task::spawn_local(async move { forwarding.propose(put("k", b"v")).await });
        cluster.wait("the write on the next leader", || next.get("k")).await;
        cluster.network.heal();
        let written = forwarded.await.unwrap().unwrap();
        assert!(matches!(written.outcome, Some(Outcome::Committed { .. })), "{written:?}");
    });
}

/// Moves the leadership to another node. Tries again on a busy machine, on which the last answer of that node can be
/// too old.
async fn transfer(leader: &Node, to: &Node) {
    let begun = std::time::Instant::now();
    while let Err(error) = leader.consensus.transfer(Some(NodeId(to.id))).await {
        if !leader.member.leads() {
            return;
        }
        assert!(begun.elapsed() < crate::node::PATIENCE, "{error}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Moves the leadership to another node, while the former leader waits for its fsync of the new vote and still believes
/// that it leads. Returns the former leader, the new one, and a write that the former leader has taken and will refuse.
/// If `is_bound` is true, the write requires the former leader's term.
async fn replaced_with_a_write(cluster: &Cluster, is_bound: bool) -> (Node, Node, thalweg_replica::Proposal) {
    cluster.wait_equal(Index(1)).await;
    let old = cluster.leader().await;
    let next = cluster.nodes().into_iter().find(|node| node.id != old.id).unwrap();
    let is_answered = || {
        let answered = old.consensus.status().members.get(&NodeId(next.id)).is_some_and(|it| it.last_answer.is_some());
        answered.then_some(())
    };
    cluster.wait("an answer of the next leader", is_answered).await;
    old.syncs.hold();
    let (transferring, to) = (old.clone(), next.clone());
    // Returns when the former leader knows the new one.
    tokio::task::spawn_local(async move { transfer(&transferring, &to).await });
    cluster.wait("the next leader", || next.member.leads().then_some(())).await;
    // The new leader has sent its first entry to all nodes.
    next.propose(put("other", b"v")).await.unwrap();
    assert!(old.member.leads(), "it does not know that it was replaced");
    let term = old.member.leadership().led_term().filter(|_| is_bound);
    let origin = Origin { term, ..Origin::default() };
    let (level, purpose) = (Durability::Disk, Purpose::Data);
    let write = old.member.propose_async_from(origin, put("k", b"first"), level, purpose, Wake::Now).unwrap();
    cluster.wait("the write to be taken", || (old.consensus.status().in_flight_bytes > 0).then_some(())).await;
    (old, next, write)
}

/// Settings with which a leader that does not sync stays the leader for some seconds, as long as no other one is
/// elected.
fn patient() -> Settings {
    let consensus = thalweg_raft::ConsensusOptions {
        min_election: Duration::from_secs(3),
        max_election: Duration::from_secs(4),
        max_sync_age: Duration::from_secs(60),
        ..options()
    };
    Settings { consensus, ..Settings::default() }
}

#[test]
fn a_write_that_a_former_leader_refuses_itself_goes_to_the_next_one() {
    run(async {
        let cluster = Cluster::founded_with(3, patient()).await;
        let (old, next, write) = replaced_with_a_write(&cluster, false).await;
        old.syncs.release();
        assert!(matches!(write.await.unwrap().outcome, Some(Outcome::Committed { .. })));
        assert_eq!(next.get("k"), Some(b"first".to_vec()));
    });
}

#[test]
fn a_write_for_the_term_of_a_former_leader_goes_to_no_other() {
    run(async {
        let cluster = Cluster::founded_with(3, patient()).await;
        let (old, next, write) = replaced_with_a_write(&cluster, true).await;
        old.syncs.release();
        let refused = write.await;
        assert!(matches!(refused, Err(ProposeError::NotLeader { .. } | ProposeError::NoLeader)), "{refused:?}");
        cluster.write(&put("after", b"v")).await;
        cluster.wait_equal(next.machine.applied().index).await;
        assert_eq!(next.get("k"), None);
    });
}

/// The member believes to lead in another term than consensus, as it does for a moment after this node was elected
/// again.
#[test]
fn an_entry_is_written_only_in_the_term_in_which_its_commands_were_checked() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let begun = std::time::Instant::now();
        for attempt in 0_u64.. {
            assert!(begun.elapsed() < crate::node::PATIENCE);
            let leader = cluster.leader().await;
            let Some(Term(term)) = leader.member.leadership().led_term() else { continue };
            let before = leader.consensus.reader().last();
            leader.member.set_leadership(Leadership::Leader { term: Term(term - 1) });
            let key = format!("k{attempt}");
            let written = leader.propose(put(&key, b"v")).await;
            // A tick can correct the member's belief before the write is taken.
            if let Err(refused) = written {
                assert!(matches!(refused, ProposeError::NoLeader), "{refused}");
                assert_eq!(leader.consensus.reader().last(), before, "nothing was written");
                cluster.wait("a tick", || (leader.member.leadership().term() == Term(term)).then_some(())).await;
                leader.propose(put("after", b"v")).await.unwrap();
                return assert_eq!(leader.get(&key), None);
            }
        }
    });
}

#[test]
fn a_write_that_a_former_leader_refuses_does_not_follow_a_later_one() {
    run(async {
        let cluster = Cluster::founded_with(3, patient()).await;
        let (old, next, first) = replaced_with_a_write(&cluster, false).await;
        // The member learns of the new leader before the first write is refused. A tick takes that back, so the second
        // write follows a tick, and precedes the next one.
        let leader = Some((NodeId(next.id), NodeInfo::at(format!("node{}:1", next.id))));
        let follows = Leadership::Follower { leader, term: next.member.leadership().term() };
        old.member.set_leadership(follows.clone());
        cluster.wait("a tick", || old.member.leads().then_some(())).await;
        old.member.set_leadership(follows);
        let second = old.member.propose_async(put("k", b"second"), Durability::Disk, Purpose::Data).unwrap();
        cluster.wait("the second write", || (next.get("k")? == b"second").then_some(())).await;
        old.syncs.release();
        let (first, second) = join(first, second).await;
        assert!(matches!(first, Err(ProposeError::NotLeader { .. })), "{first:?}");
        assert!(matches!(second.unwrap().outcome, Some(Outcome::Committed { .. })));
        cluster.wait_equal(next.machine.applied().index).await;
        for node in cluster.nodes() {
            assert_eq!(node.get("k"), Some(b"second".to_vec()), "node {}", node.id);
        }
    });
}

#[test]
fn the_cluster_goes_on_after_each_leader_is_lost() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let mut time = cluster.leader().await.machine.applied().time;
        for round in 0..4_u64 {
            let leader = cluster.leader().await;
            cluster.write(&put("k", &round.to_le_bytes())).await;
            cluster.lose_power(leader.id, round).await;
            cluster.write(&put("k2", &round.to_le_bytes())).await;
            let new = cluster.leader().await;
            assert_eq!(new.get("k"), Some(round.to_le_bytes().to_vec()), "acknowledged writes are kept");
            let now = new.machine.applied().time;
            assert!(now > time, "space time goes on");
            time = now;
            cluster.start(leader.id).await;
            cluster.wait_equal(Index(1)).await;
        }
    });
}

#[test]
fn leadership_is_transferred_without_a_loss() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.wait_all_follow().await;
        for round in 0..3 {
            let leader = cluster.leader().await;
            cluster.write(&put("k", &[round])).await;
            let to = cluster.wait("a follower that is up to date", || {
                let status = leader.consensus.status();
                let here = thalweg_types::NodeId(leader.id);
                let is_fit = |member: &thalweg_raft::MemberStatus| {
                    member.matched == status.last.map(|last| last.index) && member.last_answer.is_some()
                };
                status.members.iter().find(|(node, member)| **node != here && is_fit(member)).map(|(node, _)| *node)
            });
            let to = to.await;
            let new = cluster.node(to.0);
            // At its election, the new leader has votes, and no acknowledgement yet.
            let elected = async {
                while !new.member.leads() {
                    tokio::task::yield_now().await;
                }
                new.propose(put("k", &[round, round])).await.unwrap();
            };
            let (transferred, ()) = join(leader.consensus.transfer(Some(to)), elected).await;
            assert_eq!(transferred.unwrap(), to);
            leader.propose(put("k", &[round, round, round])).await.unwrap();
            assert_eq!(leader.get("k"), Some(vec![round; 3]), "the old leader forwards");
        }
    });
}

#[test]
fn a_majority_is_needed() {
    run(async {
        let cluster = Cluster::impatient(3, Duration::from_millis(500)).await;
        let leader = cluster.leader().await;
        let others: Vec<u64> = (1..=3).filter(|id| *id != leader.id).collect();
        for id in &others {
            cluster.lose_power(*id, *id).await;
        }
        let written = leader.propose(put("k", b"v")).await;
        assert!(written.is_err());
        assert_eq!(leader.get("k"), None, "nothing is shown that is not committed");
        cluster.start(others[0]).await;
        cluster.write(&put("k2", b"v")).await;
    });
}

#[test]
fn a_leader_whose_fsyncs_hang_gives_up() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.write(&put("before", b"v")).await;
        let old = cluster.leader().await;
        old.syncs.hold();
        // Its followers are a majority.
        let written = old.propose(put("meanwhile", b"v")).await;
        assert!(written.is_ok(), "{written:?}");
        assert!(old.syncs.has_waiting(), "the leader has not synced the write");
        let new = cluster.leader_except(&[old.id]).await;
        cluster.write_except(&[old.id], &put("after", b"v")).await;
        assert_eq!(new.get("meanwhile"), Some(b"v".to_vec()));
        old.syncs.release();
        cluster.wait_equal(new.machine.applied().index).await;
        assert_eq!(old.get("after"), Some(b"v".to_vec()));
    });
}

#[test]
fn a_leader_whose_fsyncs_hang_repeats_its_transfer_until_another_takes_over() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.write(&put("before", b"v")).await;
        let old = cluster.leader().await;
        // The others hear the leader, but cannot elect one of them, and the requests to take over get lost.
        let followers: Vec<u64> = cluster.nodes().iter().map(|node| node.id).filter(|id| *id != old.id).collect();
        for from in &followers {
            for to in cluster.nodes().iter().filter(|node| node.id != *from) {
                cluster.network.cut(*from, to.id);
            }
        }
        cluster.network.lose_transfers();
        old.syncs.hold();
        let written = old.propose(put("meanwhile", b"v")).await;
        assert!(written.is_ok(), "{written:?}");
        // Each attempt sends a request to each follower.
        let attempts = || cluster.network.transfers() / followers.len() as u64;
        cluster.wait("the first attempt", || (attempts() > 0).then_some(())).await;
        cluster.wait("a silent leader", || (!old.member.leads()).then_some(())).await;
        cluster.wait("more attempts", || (attempts() > 2).then_some(())).await;
        cluster.network.heal();
        cluster.write_except(&[old.id], &put("after", b"v")).await;
        let new = cluster.leader_except(&[old.id]).await;
        assert_eq!(new.get("meanwhile"), Some(b"v".to_vec()));
        old.syncs.release();
    });
}

#[test]
fn an_idle_leader_whose_log_fails_is_replaced() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.write(&put("before", b"v")).await;
        cluster.wait_equal(Index(1)).await;
        let old = cluster.leader().await;
        cluster.wait("its fsync", || (!old.syncs.has_waiting()).then_some(())).await;
        cluster.disks.borrow()[&old.id].fail(Fault::new(Operation::Sync, 1, Errno::Io));
        // An fsync for which consensus does not wait.
        let payload = [IoSlice::new(b"of another space")];
        let (space, kind, time) = (SpaceId(9), RecordKind::Blank, SpaceTime(0));
        let draft = Draft { space, kind, term: Term::ZERO, index: Index::ZERO, time, payload: &payload };
        let failed = old.log.append(&[draft], Durability::Disk, Purpose::Data);
        assert!(matches!(failed, Err(AppendError::Failed { .. })), "{failed:?}");
        cluster.leader_except(&[old.id]).await;
        let reason = cluster.wait("the end of consensus", || old.member.failure()).await;
        assert!(reason.contains("the log has failed"), "{reason}");
        assert!(old.consensus.failure().is_some_and(|failure| reason.contains(&failure)), "{reason}");
        assert!(!old.member.leads());
        assert!(old.consensus.read_lease(Duration::from_millis(100)).await.is_err());
        cluster.write_except(&[old.id], &put("after", b"v")).await;
    });
}

/// Its ticks go on, and openraft's last metrics still show it as the leader.
#[test]
fn a_leader_whose_consensus_has_ended_does_not_lead_again() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let old = cluster.leader().await;
        assert!(old.consensus.raft().shutdown().await.is_ok());
        cluster.wait("the end of its leadership", || (!old.member.leads()).then_some(())).await;
        // Several ticks.
        for _ in 0..40 {
            tokio::time::sleep(Duration::from_millis(10)).await;
            let leadership = old.member.leadership();
            assert!(matches!(leadership, Leadership::Follower { leader: None, .. }), "{leadership:?}");
        }
        cluster.write_except(&[old.id], &put("after", b"v")).await;
    });
}

/// While its append waits for a segment, a leader sends no heartbeats.
#[test]
fn a_leader_that_gets_no_segment_is_replaced() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let old = cluster.leader().await;
        let disk = cluster.disks.borrow()[&old.id].clone();
        disk.fail(Fault::new(Operation::Create, 1, Errno::Io).on_path(".tmp").for_good());
        for number in 0.. {
            assert!(number < 100, "the prepared segments are full");
            let write = old.propose(put(&format!("{number}"), &[1; 500_000]));
            let is_written = matches!(tokio::time::timeout(Duration::from_secs(2), write).await, Ok(Ok(_)));
            if !is_written || !old.member.leads() {
                break;
            }
        }
        cluster.leader_except(&[old.id]).await;
        cluster.write_except(&[old.id], &put("after", b"v")).await;
        disk.clear_faults();
        cluster.wait_equal(Index(1)).await;
        assert_eq!(old.get("after"), Some(b"v".to_vec()));
    });
}

#[test]
fn a_node_that_restarts_votes_for_nobody_for_one_lease() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.write(&put("k", b"v")).await;
        cluster.wait_equal(Index(1)).await;
        for id in 1..=3 {
            cluster.lose_power(id, id).await;
        }
        let begun = std::time::Instant::now();
        let node = cluster.start(2).await;
        let request = || {
            let last = node.consensus.reader().last().map(|id| thalweg_raft::RaftLogId {
                leader_id: openraft::vote::leader_id_std::CommittedLeaderId::new(id.term.0),
                index: id.index.0,
            });
            let leader_id = openraft::vote::RaftLeaderId::new(100, 3);
            let vote = thalweg_raft::RaftVote { leader_id, committed: false };
            openraft::raft::VoteRequest { vote, last_log_id: last, leadership_transfer: false }
        };
        let lease = crate::node::options().lease();
        let mut refusals = 0;
        loop {
            let granted = node.consensus.vote(request()).await.unwrap().vote_granted;
            let elapsed = begun.elapsed();
            if granted {
                assert!(elapsed >= lease, "{elapsed:?}");
                break;
            }
            refusals += 1;
            assert!(elapsed < crate::node::PATIENCE);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert!(refusals > 0);
    });
}
