//! Commands on strings.

use super::super::{Rng, connection::Args};
use super::{Generator, Pool, Step, cased, exact, now_millis, options};
use crate::args;

pub const ALL: &[Generator] = &[
    set,
    set,
    set,
    get,
    get,
    getset,
    getdel,
    getex,
    getex,
    mget,
    mset,
    msetnx,
    setnx,
    setex,
    psetex,
    append,
    strlen,
    getrange,
    substr,
    setrange,
    incr,
    decr,
    incrby,
    decrby,
    incrbyfloat,
    incrbyfloat,
];

/// Commands on numbers only, to compare their last digits.
pub const FLOATS: &[Generator] = &[set_float, incrbyfloat];

/// A time to live in seconds or milliseconds: far in the future, or invalid.
pub fn time_to_live(rng: &mut Rng, unit_millis: u64) -> Vec<u8> {
    match rng.below(8) {
        0 => {
            rng.pick(&["0", "-1", "abc", "9223372036854775807", "-9223372036854775808", "", "1.5"]).as_bytes().to_vec()
        }
        // This overflows in milliseconds.
        1 if unit_millis == 1000 => (i64::MAX / 1000 + 1).to_string().into_bytes(),
        _ => ((1_000_000 + rng.next() % 1_000_000_000_000) / unit_millis).to_string().into_bytes(),
    }
}

/// A deadline in seconds or milliseconds: long past, far in the future, or invalid.
pub fn deadline(rng: &mut Rng, unit_millis: u64) -> Vec<u8> {
    match rng.below(8) {
        0 => rng.pick(&["0", "-1", "abc", "9223372036854775807"]).as_bytes().to_vec(),
        1 if unit_millis == 1000 => (i64::MAX / 1000 + 1).to_string().into_bytes(),
        2 => (1 + rng.next() % 1_000_000_000_000 / unit_millis).to_string().into_bytes(),
        _ => ((now_millis() + 1_000_000 + rng.next() % 1_000_000_000_000) / unit_millis).to_string().into_bytes(),
    }
}

/// EX, PX, EXAT or PXAT with an argument.
fn expiry(rng: &mut Rng) -> Args {
    let (name, argument) = match rng.below(4) {
        0 => ("ex", time_to_live(rng, 1000)),
        1 => ("px", time_to_live(rng, 1)),
        2 => ("exat", deadline(rng, 1000)),
        _ => ("pxat", deadline(rng, 1)),
    };
    let name = cased(rng, name);
    if rng.one_in(20) { args![name] } else { args![name, argument] }
}

fn set(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["set", pool.key(rng), pool.value(rng)];
    if rng.one_in(2) {
        args.extend(options(rng, 3, |rng| match rng.below(7) {
            0..=1 => expiry(rng),
            2 => args![cased(rng, "nx")],
            3 => args![cased(rng, "xx")],
            4 => args![cased(rng, "get")],
            5 => args![cased(rng, "keepttl")],
            _ => args![*rng.pick(&["persist", "foo", "", "gt", "ex\0", "nx "])],
        }));
    }
    exact(args)
}

fn get(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["get", pool.key(rng)])
}

fn getset(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["getset", pool.key(rng), pool.value(rng)])
}

fn getdel(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["getdel", pool.key(rng)])
}

fn getex(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["getex", pool.key(rng)];
    args.extend(options(rng, 2, |rng| match rng.below(5) {
        0..=2 => expiry(rng),
        3 => args![cased(rng, "persist")],
        _ => args![*rng.pick(&["keepttl", "nx", "xx", "get", "foo", ""])],
    }));
    exact(args)
}

fn mget(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["mget"];
    args.extend((0..1 + rng.below(5)).map(|_| pool.key(rng)));
    exact(args)
}

fn pairs(rng: &mut Rng, pool: &Pool, name: &str) -> Step {
    let mut args = args![name];
    for _ in 0..1 + rng.below(4) {
        args.extend([pool.key(rng), pool.value(rng)]);
    }
    if rng.one_in(10) {
        args.pop();
    }
    exact(args)
}

fn mset(rng: &mut Rng, pool: &Pool) -> Step {
    pairs(rng, pool, "mset")
}

fn msetnx(rng: &mut Rng, pool: &Pool) -> Step {
    pairs(rng, pool, "msetnx")
}

fn setnx(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["setnx", pool.key(rng), pool.value(rng)])
}

fn setex(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["setex", pool.key(rng), time_to_live(rng, 1000), pool.value(rng)])
}

fn psetex(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["psetex", pool.key(rng), time_to_live(rng, 1), pool.value(rng)])
}

fn append(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["append", pool.key(rng), pool.value(rng)])
}

fn strlen(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["strlen", pool.key(rng)])
}

fn getrange(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["getrange", pool.key(rng), pool.integer(rng), pool.integer(rng)])
}

fn substr(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["substr", pool.key(rng), pool.integer(rng), pool.integer(rng)])
}

fn setrange(rng: &mut Rng, pool: &Pool) -> Step {
    // Only we reject offsets between 8 MiB and 512 MiB.
    let offset = match rng.below(4) {
        0 => rng.pick(&["-1", "abc", "", "600000000", "9223372036854775807", "01"]).as_bytes().to_vec(),
        _ => rng.below(2000).to_string().into_bytes(),
    };
    exact(args!["setrange", pool.key(rng), offset, pool.value(rng)])
}

fn incr(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["incr", pool.key(rng)])
}

fn decr(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["decr", pool.key(rng)])
}

fn incrby(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["incrby", pool.key(rng), pool.integer(rng)])
}

fn decrby(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["decrby", pool.key(rng), pool.integer(rng)])
}

fn incrbyfloat(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["incrbyfloat", pool.key(rng), pool.float(rng)])
}

fn set_float(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["set", pool.key(rng), pool.float(rng)])
}
