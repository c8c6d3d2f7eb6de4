//! Wall clocks that are wrong at an open, or that go back between two opens.

use std::{sync::Arc, time::Duration};

use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_engine::{
    BackendKind, Database, OpenError, Options, PutOptions,
    snapshot::{Part, RestoreTo, SnapshotOptions, restore_on},
    types::{Action, Classified, Clock, ManualClock, SpaceTime},
};

use crate::common::small;

const START: SpaceTime = SpaceTime(1_700_000_000_000_000);
const DAY: Duration = Duration::from_secs(86_400);

fn open_at(disk: &SimDisk, wall: SpaceTime, options: Options) -> Result<(Database, Arc<ManualClock>), OpenError> {
    let clock = Arc::new(ManualClock::at(wall));
    Ok((Database::open_on(Arc::new(disk.clone()), clock.clone(), 1, options)?, clock))
}

fn options() -> Options {
    small(BackendKind::Memory)
}

#[test]
fn a_wall_clock_far_ahead_is_refused_and_shifts_nothing() {
    let disk = SimDisk::new(1);
    let (db, _) = open_at(&disk, START, options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put_with(b"session", b"1", &PutOptions::lasting(DAY * 7)).unwrap();
    db.close().unwrap();
    drop((keyspace, db));
    let wrong = START.plus(DAY * 3650);
    let error = open_at(&disk, wrong, options()).map(drop).expect_err("the open is refused");
    assert!(matches!(&error, OpenError::ClockJump { .. }), "{error}");
    assert_eq!((error.code(), error.action()), ("clock_jump", Action::Fix));
    let said = error.to_string();
    assert!(
        said.contains("3650d ahead") && said.contains("MAX_CLOCK_JUMP=3651d") && said.contains("correct"),
        "{said}"
    );
    // With the clock corrected, nothing has happened.
    let (db, _) = open_at(&disk, START.plus(DAY / 2), options()).unwrap();
    assert_eq!(db.find_keyspace("k").unwrap().get(b"session").unwrap().unwrap().value, b"1"[..]);
    assert!(db.stats().space_time < START.plus(DAY));
    drop(db);
    // A node that was really off for so long is accepted explicitly.
    let accepted = Options { max_clock_jump: DAY * 3651, ..options() };
    let (db, _) = open_at(&disk, wrong, accepted).unwrap();
    assert_eq!(db.find_keyspace("k").unwrap().get(b"session").unwrap(), None, "its time has passed");
    drop(db);
    open_at(&disk, wrong.plus(DAY / 2), options()).unwrap();
}

#[test]
fn a_node_that_was_idle_but_in_use_is_not_refused() {
    let disk = SimDisk::new(1);
    let (db, clock) = open_at(&disk, START, options()).unwrap();
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
    clock.advance(DAY * 10);
    db.close().unwrap();
    drop(db);
    let (db, clock) = open_at(&disk, START.plus(DAY * 10), options()).unwrap();
    clock.advance(DAY * 10);
    // About half an hour of rounds.
    (0..1800).for_each(|_| _ = db.maintain().unwrap());
    drop(db);
    open_at(&disk.kill_process(), START.plus(DAY * 20), options()).unwrap();
}

#[test]
fn without_the_time_of_the_last_use_that_of_the_last_entry_counts() {
    let disk = SimDisk::new(1);
    let (db, _) = open_at(&disk, START, options()).unwrap();
    db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
    drop(db);
    disk.remove("CLOCK").unwrap();
    let error = open_at(&disk, START.plus(DAY * 400), options()).map(drop).expect_err("the open is refused");
    assert!(matches!(&error, OpenError::ClockJump { .. }), "{error}");
    open_at(&disk, START.plus(DAY / 2), options()).unwrap();
}

#[test]
fn an_old_backup_opens_after_its_restore_and_a_wall_clock_far_ahead_is_refused() {
    let (disk, restored) = (SimDisk::new(1), SimDisk::new(2));
    let (db, _) = open_at(&disk, START, options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put_with(b"session", b"1", &PutOptions::lasting(DAY * 90)).unwrap();
    let backup = db.snapshot(&SnapshotOptions::default()).unwrap().into_bytes().unwrap();
    let month_later = START.plus(DAY * 30);
    let (target, clock): (Arc<dyn Disk>, Arc<dyn Clock>) =
        (Arc::new(restored.clone()), Arc::new(ManualClock::at(month_later)));
    restore_on(&target, &clock, 3, &[Part::bytes("full", backup)], RestoreTo::End, &options(), &mut |_| ()).unwrap();
    let error = open_at(&restored, START.plus(DAY * 3650), options()).map(drop).expect_err("the open is refused");
    assert!(matches!(&error, OpenError::ClockJump { .. }), "{error}");
    let (db, _) = open_at(&restored, month_later.plus(DAY / 2), options()).unwrap();
    assert!(db.find_keyspace("k").unwrap().get(b"session").unwrap().is_some());
}

#[test]
fn what_a_read_has_hidden_stays_hidden_after_a_kill_and_a_clock_that_went_back() {
    let disk = SimDisk::new(1);
    let (db, clock) = open_at(&disk, START, options()).unwrap();
    let keyspace = db.keyspace("k").unwrap();
    keyspace.put_with(b"ended", b"1", &PutOptions::lasting(Duration::from_secs(10))).unwrap();
    keyspace.put_with(b"alive", b"1", &PutOptions::lasting(Duration::from_secs(60))).unwrap();
    clock.advance(Duration::from_secs(11));
    assert_eq!(keyspace.get(b"ended").unwrap(), None);
    let killed = disk.kill_process();
    let (db, clock) = open_at(&killed, START, options()).unwrap();
    let keyspace = db.find_keyspace("k").unwrap();
    assert_eq!(keyspace.get(b"ended").unwrap(), None, "a reader was told that it has ended");
    assert!(keyspace.get(b"alive").unwrap().is_some(), "the time has not jumped ahead");
    let jumped = db.stats().space_time.0 - START.plus(Duration::from_secs(11)).0;
    assert!(jumped <= 50_000, "the time is {jumped} µs ahead of the last read");
    clock.advance(Duration::from_secs(50));
    assert_eq!(keyspace.get(b"alive").unwrap(), None);
}

#[test]
fn a_directory_opens_although_the_time_of_its_last_use_finds_no_room() {
    for errno in [Errno::NoSpace, Errno::Quota] {
        let disk = SimDisk::new(1);
        let (db, _) = open_at(&disk, START, options()).unwrap();
        db.keyspace("k").unwrap().put(b"a", b"1").unwrap();
        db.close().unwrap();
        drop(db);
        disk.fail(Fault::new(Operation::Write, 1, errno).on_path("CLOCK").for_good());
        let (db, _) = open_at(&disk, START, options()).unwrap_or_else(|error| panic!("{errno:?}: {error}"));
        assert!(db.find_keyspace("k").unwrap().get(b"a").unwrap().is_some(), "{errno:?}");
    }
}
