//! Keyspaces with history: reads at a revision, versions, cursors.

use std::{collections::BTreeMap, ops::ControlFlow, time::Duration};

use thalweg_engine::{
    Database, Keyspace, KeyspaceIter, Order, ReadError, ScanCursor, ScanRange, VersionEnd, VersionLifetime, WriteError,
    types::{
        Revision,
        command::{KeyspaceConfig, KeyspaceHistory, TransactionBuilder},
        limits::{DELETED_HISTORY_AGE, MAX_HISTORY_REVISIONS, MAX_VERSIONS_PAGE, MAX_VERSIONS_PAGE_BYTES},
    },
};

use crate::{
    common::{Rng, seed},
    support::{Node, Restart},
};

type Pairs = Vec<(Vec<u8>, Vec<u8>)>;

const SECOND: Duration = Duration::from_secs(1);

fn history(revisions: Option<u32>, age: Option<Duration>) -> KeyspaceConfig {
    KeyspaceConfig { history: KeyspaceHistory { revisions, age }, ..KeyspaceConfig::default() }
}

/// Creates a keyspace that keeps a long history.
fn kept(db: &Database) -> Keyspace {
    db.create_keyspace("k", &history(None, Some(1000 * SECOND))).unwrap().0
}

fn of(db: &Database) -> Keyspace {
    db.find_keyspace("k").unwrap()
}

fn at(keyspace: &Keyspace, key: &[u8], revision: Revision) -> Option<Vec<u8>> {
    keyspace.get_at(key, revision).unwrap().map(|entry| entry.value.to_vec())
}

fn scan_at(keyspace: &Keyspace, range: &ScanRange, revision: Revision) -> Result<Pairs, ReadError> {
    let mut pairs = Vec::new();
    keyspace.scan_at(range, revision, &mut |item| {
        pairs.push((item.key.to_vec(), item.value.to_vec()));
        ControlFlow::Continue(())
    })?;
    Ok(pairs)
}

fn a_key_reads_as_it_was_at_each_revision(node: &mut Node) {
    let keyspace = kept(node.db());
    let first = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    let second = keyspace.put(b"a", &[7; 5000]).unwrap().revision.unwrap();
    let gone = keyspace.delete(b"a").unwrap().revision.unwrap();
    let mut counter = TransactionBuilder::new();
    counter.then().add(keyspace.id(), b"n", 5).unwrap();
    node.db().transact(&counter).unwrap();
    node.db().transact(&counter).unwrap();
    let last = keyspace.put(b"a", b"3").unwrap().revision.unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = of(db);
        assert_eq!(at(&keyspace, b"a", first), Some(b"1".to_vec()));
        assert_eq!(at(&keyspace, b"a", second), Some(vec![7; 5000]));
        assert_eq!(at(&keyspace, b"a", gone), None);
        assert_eq!(at(&keyspace, b"a", last), Some(b"3".to_vec()));
        let numbers: Vec<_> = (gone.0..=last.0).map(|revision| at(&keyspace, b"n", Revision(revision))).collect();
        assert_eq!(numbers, [None, Some(b"5".to_vec()), Some(b"10".to_vec()), Some(b"10".to_vec())]);
        let versions = keyspace.versions(b"a", None, 10).unwrap();
        let found = versions.versions.iter().map(|version| (version.entry.revision, version.lifetime));
        let until = |lasting| match lasting {
            VersionLifetime::Until { revision, ending, .. } => Some((revision, ending)),
            _ => None,
        };
        let found: Vec<_> = found.map(|(revision, lasting)| (revision, until(lasting))).collect();
        let expected = [
            (last, None),
            (second, Some((gone, VersionEnd::Deleted))),
            (first, Some((second, VersionEnd::Overwritten))),
        ];
        assert_eq!(found, expected);
        assert_eq!((versions.next, versions.oldest < first), (None, true));
        let page = keyspace.versions(b"a", None, 2).unwrap();
        assert_eq!((page.versions.len(), page.next), (2, Some(second)));
        assert_eq!(keyspace.versions(b"a", page.next, 2).unwrap().versions, versions.versions[2..]);
        let future = keyspace.get_at(b"a", last.next()).unwrap_err();
        assert_eq!(future, ReadError::FutureRevision { requested: last.next(), newest: last });
        assert!(matches!(keyspace.get_at(b"a", Revision(0)), Ok(None) | Err(ReadError::Compacted { .. })));
    });
}

fn a_page_of_versions_is_bounded_in_bytes(node: &mut Node) {
    let keyspace = kept(node.db());
    const BYTES: usize = 50_000;
    let count = MAX_VERSIONS_PAGE_BYTES / BYTES + 5;
    for number in 0..count {
        keyspace.put(b"a", &[number as u8; BYTES]).unwrap();
    }
    let first = keyspace.versions(b"a", None, 1000).unwrap();
    let second = keyspace.versions(b"a", first.next, 1000).unwrap();
    let found = first.versions.iter().chain(&second.versions).map(|version| version.entry.value[0]);
    assert!(found.eq((0..count).rev().map(|number| number as u8)));
    assert_eq!((first.versions.len(), second.next), (MAX_VERSIONS_PAGE_BYTES / BYTES + 1, None));
}

fn a_keyspace_without_history_says_so(node: &mut Node) {
    let keyspace = node.db().keyspace("plain").unwrap();
    let revision = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    assert_eq!(keyspace.get_at(b"a", revision), Err(ReadError::NoHistory));
    assert_eq!(keyspace.versions(b"a", None, 1), Err(ReadError::NoHistory));
    assert_eq!(scan_at(&keyspace, &ScanRange::default(), revision), Err(ReadError::NoHistory));
    keyspace.configure(&history(Some(3), None)).unwrap();
    assert_eq!(at(&keyspace, b"a", revision), Some(b"1".to_vec()), "the history begins with the present values");
    assert!(
        matches!(keyspace.get_at(b"a", Revision(revision.0 - 1)), Err(ReadError::Compacted { oldest, .. }) if oldest == revision)
    );
    keyspace.put(b"a", b"2").unwrap();
    keyspace.configure(&KeyspaceConfig::default()).unwrap();
    assert_eq!(keyspace.get_at(b"a", revision), Err(ReadError::NoHistory));
    assert!(node.db().maintain().unwrap().pruned_versions > 0, "the kept versions are removed");
    keyspace.configure(&history(Some(3), None)).unwrap();
    assert!(matches!(keyspace.get_at(b"a", revision), Err(ReadError::Compacted { .. })));
    for bad in
        [history(Some(1), None), history(Some(MAX_HISTORY_REVISIONS + 1), None), history(None, Some(Duration::ZERO))]
    {
        assert!(matches!(keyspace.configure(&bad), Err(WriteError::Command(_))));
        assert!(matches!(node.db().create_keyspace("bad", &bad), Err(WriteError::Command(_))));
    }
}

fn so_many_revisions_of_a_key_are_kept(node: &mut Node) {
    let keyspace = node.db().create_keyspace("k", &history(Some(3), None)).unwrap().0;
    let quiet = keyspace.put(b"quiet", b"0").unwrap().revision.unwrap();
    let revisions: Vec<_> =
        (0..10_u8).map(|number| keyspace.put(b"busy", &[number]).unwrap().revision.unwrap()).collect();
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = of(db);
        for (number, &revision) in revisions.iter().enumerate() {
            match number {
                0..7 => {
                    let error = keyspace.get_at(b"busy", revision).unwrap_err();
                    assert_eq!(error, ReadError::Compacted { requested: revision, oldest: revisions[7] });
                }
                _ => assert_eq!(at(&keyspace, b"busy", revision), Some(vec![number as u8])),
            }
        }
        assert_eq!(at(&keyspace, b"quiet", quiet), Some(b"0".to_vec()), "each key has its own history");
        let all = ScanRange::default();
        assert!(matches!(scan_at(&keyspace, &all, revisions[6]), Err(ReadError::Compacted { .. })));
        assert_eq!(scan_at(&keyspace, &ScanRange::with_prefix("q"), revisions[0]).unwrap().len(), 1);
        assert_eq!(scan_at(&keyspace, &all, revisions[7]).unwrap().len(), 2);
        assert_eq!(keyspace.versions(b"busy", None, 100).unwrap().versions.len(), 3);
    });
    // A lower bound takes effect in the background.
    of(node.db()).configure(&history(Some(2), None)).unwrap();
    node.db().maintain().unwrap();
    node.through_restarts(|db| {
        let keyspace = of(db);
        assert_eq!(keyspace.versions(b"busy", None, 100).unwrap().versions.len(), 2);
        assert!(matches!(keyspace.get_at(b"busy", revisions[7]), Err(ReadError::Compacted { .. })));
        assert_eq!(at(&keyspace, b"busy", revisions[8]), Some(vec![8]));
    });
}

fn what_was_overwritten_long_ago_is_forgotten(node: &mut Node) {
    let keyspace = node.db().create_keyspace("k", &history(None, Some(10 * SECOND))).unwrap().0;
    let first = keyspace.put(b"a", b"1").unwrap().revision.unwrap();
    keyspace.put(b"gone", b"1").unwrap();
    node.pass(100 * SECOND);
    let second = keyspace.put(b"a", b"2").unwrap().revision.unwrap();
    let deleted = keyspace.delete(b"gone").unwrap().revision.unwrap();
    node.pass(9 * SECOND);
    let third = keyspace.put(b"a", b"3").unwrap().revision.unwrap();
    node.db().maintain().unwrap();
    assert_eq!(at(&keyspace, b"a", first), Some(b"1".to_vec()), "it was present 9 seconds ago");
    node.pass(SECOND);
    node.db().maintain().unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = of(db);
        let error = keyspace.get_at(b"a", first).unwrap_err();
        assert_eq!(error, ReadError::Compacted { requested: first, oldest: deleted });
        assert_eq!(keyspace.oldest_revision().unwrap(), deleted);
        assert_eq!(at(&keyspace, b"a", deleted), Some(b"2".to_vec()));
        assert_eq!(at(&keyspace, b"gone", deleted), None);
        assert_eq!(at(&keyspace, b"a", third), Some(b"3".to_vec()));
        assert!(keyspace.versions(b"gone", None, 10).unwrap().versions.is_empty());
        assert!(second < deleted);
    });
}

/// Deleted keys lose their versions after a week if the history has no age, which would otherwise set no bound on
/// them.
fn what_was_deleted_long_ago_is_forgotten_though_the_history_has_no_age(node: &mut Node) {
    let keyspace = node.db().create_keyspace("k", &history(Some(3), None)).unwrap().0;
    let quiet = keyspace.put(b"quiet", b"1").unwrap().revision.unwrap();
    keyspace.put(b"quiet", b"2").unwrap();
    for number in 0..100_u32 {
        let key = format!("session {number:03}");
        keyspace.put(key.as_bytes(), &[1; 300]).unwrap();
        keyspace.put(key.as_bytes(), &[2; 300]).unwrap();
        if number % 2 == 0 {
            keyspace.delete(key.as_bytes()).unwrap();
        } else {
            keyspace.put_for(key.as_bytes(), b"ends", SECOND).unwrap();
        }
    }
    let before = keyspace.put(b"back", b"before").unwrap().revision.unwrap();
    keyspace.delete(b"back").unwrap();
    node.pass(2 * SECOND);
    node.db().maintain().unwrap();
    let gone = keyspace.put(b"back", b"again").unwrap().revision.unwrap();
    keyspace.put(b"back", b"and again").unwrap();
    let last = |keyspace: &Keyspace| at(keyspace, b"session 007", Revision(gone.0 - 2));
    assert_eq!(last(&keyspace), Some(b"ends".to_vec()));
    node.pass(DELETED_HISTORY_AGE - 3 * SECOND);
    assert_eq!(node.db().maintain().unwrap().pruned_versions, 0, "the version is kept until then");
    assert_eq!(last(&keyspace), Some(b"ends".to_vec()));
    node.pass(4 * SECOND);
    assert!(node.db().maintain().unwrap().pruned_versions >= 200);
    assert_eq!(node.db().maintain().unwrap().pruned_versions, 0);
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = of(db);
        for number in 0..100 {
            let key = format!("session {number:03}").into_bytes();
            let versions = keyspace.versions(&key, None, 9).unwrap();
            assert_eq!((versions.versions.len(), versions.oldest), (0, gone_by(&keyspace, &key, quiet)));
        }
        assert_eq!(at(&keyspace, b"quiet", quiet), Some(b"1".to_vec()), "a key that stays keeps its own history");
        assert_eq!(keyspace.versions(b"quiet", None, 9).unwrap().versions.len(), 2);
        assert!(matches!(keyspace.get_at(b"back", before), Err(ReadError::Compacted { .. })));
        assert_eq!(at(&keyspace, b"back", gone), Some(b"again".to_vec()));
        assert_eq!(keyspace.versions(b"back", None, 9).unwrap().versions.len(), 2);
        let all = ScanRange::default();
        assert!(matches!(scan_at(&keyspace, &all, before), Err(ReadError::Compacted { .. })), "some are incomplete");
        assert_eq!(scan_at(&keyspace, &all, gone).unwrap().len(), 2);
    });
}

/// Returns the oldest revision since which a key is known to be absent.
fn gone_by(keyspace: &Keyspace, key: &[u8], early: Revision) -> Revision {
    match keyspace.get_at(key, early).unwrap_err() {
        ReadError::Compacted { oldest, .. } => oldest,
        error => panic!("{error}"),
    }
}

fn pages_and_keys_have_so_many_versions(node: &mut Node) {
    let few = node.db().create_keyspace("k", &history(Some(MAX_HISTORY_REVISIONS), None)).unwrap().0;
    let many = node.db().create_keyspace("many", &history(None, Some(1000 * SECOND))).unwrap().0;
    for number in 0..=MAX_VERSIONS_PAGE as u32 {
        many.put(b"a", &number.to_le_bytes()).unwrap();
        if number < MAX_HISTORY_REVISIONS + 10 {
            few.put(b"a", &number.to_le_bytes()).unwrap();
        }
    }
    assert_eq!(few.versions(b"a", None, usize::MAX).unwrap().versions.len(), MAX_HISTORY_REVISIONS as usize);
    let page = many.versions(b"a", None, usize::MAX).unwrap();
    assert_eq!(page.versions.len(), MAX_VERSIONS_PAGE);
    let rest = many.versions(b"a", page.next, usize::MAX).unwrap();
    assert_eq!((rest.versions.len(), &rest.versions[0].entry.value[..], rest.next), (1, [0; 4].as_slice(), None));
}

fn a_deleted_prefix_is_there_before(node: &mut Node) {
    let keyspace = kept(node.db());
    for number in 0..200_u32 {
        keyspace.put(format!("p/{number:03}").as_bytes(), &number.to_le_bytes()).unwrap();
    }
    let full = keyspace.put(b"q", &[1; 1000]).unwrap().revision.unwrap();
    let emptied = keyspace.delete_prefix(b"p/").unwrap().revision;
    let again = keyspace.put(b"p/007", b"new").unwrap().revision.unwrap();
    let twice = keyspace.delete_prefix(b"").unwrap().revision;
    drop(keyspace);
    let check = |db: &Database| {
        let keyspace = of(db);
        let count = |revision| scan_at(&keyspace, &ScanRange::default(), revision).unwrap().len();
        assert_eq!([count(full), count(emptied), count(again), count(twice)], [201, 1, 2, 0]);
        let reverse = ScanRange { order: Order::Descending, limit: Some(2), ..ScanRange::default() };
        let last = scan_at(&keyspace, &reverse, full).unwrap();
        assert_eq!(last, [(b"q".to_vec(), vec![1; 1000]), (b"p/199".to_vec(), 199_u32.to_le_bytes().to_vec())]);
        assert_eq!(at(&keyspace, b"p/007", full), Some(7_u32.to_le_bytes().to_vec()));
        assert_eq!((at(&keyspace, b"p/007", emptied), at(&keyspace, b"p/007", again)), (None, Some(b"new".to_vec())));
        let versions = keyspace.versions(b"p/008", None, 10).unwrap().versions;
        assert!(
            matches!(versions[0].lifetime, VersionLifetime::Until { revision, ending: VersionEnd::Deleted, .. } if revision == emptied)
        );
    };
    node.through_restarts(check);
    assert!(node.db().maintain().unwrap().swept_rows > 0);
    node.through_restarts(check);
}

fn what_ended_was_there_until_it_was_removed(node: &mut Node) {
    let keyspace = kept(node.db());
    let put = keyspace.put_for(b"a", b"1", 5 * SECOND).unwrap().revision.unwrap();
    node.pass(6 * SECOND);
    assert_eq!((keyspace.get(b"a").unwrap(), at(&keyspace, b"a", put)), (None, Some(b"1".to_vec())));
    let cursor = keyspace.iter(ScanRange::default()).cursor(b"").unwrap();
    assert_eq!(keyspace.versions(b"a", None, 1).unwrap().versions[0].lifetime, VersionLifetime::Ended);
    node.db().maintain().unwrap();
    drop(keyspace);
    node.through_restarts(|db| {
        let keyspace = of(db);
        assert_eq!((at(&keyspace, b"a", put), at(&keyspace, b"a", put.next())), (Some(b"1".to_vec()), None));
        let lasting = keyspace.versions(b"a", None, 1).unwrap().versions[0].lifetime;
        assert!(matches!(lasting, VersionLifetime::Until { ending: VersionEnd::Expired, .. }), "{lasting:?}");
        assert_eq!(keyspace.resume(ScanRange::default(), &cursor).unwrap().count(), 0, "a cursor contains the time");
    });
}

fn page(iter: &mut KeyspaceIter, items: usize) -> (Pairs, Option<Vec<u8>>) {
    let pairs = iter.next_page(items, usize::MAX).unwrap();
    let cursor = pairs.last().map(|(last, _)| iter.cursor(last).unwrap().encode());
    (pairs.into_iter().map(|(key, entry)| (key.to_vec(), entry.value.to_vec())).collect(), cursor)
}

fn pages_of_a_cursor_are_one_view(node: &mut Node) {
    let keyspace = kept(node.db());
    let mut before = BTreeMap::new();
    for number in 0..50_u32 {
        let (key, value) = (format!("{number:02}").into_bytes(), number.to_le_bytes().repeat(100));
        keyspace.put(&key, &value).unwrap();
        before.insert(key, value);
    }
    for order in [Order::Ascending, Order::Descending] {
        let range = ScanRange { order, ..ScanRange::default() };
        let expected: Pairs = match order {
            Order::Ascending => before.clone().into_iter().collect(),
            Order::Descending => before.clone().into_iter().rev().collect(),
        };
        let (mut found, mut cursor) = page(&mut of(node.db()).iter(range.clone()), 7);
        let mut round = 0;
        while let Some(bytes) = cursor {
            let keyspace = of(node.db());
            for key in before.keys().step_by(3) {
                if round % 2 == 0 {
                    keyspace.put(key, b"newer").unwrap()
                } else {
                    keyspace.delete(key).unwrap()
                };
            }
            keyspace.put(format!("{round:02}+").as_bytes(), b"did not exist").unwrap();
            drop(keyspace);
            round += 1;
            if round % 3 == 0 {
                node.restart(Restart::ALL[round / 3 % 2]);
            }
            let cursor_read = ScanCursor::decode(&bytes).unwrap();
            let mut iter = of(node.db()).resume(range.clone(), &cursor_read).unwrap();
            assert_eq!(Some(iter.revision()), cursor_read.revision());
            let (pairs, next) = page(&mut iter, 7);
            found.extend(pairs);
            cursor = next;
        }
        assert_eq!(found, expected, "{order:?}");
        let keyspace = of(node.db());
        keyspace.delete_prefix(b"").unwrap();
        before.iter().for_each(|(key, value)| _ = keyspace.put(key, value).unwrap());
    }
}

fn without_history_a_cursor_is_a_position(node: &mut Node) {
    let keyspace = node.db().keyspace("k").unwrap();
    for number in 0..20_u32 {
        keyspace.put(format!("{number:02}").as_bytes(), b"old").unwrap();
    }
    let (first, cursor) = page(&mut keyspace.iter(ScanRange::default()), 10);
    let cursor = ScanCursor::decode(&cursor.unwrap()).unwrap();
    assert_eq!((first.len(), cursor.revision()), (10, None));
    keyspace.put(b"05", b"behind").unwrap();
    keyspace.put(b"15", b"new").unwrap();
    keyspace.delete(b"16").unwrap();
    drop(keyspace);
    node.kill();
    let rest: Vec<_> = of(node.db()).resume(ScanRange::default(), &cursor).unwrap().map(|pair| pair.unwrap()).collect();
    assert_eq!((&rest[0].0[..], rest.len()), (b"10".as_slice(), 9));
    assert_eq!(&rest[5].1.value[..], b"new");
    let other = node.db().keyspace("other").unwrap();
    for refused in [
        other.resume(ScanRange::default(), &cursor).map(|_| ()),
        of(node.db()).resume(ScanRange::with_prefix("1"), &cursor).map(|_| ()),
        ScanCursor::decode(b"garbage").map(|_| ()),
    ] {
        assert!(matches!(refused, Err(ReadError::BadCursor { .. })), "{refused:?}");
    }
}

fn a_cursor_that_history_has_left_behind_says_so(node: &mut Node) {
    let keyspace = node.db().create_keyspace("k", &history(Some(2), Some(10 * SECOND))).unwrap().0;
    for key in [b"a", b"b", b"c"] {
        keyspace.put(key, b"1").unwrap();
    }
    let (_, cursor) = page(&mut keyspace.iter(ScanRange::default()), 1);
    let cursor = ScanCursor::decode(&cursor.unwrap()).unwrap();
    let rest = |keyspace: &Keyspace| keyspace.resume(ScanRange::default(), &cursor)?.collect::<Result<Vec<_>, _>>();
    assert_eq!(rest(&keyspace).unwrap().len(), 2);
    keyspace.put(b"c", b"2").unwrap();
    assert_eq!(rest(&keyspace).unwrap()[1].1.value[..], *b"1");
    keyspace.put(b"c", b"3").unwrap();
    assert!(matches!(rest(&keyspace), Err(ReadError::Compacted { .. })), "only two versions of c are kept");
    // A cursor keeps no data alive: the versions that it shows are pruned, and the scan reports that.
    let whole = keyspace.iter(ScanRange { limit: Some(1), ..ScanRange::default() });
    let cursor = ScanCursor::decode(&whole.cursor(b"a").unwrap().encode()).unwrap();
    let revision = keyspace.put(b"b", b"2").unwrap().revision.unwrap();
    drop((keyspace, whole));
    let resumed = |db: &Database| of(db).resume(ScanRange::default(), &cursor).map(Iterator::count);
    assert_eq!(resumed(node.db()).unwrap(), 2);
    node.pass(11 * SECOND);
    node.db().maintain().unwrap();
    node.through_restarts(|db| {
        let error = resumed(db).unwrap_err();
        assert_eq!(error, ReadError::Compacted { requested: cursor.revision().unwrap(), oldest: revision });
    });
}

/// Large values stay in the log: versions of them keep their bytes alive, and release them later.
fn the_log_keeps_what_versions_need(node: &mut Node) {
    let keyspace = node.db().create_keyspace("k", &history(Some(4), None)).unwrap().0;
    let plain = node.db().keyspace("plain").unwrap();
    let mut revisions = Vec::new();
    for round in 0..4_u8 {
        for key in 0..4_u8 {
            let ack = keyspace.put(&[key], &[round * 16 + key; 2000]).unwrap();
            revisions.push((ack.revision.unwrap(), key, round * 16 + key));
        }
        for filler in 0..60_u8 {
            plain.put(b"filler", &[filler; 3000]).unwrap();
        }
    }
    // A delete keeps four values, and a put keeps three beside the new one.
    keyspace.delete(&[3]).unwrap();
    let (revision, key, byte) = revisions[3];
    assert_eq!(at(&keyspace, &[key], revision), Some(vec![byte; 2000]));
    keyspace.put(&[3], b"again").unwrap();
    drop((keyspace, plain));
    let check = |db: &Database| {
        for &(revision, key, byte) in &revisions {
            if key == 3 && byte < 16 {
                assert!(matches!(of(db).get_at(&[key], revision), Err(ReadError::Compacted { .. })));
            } else {
                assert_eq!(at(&of(db), &[key], revision), Some(vec![byte; 2000]));
            }
        }
    };
    let mut done = thalweg_engine::Maintenance::default();
    for _ in 0..6 {
        let round = node.db().maintain().unwrap();
        done.moved_bytes += round.moved_bytes;
        done.freed_segments += round.freed_segments;
        node.db().flush().unwrap();
        check(node.db());
    }
    assert!(done.moved_bytes > 0 && done.freed_segments > 2, "{done:?}");
    node.through_restarts(check);
    // The keyspace is dropped with its versions: nothing points into the log for it any more.
    of(node.db()).drop_all().unwrap();
    node.db().keyspace("plain").unwrap().put(b"filler", b"short").unwrap();
    let segments = node.db().stats().log.segments;
    for filler in 0..60_u8 {
        node.db().keyspace("plain").unwrap().put(b"filler", &[filler; 3000]).unwrap();
    }
    for _ in 0..4 {
        node.db().maintain().unwrap();
        node.db().flush().unwrap();
    }
    assert!(node.db().find_keyspace("k").is_none() && node.db().stats().log.segments <= segments + 4);
}

/// Random writes against a model that stores each revision. Every revision is read, over restarts.
fn every_revision_is_what_it_was(node: &mut Node) {
    let mut rng = Rng(seed(31));
    let keyspace = kept(node.db());
    let base = node.db().keyspace("other").unwrap().put(b"base", b"").unwrap().revision.unwrap();
    let mut past: Vec<BTreeMap<Vec<u8>, Vec<u8>>> = vec![BTreeMap::new()];
    drop(keyspace);
    for round in 0..3 {
        for _ in 0..60 {
            let keyspace = of(node.db());
            let mut now = past.last().unwrap().clone();
            let key = vec![b'a' + rng.below(3) as u8; 1 + rng.below(9) as usize];
            match rng.below(10) {
                0..6 => {
                    let len = [3, 300][rng.below(2) as usize];
                    let value = rng.bytes(len);
                    keyspace.put(&key, &value).unwrap();
                    now.insert(key, value);
                }
                6 | 7 => {
                    keyspace.delete(&key).unwrap();
                    now.remove(&key);
                }
                8 => {
                    keyspace.delete_prefix(&key[..1]).unwrap();
                    now.retain(|other, _| !other.starts_with(&key[..1]));
                }
                _ => {
                    keyspace.put_for(&key, b"ends", SECOND).unwrap();
                    now.insert(key.clone(), b"ends".to_vec());
                    past.push(now.clone());
                    node.pass(2 * SECOND);
                    assert!(node.db().maintain().unwrap().expired_keys > 0);
                    now.remove(&key);
                }
            }
            past.push(now);
        }
        let keyspace = of(node.db());
        for (number, expected) in past.iter().enumerate() {
            let found = scan_at(&keyspace, &ScanRange::default(), Revision(base.0 + number as u64)).unwrap();
            assert_eq!(found, expected.clone().into_iter().collect::<Vec<_>>(), "{number} of round {round}");
        }
        drop(keyspace);
        node.restart(Restart::ALL[round % 2]);
    }
}

on_every_backend!(
    a_key_reads_as_it_was_at_each_revision,
    a_page_of_versions_is_bounded_in_bytes,
    a_keyspace_without_history_says_so,
    so_many_revisions_of_a_key_are_kept,
    what_was_overwritten_long_ago_is_forgotten,
    what_was_deleted_long_ago_is_forgotten_though_the_history_has_no_age,
    pages_and_keys_have_so_many_versions,
    a_deleted_prefix_is_there_before,
    what_ended_was_there_until_it_was_removed,
    pages_of_a_cursor_are_one_view,
    without_history_a_cursor_is_a_position,
    a_cursor_that_history_has_left_behind_says_so,
    the_log_keeps_what_versions_need,
    every_revision_is_what_it_was,
);
