//! Tests of full tables: a typed outcome and no change, and room again after a deletion.

use std::time::Duration;

use thalweg_state::machine::MachineOptions;
use thalweg_store::Backend;
use thalweg_types::{
    GroupId, KeyspaceId, LeaseId, SpaceTime, StreamId,
    command::{
        self, CommitBuilder, Deadline, KeyspaceConfig, KeyspaceHistory, OperationResult, Outcome, ScanOperation,
        StreamConfig, TransactionBuilder,
        groups::{GroupConfig, GroupOutcome, encode_create_group, encode_delete_group},
    },
    limits::{
        DELETED_HISTORY_AGE, MAX_GROUPS, MAX_KEY_BYTES, MAX_LEASE_KEYS, MAX_LEASES, MAX_PRUNED_VERSIONS,
        MAX_TRANSACTION_SCAN_ROWS,
    },
};

use crate::support::{Bench, MapBackend, command};

const KS: KeyspaceId = KeyspaceId(1);

fn bench() -> Bench {
    let mut bench = Bench::new(MachineOptions::default());
    let keyspace = command(|out| command::encode_create_keyspace(out, "k", &KeyspaceConfig::default()).unwrap());
    let stream = command(|out| command::encode_create_stream(out, "s", &StreamConfig::default()).unwrap());
    bench.run(1, &[keyspace, stream]);
    bench
}

#[test]
fn leases_have_a_limit_that_counts_ended_ones_with_keys() {
    let mut bench = bench();
    let grant =
        |id: u64| command(|out| command::encode_grant_lease(out, Some(LeaseId(id)), Duration::from_secs(10)).unwrap());
    let all: Vec<_> = (1..=MAX_LEASES as u64).map(grant).collect();
    for some in all.chunks(4096) {
        assert!(bench.run(2, some).iter().all(|outcome| matches!(outcome, Outcome::Lease { .. })));
    }
    let next = MAX_LEASES as u64 + 1;
    let full = Outcome::TooMany { what: "leases", limit: MAX_LEASES };
    assert_eq!(bench.run(3, &[grant(next)]), vec![full.clone()]);
    bench.reopen();
    let mut attached = CommitBuilder::new();
    attached.put_until(KS, b"key", b"", Deadline::Default, Some(LeaseId(1))).unwrap();
    assert_eq!(bench.run(4, &[command(|out| attached.encode(out)), grant(next)])[1], full, "also after a restart");
    let revoke = |id| command(|out| command::encode_revoke_lease(out, LeaseId(id)));
    let outcomes = bench.run(5, &[revoke(2), grant(next), grant(next + 1)]);
    assert!(matches!(outcomes[1], Outcome::Lease { .. }), "{outcomes:?}");
    assert_eq!(outcomes[2], full);
}

#[test]
fn at_the_limit_a_grant_replaces_a_lease_that_has_ended() {
    let mut bench = bench();
    let ttl = Duration::from_secs(10);
    let grant = |id| command(|out| command::encode_grant_lease(out, id, ttl).unwrap());
    let all: Vec<_> = (1..=MAX_LEASES as u64).map(|id| grant(Some(LeaseId(id)))).collect();
    for some in all.chunks(4096) {
        assert!(bench.run(2, some).iter().all(|outcome| matches!(outcome, Outcome::Lease { .. })));
    }
    let (first, next) = (LeaseId(1), LeaseId(MAX_LEASES as u64 + 1));
    let full = Outcome::TooMany { what: "leases", limit: MAX_LEASES };
    assert_eq!(bench.run(3, &[grant(Some(first)), grant(None)]), [Outcome::LeaseExists(first), full.clone()]);
    let outcomes = bench.run(20_000_000, &[grant(Some(first)), grant(Some(first)), grant(Some(next)), grant(None)]);
    let granted = Outcome::Lease { id: first, ttl, deadline: SpaceTime(30_000_000) };
    assert_eq!(outcomes, [granted, Outcome::LeaseExists(first), full.clone(), full]);
}

#[test]
fn consumer_groups_have_a_limit() {
    let mut bench = bench();
    let create = |number: usize| {
        let name = format!("g{number}");
        command(|out| encode_create_group(out, StreamId(1), &name, None, &GroupConfig::default()).unwrap())
    };
    let all: Vec<_> = (0..MAX_GROUPS).map(create).collect();
    for some in all.chunks(1000) {
        let created =
            |outcome: &Outcome| matches!(outcome, Outcome::Group(GroupOutcome::Created { created: true, .. }));
        assert!(bench.run(2, some).iter().all(created));
    }
    let full = Outcome::TooMany { what: "consumer groups", limit: MAX_GROUPS };
    assert_eq!(bench.run(3, &[create(MAX_GROUPS)]), vec![full.clone()]);
    bench.reopen();
    assert_eq!(bench.run(4, &[create(MAX_GROUPS)]), vec![full.clone()]);
    let delete = command(|out| encode_delete_group(out, GroupId(7)));
    let outcomes = bench.run(5, &[delete, create(MAX_GROUPS), create(MAX_GROUPS + 1)]);
    assert_eq!(outcomes[2], full, "{outcomes:?}");
    assert_ne!(outcomes[1], full);
}

#[test]
fn a_lease_has_so_many_keys_and_no_more() {
    let mut bench = bench();
    let grant = command(|out| command::encode_grant_lease(out, Some(LeaseId(7)), Duration::from_secs(10)).unwrap());
    let put = |key: &[u8]| {
        command(|out| command::encode_put_until(out, KS, key, b"", Deadline::Never, Some(LeaseId(7))).unwrap())
    };
    bench.run(2, &[grant, put(b"a")]);
    // Pretends that the lease has all keys but one, by changing the count in the last four bytes of its row.
    let (mut map, applied) = (bench.backend.dump(), bench.backend.applied());
    let (_, row) = map.iter_mut().find(|(_, row)| row.len() == 20 && row.ends_with(&1_u32.to_le_bytes())).unwrap();
    row[16..].copy_from_slice(&(MAX_LEASE_KEYS - 1).to_le_bytes());
    bench.backend = MapBackend::of(map, applied);
    bench.reopen();
    let full = Outcome::TooMany { what: "keys of the lease", limit: MAX_LEASE_KEYS as usize };
    let outcomes = bench.run(3, &[put(b"b"), put(b"c")]);
    assert!(matches!(outcomes[0], Outcome::Committed { .. }), "{outcomes:?}");
    assert_eq!(outcomes[1], full);
    assert_eq!(bench.machine.read_view().lease(LeaseId(7)).unwrap().unwrap().keys, MAX_LEASE_KEYS);
    assert_eq!(bench.machine.get(KS, b"c").unwrap(), None, "the rejected put changed nothing");
    let plain = command(|out| command::encode_put(out, KS, b"c", b"").unwrap());
    assert!(matches!(bench.run(4, &[plain])[0], Outcome::Committed { .. }));
    let mut again = TransactionBuilder::new();
    again.then().put_until(KS, b"b", b"", Deadline::Never, Some(LeaseId(7))).unwrap();
    let outcomes = bench.run(5, &[put(b"a"), command(|out| again.encode(out).unwrap())]);
    assert!(matches!(outcomes[0], Outcome::Committed { .. }), "an attached key can be put again: {outcomes:?}");
    assert!(matches!(outcomes[1], Outcome::Transacted(_)), "{outcomes:?}");
    assert_eq!(bench.machine.read_view().lease(LeaseId(7)).unwrap().unwrap().keys, MAX_LEASE_KEYS);
}

#[test]
fn a_scan_of_a_transaction_looks_at_so_many_rows_and_says_where_it_was() {
    let mut bench = bench();
    let key = |number: usize| format!("{number:06}").into_bytes();
    let mut fills = [CommitBuilder::new(), CommitBuilder::new()];
    (0..=MAX_TRANSACTION_SCAN_ROWS).for_each(|number| _ = fills[number % 2].put(KS, &key(number), b"").unwrap());
    let mut clear = TransactionBuilder::new();
    clear.then().delete_prefix(KS, b"0").unwrap();
    let scan = |start: &[u8]| {
        let mut scan = TransactionBuilder::new();
        let range = ScanOperation { start: Some(start), limit: 9, ..ScanOperation::default() };
        scan.then().scan(KS, &range).unwrap();
        command(|out| scan.encode(out).unwrap())
    };
    fills.iter().for_each(|fill| _ = bench.run(2, &[command(|out| fill.encode(out))]));
    bench.run(3, &[command(|out| clear.encode(out).unwrap())]);
    let mut page = |start: &[u8]| match &bench.run(4, &[scan(start)])[0] {
        Outcome::Transacted(done) => match &done.results[0] {
            OperationResult::Scanned(page) => (page.items.len(), page.after.as_deref().map(<[u8]>::to_vec)),
            other => panic!("{other:?}"),
        },
        other => panic!("{other:?}"),
    };
    let (items, after) = page(b"");
    assert_eq!((items, after), (0, Some(key(MAX_TRANSACTION_SCAN_ROWS - 1))), "hidden rows are examined too");
    assert_eq!(page(&[&key(MAX_TRANSACTION_SCAN_ROWS - 1)[..], b"\0"].concat()), (0, None));
}

/// Creates keyspaces with a history bounded by age, and `versions` versions that are too old.
fn aged(keyspaces: u32, versions: usize) -> Bench {
    let mut bench = bench();
    let history = KeyspaceHistory { revisions: None, age: Some(Duration::from_secs(1)) };
    for number in 0..keyspaces {
        let config = KeyspaceConfig { history, ..KeyspaceConfig::default() };
        let create = command(|out| command::encode_create_keyspace(out, &format!("h{number}"), &config).unwrap());
        bench.run(2, &[create]);
        for round in 0..2 {
            for keys in (0..versions).collect::<Vec<_>>().chunks(5_000) {
                let mut commit = CommitBuilder::new();
                for key in keys {
                    commit.put(KeyspaceId(2 + number), &key.to_be_bytes(), &[round]).unwrap();
                }
                let outcomes = bench.run(3, &[command(|out| commit.encode(out))]);
                assert!(matches!(outcomes[..], [Outcome::Committed { .. }]), "{outcomes:?}");
            }
        }
    }
    bench
}

fn prune(from: u32, max: u32) -> Vec<u8> {
    command(|out| command::encode_prune_versions(out, KeyspaceId(from), max))
}

#[test]
fn one_command_forgets_so_many_versions_and_no_more() {
    let over = 500;
    let mut bench = aged(1, MAX_PRUNED_VERSIONS as usize + over as usize);
    let later = 10_000_000;
    let commands = [prune(2, u32::MAX), prune(2, 9), prune(2, 0)];
    let done = |entries, more| Outcome::Reclaimed { entries, more };
    assert_eq!(bench.run(later, &commands), [done(MAX_PRUNED_VERSIONS, true), done(9, true), done(0, true)]);
    bench.reopen();
    let commands = [prune(2, over - 10), prune(2, u32::MAX), prune(2, 1)];
    let rest = [done(over - 10, true), done(1, false), done(0, false)];
    assert_eq!(bench.run(later, &commands), rest, "no row is examined twice, although the entry has removed some");
    assert_eq!(bench.machine.prune_due(None, SpaceTime(later)).unwrap(), None);
}

#[test]
fn keyspaces_take_turns_in_forgetting() {
    let mut bench = aged(3, 20);
    let later = SpaceTime(10_000_000);
    let due = |bench: &Bench, after| bench.machine.prune_due(after, later).unwrap().map(|id| id.0);
    let after = |id| Some(KeyspaceId(id));
    assert_eq!([due(&bench, None), due(&bench, after(2)), due(&bench, after(4))], [Some(2), Some(3), Some(2)]);
    let left = |bench: &Bench, id: u8| {
        bench.backend.dump().keys().filter(|key| key.starts_with(&[0x12, 1, 0, 0, 0, id])).count()
    };
    bench.run(later.0, &[prune(3, 5)]);
    assert_eq!([2, 3, 4].map(|id| left(&bench, id)), [20, 15, 20], "it begins with the given keyspace");
    bench.run(later.0, &[prune(4, 30)]);
    assert_eq!([2, 3, 4].map(|id| left(&bench, id)), [10, 15, 0], "and continues with the first keyspaces");
    assert_eq!([due(&bench, after(3)), due(&bench, after(2))], [Some(2), Some(3)]);
    bench.run(later.0, &[prune(9, 1000)]);
    assert_eq!((due(&bench, None), [2, 3, 4].map(|id| left(&bench, id))), (None, [0; 3]));
}

#[test]
fn versions_of_long_keys_that_went_are_forgotten_in_steps() {
    let mut bench = Bench::new(MachineOptions::default());
    let config =
        KeyspaceConfig { history: KeyspaceHistory { revisions: Some(2), age: None }, ..KeyspaceConfig::default() };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "h", &config).unwrap())]);
    let keys: Vec<_> = (0..230_u32).map(|key| [&key.to_be_bytes()[..], &[b'k'; MAX_KEY_BYTES - 4]].concat()).collect();
    for key in &keys {
        bench.run(2, &[command(|out| command::encode_put(out, KS, key, b"v").unwrap())]);
        bench.run(2, &[command(|out| command::encode_delete(out, KS, key).unwrap())]);
    }
    let later = 2 + DELETED_HISTORY_AGE.as_micros() as u64;
    let mut steps = Vec::new();
    while bench.machine.prune_due(None, SpaceTime(later)).unwrap().is_some() {
        steps.extend(bench.run(later, &[prune(1, u32::MAX)]));
        assert!(steps.len() < 9, "{steps:?}");
    }
    let entries = |step: &Outcome| match step {
        Outcome::Reclaimed { entries, .. } => *entries,
        other => panic!("{other:?}"),
    };
    assert_eq!((steps.len() > 1, steps.iter().map(entries).sum::<u32>()), (true, 230), "{steps:?}");
    assert!(matches!(steps.last(), Some(Outcome::Reclaimed { more: false, .. })), "{steps:?}");
}

#[test]
fn a_prune_that_stops_at_its_bytes_says_that_there_is_more() {
    let mut bench = Bench::new(MachineOptions::default());
    let config =
        KeyspaceConfig { history: KeyspaceHistory { revisions: Some(200), age: None }, ..KeyspaceConfig::default() };
    bench.run(1, &[command(|out| command::encode_create_keyspace(out, "h", &config).unwrap())]);
    // All versions but the newest of each key are forgotten with this change, and their time rows are stale
    // afterwards.
    for key in 0..3_u8 {
        for _ in 0..150 {
            let key = [&[key][..], &[b'k'; MAX_KEY_BYTES - 1]].concat();
            bench.run(2, &[command(|out| command::encode_put(out, KS, &key, b"v").unwrap())]);
            bench.run(2, &[command(|out| command::encode_delete(out, KS, &key).unwrap())]);
        }
    }
    let later = SpaceTime(2 + DELETED_HISTORY_AGE.as_micros() as u64);
    for _ in 0..9 {
        let outcome = bench.run(later.0, &[prune(1, u32::MAX)]);
        let Outcome::Reclaimed { more, .. } = outcome[0] else { panic!("{outcome:?}") };
        assert!(more || bench.machine.prune_due(None, later).unwrap().is_none());
    }
    assert_eq!(bench.machine.prune_due(None, later).unwrap(), None);
}
