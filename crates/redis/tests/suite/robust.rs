//! Arbitrary client input never causes a panic, and has the same effect each time.

use thalweg_redis::{execute, model::Model, table};
use thalweg_types::{limits::MAX_REDIS_PATTERN_BYTES, reply::Reply};

use crate::support::{
    Rng,
    generate::{Mix, hashes, keys, strings},
    seed,
};

/// A command with random arguments: from its minimum number to a few more.
fn anything(rng: &mut Rng, mix: &Mix) -> Vec<Vec<u8>> {
    let commands: Vec<_> = table::all().collect();
    let command = rng.pick(&commands);
    let mut args = vec![command.name.as_bytes().to_vec()];
    let least = usize::from(command.arity.unsigned_abs()) - 1;
    for _ in 0..least + if command.arity < 0 { rng.below(6) } else { 0 } {
        args.push(match rng.below(8) {
            0..=1 => mix.pool.key(rng),
            2 => mix.pool.field(rng),
            3 => mix.pool.value(rng),
            4 => mix.pool.float(rng),
            5 => mix.pool.pattern(rng),
            6 => mix.step(rng).args.pop().expect("a name"),
            _ => mix.pool.integer(rng),
        });
    }
    args
}

#[test]
fn nothing_that_a_client_sends_panics_or_means_two_things() {
    let mut rng = Rng(seed(201));
    let mix = Mix::new(&[strings::ALL, keys::ALL, hashes::ALL]);
    let (mut one, mut other) = (Model::default(), Model::default());
    let mut errors = 0;
    for at in 0..60_000 {
        let args = if rng.one_in(2) { mix.step(&mut rng).args } else { anything(&mut rng, &mix) };
        let args: Vec<&[u8]> = args.iter().map(Vec::as_slice).collect();
        one.now = 1_000_000 * at;
        other.now = one.now;
        let reply = execute(&mut one, &args).unwrap();
        assert_eq!(reply, execute(&mut other, &args).unwrap(), "{args:?}");
        if let Reply::Error(text) = reply {
            errors += 1;
            assert!(!text.contains(['\r', '\n']), "{text:?} of {args:?}");
        }
    }
    assert!((6_000..54_000).contains(&errors), "{errors} errors: the test needs both errors and other replies");
}

#[test]
fn patterns_have_a_bound() {
    let mut model = Model::default();
    let longest = vec![b'*'; MAX_REDIS_PATTERN_BYTES];
    let longer = vec![b'*'; MAX_REDIS_PATTERN_BYTES + 1];
    execute(&mut model, &[b"hset", b"h", b"f", b"v"]).unwrap();
    for args in [&[&b"keys"[..]][..], &[b"scan", b"", b"match"], &[b"hscan", b"h", b"", b"match"]] {
        let reply = execute(&mut model, &[args, &[&longest]].concat()).unwrap();
        assert!(matches!(reply, Reply::Array(_)), "{reply:?}");
        let reply = execute(&mut model, &[args, &[&longer]].concat()).unwrap();
        assert!(matches!(&reply, Reply::Error(text) if text.contains("4096")), "{reply:?}");
    }
}
