//! Commands on streams. Ids are given, never chosen by the clock, so that both sides have the same ones.
//! Entries are idle for no time or for minutes, so that idle times give the same results on both sides.

use super::{
    super::{Rng, compare::Compare, connection::Args},
    Generator, Pool, Step, exact, options,
};
use crate::args;

pub const ALL: &[Generator] = &[
    xadd, xadd, xadd, xadd, xadd, xadd, xlen, xrange, xrevrange, xread, xread, xtrim, xdel, xdel, xsetid, xgroup,
    xgroup, xgroup, xreadgroup, xreadgroup, xreadgroup, xreadgroup, xack, xack, xpending, xpending, xclaim, xclaim,
    xautoclaim, xautoclaim, xinfo, xinfo, xinfo, others,
];

const GROUPS: &[&str] = &["g", "h", "", "group:3"];
const CONSUMERS: &[&str] = &["alice", "bob", "", "c\r\nd"];

/// Returns one of three keys in most cases, because streams need several commands to have interesting states.
fn key(rng: &mut Rng, pool: &Pool) -> Vec<u8> {
    if rng.one_in(40) { pool.key(rng) } else { rng.pick(&pool.keys[..3]).clone() }
}

fn group(rng: &mut Rng) -> &'static str {
    if rng.one_in(4) { GROUPS[rng.below(GROUPS.len())] } else { GROUPS[0] }
}

fn consumer(rng: &mut Rng) -> &'static str {
    CONSUMERS[rng.below(CONSUMERS.len())]
}

/// An id that may exist.
fn id(rng: &mut Rng) -> Vec<u8> {
    const ODD: &[&str] = &[
        "-",
        "+",
        "$",
        ">",
        "*",
        "0",
        "0-0",
        "0-1",
        "5",
        "007-1",
        " 7-1",
        "+7-1",
        "7-+1",
        "7--1",
        "7- -1",
        "7-",
        "-7",
        "7-1-1",
        "7-*",
        "18446744073709551615",
        "18446744073709551615-18446744073709551615",
        "18446744073709551616",
        "a",
        "",
        "5-18446744073709551615",
        "(5",
        "7-1\u{0}9",
        "\u{0}",
        "0-*",
        "18446744073709551615-*",
    ];
    match rng.below(12) {
        0 => rng.pick(ODD).as_bytes().to_vec(),
        1 => rng.below(40).to_string().into_bytes(),
        _ => format!("{}-{}", rng.below(40), rng.below(3)).into_bytes(),
    }
}

/// A bound of a range.
fn edge(rng: &mut Rng, open: &str) -> Vec<u8> {
    match rng.below(4) {
        0 => id(rng),
        1 => [b"(", &id(rng)[..]].concat(),
        _ => open.as_bytes().to_vec(),
    }
}

fn count(rng: &mut Rng, pool: &Pool) -> Vec<u8> {
    if rng.one_in(8) { pool.integer(rng) } else { rng.below(5).to_string().into_bytes() }
}

/// Minimum idle time.
fn min_idle(rng: &mut Rng) -> Vec<u8> {
    const ALL: &[&str] = &["0", "0", "0", "-1", "60000", "200000", "x", "9223372036854775807"];
    rng.pick(ALL).as_bytes().to_vec()
}

fn trimming(rng: &mut Rng, pool: &Pool) -> Args {
    let mut args = match rng.below(2) {
        0 => args!["maxlen"],
        _ => args!["MINID"],
    };
    match rng.below(4) {
        0 => args.push(b"~".to_vec()),
        1 => args.push(b"=".to_vec()),
        _ => {}
    }
    args.push(if args[0] == b"maxlen" { count(rng, pool) } else { id(rng) });
    if rng.one_in(6) {
        args.extend([b"Limit".to_vec(), count(rng, pool)]);
    }
    args
}

fn xadd(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xadd", key(rng, pool)];
    if rng.one_in(6) {
        args.extend(options(rng, 2, |rng| if rng.one_in(4) { args!["nomkstream"] } else { trimming(rng, pool) }));
    }
    args.push(match rng.below(3) {
        0 => id(rng),
        _ => format!("{}-*", rng.below(40)).into_bytes(),
    });
    // An id chosen by the clock cannot be compared.
    if args.iter().skip(2).any(|arg| arg == b"*") {
        return xlen(rng, pool);
    }
    for _ in 0..1 + rng.below(3) {
        args.extend([pool.field(rng), pool.value(rng)]);
    }
    if rng.one_in(30) {
        args.pop();
    }
    exact(args)
}

fn xlen(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["xlen", key(rng, pool)])
}

fn with_count(rng: &mut Rng, pool: &Pool, mut args: Args) -> Args {
    match rng.below(6) {
        0 => args.extend(options(rng, 2, |rng| args!["COUNT", count(rng, pool)])),
        1 => args.extend([b"count".to_vec(), count(rng, pool)]),
        _ => {}
    }
    args
}

fn xrange(rng: &mut Rng, pool: &Pool) -> Step {
    let args = args!["xrange", key(rng, pool), edge(rng, "-"), edge(rng, "+")];
    exact(with_count(rng, pool, args))
}

fn xrevrange(rng: &mut Rng, pool: &Pool) -> Step {
    let args = args!["xrevrange", key(rng, pool), edge(rng, "+"), edge(rng, "-")];
    exact(with_count(rng, pool, args))
}

fn reading(rng: &mut Rng, pool: &Pool, mut args: Args, special: &str) -> Step {
    const BLOCK: &[&str] = &["1", "1", "1", "-1", "x", "1.5"];
    let with = |rng: &mut Rng, args: &mut Args| match rng.below(20) {
        0..=3 => args.extend([b"COUNT".to_vec(), count(rng, pool)]),
        4 => args.extend([b"BLOCK".to_vec(), rng.pick(BLOCK).as_bytes().to_vec()]),
        5 => args.push(b"NOACK".to_vec()),
        6 if rng.one_in(3) => args.extend(args!["GROUP", group(rng), consumer(rng)]),
        _ => {}
    };
    with(rng, &mut args);
    with(rng, &mut args);
    args.push(b"STREAMS".to_vec());
    let streams = if rng.one_in(5) { 2 } else { 1 };
    args.extend((0..streams).map(|_| key(rng, pool)));
    args.extend((0..streams).map(|_| match rng.below(3) {
        0 => id(rng),
        1 => b"0".to_vec(),
        _ => special.as_bytes().to_vec(),
    }));
    exact(args)
}

fn xread(rng: &mut Rng, pool: &Pool) -> Step {
    reading(rng, pool, args!["xread"], "$")
}

fn xreadgroup(rng: &mut Rng, pool: &Pool) -> Step {
    let args = args!["xreadgroup", "GROUP", group(rng), consumer(rng)];
    reading(rng, pool, args, ">")
}

fn xtrim(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xtrim", key(rng, pool)];
    if rng.one_in(3) {
        args.extend(options(rng, 2, |rng| trimming(rng, pool)));
    } else if rng.one_in(3) {
        args.extend(trimming(rng, pool));
    } else {
        args.extend(args!["MAXLEN", (3 + rng.below(10)).to_string()]);
    }
    exact(args)
}

fn ids(rng: &mut Rng, args: &mut Args) {
    args.extend((0..1 + rng.below(4)).map(|_| id(rng)));
}

fn xdel(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xdel", key(rng, pool)];
    ids(rng, &mut args);
    exact(args)
}

fn xsetid(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xsetid", key(rng, pool), id(rng)];
    args.extend(options(rng, 2, |rng| match rng.below(3) {
        0 => args!["ENTRIESADDED", count(rng, pool)],
        1 => args!["maxdeletedid", id(rng)],
        _ => args!["entriesadded", (rng.below(60)).to_string()],
    }));
    exact(args)
}

fn xgroup(rng: &mut Rng, pool: &Pool) -> Step {
    const START: &[&str] = &["0", "$", "0", "$", "5-1"];
    let (key, group) = (key(rng, pool), group(rng));
    let start = if rng.one_in(6) { id(rng) } else { rng.pick(START).as_bytes().to_vec() };
    let mut args = match rng.below(16) {
        0..=5 => args!["xgroup", "CREATE", key, group, start],
        6..=8 => args!["xgroup", "setid", key, group, start],
        9 => args!["xgroup", "destroy", key, group],
        10 | 11 => args!["xgroup", "CreateConsumer", key, group, consumer(rng)],
        12 | 13 => args!["xgroup", "delconsumer", key, group, consumer(rng)],
        14 => args!["xgroup", "help"],
        _ => args!["xgroup", "n\0one", key],
    };
    if rng.one_in(3) {
        args.extend(options(rng, 3, |rng| match rng.below(4) {
            0 => args!["entriesread", count(rng, pool)],
            1 => args!["nothing"],
            _ => args!["MKSTREAM"],
        }));
    }
    exact(args)
}

fn xack(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xack", key(rng, pool), group(rng)];
    ids(rng, &mut args);
    exact(args)
}

fn timed(args: Args) -> Step {
    Step { args, compare: Compare::Times }
}

fn xpending(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xpending", key(rng, pool), group(rng)];
    if rng.one_in(3) {
        return exact(args);
    }
    if rng.one_in(4) {
        args.extend([b"IDLE".to_vec(), min_idle(rng)]);
    }
    args.extend([edge(rng, "-"), edge(rng, "+"), count(rng, pool)]);
    if rng.one_in(2) {
        args.push(consumer(rng).as_bytes().to_vec());
    }
    timed(args)
}

fn xclaim(rng: &mut Rng, pool: &Pool) -> Step {
    const IDLE: &[&str] = &["0", "100000", "300000", "-5", "x", "9223372036854775807", "-9223372036854775808"];
    let mut args = args!["xclaim", key(rng, pool), group(rng), consumer(rng), min_idle(rng)];
    ids(rng, &mut args);
    args.extend(options(rng, 4, |rng| match rng.below(9) {
        0 | 1 => args!["idle", rng.pick(IDLE)],
        2 => args!["TIME", rng.pick(IDLE)],
        3 => args!["RetryCount", count(rng, pool)],
        4 | 5 => args!["FORCE"],
        6 | 7 => args!["justid"],
        _ => args!["lastid", id(rng)],
    }));
    exact(args)
}

fn xautoclaim(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["xautoclaim", key(rng, pool), group(rng), consumer(rng), min_idle(rng), edge(rng, "-")];
    args.extend(options(rng, 2, |rng| match rng.below(3) {
        0 => args!["justid"],
        _ => args!["COUNT", limited(count(rng, pool))],
    }));
    exact(args)
}

/// Limits a count for which Redis reserves memory; a huge one could fail only there.
fn limited(count: Vec<u8>) -> Vec<u8> {
    let number = std::str::from_utf8(&count).ok().and_then(|text| text.parse::<i64>().ok());
    if number.is_some_and(|number| number > 1_000_000) { b"1000000".to_vec() } else { count }
}

fn xinfo(rng: &mut Rng, pool: &Pool) -> Step {
    let key = key(rng, pool);
    timed(match rng.below(10) {
        0 => args!["xinfo", "help"],
        1 => args!["xinfo", "groups", key],
        2 => args!["xinfo", "Consumers", key, group(rng)],
        3 => args!["xinfo", "stream", key],
        4 => args!["xinfo", "stream", key, "full", "COUNT", count(rng, pool)],
        5 => args!["xinfo", "stream", key, "count", "1"],
        6 => args!["xinfo", "no\r\nne", key],
        _ => args!["xinfo", "stream", key, "FULL"],
    })
}

/// Deletes, overwrites, renames or copies a key.
fn others(rng: &mut Rng, pool: &Pool) -> Step {
    exact(match rng.below(12) {
        0..=4 => args!["del", key(rng, pool)],
        5 => args!["set", key(rng, pool), "string"],
        6 | 7 => args!["rename", key(rng, pool), key(rng, pool)],
        8 => args!["copy", key(rng, pool), key(rng, pool), "REPLACE"],
        9 => args!["type", key(rng, pool)],
        _ => args!["exists", key(rng, pool)],
    })
}
