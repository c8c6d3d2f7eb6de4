//! Power loss while compaction by key rewrites a stream and its segments are freed.

use std::{collections::BTreeMap, ops::ControlFlow, sync::Arc, time::Duration};

use thalweg_disk::{SimDisk, sim::PowerLoss};
use thalweg_engine::{
    BackendKind, Database, OpenError,
    types::{
        Durability, Offset,
        command::{Compaction, StreamConfig},
        record::{Record, RecordBatch},
    },
};

use crate::common::{Rng, clock, seed, small};

const KEYS: u64 = 6;
const PAYLOAD_BYTES: usize = 1500;

fn open(disk: &SimDisk, seed: u64) -> Result<Database, OpenError> {
    Database::open_on(Arc::new(disk.clone()), clock(), seed, small(BackendKind::Memory))
}

/// Returns the key of record `number`, and its payload; `None` for a tombstone.
fn record(number: u64) -> (Vec<u8>, Option<Vec<u8>>) {
    let mut rng = Rng(number);
    let key = vec![b'a' + rng.below(KEYS) as u8];
    (key, (rng.below(6) > 0).then(|| rng.bytes(PAYLOAD_BYTES)))
}

/// Appends until the power is lost. Returns the number of records that were acknowledged at `disk`.
fn workload(disk: &SimDisk, appends: u64, seed: u64) -> u64 {
    let mut promised = 0;
    let Ok(db) = open(disk, seed) else { return 0 };
    let compaction = Some(Compaction { tombstone_grace: Duration::ZERO });
    let config = StreamConfig { compaction, ..StreamConfig::default() };
    let Ok((stream, _)) = db.create_stream("s", &config) else { return 0 };
    for number in 0..appends {
        let (key, value) = record(number);
        let (payload, is_tombstone) = (value.as_deref().unwrap_or_default(), value.is_none());
        let mut batch = RecordBatch::new();
        batch.push(&Record { key: Some(&key), payload, is_tombstone, ..Record::default() }).unwrap();
        let level = if number % 4 == 3 { Durability::Disk } else { Durability::Os };
        if let Ok(ack) = stream.with_durability(level).append(&batch)
            && ack.durability >= Durability::Disk
        {
            promised = number + 1;
        }
        if number % 9 == 8 {
            let _ = db.maintain();
        }
        if number % 23 == 22 {
            let _ = db.flush();
        }
    }
    let _ = db.close();
    promised
}

/// Checks that the stream has, for each key, the newest record of a prefix of the appends that includes all
/// acknowledged ones.
fn check(db: &Database, promised: u64, context: &str) {
    let Some(stream) = db.find_stream("s") else {
        assert_eq!(promised, 0, "{context}: the stream is gone");
        return;
    };
    let next = stream.info().unwrap().next;
    assert!(next.0 >= promised, "{context}: {promised} promised, {next} there");
    let mut expected = BTreeMap::new();
    for number in 0..next.0 {
        let (key, value) = record(number);
        expected.insert(key, value.map(|value| (number, value)));
    }
    expected.retain(|_, value| value.is_some());
    let (mut found, mut from) = (BTreeMap::new(), Offset(0));
    while from < next {
        let page = stream.read(from, 5, 10_000).unwrap_or_else(|error| panic!("{context}: {error}"));
        page.for_each(&mut |offset, _, read| {
            let (key, value) = record(offset.0);
            assert_eq!((read.key, read.is_tombstone), (Some(&*key), value.is_none()), "{context}, offset {offset}");
            assert_eq!(read.payload, value.as_deref().unwrap_or_default(), "{context}, offset {offset}");
            found.insert(key, value.map(|value| (offset.0, value)));
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(page.next > from, "{context}: no way on from {from}");
        from = page.next;
    }
    found.retain(|_, value| value.is_some());
    assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{context}");
    assert!(found == expected, "{context}: another value than the newest");
}

fn crash_at(after: u64, total: u64, appends: u64, seed: u64) {
    let disk = SimDisk::new(seed);
    disk.power_off_after(after);
    let promised = workload(&disk, appends, seed);
    let draw = seed ^ after;
    let loss = PowerLoss::random(draw, disk.unsynced_changes());
    let context = format!("seed {seed}, power off after {after} of {total}, {loss:?}");
    let crashed = disk.after_power_loss_with(loss);
    let db = open(&crashed, seed).unwrap_or_else(|error| panic!("{context}: {error}"));
    check(&db, promised, &context);
    // Compaction continues, and another power loss directly afterwards changes nothing.
    for _ in 0..4 {
        db.maintain().unwrap();
        db.flush().unwrap();
    }
    check(&db, promised, &context);
    drop(db);
    let settled = crashed.power_loss(after);
    let db = open(&settled, seed).unwrap_or_else(|error| panic!("{context}, reopened: {error}"));
    check(&db, promised, &context);
}

/// `THALWEG_TEST_CRASHES` raises the number of crashes for a soak test.
#[test]
fn the_newest_of_each_key_survives_power_loss_at_drawn_operations() {
    let crashes = std::env::var("THALWEG_TEST_CRASHES").ok().and_then(|text| text.parse().ok()).unwrap_or(60);
    let mut rng = Rng(seed(31));
    for _ in 0..crashes {
        let (appends, seed) = (150 + rng.below(250), rng.next());
        let disk = SimDisk::new(seed);
        workload(&disk, appends, seed);
        let total = disk.operations();
        crash_at(rng.below(total), total, appends, seed);
    }
}

/// Shows that the crashes above happen during compaction and freeing.
#[test]
fn the_workload_compacts_and_frees() {
    let seed = seed(32);
    let disk = SimDisk::new(seed);
    workload(&disk, 400, seed);
    let db = open(&disk.kill_process(), seed).unwrap();
    for _ in 0..6 {
        db.maintain().unwrap();
        db.flush().unwrap();
    }
    let bytes = db.find_stream("s").unwrap().info().unwrap().bytes;
    assert!(bytes < 400 * PAYLOAD_BYTES as u64 / 3, "{bytes} bytes are left");
    assert!(db.stats().log.segments < 8, "{} segments", db.stats().log.segments);
    check(&db, 400, "whole");
}
