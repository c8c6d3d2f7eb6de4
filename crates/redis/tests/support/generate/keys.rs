//! Commands on keys of any kind.

use super::super::{Rng, compare::Compare};
use super::{
    Generator, Pool, Step, cased, exact, options,
    strings::{deadline, time_to_live},
};
use crate::args;

pub const ALL: &[Generator] = &[
    del, unlink, exists, touch, kind, left, ended, expire, expire, persist, rename, renamenx, copy, scan, keys,
    randomkey, dbsize, flush, object, memory, unknown,
];

/// Commands with short names and patterns of the same letters.
pub const PATTERNS: &[Generator] = &[set_short, set_short, set_short, del_short, keys, keys, keys, scan];

fn some(rng: &mut Rng, pool: &Pool, name: &str) -> Step {
    let mut args = args![name];
    args.extend((0..1 + rng.below(3)).map(|_| pool.key(rng)));
    exact(args)
}

fn del(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "del")
}

fn unlink(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "unlink")
}

fn exists(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "exists")
}

fn touch(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "touch")
}

fn kind(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["type", pool.key(rng)])
}

/// Tolerance for the time between the two requests on a busy machine.
const TOLERANCE_MILLIS: i64 = 5000;

fn left(rng: &mut Rng, pool: &Pool) -> Step {
    let (name, tolerance) = *rng.pick(&[("ttl", TOLERANCE_MILLIS / 1000), ("pttl", TOLERANCE_MILLIS)]);
    Step { args: args![name, pool.key(rng)], compare: Compare::Near(tolerance) }
}

fn ended(rng: &mut Rng, pool: &Pool) -> Step {
    let (name, tolerance) = *rng.pick(&[("expiretime", TOLERANCE_MILLIS / 1000), ("pexpiretime", TOLERANCE_MILLIS)]);
    Step { args: args![name, pool.key(rng)], compare: Compare::Near(tolerance) }
}

fn expire(rng: &mut Rng, pool: &Pool) -> Step {
    let (name, argument) = match rng.below(4) {
        0 => ("expire", time_to_live(rng, 1000)),
        1 => ("pexpire", time_to_live(rng, 1)),
        2 => ("expireat", deadline(rng, 1000)),
        _ => ("pexpireat", deadline(rng, 1)),
    };
    let mut args = args![name, pool.key(rng), argument];
    if rng.one_in(2) {
        args.extend(options(rng, 2, |rng| match rng.below(9) {
            0..=1 => args![cased(rng, "nx")],
            2..=3 => args![cased(rng, "xx")],
            4..=5 => args![cased(rng, "gt")],
            6..=7 => args![cased(rng, "lt")],
            _ => args![*rng.pick(&["foo", "", "a\r\nb", "a\0b", "keepttl"])],
        }));
    }
    exact(args)
}

fn persist(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["persist", pool.key(rng)])
}

fn rename(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["rename", pool.key(rng), pool.key(rng)])
}

fn renamenx(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["renamenx", pool.key(rng), pool.key(rng)])
}

fn copy(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["copy", pool.key(rng), pool.key(rng)];
    args.extend(options(rng, 2, |rng| match rng.below(6) {
        0..=3 => args![cased(rng, "replace")],
        // Only we reject a valid database.
        4 => args![cased(rng, "db"), *rng.pick(&["abc", "99999999999", "", "1.0"])],
        _ => args![*rng.pick(&["db", "foo", ""])],
    }));
    if args.last().is_some_and(|last| last.eq_ignore_ascii_case(b"db")) {
        args.truncate(4);
    }
    exact(args)
}

/// COUNT, MATCH and other options.
pub fn page_options(rng: &mut Rng, pool: &Pool, kinds: &[&str]) -> Vec<Vec<u8>> {
    let kinds: Vec<String> = kinds.iter().map(ToString::to_string).collect();
    options(rng, 3, |rng| match rng.below(10) {
        0..=2 => args![cased(rng, "count"), (1 + rng.below(12)).to_string()],
        3 => args![
            cased(rng, "count"),
            *rng.pick(&["0", "-1", "abc", "9223372036854775807", "1000", "99999999999999999999"])
        ],
        4..=6 => args![cased(rng, "match"), pool.pattern(rng)],
        7..=8 if !kinds.is_empty() => args![cased(rng, "type"), rng.pick(&kinds)],
        _ => args![*rng.pick(&["match", "count", "foo", "type", "novalues"])],
    })
}

fn scan(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["scan", "0"];
    args.extend(page_options(rng, pool, &["string", "hash", "HASH", "String", "stream", "nothing", ""]));
    Step { args, compare: Compare::Pages { cursor: 1, items: 1 } }
}

fn keys(rng: &mut Rng, pool: &Pool) -> Step {
    Step { args: args!["keys", pool.pattern(rng)], compare: Compare::Unordered }
}

fn randomkey(_: &mut Rng, _: &Pool) -> Step {
    Step { args: args!["randomkey"], compare: Compare::AmongKeys }
}

fn dbsize(_: &mut Rng, _: &Pool) -> Step {
    Step { args: args!["dbsize"], compare: Compare::CountOfKeys }
}

/// Clears the database in few of the steps.
fn flush(rng: &mut Rng, pool: &Pool) -> Step {
    if !rng.one_in(5) {
        return exists(rng, pool);
    }
    let mut args = args![*rng.pick(&["flushdb", "flushall"])];
    args.extend(options(rng, 1, |rng| args![*rng.pick(&["async", "SYNC", "foo", ""])]));
    exact(args)
}

/// Subcommands of OBJECT that do not depend on a value's history.
fn object(rng: &mut Rng, pool: &Pool) -> Step {
    if rng.one_in(6) {
        return exact(args!["object", "help"]);
    }
    let subcommand = *rng.pick(&["freq", "FREQ", "foo", "foo\r\nbar", "", "encoding"]);
    let key = if subcommand == "encoding" { b"no such key".to_vec() } else { pool.key(rng) };
    let mut args = args!["object", subcommand, key];
    match rng.below(8) {
        0 => args.truncate(2),
        1 => args.push(b"more".to_vec()),
        _ => {}
    }
    exact(args)
}

fn memory(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["memory", *rng.pick(&["usage", "USAGE", "usage", "foo"]), pool.key(rng)];
    args.extend(options(rng, 2, |rng| match rng.below(4) {
        0..=1 => args![cased(rng, "samples"), *rng.pick(&["0", "1", "5", "100"])],
        2 => args![cased(rng, "samples"), pool.integer(rng)],
        _ => args![*rng.pick(&["samples", "foo", ""])],
    }));
    Step { args, compare: Compare::Positive }
}

fn unknown(rng: &mut Rng, _: &Pool) -> Step {
    let long = "x".repeat(150);
    let words = ["nope", "", "two words", "line\r\nbreak", "\r\nends\r\n", "zero\0byte", "'", &long];
    let mut args = args![*rng.pick(&words)];
    args.extend(options(rng, 4, |rng| args![*rng.pick(&words)]));
    exact(args)
}

fn short(rng: &mut Rng) -> Vec<u8> {
    (0..rng.below(6)).map(|_| *rng.pick(b"aab:-]\\[^*\xff\x80")).collect()
}

fn set_short(rng: &mut Rng, _: &Pool) -> Step {
    exact(args!["set", short(rng), ""])
}

fn del_short(rng: &mut Rng, _: &Pool) -> Step {
    let mut args = args!["del"];
    args.extend((0..10).map(|_| short(rng)));
    exact(args)
}
