//! Snapshots and restores: the contents of backups, over all backends.

use std::{
    collections::BTreeMap,
    ops::ControlFlow,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use tempfile::TempDir;
use thalweg_disk::{Disk, RealDisk};
use thalweg_engine::{
    BackendKind, Database, FetchRequest, GroupStart, Options, PutOptions, ScanRange,
    snapshot::{Compression, Part, PartKind, RestoreTo, Restored, SnapshotError, SnapshotOptions, restore_on, verify},
    types::{
        Clock, Durability, LeaseId, Lsn, ManualClock, Offset, Revision, SpaceTime,
        command::{
            Compaction, Expect, StreamConfig,
            groups::{GroupConfig, Redelivery, Settlement},
        },
        record::{Record, RecordBatch},
    },
};

use crate::{
    common::{self, Model, Rng, batch, check, seed},
    support::Node,
};

/// Options for a full snapshot with small chunks, so that there are many.
pub fn full() -> SnapshotOptions {
    SnapshotOptions { chunk_bytes: 700, ..SnapshotOptions::default() }
}

pub fn since(lsn: Lsn) -> SnapshotOptions {
    SnapshotOptions { since: Some(lsn), ..full() }
}

pub fn take(db: &Database, options: &SnapshotOptions) -> Part {
    let bytes = db.snapshot(options).unwrap().into_bytes().unwrap();
    verify(&bytes[..]).unwrap();
    Part::bytes(format!("{:?}", options.since), bytes)
}

/// A directory into which a backup was restored.
pub struct Copy {
    dir: TempDir,
    pub clock: Arc<ManualClock>,
    options: Options,
    restored: Restored,
    opened: u64,
}

impl Copy {
    pub fn of(parts: &[Part], to: RestoreTo, backend: BackendKind, at: SpaceTime) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir.path()).unwrap());
        let clock = Arc::new(ManualClock::at(at));
        let options = common::small(backend);
        let as_clock: Arc<dyn Clock> = clock.clone();
        let restored = restore_on(&disk, &as_clock, 77, parts, to, &options, &mut |_| {}).unwrap();
        Self { dir, clock, options, restored, opened: 1000 }
    }

    pub fn open(&mut self) -> Database {
        self.opened += 1;
        let disk = Arc::new(RealDisk::open(self.dir.path()).unwrap());
        Database::open_on(disk, self.clock.clone(), self.opened, self.options.clone()).unwrap()
    }
}

/// Returns the backend itself and another one.
pub fn targets(own: BackendKind) -> Vec<BackendKind> {
    let built: Vec<_> = BackendKind::ALL.into_iter().filter(|kind| kind.is_built()).collect();
    let at = built.iter().position(|kind| *kind == own).unwrap();
    vec![own, built[(at + 1) % built.len()]]
}

pub fn long(byte: u8) -> Vec<u8> {
    vec![byte; 3000]
}

/// Writes data of every kind that a space can hold.
fn furnish(node: &Node) {
    let db = node.db();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put(b"short", b"1").unwrap();
    keyspace.put(b"long", &long(1)).unwrap();
    keyspace.put(b"long", &long(2)).unwrap();
    keyspace.put(b"gone", b"x").unwrap();
    keyspace.delete(b"gone").unwrap();
    keyspace.put(b"", b"empty key").unwrap();
    keyspace.put_for(b"soon", b"ends", Duration::from_secs(60)).unwrap();
    keyspace.put_for(b"later", &long(3), Duration::from_secs(6000)).unwrap();
    let lease = db.leases().grant_as(LeaseId(9), Duration::from_secs(100)).unwrap();
    keyspace.put_with(b"leased", b"l", &PutOptions::with_lease(lease.id)).unwrap();
    db.keyspace("dropped").unwrap().put(b"a", b"b").unwrap();
    db.keyspace("dropped").unwrap().drop_all().unwrap();
    let stream = db.stream("s").unwrap();
    for number in 0..10 {
        node.pass(Duration::from_secs(1));
        stream.append(&batch(&[vec![number; 5], vec![number; 600]])).unwrap();
    }
    stream.trim(Offset(3)).unwrap();
    let group = stream.create_group("workers", GroupStart::Beginning, &GroupConfig::default()).unwrap().0;
    let request = FetchRequest { member: "m".to_owned(), max_records: 4, ..FetchRequest::default() };
    let first = group.fetch(&request).unwrap();
    group.ack(&[Settlement::one(first.attempt, Offset(3))]).unwrap();
    let second = group.fetch(&request).unwrap();
    group.nack(&[Settlement::all(second.attempt)], Redelivery::After(Duration::from_secs(5)), "not yet").unwrap();
    let mut producer = stream.producer("p").unwrap();
    producer.append(&batch(&[b"once".to_vec()])).unwrap();
    let compacted = StreamConfig {
        compaction: Some(Compaction { tombstone_grace: Duration::from_secs(1) }),
        ..StreamConfig::default()
    };
    let keyed = db.create_stream("keyed", &compacted).unwrap().0;
    for number in 0..40_u8 {
        let mut batch = RecordBatch::new();
        let record =
            Record { key: Some(&[number % 3]), headers: vec![], payload: &[number; 2000], is_tombstone: false };
        batch.push(&record).unwrap();
        keyed.append(&batch).unwrap();
    }
    for _ in 0..3 {
        db.maintain().unwrap();
    }
}

/// Describes everything that users can see as text.
pub fn visible_state(db: &Database) -> String {
    use std::fmt::Write as _;
    let mut out = String::new();
    for info in db.keyspaces() {
        let keyspace = db.find_keyspace(&info.name).unwrap();
        writeln!(out, "{info:?}").unwrap();
        for pair in keyspace.iter(ScanRange::default()) {
            let (key, entry) = pair.unwrap();
            writeln!(out, "  {key:?} = {entry:?}, {:?}", keyspace.lifetime(&key).unwrap()).unwrap();
        }
    }
    for mut info in db.streams() {
        // The bytes kept of trimmed and compacted batches differ between nodes.
        let stream = db.find_stream(&info.name).unwrap();
        let page = stream.read(info.start, 1000, 1 << 20).unwrap();
        page.for_each(&mut |offset, time, record| {
            writeln!(out, "  {offset} {time:?} {:?} {} bytes", record.key, record.payload.len()).unwrap();
            ControlFlow::Continue(())
        })
        .unwrap();
        writeln!(out, "{:?} {:?}", stream.producers().unwrap(), stream.groups().unwrap()).unwrap();
        info.start = stream.info().unwrap().start;
        writeln!(out, "{info:?}").unwrap();
    }
    writeln!(out, "{:?}", db.leases().list(None, 100).unwrap()).unwrap();
    out
}

fn a_full_snapshot_holds_everything_and_the_copy_goes_on(node: &mut Node) {
    furnish(node);
    let expected = visible_state(node.db());
    let part = take(node.db(), &full());
    let info = part.info().unwrap();
    assert_eq!((info.kind, info.node, info.since), (PartKind::Full, node.db().report().node, Lsn(0)));
    for backend in targets(node.backend()) {
        let mut copy = Copy::of(std::slice::from_ref(&part), RestoreTo::End, backend, node.clock().wall());
        assert_eq!((copy.restored.lsn, copy.restored.revision), (info.applied.lsn, info.applied.revision));
        let first = {
            let db = copy.open();
            assert_eq!(visible_state(&db), expected, "restored into {backend:?}");
            assert_eq!(db.report().backend, backend);
            assert_ne!(db.report().node, info.node, "another node");
            let stream = db.find_stream("s").unwrap();
            let at = stream.append(&batch(&[b"next".to_vec()])).unwrap().appends[0].first;
            assert_eq!(at, Offset(21), "offsets go on");
            let producer = stream.producer_info("p").unwrap().unwrap();
            let mut again = stream.producer_at("p", producer.epoch, producer.next_sequence);
            assert!(!again.append(&batch(&[b"next".to_vec()])).unwrap().duplicate);
            let mut repeated = stream.producer_at("p", producer.epoch, producer.next_sequence - 1);
            assert!(repeated.append(&batch(&[b"once".to_vec()])).unwrap().duplicate, "duplicates are known");
            let ack = db.find_keyspace("k").unwrap().put(b"more", &long(7)).unwrap();
            assert!(ack.revision.unwrap() > info.applied.revision, "revisions go on");
            let applied = db.snapshot(&full()).unwrap().info().applied;
            assert!(applied.lsn > info.applied.lsn && applied.term > info.applied.term, "{applied:?}");
            db.sync().unwrap();
            visible_state(&db)
        };
        // Open again as after a crash: nothing was flushed in between.
        let db = copy.open();
        assert_eq!(visible_state(&db), first);
        copy.clock.advance(Duration::from_secs(61));
        assert!(db.find_keyspace("k").unwrap().get(b"soon").unwrap().is_none(), "the key keeps its deadline");
        // The data in the log's first segments can be moved and freed.
        for number in 0..60 {
            db.find_keyspace("k").unwrap().put(b"filler", &long(number)).unwrap();
        }
        for _ in 0..6 {
            db.flush().unwrap();
            db.maintain().unwrap();
        }
        assert_eq!(db.find_keyspace("k").unwrap().get(b"long").unwrap().unwrap().value, long(2));
        assert_eq!(db.find_stream("s").unwrap().read(Offset(3), 1, 1000).unwrap().record_count(), 1);
        db.close().unwrap();
    }
}

/// A state after some LSN, as a model.
type Moment = (Lsn, SpaceTime, Model);

fn step(node: &Node, rng: &mut Rng, model: &mut Model) {
    let db = node.db();
    let name = "k".to_owned();
    let keyspace = db.keyspace("k").unwrap();
    let key = vec![rng.below(6) as u8];
    let len = if rng.below(3) == 0 { 700 } else { 9 };
    let value = rng.bytes(len);
    match rng.below(7) {
        0..=2 => {
            keyspace.put(&key, &value).unwrap();
            model.keys.insert((name, key), value);
        }
        3 => {
            keyspace.delete(&key).unwrap();
            model.keys.remove(&(name, key));
        }
        4 => {
            // A condition on a value that may lie in the log.
            let now = model.keys.get(&(name.clone(), key.clone())).cloned();
            let expect = now.as_deref().map_or(Expect::Absent, Expect::Value);
            keyspace.put_if(&key, &value, expect).unwrap();
            model.keys.insert((name, key), value);
        }
        5 => {
            db.stream("s").unwrap().append(&batch(std::slice::from_ref(&value))).unwrap();
            model.streams.entry("s".to_owned()).or_default().records.push(value);
        }
        _ => {
            let stream = db.stream("s").unwrap();
            let trimmed = model.streams.entry("s".to_owned()).or_default();
            trimmed.start = (trimmed.start + 1).min(trimmed.records.len() as u64);
            stream.trim(Offset(trimmed.start)).unwrap();
        }
    }
}

fn every_lsn_and_time_of_a_history_can_be_restored(node: &mut Node) {
    let mut rng = Rng(seed(11));
    let mut model = Model::default();
    let mut moments: Vec<Moment> = Vec::new();
    let mut parts = Vec::new();
    let mut last = Lsn(0);
    for number in 0..40 {
        step(node, &mut rng, &mut model);
        let applied = node.db().snapshot(&full()).unwrap().info().applied;
        moments.push((applied.lsn, applied.time, model.clone()));
        node.pass(Duration::from_millis(10));
        if number == 29 {
            parts.push(take(node.db(), &since(last)));
        }
        if number == 4 || number == 29 {
            parts.push(take(node.db(), &full()));
            last = applied.lsn;
        } else if number % 8 == 7 {
            parts.push(take(node.db(), &since(last)));
            last = applied.lsn;
            if number == 15 {
                // Node-local records in between: moves, freed segments.
                node.db().maintain().unwrap();
                node.kill();
            }
        }
    }
    parts.reverse();
    let now = node.clock().wall();
    let backends = targets(node.backend());
    for (number, (lsn, time, model)) in moments[4..].iter().enumerate() {
        let to = if number % 2 == 0 { RestoreTo::Lsn(*lsn) } else { RestoreTo::Time(*time) };
        // The memory backend is the fastest to create; every sixth copy uses another one.
        let backend = if number % 6 == 5 { backends[number / 6 % 2] } else { BackendKind::Memory };
        let mut copy = Copy::of(&parts, to, backend, now);
        check(&copy.open(), model);
    }
    let (_, _, model) = moments.last().unwrap();
    let mut copy = Copy::of(&parts, RestoreTo::End, node.backend(), now);
    assert_eq!(copy.restored.lsn, moments.last().unwrap().0);
    check(&copy.open(), model);
}

fn a_snapshot_under_writes_is_of_one_moment(node: &mut Node) {
    const KEYS: u64 = 300;
    let db = node.db();
    let keyspace = db.with_durability(Durability::Os).keyspace("k").unwrap();
    let value = |number: u64| [&number.to_le_bytes()[..], &vec![number as u8; (number % 5 * 90) as usize]].concat();
    let first = keyspace.put(&0_u64.to_be_bytes(), &value(0)).unwrap().revision.unwrap();
    let stop = AtomicBool::new(false);
    let parts = thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 1;
            while !stop.load(Ordering::Relaxed) || number < 3 * KEYS {
                let ack = keyspace.put(&(number % KEYS).to_be_bytes(), &value(number)).unwrap();
                assert_eq!(ack.revision, Some(Revision(first.0 + number)), "one command, one revision");
                if number % 200 == 0 {
                    db.flush().unwrap();
                    db.maintain().unwrap();
                }
                number += 1;
            }
        });
        let parts: Vec<_> = (0..6).map(|_| take(db, &full())).collect();
        stop.store(true, Ordering::Relaxed);
        parts
    });
    for part in parts {
        let last = part.info().unwrap().applied.revision.0 - first.0;
        let mut copy = Copy::of(&[part], RestoreTo::End, BackendKind::Memory, node.clock().wall());
        let expected: BTreeMap<_, _> = (0..=last).map(|number| (number % KEYS, number)).collect();
        let copy = copy.open().find_keyspace("k").unwrap();
        let mut found = BTreeMap::new();
        for pair in copy.iter(ScanRange::default()) {
            let (key, entry) = pair.unwrap();
            let number = entry.revision.0 - first.0;
            assert_eq!(entry.value, value(number));
            found.insert(u64::from_be_bytes(key[..].try_into().unwrap()), number);
        }
        assert_eq!(found, expected, "as of command {last}");
    }
}

fn no_segment_is_freed_under_a_snapshot(node: &mut Node) {
    let db = node.db();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..100_u8 {
        keyspace.put(&[number], &long(number)).unwrap();
    }
    let expected = visible_state(db);
    let mut snapshot = db.snapshot(&full()).unwrap();
    for number in 0..100_u8 {
        keyspace.put(&[number % 3], &long(number)).unwrap();
        keyspace.delete(&[number]).unwrap();
    }
    let rounds = |db: &Database| {
        db.flush().unwrap();
        (0..4).map(|_| db.maintain().unwrap().freed_segments).sum::<u64>()
    };
    assert_eq!(rounds(db), 0);
    let mut bytes = Vec::new();
    snapshot.write_to(&mut bytes, &mut |_| {}).unwrap();
    drop(snapshot);
    assert!(rounds(db) > 0, "freeing waited for the snapshot");
    let copy = Copy::of(&[Part::bytes("full", bytes)], RestoreTo::End, node.backend(), node.clock().wall()).open();
    assert_eq!(visible_state(&copy), expected);
}

fn a_broken_connection_goes_on_at_the_next_whole_chunk(node: &mut Node) {
    furnish(node);
    let db = node.db();
    for compression in Compression::ALL {
        for options in [full(), since(Lsn(0))] {
            let options = SnapshotOptions { compression, ..options };
            let mut snapshot = db.snapshot(&options).unwrap();
            let mut chunks = Vec::new();
            while let Some(chunk) = snapshot.next_chunk().unwrap() {
                chunks.push(chunk);
                if chunks.len() == 3 {
                    db.keyspace("k").unwrap().put(b"short", b"changed meanwhile").unwrap();
                }
                if chunks.len() % 7 == 5 {
                    let back = chunks.len() - 3;
                    snapshot.resume_at(back as u64).unwrap();
                    for chunk in &chunks[back..] {
                        assert_eq!(snapshot.next_chunk().unwrap().as_ref(), Some(chunk), "the same chunk again");
                    }
                }
            }
            assert!(chunks.len() > 10, "{}", chunks.len());
            snapshot.resume_at(chunks.len() as u64 - 1).unwrap();
            assert_eq!(snapshot.next_chunk().unwrap().as_ref(), chunks.last());
            assert!(snapshot.next_chunk().unwrap().is_none());
            let ahead = snapshot.resume_at(chunks.len() as u64 + 1);
            assert!(matches!(ahead, Err(SnapshotError::ChunkGone { .. })));
            verify(&chunks.concat()[..]).unwrap();
        }
    }
}

fn an_increment_that_the_log_has_no_longer_is_refused(node: &mut Node) {
    let db = node.db();
    let keyspace = db.keyspace("k").unwrap();
    for number in 0..200_u8 {
        keyspace.put(&[number % 3], &long(number)).unwrap();
    }
    db.flush().unwrap();
    for _ in 0..4 {
        db.maintain().unwrap();
    }
    let refused = db.snapshot(&since(Lsn(1))).unwrap_err();
    let SnapshotError::Compacted { since: from, oldest } = refused else { panic!("{refused}") };
    assert_eq!(from, Lsn(1));
    assert!(db.snapshot(&since(oldest)).is_ok(), "the log has everything from there on");
    let end = db.snapshot(&full()).unwrap().info().applied.lsn;
    assert!(matches!(db.snapshot(&since(end.next())), Err(SnapshotError::PastEnd { .. })));
    let nothing = db.snapshot(&since(end)).unwrap().into_bytes().unwrap();
    assert_eq!(verify(&nothing[..]).unwrap().totals.entries, 0);
    let open: Vec<_> = (0..8).map(|_| db.snapshot(&full()).unwrap()).collect();
    assert!(matches!(db.snapshot(&full()), Err(SnapshotError::TooMany { open: 8 })));
    drop(open);
    db.snapshot(&full()).unwrap();
}

on_every_backend!(
    a_full_snapshot_holds_everything_and_the_copy_goes_on,
    every_lsn_and_time_of_a_history_can_be_restored,
    a_snapshot_under_writes_is_of_one_moment,
    no_segment_is_freed_under_a_snapshot,
    a_broken_connection_goes_on_at_the_next_whole_chunk,
    an_increment_that_the_log_has_no_longer_is_refused,
);
