//! Behaviour of streams that a comparison with Redis cannot test: ids and idle times by the clock, waiting,
//! limits, damaged rows.

use std::time::Duration;

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, Read, Reply, Store, Value, execute,
    model::Model,
    streams::{
        EntryId,
        block::{Blocked, Poll},
        layout,
    },
};
use thalweg_types::limits::{
    MAX_REDIS_CONSUMERS, MAX_REDIS_GROUP_NAME_BYTES, MAX_REDIS_GROUPS, MAX_REDIS_REPLY_BYTES, MAX_REDIS_STREAM_ROWS,
    MAX_REDIS_SWEPT_ROWS, MAX_REDIS_TRIM_BYTES, MAX_VALUE_BYTES,
};

/// Executes a command whose arguments contain no spaces.
fn ask(model: &mut Model, command: &str) -> Reply {
    let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    execute(model, &args).expect("a store in memory does not fail")
}

fn model_at(now: u64) -> Model {
    let mut model = Model::default();
    model.now = now;
    model
}

fn error(reply: &Reply) -> &str {
    match reply {
        Reply::Error(text) => text,
        other => panic!("{other:?}"),
    }
}

fn bulk(text: &str) -> Reply {
    Reply::bulk(text.as_bytes())
}

/// Returns the ids of an array of entries.
fn ids(reply: &Reply) -> Vec<String> {
    let Reply::Array(entries) = reply else { panic!("{reply:?}") };
    let id = |entry: &Reply| match entry {
        Reply::Array(parts) => match &parts[0] {
            Reply::Bulk(id) => String::from_utf8(id.to_vec()).unwrap(),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    entries.iter().map(id).collect()
}

fn collection(model: &Model, key: &[u8]) -> CollectionId {
    match model.get(key).unwrap().unwrap().value {
        Value::Collection(collection) => collection.id,
        Value::String(_) => panic!("a string"),
    }
}

fn rows(model: &Model, key: &[u8]) -> usize {
    let mut rows = 0;
    let all = std::ops::Bound::Unbounded;
    let visit = &mut |_: &[u8], _: &[u8]| {
        rows += 1;
        std::ops::ControlFlow::Continue(())
    };
    model.parts(collection(model, key), all, all, false, visit).unwrap();
    rows
}

/// Redis compares options as C strings.
#[test]
fn a_zero_byte_ends_an_option() {
    let mut model = model_at(1000);
    assert_eq!(ask(&mut model, "xadd s maxlen\0x ~\0x 9 *\0x f v"), bulk("1000-0"));
    assert_eq!(ask(&mut model, "xgroup create s g $\0x MKSTREAM\0x"), Reply::Ok);
    assert_eq!(ask(&mut model, "xgroup setid s g 0 entriesread\0 0"), Reply::Ok);
    assert_eq!(ask(&mut model, "xadd other nomkstream\0 * f v"), Reply::Null);
    assert_eq!(ask(&mut model, "xtrim s minid\0 =\0 1"), Reply::Integer(0));
    let no_entries = "xreadgroup group\0 g c count\0 1 noack\0 streams\0 s 0\0";
    assert_eq!(ask(&mut model, no_entries), Reply::Pairs(vec![(bulk("s"), Reply::Array(Vec::new()))]));
    for (with, without) in [
        ("xread count\0x 1 streams\0x s 0", "xread count 1 streams s 0"),
        ("xread streams s $\0x", "xread streams s $"),
        ("xread streams s >\0x", "xread streams s >"),
        ("xrange s - + count\0 1", "xrange s - + count 1"),
        ("xinfo stream s full\0 count\0 1", "xinfo stream s full count 1"),
        ("xpending s g idle\0 0 - + 1", "xpending s g idle 0 - + 1"),
        ("xclaim s g c 0 1-1 force\0 justid\0", "xclaim s g c 0 1-1 force justid"),
        ("xautoclaim s g c 0 0 count\0 1 justid\0", "xautoclaim s g c 0 0 count 1 justid"),
    ] {
        assert_eq!(ask(&mut model, with), ask(&mut model, without), "{without}");
    }
    let blocking: [&[u8]; 6] = [b"xread", b"block\0x", b"0", b"streams", b"s", b"$\0x"];
    assert!(Blocked::begin(&model, &blocking).unwrap().is_some());
}

#[test]
fn ids_are_of_the_stores_time_and_never_go_back() {
    let mut model = model_at(1000);
    assert_eq!(ask(&mut model, "xadd s * f v"), bulk("1000-0"));
    assert_eq!(ask(&mut model, "xadd s * f v"), bulk("1000-1"));
    model.now = 900;
    assert_eq!(ask(&mut model, "xadd s * f v"), bulk("1000-2"));
    model.now = 2000;
    assert_eq!(ask(&mut model, "xadd s * f v"), bulk("2000-0"));
    assert_eq!(ask(&mut model, "xlen s"), Reply::Integer(4));
}

#[test]
fn idleness_is_by_the_stores_time() {
    let mut model = model_at(1000);
    ask(&mut model, "xadd s 1-1 f v");
    ask(&mut model, "xgroup create s g 0");
    ask(&mut model, "xreadgroup GROUP g alice STREAMS s >");
    model.now = 1500;
    assert_eq!(ids(&ask(&mut model, "xpending s g IDLE 500 - + 10")), ["1-1"]);
    assert_eq!(ids(&ask(&mut model, "xpending s g IDLE 501 - + 10")), Vec::<String>::new());
    assert_eq!(ask(&mut model, "xclaim s g bob 501 1-1 JUSTID"), Reply::Array(vec![]));
    assert_eq!(ask(&mut model, "xclaim s g bob 500 1-1 JUSTID"), Reply::Array(vec![bulk("1-1")]));
    let expected = vec![bulk("1-1"), bulk("bob"), Reply::Integer(0), Reply::Integer(1)];
    assert_eq!(ask(&mut model, "xpending s g - + 10"), Reply::Array(vec![Reply::Array(expected)]));
}

#[test]
fn a_stream_keeps_its_deadline() {
    let mut model = model_at(1000);
    ask(&mut model, "xadd s 1-1 f v");
    ask(&mut model, "pexpireat s 2000");
    ask(&mut model, "xadd s 2-1 f v");
    assert_eq!(ask(&mut model, "pexpiretime s"), Reply::Integer(2000));
    model.now = 2000;
    assert_eq!(ask(&mut model, "exists s"), Reply::Integer(0));
    assert_eq!(ask(&mut model, "xadd s 1-1 f v"), bulk("1-1"), "the new stream has the same name");
    assert_eq!(ask(&mut model, "xlen s"), Reply::Integer(1));
}

fn blocked(model: &Model, command: &str) -> Option<Blocked> {
    let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
    Blocked::begin(model, &args).unwrap()
}

fn text(blocked: &Blocked) -> String {
    let arguments = blocked.arguments();
    arguments.iter().map(|argument| String::from_utf8_lossy(argument)).collect::<Vec<_>>().join(" ")
}

#[test]
fn what_a_reader_waits_for_does_not_depend_on_when_it_looks() {
    let mut model = Model::default();
    ask(&mut model, "xadd s 5-1 f v");
    let waits = blocked(&model, "xread BLOCK 250 STREAMS s t u $ $ 7").unwrap();
    assert_eq!(waits.timeout(), Some(Duration::from_millis(250)));
    assert_eq!(waits.keys().collect::<Vec<_>>(), ["s", "t", "u"]);
    assert_eq!(text(&waits), "XREAD COUNT 1000 STREAMS s t u 5-1 0-0 7-0");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Waiting);
    ask(&mut model, "set u string");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Waiting, "the key may become a stream again");
    ask(&mut model, "xadd t 0-1 f v");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Ready);
    assert_eq!(blocked(&model, "xread block 0 count 7 streams s $").map(|waits| waits.timeout()), Some(None));
    for other in ["xread STREAMS s $", "xread BLOCK x STREAMS s $", "get s", "xread BLOCK 1 STREAMS s", "xread"] {
        assert_eq!(blocked(&model, other), None, "{other}");
    }
}

#[test]
fn a_consumer_waits_until_there_is_something_or_nothing_to_wait_for() {
    let mut model = Model::default();
    ask(&mut model, "xgroup create s g 0 MKSTREAM");
    assert_eq!(
        blocked(&model, "xreadgroup GROUP g alice BLOCK 0 STREAMS s 0"),
        None,
        "pending entries are returned immediately"
    );
    let waits = blocked(&model, "XREADGROUP GROUP g alice BLOCK 0 COUNT 3 NOACK STREAMS s >").unwrap();
    assert_eq!(text(&waits), "XREADGROUP GROUP g alice NOACK COUNT 3 STREAMS s >");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Waiting);
    ask(&mut model, "xadd s 1-1 f v");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Ready);
    let arguments = waits.arguments();
    let arguments: Vec<_> = arguments.iter().map(|argument| &argument[..]).collect();
    assert!(matches!(execute(&mut model, &arguments).unwrap(), Reply::Pairs(streams) if streams.len() == 1));
    assert_eq!(waits.poll(&model).unwrap(), Poll::Waiting);
    ask(&mut model, "xgroup destroy s g");
    let gone = "NOGROUP the consumer group this client was blocked on no longer exists";
    assert_eq!(waits.poll(&model).unwrap(), Poll::Ended(Reply::error(gone)));
    ask(&mut model, "del s");
    assert_eq!(waits.poll(&model).unwrap(), Poll::Ended(Reply::error("UNBLOCKED the stream key no longer exists")));
}

/// Writes a stream with the entries `1-0` to `count-0`, directly as rows.
fn long_stream(model: &mut Model, count: u64, value: &[u8]) {
    ask(model, "xadd s 1-0 f v");
    let at = collection(model, b"s");
    let value = layout::encode_entry(&[b"f", value]);
    for ms in 1..=count {
        model.put_part(at, &layout::entry(EntryId { ms, seq: 0 }), &value).unwrap();
    }
    let (first_id, last_id) = (EntryId { ms: 1, seq: 0 }, EntryId { ms: count, seq: 0 });
    let meta = layout::Meta { len: count, added: count, first_id, last_id, ..layout::Meta::default() };
    put_meta(model, meta.encode());
}

fn put_meta(model: &mut Model, meta: Bytes) {
    let Value::Collection(mut collection) = model.get(b"s").unwrap().unwrap().value else { panic!("a string") };
    collection.meta = meta;
    model.put(b"s", thalweg_redis::NewValue::Collection(collection), None).unwrap();
}

#[test]
fn a_command_trims_so_many_entries_at_most_and_the_next_goes_on() {
    let mut model = Model::default();
    long_stream(&mut model, MAX_REDIS_STREAM_ROWS + 5, b"v");
    assert_eq!(ask(&mut model, "xtrim s MAXLEN 2"), Reply::Integer(MAX_REDIS_STREAM_ROWS as i64));
    assert_eq!(ids(&ask(&mut model, "xrange s - + COUNT 1")), [format!("{}-0", MAX_REDIS_STREAM_ROWS + 1)]);
    assert_eq!(ask(&mut model, "xtrim s MAXLEN 2"), Reply::Integer(3));
    assert_eq!(ask(&mut model, "xlen s"), Reply::Integer(2));
}

#[test]
fn a_command_trims_so_many_bytes_and_the_next_goes_on() {
    let mut model = Model::default();
    let value = vec![b'v'; MAX_VALUE_BYTES / 2];
    let fit = MAX_REDIS_TRIM_BYTES.div_ceil(value.len()) as u64;
    long_stream(&mut model, 2 * fit, &value);
    assert_eq!(ask(&mut model, "xtrim s MAXLEN 0"), Reply::Integer(fit as i64));
    assert_eq!(ids(&ask(&mut model, "xrange s - + COUNT 1")), [format!("{}-0", fit + 1)]);
    assert_eq!(ask(&mut model, "xtrim s MAXLEN 0"), Reply::Integer(fit as i64));
    assert_eq!(ask(&mut model, "xlen s"), Reply::Integer(0));
}

#[test]
fn a_reply_that_would_be_too_large_is_refused_or_ends_early() {
    let mut model = Model::default();
    let value = vec![b'v'; MAX_VALUE_BYTES / 2];
    let fit = (MAX_REDIS_REPLY_BYTES / (value.len() + 500)) as u64;
    long_stream(&mut model, fit + 2, &value);
    assert!(error(&ask(&mut model, "xrange s - +")).starts_with("ERR the reply would be too large"));
    assert_eq!(ids(&ask(&mut model, &format!("xrange s - + COUNT {fit}"))).len() as u64, fit);
    let entries = |reply: Reply| match reply {
        Reply::Pairs(streams) => ids(&streams[0].1).len() as u64,
        other => panic!("{}", error(&other)),
    };
    let first = entries(ask(&mut model, "xread STREAMS s 0"));
    assert!(first >= fit && first < fit + 2);
    ask(&mut model, "xgroup create s g 0");
    // A delivery also ends before its command is too expensive, and leaves the rest to the next one.
    let mut delivered = 0;
    while delivered < fit + 2 {
        let next = entries(ask(&mut model, "xreadgroup GROUP g alice STREAMS s >"));
        assert!(next >= 1 && next <= first, "{next} of {first}");
        delivered += next;
    }
    assert_eq!(delivered, fit + 2);
}

#[test]
fn a_large_group_is_removed_by_and_by() {
    let mut model = Model::default();
    let count = 2 * MAX_REDIS_SWEPT_ROWS as u64 + 10;
    long_stream(&mut model, count, b"v");
    ask(&mut model, "xgroup create s g 0");
    ask(&mut model, "xreadgroup GROUP g alice STREAMS s >");
    ask(&mut model, "xgroup create s other 0");
    ask(&mut model, "xreadgroup GROUP other alice COUNT 3 STREAMS s >");
    let others = rows(&model, b"s") - 2 * count as usize - 3;
    assert_eq!(ask(&mut model, "xgroup destroy s g"), Reply::Integer(1));
    assert!(rows(&model, b"s") > others, "some rows are left");
    ask(&mut model, "xgroup create s g 0");
    assert_eq!(ask(&mut model, "xpending s g").clone(), {
        Reply::Array(vec![Reply::Integer(0), Reply::Null, Reply::Null, Reply::NullArray])
    });
    for _ in 0..5 {
        ask(&mut model, "xadd s * f v");
    }
    assert_eq!(rows(&model, b"s"), others + 1 + 5, "the new group's row, and the entries");
    assert_eq!(ids(&ask(&mut model, "xpending s other - + 10")), ["1-0", "2-0", "3-0"]);
}

#[test]
fn groups_consumers_names_and_entries_have_bounds() {
    let mut model = Model::default();
    ask(&mut model, "xadd s 1-1 f v");
    for number in 0..MAX_REDIS_GROUPS {
        assert_eq!(ask(&mut model, &format!("xgroup create s g{number} 0")), Reply::Ok);
    }
    assert!(error(&ask(&mut model, "xgroup create s more 0")).contains("1000 consumer groups already"));
    assert_eq!(error(&ask(&mut model, "xgroup create s g0 0")), "BUSYGROUP Consumer Group name already exists");
    for number in 0..MAX_REDIS_CONSUMERS {
        ask(&mut model, &format!("xgroup createconsumer s g0 c{number}"));
    }
    for command in ["xgroup createconsumer s g0 more", "xreadgroup GROUP g0 more STREAMS s >", "xclaim s g0 more 0 1-1"]
    {
        assert!(error(&ask(&mut model, command)).contains("10000 consumers already"), "{command}");
    }
    let longest = "n".repeat(MAX_REDIS_GROUP_NAME_BYTES);
    assert_eq!(ask(&mut model, &format!("xgroup createconsumer s g1 {longest}")), Reply::Integer(1));
    let refused = ask(&mut model, &format!("xgroup createconsumer s g1 {longest}n"));
    assert!(error(&refused).contains("longer than 1024 bytes"));
    let large = "v".repeat(MAX_VALUE_BYTES - 10);
    assert_eq!(ask(&mut model, &format!("xadd s 2-1 f {large}")), bulk("2-1"));
    let refused = ask(&mut model, &format!("xadd s 3-1 f {large}v"));
    assert_eq!(error(&refused), "ERR Elements are too large to be stored");
}

#[test]
fn a_consumer_with_very_much_pending_is_not_deleted() {
    let mut model = Model::default();
    long_stream(&mut model, MAX_REDIS_STREAM_ROWS + 1, b"v");
    ask(&mut model, "xgroup create s g 0");
    ask(&mut model, "xreadgroup GROUP g alice STREAMS s >");
    ask(&mut model, "xreadgroup GROUP g alice STREAMS s >");
    assert!(error(&ask(&mut model, "xgroup delconsumer s g alice")).contains("10001 pending entries"));
    assert!(error(&ask(&mut model, "xpending s g - + 200000")).contains("more than 10000 pending entries"));
    assert_eq!(ask(&mut model, "xack s g 1-0"), Reply::Integer(1));
    assert_eq!(ask(&mut model, "xgroup delconsumer s g alice"), Reply::Integer(MAX_REDIS_STREAM_ROWS as i64));
}

#[test]
fn damaged_rows_are_errors_of_the_store() {
    let mut model = Model::default();
    ask(&mut model, "xadd s 1-1 f v");
    ask(&mut model, "xgroup create s g 0");
    ask(&mut model, "xreadgroup GROUP g alice STREAMS s >");
    let at = collection(&model, b"s");
    let mut names = Vec::new();
    let all = std::ops::Bound::Unbounded;
    let visit = &mut |name: &[u8], _: &[u8]| {
        names.push(name.to_vec());
        std::ops::ControlFlow::Continue(())
    };
    model.parts(at, all, all, false, visit).unwrap();
    assert_eq!(names.len(), 6, "an entry, a group, a consumer by name and by number, pending twice");
    let commands = [
        "xrange s - +",
        "xinfo stream s FULL",
        "xreadgroup GROUP g alice STREAMS s 0",
        "xautoclaim s g bob 0 -",
        "xack s g 1-1",
        "xgroup delconsumer s g alice",
    ];
    for name in names.iter().filter(|name| name[0] != 6) {
        let mut model = model.clone();
        model.put_part(at, name, b"\x01damaged").unwrap();
        let failed = commands.iter().any(|command| {
            let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
            execute(&mut model, &args).is_err()
        });
        assert!(failed, "{name:?}");
    }
    for meta in [&b""[..], b"short", &[0xff; 80]] {
        let mut model = model.clone();
        put_meta(&mut model, Bytes::copy_from_slice(meta));
        for command in
            commands.iter().chain(&["xadd s 9-9 f v", "xdel s 1-1", "xtrim s MAXLEN 0", "xgroup destroy s g"])
        {
            let args: Vec<_> = command.split(' ').map(str::as_bytes).collect();
            let done = execute(&mut model, &args);
            assert!(done.is_err() || meta.len() == 80, "{command}");
        }
    }
}
