//! A node whose state differs from that of a majority, and its repair without an operator.

use std::{
    io::IoSlice,
    ops::{Bound, ControlFlow},
    path::PathBuf,
    sync::atomic::AtomicBool,
    time::{Duration, Instant},
};

use thalweg_cluster::{NodeOptions, RepairError, repair};
use thalweg_engine::{
    Database, MemberIdentity, RepairDue, RepairNote,
    snapshot::{SnapshotError, SnapshotOptions},
};
use thalweg_log::{Draft, Purpose, RecordKind};
use thalweg_serving::cluster::{ClusterError, ClusterHandle, Event};
use thalweg_store::{Applied, WriteBatch};
use thalweg_types::{Durability, Index, NodeId, ReadLevel, SpaceId, Term};

use crate::{
    cluster::{TestCluster, TestNode, database_options, wait_until},
    damage::{apply_differently, damage_tables},
    nodes::{put_through, soon, wait},
};

/// Entries between two running hashes that nodes compare.
const HASH_INTERVAL: u64 = 1024;

/// Time after which a test requests another digest. The other members compute one after some rounds of maintenance,
/// unless a newer one was requested.
const REQUEST_AGAIN: Duration = Duration::from_secs(10);

/// Starts a cluster of three nodes, the last of which has another state than the others.
fn with_other_state(repairs_itself: bool, note: &RepairNote) -> TestCluster {
    loop {
        let mut cluster = TestCluster::start(3);
        if change_state(&mut cluster, repairs_itself, note) {
            return cluster;
        }
    }
}

/// Stops a follower of a cluster, and changes its directory as a fault of its memory might: it has applied the next
/// entry, with another effect than on the other nodes. Starts it again. Returns false if another leader was elected
/// meanwhile, so that the next entry of the others has another term: consensus then finds the difference, and no hash
/// is compared.
fn change_state(cluster: &mut TestCluster, repairs_itself: bool, note: &RepairNote) -> bool {
    cluster.nodes[cluster.leader()].db.keyspace("k").unwrap().put(b"key", b"value").unwrap();
    cluster.check_equal();
    let follower = cluster.follower();
    let (path, options) = cluster.nodes.remove(follower).stop();
    let db = Database::open_member(&path, database_options(), MemberIdentity::Existing).unwrap();
    let term = db.member_parts().unwrap().machine.applied().term;
    apply_differently(&db);
    db.note_repair(note).unwrap();
    db.close().unwrap();
    drop(db);
    let leader = &cluster.nodes[cluster.leader()];
    let keyspace = leader.db.keyspace("k").unwrap();
    let is_same_term = keyspace.put(b"everywhere else", b"value").is_ok()
        && leader.db.member_parts().unwrap().machine.applied().term == term;
    if is_same_term {
        cluster.restart(path, NodeOptions { repairs_itself, ..options });
    }
    is_same_term
}

/// Writes until all nodes have another running hash to compare.
fn write_until_compared(cluster: &TestCluster) {
    let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
    for number in 0..HASH_INTERVAL + 10 {
        let _ = put_through(&keyspace, &number.to_be_bytes(), b"value");
    }
}

/// Returns the node that was started last.
fn odd(cluster: &TestCluster) -> &TestNode {
    cluster.nodes.last().expect("it was started last")
}

/// Returns the reason why the node that was started last does not serve. Writes continue until it has stopped: writes
/// that should have led to a comparison of hashes may have failed while the leader changed.
fn reason(cluster: &TestCluster) -> String {
    wait_until("the node has stopped serving", || {
        let is_stopped = odd(cluster).db.stopped_serving().is_some();
        if !is_stopped {
            let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
            let _ = put_through(&keyspace, b"more", b"value");
        }
        is_stopped
    });
    odd(cluster).db.stopped_serving().unwrap()
}

fn repair_is_due(node: &TestNode, within: Duration) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(within, node.node.repair_is_due()).await.is_ok() })
}

#[test]
fn a_node_whose_state_differs_gets_that_of_another_member_by_itself() {
    let mut cluster = with_other_state(true, &RepairNote::default());
    write_until_compared(&cluster);
    let reason = reason(&cluster);
    assert!(reason.contains("gets the state of another member"), "{reason}");
    assert!(repair_is_due(odd(&cluster), Duration::from_secs(60)));
    let after = repair_odd(&mut cluster);
    assert!(after.0.is_multiple_of(HASH_INTERVAL), "{after}");
    write_until_compared(&cluster);
    cluster.check_equal();
    let repaired = &odd(&cluster).db;
    assert_eq!(repaired.stopped_serving(), None);
    let keyspace = repaired.find_keyspace("k").unwrap();
    assert!(keyspace.get(b"only here").unwrap().is_none() && keyspace.get(b"everywhere else").unwrap().is_some());
}

/// Repairs the node that was started last, as its directory notes, and starts it again. Returns the entry of the note.
fn repair_odd(cluster: &mut TestCluster) -> Index {
    let (path, options) = cluster.nodes.pop().unwrap().stop();
    let db = Database::open_member(&path, database_options(), MemberIdentity::Existing).unwrap();
    let (note, applied) = (db.repair_note().unwrap(), db.member_parts().unwrap().machine.applied());
    let due = note.due.clone().expect("a repair is due");
    assert_eq!(due.sources.len(), 2);
    // An interrupted repair changes nothing.
    let stopped = repair(&db, cluster.id, &options, &AtomicBool::new(true));
    assert!(matches!(stopped, Err(RepairError::Stopped)), "{stopped:?}");
    assert_eq!((db.repair_note().unwrap(), db.member_parts().unwrap().machine.applied()), (note, applied));
    let installed = repair(&db, cluster.id, &options, &AtomicBool::new(false)).unwrap();
    assert_eq!(db.repair_note().unwrap(), RepairNote { done: Some(installed.applied.index), due: None });
    assert!(installed.applied.index >= due.after && due.sources.iter().any(|(node, _)| *node == installed.from));
    db.close().unwrap();
    drop(db);
    cluster.restart(path, options);
    cluster.wait_for_voters(3);
    due.after
}

/// Starts a cluster of three nodes with equal states in tables, and damages the tables of one of them.
fn cluster_with_damaged_tables(repairs_itself: bool) -> TestCluster {
    let mut cluster = TestCluster::start(3);
    let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
    let mut word = 1_u64;
    for number in 0..150_u32 {
        // Bytes that compression does not make much shorter.
        let mut random = || {
            word ^= word << 13;
            word ^= word >> 7;
            word ^= word << 17;
            word.to_le_bytes()
        };
        let value: Vec<u8> = (0..250).flat_map(|_| random()).collect();
        let _ = put_through(&keyspace, &number.to_be_bytes(), &value);
    }
    // The others have running hashes that show that they agree.
    write_until_compared(&cluster);
    cluster.check_equal();
    let follower = cluster.follower();
    let (path, options) = cluster.nodes.remove(follower).stop();
    damage_tables(&path);
    cluster.restart(path, NodeOptions { repairs_itself, ..options });
    cluster.wait_for_voters(3);
    cluster
}

/// A new member would wait for ever for the snapshot of a leader that cannot read its own state.
#[test]
fn a_leader_that_cannot_read_its_state_for_a_snapshot_passes_on_its_leadership() {
    let cluster = cluster_with_damaged_tables(false);
    let TestNode { node, db, .. } = odd(&cluster);
    wait_until("the damaged node leads", || {
        wait(node.transfer(Some(odd(&cluster).id()), soon())).is_ok() && node.leads()
    });
    let mut snapshot = db.snapshot(&SnapshotOptions::default()).unwrap();
    while let Ok(Some(_)) = snapshot.next_chunk() {}
    let found = db.scrub_stats();
    assert!(found.is_state_damaged && found.rounds == 0 && found.damages == 1, "{found:?}");
    wait_until("another node leads", || !node.leads());
    assert_eq!(db.stopped_serving(), None, "it serves what it can read");
}

#[test]
fn a_node_whose_scrub_finds_damage_in_the_state_gets_that_of_another_member() {
    let mut cluster = cluster_with_damaged_tables(true);
    let found = odd(&cluster).db.scrub();
    assert!(found.is_state_damaged, "{found:?}");
    let reason = reason(&cluster);
    assert!(
        reason.contains("its state is damaged") && repair_is_due(odd(&cluster), Duration::from_secs(60)),
        "{reason}"
    );
    repair_odd(&mut cluster);
    cluster.check_equal();
    let repaired = &odd(&cluster).db;
    assert_eq!(repaired.scrub().damages, 0);
    assert!(repaired.find_keyspace("k").unwrap().get(&149_u32.to_be_bytes()).unwrap().is_some());
}

/// Changes the value of a row of a closed node without an entry, as a fault of its disk might that no checksum shows.
fn change_row(db: &Database, key: &[u8]) {
    let parts = db.member_parts().unwrap();
    let backend = parts.machine.backend();
    let mut changed = WriteBatch::new();
    let contains = |bytes: &[u8], part: &[u8]| bytes.windows(part.len()).any(|window| window == part);
    let mut change = |row: &[u8], value: &[u8]| {
        if contains(row, key) && value.ends_with(b"value") {
            let mut other = value.to_vec();
            *other.last_mut().unwrap() ^= 1;
            changed.put(&[row], &[&other]);
        }
        ControlFlow::Continue(())
    };
    backend.view().scan_once(Bound::Unbounded, &mut change).unwrap();
    assert!(!changed.is_empty());
    // The state persists only what is new in the log: its own vote again.
    let applied = parts.machine.applied();
    let vote = parts.machine.vote().unwrap().expect("it has voted");
    let (term, index, time) = (Term::ZERO, Index::ZERO, applied.time);
    let payload = &[IoSlice::new(&vote)];
    let draft = Draft { space: SpaceId::ZERO, kind: RecordKind::Vote, term, index, time, payload };
    let lsn = parts.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first;
    backend.apply(&changed, Applied { lsn: lsn.next(), ..applied }).unwrap();
    backend.flush().unwrap();
}

#[test]
fn a_row_that_differs_is_found_by_the_digests_that_the_leader_requests() {
    let mut cluster = TestCluster::start_with_digests(3, Duration::from_secs(8));
    cluster.nodes[cluster.leader()].db.keyspace("k").unwrap().put(b"a changed row", b"value").unwrap();
    cluster.check_equal();
    let follower = cluster.follower();
    let (path, options) = cluster.nodes.remove(follower).stop();
    let db = Database::open_member(&path, database_options(), MemberIdentity::Existing).unwrap();
    change_row(&db, b"a changed row");
    db.close().unwrap();
    drop(db);
    cluster.restart(path, options);
    cluster.wait_for_voters(3);
    let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
    put_through(&keyspace, b"later", b"value");
    // The running hashes are equal, so only the digests show it.
    wait_until("the node has stopped serving", || odd(&cluster).db.stopped_serving().is_some());
    let reason = odd(&cluster).db.stopped_serving().unwrap();
    assert!(reason.contains("differs from that of a majority"), "{reason}");
    let sound = cluster.nodes.iter().filter(|node| node.db.stopped_serving().is_none()).count();
    assert_eq!(sound, 2);
}

/// Each of the states can be the right one. The first node that compares finds two others that still serve, and whose
/// running hashes are equal, because they do not show what has changed.
#[test]
fn no_node_repairs_itself_while_no_majority_has_equal_states() {
    let mut cluster = TestCluster::start(3);
    let keyspace = cluster.nodes[cluster.leader()].db.keyspace("k").unwrap();
    let changed: [&[u8]; 2] = [b"the first row", b"the second row"];
    for key in changed {
        put_through(&keyspace, key, b"value");
    }
    drop(keyspace);
    cluster.check_equal();
    let mut stopped = Vec::new();
    while let Some(node) = cluster.nodes.pop() {
        stopped.push(node.stop());
    }
    for ((path, _), key) in stopped.iter().zip(changed) {
        let db = Database::open_member(path, database_options(), MemberIdentity::Existing).unwrap();
        change_row(&db, key);
        db.close().unwrap();
    }
    for (path, options) in stopped {
        cluster.restart(path, NodeOptions { repairs_itself: true, ..options });
    }
    cluster.wait_for_voters(3);
    write_until_compared(&cluster);
    cluster.check_equal();
    assert!(cluster.nodes.iter().all(|node| !node.db.hash_marks().is_empty()), "they state their hashes");
    let reason_of = |node: &TestNode| node.db.stopped_serving();
    wait_until("all nodes have stopped serving", || {
        if cluster.nodes.iter().all(|node| node.db.last_state_digest().is_none()) {
            // It fails if leadership moves.
            let _ = cluster.nodes[cluster.leader()].db.state_digest();
        }
        cluster.nodes.iter().all(|node| reason_of(node).is_some())
    });
    for node in &cluster.nodes {
        assert!(!repair_is_due(node, Duration::from_millis(500)), "{:?}", reason_of(node));
        assert!(reason_of(node).unwrap().contains("no majority has equal states"), "{:?}", reason_of(node));
        assert_eq!(node.db.repair_note().unwrap(), RepairNote::default());
    }
}

/// Stops a node that does not lead, and changes one of its rows.
fn stop_with_other_row(cluster: &mut TestCluster, key: &[u8]) -> (PathBuf, NodeOptions) {
    let follower = cluster.follower();
    let (path, options) = cluster.nodes.remove(follower).stop();
    let db = Database::open_member(&path, database_options(), MemberIdentity::Existing).unwrap();
    change_row(&db, key);
    db.close().unwrap();
    (path, NodeOptions { repairs_itself: true, ..options })
}

/// Waits until nodes have stopped serving because they are undecided, and checks that each says so. Only digests show
/// it, so the leader requests one.
fn until_undecided(cluster: &TestCluster, nodes: &[NodeId]) {
    let is_meant = |node: &&TestNode| nodes.contains(&node.id());
    let mut asked: Option<Instant> = None;
    wait_until("the nodes have stopped serving", || {
        if asked.is_none_or(|at| at.elapsed() > REQUEST_AGAIN) {
            // It fails if leadership moves.
            let _ = cluster.nodes[cluster.leader()].db.state_digest();
            asked = Some(Instant::now());
        }
        cluster.nodes.iter().filter(is_meant).all(|node| node.db.stopped_serving().is_some())
    });
    for node in cluster.nodes.iter().filter(is_meant) {
        let reason = node.db.stopped_serving().unwrap();
        assert!(reason.starts_with("undecided: "), "{reason}");
        wait_until("its report says so", || node.report().undecided_after.is_some());
        let events = node.node.events().after(0).1;
        let undecided = events.iter().filter(|event| event.event == Event::Undecided(node.id()));
        assert_eq!(undecided.count(), 1);
        assert_eq!(node.db.repair_note().unwrap(), RepairNote::default());
    }
}

/// One of the two states is wrong, and nobody knows which.
#[test]
fn no_half_of_the_members_serves_if_the_other_half_differs() {
    let mut cluster = TestCluster::start(2);
    put_through(&cluster.nodes[cluster.leader()].db.keyspace("k").unwrap(), b"a changed row", b"value");
    cluster.check_equal();
    let (path, options) = stop_with_other_row(&mut cluster, b"a changed row");
    cluster.restart(path, options);
    cluster.wait_for_voters(2);
    let both: Vec<NodeId> = cluster.nodes.iter().map(TestNode::id).collect();
    until_undecided(&cluster, &both);
    assert!(!repair_is_due(odd(&cluster), Duration::from_millis(500)));
}

/// The node cannot know that the member that is down has the state of the two others.
#[test]
fn an_undecided_node_is_repaired_once_a_majority_answers() {
    let mut cluster = TestCluster::start(4);
    put_through(&cluster.nodes[cluster.leader()].db.keyspace("k").unwrap(), b"a changed row", b"value");
    cluster.check_equal();
    let follower = cluster.follower();
    let down = cluster.nodes.remove(follower).stop();
    let (path, options) = stop_with_other_row(&mut cluster, b"a changed row");
    cluster.restart(path, options);
    cluster.wait_for_voters(4);
    let (at, id) = (cluster.nodes.len() - 1, odd(&cluster).id());
    until_undecided(&cluster, &[id]);
    let serving = cluster.nodes.iter().filter(|node| node.db.stopped_serving().is_none()).count();
    assert_eq!(serving, 2, "the state of these two can be that of a majority");
    cluster.restart(down.0, down.1);
    // The member that was down may have skipped a digest while it caught up. The leader requests another one.
    wait_until("the note says that a repair is due", || cluster.nodes[at].db.repair_note().unwrap().due.is_some());
    let odd = &cluster.nodes[at];
    // No running hash has shown it, and none shows which members are right.
    assert!(repair_is_due(odd, Duration::from_secs(60)));
    assert_eq!(odd.db.repair_note().unwrap().due.expect("it is due").sources.len(), 3);
    wait_until("it is decided", || odd.report().undecided_after.is_none());
    let reason = odd.db.stopped_serving().unwrap();
    assert!(reason.contains("differs from that of a majority"), "{reason}");
}

/// Two members that do not serve would otherwise pass the leadership to each other for ever: they have as many entries
/// as the third one, and higher ids.
#[test]
fn the_leadership_passes_to_the_voter_that_serves() {
    let cluster = TestCluster::start(3);
    let mut nodes: Vec<&TestNode> = cluster.nodes.iter().collect();
    nodes.sort_by_key(|node| node.id());
    let [serving, other, leader] = nodes[..] else { panic!("three nodes") };
    wait_until("the node with the highest id leads", || {
        wait(leader.node.transfer(Some(leader.id()), soon())).is_ok() && leader.node.leads()
    });
    for node in [other, leader] {
        node.db.stop_serving("a test has stopped it");
    }
    wait_until("the node that serves leads", || serving.node.leads());
}

#[test]
fn a_node_that_differs_again_after_a_repair_waits_for_a_person() {
    let done = RepairNote { done: Some(Index(1)), due: None };
    let cluster = with_other_state(true, &done);
    write_until_compared(&cluster);
    let reason = reason(&cluster);
    assert!(reason.contains("a fault of its own") && reason.contains("thalweg cluster repair"), "{reason}");
    assert!(!repair_is_due(odd(&cluster), Duration::from_millis(500)));
    let note = odd(&cluster).db.repair_note().unwrap();
    assert!(note.done == done.done && note.due.is_some_and(|due| due.sources.is_empty()));
}

#[test]
fn a_node_that_differs_does_not_serve_after_a_restart_either() {
    let mut cluster = with_other_state(false, &RepairNote::default());
    write_until_compared(&cluster);
    let first = reason(&cluster);
    assert!(first.contains("stop it, repair it with `thalweg cluster repair`"), "{first}");
    wait_until("the directory notes it", || odd(&cluster).db.repair_note().unwrap().due.is_some());
    assert!(!repair_is_due(odd(&cluster), Duration::from_millis(500)));
    let (path, options) = cluster.nodes.pop().unwrap().stop();
    cluster.restart(path, options);
    let restarted = odd(&cluster);
    assert_eq!(restarted.db.stopped_serving().as_ref(), Some(&first), "at once, before it compares anything");
    assert_eq!(restarted.node.try_read(ReadLevel::Stale), None);
    let read = wait(restarted.node.read(ReadLevel::Stale, soon()));
    assert!(matches!(&read, Err(ClusterError::StoppedServing { reason }) if *reason == first), "{read:?}");
    let snapshot = restarted.db.snapshot(&SnapshotOptions::default());
    assert!(matches!(snapshot, Err(SnapshotError::StoppedServing { .. })), "no member gets its state");
    // It takes part in consensus meanwhile, and the note outlives that.
    cluster.wait_for_voters(3);
    let (path, options) = cluster.nodes.pop().unwrap().stop();
    cluster.restart(path, NodeOptions { repairs_itself: true, ..options });
    assert!(reason(&cluster).contains("gets the state of another member"));
    assert!(repair_is_due(odd(&cluster), Duration::from_secs(60)), "the others still state their hashes");
    repair_odd(&mut cluster);
    cluster.check_equal();
    assert_eq!(odd(&cluster).db.stopped_serving(), None);
}

/// Such a leader would propose no expiries and no digests, and give no snapshot to a follower.
#[test]
fn a_node_that_does_not_serve_passes_on_each_leadership() {
    let mut cluster = TestCluster::start(3);
    let follower = cluster.follower();
    let (path, options) = cluster.nodes.remove(follower).stop();
    let db = Database::open_member(&path, database_options(), MemberIdentity::Existing).unwrap();
    let due = RepairDue { after: Index(1), sources: Vec::new() };
    db.note_repair(&RepairNote { done: None, due: Some(due) }).unwrap();
    db.close().unwrap();
    drop(db);
    cluster.restart(path, NodeOptions { repairs_itself: false, ..options });
    cluster.wait_for_voters(3);
    let target = odd(&cluster).id();
    for _ in 0..2 {
        wait_until("it was elected", || {
            let leader = &cluster.nodes[cluster.leader()];
            leader.id() != target && wait(leader.node.transfer(Some(target), soon())) == Ok(target)
        });
        wait_until("another node leads", || cluster.nodes.iter().any(|node| node.id() != target && node.node.leads()));
    }
    assert!(odd(&cluster).db.stopped_serving().is_some());
}
