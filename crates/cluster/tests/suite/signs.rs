//! Signs of life between nodes: their bytes, and nodes of different versions.

use std::time::{Duration, Instant};

use thalweg_cluster::NodeOptions;
use thalweg_engine::MemberIdentity;
use thalweg_serving::cluster::{ClusterHandle, MemberHealth};

use crate::{
    cluster::{TestCluster, TestNode, node_options, wait_until},
    nodes::put_again,
};

/// Version of the peer protocol before it had frames for heartbeats and for facts about nodes.
const BEFORE: u16 = 2;

/// Waits until each node hears all others, and knows their names and how far they are.
fn wait_for_facts(cluster: &TestCluster) {
    wait_until("each node knows all others", || {
        cluster.nodes.iter().all(|node| {
            let report = node.report();
            let last = report.applied_index;
            report.members.iter().all(|member| {
                let is_known = !member.version.is_empty() && member.log_index >= Some(last);
                member.node == report.node || (is_known && member.health == MemberHealth::Alive)
            })
        })
    });
}

#[test]
fn nodes_of_the_version_before_work_beside_new_ones_and_are_upgraded() {
    let mut cluster = TestCluster::start(1);
    let add = |cluster: &mut TestCluster, name: &str, max_version: u16| {
        let join = cluster.nodes.iter().map(|node| node.node.address().to_string()).collect();
        let options = NodeOptions { join, max_version, ..node_options(name) };
        let identity = MemberIdentity::Join { cluster: cluster.id };
        cluster.nodes.push(TestNode::start(cluster.dir.path().join(name), identity, options, Some(cluster.id)));
    };
    add(&mut cluster, "n2", BEFORE);
    add(&mut cluster, "n3", NodeOptions::NEWEST_VERSION);
    cluster.wait_for_voters(3);
    for at in 0..3 {
        put_again(&cluster, at, format!("mixed {at}").as_bytes(), b"value");
    }
    wait_for_facts(&cluster);
    // The old node starts again with the new version.
    let (path, options) = cluster.nodes.remove(1).stop();
    put_again(&cluster, 0, b"meanwhile", b"value");
    cluster.restart(path, NodeOptions { max_version: NodeOptions::NEWEST_VERSION, ..options });
    cluster.wait_for_voters(3);
    for at in 0..3 {
        put_again(&cluster, at, format!("upgraded {at}").as_bytes(), b"value");
    }
    wait_for_facts(&cluster);
    cluster.check_equal();
}

#[test]
fn idle_nodes_send_few_bytes() {
    const NODES: f64 = 3.0;
    const SIGN_BYTES: f64 = 8.0;
    const HEARTBEAT_BYTES: f64 = 22.0;
    let cluster = TestCluster::start(3);
    put_again(&cluster, 0, b"key", b"value");
    cluster.check_equal();
    wait_for_facts(&cluster);
    let sent = || -> u64 {
        let of_node = |node: &TestNode| -> u64 {
            let control = node.node.link_traffic().into_iter().filter(|traffic| traffic.channel == "control");
            control.map(|traffic| traffic.sent_bytes).sum()
        };
        cluster.nodes.iter().map(of_node).sum()
    };
    let heartbeat = node_options("any").consensus.heartbeat.as_secs_f64();
    let expected = |seconds: f64| {
        let rounds = seconds / heartbeat;
        rounds * (NODES * (NODES - 1.0) * SIGN_BYTES + (NODES - 1.0) * HEARTBEAT_BYTES)
    };
    // A busy machine can elect another leader meanwhile, or delay signs until nodes ping each other.
    let mut found = Vec::new();
    for _ in 0..10 {
        let (before, begun) = (sent(), Instant::now());
        std::thread::sleep(Duration::from_secs(2));
        let bytes = (sent() - before) as f64;
        let bound = 1.5 * expected(begun.elapsed().as_secs_f64());
        if bytes > 0.0 && bytes < bound {
            return;
        }
        found.push((bytes, bound));
    }
    panic!("(bytes, bound) of each time: {found:?}");
}
