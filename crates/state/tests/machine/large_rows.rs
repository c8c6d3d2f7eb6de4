//! Large values that stay in the state: an entry that writes one again and again keeps one copy of it.

use std::sync::atomic::Ordering;

use thalweg_state::machine::MachineOptions;
use thalweg_types::{
    KeyspaceId, SpaceTime,
    command::{self, CommitBuilder, Deadline, KeyspaceConfig, Outcome, RedisBuilder},
    limits::MAX_VALUE_BYTES,
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);

#[test]
fn a_large_value_that_an_entry_touches_again_and_again_is_in_its_batch_once() {
    let mut bench = Bench::new(MachineOptions::default());
    let config = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let mut large = RedisBuilder::new(KS);
    large.push(&[b"setrange", b"k", (MAX_VALUE_BYTES - 8).to_string().as_bytes(), b"x"]).unwrap();
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "k", &config).unwrap()), large.finish()]);
    let touch = |at: u64| {
        let mut commit = CommitBuilder::new();
        commit.touch(KS, b"k", Deadline::At(SpaceTime(1_000_000 + at))).unwrap();
        command(|out| commit.encode(out))
    };
    let touches: Vec<_> = (0..40).map(touch).collect();
    let before = bench.backend.changes.load(Ordering::Relaxed);
    let outcomes = bench.run(2, &touches);
    let changes = bench.backend.changes.load(Ordering::Relaxed) - before;
    // Each touch moves the row of the deadline; the row of the value is there once, with what an entry always writes.
    assert!(changes < 2 * 40 + 10, "{changes}");
    assert!(outcomes.iter().all(|outcome| matches!(outcome, Outcome::Committed { .. })), "{:?}", outcomes.first());
    let stored = bench.machine.get(KS, b"k").unwrap().unwrap();
    assert_eq!(stored.expiry.deadline, Some(SpaceTime(1_000_039)));
    assert_eq!(stored.value.as_ref().value_len(), MAX_VALUE_BYTES - 7);
}
