//! Moves of dead letters by maintenance: a stream that rejects them, and the records that one commit moves.

use thalweg_disk::SimDisk;
use thalweg_engine::{
    Database, FetchRequest, Group, GroupStart, Stream, WriteError,
    types::{
        Durability, Offset,
        command::{
            StreamConfig,
            groups::{GroupConfig, OffsetRun, Redelivery, Settlement},
        },
    },
};

use crate::common::{batch, simulated};

fn database() -> (Database, Stream) {
    let db = simulated(&SimDisk::new(1), 5).with_durability(Durability::Os);
    let stream = db.stream("jobs").unwrap();
    let payloads: Vec<_> = (0..12_u8).map(|number| vec![number; 100]).collect();
    stream.append(&batch(&payloads)).unwrap();
    (db, stream)
}

fn group(stream: &Stream, name: &str, letters: &str, max_pending: u32) -> Group {
    let config = GroupConfig { dead_letters: Some(letters.to_owned()), max_pending, ..GroupConfig::default() };
    stream.create_group(name, GroupStart::Beginning, &config).unwrap().0
}

fn fetch(group: &Group) -> (u64, Settlement) {
    let delivery = group.fetch(&FetchRequest::default()).unwrap();
    (delivery.record_count(), Settlement::all(delivery.attempt))
}

#[test]
fn a_stream_that_rejects_dead_letters_stops_its_own_group_only() {
    let (db, stream) = database();
    let strict = StreamConfig { max_record_bytes: Some(1), ..StreamConfig::default() };
    let rejecting = db.create_stream("strict", &strict).unwrap().0;
    let groups = [("first", "strict"), ("second", "dead")].map(|(name, letters)| {
        let group = group(&stream, name, letters, 2);
        let (records, all) = fetch(&group);
        assert_eq!(records, 2);
        group.nack(&[all], Redelivery::Never, "no").unwrap();
        group
    });
    assert!(matches!(db.maintain(), Err(WriteError::OverStreamLimit { .. })));
    assert_eq!(groups.each_ref().map(|group| group.info().unwrap().dying), [2, 0]);
    assert_eq!(groups.each_ref().map(|group| fetch(group).0), [0, 2], "no room until the letters are moved");
    rejecting.configure(&StreamConfig::default()).unwrap();
    assert_eq!(db.maintain().unwrap().dead_letters, 2);
    assert_eq!(groups.each_ref().map(|group| group.info().unwrap().dying), [0, 0]);
    assert_eq!(fetch(&groups[0]).0, 2);
}

#[test]
fn scattered_dead_letters_go_together() {
    let (db, stream) = database();
    let group = group(&stream, "workers", "dead", 100);
    let (records, all) = fetch(&group);
    assert_eq!(records, 12);
    let odd = (0..6).map(|number| OffsetRun::one(Offset(2 * number + 1))).collect();
    group.nack(&[Settlement { runs: odd, ..all }], Redelivery::Never, "no").unwrap();
    assert_eq!(db.maintain().unwrap().dead_letters, 6);
    let page = db.find_stream("dead").unwrap().read(Offset(0), 100, u64::MAX).unwrap();
    assert_eq!((page.record_count(), page.batches.len()), (6, 1), "in one commit");
}

#[test]
fn a_stream_with_small_batches_gets_dead_letters_one_by_one() {
    let (db, stream) = database();
    let small = StreamConfig { max_batch_bytes: Some(1_000), ..StreamConfig::default() };
    db.create_stream("dead", &small).unwrap();
    let group = group(&stream, "workers", "dead", 100);
    let (_, all) = fetch(&group);
    group.nack(&[all], Redelivery::Never, "no").unwrap();
    assert_eq!(db.maintain().unwrap().dead_letters, 12);
}
