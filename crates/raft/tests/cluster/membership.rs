//! Learners, promotion, removal.

use std::{collections::BTreeSet, pin::pin};

use futures_util::future::{Either, join, select};
use thalweg_raft::ChangeError;
use thalweg_replica::{Leadership, NodeInfo};
use thalweg_types::{Index, NodeId, Term, info::Removal};

use crate::{
    commands::{put, run},
    node::{Cluster, Node, Settings},
};

fn voters(node: &Node) -> BTreeSet<u64> {
    node.consensus.membership().unwrap().voters().into_iter().map(|voter| voter.0).collect()
}

/// The log refuses such a membership, and consensus ended with it.
#[test]
fn a_membership_that_breaks_a_limit_founds_nothing() {
    run(async {
        let cluster = Cluster::unfounded(1, Settings::default()).await;
        let named = |bytes: usize| NodeInfo { name: "n".repeat(bytes), ..NodeInfo::at("node1:1") };
        let node = cluster.node(1);
        let refused = node.consensus.found([(NodeId(1), named(65))].into()).await.unwrap_err();
        assert!(refused.to_string().contains("name"), "{refused}");
        assert_eq!(node.consensus.failure(), None);
        node.consensus.found([(NodeId(1), named(64))].into()).await.unwrap();
        let leader = cluster.leader().await;
        assert_eq!(leader.consensus.status().members[&NodeId(1)].info, named(64));
    });
}

#[test]
fn a_learner_is_promoted_when_it_has_caught_up() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        for number in 0..100 {
            cluster.write(&put(&format!("{number}"), &[7; 1_000])).await;
        }
        let info = NodeInfo::at("node4:1");
        leader.consensus.add_learner(NodeId(4), info.clone()).await.unwrap();
        leader.consensus.add_learner(NodeId(4), info).await.unwrap();
        let other = leader.consensus.add_learner(NodeId(4), NodeInfo::at("elsewhere:1")).await;
        assert_eq!(other, Err(ChangeError::AlreadyMember(NodeId(4))));
        let early = leader.consensus.promote(NodeId(4)).await;
        assert!(matches!(early, Err(ChangeError::Lags { .. } | ChangeError::NoMajority { .. })), "{early:?}");
        assert_eq!(leader.consensus.promote(NodeId(9)).await, Err(ChangeError::NotAMember(NodeId(9))));
        assert_eq!(leader.consensus.transfer(Some(NodeId(4))).await, Err(ChangeError::NotVoter(NodeId(4))));
        let learner = cluster.start(4).await;
        cluster.wait_equal(leader.machine.applied().index).await;
        assert_eq!(learner.get("99"), Some(vec![7; 1_000]));
        assert_eq!(voters(&leader), BTreeSet::from([1, 2, 3]));
        cluster
            .wait("the learner's last answer", || {
                let status = leader.consensus.status();
                let learner = &status.members[&NodeId(4)];
                (learner.matched == status.last.map(|last| last.index) && learner.last_answer.is_some()).then_some(())
            })
            .await;
        leader.consensus.promote(NodeId(4)).await.unwrap();
        assert_eq!(voters(&leader), BTreeSet::from([1, 2, 3, 4]));
        assert_eq!(leader.consensus.promote(NodeId(4)).await, Err(ChangeError::AlreadyVotes(NodeId(4))));
        leader.propose(put("by four", b"v")).await.unwrap();
        cluster.wait_equal(leader.machine.applied().index).await;
    });
}

/// The member believes to lead in another term than consensus, as it does for a moment after this node was elected
/// again.
#[test]
fn a_change_is_made_only_in_the_term_in_which_its_conditions_were_checked() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let Some(Term(term)) = leader.member.leadership().led_term() else { panic!("the leader leads") };
        let last = leader.consensus.reader().last();
        leader.member.set_leadership(Leadership::Leader { term: Term(term - 1) });
        let info = NodeInfo::at("elsewhere:1");
        let refused = leader.consensus.set_info(NodeId(2), info.clone()).await;
        assert!(matches!(refused, Err(ChangeError::NotLeader { .. })), "{refused:?}");
        assert_eq!(leader.consensus.reader().last(), last, "nothing was written");
        cluster.wait("a tick", || (leader.member.leadership().term() == Term(term)).then_some(())).await;
        leader.consensus.set_info(NodeId(2), info).await.unwrap();
    });
}

#[test]
fn a_repeated_promotion_is_confirmed_only_once_the_first_is_complete() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        cluster.write(&put("k", b"v")).await;
        leader.consensus.add_learner(NodeId(4), NodeInfo::at("node4:1")).await.unwrap();
        cluster.start(4).await;
        let caught_up = || {
            let status = leader.consensus.status();
            let learner = &status.members[&NodeId(4)];
            (learner.matched == status.last.map(|last| last.index) && learner.last_answer.is_some()).then_some(())
        };
        cluster.wait("the learner", caught_up).await;
        // The others count as alive for a while, but no majority has the change.
        for id in (1..=3).filter(|id| *id != leader.id) {
            cluster.lose_power(id, 8).await;
        }
        let first = leader.consensus.promote(NodeId(4));
        let repeated = async {
            let votes = || leader.consensus.status().members[&NodeId(4)].votes.then_some(());
            cluster.wait("the change in the leader's log", votes).await;
            leader.consensus.promote(NodeId(4)).await
        };
        let first = pin!(first);
        let repeated = pin!(repeated);
        match select(repeated, first).await {
            Either::Left((repeated, _)) => {
                let is_open = matches!(repeated, Err(ChangeError::InProgress | ChangeError::NotLeader { .. }));
                assert!(is_open, "{repeated:?}");
            }
            Either::Right((first, _)) => panic!("the first one has ended: {first:?}"),
        }
    });
}

/// Waits until a leader has an answer of node 4, which has all entries.
async fn wait_for_learner(cluster: &Cluster, leader: &Node) {
    let caught_up = || {
        let status = leader.consensus.status();
        let learner = &status.members[&NodeId(4)];
        (learner.matched == status.last.map(|last| last.index) && learner.last_answer.is_some()).then_some(())
    };
    cluster.wait("the learner", caught_up).await;
}

/// Three live voters beside a dead fourth one survive no failure.
#[test]
fn a_learner_that_is_down_is_not_promoted() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        leader.consensus.add_learner(NodeId(4), NodeInfo::at("node4:1")).await.unwrap();
        cluster.start(4).await;
        wait_for_learner(&cluster, &leader).await;
        cluster.lose_power(4, 8).await;
        let silent = || {
            let answer = leader.consensus.status().members[&NodeId(4)].last_answer;
            answer.is_none_or(|age| age > 4 * crate::node::options().lease()).then_some(())
        };
        cluster.wait("silence", silent).await;
        let refused = leader.consensus.promote(NodeId(4)).await;
        // On a busy machine another node can have been elected, which has never heard the learner.
        let is_expected = matches!(refused, Err(ChangeError::Silent(NodeId(4)) | ChangeError::NotLeader { .. }));
        assert!(is_expected, "{refused:?}");
        assert_eq!(voters(&leader), BTreeSet::from([1, 2, 3]));
    });
}

/// The request ends between the two halves, as it does if the leader fails there. Until the second half, majorities of
/// the voters before and after the change must agree.
#[test]
fn a_change_that_ended_half_way_is_completed() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        leader.consensus.add_learner(NodeId(4), NodeInfo::at("node4:1")).await.unwrap();
        cluster.start(4).await;
        wait_for_learner(&cluster, &leader).await;
        // No majority of the former voters has the first half while its request is dropped.
        let others: Vec<Node> = cluster.nodes().into_iter().filter(|node| node.id != leader.id).collect();
        others.iter().for_each(|node| node.syncs.hold());
        {
            let promoted = pin!(leader.consensus.promote(NodeId(4)));
            let is_written = || leader.consensus.status().is_changing.then_some(());
            let written = pin!(cluster.wait("the first half in the leader's log", is_written));
            match select(written, promoted).await {
                Either::Left(_) => {}
                // On a busy machine another node can have been elected.
                Either::Right((Err(ChangeError::NotLeader { .. }), _)) => return,
                Either::Right((ended, _)) => panic!("the request has ended: {ended:?}"),
            }
        }
        let early = leader.consensus.complete_change().await;
        assert!(matches!(early, Ok(()) | Err(ChangeError::NotLeader { .. })), "it is not committed yet: {early:?}");
        others.iter().for_each(|node| node.syncs.release());
        let begun = std::time::Instant::now();
        loop {
            let leader = cluster.leader().await;
            let completed = leader.consensus.complete_change().await;
            let status = leader.consensus.status();
            if completed.is_ok() && !status.is_changing && status.leadership.led_term().is_some() {
                break;
            }
            assert!(begun.elapsed() < crate::node::PATIENCE, "{completed:?}, {status:?}");
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
        cluster.write(&put("after it", b"v")).await;
        let leader = cluster.leader().await;
        assert_eq!(leader.consensus.membership().unwrap().configs().len(), 1);
    });
}

/// Others could take over, so the answer must not be that none can.
#[test]
fn a_transfer_to_a_voter_that_is_down_names_that_voter() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let down = (1..=3).find(|id| *id != leader.id).unwrap();
        cluster.lose_power(down, 4).await;
        let silent = || {
            let answer = leader.consensus.status().members[&NodeId(down)].last_answer;
            answer.is_none_or(|age| age > 4 * crate::node::options().lease()).then_some(())
        };
        cluster.wait("silence", silent).await;
        let refused = leader.consensus.transfer(Some(NodeId(down))).await;
        // On a busy machine another node can have been elected.
        let is_expected = matches!(&refused, Err(ChangeError::Silent(node)) if node.0 == down)
            || matches!(refused, Err(ChangeError::NotLeader { .. }));
        assert!(is_expected, "{refused:?}");
    });
}

/// Both others live, and the leader cannot know it before their first answers.
#[test]
fn a_leader_that_was_just_elected_waits_for_answers_before_a_transfer() {
    run(async {
        let cluster = Cluster::founded(3).await;
        cluster.wait_all_follow().await;
        let old = cluster.leader().await;
        cluster.network.lose_appends(true);
        let new = cluster.leader_except(&[old.id]).await;
        let begun = std::time::Instant::now();
        let answers = async {
            tokio::task::yield_now().await;
            cluster.network.lose_appends(false);
        };
        let (transferred, ()) = join(new.consensus.transfer(None), answers).await;
        match transferred {
            Ok(next) => assert_ne!(next, NodeId(new.id)),
            Err(ChangeError::NoSuccessor) => {
                let waited = begun.elapsed();
                assert!(waited >= 3 * crate::node::options().lease(), "it has waited for {waited:?} only");
            }
            // On a busy machine another node can have been elected, or the successor needs more time.
            Err(error) => {
                let is_late = matches!(error, ChangeError::NotLeader { .. } | ChangeError::OutcomeUnknown { .. });
                assert!(is_late, "{error}");
            }
        }
    });
}

#[test]
fn a_transfer_to_the_node_that_leads_is_done_already() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        match leader.consensus.transfer(Some(NodeId(leader.id))).await {
            Ok(new) => assert_eq!((new.0, cluster.network.transfers()), (leader.id, 0), "nothing has changed"),
            // On a busy machine another node can have been elected.
            Err(error) => assert!(matches!(error, ChangeError::NotLeader { .. }), "{error}"),
        }
    });
}

#[test]
fn a_removed_voter_does_not_come_back() {
    run(async {
        let cluster = Cluster::founded(3).await;
        let leader = cluster.leader().await;
        let gone = (1..=3).find(|id| *id != leader.id).unwrap();
        assert_eq!(
            leader.consensus.remove(NodeId(leader.id), Removal::Safe).await,
            Err(ChangeError::Leads(NodeId(leader.id)))
        );
        cluster.lose_power(gone, 5).await;
        leader.consensus.remove(NodeId(gone), Removal::Safe).await.unwrap();
        assert_eq!(voters(&leader), (1..=3).filter(|id| *id != gone).collect());
        let again = leader.consensus.add_learner(NodeId(gone), NodeInfo::at("back:1")).await;
        assert_eq!(again, Err(ChangeError::Removed(NodeId(gone))));
        // A repeated removal differs from that of a node that was never a member.
        for (node, error) in [(gone, ChangeError::Removed(NodeId(gone))), (9, ChangeError::NotAMember(NodeId(9)))] {
            for removal in [Removal::Safe, Removal::Forced] {
                assert_eq!(leader.consensus.remove(NodeId(node), removal).await, Err(error.clone()));
            }
        }
        // The other nodes know it as well.
        let to = (1..=3).find(|id| *id != leader.id && *id != gone).map(NodeId);
        let begun = std::time::Instant::now();
        while leader.consensus.transfer(to).await.is_err() && begun.elapsed() < crate::node::PATIENCE {}
        let leader = cluster.leader_except(&[leader.id]).await;
        let again = leader.consensus.add_learner(NodeId(gone), NodeInfo::at("back:1")).await;
        assert_eq!(again, Err(ChangeError::Removed(NodeId(gone))));
        cluster.write(&put("without it", b"v")).await;
        cluster.wait_equal(Index(1)).await;
        // They still know it after a restart of both.
        let rest: Vec<u64> = (1..=3).filter(|id| *id != gone).collect();
        for id in &rest {
            cluster.lose_power(*id, 7).await;
        }
        for id in &rest {
            cluster.start(*id).await;
        }
        let leader = cluster.leader().await;
        let again = leader.consensus.add_learner(NodeId(gone), NodeInfo::at("back:1")).await;
        assert_eq!(again, Err(ChangeError::Removed(NodeId(gone))));
        let other = (1..=3).find(|id| *id != leader.id && *id != gone).unwrap();
        cluster.lose_power(other, 6).await;
        let again = leader.consensus.remove(NodeId(gone), Removal::Safe).await;
        assert_eq!(again, Err(ChangeError::Removed(NodeId(gone))), "this is final, also without a majority");
        cluster
            .wait("silence", || {
                let answer = leader.consensus.status().members[&NodeId(other)].last_answer;
                answer.is_none_or(|age| age > 4 * crate::node::options().lease()).then_some(())
            })
            .await;
        let unknown = leader.consensus.remove(NodeId(9), Removal::Safe).await;
        assert!(
            matches!(unknown, Err(ChangeError::NotLeader { .. } | ChangeError::NoMajority { .. })),
            "another leader may have added it: {unknown:?}"
        );
        let info = NodeInfo::at("node5:1");
        let added = leader.consensus.add_learner(NodeId(5), info).await;
        assert!(added.is_err(), "a change needs a majority: {added:?}");
    });
}

#[test]
fn a_space_with_one_member_grows_and_its_address_changes() {
    run(async {
        let cluster = Cluster::founded(1).await;
        let leader = cluster.leader().await;
        cluster.write(&put("k", b"v")).await;
        assert_eq!(leader.consensus.remove(NodeId(1), Removal::Safe).await, Err(ChangeError::LastVoter(NodeId(1))));
        let info = NodeInfo { name: "first".to_owned(), ..NodeInfo::at("elsewhere:1") };
        leader.consensus.set_info(NodeId(1), info.clone()).await.unwrap();
        assert_eq!(leader.consensus.membership().unwrap().members()[&NodeId(1)], info);
        for id in 2..=3 {
            cluster.start(id).await;
            leader.consensus.add_learner(NodeId(id), NodeInfo::at(format!("node{id}:1"))).await.unwrap();
            let caught_up = || {
                let status = leader.consensus.status();
                let learner = &status.members[&NodeId(id)];
                (learner.matched == status.last.map(|last| last.index) && learner.last_answer.is_some()).then_some(())
            };
            cluster.wait("the learner", caught_up).await;
            leader.consensus.promote(NodeId(id)).await.unwrap();
        }
        cluster.wait_equal(leader.machine.applied().index).await;
        cluster.lose_power(1, 3).await;
        let new = cluster.leader_except(&[1]).await;
        cluster.write(&put("k2", b"v")).await;
        assert_eq!(new.get("k"), Some(b"v".to_vec()));
    });
}
