//! Members whose disks are full.

use std::{sync::Arc, time::Duration};

use thalweg_cluster::{Node, NodeOptions};
use thalweg_disk::SimDisk;
use thalweg_engine::{BackendKind, Database, MemberIdentity, Options, WriteError};
use thalweg_serving::cluster::{ClusterHandle, MemberRole};
use thalweg_types::{Classified, SystemClock};

use crate::cluster::{database_options, node_options, wait_until};

/// Bytes that a node reserves on its disk for the writes that it must make even if the disk is full otherwise.
const RESERVE: u64 = 64 << 20;

/// A node on a simulated disk.
struct Member {
    db: Database,
    node: Node,
    disk: SimDisk,
    name: String,
}

impl Member {
    /// Leaves less of the disk free than its reserve.
    fn fill(&self) {
        self.disk.set_capacity(u64::MAX);
        let used = u64::MAX - thalweg_disk::Disk::free_bytes(&self.disk).unwrap();
        self.disk.set_capacity(used + RESERVE / 2);
    }

    fn empty(&self) {
        self.disk.set_capacity(1 << 40);
    }

    /// Returns true if all nodes know whether this one is full.
    fn is_known(&self, all: &[Self], is_full: bool) -> bool {
        all.iter().all(|other| {
            let report = other.node.report();
            report.find(&self.name).is_some_and(|member| member.is_full == is_full)
        })
    }
}

fn three() -> Vec<Member> {
    let mut members: Vec<Member> = Vec::new();
    for number in 1..=3_u64 {
        let (disk, name) = (SimDisk::new(number), format!("n{number}"));
        disk.set_capacity(1 << 40);
        let options = Options {
            backend: Some(BackendKind::Memory),
            reserve_bytes: RESERVE,
            maintenance_interval: Duration::from_millis(100),
            ..database_options()
        };
        let identity = match members.first() {
            None => MemberIdentity::Found,
            Some(first) => MemberIdentity::Join { cluster: first.db.report().cluster.unwrap() },
        };
        let clock = Arc::new(SystemClock::default());
        let db = Database::open_member_on(Arc::new(disk.clone()), clock, number, options, identity).unwrap();
        let join = members.iter().map(|member| member.node.address().to_string()).collect();
        let cluster = db.report().cluster.unwrap();
        let node = Node::start(&db, cluster, NodeOptions { join, ..node_options(&name) }).unwrap();
        members.push(Member { db, node, disk, name });
    }
    wait_until("all nodes vote and know their names and leader", || {
        members.iter().all(|member| {
            let report = member.node.report();
            let is_voter = |name: &str| report.find(name).is_some_and(|member| member.role == MemberRole::Voter);
            ["n1", "n2", "n3"].into_iter().all(is_voter) && report.leader.is_some()
        })
    });
    members
}

fn put(member: &Member, key: &[u8]) -> Result<(), WriteError> {
    member.db.keyspace("k")?.put(key, b"value").map(drop)
}

/// Writes until the write is acknowledged. Elections can interrupt it on a busy machine.
fn put_soon(what: &str, member: &Member, key: &[u8]) {
    wait_until(what, || put(member, key).is_ok());
}

fn leader(members: &[Member]) -> usize {
    let mut found = None;
    wait_until("a node leads", || {
        found = members.iter().position(|member| member.node.leads());
        found.is_some()
    });
    found.unwrap()
}

#[test]
fn one_full_follower_stops_nothing_and_a_majority_of_full_voters_refuses_data_until_one_has_room() {
    let members = three();
    put_soon("a write", &members[0], b"a");
    let leads = leader(&members);
    let followers: Vec<&Member> =
        members.iter().enumerate().filter(|(at, _)| *at != leads).map(|(_, member)| member).collect();
    followers[0].fill();
    wait_until("all nodes know who is full", || followers[0].is_known(&members, true));
    wait_until("all report room", || members.iter().all(|member| member.node.report().has_room()));
    members.iter().for_each(|member| put_soon("one full voter stops nothing", member, member.name.as_bytes()));

    followers[1].fill();
    for member in &members {
        wait_until("new data is refused on each node, and the full ones are named", || match put(member, b"b") {
            Err(error @ WriteError::NoRoom { .. }) => {
                let text = error.to_string();
                assert_eq!(error.code(), "disk_full");
                followers.iter().all(|follower| text.contains(&follower.name))
            }
            _ => false,
        });
        wait_until("each node reports it", || !member.node.report().has_room());
    }
    for member in &members {
        let keyspace = member.db.find_keyspace("k").unwrap();
        wait_until("deletes pass", || keyspace.delete(b"a").is_ok());
    }

    followers[0].empty();
    members.iter().for_each(|member| put_soon("a majority has room again", member, b"c"));
    assert!(members.iter().all(|member| member.db.find_keyspace("k").unwrap().get(b"a").unwrap().is_none()));
}

#[test]
fn a_leader_with_a_full_disk_passes_its_leadership_to_one_with_room() {
    let members = three();
    put_soon("a write", &members[0], b"a");
    let full = leader(&members);
    members[full].fill();
    wait_until("a node with room leads and accepts data", || {
        let leads = leader(&members);
        leads != full && put(&members[leads], b"b").is_ok()
    });
    put_soon("the full node forwards to it", &members[full], b"c");
}
