//! Consumer groups with more attempts than one command removes: what members see after a trim, and maintenance.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use thalweg_disk::SimDisk;
use thalweg_engine::{
    BackendKind, Database, FetchRequest, Group, GroupStart,
    types::{Durability, Offset, command::groups::GroupConfig},
};

use crate::common::{batch, clock, small};

/// Fetches up to `max` records, and returns their offsets.
fn fetch(group: &Group, max: u32) -> Vec<u64> {
    let request = FetchRequest { member: "m".to_owned(), max_records: max, ..FetchRequest::default() };
    let mut offsets = Vec::new();
    let delivery = group.fetch(&request).unwrap();
    delivery
        .for_each(&mut |message| {
            offsets.push(message.offset.0);
            ControlFlow::Continue(())
        })
        .unwrap();
    offsets
}

/// Returns a group that holds 10,500 records, each with an attempt of its own, all but 100 of which are trimmed then.
fn trimmed(db: &Database) -> Group {
    let stream = db.stream("jobs").unwrap();
    (0..21).for_each(|_| drop(stream.append(&batch(&vec![b"job".to_vec(); 500])).unwrap()));
    let config = GroupConfig { max_pending: 20_000, ..GroupConfig::default() };
    let group = stream.create_group("workers", GroupStart::Beginning, &config).unwrap().0;
    (0..10_500).for_each(|offset| assert_eq!(fetch(&group, 1), [offset]));
    stream.trim(Offset(10_400)).unwrap();
    let shown = group.info().unwrap();
    assert_eq!((shown.pending, shown.floor), (500, Offset(10_400)), "10,000 are removed at once");
    group
}

#[test]
fn members_get_no_trimmed_record_and_maintenance_removes_what_is_left() {
    let later = GroupConfig::default().ack_deadline + Duration::from_secs(1);
    for is_maintained in [true, false] {
        let (disk, clock) = (SimDisk::new(1), clock());
        let open = |disk: &SimDisk| {
            let db = Database::open_on(Arc::new(disk.clone()), clock.clone(), 5, small(BackendKind::Memory)).unwrap();
            db.with_durability(Durability::Os)
        };
        let db = open(&disk);
        let group = trimmed(&db);
        if is_maintained {
            db.maintain().unwrap();
            assert_eq!(group.info().unwrap().pending, 100);
        }
        clock.advance(later);
        assert_eq!(fetch(&group, 50), (10_400..10_450).collect::<Vec<_>>());
        assert_eq!(group.info().unwrap().pending, 100, "the fetch has acked what is gone");
        drop((db, group));
        let db = open(&disk.kill_process());
        let group = db.find_stream("jobs").unwrap().find_group("workers").unwrap().unwrap();
        assert_eq!(group.info().unwrap().pending, 100);
    }
}
