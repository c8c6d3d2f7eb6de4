//! The cluster over HTTP: reads by level, the administrators' token, changes of members, events, and a stop.

use std::sync::Arc;

use serde_json::{Value, json};
use thalweg_server::cluster::{AdminToken, ClusterError, Event, MemberHealth, MemberRole};
use thalweg_types::{Index, NodeId, Revision};
use tokio::sync::Notify;

use crate::support::{
    Client, Node, PATIENCE, Reply,
    cluster::{Barriers, FakeCluster, member, taken},
    holds,
};

const CHANGES: [&str; 7] = ["join", "leave", "shutdown", "promote", "remove", "transfer", "join-token"];

struct Member {
    node: Node,
    cluster: Arc<FakeCluster>,
    admin: AdminToken,
    /// Notified when an administrator asks that the node stops.
    stop_requested: Arc<Notify>,
}

impl Member {
    async fn start() -> Self {
        let (fake, cluster, admin) = FakeCluster::new();
        let stop_requested = Arc::clone(&cluster.stop_requested);
        Self { node: Node::in_cluster(cluster, |_| ()).await, cluster: fake, admin, stop_requested }
    }

    async fn post(&self, path: &str, body: &Value) -> Reply {
        let token = format!("Bearer {}", self.admin.reveal());
        let headers = [("content-type", "application/json"), ("authorization", token.as_str())];
        self.node.call("POST", &format!("/v1/cluster/{path}"), &headers, body.to_string().as_bytes()).await
    }

    async fn read(&self, level: &str) -> Reply {
        self.node.call("GET", "/v1/kv/k/a", &[("thalweg-read", level), ("thalweg-timeout", "0")], b"").await
    }
}

#[tokio::test]
async fn a_node_alone_says_that_it_is_not_clustered() {
    let node = Node::start().await;
    for path in ["status", "members", "nodes", "replicas", "events"] {
        node.get(&format!("/v1/cluster/{path}")).await.refused(409, "not_clustered", "fix");
    }
    for path in CHANGES.into_iter().chain(["digest"]) {
        node.call("POST", &format!("/v1/cluster/{path}"), &[], b"").await.refused(409, "not_clustered", "fix");
    }
    node.put("/v1/kv/k/a", b"1").await.is(204);
    let reply = node.call("GET", "/v1/kv/k/a", &[("thalweg-read", "stale")], b"").await.is(200);
    assert!(!reply.headers.contains_key("thalweg-shown"), "{reply:?}");
}

#[tokio::test]
async fn changes_need_the_admin_token_on_loopback_too() {
    let member = Member::start().await;
    let json = ("content-type", "application/json");
    let wrong = format!("Bearer {}x", member.admin.reveal());
    let basic = format!("Basic {}", member.admin.reveal());
    for path in CHANGES {
        let target = format!("/v1/cluster/{path}");
        let body = br#"{"node":"n2"}"#;
        member.node.call("POST", &target, &[json], body).await.refused(401, "token_missing", "fix");
        for (given, code) in [(wrong.as_str(), "token_wrong"), ("Bearer ", "token_missing"), (&basic, "token_missing")]
        {
            member.node.call("POST", &target, &[json, ("authorization", given)], body).await.refused(401, code, "fix");
        }
    }
    assert_eq!(member.node.get("/v1/cluster/members").await.is(200).json()["members"].as_array().unwrap().len(), 3);
    let token = member.post("join-token", &json!({})).await.is(200).json();
    assert!(token["token"].as_str().unwrap().starts_with("thalweg-join-"), "{token}");
    assert_eq!(token["addresses"], json!(["127.0.0.1:1", "127.0.0.1:2", "127.0.0.1:3"]));
}

#[tokio::test]
async fn the_version_is_raised_with_the_token_once_all_members_know_it() {
    let member = Member::start().await;
    let json = ("content-type", "application/json");
    let raise = async |body: Value| {
        let token = format!("Bearer {}", member.admin.reveal());
        let headers = [json, ("authorization", token.as_str())];
        member.node.call("POST", "/v1/state/version", &headers, body.to_string().as_bytes()).await
    };
    for to in [1, 2] {
        let body = json!({ "to": to }).to_string();
        let reply = member.node.call("POST", "/v1/state/version", &[json], body.as_bytes()).await;
        reply.refused(401, "token_missing", "fix");
    }
    raise(json!({ "to": 1 })).await.is(200);
    let message = |error: &Value| error["message"].as_str().unwrap().to_owned();
    let unknown = raise(json!({ "to": 2, "force": true })).await.refused(409, "version_unknown", "fix");
    assert!(message(&unknown).starts_with("n1, n2, n3 can't execute version 2"), "{unknown}");
    [1, 2].into_iter().for_each(|node| member.cluster.set_version(node, Ok(2)));
    let unknown = raise(json!({ "to": 2, "force": true })).await.refused(409, "version_unknown", "fix");
    assert!(message(&unknown).starts_with("n3 can't"), "{unknown}");
    member.cluster.set_version(3, Err("it is down".to_owned()));
    let silent = raise(json!({ "to": 2 })).await.refused(409, "version_unconfirmed", "fix");
    assert!(message(&silent).starts_with("n3 did not say"), "{silent}");
    // The members pass, and the server itself refuses.
    for known in [Err("it is down".to_owned()), Ok(2)] {
        member.cluster.set_version(3, known);
        let refused = raise(json!({ "to": 2, "force": true })).await.refused(409, "version_unknown", "fix");
        assert!(message(&refused).contains("upgrade the node first"), "{refused}");
    }
    assert_eq!(member.node.get("/v1/state/version").await.is(200).json()["in_force"], 1);
}

#[tokio::test]
async fn reads_wait_for_their_level_and_show_a_revision() {
    let member = Member::start().await;
    member.node.put("/v1/kv/k/a", b"1").await.is(204);
    let before = member.cluster.begun();
    assert_eq!(member.node.get("/v1/kv/k/a").await.is(200).header("thalweg-shown"), "7");
    assert_eq!(member.cluster.begun(), before + 1, "reads are linearizable by default");
    member.cluster.set(Barriers::Closed);
    assert_eq!(member.read("stale").await.is(200).header("thalweg-shown"), "7");
    member.read("at-least=7").await.is(200);
    let error = member.read("at-least=8").await.refused(503, "revision_not_reached", "retry");
    assert_eq!(error["applied"], 7);
    for level in ["linearizable", "lease"] {
        let reply = member.read(level).await;
        assert_eq!(reply.header("retry-after"), "1");
        reply.refused(503, "read_timeout", "retry");
    }
    for wrong in ["", "fresh", "at-least", "at-least=x"] {
        member.read(wrong).await.refused(400, "bad_header", "fix");
    }
    let bad = [("thalweg-timeout", "soon")];
    member.node.call("GET", "/v1/kv/k/a", &bad, b"").await.refused(400, "bad_header", "fix");
    member.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    for target in ["/v1/kv/k/a", "/v1/kv/k", "/v1/streams/s/records", "/keys/a", "/v0/entity?id=a", "/v1/watch/k"] {
        member.node.get(target).await.refused(503, "no_leader", "retry");
    }
    member.node.call("HEAD", "/v1/kv/k/a", &[], b"").await.is(503);
}

#[tokio::test]
async fn a_follower_looks_up_names_behind_a_barrier_and_a_leader_without() {
    let member = Member::start().await;
    member.node.put("/v1/streams/s/groups/g", b"").await.is(201);
    // A leader also asks for a barrier before it answers that a group has no records.
    member.node.call("POST", "/v1/streams/s/records", &[], b"1").await.is(200);
    member.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    let fetch = json!({ "member": "m" });
    member.node.post_json("/v1/streams/s/groups/g/fetch", &fetch).await.is(200);
    member.cluster.change(|report| report.leader = Some(NodeId(2)));
    member.node.post_json("/v1/streams/s/groups/g/fetch", &fetch).await.refused(503, "no_leader", "retry");
    member.node.put("/v1/kv/k/a", b"1").await.is(204);
}

/// A node that counts as leader asks for a read barrier before it reports that a name does not exist, because another
/// node may already lead.
#[tokio::test]
async fn a_leader_that_does_not_find_a_name_looks_again_behind_a_barrier() {
    let member = Member::start().await;
    member.node.put("/v1/streams/s", b"").await.is(201);
    let json = [("content-type", "application/json")];
    let settled = r#"{"attempts":[{"attempt":1}]}"#;
    let acks = r#"{"then":[{"op":"ack","stream":"s","group":"g","attempts":[{"attempt":1}]}]}"#;
    let requests = [
        ("DELETE", "/v1/kv/none/a", "", 204),
        ("DELETE", "/v1/kv/none?prefix=a", "", 200),
        ("PATCH", "/v1/kv/none/a?ttl=1", "", 404),
        ("PATCH", "/v1/keyspaces/none", "{}", 404),
        ("DELETE", "/v1/keyspaces/none", "", 404),
        ("PATCH", "/v1/streams/none", "{}", 404),
        ("DELETE", "/v1/streams/none", "", 404),
        ("POST", "/v1/streams/none/trim", r#"{"before":1}"#, 404),
        ("PATCH", "/v1/streams/s/groups/g", "{}", 404),
        ("DELETE", "/v1/streams/s/groups/g", "", 404),
        ("POST", "/v1/streams/s/groups/g/fetch", "{}", 404),
        ("POST", "/v1/streams/s/groups/g/ack", settled, 404),
        ("POST", "/v1/streams/s/groups/g/nack", settled, 404),
        ("POST", "/v1/streams/s/groups/g/extend", r#"{"attempts":[1],"by_seconds":1}"#, 404),
        ("POST", "/v1/streams/s/groups/g/seek", r#"{"to":{"offset":4}}"#, 404),
        ("GET", "/v1/streams/s/groups/g/push", "", 404),
        ("POST", "/v1/txn", acks, 404),
    ];
    for (method, target, body, without) in requests {
        member.cluster.set(Barriers::Failing(ClusterError::NoLeader));
        let reply = member.node.call(method, target, &json, body.as_bytes()).await;
        assert_eq!(reply.status, 503, "{method} {target}: {reply:?}");
        member.cluster.set(Barriers::Open);
        let reply = member.node.call(method, target, &json, body.as_bytes()).await;
        assert_eq!(reply.status, without, "{method} {target}: {reply:?}");
    }
}

/// Another node may lead already, and have deleted the stream or created it anew.
#[tokio::test]
async fn a_stream_to_create_exists_only_behind_a_barrier() {
    let member = Member::start().await;
    let begun = member.cluster.begun();
    member.node.put("/v1/streams/s", b"").await.is(201);
    member.node.put("/v1/keyspaces/k", b"").await.is(201);
    assert_eq!(member.cluster.begun(), begun, "the log orders what is created");
    for leader in [1, 2] {
        member.cluster.change(|report| report.leader = Some(NodeId(leader)));
        member.cluster.set(Barriers::Failing(ClusterError::NoLeader));
        member.node.put("/v1/streams/s", b"").await.refused(503, "no_leader", "retry");
        // An existing keyspace is the outcome of a command, which a node that has been replaced cannot commit.
        member.node.put("/v1/keyspaces/k", b"").await.is(200);
        member.cluster.set(Barriers::Closed);
        let short = [("thalweg-timeout", "0")];
        member.node.call("PUT", "/v1/streams/s", &short, b"").await.refused(503, "read_timeout", "retry");
        member.cluster.set(Barriers::Open);
        let begun = member.cluster.begun();
        member.node.put("/v1/streams/s", b"").await.is(200);
        assert_eq!(member.cluster.begun(), begun + 1);
    }
}

/// The stream is deleted, and the member learns of it with the barrier.
#[tokio::test]
async fn a_stream_that_was_deleted_before_the_barrier_is_created_anew() {
    let member = Member::start().await;
    let first = member.node.put("/v1/streams/s", b"").await.is(201).json();
    member.cluster.set(Barriers::Closed);
    let begun = member.cluster.begun();
    let (again, ()) = tokio::join!(member.node.put("/v1/streams/s", b""), async {
        member.cluster.until_begun(begun + 1).await;
        member.node.call("DELETE", "/v1/streams/s", &[], b"").await.is(204);
        member.cluster.set(Barriers::Open);
    });
    let second = again.is(201).json();
    assert_ne!(second["id"], first["id"]);
}

/// A fetch that finds nothing waits for the cluster no longer than its request states, whatever else it waits for.
#[tokio::test]
async fn an_empty_fetch_waits_for_its_barrier_as_long_as_its_request_states() {
    let member = Member::start().await;
    let group = "/v1/streams/s/groups/g";
    member.node.put_json(group, &json!({})).await.is(201);
    member.cluster.set(Barriers::Closed);
    let headers = [("content-type", "application/json"), ("thalweg-timeout", "0")];
    let body = json!({ "wait_seconds": 0.01 }).to_string();
    let begun = std::time::Instant::now();
    let reply = member.node.call("POST", &format!("{group}/fetch"), &headers, body.as_bytes()).await;
    reply.refused(503, "read_timeout", "retry");
    assert!(begun.elapsed() < std::time::Duration::from_secs(4), "as long as a request that states no time");
}

#[tokio::test]
async fn a_transaction_that_only_reads_is_a_read_on_the_leader_too() {
    let member = Member::start().await;
    member.node.put("/v1/kv/k/a", b"1").await.is(204);
    let reading = json!({
        "conditions": [{ "keyspace": "k", "key": "a", "expect": "present" }],
        "then": [{ "op": "get", "keyspace": "k", "key": "a" }],
        "else": [{ "op": "scan", "keyspace": "k" }],
    });
    let writing = json!({ "then": [{ "op": "get", "keyspace": "k", "key": "a" }],
        "else": [{ "op": "put", "keyspace": "k", "key": "a", "value": "2" }] });
    let send = async |body: &Value, level: &str| {
        let headers = [("content-type", "application/json"), ("thalweg-read", level), ("thalweg-timeout", "0")];
        let headers = if level.is_empty() { &headers[..1] } else { &headers[..] };
        member.node.call("POST", "/v1/txn", headers, body.to_string().as_bytes()).await
    };
    let before = member.cluster.begun();
    let reply = send(&reading, "").await.is(200);
    assert_eq!((reply.header("thalweg-shown"), &reply.json()["results"][0]["value"]), ("7", &json!("1")));
    assert_eq!(member.cluster.begun(), before + 1, "reads are linearizable by default");
    assert!(!send(&writing, "").await.is(200).headers.contains_key("thalweg-shown"));
    assert_eq!(member.cluster.begun(), before + 1, "the log orders it");
    member.cluster.set(Barriers::Failing(ClusterError::NoLeader));
    for leader in [1, 2] {
        member.cluster.change(|report| report.leader = Some(NodeId(leader)));
        send(&reading, "").await.refused(503, "no_leader", "retry");
        send(&reading, "lease").await.refused(503, "no_leader", "retry");
        assert_eq!(send(&reading, "stale").await.is(200).header("thalweg-shown"), "7");
        send(&reading, "at-least=7").await.is(200);
        send(&reading, "fresh").await.refused(400, "bad_header", "fix");
    }
    send(&writing, "").await.refused(503, "no_leader", "retry");
    send(&writing, "stale").await.refused(503, "no_leader", "retry");
}

#[tokio::test]
async fn the_members_and_their_lag_are_shown() {
    let member_ = Member::start().await;
    member_.cluster.change(|report| {
        report.members[1].lag = Some(thalweg_server::cluster::Lag { entries: 11, bytes: 1 });
        report.members[1].behind = Some(thalweg_server::cluster::ElapsedMillis(6000));
        report.members.push(member(4, MemberRole::Voter, MemberHealth::Down));
    });
    let status = member_.node.get("/v1/cluster/status").await.is(200).json();
    for (name, wanted) in [
        ("node", json!("0000000000000001")),
        ("name", json!("n1")),
        ("role", json!("voter")),
        ("leads", json!(true)),
        ("leader", json!("0000000000000001")),
        ("leader_name", json!("n1")),
        ("term", json!(5)),
        ("commit_index", json!(41)),
        ("applied_revision", json!(7)),
        ("voters", json!(3)),
        ("learners", json!(1)),
        ("majority", json!(true)),
    ] {
        assert_eq!(status[name], wanted, "{name}: {status}");
    }
    let replicas = member_.node.get("/v1/cluster/replicas").await.is(200).json();
    let statuses: Vec<_> = replicas["replicas"].as_array().unwrap().iter().map(|one| &one["status"]).collect();
    assert_eq!(statuses, ["alive", "lagging and stale", "suspect", "down"]);
    assert_eq!((&replicas["stale_after_millis"], &replicas["replicas"][1]["lag_entries"]), (&json!(5000), &json!(11)));
    let nodes = member_.node.get("/v1/cluster/nodes").await.is(200).json();
    assert_eq!(nodes["nodes"][0]["http"], json!(member_.node.address.to_string()), "the node announced its address");
    let shown = member_.node.get("/v1/status").await.is(200).json();
    assert_eq!((&shown["cluster"]["leads"], &shown["cluster"]["voters"]), (&json!(true), &json!(3)));
    let metrics = String::from_utf8(member_.node.get("/metrics").await.is(200).body).unwrap();
    for line in [
        "thalweg_cluster_leads 1",
        "thalweg_cluster_members{role=\"voter\",health=\"down\"} 1",
        "thalweg_cluster_lag_entries{node=\"n2\"} 11",
        "thalweg_cluster_link_sent_bytes_total{node=\"n2\",channel=\"control\"} 60",
        "thalweg_cluster_link_received_bytes_total{node=\"n2\",channel=\"control\"} 70",
        "thalweg_cluster_behind_millis{node=\"n2\"} 6000",
        "thalweg_cluster_subject_filters{node=\"n2\"} 3",
        "thalweg_cluster_subject_queue_bytes{node=\"n2\"} 4",
        "thalweg_cluster_subject_sent_messages_total{node=\"n2\"} 5",
        "thalweg_cluster_subject_dropped_messages_total{node=\"n2\"} 6",
        "thalweg_cluster_subject_received_messages_total{node=\"n2\"} 7",
    ] {
        holds(&metrics, line);
    }
    member_.node.get("/ready").await.is(200);
    member_.cluster.change(|report| report.leader = None);
    member_.node.get("/ready").await.refused(503, "no_leader", "retry");
    member_.node.get("/health").await.is(200);
}

#[tokio::test]
async fn a_node_without_a_majority_of_equal_states_says_so() {
    let member_ = Member::start().await;
    for (after, shown, figure) in [(None, json!(null), 0), (Some(Index(7)), json!(7), 1)] {
        member_.cluster.change(|report| report.undecided_after = after);
        let status = member_.node.get("/v1/cluster/status").await.is(200).json();
        assert_eq!(status["undecided_after"], shown);
        let metrics = String::from_utf8(member_.node.get("/metrics").await.is(200).body).unwrap();
        holds(&metrics, &format!("thalweg_cluster_states_undecided {figure}"));
    }
}

/// Prometheus drops series that are there twice.
#[tokio::test]
async fn members_with_one_name_have_series_of_their_own() {
    let member_ = Member::start().await;
    member_.cluster.change(|report| report.members[2].name = "n2".to_owned());
    let metrics = String::from_utf8(member_.node.get("/metrics").await.is(200).body).unwrap();
    for line in [
        "thalweg_cluster_lag_entries{node=\"n1\"} 2",
        "thalweg_cluster_lag_entries{node=\"n2 (0000000000000002)\"} 2",
        "thalweg_cluster_lag_entries{node=\"n2 (0000000000000003)\"} 2",
        "thalweg_cluster_subject_filters{node=\"n2 (0000000000000002)\"} 3",
    ] {
        holds(&metrics, line);
    }
    let series: Vec<_> = metrics.lines().filter(|line| !line.starts_with('#')).collect();
    let names: std::collections::BTreeSet<_> =
        series.iter().filter_map(|line| Some(line.rsplit_once(' ')?.0)).collect();
    assert_eq!(names.len(), series.len(), "no series is there twice");
}

/// Another node, or an earlier version, may have given a name that this version does not accept.
#[tokio::test]
async fn metrics_escape_the_names_of_members() {
    let member_ = Member::start().await;
    member_.cluster.change(|report| report.members[1].name = "a\nb\u{202e}\"".to_owned());
    let metrics = String::from_utf8(member_.node.get("/metrics").await.is(200).body).unwrap();
    holds(&metrics, r#"thalweg_cluster_lag_entries{node="a\\nb\\u{202e}\""} 2"#);
    assert!(!metrics.contains('\u{202e}'));
}

#[tokio::test]
async fn the_last_voter_does_not_leave() {
    let member = Member::start().await;
    member.cluster.change(|report| report.members.retain(|member| member.node != NodeId(2)));
    let error = member.post("leave", &json!({})).await.refused(409, "last_voter", "fix");
    holds(error["message"].as_str().unwrap(), "add another one first");
    assert!(member.cluster.stopped.lock().unwrap().is_empty(), "the leadership stays where it is");
}

#[tokio::test]
async fn members_are_added_promoted_and_removed() {
    let member = Member::start().await;
    let joining = json!({ "node": "00000000000000ff", "address": "h:7072", "name": "new" });
    assert_eq!(member.post("join", &joining).await.is(200).json(), json!({ "node": "00000000000000ff" }));
    let error = member.post("join", &joining).await.refused(409, "already_member", "fix");
    holds(error["message"].as_str().unwrap(), "new is a member already");
    for wrong in [
        json!({ "node": "ff", "address": "h:1" }),
        json!({ "node": "0000000000000000", "address": "h:1" }),
        json!({ "node": "00000000000000fe", "address": "h" }),
        json!({ "node": "00000000000000fe", "address": "h:1", "name": "x".repeat(65) }),
        json!({ "node": "00000000000000fe", "address": "h:1", "name": "a\nb" }),
        json!({ "node": "00000000000000fe", "address": "h:1", "name": "1n\u{202e}" }),
        json!({ "node": "00000000000000fe", "address": format!("{}:1", "h".repeat(254)) }),
        json!({ "node": "00000000000000fe", "address": "h:1", "zone": "z" }),
        json!({ "node": "00000000000000fe", "address": "h:1", "other": 1 }),
    ] {
        member.post("join", &wrong).await.refused(400, "bad_json", "fix");
    }
    for was_voter in [false, true] {
        let promoted = member.post("promote", &json!({ "node": "new" })).await.is(200).json();
        assert_eq!(promoted, json!({ "node": "00000000000000ff", "was_voter": was_voter }));
    }
    member.post("promote", &json!({ "node": "n9" })).await.refused(404, "no_such_member", "fix");
    let leader = member.post("transfer", &json!({ "to": "0000000000000002" })).await.is(200).json();
    assert_eq!(leader, json!({ "leader": "0000000000000002", "leader_name": "n2" }));
    let error = member.post("transfer", &json!({ "to": "n3" })).await.refused(409, "not_voter", "fix");
    holds(error["message"].as_str().unwrap(), "n3 is a learner");
    member.cluster.change(|report| report.members[1].health = MemberHealth::Down);
    let error = member.post("remove", &json!({ "node": "n1" })).await.refused(409, "quorum_at_risk", "fix");
    holds(error["message"].as_str().unwrap(), "0 of 2 voters");
    member.post("remove", &json!({ "node": "n3", "force": true })).await.is(204);
    // A program repeats the request by the id. The name could be that of another node by now.
    let again = member.post("remove", &json!({ "node": "0000000000000003" })).await.is(200).json();
    assert_eq!(again, json!({ "node": "0000000000000003", "already_removed": true }));
    for unknown in ["n3", "0000000000000009"] {
        member.post("remove", &json!({ "node": unknown })).await.refused(404, "no_such_member", "fix");
    }
    member.post("remove", &json!({})).await.refused(400, "bad_json", "fix");
    let names: Vec<_> = member.cluster_members().await;
    assert_eq!(names, ["n1", "n2", "new"]);
    let lines = ("accept", "application/x-ndjson");
    let events = member.node.call("GET", "/v1/cluster/events?after=0&limit=4", &[lines], b"").await.is(200).lines();
    let removed = ["event", "node", "name"].map(|name| &events[4][name]);
    assert_eq!(removed, ["removed", "0000000000000003", "n3"], "it has its name although it is no member any more");
    let compared = member.node.call("POST", "/v1/cluster/digest", &[], b"").await.is(200).json();
    assert_eq!((&compared["equal"], &compared["members"][1]["missing"]), (&json!(true), &json!("down")));
}

impl Member {
    async fn cluster_members(&self) -> Vec<String> {
        let members = self.node.get("/v1/cluster/members").await.is(200).json();
        let name = |member: &Value| member["name"].as_str().unwrap().to_owned();
        members["members"].as_array().unwrap().iter().map(name).collect()
    }
}

/// A node that has lost its directory joins again with a new id, and has the name of the former one.
#[tokio::test]
async fn a_name_of_two_members_stands_for_neither() {
    let member = Member::start().await;
    member.cluster.change(|report| report.members[2].name = "n2".to_owned());
    for (what, field) in [("remove", "node"), ("promote", "node"), ("transfer", "to")] {
        let error = member.post(what, &json!({ field: "n2" })).await.refused(400, "ambiguous_member", "fix");
        holds(error["message"].as_str().unwrap(), "0000000000000002, 0000000000000003");
    }
    member.post("remove", &json!({ "node": "0000000000000003", "force": true })).await.is(204);
    assert_eq!(member.cluster_members().await, ["n1", "n2"]);
}

#[tokio::test]
async fn a_leader_that_leaves_hands_leadership_over_first() {
    let member = Member::start().await;
    member.post("leave", &json!({ "node": "n2" })).await.refused(400, "other_node", "fix");
    member.post("leave", &json!({ "node": "n1" })).await.is(204);
    assert_eq!(*member.cluster.stopped.lock().unwrap(), ["hand over"]);
    assert_eq!(member.cluster_members().await, ["n2", "n3"]);
    let status = member.node.get("/v1/cluster/status").await.is(200).json();
    assert_eq!((&status["role"], &status["leader"]), (&Value::Null, &json!("0000000000000002")));
    // The request is repeated, because its answer was lost. The name is none of a member any more.
    member.post("leave", &json!({ "node": "0000000000000001" })).await.is(204);
    member.post("leave", &json!({ "node": "n1" })).await.refused(400, "other_node", "fix");
}

/// Two members have one name after one of them has lost its directory. The other one may run as well.
#[tokio::test]
async fn a_node_leaves_and_stops_by_a_name_of_its_own_or_by_its_id() {
    let member = Member::start().await;
    member.cluster.change(|report| report.members[2].name = "n1".to_owned());
    for what in ["leave", "shutdown"] {
        member.post(what, &json!({ "node": "n1" })).await.refused(400, "ambiguous_member", "fix");
    }
    // It was removed, and still runs.
    member.cluster.change(|report| report.members.retain(|member| member.node != NodeId(1)));
    member.post("shutdown", &json!({ "node": "0000000000000002" })).await.refused(400, "other_node", "fix");
    member.post("shutdown", &json!({ "node": "0000000000000001" })).await.is(202);
}

#[tokio::test]
async fn an_administrator_stops_the_node_that_answers() {
    let member = Member::start().await;
    member.post("shutdown", &json!({ "node": "n2" })).await.refused(400, "other_node", "fix");
    let stopping = member.post("shutdown", &json!({ "node": "n1" })).await.is(202).json();
    assert_eq!(stopping, json!({ "node": "0000000000000001" }));
    tokio::time::timeout(PATIENCE, member.stop_requested.notified()).await.expect("the program is asked to stop");
}

async fn event(client: &mut Client) -> String {
    String::from_utf8(client.chunk().await.unwrap()).unwrap()
}

#[tokio::test]
async fn events_are_streamed_and_resumed() {
    let member = Member::start().await;
    let mut client = member.node.connect().await;
    client.send("GET", "/v1/cluster/events", &[], b"").await;
    client.head().await.is(200);
    let run = member.cluster.run();
    let position = event(&mut client).await;
    assert_eq!(position, format!("id: 0\nevent: position\ndata: {{\"after\":0,\"run\":{run}}}\n\n"));
    member.post("promote", &json!({ "node": "n3" })).await.is(200);
    let promoted = event(&mut client).await;
    holds(&promoted, "id: 1\nevent: promoted\n");
    holds(&promoted, "\"name\":\"n3\"");
    member.post("transfer", &json!({})).await.is(200);
    holds(&event(&mut client).await, "id: 2\nevent: leader\n");
    let lines = [("accept", "application/x-ndjson"), ("last-event-id", "1")];
    let resumed = member.node.call("GET", "/v1/cluster/events?limit=1", &lines, b"").await.is(200).lines();
    assert_eq!((resumed[1]["sequence"].as_u64(), resumed[1]["term"].as_u64()), (Some(2), Some(6)), "{resumed:?}");
    let all = member.node.call("GET", "/v1/cluster/events?after=0&limit=2", &lines[..1], b"").await.is(200).lines();
    assert_eq!(all.len(), 3);
    let path = format!("/v1/cluster/events?after=1&run={run}&limit=1");
    let resumed = member.node.call("GET", &path, &lines[..1], b"").await.is(200).lines();
    assert_eq!((&resumed[0], &resumed[1]["sequence"]), (&json!({ "after": 1, "run": run }), &json!(2)));
    // Positions of another run, and ones that this run has not reached.
    for path in [format!("after=1&run={}", run ^ 1), "after=7".to_owned()] {
        let path = format!("/v1/cluster/events?{path}&limit=2");
        let all = member.node.call("GET", &path, &lines[..1], b"").await.is(200).lines();
        assert_eq!(all[0], json!({ "after": 0, "run": run, "unknown": true }));
        assert_eq!((all.len(), &all[1]["sequence"]), (3, &json!(1)));
    }
    for sequence in 3..2000 {
        member.cluster.push(sequence, Event::Suspect(NodeId(2)));
    }
    let gap = member.node.call("GET", "/v1/cluster/events?after=0&limit=1", &lines[..1], b"").await.is(200).lines();
    assert_eq!((&gap[1]["gap"], &gap[2]["sequence"]), (&json!(975), &json!(976)), "{gap:?}");
    member.node.get("/v1/cluster/events?x=1").await.refused(400, "unknown_parameter", "fix");
}

#[tokio::test]
async fn a_stop_hands_leadership_over_while_the_server_still_serves() {
    let member = Member::start().await;
    member.cluster.change(|report| (report.commit_index, report.applied_revision) = (Index(50), Revision(9)));
    let Member { node, cluster, .. } = member;
    node.stop().await;
    assert_eq!(*cluster.stopped.lock().unwrap(), ["hand over", "stop"]);
}

#[tokio::test]
async fn a_request_is_answered_on_another_node() {
    let member = Member::start().await;
    member.node.call("POST", "/v1/ask/sums", &[], b"1").await.refused(503, "no_responders", "retry");
    let other = member.cluster.other_node(&["sums"]);
    let mut asking = member.node.connect().await;
    asking.send("POST", "/v1/ask/sums", &[], b"1 + 1").await;
    let asked = loop {
        match taken(&other).pop() {
            Some(asked) => break asked.batch,
            None => tokio::time::sleep(std::time::Duration::from_millis(1)).await,
        }
    };
    let reply = thalweg_wire::Batch::decode(asked.encoded()).unwrap().reply();
    let announced = member.cluster.broker().announcement(None).unwrap();
    assert!(announced.filters.iter().any(|(filter, _)| *filter.pattern == *reply), "the inbox is announced");
    let mut writer = thalweg_wire::BatchWriter::with_capacity(reply, b"", 1).unwrap();
    writer.push_payload(b"2").unwrap();
    let answer = writer.into_shared(thalweg_wire::Checksum::Without).unwrap();
    let subject = thalweg_broker::Subject::parse(reply).unwrap();
    let answer = thalweg_broker::Batch::new(subject, answer.bytes, answer.count).unwrap();
    assert_eq!(member.cluster.broker().publish_from_node(&answer, &[]).delivered, 1);
    assert_eq!(&*asking.reply("POST").await.is(200).body, b"2");
    let published = member.node.call("POST", "/v1/subjects/sums", &[], b"x").await.is(200).json();
    assert_eq!(published, json!({ "messages": 1, "delivered": 0, "missed": 0, "nodes": 1 }));
    assert_eq!(taken(&other).len(), 1);
    member.node.stop().await;
}
