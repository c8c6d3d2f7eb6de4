//! The table of truncations: complete at every open, however the log was closed, and without freed segments.

use std::{io::IoSlice, sync::Arc};

use thalweg_disk::{Disk, SimDisk};
use thalweg_log::{Draft, Log, LogOptions, OpenError, Purpose, RecordKind, Repair, Truncation, offline};
use thalweg_types::{Durability, Index, Lsn, SpaceId, SpaceTime, Term};

use crate::common::*;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, ..small_options() }
}

fn put(log: &Log, space: u32, kind: RecordKind, index: u64, len: usize) -> Lsn {
    let payload = vec![7; len];
    let payload = [IoSlice::new(&payload)];
    let (space, time) = (SpaceId(space), SpaceTime(1));
    let draft = Draft { space, kind, term: Term(1), index: Index(index), time, payload: &payload };
    log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first
}

fn truncate(log: &Log, space: u32, index: u64) -> Truncation {
    let lsn = put(log, space, RecordKind::Truncate, index, 0);
    Truncation { space: SpaceId(space), lsn, index: Index(index) }
}

/// Appends until the log continues in the next segment.
fn roll(log: &Log) {
    let before = log.segments().len();
    while log.segments().len() == before {
        put(log, 0, RecordKind::Entry, 1, 1000);
    }
}

/// Truncations in the first, third and active of four segments.
fn filled(disk: &Arc<dyn Disk>) -> (Log, Vec<Truncation>) {
    let log = open_still(disk, options()).unwrap().0;
    assert_eq!(*log.truncations(), []);
    let first = truncate(&log, 0, 5);
    roll(&log);
    roll(&log);
    let third = [truncate(&log, 1, 2), truncate(&log, 0, 9)];
    roll(&log);
    let last = truncate(&log, 0, 11);
    let all = vec![first, third[0], third[1], last];
    assert_eq!(*log.truncations(), all);
    (log, all)
}

#[test]
fn every_way_of_opening_finds_all_truncations() {
    for seed in 0..8 {
        let sim = SimDisk::new(seed);
        let (log, all) = filled(&(Arc::new(sim.clone()) as Arc<dyn Disk>));
        let sim = match seed {
            0 => {
                log.close().unwrap();
                drop(log);
                sim
            }
            1 => {
                drop(log);
                sim.kill_process()
            }
            _ => {
                drop(log);
                sim.power_loss(seed)
            }
        };
        let disk: Arc<dyn Disk> = Arc::new(sim.clone());
        assert_eq!(offline::verify(&*disk, "log").unwrap().verdict, offline::Verdict::Good);
        for _ in 0..2 {
            let log = open_still(&disk, options()).unwrap().0;
            assert_eq!(*log.truncations(), all);
        }
        let repairing = LogOptions { repair: Repair::CutAtCorruption, ..options() };
        assert_eq!(*open_still(&disk, repairing).unwrap().0.truncations(), all);
    }
}

#[test]
fn a_segment_without_its_footer_is_gone_through() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, all) = filled(&disk);
    log.close().unwrap();
    let first = log.segments()[0].file.clone();
    drop(log);
    disk.open(&first).unwrap().write_all_at(&[0; 64], 16 * 1024 - 64).unwrap();
    assert_eq!(*open_still(&disk, options()).unwrap().0.truncations(), all);
}

#[test]
fn a_damaged_segment_with_truncations_is_not_opened_as_if_it_had_none() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, all) = filled(&disk);
    log.close().unwrap();
    let segments = log.segments();
    drop(log);
    let damage = |file: &str| disk.open(file).unwrap().write_all_at(&[0xff; 8], 8192 + 60).unwrap();
    // Open does not read a segment without truncations.
    damage(&segments[1].file);
    assert_eq!(*open_still(&disk, options()).unwrap().0.truncations(), all);
    damage(&segments[2].file);
    let refused = open_still(&disk, options()).err();
    assert!(
        matches!(&refused, Some(OpenError::Corrupt(corruption)) if corruption.file == segments[2].file),
        "{refused:?}"
    );
}

#[test]
fn a_truncation_goes_with_its_segment() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, all) = filled(&disk);
    log.release(log.end());
    let segments = log.segments();
    log.free(segments[0].generation).unwrap();
    assert_eq!(*log.truncations(), all[1..]);
    // A later truncation replaces the earlier ones of its space that it covers.
    let covering = truncate(&log, 0, 3);
    assert_eq!(*log.truncations(), [all[1], covering]);
    drop(log);
    let log = open_still(&disk, options()).unwrap().0;
    assert!(log.truncations().contains(&covering) && log.truncations().len() <= 3, "a freed segment may exist again");
}
