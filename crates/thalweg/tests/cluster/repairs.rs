//! A member whose state differs from that of the others, and its repair without an operator.

use std::path::Path;

use thalweg_engine::{Database, MemberIdentity, Options};

use crate::{
    Cluster,
    damage::apply_differently,
    get,
    node::{command, free_address, run},
    operations::{Writer, check},
    until,
};

/// Changes the directory of a stopped member as a fault of its memory might: it has applied an entry with another
/// effect than on the other nodes.
fn change_state(data: &Path) {
    let db = Database::open_member(data, Options::default(), MemberIdentity::Existing).unwrap();
    apply_differently(&db);
    db.close().unwrap();
}

fn note(data: &Path) -> String {
    std::fs::read_to_string(data.join("REPAIR")).unwrap_or_default()
}

/// Starts a cluster, stops a follower when nothing is written, and changes its state. Returns its number.
fn with_other_state(cluster: &mut Cluster) -> usize {
    let follower = cluster.follower();
    let acknowledged = write(cluster, 20);
    // All members have applied all entries.
    check(cluster, &acknowledged);
    cluster.take(follower).stop();
    change_state(&cluster.data(follower));
    // The entry of the others under the same index.
    write(cluster, 1);
    follower
}

/// Writes to the leader, and returns the keys.
fn write(cluster: &Cluster, count: usize) -> Vec<u64> {
    let writer = Writer::start(vec![cluster.node(cluster.leader()).url.clone()]);
    writer.until_more(count);
    writer.end().0
}

fn refused(data: &Path) -> String {
    let address = free_address();
    run(command().args(["serve", "--http", "127.0.0.1:0", "--cluster", &address, "--data"]).arg(data), b"").fails(1)
}

/// Waits until all members are alive, so that they can be compared.
fn until_alive(cluster: &Cluster) {
    until("all members are alive", || cluster.members().iter().all(|member| member["health"] == "alive"));
}

#[test]
fn a_member_that_differs_gets_the_state_of_another_one_by_itself() {
    let mut cluster = Cluster::start(3);
    cluster.repairs = true;
    let odd = with_other_state(&mut cluster);
    let data = cluster.data(odd);
    cluster.restart(odd);
    // Members compare their states after every 1024th entry.
    let acknowledged = write(&cluster, 1_100);
    // The process starts itself again, and HTTP has another port then.
    let node = cluster.take(odd);
    until("the state is replaced", || note(&data).contains("\ndone "));
    until_alive(&cluster);
    check(&cluster, &acknowledged);
    assert_eq!(cluster.members().len(), 3, "it is the same member");
    node.stop();
    run(command().args(["state", "verify", "--data"]).arg(&data), b"").ok();
}

#[test]
fn a_member_with_a_wrong_state_serves_nothing_before_its_repair() {
    let mut cluster = Cluster::start(3);
    let odd = with_other_state(&mut cluster);
    let data = cluster.data(odd);
    let others: Vec<_> = (0..3).filter(|at| *at != odd).collect();
    let line =
        |at: &usize| format!("member {} {}\n", cluster.status(*at)["node"].as_str().unwrap(), cluster.addresses[*at]);
    let due = format!("thalweg repair 1\ndue 5\n{}", others.iter().map(line).collect::<String>());
    std::fs::write(data.join("REPAIR"), "thalweg repair 2\n").unwrap();
    assert!(refused(&data).contains("thalweg cluster repair"));
    // Without a checksum, as an early build wrote it.
    std::fs::write(data.join("REPAIR"), &due).unwrap();
    cluster.restart(odd);
    let (status, body) = get(&cluster.url(odd, "/v1/kv/k/0"), &[]).expect("an answer");
    assert_eq!(status, 503);
    assert!(String::from_utf8_lossy(&body).contains("stopped_serving"));
    cluster.take(odd).stop();
    assert_eq!(note(&data).split("crc ").next(), Some(&*due), "it repairs nothing by itself");
    let acknowledged = write(&cluster, 2);
    cluster.repairs = true;
    cluster.restart(odd);
    assert!(note(&data).contains("\ndone "), "{}", note(&data));
    until_alive(&cluster);
    check(&cluster, &acknowledged);
}
