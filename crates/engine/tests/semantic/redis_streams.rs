//! Native streams as Redis clients read them: they look like streams to which the same entries were added.

use std::time::Duration;

use thalweg_engine::types::{Offset, StreamId, record::Record, record::RecordBatch};
use thalweg_redis::{
    Read, Reply, execute,
    model::Model,
    run_read,
    streams::{Blocked, Poll, native},
};

use crate::{common::Rng, support::Node};

fn split(command: &str) -> Vec<&[u8]> {
    command.split(' ').map(str::as_bytes).collect()
}

fn ask(read: &dyn Read, command: &str) -> Reply {
    let arguments = split(command);
    run_read(read, thalweg_redis::admit(&arguments).unwrap(), &arguments).unwrap()
}

fn tell(model: &mut Model, command: &str) -> Reply {
    execute(model, &split(command)).unwrap()
}

/// Appends a batch of records, and adds their entries to the model.
fn append(node: &Node, model: &mut Model, rng: &mut Rng, count: u64) {
    let stream = node.db().stream("s").unwrap();
    let mut batch = RecordBatch::new();
    let mut added = Vec::new();
    for _ in 0..count {
        let (key, value) = (format!("k{}", rng.below(9)), format!("v{}", rng.next()));
        let record = Record {
            key: (rng.below(2) == 0).then_some(key.as_bytes()),
            headers: if rng.below(2) == 0 { vec![("h", value.as_bytes())] } else { Vec::new() },
            payload: value.as_bytes(),
            is_tombstone: false,
        };
        batch.push(&record).unwrap();
        let key = record.key.map_or(String::new(), |_| format!("key {key} "));
        let header = if record.headers.is_empty() { String::new() } else { format!("h {value} ") };
        added.push(format!("{key}{header}payload {value}"));
    }
    let first = stream.append(&batch).unwrap().appends[0].first;
    for (at, fields) in added.into_iter().enumerate() {
        let offset = first.plus(at as u64);
        let id = native::id_of(stream.time_of(offset).unwrap().unwrap(), offset);
        assert_eq!(tell(model, &format!("xadd s {id} {fields}")), Reply::bulk(id.to_string().as_bytes()));
    }
}

fn records_are_the_entries_of_a_stream(node: &mut Node) {
    let seed = 11;
    println!("seed {seed}");
    let (mut rng, mut model) = (Rng(seed), Model::default());
    let begin = node.db().space_time().0 / 1000;
    for _ in 0..60 {
        let most = if rng.below(10) == 0 { 300 } else { 4 };
        let count = 1 + rng.below(most);
        append(node, &mut model, &mut rng, count);
        if rng.below(2) == 0 {
            node.pass(Duration::from_micros(rng.below(3000)));
        }
    }
    let end = node.db().space_time().0 / 1000;
    let next = node.db().stream("s").unwrap().info().unwrap().next.0;
    for round in 0..2 {
        for _ in 0..150 {
            let mut id = || {
                let ms = begin - 1 + rng.below(end - begin + 3);
                let open = ["", "("][rng.below(2) as usize];
                match rng.below(3) {
                    0 => format!("{open}{ms}"),
                    _ => format!("{open}{ms}-{}", rng.below(next + 2)),
                }
            };
            let (from, to) = (id(), id());
            let after = id().replace('(', "");
            for command in [
                format!("xrange s {from} {to}"),
                format!("xrevrange s {from} {to} COUNT 3"),
                format!("xrange s {from} + COUNT 2"),
                format!("xrevrange s + {from} COUNT 700"),
                format!("xread COUNT 5 STREAMS s {after}"),
            ] {
                assert_eq!(ask(&node.db().redis_streams(), &command), tell(&mut model, &command), "{command}");
            }
        }
        for command in
            ["xlen s", "xrange s - +", "xrevrange s + -", "xinfo stream s", "xinfo groups s", "xread STREAMS s 0"]
        {
            assert_eq!(ask(&node.db().redis_streams(), command), tell(&mut model, command), "{command} round {round}");
        }
        let trim = format!("xtrim s MAXLEN {}", next / 2);
        let Ok(native::Write::Trim { trim: trimmed, .. }) = native::Write::parse(&split(&trim)) else {
            panic!("{trim}")
        };
        let stream = node.db().stream("s").unwrap();
        let start = trimmed.start(stream.info().unwrap().start, Offset(next), None);
        stream.trim(start).unwrap();
        tell(&mut model, &trim);
    }
}

fn keys_are_the_streams(node: &mut Node) {
    node.db().keyspace("strings").unwrap().put(b"k", b"v").unwrap();
    for name in ["b", "a", "c"] {
        node.db().stream(name).unwrap();
    }
    let streams = node.db().redis_streams();
    let names = ["b", "a", "c"].map(|name| Reply::bulk(name.as_bytes())).to_vec();
    assert_eq!(ask(&streams, "keys *"), Reply::Array(names));
    assert_eq!(ask(&streams, "dbsize"), Reply::Integer(3));
    assert_eq!(ask(&streams, "type a"), Reply::Simple("stream"));
    assert_eq!(ask(&streams, "exists a d k"), Reply::Integer(1));
    assert!(matches!(ask(&streams, "get a"), Reply::Error(text) if text.starts_with("WRONGTYPE")));
    assert_eq!(ask(&streams, "xrange a - +"), Reply::Array(Vec::new()));
    assert_eq!(ask(&streams, "xread STREAMS a 0"), Reply::NullArray);
    let waits = Blocked::begin(&streams, &split("xread BLOCK 0 STREAMS a $")).unwrap().unwrap();
    assert_eq!(waits.poll(&streams).unwrap(), Poll::Waiting);
    let mut batch = RecordBatch::new();
    batch.push_payload(b"v").unwrap();
    node.db().stream("a").unwrap().append(&batch).unwrap();
    assert_eq!(waits.poll(&streams).unwrap(), Poll::Ready);
    let version = streams.look(b"a").unwrap().unwrap().version;
    node.db().stream("a").unwrap().append(&batch).unwrap();
    assert!(streams.look(b"a").unwrap().unwrap().version > version);
    assert_eq!(node.db().stream("a").unwrap().time_of(Offset(2)).unwrap(), None);
    assert_eq!(node.db().find_stream("a").map(|stream| stream.id()), Some(StreamId(2)));
}

on_every_backend!(records_are_the_entries_of_a_stream, keys_are_the_streams);
