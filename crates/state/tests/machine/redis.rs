//! Tests of Redis commands in the log: their changes of the map and their replies, and the effects of other commands on
//! hashes.

use std::{ops::ControlFlow, sync::atomic::Ordering, time::Duration};

use thalweg_redis::{
    Collection, Kind, Reply, StoreError,
    streams::growth::{GrownStreams, stream_key_hash},
};
use thalweg_state::{
    keyspaces::{Counts, ScanRange, StoredValue},
    machine::{Machine, MachineOptions},
    redis::RedisView,
};
use thalweg_types::{
    KeyspaceId, Revision,
    command::{
        self, CommitBuilder, Deadline, Expect, KeyspaceConfig, KeyspaceHistory, OperationError, Operations, Outcome,
        RedisBuilder, TransactionBuilder,
    },
    limits::{MAX_EAGER_PREFIX_ROWS, MAX_REDIS_COMMANDS},
};

use crate::support::{Bench, Map, command};

/// A keyspace with exact counts.
pub const KS: KeyspaceId = KeyspaceId(1);
const PLAIN: KeyspaceId = KeyspaceId(2);
const HISTORY: KeyspaceId = KeyspaceId(3);

pub fn bench(options: MachineOptions) -> Bench {
    let mut bench = Bench::new(options);
    bench.run(1, &keyspaces());
    bench
}

pub fn keyspaces() -> Vec<Vec<u8>> {
    let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let history = KeyspaceHistory { revisions: Some(8), age: None };
    let create = |name, config| command(|out| command::encode_create_keyspace(out, name, &config).unwrap());
    vec![
        create("exact", exact),
        create("plain", KeyspaceConfig::default()),
        create("history", KeyspaceConfig { history, ..exact }),
    ]
}

fn batch(keyspace: KeyspaceId, commands: &[&[&[u8]]]) -> Vec<u8> {
    let mut builder = RedisBuilder::new(keyspace);
    commands.iter().for_each(|args| {
        builder.push(args).unwrap();
    });
    builder.finish()
}

fn replies(outcome: Outcome) -> Vec<Reply> {
    match outcome {
        Outcome::Redis(Some(replies)) => replies,
        other => panic!("{other:?}"),
    }
}

/// Runs a command given as words, and returns the reply.
fn run_in(bench: &mut Bench, keyspace: KeyspaceId, time: u64, words: &str) -> Reply {
    let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
    replies(bench.run(time, &[batch(keyspace, &[&args])]).remove(0)).remove(0)
}

fn run(bench: &mut Bench, words: &str) -> Reply {
    run_in(bench, KS, 2, words)
}

#[test]
fn streams_that_get_entries_are_noted_for_callers_that_wait() {
    let mut bench = bench(MachineOptions::default());
    assert!(matches!(run(&mut bench, "xadd early * f v"), Reply::Bulk(_)));
    assert_eq!(bench.machine.take_grown_streams(), GrownStreams::None, "nobody waits");
    let waiter = bench.machine.await_stream_growth();
    // A caller that begins to wait while an entry is applied must be woken, although its key was not noted.
    assert_eq!(bench.machine.take_grown_streams(), GrownStreams::Any);
    let grown = |bench: &mut Bench, words: &str| {
        run(bench, words);
        bench.machine.take_grown_streams()
    };
    let keys = |keys: &[&str]| GrownStreams::Keys(keys.iter().map(|key| stream_key_hash(key.as_bytes())).collect());
    assert_eq!(grown(&mut bench, "xadd a * f v"), keys(&["a"]));
    assert_eq!(grown(&mut bench, "rename a b"), keys(&["a", "b"]));
    assert_eq!(grown(&mut bench, "copy b c"), keys(&["b", "c"]));
    for none in ["xadd a 0-0 f v", "set k v", "xlen b", "del b", "xgroup create d g $ mkstream"] {
        assert_eq!(grown(&mut bench, none), GrownStreams::None, "{none}");
    }
    drop(waiter);
    assert_eq!(grown(&mut bench, "xadd a * f v"), GrownStreams::None);
}

fn counts(bench: &Bench) -> Counts {
    bench.machine.keyspace_counts(KS).unwrap()
}

/// Returns the numbers of part rows and trash rows.
fn leftovers(map: &Map) -> (usize, usize) {
    let count = |tag| map.keys().filter(|key| key[0] == tag).count();
    (count(0x13), count(0x15))
}

/// Sweeps a few rows at a time until no rows are left to sweep.
pub fn sweep(bench: &mut Bench) -> Vec<Vec<u8>> {
    let mut entries = Vec::new();
    while bench.machine.sweep_due() {
        let sweep = command(|out| command::encode_sweep(out, 3));
        assert!(matches!(bench.run(3, std::slice::from_ref(&sweep))[..], [Outcome::Reclaimed { .. }]));
        entries.push(sweep);
        assert!(entries.len() < 100_000, "it ends");
    }
    entries
}

/// Reads as a Redis client that does not write.
pub fn view<T>(machine: &Machine, bench: &Bench, read: impl FnOnce(&RedisView<'_>) -> T) -> T {
    let snapshot = machine.read_view();
    let resolve = |_: &[u8], _: Revision, blob| Ok::<_, StoreError>(bench.log.read(&blob));
    read(&RedisView::new(&snapshot, KS, (true, false), 7, &resolve, &|| snapshot.time()))
}

fn ok(reply: &Reply) -> bool {
    !matches!(reply, Reply::Error(_))
}

#[test]
fn strings_are_plain_values_wherever_they_lie() {
    let mut bench = bench(MachineOptions { inline_value_bytes: 16 });
    assert_eq!(run(&mut bench, "SET k short"), Reply::Ok);
    let stored = bench.machine.get(KS, b"k").unwrap().unwrap();
    assert_eq!(stored.value, StoredValue::Inline("short".into()));
    assert_eq!(run(&mut bench, "SET k a-value-that-stays-in-the-log"), Reply::Ok);
    let StoredValue::Blob(blob) = bench.machine.get(KS, b"k").unwrap().unwrap().value else { panic!("inline") };
    assert_eq!(bench.log.read(&blob), "a-value-that-stays-in-the-log");
    assert_eq!(run(&mut bench, "GET k"), Reply::bulk(b"a-value-that-stays-in-the-log"));
    assert_eq!(run(&mut bench, "RENAME k other"), Reply::Ok);
    let moved = bench.machine.get(KS, b"other").unwrap().unwrap().value;
    assert_eq!(moved, StoredValue::Inline("a-value-that-stays-in-the-log".into()), "now inline");
    assert_eq!(run(&mut bench, "MSET a 1 b another-value-that-is-rather-long"), Reply::Ok);
    assert!(matches!(bench.machine.get(KS, b"b").unwrap().unwrap().value, StoredValue::Blob(_)));
    assert_eq!(counts(&bench), Counts { keys: 3, bytes: 5 + 29 + 2 + 1 + 33, collections: 0 });
}

#[test]
fn values_in_the_log_are_found_by_what_their_command_says() {
    let mut bench = bench(MachineOptions { inline_value_bytes: 4 });
    for words in [
        "SET one value-of-set",
        "SETEX two 100 value-of-setex",
        "MSET three value-of-mset four another-of-mset",
        "GETSET five value-of-getset",
        "APPEND six value-of-append",
        "SETRANGE seven 0 value-of-setrange",
        "COPY one eight",
        "RENAME two nine",
        "HSET ten field value-of-hset",
        "MSETNX eleven value-of-msetnx twelve twelfth-value",
        "PSETEX thirteen 100000 one",
        "SET fourteen value-of-set KEEPTTL",
    ] {
        assert!(ok(&run(&mut bench, words)), "{words}");
    }
    let mut found = 0;
    bench
        .machine
        .read_view()
        .scan(KS, &ScanRange::default(), |item| {
            if let Some(blob) = item.value.and_then(|value| value.blob()) {
                found += 1;
                let lies_there = |record: &crate::support::LogRecord| {
                    command::Commands::new(&record.payload).flatten().any(|(command_at, bytes)| {
                        let writes = command::Command::decode(bytes).unwrap();
                        writes.writes().any(|write| match write {
                            command::Write::Put { keyspace, key, value_at, .. } => {
                                let offset = record.at.offset as usize + command_at + value_at;
                                keyspace == KS && key == item.key && offset == blob.offset as usize
                            }
                            _ => false,
                        })
                    })
                };
                assert!(bench.log.records.iter().any(lies_there), "{:?}", item.key);
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(found >= 6, "{found}");
}

#[test]
fn all_of_a_batch_has_one_revision_and_what_only_reads_has_none() {
    let mut bench = bench(MachineOptions::default());
    let before = bench.machine.applied().revision;
    let outcome =
        bench.run(2, &[batch(KS, &[&[b"GET", b"a"], &[b"SET", b"a", b"1"], &[b"INCR", b"a"], &[b"INCR", b"b"]])]);
    let expected = vec![Reply::Null, Reply::Ok, Reply::Integer(2), Reply::Integer(1)];
    assert_eq!(replies(outcome.into_iter().next().unwrap()), expected);
    let revision = |bench: &Bench, key: &[u8]| bench.machine.get(KS, key).unwrap().unwrap().revision;
    assert_eq!([b"a", b"b"].map(|key| revision(&bench, key)), [before.next(); 2]);
    run(&mut bench, "GET a");
    run(&mut bench, "SET a 3 NX");
    assert_eq!(bench.machine.applied().revision, before.next());
    run(&mut bench, "EXPIRE a 100");
    assert_eq!(revision(&bench, b"a"), before.next().next(), "a watched key has changed");
}

#[test]
fn a_command_that_is_refused_leaves_nothing_and_the_others_go_on() {
    let mut bench = bench(MachineOptions::default());
    let outcome = bench.run(
        2,
        &[batch(
            KS,
            &[&[b"SET", b"a", b"x"], &[b"INCR", b"a"], &[b"HSET", b"a", b"f", b"v"], &[b"NOPE"], &[b"SET", b"b", b"y"]],
        )],
    );
    let got = replies(outcome.into_iter().next().unwrap());
    assert_eq!(got.iter().map(ok).collect::<Vec<_>>(), [true, false, false, false, true]);
    assert_eq!(counts(&bench), Counts { keys: 2, bytes: 4, collections: 0 });
    assert_eq!(leftovers(&bench.backend.dump()), (0, 0));
}

#[test]
fn nothing_happens_when_a_watched_key_has_changed() {
    let mut bench = bench(MachineOptions::default());
    run(&mut bench, "SET a 1");
    let version = bench.machine.get(KS, b"a").unwrap().unwrap().revision.0;
    let watching = |version, absent: &[u8]| {
        let mut builder = RedisBuilder::new(KS);
        builder.watch(b"a", version).unwrap().watch(absent, 0).unwrap();
        builder.push(&[b"INCR", b"a"]).unwrap();
        builder.finish()
    };
    // The second command is in the same entry, and sees the effect of the first.
    let outcomes = bench.run(2, &[watching(version, b"none"), watching(version, b"none")]);
    assert_eq!(outcomes, [Outcome::Redis(Some(vec![Reply::Integer(2)])), Outcome::Redis(None)]);
    let version = bench.machine.get(KS, b"a").unwrap().unwrap().revision.0;
    run(&mut bench, "SET none is-there");
    assert_eq!(bench.run(2, &[watching(version, b"none")]), [Outcome::Redis(None)]);
    run_in(&mut bench, KS, 2, "PEXPIREAT none 5");
    // The key has ended by now.
    assert_eq!(bench.run(6000, &[watching(version, b"none")]), [Outcome::Redis(Some(vec![Reply::Integer(3)]))]);
}

#[test]
fn unknown_keyspaces_and_garbage_are_outcomes() {
    let mut bench = bench(MachineOptions::default());
    let nowhere = batch(KeyspaceId(99), &[&[b"GET", b"a"]]);
    assert_eq!(bench.run(2, &[nowhere]), [Outcome::NoSuchKeyspace(KeyspaceId(99))]);
    let whole = batch(KS, &[&[b"SET", b"a", b"1"]]);
    for len in 1..whole.len() {
        assert!(matches!(bench.run(2, &[whole[..len].to_vec()])[..], [Outcome::Malformed(_)]), "{len}");
    }
    let mut builder = RedisBuilder::new(KS);
    (0..MAX_REDIS_COMMANDS).for_each(|_| {
        builder.push(&[b"INCR", b"n"]).unwrap();
    });
    let got = replies(bench.run(2, &[builder.finish()]).remove(0));
    // The steps of a batch end a little before its maximum number of commands.
    assert!(got.len() > MAX_REDIS_COMMANDS * 3 / 4, "{}", got.len());
    assert_eq!(got.last(), Some(&Reply::Integer(got.len() as i64)));
}

#[test]
fn hashes_are_read_back_in_the_same_entry_and_later() {
    let mut bench = bench(MachineOptions::default());
    let outcome = bench
        .run(2, &[batch(KS, &[&[b"HSET", b"h", b"f", b"1", b"g", b"2"], &[b"HGET", b"h", b"f"], &[b"HLEN", b"h"]])]);
    let expected = vec![Reply::Integer(2), Reply::bulk(b"1"), Reply::Integer(2)];
    assert_eq!(replies(outcome.into_iter().next().unwrap()), expected);
    let StoredValue::Collection(Collection { kind, .. }) = bench.machine.get(KS, b"h").unwrap().unwrap().value else {
        panic!("a string")
    };
    assert_eq!(kind, Kind::Hash);
    assert_eq!((counts(&bench).keys, counts(&bench).collections), (1, 1));
    bench.reopen();
    assert_eq!(run(&mut bench, "HGET h g"), Reply::bulk(b"2"));
    let read = |words: &str| {
        let args: Vec<&[u8]> = words.split(' ').map(str::as_bytes).collect();
        let command = thalweg_redis::admit(&args).unwrap();
        view(&bench.machine, &bench, |view| thalweg_redis::run_read(view, command, &args).unwrap())
    };
    assert_eq!(
        [read("HGET h f"), read("HLEN h"), read("DBSIZE")],
        [Reply::bulk(b"1"), Reply::Integer(2), Reply::Integer(1)]
    );
    assert_eq!(read("TYPE h"), Reply::Simple("hash"));
    let mut shown = 0;
    bench
        .machine
        .read_view()
        .scan(KS, &ScanRange::default(), |_| {
            shown += 1;
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(shown, 0, "a hash has no bytes to return");
}

#[test]
fn keyspaces_that_do_not_read_what_they_replace_hold_strings_only() {
    let mut bench = bench(MachineOptions::default());
    for keyspace in [PLAIN, HISTORY] {
        assert!(!ok(&run_in(&mut bench, keyspace, 2, "HSET h f v")));
        assert_eq!(run_in(&mut bench, keyspace, 2, "SET s v"), Reply::Ok);
        assert_eq!(run_in(&mut bench, keyspace, 2, "APPEND s w"), Reply::Integer(2));
        assert_eq!(run_in(&mut bench, keyspace, 2, "DBSIZE"), Reply::Integer(1));
        assert_eq!(run_in(&mut bench, keyspace, 2, "FLUSHDB"), Reply::Ok);
        assert_eq!(run_in(&mut bench, keyspace, 2, "DBSIZE"), Reply::Integer(0));
    }
    assert_eq!(leftovers(&bench.backend.dump()), (0, 0));
    run(&mut bench, "HSET h f v");
    let configure = |config| command(|out| command::encode_configure_keyspace(out, KS, &config).unwrap());
    let exact = KeyspaceConfig { exact_counts: true, ..KeyspaceConfig::default() };
    let history = KeyspaceHistory { revisions: Some(8), age: None };
    for config in [KeyspaceConfig::default(), KeyspaceConfig { history, ..exact }] {
        assert!(matches!(bench.run(2, &[configure(config)])[..], [Outcome::CannotConfigure { .. }]));
    }
    run(&mut bench, "DEL h");
    assert_eq!(bench.run(2, &[configure(KeyspaceConfig { history, ..exact })]), [Outcome::Done]);
}

#[test]
fn histories_keep_what_redis_commands_replace() {
    let mut bench = bench(MachineOptions { inline_value_bytes: 16 });
    let key = b"k";
    let set = |bench: &mut Bench, words: &str| {
        assert!(ok(&run_in(bench, HISTORY, 2, words)), "{words}");
        bench.machine.applied().revision
    };
    let first = set(&mut bench, "SET k a-value-that-stays-in-the-log");
    let touched = set(&mut bench, "EXPIRE k 1000");
    set(&mut bench, "SET k 2");
    let renamed = set(&mut bench, "RENAME k other");
    let flushed = set(&mut bench, "FLUSHDB");
    let at = |revision, key: &[u8]| {
        let snapshot = bench.machine.read_view();
        snapshot.past(HISTORY, revision, thalweg_types::SpaceTime(2)).unwrap().get(key).unwrap()
    };
    for revision in [first, touched] {
        let Some(StoredValue::Blob(blob)) = at(revision, key).map(|stored| stored.value) else {
            panic!("not in the log")
        };
        assert_eq!(bench.log.read(&blob), "a-value-that-stays-in-the-log");
    }
    assert_eq!((at(renamed, key), at(flushed, b"other")), (None, None));
    assert_eq!(at(renamed, b"other").unwrap().value, StoredValue::Inline("2".into()));
}

/// Commands that remove the key of a hash, of all kinds.
#[test]
fn the_parts_of_a_hash_go_whoever_takes_its_key() {
    let put = |key: &'static [u8]| command(|out| command::encode_put(out, KS, key, b"v").unwrap());
    let commit = |build: &dyn Fn(&mut CommitBuilder)| {
        let mut builder = CommitBuilder::new();
        build(&mut builder);
        command(|out| builder.encode(out))
    };
    let then = |build: &dyn Fn(&mut Operations)| {
        let mut builder = TransactionBuilder::new();
        build(builder.then());
        command(|out| builder.encode(out).unwrap())
    };
    let redis = |words: &str| batch(KS, &[&words.split(' ').map(str::as_bytes).collect::<Vec<_>>()]);
    let expire = command(|out| command::encode_expire(out, 100));
    let takers: Vec<(&str, u64, Vec<u8>)> = vec![
        ("put", 2, put(b"h")),
        ("delete", 2, command(|out| command::encode_delete(out, KS, b"h").unwrap())),
        (
            "put with a deadline",
            2,
            commit(&|commit| {
                commit.put_until(KS, b"h", b"v", Deadline::After(Duration::from_secs(1)), None).unwrap();
            }),
        ),
        (
            "touch",
            2,
            commit(&|commit| {
                commit.expect(KS, b"", Expect::Any).unwrap();
                commit.touch(KS, b"h", Deadline::At(thalweg_types::SpaceTime(1))).unwrap();
            }),
        ),
        (
            "transaction",
            2,
            then(&|then| {
                then.put(KS, b"h", b"v").unwrap();
            }),
        ),
        (
            "transaction that deletes",
            2,
            then(&|then| {
                then.delete(KS, b"h").unwrap();
            }),
        ),
        (
            "deleted prefix",
            2,
            then(&|then| {
                then.delete_prefix(KS, b"h").unwrap();
            }),
        ),
        (
            "all deleted",
            2,
            then(&|then| {
                then.delete_prefix(KS, b"").unwrap();
            }),
        ),
        ("its end", 9_000_000, expire),
        ("drop", 2, command(|out| command::encode_drop_keyspace(out, KS))),
        ("DEL", 2, redis("DEL h")),
        ("SET", 2, redis("SET h v")),
        ("FLUSHDB", 2, redis("FLUSHDB")),
        ("RENAME onto it", 2, redis("RENAME s h")),
        ("PEXPIREAT in the past", 2, redis("PEXPIREAT h 0")),
        ("write after its end", 9_000_000, redis("SET h v")),
        ("HDEL", 2, redis("HDEL h f g")),
    ];
    for (name, time, taker) in takers {
        for (many, same_entry) in [(false, false), (true, false), (false, true)] {
            let mut bench = bench(MachineOptions::default());
            let mut entry = vec![redis("HSET h f 1 g 2"), redis("PEXPIREAT h 8000"), redis("SET s v")];
            if many {
                let keys = (0..MAX_EAGER_PREFIX_ROWS + 5).map(|number| redis(&format!("HSET h{number} f 1")));
                entry.extend(keys);
            }
            if same_entry {
                entry.push(taker.clone());
                bench.run(time, &entry);
            } else {
                bench.run(2, &entry);
                bench.run(time, std::slice::from_ref(&taker));
            }
            let swept = sweep(&mut bench);
            assert!(!swept.is_empty(), "{name}");
            let is_dropped = bench.machine.keyspace(KS).is_none();
            let others = if is_dropped { 0 } else { counts(&bench).collections as usize };
            let taken_with_it = matches!(name, "deleted prefix" | "all deleted" | "drop" | "FLUSHDB");
            assert_eq!(others, if many && !taken_with_it { MAX_EAGER_PREFIX_ROWS + 5 } else { 0 }, "{name}");
            assert_eq!(leftovers(&bench.backend.dump()), (others, 0), "{name}, many: {many}, {same_entry}");
            bench.reopen();
            assert!(!bench.machine.sweep_due());
        }
    }
}

#[test]
fn a_hash_goes_along_with_its_key_and_ids_are_not_used_again() {
    let mut bench = bench(MachineOptions::default());
    run(&mut bench, "HSET h f 1");
    let id = |bench: &Bench, key: &[u8]| match bench.machine.get(KS, key).unwrap().unwrap().value {
        StoredValue::Collection(collection) => collection.id,
        other => panic!("{other:?}"),
    };
    let first = id(&bench, b"h");
    assert_eq!(run(&mut bench, "RENAME h moved"), Reply::Ok);
    assert!(!bench.machine.sweep_due());
    assert_eq!(id(&bench, b"moved"), first);
    assert_eq!(run(&mut bench, "COPY moved h"), Reply::Integer(1));
    assert!(id(&bench, b"h") > first);
    assert_eq!(run(&mut bench, "DEL moved h"), Reply::Integer(2));
    bench.reopen();
    assert!(bench.machine.sweep_due(), "the flag is set after a restart");
    sweep(&mut bench);
    run(&mut bench, "HSET h f 1");
    assert!(id(&bench, b"h").0 > first.0 + 1);
    assert_eq!(leftovers(&bench.backend.dump()), (1, 0));
}

/// Returns the number of rows that a command changes.
fn changed_rows(bench: &mut Bench, words: &str) -> usize {
    let before = bench.backend.dump();
    assert!(ok(&run(bench, words)), "{words}");
    let after = bench.backend.dump();
    let keys: std::collections::BTreeSet<_> = before.keys().chain(after.keys()).collect();
    keys.into_iter().filter(|key| before.get(*key) != after.get(*key)).count()
}

#[test]
fn deleting_and_renaming_costs_the_same_whatever_the_key_holds() {
    let cost = |fill: &str, size: usize, words: &str| {
        let mut bench = bench(MachineOptions::default());
        let fills: Vec<Vec<u8>> = (1..=size).map(|at| fill.replace('#', &at.to_string()).into_bytes()).collect();
        let fills: Vec<Vec<&[u8]>> = fills.iter().map(|fill| fill.split(|byte| *byte == b' ').collect()).collect();
        bench.run(2, &[batch(KS, &fills.iter().map(Vec::as_slice).collect::<Vec<_>>())]);
        let (rows, parts) = (changed_rows(&mut bench, words), leftovers(&bench.backend.dump()).0);
        assert_eq!(parts, size, "{words}: the command itself removes no part");
        sweep(&mut bench);
        let left = if words.starts_with("RENAME") { size } else { 0 };
        assert_eq!(leftovers(&bench.backend.dump()), (left, 0), "{words}: the sweep has removed all parts");
        rows
    };
    for fill in ["HSET big field# value", "XADD big #-1 field value"] {
        for words in ["DEL big", "UNLINK big", "RENAME big other", "SET big v", "PEXPIREAT big 0", "FLUSHDB"] {
            let (one, many) = (cost(fill, 1, words), cost(fill, 3000, words));
            assert!(one == many && many < 16, "{words} after {fill}: {one} rows, and {many} rows");
        }
    }
}

#[test]
fn commands_that_change_one_collection_write_its_row_once() {
    let changes = |commands: u64| {
        let mut bench = bench(MachineOptions::default());
        run(&mut bench, "XADD s 0-1 f v");
        let before = bench.backend.changes.load(Ordering::Relaxed);
        let ids: Vec<String> = (1..=commands).map(|at| format!("{at}-1")).collect();
        let mut adds: Vec<[&[u8]; 5]> = Vec::new();
        for id in &ids {
            adds.push([b"XADD", b"s", id.as_bytes(), b"f", b"v"]);
        }
        bench.run(2, &[batch(KS, &adds.iter().map(|add| &add[..]).collect::<Vec<_>>())]);
        assert_eq!(run(&mut bench, "XLEN s"), Reply::Integer(commands as i64 + 1));
        bench.backend.changes.load(Ordering::Relaxed) - before
    };
    assert_eq!(changes(100) - changes(1), 99, "one part for each field");
}

#[test]
fn commands_of_one_batch_leave_what_they_leave_one_after_the_other() {
    let words = [
        "XADD s 1-1 f v",
        "XADD s 2-1 f v",
        "DEL s",
        "XADD s 1-1 f w",
        "XADD t 1-1 f v",
        "XADD s 2-1 f w",
        "XGROUP CREATE s g 0",
        "XADD s 3-1 f w",
        "PEXPIRE s 100000",
        "XADD s 4-1 f w",
        "RENAME s u",
        "XADD s 5-5 f x",
        "XADD s 5-5 f refused",
        "XADD u 6-1 f w",
        "SET t string",
        "XADD t 2-1 f refused",
        "DEL t",
        "XADD t 7-1 f v",
        "SET t string",
        "DEL t",
        "XADD t 8-1 f v",
        "HSET h a 1",
        "HSET h b 2",
        "HDEL h a b",
        "HSET h c 3",
        "XADD s 6-6 f y",
        "PEXPIREAT s 0",
        "XADD s 1-1 f y",
        "FLUSHDB",
        "XADD s 1-1 f z",
        "XADD s 2-2 f z",
    ];
    // Rows of keys without the revisions.
    let rows = |bench: &Bench| -> Vec<_> {
        let is_told = |key: &[u8]| matches!(key[0], 0x07 | 0x08 | 0x10 | 0x13 | 0x15);
        let told = bench.backend.dump().into_iter().filter(|(key, _)| is_told(key));
        let row = |(key, mut value): (Vec<u8>, Vec<u8>)| {
            if key[0] == 0x10 {
                value.drain(1..9);
            }
            (key, value)
        };
        told.map(row).collect()
    };
    let mut singly = bench(MachineOptions::default());
    for (number, last) in words.iter().enumerate() {
        run(&mut singly, last);
        let mut together = bench(MachineOptions::default());
        let commands: Vec<Vec<&[u8]>> =
            words[..=number].iter().map(|words| words.split(' ').map(str::as_bytes).collect()).collect();
        together.run(2, &[batch(KS, &commands.iter().map(Vec::as_slice).collect::<Vec<_>>())]);
        assert_eq!(rows(&together), rows(&singly), "up to {last}");
        assert_eq!(counts(&together), counts(&singly), "up to {last}");
    }
}

#[test]
fn what_happens_to_groups_is_no_change_for_who_watches_the_stream() {
    let mut bench = bench(MachineOptions::default());
    let revision = |bench: &Bench| bench.machine.get(KS, b"s").unwrap().unwrap().revision;
    for words in ["XADD s 1-1 f v", "XADD s 2-1 f v", "XADD s 3-1 f v"] {
        run(&mut bench, words);
    }
    let before = revision(&bench);
    for words in [
        "XGROUP CREATE s g 0",
        "XREADGROUP GROUP g alice COUNT 2 STREAMS s >",
        "XACK s g 1-1",
        "XCLAIM s g bob 0 2-1",
        "XAUTOCLAIM s g alice 0 0",
        "XGROUP CREATECONSUMER s g carol",
        "XGROUP DELCONSUMER s g carol",
        "XGROUP SETID s g 0",
        "XSETID s 9-9",
        "XGROUP DESTROY s g",
    ] {
        assert!(ok(&run(&mut bench, words)), "{words}");
        assert_eq!(revision(&bench), before, "{words}");
    }
    bench.reopen();
    assert_eq!(revision(&bench), before);
    assert_eq!(run(&mut bench, "XLEN s"), Reply::Integer(3));
    for words in ["XADD s 10-1 f v", "XDEL s 1-1", "XTRIM s MAXLEN 1", "PEXPIRE s 100000"] {
        let before = revision(&bench);
        assert!(ok(&run(&mut bench, words)), "{words}");
        assert_ne!(revision(&bench), before, "{words}");
    }
    // It is written as before, so it is also removed as before.
    run(&mut bench, "XGROUP CREATE s g 0");
    assert_eq!(run(&mut bench, "FLUSHDB"), Reply::Ok);
    assert_eq!(run(&mut bench, "EXISTS s"), Reply::Integer(0));
    sweep(&mut bench);
    assert_eq!(leftovers(&bench.backend.dump()), (0, 0));
}

#[test]
fn an_emptied_keyspace_holds_nothing_at_once() {
    let mut bench = bench(MachineOptions::default());
    let many = MAX_EAGER_PREFIX_ROWS + 20;
    for number in 0..many {
        run(&mut bench, &format!("SET key{number} value"));
    }
    let swap = [&[b"FLUSHDB".as_slice()][..], &[b"DBSIZE"], &[b"SET", b"key1", b"new"], &[b"DBSIZE"], &[b"KEYS", b"*"]];
    let got = replies(bench.run(2, &[batch(KS, &swap)]).remove(0));
    let keys = Reply::Array(vec![Reply::bulk(b"key1")]);
    assert_eq!(got, [Reply::Ok, Reply::Integer(0), Reply::Ok, Reply::Integer(1), keys]);
    assert_eq!(counts(&bench), Counts { keys: 1, bytes: 7, collections: 0 });
    assert_eq!(run(&mut bench, "SET key2 again"), Reply::Ok);
    assert_eq!(run(&mut bench, "DEL key3"), Reply::Integer(0));
    assert_eq!(counts(&bench).keys, 2);
    assert!(bench.machine.sweep_due());
    sweep(&mut bench);
    assert_eq!(counts(&bench), Counts { keys: 2, bytes: 7 + 9, collections: 0 });
}

#[test]
fn transactions_say_that_a_hash_has_no_bytes() {
    let mut bench = bench(MachineOptions::default());
    run(&mut bench, "HSET h f 1");
    let gets: [fn(&mut Operations); 2] = [
        |then| {
            then.get(KS, b"h").unwrap();
        },
        |then| {
            then.add(KS, b"h", 1).unwrap();
        },
    ];
    for operation in gets {
        let mut builder = TransactionBuilder::new();
        operation(builder.then());
        let outcome = bench.run(2, &[command(|out| builder.encode(out).unwrap())]).remove(0);
        assert_eq!(outcome, Outcome::OperationFailed { operation: 0, error: OperationError::HoldsCollection });
    }
    let mut commit = CommitBuilder::new();
    commit.expect(KS, b"h", Expect::Value(b"")).unwrap().put(KS, b"x", b"").unwrap();
    assert!(matches!(bench.run(2, &[command(|out| commit.encode(out))])[..], [Outcome::ConditionFailed { .. }]));
}

#[test]
fn a_batch_ends_where_it_has_read_or_written_too_much() {
    let mut bench = bench(MachineOptions::default());
    let large = vec![b'x'; 8 * 1024 * 1024 - 1];
    assert_eq!(replies(bench.run(2, &[batch(KS, &[&[b"SET", b"k", &large]])]).remove(0)), [Reply::Ok]);
    let mut reads = RedisBuilder::new(KS);
    (0..20).for_each(|_| {
        reads.push(&[b"GET", b"k"]).unwrap();
    });
    let reads = reads.finish();
    // Reads that have a bound of their own do not end the batch. The later ones are rejected.
    let got = replies(bench.run(2, std::slice::from_ref(&reads)).remove(0));
    assert_eq!(got.len(), 20);
    assert!(ok(&got[0]) && !got[1..].iter().any(ok));
    let mut joint = reads;
    joint[0] = 64;
    let got = replies(bench.run(2, &[joint]).remove(0));
    assert!((3..6).contains(&got.len()) && got.iter().all(ok), "{}", got.len());
    let mut copies = RedisBuilder::new(KS);
    (0..20_u8).for_each(|number| {
        copies.push(&[b"SETRANGE", &[number], b"8388607", b"x"]).unwrap();
    });
    let got = replies(bench.run(2, &[copies.finish()]).remove(0));
    assert!((1..5).contains(&got.len()) && got.iter().all(ok), "{}", got.len());
    assert_eq!(counts(&bench).keys, 1 + got.len() as u64);
}
