//! Tests of the bound on the steps of a Redis batch whose proposer has looked up the lengths of the values that it uses:
//! no batch takes more steps, and batches that use short values have a low bound.

use bytes::Bytes;
use thalweg_redis::{StoreError, ValueSteps, find};
use thalweg_state::{machine::Machine, redis::RedisView};
use thalweg_types::{BlobRef, Revision, command::max_steps_with, limits::MAX_COMMAND_STEPS};

use crate::{
    budget::{KS, node, redis},
    groupings::count,
    workload::{Rng, for_each_seed},
};

/// Returns the bound on the steps of a batch, as a proposer computes it.
fn bound(machine: &Machine, batch: &[&[&[u8]]]) -> u64 {
    let snapshot = machine.read_view();
    let resolve = |_: &[u8], _: Revision, _: BlobRef| {
        Err::<Bytes, _>(StoreError::Failed("the lookup of a length reads no value from the log".into()))
    };
    let clock = || snapshot.time();
    let view = RedisView::new(&snapshot, KS, (true, false), 7, &resolve, &clock);
    let (mut values, mut steps) = (ValueSteps::new(false), 0_u64);
    for args in batch {
        steps = steps.saturating_add(values.of_next(&view, find(args[0]).unwrap(), args).unwrap());
    }
    max_steps_with(&redis(batch), false, Some(steps))
}

/// Returns a random command that uses or changes a value, with its arguments.
fn random_command(rng: &mut Rng) -> Vec<Vec<u8>> {
    let value = vec![b'1'; [0, 1, 3, 100, 20_000, 100_000][rng.below(6) as usize]];
    let (key, other) = (vec![b'a' + rng.below(3) as u8], vec![b'a' + rng.below(3) as u8]);
    let (hash, field) = (vec![b'h' + rng.below(2) as u8], vec![b'f' + rng.below(2) as u8]);
    let offset = rng.below(50_000).to_string().into_bytes();
    let word = |word: &str| word.as_bytes().to_vec();
    let number = word(["1.5", "-1e4900", "1e-4000", "0x1p16000", "-0x1e5000"][rng.below(5) as usize]);
    match rng.below(22) {
        0 => vec![word("set"), key, value],
        1 => vec![word("append"), key, value],
        2 => vec![word("setrange"), key, offset, value],
        3 => vec![word("expire"), key, word("60")],
        4 => vec![word("pexpire"), key, word("-1")],
        5 => vec![word("persist"), key],
        6 => vec![word("getex"), key, word("ex"), word("60")],
        7 => vec![word("rename"), key, other],
        8 => vec![word("copy"), key, other, word("replace")],
        9 => vec![word("getdel"), key],
        10 => vec![word("getset"), key, value],
        11 => vec![word("get"), key],
        12 => vec![word("hset"), hash, field, value],
        13 => vec![word("hincrby"), hash, field, word("1")],
        14 => vec![word("hincrbyfloat"), hash, field, number],
        15 => vec![word("hget"), hash, field],
        16 => vec![word("expire"), hash, word("60")],
        17 => vec![word("incrbyfloat"), key, number],
        18 => vec![word("incrby"), key, word("1")],
        19 => vec![word("set"), key, number],
        20 => vec![word("hset"), hash, field, number],
        _ => vec![word("rename"), word("h"), word("i")],
    }
}

#[test]
fn no_batch_takes_more_steps_than_its_bound_with_known_lengths() {
    for_each_seed(count("THALWEG_LISTS", 300) / 6, |seed| {
        let (mut rng, mut node) = (Rng(seed), node());
        for time in 2..8 {
            let commands: Vec<_> = (0..1 + rng.below(10)).map(|_| random_command(&mut rng)).collect();
            let commands: Vec<Vec<&[u8]>> =
                commands.iter().map(|args| args.iter().map(Vec::as_slice).collect()).collect();
            let batch: Vec<&[&[u8]]> = commands.iter().map(Vec::as_slice).collect();
            let (bound, before) = (bound(node.machine(), &batch), node.machine().work().unwrap());
            node.apply(time, &[&redis(&batch)]);
            let taken = node.machine().work().unwrap() - before;
            if bound < MAX_COMMAND_STEPS {
                let names: Vec<_> = batch.iter().map(|args| String::from_utf8_lossy(args[0])).collect();
                assert!(taken <= bound, "THALWEG_SEED={seed}: {taken} steps, bound {bound}: {names:?}");
            }
        }
    });
}

#[test]
fn a_batch_that_sets_the_deadlines_of_short_values_has_a_low_bound() {
    let mut node = node();
    let set: &[&[u8]] = &[b"set", b"k", b"v"];
    let expire: &[&[u8]] = &[b"expire", b"k", b"60"];
    node.apply(2, &[&redis(&[set])]);
    let bound = bound(node.machine(), &[expire; 64]);
    assert!(bound < MAX_COMMAND_STEPS / 10, "{bound}");
}

#[test]
fn a_batch_that_adds_short_floating_point_numbers_has_a_low_bound() {
    let mut node = node();
    let set: &[&[u8]] = &[b"set", b"k", b"17.25"];
    node.apply(2, &[&redis(&[set, &[b"hset", b"h", b"f", b"-2.5"]])]);
    let additions: [&[&[u8]]; 2] = [&[b"incrbyfloat", b"k", b"0.1"], &[b"hincrbyfloat", b"h", b"f", b"1e3"]];
    for addition in additions {
        let bound = bound(node.machine(), &[addition; 64]);
        assert!(bound < MAX_COMMAND_STEPS / 10, "{bound}: {addition:?}");
    }
}
