//! Watches, history, reads at a revision.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use thalweg_engine::{
    Database, Watch, WatchChange, WatchError, WatchEvent, WatchKeys,
    types::{
        Durability, Revision,
        command::{CommitBuilder, Expect, TransactionBuilder},
        limits::{MAX_WATCH_QUEUE_BYTES, MAX_WATCH_QUEUE_EVENTS},
    },
};

use crate::{
    common::{Rng, seed},
    support::{Node, Restart},
};

/// Far longer than any step takes. A test that waits this long has missed a wake-up.
const LONG: Duration = Duration::from_secs(60);

/// A change as the model stores it: revision, key, and value (`None` if it was deleted).
type Noted = (u64, Vec<u8>, Option<Vec<u8>>);

fn noted(event: &WatchEvent) -> Noted {
    let value = match &event.change {
        WatchChange::Put(value) => Some(value.to_vec()),
        WatchChange::Delete => None,
        other => panic!("not expected here: {other:?}"),
    };
    (event.revision.0, event.key.to_vec(), value)
}

/// Reads everything up to and including a revision.
fn drain(watch: &mut Watch, last: Revision) -> Result<Vec<Noted>, WatchError> {
    let mut found = Vec::new();
    let begun = std::time::Instant::now();
    while watch.position() <= last {
        assert!(begun.elapsed() < LONG, "stuck at {} before {last}", watch.position());
        let before = watch.position();
        // The last revision may have no change that the watch observes.
        let batch = watch.next_batch(Duration::from_millis(2))?;
        assert!(batch.events.iter().all(|event| event.revision >= before && event.revision < batch.next));
        assert_eq!(batch.next, watch.position());
        found.extend(batch.events.iter().map(noted));
    }
    Ok(found)
}

fn watch(db: &Database, keys: WatchKeys, from: Option<u64>) -> Result<Watch, WatchError> {
    db.find_keyspace("k").unwrap().watch(&keys, from.map(Revision))
}

fn all() -> WatchKeys {
    WatchKeys::Prefix(Vec::new())
}

fn last_revision(db: &Database) -> Revision {
    db.keyspace("other").unwrap().put(b"mark", b"").unwrap().revision.unwrap()
}

fn a_watch_tells_what_happened_since_a_revision(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put(b"a", b"1").unwrap();
    keyspace.put(b"a/b", &[7; 5000]).unwrap();
    let refused = keyspace.put_if(b"a", b"not told", Expect::Absent).unwrap_err();
    assert!(matches!(refused, thalweg_engine::WriteError::ConditionFailed { .. }));
    keyspace.put_if(b"a", b"2", Expect::Present).unwrap();
    node.db().keyspace("other").unwrap().put(b"a", b"elsewhere").unwrap();
    keyspace.delete(b"a/b").unwrap();
    let mut commit = CommitBuilder::new();
    commit.put(keyspace.id(), b"b", b"3").unwrap().delete(keyspace.id(), b"a").unwrap();
    commit.put(keyspace.id(), b"b", b"4").unwrap();
    node.db().commit(&commit).unwrap();
    drop(keyspace);
    let long = vec![7; 5000];
    let told: [(u64, &str, Option<&[u8]>); 7] = [
        (1, "a", Some(b"1")),
        (2, "a/b", Some(&long)),
        (3, "a", Some(b"2")),
        (5, "a/b", None),
        (6, "b", Some(b"3")),
        (6, "a", None),
        (6, "b", Some(b"4")),
    ];
    let expected = |wanted: &dyn Fn(u64, &str) -> bool| -> Vec<Noted> {
        let told = told.iter().filter(|(revision, key, _)| wanted(*revision, key));
        told.map(|&(revision, key, value)| (revision, key.into(), value.map(Into::into))).collect()
    };
    node.through_restarts(|db| {
        let last = last_revision(db);
        let of = |keys, from| drain(&mut watch(db, keys, Some(from)).unwrap(), last).unwrap();
        assert_eq!(of(all(), 1), expected(&|_, _| true));
        assert_eq!(of(all(), 0), expected(&|_, _| true));
        assert_eq!(of(all(), 4), expected(&|revision, _| revision >= 4));
        assert_eq!(of(WatchKeys::Key(b"a".to_vec()), 2), expected(&|revision, key| revision >= 2 && key == "a"));
        assert_eq!(of(WatchKeys::Prefix(b"a".to_vec()), 1), expected(&|_, key| key.starts_with('a')));
        let range = WatchKeys::Range(Bound::Excluded(b"a".to_vec()), Bound::Included(b"b".to_vec()));
        assert_eq!(of(range, 1), expected(&|_, key| key != "a"));
    });
}

fn a_watch_from_now_on_is_woken_by_what_it_wants(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let before = keyspace.put(b"w/0", b"before").unwrap().revision.unwrap();
    let mut watch = watch(node.db(), WatchKeys::Prefix(b"w/".to_vec()), None).unwrap();
    assert_eq!(watch.position(), before.next());
    assert!(!watch.is_behind());
    assert_eq!(watch.try_next().unwrap(), None);
    thread::scope(|scope| {
        let watching = scope.spawn(|| {
            let mut found = Vec::new();
            while found.len() < 20 {
                found.extend(watch.next_batch(LONG).unwrap().events.iter().map(noted));
            }
            found
        });
        for number in 0..20_u8 {
            keyspace.put(b"not wanted", &[number]).unwrap();
            keyspace.put(b"w/1", &[number]).unwrap();
        }
        let found = watching.join().unwrap();
        let expected: Vec<Noted> =
            (0..20).map(|number| (before.0 + 2 * u64::from(number) + 2, b"w/1".to_vec(), Some(vec![number]))).collect();
        assert_eq!(found, expected);
    });
}

/// No change matches the watch. It still has to report progress, so that a client can resume at a recent revision.
fn a_watch_tells_how_far_it_has_come_when_nothing_matches(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put(b"a", b"").unwrap();
    let mut live = watch(node.db(), WatchKeys::Key(b"never".to_vec()), None).unwrap();
    let mut late = watch(node.db(), WatchKeys::Key(b"never".to_vec()), Some(1)).unwrap();
    let mut last = Revision(0);
    for _ in 0..100 {
        last = keyspace.put(b"a", b"x").unwrap().revision.unwrap();
    }
    for watch in [&mut live, &mut late] {
        while watch.position() <= last {
            let batch = watch.next_batch(Duration::from_millis(5)).unwrap();
            assert!(batch.events.is_empty());
        }
        assert_eq!(watch.position(), last.next());
    }
}

fn a_watch_that_is_too_slow_reads_on_from_the_log(node: &mut Node) {
    node.restart_with(Restart::Clean, |options| options.segment_bytes = 1 << 20);
    let db = node.db().with_durability(Durability::Os);
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"first", b"").unwrap();
    let mut slow = watch(&db, all(), None).unwrap();
    let mut expected = Vec::new();
    let mut put = |key: &[u8], value: Vec<u8>| {
        let revision = keyspace.put(key, &value).unwrap().revision.unwrap();
        expected.push((revision.0, key.to_vec(), Some(value)));
        revision
    };
    for number in 0..MAX_WATCH_QUEUE_EVENTS as u32 + 500 {
        put(&number.to_be_bytes(), vec![1; 10]);
    }
    // First many bytes, then one value that is too large for any queue.
    for number in 0..40 {
        put(b"long", vec![number; 10_000]);
    }
    let mut last = put(b"longer", vec![2; MAX_WATCH_QUEUE_BYTES + 1]);
    let mut found = drain(&mut slow, last).unwrap();
    for number in 0..50 {
        last = put(b"and on", vec![number]);
    }
    found.extend(drain(&mut slow, last).unwrap());
    assert!(found == expected, "{} events of {}", found.len(), expected.len());
    assert!(!slow.is_behind(), "it has caught up");
}

fn below_the_floor_a_watch_is_told_what_is_the_oldest(node: &mut Node) {
    node.restart_with(Restart::Clean, |options| {
        options.history_bytes = 250_000;
        options.history_age = Duration::from_secs(3600);
    });
    let db = node.db().with_durability(Durability::Os);
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"first", b"").unwrap();
    let mut slow = watch(&db, all(), None).unwrap();
    for number in 0..6000_u32 {
        keyspace.put(&(number % 100).to_be_bytes(), &number.to_be_bytes().repeat(25)).unwrap();
        // A failed condition, which needs a verdict.
        if number % 7 == 0 {
            keyspace.put_if(&(number % 100).to_be_bytes(), b"", Expect::Absent).unwrap_err();
        }
    }
    let mut freed = 0;
    for _ in 0..4 {
        db.flush().unwrap();
        freed += db.maintain().unwrap().freed_segments;
    }
    assert!(freed > 5, "{freed}");
    let Err(WatchError::Compacted { requested: Revision(1), oldest }) = watch(&db, all(), Some(1)) else {
        panic!("the log reaches back to the first revision")
    };
    assert!(oldest > Revision(3000) && oldest <= Revision(6001), "{oldest}");
    let just_below = watch(&db, all(), Some(oldest.0 - 1)).unwrap_err();
    assert_eq!(just_below, WatchError::Compacted { requested: Revision(oldest.0 - 1), oldest });
    // The queue of the slow watch is delivered first. Then the watch reports that it has lost its position.
    let mut last = Revision(0);
    let lost = loop {
        match slow.next_batch(LONG) {
            Ok(batch) => last = batch.next,
            Err(error) => break error,
        }
    };
    assert_eq!(lost, WatchError::Compacted { requested: last, oldest });
    assert_eq!(slow.position(), last);
    drop((slow, keyspace, db));
    node.through_restarts(|db| {
        let last = last_revision(db);
        let found = drain(&mut watch(db, all(), Some(oldest.0)).unwrap(), last).unwrap();
        let expected: Vec<Noted> = (oldest.0..=6001)
            .map(|revision| {
                let number = revision as u32 - 2;
                (revision, (number % 100).to_be_bytes().to_vec(), Some(number.to_be_bytes().repeat(25)))
            })
            .collect();
        assert!(found == expected, "{} events from {oldest} on", found.len());
        assert!(matches!(watch(db, all(), Some(1)), Err(WatchError::Compacted { .. })));
    });
}

fn a_watch_that_cannot_be_is_refused(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let last = keyspace.put(b"a", b"").unwrap().revision.unwrap();
    let refused = watch(node.db(), all(), Some(last.0 + 2)).unwrap_err();
    assert_eq!(refused, WatchError::BeyondEnd { requested: Revision(last.0 + 2), next: last.next() });
    let mut open = watch(node.db(), all(), Some(last.0 + 1)).unwrap();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| open.next_batch(LONG));
        node.db().close().unwrap();
        assert_eq!(waiting.join().unwrap(), Err(WatchError::Closed));
    });
    assert_eq!(watch(node.db(), all(), None).unwrap_err(), WatchError::Closed);
    drop((keyspace, open));
    node.reopen();
}

/// Changes that the bytes of a command do not show: the chosen branch, the sum of a counter, the keys of a prefix.
fn a_watch_tells_what_transactions_did(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let other = node.db().keyspace("other").unwrap();
    keyspace.add(b"n", 40).unwrap();
    keyspace.add(b"n", 2).unwrap();
    let mut transaction = TransactionBuilder::new();
    transaction.expect(keyspace.id(), b"lock", Expect::Absent).unwrap();
    transaction.then().put(keyspace.id(), b"lock", &[7; 3000]).unwrap().put(other.id(), b"x", b"").unwrap();
    transaction.then().delete(keyspace.id(), b"gone").unwrap();
    transaction.otherwise().put(keyspace.id(), b"late", b"1").unwrap();
    node.db().transact(&transaction).unwrap();
    node.db().transact(&transaction).unwrap();
    let mut reads = TransactionBuilder::new();
    reads.then().get(keyspace.id(), b"lock").unwrap();
    node.db().transact(&reads).unwrap();
    keyspace.delete_prefix(b"l").unwrap();
    let last = keyspace.put(b"end", b"").unwrap().revision.unwrap();
    drop((keyspace, other));
    node.through_restarts(|db| {
        let told = |keys: WatchKeys| -> Vec<(u64, String, WatchChange)> {
            let mut watch = watch(db, keys, Some(1)).unwrap();
            let mut told = Vec::new();
            while watch.position() <= last {
                let batch = watch.next_batch(Duration::from_millis(2)).unwrap();
                let event = |event: WatchEvent| {
                    (event.revision.0, String::from_utf8_lossy(&event.key).into_owned(), event.change)
                };
                told.extend(batch.events.into_iter().map(event));
            }
            told
        };
        let put = |value: &[u8]| WatchChange::Put(value.to_vec().into());
        let expected = [
            (1, "n", put(b"40")),
            (2, "n", put(b"42")),
            (3, "lock", put(&[7; 3000])),
            (3, "gone", WatchChange::Delete),
            (4, "late", put(b"1")),
            (5, "l", WatchChange::DeletePrefix),
            (6, "end", put(b"")),
        ];
        let of = |wanted: &dyn Fn(&str) -> bool| -> Vec<_> {
            let wanted = expected.iter().filter(|(_, key, _)| wanted(key));
            wanted.map(|(revision, key, change)| (*revision, (*key).to_owned(), change.clone())).collect()
        };
        assert_eq!(told(all()), of(&|_| true));
        assert_eq!(told(WatchKeys::Key(b"lock".to_vec())), of(&|key| key == "lock" || key == "l"));
        assert_eq!(told(WatchKeys::Prefix(b"n".to_vec())), of(&|key| key == "n"));
    });
}

/// An expiry is reported when it has been carried out, and only if the value is still the one that was to expire.
fn a_watch_tells_what_has_expired(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    keyspace.put_for(b"short", b"1", Duration::from_secs(5)).unwrap();
    keyspace.put_for(b"renewed", b"2", Duration::from_secs(5)).unwrap();
    keyspace.put(b"renewed", b"3").unwrap();
    node.pass(Duration::from_secs(6));
    node.db().maintain().unwrap();
    let last = keyspace.put(b"end", b"").unwrap().revision.unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        let mut watch = watch(db, all(), Some(1)).unwrap();
        let mut told = Vec::new();
        while watch.position() <= last {
            let batch = watch.next_batch(Duration::from_millis(2)).unwrap();
            told.extend(batch.events.into_iter().map(|event| (event.key.to_vec(), event.change)));
        }
        let put = |key: &[u8], value: &[u8]| (key.to_vec(), WatchChange::Put(value.to_vec().into()));
        let expected = [
            put(b"short", b"1"),
            put(b"renewed", b"2"),
            put(b"renewed", b"3"),
            (b"short".to_vec(), WatchChange::Expire),
            put(b"end", b""),
        ];
        assert_eq!(told, expected);
    });
}

/// The end of the keyspace is reported once, after everything before it.
fn a_watch_of_a_keyspace_that_is_dropped_ends(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    let first = keyspace.put(b"a", b"1").unwrap().revision.unwrap().0;
    let live = watch(node.db(), all(), None).unwrap();
    let behind = watch(node.db(), all(), Some(first)).unwrap();
    keyspace.put(b"a", b"2").unwrap();
    keyspace.drop_all().unwrap();
    let put = |value: &[u8]| WatchChange::Put(value.to_vec().into());
    for (mut watch, before) in [(live, vec![]), (behind, vec![put(b"1")])] {
        let mut found = Vec::new();
        let error = loop {
            match watch.next_batch(Duration::from_millis(2)) {
                Ok(batch) => found.extend(batch.events.into_iter().map(|event| event.change)),
                Err(error) => break error,
            }
        };
        assert_eq!(error, WatchError::NoSuchKeyspace(keyspace.id()));
        assert_eq!(found, [before, vec![put(b"2"), WatchChange::DeletePrefix]].concat());
    }
}

/// Makes random commits and returns the acknowledged ones.
fn write(db: &Database, rng: &mut Rng, count: u32) -> Vec<(u64, Vec<Noted>)> {
    let keyspaces = ["k", "l"].map(|name| db.keyspace(name).unwrap());
    let mut done = Vec::new();
    for _ in 0..count {
        let (mut commit, mut writes) = (CommitBuilder::new(), Vec::new());
        if rng.below(4) == 0 {
            commit.expect(keyspaces[0].id(), &key(rng), Expect::Absent).unwrap();
        }
        for _ in 0..=rng.below(3) {
            let (at, key) = (rng.below(2) as usize, key(rng));
            let value = (rng.below(4) > 0).then(|| {
                let len = if rng.below(20) == 0 { 2000 } else { rng.below(30) };
                rng.bytes(len as usize)
            });
            match &value {
                Some(value) => commit.put(keyspaces[at].id(), &key, value).unwrap(),
                None => commit.delete(keyspaces[at].id(), &key).unwrap(),
            };
            if at == 0 {
                writes.push((key, value));
            }
        }
        if let Ok(ack) = db.commit(&commit) {
            let revision = ack.revision.unwrap().0;
            done.push((revision, writes.into_iter().map(|(key, value)| (revision, key, value)).collect()));
        }
    }
    done
}

fn key(rng: &mut Rng) -> Vec<u8> {
    let len = 1 + rng.below(3);
    (0..len).map(|_| b'a' + rng.below(4) as u8).collect()
}

/// Concurrent writers and restarts, with watches from now on, from some revision, and from the beginning. Each watch
/// reports all changes of its keys, each commit once, in order.
fn every_watch_equals_the_history_filtered(node: &mut Node) {
    let seed = seed(11);
    let mut model: BTreeMap<u64, Vec<Noted>> = BTreeMap::new();
    let filter = |model: &BTreeMap<u64, Vec<Noted>>, from: u64, prefix: &[u8]| -> Vec<Noted> {
        let noted = model.range(from..).flat_map(|(_, noted)| noted);
        noted.filter(|(_, key, _)| key.starts_with(prefix)).cloned().collect()
    };
    for round in 0..4_u64 {
        let db = node.db().with_durability(Durability::Os);
        let first = last_revision(&db).0;
        let keyspace = db.keyspace("k").unwrap();
        let stop = AtomicBool::new(false);
        let (written, watched, last) = thread::scope(|scope| {
            let watchers: Vec<_> = (0..6_u64)
                .map(|number| {
                    let (keyspace, stop) = (&keyspace, &stop);
                    scope.spawn(move || {
                        let mut rng = Rng(seed ^ (round * 100 + number));
                        let prefix: Vec<u8> = key(&mut rng)[..(number % 3).min(1) as usize].to_vec();
                        let from = [1, first, 1 + rng.below(first)][(number % 3) as usize];
                        let keys = WatchKeys::Prefix(prefix.clone());
                        let mut watch = keyspace.watch(&keys, Some(Revision(from))).unwrap();
                        let mut found = Vec::new();
                        while !stop.load(Ordering::SeqCst) {
                            found.extend(watch.next_batch(Duration::from_millis(1)).unwrap().events.iter().map(noted));
                            if rng.below(10) == 0 {
                                // Like a client that comes back.
                                watch = keyspace.watch(&keys, Some(watch.position())).unwrap();
                            }
                        }
                        (watch, from, prefix, found)
                    })
                })
                .collect();
            let writers: Vec<_> = (0..3_u64)
                .map(|number| {
                    let db = &db;
                    scope.spawn(move || write(db, &mut Rng(seed ^ (round * 100 + 50 + number)), 300))
                })
                .collect();
            let written: Vec<_> = writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect();
            let last = last_revision(&db);
            stop.store(true, Ordering::SeqCst);
            let watched: Vec<_> = watchers.into_iter().map(|watcher| watcher.join().unwrap()).collect();
            (written, watched, last)
        });
        model.extend(written);
        for (mut watch, from, prefix, mut found) in watched {
            found.extend(drain(&mut watch, last).unwrap());
            assert!(found == filter(&model, from, &prefix), "round {round}, from {from}, prefix {prefix:?}");
        }
        drop((keyspace, db));
        node.restart(Restart::ALL[round as usize % 2]);
        let last = last_revision(node.db());
        let found = drain(&mut watch(node.db(), all(), Some(1)).unwrap(), last).unwrap();
        assert!(found == filter(&model, 1, b""), "after restart {round}");
    }
    assert!(model.len() > 2000);
}

on_every_backend!(
    a_watch_tells_what_happened_since_a_revision,
    a_watch_from_now_on_is_woken_by_what_it_wants,
    a_watch_tells_how_far_it_has_come_when_nothing_matches,
    a_watch_that_is_too_slow_reads_on_from_the_log,
    below_the_floor_a_watch_is_told_what_is_the_oldest,
    a_watch_that_cannot_be_is_refused,
    a_watch_tells_what_transactions_did,
    a_watch_tells_what_has_expired,
    a_watch_of_a_keyspace_that_is_dropped_ends,
    every_watch_equals_the_history_filtered,
);
