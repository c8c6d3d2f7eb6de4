//! Writes, reads, failover and changes of the members.

use std::time::{Duration, Instant};

use thalweg_cluster::NodeOptions;
use thalweg_disk::{
    SimDisk,
    sim::{Errno, Event, Fault, Operation},
};
use thalweg_engine::{Ack, Keyspace, MemberIdentity, ReplicationStage, WriteError};
use thalweg_serving::cluster::{ClusterError, ClusterEvent, ClusterHandle, JoinRequest, MemberRole, Removal};
use thalweg_types::{Durability, NodeId, ReadLevel};

use crate::cluster::{TestCluster, TestNode, wait_until};

pub fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

pub fn wait<T>(future: thalweg_serving::cluster::ClusterFuture<T>) -> Result<T, ClusterError> {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// Puts a value. Repeats a put that had no effect because leadership moved, which happens on a busy machine.
pub fn put_through(keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Ack {
    let deadline = soon();
    loop {
        match keyspace.put(key, value) {
            Err(WriteError::NotLeader { .. } | WriteError::NoLeader) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_millis(20));
            }
            put => return put.unwrap(),
        }
    }
}

/// Writes until a write is acknowledged, as a client does that repeats a write which may happen twice.
pub fn put_again(cluster: &TestCluster, at: usize, key: &[u8], value: &[u8]) {
    let deadline = soon();
    loop {
        let put = cluster.nodes[at].db.keyspace("k").map_err(|error| error.to_string());
        match put.and_then(|keyspace| keyspace.put(key, value).map_err(|error| error.to_string())) {
            Ok(_) => return,
            Err(error) => assert!(Instant::now() < deadline, "{error}"),
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn the_stages_of_replication_are_counted_on_the_leader_and_on_followers() {
    let cluster = TestCluster::start(3);
    let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
    (0..20).for_each(|number: u32| _ = put_through(&keyspace, &number.to_le_bytes(), b"value"));
    // Times of the follower that a majority does not need are counted a moment later.
    wait_until("each stage is counted", || {
        let stages: Vec<_> = cluster.nodes.iter().map(|node| node.db.stats().replication_stages).collect();
        let is_counted = |stage: &ReplicationStage| stages.iter().any(|of| of[*stage as usize].count() > 0);
        ReplicationStage::ALL.iter().all(is_counted)
    });
}

#[test]
fn every_node_takes_writes_and_all_states_are_equal() {
    let cluster = TestCluster::start(3);
    for (at, node) in cluster.nodes.iter().enumerate() {
        let keyspace = node.db.keyspace("k").unwrap();
        for number in 0..50 {
            let ack = put_through(&keyspace, format!("{at}-{number}").as_bytes(), b"value");
            assert_eq!(ack.durability, Durability::Quorum);
            // A node reads its own writes, also if it has forwarded them.
            assert!(keyspace.get(format!("{at}-{number}").as_bytes()).unwrap().is_some());
        }
    }
    cluster.check_equal();
    for node in &cluster.nodes {
        let keyspace = node.db.keyspace("k").unwrap();
        for at in 0..3 {
            assert!(keyspace.get(format!("{at}-49").as_bytes()).unwrap().is_some());
        }
    }
    let comparison = wait(cluster.nodes[0].node.digest(soon())).unwrap();
    assert!(comparison.is_equal(), "{comparison:?}");
    assert!(comparison.members.len() == 3 && comparison.members.iter().all(|member| member.digest.is_ok()));
}

#[test]
fn a_read_on_a_follower_sees_every_write_that_was_acknowledged_before() {
    let cluster = TestCluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let written = cluster.nodes[leader].db.keyspace("k").unwrap();
    let read = &cluster.nodes[follower];
    for number in 0..30_u32 {
        let ack = put_through(&written, b"key", &number.to_le_bytes());
        let shown = wait(read.node.read(ReadLevel::Linearizable, soon())).unwrap();
        assert!(Some(shown) >= ack.revision);
        let value = read.db.keyspace("k").unwrap().get(b"key").unwrap().unwrap().value;
        assert_eq!(value, &number.to_le_bytes()[..]);
    }
    let ack = put_through(&written, b"key", b"last");
    let revision = ack.revision.unwrap();
    assert!(wait(read.node.read(ReadLevel::AtLeast(revision), soon())).unwrap() >= revision);
}

/// A follower compresses a large batch of commands on another thread, and the small ones after it must wait for that.
#[test]
fn the_last_of_two_puts_through_a_follower_wins_if_the_first_is_large() {
    let cluster = TestCluster::start(3);
    let db = &cluster.nodes[cluster.follower()].db;
    let keyspace = db.keyspace("k").unwrap();
    // Bytes that take long to compress.
    let large: Vec<u8> =
        (0..2 * 1024 * 1024_u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61) as u8).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut compared = 0;
    wait_until("twenty pairs of puts are acknowledged", || {
        let put = |value: &[u8]| db.to_async().put(keyspace.id(), b"key", value, db.durability());
        let first = put(&large);
        // The thread of consensus takes the first put alone.
        std::thread::sleep(Duration::from_millis(1));
        let last = put(b"small");
        if let (Ok(_), Ok(_)) = runtime.block_on(async { tokio::join!(first, last) }) {
            assert_eq!(keyspace.get(b"key").unwrap().unwrap().value, &b"small"[..], "pair {compared}");
            compared += 1;
        }
        compared == 20
    });
}

#[test]
fn a_stopped_leader_is_replaced_and_nothing_acknowledged_is_lost() {
    let mut cluster = TestCluster::start(3);
    let leader = cluster.leader();
    let keyspace = cluster.nodes[leader].db.keyspace("k").unwrap();
    (0..100_u32).for_each(|number| drop(put_through(&keyspace, &number.to_be_bytes(), b"before")));
    drop(keyspace);
    let (path, options) = cluster.nodes.remove(leader).stop();
    put_again(&cluster, 0, b"after", b"value");
    for node in &cluster.nodes {
        wait(node.node.read(ReadLevel::Linearizable, soon())).unwrap();
        let keyspace = node.db.keyspace("k").unwrap();
        assert!((0..100_u32).all(|number| keyspace.get(&number.to_be_bytes()).unwrap().is_some()));
        assert!(keyspace.get(b"after").unwrap().is_some());
    }
    cluster.restart(path, options);
    cluster.wait_for_voters(3);
    cluster.check_equal();
}

#[test]
fn the_leader_reports_what_a_stopped_follower_lacks() {
    let mut cluster = TestCluster::start(3);
    let follower = cluster.follower();
    let id = cluster.nodes[follower].id();
    let (path, options) = cluster.nodes.remove(follower).stop();
    let leader = cluster.leader();
    let keyspace = cluster.nodes[leader].db.keyspace("k").unwrap();
    (0..50_u32).for_each(|number| drop(put_through(&keyspace, &number.to_be_bytes(), &[7; 10_000])));
    let lag = |cluster: &TestCluster| {
        let report = cluster.nodes[cluster.leader()].report();
        report.members.iter().find(|member| member.node == id).unwrap().lag
    };
    wait_until("the leader knows it", || lag(&cluster).is_some_and(|lag| lag.entries >= 50));
    let bytes = lag(&cluster).unwrap().bytes;
    assert!((430_000..600_000).contains(&bytes), "{bytes}, of which up to 64 KiB are an estimate");
    cluster.restart(path, options);
    wait_until("the follower has caught up", || lag(&cluster).is_some_and(|lag| (lag.entries, lag.bytes) == (0, 0)));
}

#[test]
fn without_a_majority_nothing_is_acknowledged_or_read() {
    let mut cluster = TestCluster::start(3);
    let keyspace = cluster.nodes[0].db.keyspace("k").unwrap();
    keyspace.put(b"key", b"value").unwrap();
    let stopped: Vec<_> = cluster.nodes.drain(1..).map(|node| node.stop()).collect();
    let alone = &cluster.nodes[0];
    wait_until("the node has no leader", || alone.report().leader.is_none());
    assert!(matches!(keyspace.put(b"key", b"other"), Err(WriteError::NoLeader)), "it has no effect");
    let read = wait(alone.node.read(ReadLevel::Linearizable, Instant::now() + Duration::from_millis(500)));
    assert!(read.is_err(), "{read:?}");
    assert!(wait(alone.node.read(ReadLevel::Stale, soon())).is_ok());
    assert_eq!(keyspace.get(b"key").unwrap().unwrap().value, &b"value"[..]);
    stopped.into_iter().for_each(|(path, options)| cluster.restart(path, options));
    put_again(&cluster, 0, b"key", b"other");
    cluster.check_equal();
}

/// Transfers the leadership to a node by a request to the node at `at`. Tries again on a busy machine, on which the
/// last answer of the target can be too old.
fn transfer(cluster: &TestCluster, at: usize, target: NodeId) {
    wait_until("the node leads", || {
        let transferred = wait(cluster.nodes[at].node.transfer(Some(target), soon()));
        assert!(transferred.as_ref().is_ok_and(|new| *new == target) || transferred.is_err(), "{transferred:?}");
        cluster.nodes.iter().any(|node| node.id() == target && node.node.leads())
    });
}

#[test]
fn members_are_added_and_removed_and_leadership_is_transferred() {
    let mut cluster = TestCluster::start(1);
    cluster.nodes[0].db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
    cluster.add("n2");
    cluster.add("n3");
    cluster.wait_for_voters(3);
    let leader = cluster.leader();
    let other = cluster.follower();
    let target = cluster.nodes[other].id();
    // Any node passes changes on to the leader.
    transfer(&cluster, other, target);
    let gone = cluster.nodes[leader].id();
    // The new leader may still be completing the change that made a voter of the last node.
    wait_until("the node is removed", || match wait(cluster.nodes[leader].node.remove(gone, Removal::Safe, soon())) {
        Ok(_) => true,
        Err(ClusterError::ChangeInProgress) => false,
        Err(other) => panic!("{other}"),
    });
    let removed = cluster.nodes.remove(leader);
    cluster.wait_for_voters(2);
    removed.stop();
    put_again(&cluster, 0, b"key", b"other");
    cluster.check_equal();
    let report = cluster.nodes[0].report();
    assert!(report.members.iter().all(|member| member.node != gone && member.role == MemberRole::Voter));
}

/// Only the leader knows how far the others are. A former leader showed all of them as stale after 30 s, for ever.
#[test]
fn a_former_leader_does_not_report_the_others_as_behind() {
    let cluster = TestCluster::start(3);
    put_again(&cluster, 0, b"key", b"value");
    let knows = |at: usize| cluster.nodes[at].report().members.iter().any(|member| member.behind.is_some());
    let mut former = 0;
    wait_until("the leader knows how far the others are", || {
        former = cluster.leader();
        knows(former)
    });
    let target = cluster.nodes[(former + 1) % 3].id();
    transfer(&cluster, former, target);
    let leads = || cluster.nodes[former].node.leads();
    wait_until("the former leader follows", || !leads());
    // On a busy machine it can lead again.
    wait_until("the former leader does not know it any more", || leads() || !knows(former));
}

#[test]
fn a_transfer_to_the_leader_itself_can_be_repeated_on_any_node() {
    let cluster = TestCluster::start(2);
    for at in 0..2 {
        wait_until("the request is answered by the leader", || {
            let leader = cluster.nodes[cluster.leader()].id();
            wait(cluster.nodes[at].node.transfer(Some(leader), soon())) == Ok(leader)
        });
    }
}

#[test]
fn members_state_which_versions_of_the_state_machine_they_know() {
    let mut cluster = TestCluster::start(3);
    let known = cluster.nodes[0].db.known_version();
    let stated = |cluster: &TestCluster, at: usize| {
        let versions = wait(cluster.nodes[at].node.known_versions(soon())).unwrap_or_default();
        versions.into_iter().map(|version| version.known).collect::<Vec<_>>()
    };
    for at in 0..3 {
        wait_until("all members answer", || stated(&cluster, at) == [Ok(known), Ok(known), Ok(known)]);
    }
    let stopped = cluster.follower();
    cluster.nodes.remove(stopped).stop();
    wait_until("one member does not answer", || {
        let stated = stated(&cluster, cluster.follower());
        stated.len() == 3 && stated.iter().filter(|known| known.is_err()).count() == 1
    });
}

#[test]
fn a_leader_without_a_live_voter_beside_it_says_so_when_it_shall_pass_on_the_leadership() {
    let cluster = TestCluster::start(1);
    let node = &cluster.nodes[0].node;
    wait_until("the node leads", || node.leads());
    assert_eq!(wait(node.hand_over(soon())), Err(ClusterError::NoSuccessor));
    assert_eq!(wait(node.transfer(None, soon())), Err(ClusterError::NoSuccessor));
}

/// A link to the node 0 accepts whatever answers, here the leader itself. Another member would count twice.
#[test]
fn no_member_has_the_id_0() {
    let cluster = TestCluster::start(1);
    let node = &cluster.nodes[0].node;
    wait_until("the node leads", || node.leads());
    let (address, name) = (node.address().to_string(), "none".to_owned());
    let request = JoinRequest { node: NodeId(0), name, address, stays_learner: false };
    let joined = wait(node.join(request, soon()));
    assert!(matches!(&joined, Err(ClusterError::Refused { .. })), "{joined:?}");
    assert_eq!(node.report().members.len(), 1);
}

/// The leader sends no entries to a node that it has removed, so the node would go on as if it were a member.
#[test]
fn a_removed_node_that_still_runs_stops_serving() {
    let mut cluster = TestCluster::start(3);
    put_again(&cluster, 0, b"key", b"value");
    let (leader, other) = (cluster.leader(), cluster.follower());
    let gone = cluster.nodes[other].id();
    let keyspace = cluster.nodes[other].db.keyspace("k").unwrap();
    wait_until("the node is removed", || match wait(cluster.nodes[leader].node.remove(gone, Removal::Safe, soon())) {
        Ok(()) | Err(ClusterError::AlreadyRemoved(_)) => true,
        Err(ClusterError::ChangeInProgress | ClusterError::NotLeader { .. } | ClusterError::NoLeader) => false,
        Err(other) => panic!("{other}"),
    });
    // The node need not know yet that it was removed. The leader does.
    let late = keyspace.put(b"late", b"value");
    assert!(late.is_err(), "{late:?}");
    let removed = cluster.nodes.remove(other);
    wait_until("the node stops serving", || removed.db.stopped_serving().is_some_and(|why| why.contains("removed")));
    assert!(matches!(keyspace.put(b"late", b"value"), Err(WriteError::StoppedServing { .. })));
    for level in [ReadLevel::Linearizable, ReadLevel::Lease] {
        let read = wait(removed.node.read(level, soon()));
        assert!(matches!(read, Err(ClusterError::StoppedServing { .. })), "{read:?}");
    }
    let says_so = |event: &ClusterEvent| event.event == thalweg_serving::cluster::Event::Removed(gone);
    wait_until("an event says so", || removed.node.events().after(0).1.iter().any(says_so));
    cluster.wait_for_voters(2);
    // A repeated request is told so by each node; an id that was never a member is something else.
    for node in cluster.nodes.iter().chain([&removed]) {
        let again = || wait(node.node.remove(gone, Removal::Safe, soon()));
        wait_until("it was removed before", || again() == Err(ClusterError::AlreadyRemoved(gone.to_string())));
    }
    let never = NodeId(gone.0 ^ 1);
    let unknown = || wait(cluster.nodes[0].node.remove(never, Removal::Safe, soon()));
    wait_until("it was never a member", || unknown() == Err(ClusterError::NoSuchMember(never.to_string())));
    put_again(&cluster, 0, b"key", b"other");
    cluster.check_equal();
    for node in &cluster.nodes {
        assert_eq!(node.db.keyspace("k").unwrap().get(b"late").unwrap(), None);
    }
    // A later run is told at once, too.
    drop(keyspace);
    let (path, options) = removed.stop();
    let again = TestNode::start(path, MemberIdentity::Existing, options, Some(cluster.id));
    wait_until("the node stops serving again", || again.db.stopped_serving().is_some());
    again.stop();
}

#[test]
fn a_learner_stays_one_under_another_leader_until_it_is_promoted() {
    let mut cluster = TestCluster::start(3);
    let learner = cluster.add_learner("n4");
    let role = |cluster: &TestCluster, id| {
        let report = cluster.nodes[cluster.leader()].report();
        report
            .members
            .iter()
            .find(|member| member.node == id)
            .map(|member| (member.role, member.lag.unwrap_or_default()))
    };
    let caught_up = |cluster: &TestCluster| role(cluster, learner).is_some_and(|(_, lag)| lag.entries == 0);
    wait_until("the learner has all entries", || caught_up(&cluster));
    let at = cluster.follower();
    let refused = Err(ClusterError::NotVoter("n4".to_owned()));
    wait_until("the learner does not lead", || wait(cluster.nodes[at].node.transfer(Some(learner), soon())) == refused);
    let target = cluster.nodes[cluster.follower()].id();
    let led = cluster.leader();
    transfer(&cluster, led, target);
    wait_until("the learner has all entries of the new leader", || caught_up(&cluster));
    // The new leader makes a node a voter that may become one.
    cluster.add("n5");
    let new = cluster.nodes[4].id();
    wait_until("the other node votes", || role(&cluster, new).is_some_and(|(role, _)| role == MemberRole::Voter));
    assert_eq!(role(&cluster, learner).unwrap().0, MemberRole::Learner);
    // Another change can still be in progress.
    wait_until("the learner is promoted", || wait(cluster.nodes[0].node.promote(learner, soon())).is_ok());
    wait_until("the learner votes", || role(&cluster, learner).unwrap().0 == MemberRole::Voter);
    // A request that is repeated finds nothing to do, on the leader and on a follower.
    for node in 0..3 {
        let is_voter = || {
            let promoted = wait(cluster.nodes[node].node.promote(learner, soon()));
            promoted == Err(ClusterError::AlreadyMember("n4".to_owned()))
        };
        wait_until("the promotion is complete", is_voter);
    }
}

/// The addresses of all nodes change while they are down, so no membership with the new ones can be agreed on.
#[test]
fn nodes_that_all_have_new_addresses_find_each_other_by_the_option_join() {
    let mut cluster = TestCluster::start(3);
    put_again(&cluster, 0, b"key", b"value");
    let stopped: Vec<_> = cluster.nodes.drain(..).map(TestNode::stop).collect();
    let mut join = Vec::new();
    for (path, options) in stopped {
        let listen = "127.0.0.1:0".parse().unwrap();
        cluster.restart(path, NodeOptions { listen, join: join.clone(), ..options });
        join = vec![cluster.nodes[0].node.address().to_string()];
    }
    cluster.wait_for_voters(3);
    put_again(&cluster, 0, b"after", b"value");
    let addresses: Vec<_> = cluster.nodes.iter().map(|node| (node.id(), node.node.address().to_string())).collect();
    let knows = |node: &TestNode| {
        let members = node.report().members;
        let has = |(id, address): &(NodeId, String)| members.iter().any(|it| it.node == *id && it.address == *address);
        addresses.iter().all(has)
    };
    wait_until("the membership has the new addresses", || cluster.nodes.iter().all(knows));
    cluster.check_equal();
}

/// Starts a cluster of one node, whose log no longer has its beginning.
fn with_freed_log(value: &[u8]) -> TestCluster {
    let cluster = TestCluster::start(1);
    let keyspace = cluster.nodes[0].db.keyspace("k").unwrap();
    // More than a segment, so that the maintenance can free the first ones.
    (0..2_000_u32).for_each(|number| drop(keyspace.put(&number.to_be_bytes(), value).unwrap()));
    (0..2_000_u32)
        .filter(|number| number % 10 > 0)
        .for_each(|number| drop(keyspace.delete(&number.to_be_bytes()).unwrap()));
    cluster.free_log(0);
    cluster
}

/// Checks that node 1 has the state of [`with_freed_log`] and takes part in the cluster.
fn check_copy(cluster: &TestCluster, value: &[u8]) {
    cluster.wait_for_voters(2);
    put_again(cluster, 1, b"after", b"value");
    cluster.check_equal();
    let copied = cluster.nodes[1].db.keyspace("k").unwrap();
    assert_eq!(copied.get(&10_u32.to_be_bytes()).unwrap().unwrap().value, value);
    assert!(copied.get(&11_u32.to_be_bytes()).unwrap().is_none());
}

#[test]
fn a_new_node_gets_the_state_as_a_snapshot_if_the_log_no_longer_has_its_beginning() {
    let value = vec![7; 20_000];
    let mut cluster = with_freed_log(&value);
    cluster.add("n2");
    check_copy(&cluster, &value);
}

/// The disk is full when the last step of an install needs room. The node refuses the snapshot, continues, and accepts
/// the snapshot when it has room.
#[test]
fn a_node_without_room_for_a_snapshot_stays_a_member_and_takes_it_later() {
    let value = vec![7; 20_000];
    let mut cluster = with_freed_log(&value);
    let disk = SimDisk::new(1);
    disk.keep_events(1 << 14);
    disk.fail(Fault::new(Operation::Create, 1, Errno::NoSpace).on_path("INSTALLED.tmp").for_good());
    cluster.add_on(&disk, "n2");
    let is_attempt = |event: &Event| event.operation == Operation::Create && event.path == "INSTALLED.tmp";
    let attempts = || disk.events().iter().filter(|event| is_attempt(event)).count();
    wait_until("the node has refused some snapshots", || attempts() >= 3);
    assert!(cluster.nodes[1].report().leader.is_some());
    disk.clear_faults();
    check_copy(&cluster, &value);
}
