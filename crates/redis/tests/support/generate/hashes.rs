//! Commands on hashes.

use super::super::{Rng, compare::Compare};
use super::{Generator, Pool, Step, cased, exact, keys::page_options};
use crate::args;

pub const ALL: &[Generator] = &[
    hset,
    hset,
    hmset,
    hsetnx,
    hget,
    hget,
    hmget,
    hgetall,
    hdel,
    hlen,
    hexists,
    hkeys,
    hvals,
    hstrlen,
    hincrby,
    hincrby,
    hincrbyfloat,
    hincrbyfloat,
    hrandfield,
    hscan,
];

fn pairs(rng: &mut Rng, pool: &Pool, name: &str) -> Step {
    let mut args = args![name, pool.key(rng)];
    for _ in 0..1 + rng.below(4) {
        args.extend([pool.field(rng), pool.value(rng)]);
    }
    if rng.one_in(10) {
        args.pop();
    }
    exact(args)
}

fn hset(rng: &mut Rng, pool: &Pool) -> Step {
    pairs(rng, pool, "hset")
}

fn hmset(rng: &mut Rng, pool: &Pool) -> Step {
    pairs(rng, pool, "hmset")
}

fn hsetnx(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hsetnx", pool.key(rng), pool.field(rng), pool.value(rng)])
}

fn hget(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hget", pool.key(rng), pool.field(rng)])
}

fn some(rng: &mut Rng, pool: &Pool, name: &str) -> Step {
    let mut args = args![name, pool.key(rng)];
    args.extend((0..1 + rng.below(4)).map(|_| pool.field(rng)));
    exact(args)
}

fn hmget(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "hmget")
}

fn hdel(rng: &mut Rng, pool: &Pool) -> Step {
    some(rng, pool, "hdel")
}

fn hgetall(rng: &mut Rng, pool: &Pool) -> Step {
    Step { args: args!["hgetall", pool.key(rng)], compare: Compare::UnorderedPairs }
}

fn hlen(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hlen", pool.key(rng)])
}

fn hexists(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hexists", pool.key(rng), pool.field(rng)])
}

fn hkeys(rng: &mut Rng, pool: &Pool) -> Step {
    Step { args: args!["hkeys", pool.key(rng)], compare: Compare::Unordered }
}

fn hvals(rng: &mut Rng, pool: &Pool) -> Step {
    Step { args: args!["hvals", pool.key(rng)], compare: Compare::Unordered }
}

fn hstrlen(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hstrlen", pool.key(rng), pool.field(rng)])
}

fn hincrby(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hincrby", pool.key(rng), pool.field(rng), pool.integer(rng)])
}

fn hincrbyfloat(rng: &mut Rng, pool: &Pool) -> Step {
    exact(args!["hincrbyfloat", pool.key(rng), pool.field(rng), pool.float(rng)])
}

fn hrandfield(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["hrandfield", pool.key(rng)];
    if rng.one_in(2) {
        // A huge count on an existing hash would exhaust Redis's memory.
        let count = match rng.below(4) {
            0 => *rng.pick(&["0", "abc", "", "9223372036854775807", "-9223372036854775808", "99999999999999999999"]),
            _ => *rng.pick(&["1", "2", "5", "100", "-1", "-2", "-5", "-100"]),
        };
        args.push(count.as_bytes().to_vec());
        match rng.below(6) {
            0..=2 => args.push(cased(rng, "withvalues")),
            3 => args.push(b"foo".to_vec()),
            _ => {}
        }
    }
    Step { args, compare: Compare::AmongFields }
}

fn hscan(rng: &mut Rng, pool: &Pool) -> Step {
    let mut args = args!["hscan", pool.key(rng), "0"];
    args.extend(page_options(rng, pool, &[]));
    Step { args, compare: Compare::Pages { cursor: 2, items: 2 } }
}
