//! `GET /v1/snapshot`.

use thalweg_engine::snapshot::{PartKind, SnapshotOptions, survey, verify};
use thalweg_types::{Durability, limits::MAX_OPEN_SNAPSHOTS};

use crate::support::{Node, pause};

fn fill(node: &Node) {
    let keyspace = node.db.with_durability(Durability::Os).keyspace("k").unwrap();
    for at in 0..3000_u32 {
        // Random values do not compress, so that the chunks fill the connection's buffers.
        let mut state = u64::from(at) + 1;
        let value: Vec<u8> = (0..3000)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) as u8
            })
            .collect();
        keyspace.put(&at.to_be_bytes(), &value).unwrap();
    }
}

#[tokio::test]
async fn a_snapshot_is_streamed_with_its_lsn_and_an_increment_since_then() {
    let node = Node::start().await;
    node.put("/v1/kv/k/a", b"1").await.is(204);
    for method in ["", "?compress=lz4", "?compress=none"] {
        let full = node.get(&format!("/v1/snapshot{method}")).await.is(200);
        let verified = verify(&full.body[..]).unwrap();
        assert_eq!(verified.info.kind, PartKind::Full);
        assert_eq!(full.header("thalweg-lsn"), verified.info.applied.lsn.0.to_string());
    }
    let since = node.get("/v1/snapshot").await.is(200).header("thalweg-lsn").to_owned();
    node.put("/v1/kv/k/b", b"2").await.is(204);
    let increment = node.get(&format!("/v1/snapshot?since={since}")).await.is(200);
    let verified = verify(&increment.body[..]).unwrap();
    assert_eq!((verified.info.kind, verified.totals.entries), (PartKind::Increment, 1));
    node.get("/v1/snapshot?since=99999").await.refused(416, "past_end", "fix");
    node.get("/v1/snapshot?compress=gzip").await.refused(400, "bad_parameter", "fix");
    node.get("/v1/snapshot?resume=1&chunk=0").await.refused(410, "snapshot_gone", "fix");
    node.stop().await;
}

#[tokio::test]
async fn a_broken_connection_goes_on_with_the_same_snapshot() {
    let node = Node::start().await;
    fill(&node);
    let mut client = node.connect().await;
    client.send("GET", "/v1/snapshot?compress=none", &[], b"").await;
    let head = client.head().await;
    let name = head.header("thalweg-snapshot").to_owned();
    let mut got = Vec::new();
    while got.len() < 2_500_000 {
        got.extend(client.chunk().await.expect("there is more"));
    }
    // Cut in the middle of a chunk.
    got.truncate(got.len() - 1000);
    drop(client);
    node.db.keyspace("k").unwrap().put(&0_u32.to_be_bytes(), b"changed meanwhile").unwrap();
    let partial = survey(&got[..]).unwrap();
    assert!(partial.chunks >= 2 && !partial.is_complete);
    got.truncate(partial.bytes as usize);
    let target = format!("/v1/snapshot?resume={name}&chunk={}", partial.chunks);
    let rest = loop {
        let reply = node.get(&target).await;
        if reply.status != 409 {
            break reply.is(200);
        }
        // The server has not noticed the end yet. It reports that, and the client retries.
        pause().await;
    };
    got.extend(&rest.body);
    let verified = verify(&got[..]).unwrap();
    assert_eq!(verified.totals.rows, 3000 + 2, "of one moment: the keys, the keyspace, the next ids");
    let again = node.get(&target).await.is(200);
    assert!(again.body == rest.body, "the end may have been lost on its way, and comes once more");
    node.get(&format!("/v1/snapshot?resume={name}&chunk=99")).await.refused(410, "chunk_gone", "fix");
    node.stop().await;
}

#[tokio::test]
async fn what_was_sent_gives_way_first_and_what_broke_off_stays() {
    let node = Node::with(|config| config.share_reserve_percent = 0).await;
    fill(&node);
    let mut client = node.connect().await;
    client.send("GET", "/v1/snapshot?compress=none", &[], b"").await;
    let broken = client.head().await.header("thalweg-snapshot").to_owned();
    client.chunk().await.expect("there is more");
    drop(client);
    let since = node.db.snapshot(&SnapshotOptions::default()).unwrap().info().applied.lsn;
    let mut sent = Vec::new();
    for _ in 0..2 * MAX_OPEN_SNAPSHOTS {
        let reply = node.get(&format!("/v1/snapshot?since={since}")).await.is(200);
        sent.push((reply.header("thalweg-snapshot").to_owned(), reply.body));
    }
    let resume = |name: &str| format!("/v1/snapshot?resume={name}&chunk=0");
    for (name, _) in &sent[..=MAX_OPEN_SNAPSHOTS] {
        node.get(&resume(name)).await.refused(410, "snapshot_gone", "fix");
    }
    for (name, body) in &sent[MAX_OPEN_SNAPSHOTS + 1..] {
        assert!(node.get(&resume(name)).await.is(200).body == *body);
    }
    let all = loop {
        let reply = node.get(&resume(&broken)).await;
        if reply.status != 409 {
            break reply.is(200);
        }
        pause().await;
    };
    assert_eq!(verify(&all.body[..]).unwrap().totals.rows, 3000 + 2);
    node.stop().await;
}

#[tokio::test]
async fn metrics_count_snapshots() {
    let node = Node::start().await;
    let full = node.get("/v1/snapshot").await.is(200);
    node.get("/v1/snapshot?since=99999").await.refused(416, "past_end", "fix");
    let text = String::from_utf8(node.get("/metrics").await.is(200).body).unwrap();
    for line in [
        "thalweg_snapshots_open 1".to_owned(),
        "thalweg_snapshots_taken_total 1".to_owned(),
        "thalweg_snapshots_failed_total 1".to_owned(),
        "thalweg_snapshots_abandoned_total 0".to_owned(),
        format!("thalweg_snapshot_bytes_total {}", full.body.len()),
        "thalweg_snapshot_duration_seconds_count 1".to_owned(),
    ] {
        assert!(text.contains(&format!("\n{line}\n")), "{line} in {text}");
    }
    node.stop().await;
}
