//! Versions that are forgotten after the bounds of a history were changed.

use std::time::Duration;

use thalweg_state::history::HistoryError;
use thalweg_types::{
    KeyspaceId, Revision, SpaceTime,
    command::{self, CommitBuilder, KeyspaceHistory},
};

use crate::{
    support::{Bench, command},
    versions::{AGE, OPTIONS, config, resolve_owned},
};

/// Creates a keyspace whose history was off for a while, with work left for two prunes: more versions than its
/// bounds permit, the older ones with a row of forgotten versions.
fn lowered(before: KeyspaceHistory, after: KeyspaceHistory) -> Bench {
    let mut bench = Bench::new(OPTIONS);
    let configure =
        |history| command(|out| command::encode_configure_keyspace(out, KeyspaceId(1), &config(history)).unwrap());
    let put = |value: u8| command(|out| command::encode_put(out, KeyspaceId(1), b"k", &[value]).unwrap());
    let two = KeyspaceHistory { revisions: Some(2), age: None };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "ks", &config(two)).unwrap())]);
    (1..=3).for_each(|value| _ = bench.run(10, &[put(value)]));
    bench.run(20, &[configure(KeyspaceHistory::default()), configure(before)]);
    (4..=8).for_each(|value| _ = bench.run(30, &[put(value)]));
    bench.run(40, &[configure(after), command(|out| command::encode_prune_versions(out, KeyspaceId(1), 1000))]);
    bench
}

#[test]
fn what_a_change_of_bounds_forgets_of_a_key_stays_known_as_forgotten() {
    let [two, ten] = [2, 10].map(|revisions| KeyspaceHistory { revisions: Some(revisions), age: None });
    let bench = lowered(ten, two);
    let snapshot = bench.machine.read_view();
    let read = |revision| {
        let past = snapshot.past(KeyspaceId(1), Revision(revision), SpaceTime(0));
        past.and_then(|past| past.get(b"k")).map(|found| found.map(|found| resolve_owned(&bench, &found.value)))
    };
    for revision in [4, 5, 6] {
        assert!(matches!(read(revision), Err(HistoryError::Compacted { .. })), "{revision}: {:?}", read(revision));
    }
    assert_eq!([7, 8].map(|revision| read(revision).unwrap()), [Some(vec![7]), Some(vec![8])]);
}

#[test]
fn as_many_values_are_kept_of_a_key_that_is_there_as_of_one_that_is_gone() {
    let mut bench = Bench::new(OPTIONS);
    let [three, two] = [3, 2].map(|revisions| KeyspaceHistory { revisions: Some(revisions), age: None });
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "ks", &config(three)).unwrap())]);
    let put = |value: u8| command(|out| command::encode_put(out, KeyspaceId(1), b"k", &[value]).unwrap());
    let mut delete = CommitBuilder::new();
    delete.delete(KeyspaceId(1), b"k").unwrap();
    let delete = command(|out| delete.encode(out));
    let versions = |bench: &Bench| bench.backend.dump().keys().filter(|key| key.starts_with(&[0x12, 1])).count();
    // Rows of versions, and one row of forgotten versions as soon as there are any.
    (1..=4).for_each(|value| _ = bench.run(10, &[put(value)]));
    assert_eq!(versions(&bench), 2 + 1);
    bench.run(10, std::slice::from_ref(&delete));
    assert_eq!(versions(&bench), 3 + 1);
    bench.run(10, &[put(5)]);
    assert_eq!(versions(&bench), 2 + 1);
    bench.run(10, &[delete]);
    let other = KeyspaceHistory { age: Some(Duration::from_micros(AGE)), ..three };
    for (settings, kept) in [(other, 3), (two, 2)] {
        let configure =
            command(|out| command::encode_configure_keyspace(out, KeyspaceId(1), &config(settings)).unwrap());
        bench.run(10, &[configure, command(|out| command::encode_prune_versions(out, KeyspaceId(1), 1000))]);
        assert_eq!(versions(&bench), kept + 1);
    }
}

#[test]
fn rows_by_time_go_with_what_a_change_of_bounds_forgets() {
    let aged = |revisions| KeyspaceHistory { revisions: Some(revisions), age: Some(Duration::from_micros(AGE)) };
    let mut bench = lowered(aged(3), aged(10));
    // The row of forgotten versions is above the floor, and has a time row.
    let put = |value: u8| command(|out| command::encode_put(out, KeyspaceId(1), b"k", &[value]).unwrap());
    (9..=12).for_each(|value| _ = bench.run(50, &[put(value)]));
    let two = command(|out| command::encode_configure_keyspace(out, KeyspaceId(1), &config(aged(2))).unwrap());
    bench.run(60, &[two, command(|out| command::encode_prune_versions(out, KeyspaceId(1), 1000))]);
    let map = bench.backend.dump();
    let kind = |kind: u8| map.keys().filter(|key| key.starts_with(&[0x12, kind])).count();
    assert_eq!([kind(1), kind(2)], [2, 2], "a version and a row of forgotten versions, each with its time row");
}
