//! Streams over the native protocol: reading, tailing with credit, resuming without gap or duplicate.

use thalweg_server::config::ByteSize;
use thalweg_types::{
    Durability, Offset, SpaceTime, StreamId,
    command::{encode_append, encode_delete_stream, encode_trim_stream},
    record::Records,
};
use thalweg_wire::{
    Cancel, CancelMode, Credit, Fields, Kind, List, Permit, Position, Read, RecordRun, ServerFrame, Tail,
};

use crate::{
    expect,
    support::{
        Node,
        native::{Raw, UNLIMITED, batch},
    },
};

/// Returns offsets and payloads of runs. Asserts that offsets and counts fit the bytes.
fn records(runs: &List<'_, RecordRun<'_>>) -> Vec<(u64, Vec<u8>)> {
    let mut found = Vec::new();
    for run in runs.iter() {
        let payloads: Vec<_> = Records::new(run.records).map(|record| record.unwrap().payload.to_vec()).collect();
        assert_eq!(payloads.len(), run.count as usize, "as many records as the run says");
        found.extend((run.first.0..).zip(payloads));
    }
    found
}

fn numbered(range: std::ops::Range<u64>) -> Vec<(u64, Vec<u8>)> {
    range.map(|n| (n, payload(n))).collect()
}

fn payload(n: u64) -> Vec<u8> {
    format!("record {n}").into_bytes()
}

/// Appends records `range`, with `each` records per append.
async fn fill(raw: &mut Raw, stream: StreamId, range: std::ops::Range<u64>, each: usize) {
    let payloads: Vec<_> = range.map(payload).collect();
    for chunk in payloads.chunks(each) {
        raw.append(stream, &chunk.iter().map(Vec::as_slice).collect::<Vec<_>>()).await;
    }
}

/// Receives the frames of a tail up to its end. Returns the records, and the code and the first detail of the end.
async fn rest(raw: &mut Raw) -> (Vec<(u64, Vec<u8>)>, (String, u64)) {
    let mut seen = Vec::new();
    loop {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Tailed(page) => seen.extend(records(&page.runs)),
            ServerFrame::Ended(end) => return (seen, (end.code.to_owned(), end.details.iter().next().unwrap().value)),
            other => panic!("{other:?}"),
        }
    }
}

fn offset(offset: u64) -> Position {
    Position::Offset { offset: Offset(offset) }
}

#[tokio::test]
async fn records_are_read_from_anywhere_and_cut_where_asked() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    fill(&mut raw, stream, 0..100, 10).await;
    let read = |from, max_records, max_bytes| Read { stream, from, max_records, max_bytes };
    for (read, range) in [
        (read(Position::Start {}, 0, 0), 0..100),
        (read(offset(37), 0, 0), 37..100),
        (read(offset(37), 5, 0), 37..42),
        (read(offset(95), 50, 1 << 20), 95..100),
        (read(Position::Last { records: 3 }, 0, 0), 97..100),
        (read(Position::End {}, 0, 0), 100..100),
        (read(Position::Time { time: SpaceTime(0) }, 1, 0), 0..1),
        (read(offset(12), 0, 1), 12..13),
    ] {
        raw.send(1, &read).await;
        let (found, next, end) = expect!(raw, 1, ServerFrame::Records(page) => {
            (records(&page.runs), page.next, page.high_watermark)
        });
        assert_eq!((found, next, end), (numbered(range.clone()), Offset(range.end), Offset(100)), "{read:?}");
    }
    // The maximum size in bytes cuts a page at a record.
    raw.send(2, &read(Position::Start {}, 0, 400)).await;
    let (found, bytes) = expect!(raw, 2, ServerFrame::Records(page) => {
        (records(&page.runs), page.runs.iter().map(|run| run.records.len()).sum::<usize>())
    });
    assert!(bytes <= 400 && bytes > 200, "{bytes}");
    assert_eq!(found, numbered(0..found.len() as u64));
    raw.send(3, &read(offset(101), 0, 0)).await;
    let (code, next) = expect!(raw, 3, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.detail("next")));
    assert_eq!((code.as_str(), next), ("beyond_end", Some(100)));
    raw.send_command(4, Durability::Os, |out| encode_trim_stream(out, stream, Offset(50))).await;
    expect!(raw, 4, ServerFrame::Done(_) => ());
    raw.send(5, &read(offset(10), 0, 0)).await;
    let (code, start) =
        expect!(raw, 5, ServerFrame::Failed(failed) => (failed.code.to_owned(), failed.detail("start")));
    assert_eq!((code.as_str(), start), ("trimmed", Some(50)));
    node.stop().await;
}

#[tokio::test]
async fn a_page_is_never_larger_than_the_client_takes() {
    let node = Node::start().await;
    let mut writer = node.raw().await;
    let stream = writer.stream("s").await;
    let large = vec![7; 10_000];
    writer.append(stream, &[&large[..]; 30]).await;
    let mut raw = node.raw_taking(65_536).await;
    let mut next = Offset(0);
    let mut pages = 0;
    while next < Offset(30) {
        let read = Read { stream, from: Position::Offset { offset: next }, max_records: 0, max_bytes: u32::MAX };
        raw.send(1, &read).await;
        next = expect!(raw, 1, ServerFrame::Records(page) => {
            assert_eq!(records(&page.runs).len() as u64, page.next.0 - next.0);
            page.next
        });
        pages += 1;
    }
    assert_eq!(pages, 5, "six of them fit at a time");
    // A tail has the same page size.
    raw.ask(2, &Tail { stream, from: Position::Start {}, permit: UNLIMITED }, Kind::Tailing).await;
    let mut seen = 0;
    while seen < 30 {
        seen += expect!(raw, 2, ServerFrame::Tailed(page) => records(&page.runs).len());
    }
    // A single record that is larger cannot be sent.
    writer.append(stream, &[&vec![7; 100_000]]).await;
    let (code, next) = expect!(raw, 2, ServerFrame::Ended(end) => {
        (end.code.to_owned(), end.details.iter().find(|detail| detail.name == "next").map(|detail| detail.value))
    });
    assert_eq!(code, "result_too_large");
    assert!(next.is_some());
    node.stop().await;
}

#[tokio::test]
async fn a_tail_follows_and_goes_on_where_it_was_cut_off() {
    let node = Node::start().await;
    let mut writer = node.raw().await;
    let stream = writer.stream("s").await;
    fill(&mut writer, stream, 0..1000, 7).await;
    let writing = tokio::spawn(async move {
        fill(&mut writer, stream, 1000..2000, 3).await;
        writer
    });
    let (mut seen, mut next, mut connections) = (Vec::new(), Offset(0), 0);
    while seen.len() < 2000 {
        let mut raw = node.raw().await;
        connections += 1;
        raw.send(1, &Tail { stream, from: Position::Offset { offset: next }, permit: UNLIMITED }).await;
        assert_eq!(expect!(raw, 1, ServerFrame::Tailing(tailing) => tailing.next), next);
        // The connection is lost after a few frames.
        for _ in 0..5 {
            if seen.len() >= 2000 {
                break;
            }
            next = expect!(raw, 1, ServerFrame::Tailed(page) => {
                seen.extend(records(&page.runs));
                page.next
            });
        }
    }
    assert!(connections > 1);
    assert_eq!(seen, numbered(0..2000));
    let mut writer = writing.await.unwrap();
    // A new tail waits at the end. It receives new records, and the end of the stream.
    let mut raw = node.raw().await;
    raw.ask(1, &Tail { stream, from: Position::End {}, permit: UNLIMITED }, Kind::Tailing).await;
    fill(&mut writer, stream, 2000..2001, 1).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Tailed(page) => records(&page.runs)), numbered(2000..2001));
    writer.send_command(1, Durability::Os, |out| encode_delete_stream(out, stream)).await;
    expect!(writer, 1, ServerFrame::Done(_) => ());
    assert_eq!(expect!(raw, 1, ServerFrame::Ended(end) => end.code.to_owned()), "no_such_stream");
    node.stop().await;
}

#[tokio::test]
async fn a_tail_sends_what_is_permitted_and_waits() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    fill(&mut raw, stream, 0..100, 10).await;
    let permit = Permit { messages: 25, bytes: u64::MAX };
    raw.ask(1, &Tail { stream, from: Position::Start {}, permit }, Kind::Tailing).await;
    // A tail sends whole appends. A frame begins while credit is left, and exceeds it by less than its own size.
    assert_eq!(expect!(raw, 1, ServerFrame::Tailed(page) => records(&page.runs)), numbered(0..30));
    // The tail sends no more frames, so the next frame answers another request.
    raw.ask(2, &Read { stream, from: offset(99), max_records: 0, max_bytes: 0 }, Kind::Records).await;
    // An old total changes nothing.
    raw.put(1, &Credit { messages: 20, bytes: 5 });
    raw.ask(2, &Read { stream, from: offset(99), max_records: 0, max_bytes: 0 }, Kind::Records).await;
    raw.send(1, &Credit { messages: 31, bytes: u64::MAX }).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Tailed(page) => records(&page.runs)), numbered(30..40));
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    let ended = expect!(raw, 1, ServerFrame::Ended(end) => {
        (end.code.to_owned(), end.details.iter().map(|detail| detail.value).collect::<Vec<_>>())
    });
    assert_eq!(ended, ("cancelled".to_owned(), vec![40]));
    // Bytes limit a tail, too. Each record has about 16 bytes.
    let permit = Permit { messages: u64::MAX, bytes: 1 };
    raw.ask(3, &Tail { stream, from: Position::Start {}, permit }, Kind::Tailing).await;
    assert_eq!(expect!(raw, 3, ServerFrame::Tailed(page) => records(&page.runs)), numbered(0..10));
    raw.ask(2, &Read { stream, from: offset(99), max_records: 0, max_bytes: 0 }, Kind::Records).await;
    // Nothing is permitted at all, so a drain sends nothing.
    raw.send(3, &Cancel { mode: CancelMode::Drain }).await;
    assert_eq!(expect!(raw, 3, ServerFrame::Ended(end) => end.code.to_owned()), "cancelled");
    node.stop().await;
}

#[tokio::test]
async fn a_tail_that_is_cut_short_goes_on_behind_what_was_sent() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    fill(&mut raw, stream, 0..100, 10).await;
    // A page that is read after the cancel has arrived is not sent. A later tail begins with it.
    raw.put(1, &Tail { stream, from: offset(20), permit: UNLIMITED });
    raw.send(1, &Cancel { mode: CancelMode::Now }).await;
    let mut next = expect!(raw, 1, ServerFrame::Tailing(tailing) => tailing.next);
    assert_eq!(next, Offset(20));
    let ended = loop {
        let frame = raw.next().await;
        match ServerFrame::decode(frame.raw()).unwrap().frame {
            ServerFrame::Tailed(page) => next = page.next,
            ServerFrame::Ended(end) => break end.details.iter().map(|detail| detail.value).collect::<Vec<_>>(),
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(ended, [next.0]);
    node.stop().await;
}

#[tokio::test]
async fn a_tail_is_drained_and_has_a_limit() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    fill(&mut raw, stream, 0..100, 10).await;
    raw.send(1, &Tail { stream, from: Position::Start {}, permit: UNLIMITED }).await;
    raw.send(1, &Cancel { mode: CancelMode::Drain }).await;
    expect!(raw, 1, ServerFrame::Tailing(_) => ());
    assert_eq!(rest(&mut raw).await, (numbered(0..100), ("cancelled".to_owned(), 100)));
    let fields = Fields { limit: Some(15), ..Fields::default() };
    raw.send_with(2, &fields, &Tail { stream, from: offset(3), permit: UNLIMITED }).await;
    expect!(raw, 2, ServerFrame::Tailing(_) => ());
    assert_eq!(rest(&mut raw).await, (numbered(3..18), ("limit_reached".to_owned(), 18)));
    node.stop().await;
}

#[tokio::test]
async fn an_id_is_free_again_and_what_is_trimmed_ends_a_tail() {
    let node = Node::start().await;
    let mut raw = node.raw().await;
    let stream = raw.stream("s").await;
    fill(&mut raw, stream, 0..10, 1).await;
    raw.send_command(1, Durability::Os, |out| encode_trim_stream(out, stream, Offset(5))).await;
    expect!(raw, 1, ServerFrame::Done(_) => ());
    for (from, code) in [(4, "trimmed"), (11, "beyond_end")] {
        raw.send(1, &Tail { stream, from: offset(from), permit: UNLIMITED }).await;
        assert_eq!(raw.fails(1).await, code, "and so the id is free");
    }
    // Two of five records are permitted, and the others are trimmed in the meantime.
    let permit = Permit { messages: 2, bytes: u64::MAX };
    raw.ask(1, &Tail { stream, from: offset(5), permit }, Kind::Tailing).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Tailed(page) => records(&page.runs)), numbered(5..7));
    raw.send_command(2, Durability::Os, |out| encode_trim_stream(out, stream, Offset(9))).await;
    expect!(raw, 2, ServerFrame::Done(_) => ());
    raw.send(1, &Credit { messages: 100, bytes: u64::MAX }).await;
    assert_eq!(expect!(raw, 1, ServerFrame::Ended(end) => end.code.to_owned()), "trimmed");
    node.stop().await;
}

/// A subscriber that does not read its frames causes no further reads. Its queue is bounded, and others are served.
#[tokio::test]
async fn a_stuck_tail_holds_up_nobody() {
    let node = Node::with(|config| config.max_body_bytes_in_flight = ByteSize(64 << 20)).await;
    let mut writer = node.raw().await;
    let stream = writer.stream("s").await;
    let payload = vec![7; 100_000];
    for _ in 0..100 {
        writer.append(stream, &[&payload[..]; 5]).await;
    }
    let mut stuck = node.raw().await;
    stuck.send(1, &Tail { stream, from: Position::Start {}, permit: UNLIMITED }).await;
    let mut other = node.raw().await;
    other.ask(1, &Tail { stream, from: Position::Start {}, permit: UNLIMITED }, Kind::Tailing).await;
    let mut seen = 0;
    while seen < 500 {
        seen += expect!(other, 1, ServerFrame::Tailed(page) => records(&page.runs).len());
    }
    // The stuck tail continues at its old position.
    expect!(stuck, 1, ServerFrame::Tailing(_) => ());
    let mut seen = 0;
    while seen < 500 {
        seen += expect!(stuck, 1, ServerFrame::Tailed(page) => records(&page.runs).len());
    }
    writer.send_command(1, Durability::Disk, |out| encode_append(out, stream, None, &batch(&[b"end"]))).await;
    expect!(writer, 1, ServerFrame::Committed(_) => ());
    node.stop().await;
}
