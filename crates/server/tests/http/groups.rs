//! `/v1/streams/{stream}/groups` over real sockets.

use serde_json::{Value, json};

use crate::support::{
    Node,
    jobs::{GROUP, append, fetch, offsets},
};

#[tokio::test]
async fn records_are_fetched_acked_and_given_back() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({ "max_deliveries": 2 })).await.is(201);
    node.put_json(GROUP, &json!({})).await.is(200);
    append(&node, 5).await;
    let delivery = fetch(&node, &json!({ "member": "a", "max_records": 4 })).await;
    assert_eq!((offsets(&delivery), &delivery["durability"]), (vec![0, 1, 2, 3], &json!("disk")));
    assert_eq!((&delivery["messages"][1]["payload"], &delivery["messages"][1]["deliveries"]), (&json!("1"), &json!(1)));
    let attempt = &delivery["attempt"];
    let acked = json!({ "attempts": [{ "attempt": attempt, "ranges": [[0, 1]] }] });
    let reply = node.post_json(&format!("{GROUP}/ack"), &acked).await.is(200);
    assert_eq!(reply.header("thalweg-durability"), "disk");
    assert_eq!((&reply.json()["settled"], &reply.json()["lapsed"]), (&json!(2), &json!([])));
    let again = node.post_json(&format!("{GROUP}/ack"), &acked).await.is(200).json();
    assert_eq!(again["lapsed"], json!([{ "attempt": attempt, "range": [0, 1] }]));
    let nack = json!({ "attempts": [{ "attempt": attempt, "ranges": [[3, 3]] }], "reason": "no" });
    assert_eq!(node.post_json(&format!("{GROUP}/nack"), &nack).await.is(200).json()["settled"], json!(1));
    let second = fetch(&node, &json!({})).await;
    assert_eq!((offsets(&second), &second["messages"][0]["deliveries"]), (vec![3, 4], &json!(2)));
    let info = node.get(GROUP).await.is(200).json();
    assert_eq!((&info["lag"], &info["pending"], &info["acked"]), (&json!(0), &json!(3), &json!(2)));
    assert_eq!(info["members"].as_array().unwrap().len(), 2);
    let listed = node.get("/v1/streams/jobs/groups").await.is(200).json();
    assert_eq!(listed["groups"][0]["config"]["max_deliveries"], json!(2));
    let extend = json!({ "attempts": [attempt, 1], "by_seconds": 60 });
    let extended = node.post_json(&format!("{GROUP}/extend"), &extend).await.is(200).json();
    assert_eq!(extended["lapsed"], json!([1]));
    let sought = node.post_json(&format!("{GROUP}/seek"), &json!({ "to": { "offset": 4 } })).await.is(200).json();
    assert_eq!(sought["cursor"], json!(4));
    assert_eq!(offsets(&fetch(&node, &json!({})).await), [4]);
    node.delete(GROUP).await.is(204);
    node.get(GROUP).await.refused(404, "no_such_group", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_fetch_waits_for_records() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({})).await.is(201);
    let empty = fetch(&node, &json!({ "wait_seconds": 0.01 })).await;
    assert!(offsets(&empty).is_empty() && empty.get("attempt").is_none());
    let wait = json!({ "wait_seconds": 60 });
    let (delivery, ()) = tokio::join!(fetch(&node, &wait), append(&node, 1));
    assert_eq!(offsets(&delivery), [0]);
    node.stop().await;
}

#[tokio::test]
async fn a_commit_acks_with_what_it_writes_or_not_at_all() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({})).await.is(201);
    append(&node, 2).await;
    let delivery = fetch(&node, &json!({})).await;
    let commit = json!({ "writes": [
        { "op": "put", "keyspace": "sums", "key": "k", "value": "v" },
        { "op": "append", "stream": "out", "records": [{ "payload": "p" }] },
        { "op": "ack", "stream": "jobs", "group": "workers", "attempts": [{ "attempt": delivery["attempt"] }] },
    ] });
    node.post_json("/v1/commit", &commit).await.is(200);
    let refused = node.post_json("/v1/commit", &commit).await.refused(409, "attempt_lapsed", "fix");
    assert_eq!(refused["attempt"], delivery["attempt"]);
    assert_eq!(node.get("/v1/streams/out").await.is(200).json()["next"], json!(1));
    node.stop().await;
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({ "order": "sideways" })).await.refused(400, "bad_json", "fix");
    node.put_json(GROUP, &json!({ "ack_deadline_seconds": -1 })).await.refused(400, "bad_json", "fix");
    node.put_json(GROUP, &json!({ "max_pending": 0 })).await.refused(400, "bad_group", "fix");
    node.put_json(GROUP, &json!({ "dead_letters": "jobs" })).await.refused(409, "bad_group", "fix");
    node.put_json(GROUP, &json!({})).await.is(201);
    let post = async |path: &str, body: Value| node.post_json(&format!("{GROUP}/{path}"), &body).await;
    post("ack", json!({ "attempts": [] })).await.refused(400, "bad_json", "fix");
    post("ack", json!({ "attempts": [{ "attempt": 1, "ranges": [[5, 4]] }] })).await.refused(400, "bad_json", "fix");
    let both = json!({ "attempts": [{ "attempt": 1 }], "delay_seconds": 1, "reject": true });
    post("nack", both).await.refused(400, "bad_json", "fix");
    post("fetch", json!({ "max_records": 0 })).await.refused(400, "bad_json", "fix");
    let none = [("thalweg-durability", "none"), ("content-type", "application/json")];
    append(&node, 1).await;
    node.call("POST", &format!("{GROUP}/fetch"), &none, b"{}").await.refused(400, "level_too_low", "fix");
    node.get("/v1/streams/jobs/groups/other").await.refused(404, "no_such_group", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_transaction_settles_in_the_list_that_is_carried_out() {
    let node = Node::start().await;
    node.put_json(GROUP, &json!({})).await.is(201);
    append(&node, 3).await;
    let attempt = fetch(&node, &json!({})).await["attempt"].clone();
    let ack = |ranges: Value| {
        json!({ "op": "ack", "stream": "jobs", "group": "workers",
                "attempts": [{ "attempt": attempt, "ranges": ranges }] })
    };
    let nack = json!({ "op": "nack", "stream": "jobs", "group": "workers", "uncounted": true,
                       "attempts": [{ "attempt": attempt, "ranges": [[2, 2]] }] });
    let transaction = |then: Value| {
        json!({ "conditions": [{ "keyspace": "sums", "key": "k", "expect": "absent" }],
                "then": then, "else": [nack.clone()] })
    };
    let put = json!({ "op": "put", "keyspace": "sums", "key": "k", "value": "v" });
    // Acking the same record twice fails, and changes nothing.
    let twice = transaction(json!([put, ack(json!([[0, 1]])), ack(json!([[1, 1]]))]));
    node.post_json("/v1/txn", &twice).await.refused(409, "attempt_lapsed", "fix");
    node.get("/v1/kv/sums/k").await.is(404);
    let once = transaction(json!([put, ack(json!([[0, 1]]))]));
    let done = node.post_json("/v1/txn", &once).await.is(200).json();
    assert_eq!((&done["succeeded"], &done["results"][1]), (&json!(true), &json!({ "op": "ack", "settled": 2 })));
    let other = node.post_json("/v1/txn", &once).await.is(200).json();
    assert_eq!((&other["succeeded"], &other["results"][0]), (&json!(false), &json!({ "op": "nack", "settled": 1 })));
    let back = fetch(&node, &json!({})).await;
    assert_eq!((offsets(&back), &back["messages"][0]["deliveries"]), (vec![2], &json!(1)));
    let unknown = json!({ "then": [{ "op": "ack", "stream": "jobs", "group": "no", "attempts": [{ "attempt": 1 }] }] });
    node.post_json("/v1/txn", &unknown).await.refused(404, "no_such_group", "fix");
    node.stop().await;
}

#[tokio::test]
async fn all_groups_are_listed_and_measured_up_to_a_bound() {
    let node = Node::start().await;
    for number in 0..205 {
        node.put_json(&format!("/v1/streams/jobs/groups/g{number:03}"), &json!({})).await.is(201);
    }
    append(&node, 3).await;
    let delivery =
        node.post_json("/v1/streams/jobs/groups/g000/fetch", &json!({ "max_records": 2 })).await.is(200).json();
    let nack = json!({ "attempts": [{ "attempt": delivery["attempt"] }] });
    node.post_json("/v1/streams/jobs/groups/g000/nack", &nack).await.is(200);
    node.post_json("/v1/streams/jobs/groups/g000/fetch", &json!({ "max_records": 1 })).await.is(200);
    let all = node.get("/v1/groups").await.is(200).json();
    assert_eq!((all["groups"].as_array().unwrap().len(), &all["cursor"]), (205, &serde_json::Value::Null));
    let (mut names, mut next) = (Vec::new(), "/v1/streams/jobs/groups?limit=100".to_owned());
    loop {
        let page = node.get(&next).await.is(200).json();
        let groups = page["groups"].as_array().unwrap();
        assert!(groups.len() <= 100);
        names.extend(groups.iter().map(|group| group["name"].as_str().unwrap().to_owned()));
        let Some(cursor) = page["cursor"].as_str() else { break };
        next = format!("/v1/streams/jobs/groups?limit=100&cursor={cursor}");
    }
    let made: Vec<_> = (0..205).map(|number| format!("g{number:03}")).collect();
    assert_eq!(names, made, "each once, by id");
    node.get("/v1/groups?limit=x").await.refused(400, "bad_parameter", "fix");
    assert_eq!((&all["groups"][0]["stream"], &all["groups"][0]["redelivered"]), (&json!("jobs"), &json!(1)));
    let text = String::from_utf8(node.get("/metrics").await.is(200).body).unwrap();
    for line in [
        "thalweg_groups 205",
        "thalweg_group_lag{stream=\"jobs\",group=\"g000\"} 1",
        "thalweg_group_lag{stream=\"jobs\",group=\"g199\"} 3",
        "thalweg_group_pending{stream=\"jobs\",group=\"g000\"} 2",
        "thalweg_group_members{stream=\"jobs\",group=\"g000\"} 1",
        "thalweg_group_deliveries_total{stream=\"jobs\",group=\"g000\"} 3",
        "thalweg_group_redeliveries_total{stream=\"jobs\",group=\"g000\"} 1",
        "thalweg_group_acked_total{stream=\"jobs\",group=\"g000\"} 0",
        "thalweg_group_dead_letters_total{stream=\"jobs\",group=\"g000\"} 0",
        "thalweg_group_dropped_total{stream=\"jobs\",group=\"g000\"} 0",
    ] {
        assert!(text.lines().any(|shown| shown == line), "{line}");
    }
    assert!(!text.contains("g200"), "bounded");
    node.stop().await;
}
