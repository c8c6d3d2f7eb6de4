//! Redis commands: strings, keys, hashes and streams with groups, one to four in a log command, some of them in a
//! transaction.

use thalweg_types::command::RedisBuilder;

use super::{
    Input,
    generator::{Encoded, Generator, key, keyspace, value},
};

/// Commands with placeholders: `{k}` and `{l}` are keys, `{v}` a value, `{f}` and `{g}` fields, `{n}` a number,
/// `{t}` a time in milliseconds, `{i}` and `{j}` ids of a stream's entries, `{c}` a consumer. Commands that write
/// are repeated.
const TEMPLATES: &[&str] = &[
    "SET {k} {v}",
    "SET {k} {v}",
    "SET {k} {v}",
    "SET {k} {v} NX GET",
    "SET {k} {v} XX KEEPTTL",
    "SET {k} {v} PXAT {t}",
    "SET {k} {v} PX 100",
    "SETNX {k} {v}",
    "PSETEX {k} 50 {v}",
    "GET {k}",
    "MGET {k} {l}",
    "GETSET {k} {v}",
    "GETDEL {k}",
    "GETEX {k} PXAT {t}",
    "GETEX {k} PERSIST",
    "APPEND {k} {v}",
    "APPEND {k} {v}",
    "SETRANGE {k} {n} {v}",
    "GETRANGE {k} 1 40",
    "INCR {k}",
    "INCRBY {k} {n}",
    "INCRBYFLOAT {k} 1.5",
    "MSET {k} {v} {l} {f}",
    "MSETNX {k} {v} {l} {v}",
    "DEL {k}",
    "DEL {k} {l}",
    "EXISTS {k} {l}",
    "TYPE {k}",
    "PTTL {k}",
    "PEXPIREAT {k} {t}",
    "PEXPIREAT {k} {t} GT",
    "PEXPIRE {k} 100",
    "PEXPIRE {k} 0",
    "PERSIST {k}",
    "RENAME {k} {l}",
    "RENAME {k} {l}",
    "RENAME {k} {k}",
    "RENAMENX {k} {l}",
    "COPY {k} {l}",
    "COPY {k} {l} REPLACE",
    "SCAN 0",
    "KEYS *",
    "DBSIZE",
    "RANDOMKEY",
    "HSET {k} {f} {v}",
    "HSET {k} {f} {v} {g} {v}",
    "HSET {l} {f} {v}",
    "HSETNX {k} {f} {v}",
    "HDEL {k} {f}",
    "HDEL {k} {f} {g}",
    "HGETALL {k}",
    "HINCRBY {k} {f} {n}",
    "HRANDFIELD {k} 2",
    "HLEN {k}",
    "XADD {k} * {f} {v}",
    "XADD {k} * {f} {v}",
    "XADD {k} {i} {f} {v}",
    "XADD {k} MAXLEN 3 * {f} {v}",
    "XADD {k} NOMKSTREAM * {f} {v}",
    "XTRIM {k} MAXLEN {n}",
    "XTRIM {k} MINID {i}",
    "XDEL {k} {i}",
    "XSETID {k} {i}",
    "XRANGE {k} - +",
    "XLEN {k}",
    "XGROUP CREATE {k} gr 0 MKSTREAM",
    "XGROUP CREATE {k} gr $",
    "XGROUP SETID {k} gr {i}",
    "XGROUP DESTROY {k} gr",
    "XGROUP CREATECONSUMER {k} gr {c}",
    "XGROUP DELCONSUMER {k} gr {c}",
    "XREADGROUP GROUP gr {c} COUNT 2 STREAMS {k} >",
    "XREADGROUP GROUP gr {c} NOACK STREAMS {k} >",
    "XREADGROUP GROUP gr {c} STREAMS {k} 0",
    "XACK {k} gr {i} {j}",
    "XCLAIM {k} gr {c} 0 {i} FORCE",
    "XAUTOCLAIM {k} gr {c} 0 0 COUNT 2",
    "XPENDING {k} gr",
    "XINFO STREAM {k} FULL",
    "FLUSHDB",
];

/// Few keys, so that a command finds the results of earlier ones.
const KEYS: [&[u8]; 3] = [b"a", b"b", b"p"];

/// Returns the id of a stream's entry. Ids of `XADD *` are derived from the entry's time, so some are given
/// explicitly.
fn id(generator: &Generator, input: &mut Input<'_>) -> Vec<u8> {
    let now = generator.time / 1000;
    match input.below(4) {
        0 => format!("{now}-{}", input.below(3)),
        1 => format!("{}-0", now.saturating_sub(50)),
        2 => format!("1-{}", 1 + input.below(4)),
        _ => format!("{}-*", 1 + input.below(3)),
    }
    .into_bytes()
}

fn argument(generator: &Generator, input: &mut Input<'_>, word: &str, keys: &[Vec<u8>; 2]) -> Vec<u8> {
    match word {
        "{k}" => keys[0].clone(),
        "{l}" => keys[1].clone(),
        "{v}" => value(input),
        "{f}" | "{g}" => [b"f", b"g", b"h"][input.below(3)].to_vec(),
        "{n}" => [b"0".as_slice(), b"1", b"5", b"120", b"-3"][input.below(5)].to_vec(),
        "{t}" => (generator.time / 1000 + 40 * input.below(8) as u64).to_string().into_bytes(),
        "{i}" | "{j}" => id(generator, input),
        "{c}" => [b"ann", b"ben"][input.below(2)].to_vec(),
        word => word.as_bytes().to_vec(),
    }
}

pub fn encode(generator: &mut Generator, input: &mut Input<'_>, out: &mut Vec<u8>) -> Encoded {
    // Mostly a keyspace that permits hashes and streams.
    let id = if input.one_in(4) { keyspace(input) } else { thalweg_types::KeyspaceId(2) };
    let mut batch = RedisBuilder::new(id);
    if input.one_in(6) {
        batch.watch(key(input), u64::from(input.byte() % 32))?;
    }
    let is_transaction = input.one_in(4);
    if is_transaction {
        batch.push(&[b"MULTI"])?;
    }
    for _ in 0..=input.below(4) {
        let template = match input.byte() {
            255 => "FLUSHDB",
            byte => TEMPLATES[usize::from(byte) % (TEMPLATES.len() - 1)],
        };
        let keys = [(); 2].map(|()| if input.one_in(4) { key(input) } else { KEYS[input.below(KEYS.len())] }.to_vec());
        let args: Vec<_> = template.split(' ').map(|word| argument(generator, input, word, &keys)).collect();
        batch.push(&args.iter().map(Vec::as_slice).collect::<Vec<_>>())?;
    }
    if is_transaction {
        batch.push(&[b"EXEC"])?;
    }
    *out = batch.finish();
    Ok(())
}
