//! Commands made of the input, over a store in memory, twice.
//!
//! Never a panic; the same commands have the same replies and leave the same keys; what is refused changes nothing; a
//! hash says how many fields it has, and none is empty; a stream how many entries, and their ids rise.

#![no_main]

use libfuzzer_sys::fuzz_target;
use thalweg_fuzz::Input;
use thalweg_redis::{Reply, execute, model::Model, table};

/// Words that the commands know, so that the input need not spell them.
const WORDS: &[&[u8]] = &[
    b"",
    b"a",
    b"b",
    b"f",
    b"0",
    b"1",
    b"-1",
    b"10",
    b"100000",
    b"9223372036854775807",
    b"-9223372036854775808",
    b"1.5",
    b"1e4932",
    b"0x1p-3",
    b"inf",
    b"NX",
    b"XX",
    b"GT",
    b"LT",
    b"EX",
    b"PX",
    b"EXAT",
    b"PXAT",
    b"KEEPTTL",
    b"PERSIST",
    b"GET",
    b"REPLACE",
    b"DB",
    b"MATCH",
    b"COUNT",
    b"TYPE",
    b"WITHVALUES",
    b"*",
    b"?[a-b]*",
    b"hash",
    b"string",
    b"stream",
    b"-",
    b"+",
    b"$",
    b">",
    b"(1-1",
    b"0-0",
    b"1-1",
    b"1-*",
    b"7-2",
    b"MAXLEN",
    b"MINID",
    b"~",
    b"=",
    b"LIMIT",
    b"NOMKSTREAM",
    b"MKSTREAM",
    b"CREATE",
    b"SETID",
    b"DESTROY",
    b"CREATECONSUMER",
    b"DELCONSUMER",
    b"ENTRIESREAD",
    b"ENTRIESADDED",
    b"MAXDELETEDID",
    b"STREAM",
    b"STREAMS",
    b"GROUP",
    b"GROUPS",
    b"CONSUMERS",
    b"FULL",
    b"NOACK",
    b"BLOCK",
    b"IDLE",
    b"TIME",
    b"RETRYCOUNT",
    b"FORCE",
    b"JUSTID",
    b"LASTID",
];

fn argument(input: &mut Input<'_>) -> Vec<u8> {
    let word = usize::from(input.byte());
    WORDS.get(word).map_or_else(|| input.bytes().to_vec(), |word| word.to_vec())
}

fn ask(model: &mut Model, args: &[&[u8]]) -> Reply {
    execute(model, args).expect("a store in memory does not fail")
}

/// A stream's entries, groups and consumers.
fn stream(model: &mut Model, name: &[u8]) -> Reply {
    let Reply::Array(entries) = ask(model, &[b"xrange", name, b"-", b"+"]) else { panic!("entries") };
    assert_eq!(ask(model, &[b"xlen", name]), Reply::Integer(entries.len() as i64));
    let id = |entry: &Reply| {
        let Reply::Array(parts) = entry else { panic!("an entry") };
        let Reply::Bulk(id) = &parts[0] else { panic!("an id") };
        let text = std::str::from_utf8(id).expect("numbers");
        let (ms, seq) = text.split_once('-').expect("both");
        (ms.parse::<u64>().expect("a number"), seq.parse::<u64>().expect("a number"))
    };
    assert!(entries.windows(2).all(|pair| id(&pair[0]) < id(&pair[1])));
    ask(model, &[b"xinfo", b"stream", name, b"full", b"count", b"0"])
}

/// Each key with what it holds.
fn contents(model: &mut Model) -> Vec<(Reply, Reply, Reply)> {
    let Reply::Array(keys) = ask(model, &[b"keys", b"*"]) else { panic!("keys") };
    let mut contents = Vec::new();
    for key in keys {
        let Reply::Bulk(name) = &key else { panic!("a key") };
        let value = match ask(model, &[b"type", name]) {
            Reply::Simple("hash") => {
                let Reply::Map(pairs) = ask(model, &[b"hgetall", name]) else { panic!("fields") };
                assert_eq!(ask(model, &[b"hlen", name]), Reply::Integer(pairs.len() as i64));
                assert!(!pairs.is_empty());
                Reply::Map(pairs)
            }
            Reply::Simple("stream") => stream(model, name),
            Reply::Simple("string") => ask(model, &[b"get", name]),
            other => other,
        };
        let ends = ask(model, &[b"pexpiretime", name]);
        contents.push((key, value, ends));
    }
    contents
}

fuzz_target!(|data: &[u8]| {
    let commands: Vec<_> = table::all().collect();
    let mut input = Input(data);
    let (mut one, mut other) = (Model::default(), Model::default());
    while !input.is_empty() {
        let command = commands[usize::from(input.byte()) % commands.len()];
        let count = usize::from(command.arity.unsigned_abs()) - 1 + usize::from(input.byte() % 4);
        let args: Vec<_> =
            std::iter::once(command.name.as_bytes().to_vec()).chain((0..count).map(|_| argument(&mut input))).collect();
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        one.now += u64::from(input.byte());
        other.now = one.now;
        let before = contents(&mut one);
        let reply = ask(&mut one, &args);
        assert_eq!(reply, ask(&mut other, &args));
        if matches!(reply, Reply::Error(_)) {
            assert_eq!(before, contents(&mut one), "{args:?}");
        }
    }
    assert_eq!(contents(&mut one), contents(&mut other));
});
