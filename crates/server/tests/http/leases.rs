//! Leases and deadlines over real sockets. Tests use the machine's clock if no time must pass, and otherwise a clock
//! that the test moves.

use std::{sync::Arc, time::Duration};

use serde_json::{Value, json};
use thalweg_disk::SimDisk;
use thalweg_engine::{Database, types::Clock, types::ManualClock, types::SpaceTime};

use crate::support::{Node, config, small_options};

const SECOND: Duration = Duration::from_secs(1);

/// Starts a server on a simulated disk, with a clock that the test moves.
async fn by_hand() -> (Node, Arc<ManualClock>) {
    let config = config();
    let clock = Arc::new(ManualClock::default());
    clock.step_wall(SpaceTime(1_795_000_000_000_000));
    let options = small_options(&config);
    let db = Database::open_on(Arc::new(SimDisk::new(1)), clock.clone(), 1, options).unwrap();
    (Node::over(config, db).await, clock)
}

async fn granted(node: &Node, ttl: f64) -> u64 {
    let reply = node.post_json("/v1/leases", &json!({ "ttl_seconds": ttl })).await.is(201);
    assert_eq!((reply.header("thalweg-durability"), &reply.json()["ttl_seconds"]), ("disk", &json!(ttl)));
    reply.json()["id"].as_u64().unwrap()
}

async fn left(node: &Node, key: &str) -> f64 {
    node.get(key).await.is(200).header("thalweg-ttl").parse().unwrap()
}

#[tokio::test]
async fn a_lease_is_granted_described_kept_alive_and_revoked() {
    let (node, clock) = by_hand().await;
    let id = granted(&node, 10.0).await;
    let lease = format!("/v1/leases/{id}");
    let put = [("thalweg-lease", id.to_string())];
    let put: Vec<_> = put.iter().map(|(name, value)| (*name, value.as_str())).collect();
    node.call("PUT", "/v1/kv/a/one", &put, b"1").await.is(204);
    node.put(&format!("/v1/kv/a/%FF?lease={id}&ttl=5"), b"2").await.is(204);
    clock.advance(4 * SECOND);
    let shown = node.get(&lease).await.is(200).json();
    assert_eq!(
        (&shown["remaining_seconds"], &shown["about_keys"], &shown["more"]),
        (&json!(6.0), &json!(2), &json!(false))
    );
    let keys = json!([{ "keyspace": "a", "key": "one" }, { "keyspace": "a", "key_base64": "/w==" }]);
    assert_eq!(shown["keys"], keys);
    let one = node.get(&format!("{lease}?limit=1")).await.is(200).json();
    assert_eq!((one["keys"].as_array().unwrap().len(), &one["more"]), (1, &json!(true)));
    let got = node.get("/v1/kv/a/one").await.is(200);
    assert_eq!((got.header("thalweg-lease"), got.header("thalweg-ttl")), (id.to_string().as_str(), "6.000000"));
    assert_eq!(left(&node, "/v1/kv/a/%FF").await, 1.0, "the earlier of its own end and the lease's");
    let kept = node.post_json(&format!("{lease}/keep-alive"), &json!({})).await.is(200).json();
    assert_eq!((kept["id"].as_u64(), kept["durability"].as_str()), (Some(id), Some("disk")));
    assert_eq!(left(&node, "/v1/kv/a/one").await, 10.0);
    clock.advance(9 * SECOND);
    node.get("/v1/kv/a/%FF").await.refused(404, "not_found", "fix");
    node.delete(&lease).await.is(204);
    node.get("/v1/kv/a/one").await.refused(404, "not_found", "fix");
    node.get(&lease).await.refused(404, "no_such_lease", "fix");
    node.delete(&lease).await.refused(404, "no_such_lease", "fix");
    node.call("PUT", "/v1/kv/a/one", &put, b"1").await.refused(404, "no_such_lease", "fix");
    node.stop().await;
}

#[tokio::test]
async fn leases_are_listed_in_pages() {
    let node = Node::start().await;
    let mut ids = Vec::new();
    for _ in 0..5 {
        ids.push(granted(&node, 100.0).await);
    }
    let (mut found, mut target) = (Vec::new(), "/v1/leases?limit=2".to_owned());
    loop {
        let page = node.get(&target).await.is(200).json();
        let page_ids: Vec<u64> =
            page["leases"].as_array().unwrap().iter().map(|lease| lease["id"].as_u64().unwrap()).collect();
        assert!(page_ids.len() <= 2);
        found.extend(page_ids);
        let Some(cursor) = page["cursor"].as_u64() else { break };
        target = format!("/v1/leases?limit=2&cursor={cursor}");
    }
    assert_eq!(found, ids);
    node.stop().await;
}

#[tokio::test]
async fn a_chosen_id_is_free_once_its_lease_has_ended_and_its_keys_are_removed() {
    let (node, clock) = by_hand().await;
    let grant = json!({ "ttl_seconds": 10, "id": 7 });
    node.post_json("/v1/leases", &grant).await.is(201);
    node.post_json("/v1/leases", &grant).await.refused(409, "lease_exists", "fix");
    clock.advance(10 * SECOND);
    node.post_json("/v1/leases", &grant).await.is(201);
    node.put("/v1/kv/a/k?lease=7", b"1").await.is(204);
    clock.advance(10 * SECOND);
    node.post_json("/v1/leases", &grant).await.refused(409, "lease_exists", "fix");
    assert_eq!(node.db.maintain().unwrap().expired_keys, 1);
    node.post_json("/v1/leases", &grant).await.is(201);
    node.get("/v1/kv/a/k").await.refused(404, "not_found", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_stepped_wall_clock_changes_no_deadline() {
    let (node, clock) = by_hand().await;
    let start = clock.wall();
    let id = granted(&node, 10.0).await;
    node.put("/v1/kv/a/own?ttl=10", b"1").await.is(204);
    node.put(&format!("/v1/kv/a/leased?lease={id}"), b"1").await.is(204);
    for step in [start.plus(1_000_000 * SECOND), SpaceTime(1), start.minus(1000 * SECOND)] {
        clock.step_wall(step);
        for key in ["/v1/kv/a/own", "/v1/kv/a/leased"] {
            assert_eq!(left(&node, key).await, 10.0, "at wall time {step}");
        }
        // A write happens at this time, too.
        node.put("/v1/kv/a/other", b"1").await.is(204);
    }
    clock.advance(9 * SECOND);
    assert_eq!((left(&node, "/v1/kv/a/own").await, left(&node, "/v1/kv/a/leased").await), (1.0, 1.0));
    node.call("PATCH", "/v1/kv/a/own?ttl=5", &[], b"").await.is(204);
    clock.step_wall(SpaceTime(2));
    clock.advance(SECOND);
    node.get("/v1/kv/a/leased").await.refused(404, "not_found", "fix");
    assert_eq!(left(&node, "/v1/kv/a/own").await, 4.0);
    clock.step_wall(start.plus(1_000_000 * SECOND));
    clock.advance(4 * SECOND);
    node.get("/v1/kv/a/own").await.refused(404, "not_found", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_touch_changes_the_deadline_and_nothing_else() {
    let (node, clock) = by_hand().await;
    let put = node.put("/v1/kv/a/k?ttl=10", b"value").await.is(204);
    let revision = put.header("thalweg-revision").to_owned();
    let touch = async |query: &str, headers: &[(&str, &str)]| {
        node.call("PATCH", &format!("/v1/kv/a/k{query}"), headers, b"").await
    };
    clock.advance(9 * SECOND);
    let touched = touch("?ttl=20.5", &[]).await.is(204);
    assert_eq!((touched.header("thalweg-durability"), touched.headers.get("etag")), ("disk", None));
    let got = node.get("/v1/kv/a/k").await.is(200);
    assert_eq!((got.header("thalweg-ttl"), got.header("thalweg-revision")), ("20.500000", revision.as_str()));
    touch("", &[("thalweg-ttl", "never")]).await.is(204);
    assert_eq!(node.get("/v1/kv/a/k").await.is(200).headers.get("thalweg-ttl"), None);
    touch("?ttl=1", &[("if-match", &format!("\"{revision}\""))]).await.is(204);
    touch("?ttl=9", &[("if-match", "\"999\"")]).await.refused(412, "condition_failed", "fix");
    assert_eq!(left(&node, "/v1/kv/a/k").await, 1.0);
    clock.advance(SECOND);
    touch("?ttl=1", &[]).await.refused(404, "not_found", "fix");
    node.call("PATCH", "/v1/kv/nowhere/k?ttl=1", &[], b"").await.refused(404, "no_such_keyspace", "fix");
    for (query, code) in [
        ("", "bad_parameter"),
        ("?ttl=keep", "bad_parameter"),
        ("?ttl=soon", "bad_parameter"),
        ("?ttl=0", "bad_ttl"),
        ("?ttl=1&lease=7", "bad_parameter"),
        ("?tll=1", "unknown_parameter"),
    ] {
        touch(query, &[]).await.refused(400, code, "fix");
    }
    touch("?ttl=1", &[("thalweg-ttl", "1")]).await.refused(400, "bad_parameter", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_default_ttl_holds_unless_the_put_says_otherwise() {
    let (node, _clock) = by_hand().await;
    node.put_json("/v1/keyspaces/s", &json!({ "default_ttl_seconds": 60 })).await.is(201);
    node.put("/v1/kv/s/a", b"1").await.is(204);
    node.put("/v1/kv/s/b?ttl=never", b"1").await.is(204);
    node.put("/v1/kv/s/c?ttl=5", b"1").await.is(204);
    node.put("/v1/kv/s/c?ttl=keep", b"2").await.is(204);
    assert_eq!((left(&node, "/v1/kv/s/a").await, left(&node, "/v1/kv/s/c").await), (60.0, 5.0));
    assert_eq!(node.get("/v1/kv/s/b").await.is(200).headers.get("thalweg-ttl"), None);
    node.call("PATCH", "/v1/kv/s/b?ttl=default", &[], b"").await.is(204);
    assert_eq!(left(&node, "/v1/kv/s/b").await, 60.0);
    node.stop().await;
}

#[tokio::test]
async fn commits_put_and_touch_with_deadlines_and_leases() {
    let (node, _clock) = by_hand().await;
    let id = granted(&node, 10.0).await;
    let commit = |writes: Value| json!({ "writes": writes });
    let writes = json!([
        { "op": "put", "keyspace": "a", "key": "x", "value": "1", "ttl_seconds": 3 },
        { "op": "put", "keyspace": "a", "key": "y", "value": "1", "lease": id },
        { "op": "put", "keyspace": "a", "key": "z", "value": "1", "ttl_seconds": "never" },
        { "op": "touch", "keyspace": "a", "key": "x", "ttl_seconds": 4.5 },
    ]);
    node.post_json("/v1/commit", &commit(writes)).await.is(200);
    assert_eq!((left(&node, "/v1/kv/a/x").await, left(&node, "/v1/kv/a/y").await), (4.5, 10.0));
    let late = json!([
        { "op": "put", "keyspace": "a", "key": "w", "value": "1" },
        { "op": "put", "keyspace": "a", "key": "y", "value": "2", "lease": 12345 },
    ]);
    node.post_json("/v1/commit", &commit(late)).await.refused(404, "no_such_lease", "fix");
    node.get("/v1/kv/a/w").await.refused(404, "not_found", "fix");
    for bad in [json!("soon"), json!("30"), json!(-1)] {
        let write = json!([{ "op": "put", "keyspace": "a", "key": "x", "value": "1", "ttl_seconds": bad }]);
        node.post_json("/v1/commit", &commit(write)).await.refused(400, "bad_json", "fix");
    }
    node.stop().await;
}

#[tokio::test]
async fn transactions_put_and_touch_with_deadlines_and_leases() {
    let (node, _clock) = by_hand().await;
    let id = granted(&node, 10.0).await;
    let body = json!({ "then": [
        { "op": "put", "keyspace": "a", "key": "x", "value": "1", "lease": id },
        { "op": "put", "keyspace": "a", "key": "y", "value": "1", "ttl_seconds": 3 },
        { "op": "touch", "keyspace": "a", "key": "y", "ttl_seconds": 5 },
        { "op": "touch", "keyspace": "a", "key": "z", "ttl_seconds": 5 },
    ]});
    let results = node.post_json("/v1/txn", &body).await.is(200).json()["results"].clone();
    let touched = |existed| json!({ "op": "touch", "existed": existed });
    assert_eq!(results, json!([{ "op": "put" }, { "op": "put" }, touched(true), touched(false)]));
    assert_eq!((left(&node, "/v1/kv/a/x").await, left(&node, "/v1/kv/a/y").await), (10.0, 5.0));
    let body = json!({ "then": [
        { "op": "delete", "keyspace": "a", "key": "y" },
        { "op": "put", "keyspace": "a", "key": "x", "value": "2", "lease": 12345 },
    ]});
    node.post_json("/v1/txn", &body).await.refused(404, "no_such_lease", "fix");
    node.get("/v1/kv/a/y").await.is(200);
    node.stop().await;
}

#[tokio::test]
async fn requests_that_no_lease_can_answer_are_refused() {
    let node = Node::start().await;
    node.post_json("/v1/leases", &json!({ "ttl_seconds": 0.05 })).await.refused(400, "bad_ttl", "fix");
    node.post_json("/v1/leases", &json!({ "ttl_seconds": 1, "id": 0 })).await.refused(400, "bad_lease_id", "fix");
    node.post_json("/v1/leases", &json!({ "ttl": 1 })).await.refused(400, "bad_json", "fix");
    for bad in ["x", "0", "-1", "99999999999999999999"] {
        node.get(&format!("/v1/leases/{bad}")).await.refused(400, "bad_lease_id", "fix");
        node.put(&format!("/v1/kv/a/k?lease={bad}"), b"").await.refused(400, "bad_parameter", "fix");
    }
    node.get("/v1/leases?cursor=x").await.refused(400, "bad_parameter", "fix");
    node.get("/v1/leases/7?cursor=1").await.refused(400, "unknown_parameter", "fix");
    node.call("PUT", "/v1/kv/a/k?lease=7", &[("thalweg-lease", "7")], b"").await.refused(400, "bad_parameter", "fix");
    let level = [("thalweg-durability", "none"), ("content-type", "application/json")];
    let granted = node.call("POST", "/v1/leases", &level, br#"{"ttl_seconds": 60}"#).await.is(201);
    assert_eq!(granted.header("thalweg-durability"), "os", "a lease whose id is not known is of no use");
    node.stop().await;
}

/// Many clients keep one lease alive concurrently, while its keys are put and its time passes. The lease lives as long
/// as any client renews it. Each client gets a deadline no earlier than those it got before.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keep_alives_at_once_all_count() {
    let (node, clock) = by_hand().await;
    let node = Arc::new(node);
    let id = granted(&node, 10.0).await;
    let start = clock.wall();
    let mut keepers = Vec::new();
    for keeper in 0..8 {
        let (node, clock) = (Arc::clone(&node), Arc::clone(&clock));
        keepers.push(tokio::spawn(async move {
            let mut connection = node.connect().await;
            let mut last = 0;
            for round in 0..25 {
                let target = format!("/v1/kv/a/{keeper}-{round}?lease={id}");
                connection.call("PUT", &target, &[], b"1").await.is(204);
                let path = format!("/v1/leases/{id}/keep-alive");
                let kept = connection.call("POST", &path, &[], b"").await.is(200).json();
                let deadline = kept["deadline_micros"].as_u64().unwrap();
                assert!(deadline >= last, "{deadline} after {last}");
                last = deadline;
                // 200 steps of 200 ms are four times the TTL, and no 10 s pass without a renewal.
                clock.advance(Duration::from_millis(200));
            }
            last
        }));
    }
    let mut latest = 0;
    for keeper in keepers {
        latest = latest.max(keeper.await.unwrap());
    }
    let shown = node.get(&format!("/v1/leases/{id}?limit=1000")).await.is(200).json();
    assert_eq!((shown["deadline_micros"].as_u64(), &shown["about_keys"]), (Some(latest), &json!(200)));
    assert_eq!(shown["keys"].as_array().unwrap().len(), 200);
    assert!(latest > start.plus(30 * SECOND).micros(), "it lived on");
    clock.advance(10 * SECOND);
    node.get(&format!("/v1/leases/{id}")).await.refused(404, "no_such_lease", "fix");
    assert!(node.get("/v1/kv/a?keys_only").await.is(200).lines().len() == 1, "all are hidden at once");
    Arc::into_inner(node).unwrap().stop().await;
}
