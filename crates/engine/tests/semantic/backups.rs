//! Backups made of a full snapshot and increments, with maintenance in between that changes data: it forgets versions
//! and compacts streams.

use std::{collections::BTreeMap, fmt::Write as _, ops::ControlFlow, time::Duration};

use thalweg_engine::{
    BackendKind, Database, FetchRequest, GroupStart, Options, ScanRange, Stream,
    snapshot::RestoreTo,
    types::{
        Clock, Lsn, Offset, Revision,
        command::{
            Compaction, KeyspaceConfig, KeyspaceHistory, StreamConfig, TransactionBuilder,
            groups::{GroupConfig, Settlement},
        },
        record::{Record, RecordBatch},
    },
};

use crate::{
    common::{Rng, batch, seed},
    snapshots::{Copy, full, long, since, take},
    support::{Node, Restart},
};

const SECOND: Duration = Duration::from_secs(1);
const KEYS: [&[u8]; 4] = [b"a", b"b", b"c", b"n"];

/// Keeps the log, because increments must still find their entries after maintenance.
fn keeping_the_log(options: &mut Options) {
    options.history_bytes = 1 << 30;
    options.history_age = 1000 * SECOND;
}

fn applied(db: &Database) -> Lsn {
    db.snapshot(&full()).unwrap().info().applied.lsn
}

/// Describes the whole readable past, at each revision, as text.
fn past(db: &Database) -> String {
    let mut out = String::new();
    let newest = db.snapshot(&full()).unwrap().info().applied.revision;
    for name in ["few", "aged"] {
        let keyspace = db.find_keyspace(name).unwrap();
        writeln!(out, "{name}, back to {:?}", keyspace.oldest_revision().unwrap()).unwrap();
        for key in KEYS {
            writeln!(out, "  {key:?}: {:?}", keyspace.versions(key, None, 100).unwrap()).unwrap();
        }
        for revision in 0..=newest.0 {
            let revision = Revision(revision);
            let mut pairs = Vec::new();
            let scanned = keyspace.scan_at(&ScanRange::default(), revision, &mut |item| {
                pairs.push((item.key.to_vec(), item.value.to_vec()));
                ControlFlow::Continue(())
            });
            let got: Vec<_> = KEYS.iter().map(|key| keyspace.get_at(key, revision)).collect();
            writeln!(out, "  {revision:?}: {got:?} {scanned:?} {pairs:?}").unwrap();
        }
    }
    out
}

fn write_something(db: &Database, rng: &mut Rng) {
    let keyspace = db.find_keyspace(["few", "aged"][rng.below(2) as usize]).unwrap();
    let key = KEYS[rng.below(3) as usize];
    match rng.below(6) {
        // Some values lie in the log, and move with it.
        0 | 1 => drop(keyspace.put(key, &long(rng.below(250) as u8)).unwrap()),
        2 | 3 => drop(keyspace.put(key, &rng.bytes(20)).unwrap()),
        4 => drop(keyspace.delete(key).unwrap()),
        _ => {
            let mut add = TransactionBuilder::new();
            add.then().add(keyspace.id(), b"n", 3).unwrap();
            db.transact(&add).unwrap();
        }
    }
}

fn a_bounded_history_reads_the_same_after_a_restore(node: &mut Node) {
    let mut rng = Rng(seed(21));
    node.restart_with(Restart::Clean, keeping_the_log);
    let history =
        |revisions, age| KeyspaceConfig { history: KeyspaceHistory { revisions, age }, ..KeyspaceConfig::default() };
    node.db().create_keyspace("few", &history(Some(3), None)).unwrap();
    node.db().create_keyspace("aged", &history(None, Some(20 * SECOND))).unwrap();
    let (mut parts, mut moments) = (Vec::new(), Vec::new());
    let mut last = None;
    let mut pruned = 0;
    for number in 0..100 {
        write_something(node.db(), &mut rng);
        node.pass(SECOND);
        if number % 10 == 9 {
            node.db().flush().unwrap();
            pruned += node.db().maintain().unwrap().pruned_versions;
        }
        if number % 25 == 24 {
            parts.push(take(node.db(), &last.map_or_else(full, since)));
            last = Some(applied(node.db()));
            moments.push((applied(node.db()), past(node.db())));
        }
        if number == 60 {
            node.kill();
        }
    }
    assert!(pruned > 0, "some versions were forgotten");
    assert!(moments[3].1.contains("Compacted"), "reads report missing versions");
    let now = node.clock().wall();
    for backend in BackendKind::ALL.into_iter().filter(|kind| kind.is_built()) {
        let mut copy = Copy::of(&parts, RestoreTo::End, backend, now);
        assert_eq!(past(&copy.open()), moments[3].1, "into {backend:?}");
        // Open again without closing, as after a crash, and then run maintenance on the restored data.
        let db = copy.open();
        assert_eq!(past(&db), moments[3].1, "into {backend:?}, opened again");
        for _ in 0..4 {
            db.flush().unwrap();
            db.maintain().unwrap();
        }
        let (_, few) = past(&db).split_once("aged").map(|(few, aged)| (aged.len(), few.to_owned())).unwrap();
        assert!(moments[3].1.starts_with(&few), "into {backend:?}, maintained");
    }
    for (lsn, expected) in &moments {
        let mut copy = Copy::of(&parts, RestoreTo::Lsn(*lsn), BackendKind::Memory, now);
        assert_eq!(&past(&copy.open()), expected, "up to {lsn}");
    }
}

fn one(key: &str, payload: Option<&[u8]>) -> RecordBatch {
    let mut batch = RecordBatch::new();
    let record = Record {
        key: Some(key.as_bytes()),
        headers: vec![],
        payload: payload.unwrap_or_default(),
        is_tombstone: payload.is_none(),
    };
    batch.push(&record).unwrap();
    batch
}

/// Newest record of each key: its offset and payload.
type Newest = BTreeMap<Vec<u8>, (u64, Vec<u8>)>;

/// Returns the map that a reader builds from the start of the stream, and the number of records that it read.
fn folded(stream: &Stream) -> (Newest, usize) {
    let (mut map, mut count) = (BTreeMap::new(), 0);
    let info = stream.info().unwrap();
    let mut from = info.start;
    while from < info.next {
        let page = stream.read(from, 10_000, 1 << 20).unwrap();
        page.for_each(&mut |offset, _, record| {
            count += 1;
            let key = record.key.unwrap().to_vec();
            if record.is_tombstone {
                map.remove(&key);
            } else {
                map.insert(key, (offset.0, record.payload.to_vec()));
            }
            ControlFlow::Continue(())
        })
        .unwrap();
        from = page.next;
    }
    (map, count)
}

/// Writes until the log begins another segment, so that compaction makes progress.
fn compact(db: &Database) -> u64 {
    let filler = db.stream("filler").unwrap();
    let mut compacted = 0;
    for _ in 0..4 {
        for _ in 0..12 {
            filler.append(&batch(&[vec![7; 8 * 1024]])).unwrap();
        }
        filler.trim(filler.info().unwrap().next).unwrap();
        db.flush().unwrap();
        compacted += db.maintain().unwrap().compacted_records;
    }
    compacted
}

fn increments_of_a_stream_that_is_compacted_meanwhile_say_the_same(node: &mut Node) {
    let mut rng = Rng(seed(22));
    node.restart_with(Restart::Clean, keeping_the_log);
    let config = StreamConfig { compaction: Some(Compaction { tombstone_grace: SECOND }), ..StreamConfig::default() };
    node.db().create_stream("s", &config).unwrap();
    let group = |db: &Database| db.stream("s").unwrap().find_group("workers").unwrap().unwrap();
    node.db().stream("s").unwrap().create_group("workers", GroupStart::Beginning, &GroupConfig::default()).unwrap();
    let (mut parts, mut moments) = (Vec::new(), Vec::new());
    let (mut last, mut compacted) = (None, 0);
    for round in 0..4 {
        let stream = node.db().stream("s").unwrap();
        for _ in 0..60 {
            let key = format!("k{}", rng.below(9));
            let payload = (rng.below(4) > 0).then(|| rng.bytes(100));
            stream.append(&one(&key, payload.as_deref())).unwrap();
        }
        if round == 2 {
            stream.trim(Offset(70)).unwrap();
        }
        // Fetch before compaction, or fetch what it has left.
        if round % 2 == 0 {
            compacted += compact(node.db());
        }
        let request = FetchRequest { member: "m".to_owned(), max_records: 7, ..FetchRequest::default() };
        let fetched = group(node.db()).fetch(&request).unwrap();
        group(node.db()).ack(&[Settlement::all(fetched.attempt)]).unwrap();
        parts.push(take(node.db(), &last.map_or_else(full, since)));
        last = Some(applied(node.db()));
        moments.push((applied(node.db()), folded(&stream), format!("{:?}", stream.groups().unwrap())));
        compacted += compact(node.db());
        node.pass(2 * SECOND);
        drop(stream);
        node.kill();
    }
    assert!(compacted > 60, "{compacted} records are gone");
    let now = node.clock().wall();
    for (number, (lsn, (expected, _), groups)) in moments.iter().enumerate() {
        let backend = if number == 3 { node.backend() } else { BackendKind::Memory };
        let mut copy = Copy::of(&parts, RestoreTo::Lsn(*lsn), backend, now);
        let db = copy.open();
        let stream = db.find_stream("s").unwrap();
        let (found, before) = folded(&stream);
        assert_eq!((&found, &format!("{:?}", stream.groups().unwrap())), (expected, groups), "up to {lsn}");
        // The copy itself does the compaction that the original had done since the full snapshot.
        for _ in 0..3 {
            copy.clock.advance(2 * SECOND);
            for _ in 0..60 {
                stream.append(&one("more", Some(&[1; 100]))).unwrap();
            }
            compact(&db);
        }
        let (mut after, count) = folded(&stream);
        assert!(after.remove(&b"more"[..]).is_some());
        assert_eq!(&after, expected, "compacted there");
        assert!(count < before + 100, "{count} records of {before} and 180 more");
    }
}

on_every_backend!(
    a_bounded_history_reads_the_same_after_a_restore,
    increments_of_a_stream_that_is_compacted_meanwhile_say_the_same,
);
