//! A cluster while nodes are killed, restarted, added and removed.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use crate::{
    Cluster, Founding, Links, PATIENCE,
    damage::damage_tables,
    node::{command, run},
    put, read, until, write,
};

/// A client that writes one key after the other, to one node after the other, and repeats a write until it is
/// acknowledged: a put of a key of its own may happen twice.
pub struct Writer {
    acknowledged: Arc<Mutex<Vec<u64>>>,
    stop: Arc<AtomicBool>,
    /// Longest time between two acknowledgements.
    longest: JoinHandle<Duration>,
}

impl Writer {
    /// Starts to write to the nodes at these addresses.
    pub fn start(urls: Vec<String>) -> Self {
        let (acknowledged, stop) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::<AtomicBool>::default());
        let (keys, stopping) = (Arc::clone(&acknowledged), Arc::clone(&stop));
        let longest = std::thread::spawn(move || {
            let (mut longest, mut last) = (Duration::ZERO, Instant::now());
            let mut attempts = urls.iter().cycle();
            for key in 0.. {
                loop {
                    if stopping.load(Ordering::Relaxed) {
                        return longest;
                    }
                    let url = attempts.next().expect("a node");
                    if put(&format!("{url}/v1/kv/k/{key}"), &key.to_string()).is_some_and(|(status, _)| status == 204) {
                        break;
                    }
                }
                longest = longest.max(last.elapsed());
                last = Instant::now();
                keys.lock().unwrap().push(key);
            }
            longest
        });
        Self { acknowledged, stop, longest }
    }

    fn count(&self) -> usize {
        self.acknowledged.lock().unwrap().len()
    }

    /// Waits until this many more writes are acknowledged.
    pub fn until_more(&self, more: usize) {
        let wanted = self.count() + more;
        until("writes go on", || self.count() >= wanted);
    }

    pub fn end(self) -> (Vec<u64>, Duration) {
        self.stop.store(true, Ordering::Relaxed);
        let longest = self.longest.join().expect("the writer");
        let keys = self.acknowledged.lock().unwrap().clone();
        (keys, longest)
    }
}

fn urls(cluster: &Cluster) -> Vec<String> {
    cluster.running().map(|(_, node)| node.url.clone()).collect()
}

/// Checks that all running nodes have all acknowledged writes, and equal states. A scan of each node shows all writes.
/// A part of the keys, with the newest ones, is also read key by key. A request for each key would take most of the
/// time of these tests.
pub fn check(cluster: &Cluster, acknowledged: &[u64]) {
    assert!(!acknowledged.is_empty());
    let newest = acknowledged.len().saturating_sub(20);
    let read_alone = |at: usize| at.is_multiple_of(16) || at >= newest;
    for (number, node) in cluster.running() {
        let mut scanned = String::new();
        until("the node scans", || {
            let run = node.cli(&["scan", "k"]);
            scanned = run.out;
            run.code == Some(0)
        });
        let pairs: BTreeMap<&str, &str> = scanned.lines().filter_map(|line| line.split_once('\t')).collect();
        for key in acknowledged.iter().map(u64::to_string) {
            assert_eq!(pairs.get(key.as_str()), Some(&key.as_str()), "key {key} in a scan of node {number}");
        }
        for (_, key) in acknowledged.iter().enumerate().filter(|(at, _)| read_alone(*at)) {
            let found = read(&cluster.url(number, &format!("/v1/kv/k/{key}")), &[]);
            assert_eq!(found, (200, key.to_string().into_bytes()), "key {key} on node {number}");
        }
    }
    let (number, _) = cluster.running().next().unwrap();
    let mut compared = serde_json::Value::Null;
    until("the members report their digests", || {
        compared = serde_json::from_str(&cluster.cli(number, &["digest", "--json"]).out).unwrap_or_default();
        compared["equal"].is_boolean()
    });
    assert_eq!(compared["equal"], true, "{compared}");
}

#[test]
fn no_acknowledged_write_is_lost_when_the_leader_is_killed() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let others = cluster.running().filter(|(number, _)| *number != leader).map(|(_, node)| node.url.clone()).collect();
    let writer = Writer::start(others);
    writer.until_more(50);
    cluster.take(leader).kill();
    writer.until_more(50);
    let next = cluster.leader();
    assert_ne!(next, leader);
    let (acknowledged, longest) = writer.end();
    println!("{} writes, longest time without one {longest:?}", acknowledged.len());
    cluster.restart(leader);
    until("the killed node is back", || cluster.status(leader)["leader"].is_string());
    check(&cluster, &acknowledged);
}

/// A member without a digest may have any state, so a comparison without it is no success.
#[test]
fn a_comparison_of_states_without_a_member_says_so() {
    let mut cluster = Cluster::start(3);
    let killed = cluster.follower();
    cluster.take(killed).kill();
    let (number, _) = cluster.running().next().unwrap();
    until("the two others are equal, and the third is missing", || {
        let compared = cluster.cli(number, &["digest"]);
        compared.code == Some(5) && compared.out.contains("equal, but 1 of 3 are missing")
    });
}

/// Each node persists its state several times a second, so that it is killed amid that. LSM, the default, is the
/// backend of the other tests.
#[test]
fn nodes_with_other_backends_lose_nothing_when_they_are_killed() {
    let mut cluster = Cluster::prepare(3, Founding::ByFirst, Links::Plain);
    let persisting = ["--max-replay-bytes", "64KiB", "--maintenance-interval", "20ms"];
    cluster.options =
        ["sqlite", "redb", "memory"].map(|backend| [&["--backend", backend][..], &persisting[..]].concat()).into();
    (0..3).for_each(|_| _ = cluster.add());
    cluster.until_voters(3);
    for number in 0..3 {
        // The address of HTTP changes with a restart, so the writer uses the nodes that stay.
        let stay = cluster.running().filter(|(other, _)| *other != number).map(|(_, node)| node.url.clone()).collect();
        let writer = Writer::start(stay);
        writer.until_more(100);
        cluster.take(number).kill();
        writer.until_more(20);
        cluster.restart(number);
        until("the killed node is back", || cluster.status(number)["leader"].is_string());
        let (acknowledged, _) = writer.end();
        check(&cluster, &acknowledged);
    }
}

#[test]
fn a_rolling_restart_loses_nothing_and_fails_no_repeated_request() {
    let mut cluster = Cluster::start(3);
    for number in 0..3 {
        // The address of HTTP changes with a restart, so the writer uses the nodes that stay.
        let stay = cluster.running().filter(|(other, _)| *other != number).map(|(_, node)| node.url.clone()).collect();
        let writer = Writer::start(stay);
        writer.until_more(20);
        cluster.take(number).stop();
        writer.until_more(20);
        cluster.restart(number);
        until("the node is back", || cluster.status(number)["leader"].is_string());
        writer.until_more(20);
        let (acknowledged, longest) = writer.end();
        println!("node {number}: {} writes, longest time without one {longest:?}", acknowledged.len());
        check(&cluster, &acknowledged);
    }
}

#[test]
fn a_failed_node_is_replaced_while_writes_go_on() {
    let mut cluster = Cluster::start(3);
    let lost = cluster.follower();
    let writer = Writer::start(vec![cluster.node(cluster.leader()).url.clone()]);
    writer.until_more(20);
    cluster.take(lost).kill();
    writer.until_more(20);
    let leader = cluster.leader();
    cluster.cli(leader, &["remove", &format!("n{lost}")]).ok();
    cluster.add();
    cluster.until_voters(3);
    writer.until_more(20);
    let (acknowledged, _) = writer.end();
    check(&cluster, &acknowledged);
    assert!(urls(&cluster).len() == 3);
}

#[test]
fn leadership_is_transferred_and_changes_need_the_token() {
    let cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let name = format!("n{follower}");
    let refused = cluster.node(leader).cli(&["cluster", "transfer", &name]).fails(2);
    assert!(refused.contains("admin token"), "{refused}");
    cluster.cli(leader, &["transfer", &name]).ok();
    until("the follower leads", || cluster.status(follower)["leads"] == true);
    // A repeated request succeeds: the leadership is there already.
    assert!(cluster.cli(leader, &["transfer", &name]).ok().ends_with(" leads\n"));
    let doctor = cluster.cli(follower, &["doctor"]).ok();
    assert!(doctor.starts_with("good") || doctor.contains("weakness"), "{doctor}");
    let members = cluster.cli(follower, &["members"]).ok();
    assert_eq!(members.lines().count(), 4, "{members}");
}

#[test]
fn a_leader_that_is_shut_down_hands_leadership_over_and_stays_a_member() {
    let mut cluster = Cluster::start(3);
    let leader = cluster.leader();
    let other = format!("n{}", cluster.follower());
    assert!(cluster.cli(leader, &["shutdown", "--node", &other]).fails(2).contains(&other));
    assert!(cluster.node(leader).cli(&["cluster", "shutdown"]).fails(2).contains("admin token"));
    write(&cluster.url(leader, "/v1/kv/k/0"), "0");
    let shown = cluster.cli(leader, &["shutdown", "--node", &format!("n{leader}")]).ok();
    assert!(shown.ends_with("stops\n"), "{shown}");
    let (status, log) = cluster.take(leader).wait(PATIENCE);
    assert!(status.success() && log.contains("stopping on a request of an administrator"), "{status}\n{log}");
    assert_ne!(cluster.leader(), leader);
    assert_eq!(cluster.members().len(), 3);
    cluster.restart(leader);
    until("the node is back", || cluster.status(leader)["leader"].is_string());
    check(&cluster, &[0]);
}

#[test]
fn a_member_with_a_damaged_state_gets_that_of_another_member_in_place() {
    let mut cluster = Cluster::start(3);
    let (leader, damaged) = (cluster.leader(), cluster.follower());
    let writer = Writer::start(vec![cluster.node(leader).url.clone()]);
    writer.until_more(50);
    for number in 0..150_u64 {
        // Bytes that compression does not make much shorter, in rows of the state.
        let mut word = 1 + number;
        let value: String = (0..2000)
            .map(|_| {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                char::from(b'!' + (word % 90) as u8)
            })
            .collect();
        write(&cluster.url(leader, &format!("/v1/kv/large/{number}")), &value);
    }
    let data = cluster.data(damaged);
    let verify = || run(command().args(["state", "verify", "--data"]).arg(&data), b"");
    let repair = |cluster: &Cluster, server: usize| {
        let mut command = command();
        command.args(["cluster", "repair", "--json", "--server", &cluster.node(server).url, "--data"]).arg(&data);
        run(&mut command, b"")
    };
    let id = |cluster: &Cluster| cluster.status(damaged)["node"].clone();
    let before = id(&cluster);
    assert!(repair(&cluster, leader).fails(5).contains("locked"));
    cluster.take(damaged).stop();
    verify().ok();
    damage_tables(&data);
    verify().fails(1);
    writer.until_more(20);
    let repaired: serde_json::Value = serde_json::from_str(&repair(&cluster, leader).ok()).unwrap();
    assert!(repaired["rows"].as_u64() > Some(150) && repaired["leftover"].is_null(), "{repaired}");
    verify().ok();
    cluster.restart(damaged);
    until("the repaired node is back", || cluster.status(damaged)["leader"].is_string());
    writer.until_more(20);
    let (acknowledged, _) = writer.end();
    check(&cluster, &acknowledged);
    assert_eq!((id(&cluster), cluster.members().len()), (before, 3), "the node is the same member");
    let left = std::fs::read_dir(&data)
        .unwrap()
        .flatten()
        .filter(|entry| entry.path().extension().is_some_and(|name| name == "partial"));
    assert_eq!(left.count(), 0);
}
