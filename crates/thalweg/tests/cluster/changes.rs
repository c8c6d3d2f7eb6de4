//! Changes of a cluster: scaling, learners and their promotion, events, copies into a new cluster, and data of earlier
//! versions.

use std::path::Path;

use serde_json::{Value, json};

use crate::{
    Cluster, Founding, Links, agent, get,
    node::{Printing, Run, command, run},
    operations::{Writer, check},
    put, until,
};

/// `thalweg cluster events` at a node.
struct Watch(Printing);

impl Watch {
    fn start(cluster: &Cluster, number: usize) -> Self {
        let mut watch = command();
        watch.args(["cluster", "events", "--past", "--json"]).env("THALWEG_SERVER", &cluster.node(number).url);
        Self(Printing::start(&mut watch))
    }

    /// Waits until an event of this kind about the node with this id was printed.
    fn until(&self, event: &str, node: &str) {
        let is_it = |line: &String| {
            let line: Value = serde_json::from_str(line).expect("each line is an event");
            line["event"] == event && line["node"] == node
        };
        until(&format!("{event} {node}"), || self.0.lines().iter().any(is_it));
    }
}

/// Asks the first node to admit a node. Returns true if it did.
fn join(cluster: &Cluster, node: &Value) -> bool {
    let request = agent().post(cluster.url(0, "/v1/cluster/join")).content_type("application/json");
    let request = request.header("authorization", format!("Bearer {}", cluster.tokens.admin));
    request.send(node.to_string()).is_ok_and(|reply| reply.status() == 200)
}

fn role(cluster: &Cluster, name: &str) -> Option<String> {
    let members = cluster.members();
    members.iter().find(|member| member["name"] == name)?["role"].as_str().map(str::to_owned)
}

/// Removes a node, and ends it. Repeats a request that fails: an election may be going on, or a change that was just
/// made, or the node leads.
fn remove(cluster: &mut Cluster, number: usize) {
    let name = format!("n{number}");
    until("the node is removed", || {
        let is_removed = cluster.cli(0, &["remove", &name]).code == Some(0) || role(cluster, &name).is_none();
        if !is_removed && cluster.status(number)["leads"] == true {
            cluster.cli(0, &["transfer", "n0"]);
        }
        is_removed
    });
    cluster.take(number).kill();
}

#[test]
fn a_cluster_grows_from_one_node_to_five_and_shrinks_again_while_writes_go_on() {
    let mut cluster = Cluster::start(1);
    let writer = Writer::start(vec![cluster.node(0).url.clone()]);
    for more in [2, 2] {
        let count = cluster.nodes.len() + more;
        for _ in 0..more {
            cluster.add();
        }
        cluster.until_voters(count);
        writer.until_more(20);
    }
    for left in [3, 1] {
        for number in (left..left + 2).rev() {
            remove(&mut cluster, number);
        }
        cluster.until_voters(left);
        writer.until_more(20);
    }
    let (acknowledged, longest) = writer.end();
    println!("{} writes, longest time without one {longest:?}", acknowledged.len());
    check(&cluster, &acknowledged);
    assert_eq!(cluster.members().len(), 1);
}

#[test]
fn nodes_leave_by_themselves_except_for_the_last_voter() {
    let mut cluster = Cluster::start(2);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    cluster.cli(follower, &["leave"]).ok();
    let left = cluster.take(follower);
    until("it is not ready", || get(&format!("{}/ready", left.url), &[]).is_some_and(|(status, _)| status == 503));
    cluster.until_voters(1);
    let refused = cluster.cli(leader, &["leave"]).fails(2);
    assert!(refused.contains("last voter"), "{refused}");
    until("it serves", || put(&cluster.url(leader, "/v1/kv/k/a"), "1").is_some_and(|(status, _)| status == 204));
    let last = cluster.take(leader);
    last.signal(libc::SIGTERM);
    let (_, log) = last.wait(crate::PATIENCE);
    assert!(log.contains("a node was removed from the cluster"), "{log}");
}

#[test]
fn a_learner_stays_one_until_it_is_promoted_and_events_are_watched() {
    let mut cluster = Cluster::start(1);
    let watch = Watch::start(&cluster, 0);
    // The first start of a node gives it an id, with which it is admitted as a learner.
    cluster.addresses.push(crate::free_address());
    let there = cluster.addresses[0].clone();
    cluster.addresses[0] = crate::free_address();
    let number = cluster.add();
    let id = cluster.status(number)["node"].as_str().expect("a node has an id").to_owned();
    cluster.take(number).stop();
    cluster.addresses[0] = there;
    let learner = json!({ "node": id, "address": cluster.addresses[number], "name": "n1", "learner": true });
    until("the learner is admitted", || join(&cluster, &learner));
    watch.until("joined", &id);
    // It has nothing yet.
    let behind = cluster.cli(0, &["promote", "n1"]);
    assert_ne!(behind.code, Some(0), "{}", behind.out);
    cluster.restart(number);
    until("the write is acknowledged", || {
        put(&cluster.url(0, "/v1/kv/k/a"), "1").is_some_and(|(status, _)| status == 204)
    });
    until("the learner has the data", || {
        get(&cluster.url(number, "/v1/kv/k/a"), &[("thalweg-read", "stale")]) == Some((200, b"1".to_vec()))
    });
    assert_eq!(role(&cluster, "n1").as_deref(), Some("learner"));
    let votes = || role(&cluster, "n1").as_deref() == Some("voter");
    until("the learner is promoted", || cluster.cli(0, &["promote", "n1"]).code == Some(0) || votes());
    until("it votes", votes);
    watch.until("promoted", &id);
    until("a repeated command succeeds", || {
        let again = cluster.cli(0, &["promote", "n1"]);
        again.code == Some(0) && again.out.contains("n1 is a voter already")
    });
    cluster.until_voters(2);
    cluster.take(number).kill();
    watch.until("down", &id);
    cluster.restart(number);
    watch.until("alive", &id);
    cluster.until_voters(2);
    until("the node leads", || {
        cluster.cli(0, &["transfer", "n1"]).code == Some(0) || cluster.status(number)["leads"] == true
    });
    watch.until("leader", &id);
    remove(&mut cluster, number);
    watch.until("removed", &id);
}

fn cli(args: &[&str]) -> Run {
    run(command().args(args), b"")
}

/// Restores a backup into a directory, and makes a cluster of two nodes of it.
fn restored(backup: &Path) -> Cluster {
    let mut cluster = Cluster::prepare(2, Founding::ByFirst, Links::Plain);
    cli(&["restore", backup.to_str().unwrap(), "--data", cluster.data(0).to_str().unwrap()]).ok();
    cluster.add();
    cluster.leader();
    cluster.add();
    cluster.until_voters(2);
    cluster
}

fn assert_equal(cluster: &Cluster) {
    let compared: Value = serde_json::from_str(&cluster.cli(0, &["digest", "--json"]).out).unwrap();
    assert_eq!(compared["equal"], true, "{compared}");
}

#[test]
fn a_backup_of_a_cluster_becomes_a_new_cluster() {
    let cluster = Cluster::start(3);
    let (leader, follower) = (cluster.leader(), cluster.follower());
    let writer = Writer::start(vec![cluster.node(leader).url.clone()]);
    writer.until_more(50);
    until("records are appended", || cluster.node(leader).cli(&["append", "jobs", "one", "two"]).code == Some(0));
    let file = cluster.root.join("backup.tws");
    let (before, _) = writer.end();
    // A follower may not have applied the last writes yet; a linearizable read waits for them.
    let last = format!("/v1/kv/k/{}", before.last().expect("a write"));
    until("the follower has all", || get(&cluster.url(follower, &last), &[]).is_some_and(|(status, _)| status == 200));
    cluster.node(follower).cli(&["backup", "--to", file.to_str().unwrap()]).ok();
    let new = restored(&file);
    check(&new, &before);
    let records = new.node(1).cli(&["read", "jobs"]).ok();
    assert!(records.contains("one") && records.contains("two"), "{records}");
    let id = |cluster: &Cluster| cluster.status(0)["cluster"].as_str().expect("an id").to_owned();
    assert_ne!(id(&new), id(&cluster), "it is another cluster");
}

/// There is no earlier release, but earlier formats: data of the oldest that is still read becomes a cluster of this
/// version. The version of the state machine is raised by command, on all nodes at once, and never beyond what the
/// nodes know.
#[test]
fn data_of_an_earlier_format_is_upgraded_in_place() {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../snapshot/tests/golden/snapshot-full-v2.tws");
    let cluster = restored(&golden);
    let version = |number: usize| {
        let (_, body) = get(&cluster.url(number, "/v1/state/version"), &[]).expect("an answer");
        serde_json::from_slice::<Value>(&body).unwrap()
    };
    let known = version(0)["known"].as_u64().expect("a version");
    let without_token = cluster.node(1).cli(&["state", "raise-version", &known.to_string()]).fails(2);
    assert!(without_token.contains("admin token"), "{without_token}");
    let raise = |to: u64| {
        let mut command = command();
        command.args(["state", "raise-version", &to.to_string()]).env("THALWEG_ADMIN_TOKEN", &cluster.tokens.admin);
        run(command.env("THALWEG_SERVER", &cluster.node(1).url), b"")
    };
    until("the version is in force", || raise(known).code == Some(0));
    for number in 0..2 {
        until("each node has it", || version(number)["in_force"] == known);
    }
    let refused = raise(known + 1).fails(2);
    assert!(refused.contains("version"), "{refused}");
    until("the cluster serves", || put(&cluster.url(1, "/v1/kv/new/a"), "1").is_some_and(|(status, _)| status == 204));
    assert_equal(&cluster);
}
