//! A native channel: handshake, requests and ids, bounds, backpressure, and its end.

use std::time::Duration;

use thalweg_server::config::{ByteSize, NativeAddress, Span};
use thalweg_types::{Durability, KeyspaceId, Revision, command::encode_put};
use thalweg_wire::{
    Cancel, CancelMode, Fields, Goodbye, Header, Hello, Kind, Level, Ping, Position, Read, Reason, RemainingBytes,
    ServerFrame, Tail, Write,
    handshake::{goodbye, hello},
};

use crate::{
    expect,
    support::{
        Node, PATIENCE,
        native::{UNLIMITED, get},
    },
};

#[tokio::test]
async fn a_put_is_answered_and_got() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("users").await;
    raw.send_command(1, Durability::Disk, |out| encode_put(out, keyspace, b"ada", b"1815").unwrap()).await;
    let durability = expect!(raw, 1, ServerFrame::Committed(committed) => committed.durability);
    assert_eq!(durability, Durability::Disk);
    assert_eq!(raw.get(keyspace, b"ada").await, b"1815");
    raw.send(3, &get(keyspace, b"nobody")).await;
    assert_eq!(expect!(raw, 3, ServerFrame::Value(value) => value.revision), Revision(0));
    raw.send(4, &get(KeyspaceId(99), b"ada")).await;
    assert_eq!(raw.fails(4).await, "no_such_keyspace");
    node.stop().await;
}

#[tokio::test]
async fn what_is_pipelined_is_committed_together_and_answered_by_id() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    let before = node.db.stats();
    for id in 1..=200_u32 {
        raw.put_command(id, Durability::Disk, |out| encode_put(out, keyspace, &id.to_le_bytes(), b"v").unwrap());
        // This get is answered before the puts that were sent earlier.
        raw.put(id + 1000, &get(keyspace, b"none"));
    }
    raw.flush().await;
    let mut seen = Vec::new();
    for _ in 0..400 {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Committed(_) | ServerFrame::Value(_) => seen.push(frame.header.id),
            other => panic!("{other:?}"),
        }
    }
    assert!(seen[0] > 1000, "a get does not wait for a durable put: {}", seen[0]);
    seen.sort_unstable();
    assert!(seen.into_iter().eq((1..=200).chain(1001..=1200)));
    let after = node.db.stats();
    let entries = after.entries - before.entries;
    assert_eq!(after.commands - before.commands, 200);
    // The puts of one read make one entry. The socket may deliver the burst in several reads.
    assert!(entries <= 20, "{entries} entries for 200 puts that came together");
    node.stop().await;
}

#[tokio::test]
async fn acks_by_level_and_without_an_id() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    for (id, level) in [(1, Durability::None), (2, Durability::Os), (3, Durability::Interval), (4, Durability::Disk)] {
        raw.send_command(id, level, |out| encode_put(out, keyspace, b"k", &[id as u8]).unwrap()).await;
        let (reached, revision) = expect!(raw, id, ServerFrame::Committed(done) => (done.durability, done.revision));
        assert!(reached >= level);
        assert_eq!(revision == Revision(0), level == Durability::None, "at none the outcome is not known");
    }
    // Without an id the server reports no success, but still reports errors.
    raw.put_command(0, Durability::Os, |out| encode_put(out, keyspace, b"quiet", b"v").unwrap());
    raw.send_command(0, Durability::Os, |out| encode_put(out, KeyspaceId(99), b"quiet", b"v").unwrap()).await;
    assert_eq!(raw.fails(0).await, "no_such_keyspace");
    assert_eq!(raw.get(keyspace, b"quiet").await, b"v");
    // A command whose outcome matters is rejected at level none, and reports a failed condition at others.
    let mut commit = thalweg_types::command::CommitBuilder::new();
    commit.expect(keyspace, b"k", thalweg_types::command::Expect::Absent).unwrap();
    raw.put_command(6, Durability::None, |out| commit.encode(out));
    raw.send_command(7, Durability::Os, |out| commit.encode(out)).await;
    assert_eq!(raw.fails(6).await, "level_too_low");
    let condition =
        expect!(raw, 7, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.detail("condition")));
    assert_eq!(condition, ("condition_failed".to_owned(), Some(0)));
    node.stop().await;
}

#[tokio::test]
async fn bad_frames_fail_and_the_channel_goes_on() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let frame = |kind: u16, id: u32, body: &[u8]| {
        let mut out = Header { len: body.len() as u32, kind, fields: 0, id }.encode().to_vec();
        out.extend_from_slice(body);
        out
    };
    for (id, bytes, code) in [
        (1, frame(0x07ff, 1, b"?"), "unknown_kind"),
        (2, frame(Kind::Value as u16, 2, b""), "wrong_direction"),
        (3, frame(Kind::Get as u16, 3, b"\x01\0"), "malformed_frame"),
        (4, frame(Kind::Ping as u16, 4, b"too short"), "malformed_frame"),
    ] {
        raw.bytes(&bytes).await;
        assert_eq!(raw.fails(id).await, code);
    }
    let mut unknown = Header { len: 4, kind: Kind::ReadStatus as u16, fields: 4, id: 5 }.encode().to_vec();
    unknown.extend_from_slice(b"\x09\x80\0\0");
    raw.bytes(&unknown).await;
    assert_eq!(raw.fails(5).await, "unknown_field");
    let elsewhere = Fields { space: Some(thalweg_types::SpaceId(3)), ..Fields::default() };
    raw.put_with(6, &elsewhere, &get(KeyspaceId(1), b"k"));
    raw.put(7, &Write { level: Level(None), command: RemainingBytes(b"\xff\xff") });
    raw.send(8, &Write { level: Level(None), command: RemainingBytes(&[7, 1, 0, 0, 0]) }).await;
    assert_eq!(raw.fails(6).await, "no_such_space");
    assert_eq!(raw.fails(7).await, "malformed");
    let code = raw.fails(8).await;
    assert!(code == "not_for_clients" || code == "malformed", "{code}");
    raw.send(0, &Ping { token: 77 }).await;
    assert_eq!(expect!(raw, 0, ServerFrame::Pong(pong) => pong.token), 77);
    node.stop().await;
}

#[tokio::test]
async fn an_id_in_use_and_a_second_hello_end_the_channel() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    let tail = Tail { stream, from: Position::End {}, permit: UNLIMITED };
    raw.put(7, &tail);
    raw.send(7, &get(KeyspaceId(1), b"k")).await;
    expect!(raw, 7, ServerFrame::Tailing(_) => ());
    let (reason, message) = raw.says_goodbye().await;
    assert_eq!(reason, Reason::Protocol);
    assert!(message.contains("id 7"), "{message}");

    let mut raw = node.raw().await;
    raw.send(0, &hello("again", 1 << 20, Duration::ZERO, &[])).await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);

    let mut raw = node.raw().await;
    raw.send(0, &goodbye(Reason::Done, thalweg_types::Action::Retry, "") as &Goodbye<'_>).await;
    raw.ends().await;
    node.stop().await;
}

#[tokio::test]
async fn garbage_silence_and_other_versions_get_no_welcome() {
    let node = Node::with(|config| config.header_timeout = Span(Duration::from_millis(200))).await;
    let mut raw = node.dial().await;
    raw.bytes(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);
    let mut raw = node.dial().await;
    raw.send(0, &Ping { token: 1 }).await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);
    let mut raw = node.dial().await;
    raw.send(0, &Hello { min_version: 9, max_version: 12, ..hello("new", 1 << 20, Duration::ZERO, &[]) }).await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Version);
    let mut raw = node.dial().await;
    raw.send(0, &hello("tiny", 100, Duration::ZERO, &[])).await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);
    // Half a hello, and no hello.
    let mut raw = node.dial().await;
    raw.bytes(&[1, 0]).await;
    raw.ends().await;
    node.dial().await.ends().await;
    let metrics = String::from_utf8(node.get("/metrics").await.body).unwrap();
    assert!(metrics.contains("thalweg_native_handshakes_failed_total 6"), "{metrics}");
    node.stop().await;
}

#[tokio::test]
async fn a_frame_above_the_limit_is_refused_before_it_comes() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    raw.bytes(&Header { len: (32 << 20) + 1, kind: Kind::Write as u16, fields: 0, id: 9 }.encode()).await;
    assert_eq!(raw.fails(9).await, "frame_too_large");
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);
    node.stop().await;
}

#[tokio::test]
async fn too_many_large_frames_at_a_time_are_shed_and_passed_over() {
    let bound = ByteSize(1 << 20);
    let node = Node::with(|config| (config.max_body_bytes, config.max_body_bytes_in_flight) = (bound, bound)).await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    raw.put_command(1, Durability::Os, |out| encode_put(out, keyspace, b"large", &vec![1; 2 << 20]).unwrap());
    raw.send_command(2, Durability::Os, |out| encode_put(out, keyspace, b"fits", &vec![2; 1 << 19]).unwrap()).await;
    assert_eq!(raw.fails(1).await, "overloaded");
    expect!(raw, 2, ServerFrame::Committed(_) => ());
    assert_eq!(raw.get(keyspace, b"large").await, b"");
    assert_eq!(raw.get(keyspace, b"fits").await.len(), 1 << 19);
    node.stop().await;
}

#[tokio::test]
async fn requests_beyond_the_bounds_are_shed() {
    let node = Node::with(|config| (config.max_requests_in_flight, config.max_tails) = (3, 2)).await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    let tail = Tail { stream, from: Position::End {}, permit: UNLIMITED };
    for id in 1..=2 {
        raw.ask(id, &tail, Kind::Tailing).await;
    }
    raw.send(3, &tail).await;
    assert_eq!(raw.fails(3).await, "overloaded");
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Ended(ended) => ended.code.to_owned()), "cancelled");
    raw.ask(3, &tail, Kind::Tailing).await;
    raw.send(0, &tail).await;
    assert_eq!(raw.fails(0).await, "malformed_frame");
    // More than three puts wait for the disk.
    let keyspace = raw.keyspace("k").await;
    (10..20).for_each(|id| raw.put_command(id, Durability::Disk, |out| encode_put(out, keyspace, b"k", b"v").unwrap()));
    raw.flush().await;
    let mut shed = 0;
    for _ in 10..20 {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Failed(failed) => shed += usize::from(failed.code == "overloaded"),
            ServerFrame::Committed(_) => {}
            other => panic!("{other:?}"),
        }
    }
    assert!((1..=7).contains(&shed), "{shed} were shed");
    node.stop().await;
}

#[tokio::test]
async fn one_connection_too_many_is_told_so() {
    let node = Node::with(|config| config.max_connections = 1).await;
    let _first = node.raw().await;
    let mut second = node.dial().await;
    assert_eq!(second.says_goodbye().await.0, Reason::Overloaded);
    node.stop().await;
}

#[tokio::test]
async fn a_client_that_takes_nothing_is_not_read_on_and_in_the_end_cut() {
    let node = Node::with(|config| config.write_timeout = Span(Duration::from_millis(400))).await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("k").await;
    raw.set(keyspace, b"big", &vec![7; 1 << 19]).await;
    // The client requests replies of half a GiB and does not read them.
    (0..1000).for_each(|id| raw.put(id + 1, &get(keyspace, b"big")));
    raw.flush().await;
    let cut = tokio::time::timeout(PATIENCE, async {
        loop {
            let metrics = String::from_utf8(node.get("/metrics").await.body).unwrap();
            let gauge = |name: &str| {
                let line = metrics.lines().find(|line| line.starts_with(name)).unwrap();
                line.rsplit(' ').next().unwrap().parse::<f64>().unwrap()
            };
            if gauge("thalweg_native_connections ") == 0.0 {
                return (gauge("thalweg_native_sent_bytes_total"), metrics);
            }
        }
    });
    let (sent, metrics) = cut.await.expect("it is cut");
    let answered = metrics.lines().find(|line| line.contains("native_requests") && line.contains("\"get\"")).unwrap();
    let answered: f64 = answered.rsplit(' ').next().unwrap().parse().unwrap();
    assert!(sent < 64e6, "{sent} bytes were sent to a client that takes none");
    // Answered but unsent bytes are in the outbox, which may exceed its bound by one frame.
    assert!(answered * 524288.0 <= sent + 128.0 * 1024.0 + 2.0 * 524288.0, "{answered} answered, {sent} sent");
    node.stop().await;
}

#[tokio::test]
async fn a_frame_whose_rest_does_not_come_ends_the_channel() {
    let node = Node::with(|config| config.body_timeout = Span(Duration::from_millis(200))).await;
    let mut raw = node.raw().await;
    raw.bytes(&Header { len: 1000, kind: Kind::Write as u16, fields: 0, id: 9 }.encode()).await;
    assert_eq!(raw.says_goodbye().await.0, Reason::Protocol);
    node.stop().await;
}

#[tokio::test]
async fn silence_is_broken_by_pings_and_then_final() {
    // The shortest interval is one second, even if the configuration has less.
    let node = Node::with(|config| {
        (config.idle_timeout, config.tail_keep_alive) = (Span::seconds(3), Span::seconds(1));
    })
    .await;
    let mut raw = node.raw().await;
    let mut pings = 0;
    let reason = loop {
        let frame = tokio::time::timeout(PATIENCE, async {
            loop {
                if let Some(frame) = raw.decoder.next_shared().unwrap() {
                    return frame;
                }
                let read = tokio::io::AsyncReadExt::read_buf(&mut raw.stream, raw.decoder.buffer()).await;
                assert!(read.unwrap() > 0, "a goodbye first");
            }
        });
        match ServerFrame::decode(frame.await.unwrap().raw()).unwrap().frame {
            ServerFrame::Ping(_) => pings += 1,
            ServerFrame::Goodbye(goodbye) => break goodbye.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(reason, Reason::Silent);
    assert!((1..=4).contains(&pings), "{pings}");
    node.stop().await;
}

#[tokio::test]
async fn a_stop_answers_what_is_under_way_and_says_goodbye() {
    let mut node = Node::start().await;
    let mut raw = node.raw().await;
    let (keyspace, stream) = (raw.keyspace("k").await, raw.stream("s").await);
    raw.ask(1, &Tail { stream, from: Position::End {}, permit: UNLIMITED }, Kind::Tailing).await;
    (2..100).for_each(|id| raw.put_command(id, Durability::Disk, |out| encode_put(out, keyspace, b"k", b"v").unwrap()));
    raw.flush().await;
    // After the first ack, all of them were read, or they wait in the socket and are never read.
    expect!(raw, 2, ServerFrame::Committed(_) => ());
    node.signal_stop();
    let (mut ended, mut committed) = (None, 1);
    let reason = loop {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Ended(end) => ended = Some((end.code.to_owned(), end.details.iter().next().map(|d| d.value))),
            ServerFrame::Committed(_) => committed += 1,
            ServerFrame::Goodbye(goodbye) => break goodbye.reason,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!((reason, ended), (Reason::Stopping, Some(("stopping".to_owned(), Some(0)))));
    assert!(committed <= 98);
    raw.ends().await;
    drop(raw);
    node.stopped().await.unwrap();
}

#[tokio::test]
async fn it_can_be_turned_off() {
    let node = Node::with(|config| config.native = NativeAddress::Off).await;
    assert_eq!(node.native, None);
    assert_eq!(node.get("/health").await.status, 200);
    node.stop().await;
}

#[tokio::test]
async fn a_request_that_is_done_within_its_time_is_answered() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let (keyspace, stream) = (raw.keyspace("k").await, raw.stream("s").await);
    let soon = Fields { timeout_micros: Some(PATIENCE.as_micros() as u64), ..Fields::default() };
    let mut command = Vec::new();
    encode_put(&mut command, keyspace, b"k", b"v").unwrap();
    raw.put_with(1, &soon, &Write { level: Level(Some(Durability::Disk)), command: RemainingBytes(&command) });
    raw.send_with(2, &soon, &Read { stream, from: Position::Start {}, max_records: 0, max_bytes: 1 << 20 }).await;
    let mut kinds = [raw.next().await.header, raw.next().await.header].map(|header| (header.id, header.kind));
    kinds.sort_unstable();
    assert_eq!(kinds, [(1, Kind::Committed as u16), (2, Kind::Records as u16)]);
    node.stop().await;
}

#[tokio::test]
async fn a_failure_carries_the_name_of_its_request() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let named = Fields { trace: Some("job-7"), ..Fields::default() };
    let trace = |frame: &thalweg_wire::SharedFrame| {
        let envelope = ServerFrame::decode(frame.raw()).unwrap();
        let ServerFrame::Failed(failed) = envelope.frame else { panic!("{:?}", envelope.frame) };
        assert_eq!(failed.code, "no_such_keyspace");
        envelope.fields.trace.map(str::to_owned)
    };
    raw.send_with(1, &named, &get(KeyspaceId(99), b"ada")).await;
    assert_eq!(trace(&raw.next().await).as_deref(), Some("job-7"));
    raw.send(2, &get(KeyspaceId(99), b"ada")).await;
    assert_eq!(trace(&raw.next().await), None, "the client gave no name, and the server did not fail");
    // A pending request keeps its name, too.
    let mut command = Vec::new();
    encode_put(&mut command, KeyspaceId(99), b"ada", b"1815").unwrap();
    raw.send_with(3, &named, &Write { level: Level(Some(Durability::Disk)), command: RemainingBytes(&command) }).await;
    assert_eq!(trace(&raw.next().await).as_deref(), Some("job-7"));
    node.stop().await;
}

#[tokio::test]
async fn latencies_are_told_by_the_durability_of_the_reply() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let keyspace = raw.keyspace("users").await;
    for level in [Durability::Os, Durability::Disk] {
        raw.send_command(1, level, |out| encode_put(out, keyspace, b"ada", b"1815").unwrap()).await;
        assert_eq!(expect!(raw, 1, ServerFrame::Committed(committed) => committed.durability), level);
    }
    let shown = {
        raw.send(2, &get(keyspace, b"ada")).await;
        expect!(raw, 2, ServerFrame::Value(value) => value.durability)
    };
    raw.send(3, &get(KeyspaceId(99), b"ada")).await;
    raw.fails(3).await;
    // The server counts a reply after it was written, so the last one may be missing for a moment.
    let count = |kind: &str, level: &str| {
        format!("native_request_duration_seconds_count{{kind=\"{kind}\",durability=\"{level}\"}}")
    };
    node.until(&count("get", ""), 1.0).await;
    assert_eq!(node.metric(&count("get", shown.name())).await, 1.0);
    assert_eq!(node.metric(&count("write", "disk")).await, 1.0);
    // Another one has created the keyspace.
    assert_eq!(node.metric(&count("write", "os")).await, 2.0);
    node.stop().await;
}
