//! Versions of keys that one command puts and removes.

use thalweg_state::{
    history::{VersionEnd, VersionLifetime},
    machine::MachineOptions,
};
use thalweg_types::{
    KeyspaceId, Revision, SpaceTime,
    command::{self, CommitBuilder, Deadline, Expect, KeyspaceConfig, KeyspaceHistory, TransactionBuilder},
    limits::DELETED_HISTORY_AGE,
};

use crate::support::{Bench, command};

const KS: KeyspaceId = KeyspaceId(1);
const KEY: &[u8] = b"key";

fn commit(add: impl FnOnce(&mut CommitBuilder)) -> Vec<u8> {
    let mut builder = CommitBuilder::new();
    add(&mut builder);
    command(|out| builder.encode(out))
}

/// Commands that put a key and remove it again, with the ending of its former value.
fn commands() -> [(&'static str, Vec<u8>, VersionEnd); 3] {
    let mut emptied = TransactionBuilder::new();
    emptied.then().put(KS, KEY, b"2").unwrap().delete_prefix(KS, b"k").unwrap();
    [
        (
            "a commit that deletes",
            commit(|all| _ = all.put(KS, KEY, b"2").unwrap().delete(KS, KEY).unwrap()),
            VersionEnd::Deleted,
        ),
        (
            "a commit that sets a deadline that has passed",
            commit(|all| {
                all.expect(KS, b"", Expect::Any).unwrap();
                all.put(KS, KEY, b"2").unwrap().touch(KS, KEY, Deadline::At(SpaceTime(1))).unwrap();
            }),
            VersionEnd::Expired,
        ),
        ("a transaction that deletes a prefix", command(|out| emptied.encode(out).unwrap()), VersionEnd::Deleted),
    ]
}

#[test]
fn a_key_that_one_command_puts_and_removes_is_gone_after_its_former_value() {
    for (name, command_bytes, ending) in commands() {
        let mut bench = Bench::new(MachineOptions::default());
        let history = KeyspaceHistory { revisions: Some(3), age: None };
        let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
        bench.run(5, &[command(|out| command::encode_create_keyspace(out, "ks", &config).unwrap())]);
        bench.run(10, &[command(|out| command::encode_put(out, KS, KEY, b"1").unwrap())]);
        let outcomes = bench.run(20, &[command_bytes]);
        let removed_at = bench.machine.applied().revision;
        assert_eq!(bench.machine.get(KS, KEY).unwrap(), None, "{name}: {outcomes:?}");

        let versions = bench.machine.read_view().versions(KS, KEY, None, 9).unwrap().versions;
        let lifetimes: Vec<_> = versions.iter().map(|version| (version.stored.revision, version.lifetime)).collect();
        let until = VersionLifetime::Until { revision: removed_at, time: Some(SpaceTime(20)), ending };
        assert_eq!(lifetimes, [(Revision(removed_at.0 - 1), until)], "{name}");

        // The history has no maximum age, so only what is left of removed keys is forgotten in time.
        let kind =
            |bench: &Bench, kind: u8| bench.backend.dump().keys().filter(|row| row.starts_with(&[0x12, kind])).count();
        assert_eq!([kind(&bench, 1), kind(&bench, 2)], [1, 1], "{name}: the version and its time");
        let later = SpaceTime(20 + DELETED_HISTORY_AGE.as_micros() as u64);
        assert_eq!(bench.machine.prune_due(None, later).unwrap(), Some(KS), "{name}");
        bench.run(later.0, &[command(|out| command::encode_prune_versions(out, KS, 100))]);
        assert_eq!([kind(&bench, 1), kind(&bench, 2)], [0, 0], "{name}");
    }
}
