//! Nodes with empty directories that found a cluster together, and such nodes whose directories were lost.

use std::{
    net::SocketAddr,
    path::PathBuf,
    time::{Duration, Instant},
};

use thalweg_cluster::NodeOptions;
use thalweg_engine::MemberIdentity;
use thalweg_serving::cluster::{ClusterHandle, MemberHealth, MemberReport, MemberRole, Removal};
use thalweg_types::{ClusterId, ReadLevel};

use crate::{
    cluster::{TestCluster, TestNode, free_address, node_options, wait_until},
    nodes::{put_again, put_through, soon, wait},
};

const CLUSTER: ClusterId = ClusterId(77);

/// The ways in which the nodes of a cluster are started, every time.
struct Together {
    addresses: Vec<SocketAddr>,
    cluster: TestCluster,
}

impl Together {
    /// Starts nodes that found a cluster together, and waits until all of them vote.
    fn start(count: usize) -> Self {
        let addresses = (0..count).map(|_| free_address()).collect();
        let digest_every = NodeOptions::DEFAULT_DIGEST_EVERY;
        let cluster = TestCluster { dir: tempfile::tempdir().unwrap(), id: CLUSTER, nodes: Vec::new(), digest_every };
        let mut all = Self { addresses, cluster };
        (0..count).for_each(|number| all.add(number));
        all.cluster.wait_for_voters(count);
        all
    }

    fn path(&self, number: usize) -> PathBuf {
        self.cluster.dir.path().join(format!("n{number}"))
    }

    /// Starts a node with the arguments of its first start. Its directory may be new.
    fn add(&mut self, number: usize) {
        let options = NodeOptions {
            listen: self.addresses[number],
            join: self.addresses.iter().map(ToString::to_string).collect(),
            expect: self.addresses.len(),
            ..node_options(&format!("n{number}"))
        };
        let path = self.path(number);
        let identity = if path.exists() { MemberIdentity::Existing } else { MemberIdentity::Join { cluster: CLUSTER } };
        self.cluster.nodes.push(TestNode::start(path, identity, options, Some(CLUSTER)));
    }

    /// Checks that no node leads, and that these nodes have founded nothing.
    fn check_nobody_founds(&self, empty: &[TestNode]) {
        assert!(!self.cluster.nodes.iter().any(|node| node.node.leads()), "nobody leads");
        for node in empty {
            let report = node.report();
            assert!(report.members.is_empty() && report.leader.is_none(), "{report:?}");
        }
    }

    /// Stops the last node of the list, and removes its directory.
    fn lose_last(&mut self) {
        let (path, _) = self.cluster.nodes.pop().unwrap().stop();
        std::fs::remove_dir_all(path).unwrap();
    }
}

#[test]
fn a_node_whose_directory_was_lost_joins_the_cluster_again_as_another_one() {
    let mut all = Together::start(3);
    let keyspace = all.cluster.nodes[0].db.keyspace("k").unwrap();
    (0..20_u32).for_each(|number| drop(put_through(&keyspace, &number.to_be_bytes(), b"before")));
    drop(keyspace);
    let former = all.cluster.nodes[2].id();
    all.lose_last();
    all.add(2);
    let is_voter = |member: &MemberReport| member.role == MemberRole::Voter;
    wait_until("the new node votes beside the others and the former one", || {
        all.cluster.nodes.iter().all(|node| node.report().members.iter().filter(|member| is_voter(member)).count() == 4)
    });
    let new = all.cluster.nodes[2].id();
    assert_ne!(new, former, "an id is never used again");
    put_again(&all.cluster, 2, b"after", b"value");
    all.cluster.check_equal();
    wait_until("the operator removes the former node", || {
        wait(all.cluster.nodes[0].node.remove(former, Removal::Safe, soon())).is_ok()
    });
    all.cluster.wait_for_voters(3);
    let report = all.cluster.nodes[0].report();
    assert!(report.members.iter().all(|member| member.node != former && member.health != MemberHealth::Down));
    let keyspace = all.cluster.nodes[2].db.keyspace("k").unwrap();
    assert!((0..20_u32).all(|number| keyspace.get(&number.to_be_bytes()).unwrap().is_some()));
}

/// The survivor has the last copy of the data. The two empty nodes would be a majority of a cluster with the same id.
#[test]
fn two_nodes_whose_directories_were_lost_found_no_cluster_beside_the_survivor() {
    let mut all = Together::start(3);
    // The one with the highest id survives, so that one of the others would probably found the cluster.
    all.cluster.nodes.sort_by_key(|node| std::cmp::Reverse(node.id()));
    let survivor: usize = all.cluster.nodes[0].options.name[1..].parse().unwrap();
    put_again(&all.cluster, 0, b"key", b"value");
    wait_until("the survivor has the value", || {
        let keyspace = all.cluster.nodes[0].db.keyspace("k").unwrap();
        keyspace.get(b"key").unwrap().is_some()
    });
    all.lose_last();
    all.lose_last();
    wait_until("the survivor has no leader", || !all.cluster.nodes[0].report().has_leader());
    (0..3).filter(|number| *number != survivor).for_each(|number| all.add(number));
    // Ten attempts. Without the rule, the first one or two found a cluster.
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(3) {
        all.check_nobody_founds(&all.cluster.nodes[1..]);
        std::thread::sleep(Duration::from_millis(20));
    }
    let saved = &all.cluster.nodes[0];
    assert!(wait(saved.node.read(ReadLevel::Stale, soon())).is_ok());
    assert_eq!(saved.db.keyspace("k").unwrap().get(b"key").unwrap().unwrap().value, &b"value"[..]);
}

/// A node that is down may have the last copy of the data.
#[test]
fn empty_nodes_found_no_cluster_while_one_of_the_expected_nodes_is_away() {
    let mut all = Together::start(3);
    put_again(&all.cluster, 0, b"key", b"value");
    all.lose_last();
    all.lose_last();
    let (path, options) = all.cluster.nodes.pop().unwrap().stop();
    [1, 2].into_iter().for_each(|number| all.add(number));
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        all.check_nobody_founds(&all.cluster.nodes);
        std::thread::sleep(Duration::from_millis(20));
    }
    // The node with the data comes back. It has no majority, so it can let nobody join.
    all.cluster.restart(path, options);
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(2) {
        all.check_nobody_founds(&all.cluster.nodes[..2]);
        std::thread::sleep(Duration::from_millis(20));
    }
}
