//! Changes of keys over HTTP.

use serde_json::{Value, json};
use thalweg_server::config::ByteSize;
use thalweg_types::{Durability, Revision, command::CommitBuilder};

use crate::support::{Client, Node};

async fn watch(node: &Node, query: &str, headers: &[(&str, &str)]) -> (Client, String) {
    (node.open(&format!("/v1/watch/a{query}"), headers).await, String::new())
}

/// Returns id, name and data of the next event that is not a comment.
async fn event(client: &mut Client, buffer: &mut String) -> Option<(Option<String>, String, Value)> {
    loop {
        if let Some(end) = buffer.find("\n\n") {
            let event: String = buffer.drain(..end + 2).collect();
            if event.starts_with(':') {
                continue;
            }
            let field = |name: &str| event.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
            let data = serde_json::from_str(&field("data: ").unwrap()).unwrap();
            return Some((field("id: "), field("event: ").unwrap_or_default(), data));
        }
        buffer.push_str(&String::from_utf8(client.chunk().await?).unwrap());
    }
}

/// Returns the next change, as [`event`] does, and skips events that report progress.
async fn change(client: &mut Client, buffer: &mut String) -> Option<(Option<String>, Value)> {
    loop {
        match event(client, buffer).await? {
            (_, name, _) if name == "progress" => {}
            (id, name, data) if name.is_empty() => return Some((id, data)),
            (_, name, data) => panic!("{name}: {data}"),
        }
    }
}

/// Writes three changes that the watch does not match, and reads its messages until its position is behind them.
async fn progress_follows(node: &Node, client: &mut Client, buffer: &mut String) {
    for _ in 0..3 {
        node.put("/v1/kv/a/x", b"1").await.is(204);
    }
    loop {
        let (id, name, data) = event(client, buffer).await.unwrap();
        assert_eq!((name.as_str(), data["progress"].as_u64()), ("progress", id.unwrap().parse().ok()));
        if data["progress"] == 4 {
            return;
        }
    }
}

#[tokio::test]
async fn changes_come_from_where_asked_and_a_client_that_comes_back_misses_none() {
    let node = Node::start().await;
    node.put("/v1/kv/a/x", b"1").await.is(204);
    node.put("/v1/kv/a/y", b"\xff").await.is(204);
    let (mut past, mut past_buffer) = watch(&node, "?from=1", &[]).await;
    let (mut live, mut live_buffer) = watch(&node, "?prefix=x", &[]).await;
    let greeting = event(&mut live, &mut live_buffer).await.unwrap();
    assert_eq!(greeting, (Some("2".to_owned()), "progress".to_owned(), json!({"progress": 2})));
    let commit = json!({"writes": [
        {"op": "put", "keyspace": "a", "key": "x2", "value": "3"},
        {"op": "put", "keyspace": "b", "key": "x", "value": "other"},
        {"op": "delete", "keyspace": "a", "key": "x"},
    ]});
    node.post_json("/v1/commit", &commit).await.is(200);
    node.delete("/v1/kv/a/y").await.is(204);

    let mut seen = Vec::new();
    for _ in 0..5 {
        let (id, data) = change(&mut past, &mut past_buffer).await.unwrap();
        assert_eq!(data["durability"], "disk");
        assert!(data["time_micros"].as_u64().unwrap() > 0);
        let key = data["key"].as_str().unwrap().to_owned();
        seen.push((id, data["revision"].as_u64().unwrap(), data["change"].as_str().unwrap().to_owned(), key));
    }
    let wanted = [
        (Some("1"), 1, "put", "x"),
        (Some("2"), 2, "put", "y"),
        (None, 3, "put", "x2"),
        (Some("3"), 3, "delete", "x"),
        (Some("4"), 4, "delete", "y"),
    ];
    let wanted = wanted.map(|(id, revision, change, key): (Option<&str>, u64, &str, &str)| {
        (id.map(str::to_owned), revision, change.to_owned(), key.to_owned())
    });
    assert_eq!(seen, wanted, "only the last of a commit has an id");
    for key in ["x2", "x"] {
        assert_eq!(change(&mut live, &mut live_buffer).await.unwrap().1["key"], key);
    }
    let (mut resumed, mut buffer) = watch(&node, "?from=1&limit=2", &[("last-event-id", "2")]).await;
    assert_eq!(change(&mut resumed, &mut buffer).await.unwrap().1["key"], "x2");
    assert_eq!(change(&mut resumed, &mut buffer).await.unwrap().1["key"], "x");
    assert_eq!(event(&mut resumed, &mut buffer).await, None, "the limit ends a watch");
    drop((past, live, resumed));
    node.stop().await;
}

#[tokio::test]
async fn changes_as_lines() {
    let node = Node::start().await;
    node.put("/v1/kv/a/x", b"1").await.is(204);
    node.put("/v1/kv/a/%FF", b"\xff").await.is(204);
    let reply =
        node.call("GET", "/v1/watch/a?from=1&limit=2", &[("accept", "application/x-ndjson")], b"").await.is(200);
    let lines: Vec<Value> =
        String::from_utf8(reply.body).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(lines[0], json!({"progress": 0}));
    let changes: Vec<_> = lines.iter().filter(|line| line.get("progress").is_none()).collect();
    assert_eq!((&changes[0]["key"], &changes[0]["value"]), (&json!("x"), &json!("1")));
    assert_eq!((&changes[1]["key_base64"], &changes[1]["value_base64"]), (&json!("/w=="), &json!("/w==")));
    assert_eq!(changes.len(), 2);
    node.stop().await;
}

#[tokio::test]
async fn a_watch_of_which_nothing_matches_tells_its_progress() {
    let node = Node::with(|config| {
        config.tail_keep_alive = thalweg_server::config::Span(std::time::Duration::from_millis(20));
    })
    .await;
    node.put("/v1/kv/a/x", b"1").await.is(204);
    let (mut client, mut buffer) = watch(&node, "?key=never", &[]).await;
    progress_follows(&node, &mut client, &mut buffer).await;
    drop(client);
    node.stop().await;
}

#[tokio::test]
async fn what_cannot_be_watched_is_refused() {
    let node = Node::with(|config| config.max_tails = 1).await;
    node.get("/v1/watch/a").await.refused(404, "no_such_keyspace", "fix");
    node.put("/v1/kv/a/x", b"1").await.is(204);
    let error = node.get("/v1/watch/a?from=9").await.refused(416, "beyond_end", "fix");
    assert_eq!(error["next"], 2);
    node.get("/v1/watch/a?key=x&prefix=x").await.refused(400, "bad_parameter", "fix");
    node.call("GET", "/v1/watch/a", &[("accept", "text/html")], b"").await.refused(406, "not_acceptable", "fix");
    node.call("GET", "/v1/watch/a", &[("last-event-id", "x")], b"").await.refused(400, "bad_header", "fix");
    let first = watch(&node, "", &[]).await;
    node.get("/v1/watch/a").await.refused(503, "overloaded", "retry");
    drop(first);
    node.stop().await;
}

#[tokio::test]
async fn lines_mark_the_end_of_each_commit() {
    let node = Node::start().await;
    let commit = json!({"writes": [
        {"op": "put", "keyspace": "a", "key": "x", "value": "1"},
        {"op": "put", "keyspace": "a", "key": "y", "value": "1"},
    ]});
    node.post_json("/v1/commit", &commit).await.is(200);
    node.put("/v1/kv/a/z", b"1").await.is(204);
    node.post_json("/v1/commit", &commit).await.is(200);
    let target = "/v1/watch/a?from=1&limit=4";
    let reply = node.call("GET", target, &[("accept", "application/x-ndjson")], b"").await.is(200);
    let lines = reply.lines();
    let changes: Vec<_> = lines.iter().filter(|line| line.get("progress").is_none()).collect();
    let marks: Vec<_> =
        changes.iter().map(|line| (line["key"].as_str().unwrap(), line.get("last").is_some())).collect();
    let wanted = [("x", false), ("y", true), ("z", true), ("x", false)];
    assert_eq!(marks, wanted, "the limit cuts the last commit, which has no mark");
    assert!(changes.iter().all(|line| line.get("last").is_none_or(|last| *last == json!(true))));
    node.stop().await;
}

#[tokio::test]
async fn a_watch_of_a_rare_prefix_stays_above_a_short_history() {
    let node = Node::with(|config| {
        let span = |seconds| thalweg_server::config::Span(std::time::Duration::from_secs(seconds));
        // Longer than the test waits for anything.
        (config.tail_keep_alive, config.idle_timeout) = (span(300), span(900));
    })
    .await;
    node.put("/v1/kv/a/x", b"1").await.is(204);
    let (mut client, mut buffer) = watch(&node, "?prefix=rare", &[]).await;
    assert_eq!(event(&mut client, &mut buffer).await.unwrap().2, json!({"progress": 1}));
    // The position is reported although nothing matches, and as of the moment of the report.
    progress_follows(&node, &mut client, &mut buffer).await;
    drop(client);
    node.stop().await;
}

/// Writes so fast that the floor passes a client that is told once a second, although the history is kept for an hour.
/// The client resumes where it was told.
#[tokio::test]
async fn a_watch_of_a_rare_prefix_is_told_its_progress_with_each_segment() {
    let node = Node::with(|config| {
        let span = |seconds| thalweg_server::config::Span(std::time::Duration::from_secs(seconds));
        (config.tail_keep_alive, config.idle_timeout) = (span(300), span(900));
        config.history_bytes = ByteSize(6 << 20);
        config.segment_bytes = ByteSize(1 << 20);
    })
    .await;
    node.put("/v1/kv/a/x", b"1").await.is(204);
    let (mut client, mut buffer) = watch(&node, "?prefix=rare", &[]).await;
    let mut reached = event(&mut client, &mut buffer).await.unwrap().2["progress"].as_u64().unwrap();
    let writer = node.db.find_keyspace("a").unwrap().with_durability(Durability::Os);
    let mut waited = std::time::Duration::ZERO;
    for _ in 0..20 {
        // A segment, and what the log then frees.
        (0..12).for_each(|_| _ = writer.put(b"x", &vec![b'x'; 100_000]).unwrap());
        let written = node.db.stats().applied_revision.0;
        let begun = std::time::Instant::now();
        while reached + 12 < written {
            reached = event(&mut client, &mut buffer).await.unwrap().2["progress"].as_u64().unwrap();
        }
        waited += begun.elapsed();
        node.db.flush().unwrap();
        node.db.maintain().unwrap();
    }
    // Each report came with its segment: by time alone, there would be one a second.
    assert!(waited < std::time::Duration::from_secs(15), "{waited:?}");
    drop(client);
    let (mut again, mut buffer) = watch(&node, &format!("?prefix=rare&from={}", reached + 1), &[]).await;
    event(&mut again, &mut buffer).await.unwrap();
    drop(again);
    // The server no longer has the first changes.
    node.get("/v1/watch/a?prefix=rare&from=1").await.refused(410, "compacted", "fix");
    node.stop().await;
}

/// Sets `changes` keys to values of `bytes` bytes in one commit. Returns its revision.
fn large_commit(node: &Node, changes: u32, bytes: usize) -> Revision {
    let keyspace = node.db.find_keyspace("a").unwrap().id();
    let mut commit = CommitBuilder::new();
    for change in 0..changes {
        commit.put(keyspace, format!("large-{change:03}").as_bytes(), &vec![b'v'; bytes]).unwrap();
    }
    node.db.commit(&commit).unwrap();
    node.db.stats().applied_revision
}

/// A commit of several MiB comes in many pieces, of which only the last one ends it. A client whose connection breaks
/// in between gets the whole commit again.
#[tokio::test]
async fn a_commit_spans_several_pieces_and_is_resumed_from_its_beginning() {
    const CHANGES: u32 = 100;
    for (bytes, is_behind) in [(40_000, true), (2_000, true), (2_000, false)] {
        let node = Node::with_large_segments(|_| {}).await;
        node.put("/v1/kv/a/first", b"1").await.is(204);
        let mut live = Some(watch(&node, "", &[]).await);
        let revision = large_commit(&node, CHANGES, bytes);
        node.put("/v1/kv/a/last", b"1").await.is(204);
        let mut resume = "0".to_owned();
        // Numbers of changes after which the connection breaks.
        for received in [3, 50, CHANGES + 1] {
            let (mut client, mut buffer) = match live.take() {
                Some(live) if !is_behind => live,
                _ => watch(&node, "", &[("last-event-id", &resume)]).await,
            };
            let mut of_commit = 0;
            for _ in 0..received {
                let (id, data) = change(&mut client, &mut buffer).await.unwrap();
                if data["revision"] == revision.0 {
                    assert_eq!(data["key"], format!("large-{of_commit:03}"));
                    assert_eq!(data["value"].as_str().unwrap().len(), bytes);
                    of_commit += 1;
                    assert_eq!(id.is_some(), of_commit == CHANGES, "the last change ends the commit");
                }
                resume = id.unwrap_or(resume);
            }
            assert!(of_commit > 1);
        }
        assert_eq!(resume, (revision.0 + 1).to_string(), "the client has missed nothing");
        node.stop().await;
    }
}
