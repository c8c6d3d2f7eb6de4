//! Freeing, recycling, holes, the history floor, and a write path without directory changes.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};
use thalweg_log::{AppendError, Log, LogOptions, ReadError, crc32c};
use thalweg_types::{BlobRef, Durability, Generation, Lsn, ManualClock, SpaceTime};

use crate::common::*;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, history_bytes: 0, ..small_options() }
}

fn filled(disk: &Arc<dyn Disk>, count: u64) -> (Log, Vec<Vec<u8>>) {
    let (log, _) = open_still(disk, options()).unwrap();
    let payloads: Vec<_> = (0..count).map(|number| payload(number, 3000)).collect();
    for payload in &payloads {
        append(&log, std::slice::from_ref(payload), Durability::Os).unwrap();
    }
    (log, payloads)
}

#[test]
fn only_sealed_and_released_segments_can_be_freed() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(1));
    let (log, _) = filled(&disk, 10);
    let segments = log.segments();
    assert!(segments.len() > 4);
    assert!(log.freeable(SpaceTime::default()).is_empty(), "no record is released");
    assert!(matches!(log.free(segments[0].generation), Err(AppendError::StillNeeded { .. })));
    log.release(segments[1].next);
    let freeable = log.freeable(SpaceTime(u64::MAX));
    assert_eq!(freeable, segments[..2]);
    log.release(Lsn(u64::MAX));
    let active = &segments[segments.len() - 1];
    assert!(active.active);
    assert!(matches!(log.free(active.generation), Err(AppendError::StillNeeded { .. })));
    assert!(matches!(log.free(Generation(77)), Err(AppendError::NoSuchSegment { .. })));
}

#[test]
fn a_hole_is_kept_over_a_reopen_and_blobs_below_it_stay_readable() {
    let sim = SimDisk::new(2);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, payloads) = filled(&disk, 12);
    let segments = log.segments();
    let first: Vec<_> = log.segment_records(segments[0].generation).unwrap().collect::<Result<_, _>>().unwrap();
    let at = first[0].payload_at;
    let blob = BlobRef { generation: at.generation, offset: at.offset, len: 3000, crc: crc32c(&payloads[0]) };
    let held = log.records_from(Lsn(0)).unwrap();
    log.release(log.end());
    log.free(segments[2].generation).unwrap();
    assert!(log.durable() > segments[2].next, "the next segment must be durable first");
    let gone = segments[2].generation;
    assert!(matches!(log.segment_records(gone), Err(ReadError::Gone { generation }) if generation == gone));
    assert_eq!(log.start(), segments[3].first);
    assert!(matches!(log.records_from(Lsn(0)), Err(ReadError::Compacted { oldest }) if oldest == segments[3].first));
    let read: Vec<_> = held.collect::<Result<_, _>>().unwrap();
    assert_records(&read, 0, &payloads);
    // The segment is recycled after the reader has dropped it.
    while log.stats().recycled == 0 {
        pause();
    }
    drop(log);
    for disk in [sim.kill_process(), sim.power_loss(1), sim.power_loss(2), sim.power_loss(3)] {
        let disk: Arc<dyn Disk> = Arc::new(disk);
        let (log, recovery) = open_still(&disk, options()).unwrap();
        assert!(recovery.end >= segments[3].next.min(recovery.end) && recovery.repaired.is_none());
        assert_eq!(log.start(), segments[3].first);
        let start = log.start().get() as usize;
        assert_records(&read_all(&log), start as u64, &payloads[start..log.end().get() as usize]);
        assert_eq!(log.read_blob(&blob).unwrap(), payloads[0]);
        assert!(matches!(log.segment_records(gone), Err(ReadError::Gone { .. })));
    }
}

#[test]
fn a_segment_is_recycled_only_when_no_reader_holds_it() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(3));
    let (log, payloads) = filled(&disk, 12);
    let segments = log.segments();
    let mut reader = log.segment_records(segments[0].generation).unwrap();
    log.release(log.end());
    for info in &segments[..3] {
        log.free(info.generation).unwrap();
    }
    while log.stats().recycled < 2 {
        pause();
    }
    // New writes use all spares; the held segment is not one of them.
    for number in 12..24 {
        append(&log, &[payload(number, 3000)], Durability::Disk).unwrap();
    }
    assert!(log.segments().iter().all(|info| info.file != segments[0].file));
    let before = log.stats().recycled;
    let held: Vec<_> = reader.by_ref().collect::<Result<_, _>>().unwrap();
    assert_records(&held, 0, &payloads[..segments[0].next.get() as usize]);
    drop(reader);
    // The segment is recycled, or removed if there are enough spares.
    while log.stats().recycled == before && !gone(&*disk, &segments[0].file) {
        pause();
    }
}

/// Frees all possible segments, and waits until each of their files is ready for writing or removed.
fn free_all(log: &Log, disk: &dyn Disk) -> (usize, usize) {
    log.release(log.end());
    let freed = log.freeable(SpaceTime(u64::MAX));
    let before = log.stats().recycled;
    for info in &freed {
        log.free(info.generation).unwrap();
    }
    loop {
        let recycled = (log.stats().recycled - before) as usize;
        let removed = freed.iter().filter(|info| gone(disk, &info.file)).count();
        if recycled + removed == freed.len() {
            return (recycled, removed);
        }
        pause();
    }
}

#[test]
fn as_many_segments_are_recycled_as_were_used_lately() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(7));
    let (log, _) = filled(&disk, 40); // two records in each segment
    assert_eq!(free_all(&log, &*disk), (19, 0));
    let before = log.stats();
    assert!(before.spare_segments >= 19);
    for number in 40..70 {
        append(&log, &[payload(number, 3000)], Durability::Os).unwrap();
    }
    let after = log.stats();
    assert_eq!(
        (after.created, after.zeroed_bytes),
        (before.created, before.zeroed_bytes),
        "15 spares were taken, so no segment may be created"
    );
}

#[test]
fn no_more_than_64_are_kept_beyond_the_spares() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(8));
    let (log, _) = filled(&disk, 200);
    let (recycled, removed) = free_all(&log, &*disk);
    let spares = log.stats().spare_segments;
    assert!(recycled <= 66 && removed >= 99 - 66, "{recycled} recycled, {removed} removed");
    assert!((60..=66).contains(&spares), "{spares}");
}

fn gone(disk: &dyn Disk, file: &str) -> bool {
    disk.open(file).is_err()
}

#[test]
fn the_history_floor_keeps_what_is_both_near_and_young() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(4));
    let age = Duration::from_micros(5);
    let options = LogOptions { history_bytes: 14_000, history_age: age, ..options() };
    let (log, _) = open_still(&disk, options).unwrap();
    for number in 0..12 {
        append(&log, &[payload(number, 3000)], Durability::Os).unwrap();
    }
    log.release(log.end());
    let segments = log.segments();
    assert_eq!(segments.len(), 6); // two records each; times are 1000 + LSN
    let sealed = segments.len() - 1;
    let freeable = |now| log.freeable(SpaceTime(now)).len();
    assert_eq!(freeable(2000), sealed, "all segments are old");
    // All segments are young: those within 14,000 bytes of the end are kept.
    let mut after = 0;
    let near = segments.iter().rev().filter(|info| {
        let kept = after < 14_000;
        after += info.bytes;
        kept
    });
    let kept_by_bytes = near.count() - 1;
    assert_eq!(kept_by_bytes, 2);
    assert_eq!(freeable(1000), sealed - kept_by_bytes);
    // 1013 - 5 = 1008: the segment of records 8 and 9 is young; the segment of records 6 and 7 is not.
    assert_eq!(freeable(1013), sealed - 1);
    // Another node keeps old segments, but only those within 14,000 bytes of the end.
    log.keep_from(Some(Lsn(7)));
    assert_eq!(freeable(2000), sealed - 2);
    let kept: Vec<_> = log.kept_for_history(SpaceTime(2000)).iter().map(|info| info.first).collect();
    assert_eq!(kept, [Lsn(6), Lsn(8)], "a full disk may free them");
    log.keep_from(Some(Lsn(8)));
    assert_eq!(freeable(2000), sealed - 1);
    log.keep_from(Some(Lsn::ZERO));
    assert_eq!(freeable(2000), sealed - kept_by_bytes);
    log.keep_from(None);
    assert_eq!(freeable(2000), sealed);
}

#[test]
fn lsns_never_go_back_when_all_but_the_active_segment_are_gone() {
    let sim = SimDisk::new(5);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, payloads) = filled(&disk, 11);
    log.release(log.end());
    for info in log.freeable(SpaceTime(u64::MAX)) {
        log.free(info.generation).unwrap();
    }
    let start = log.start();
    assert!(start > Lsn(8));
    drop(log);
    for seed in 0..30 {
        let disk: Arc<dyn Disk> = Arc::new(sim.power_loss(seed));
        let (log, _) = open_still(&disk, options()).unwrap();
        assert_eq!(log.end(), Lsn(11), "freeing must make the end durable");
        let start = log.start().get() as usize;
        assert_records(&read_all(&log), start as u64, &payloads[start..]);
    }
}

/// Changes of directories and lengths, each with the name of the thread that made it.
type Changes = Arc<Mutex<Vec<(String, &'static str)>>>;

/// A disk that records which threads change directories or lengths.
#[derive(Debug)]
struct Watched {
    disk: SimDisk,
    changes: Changes,
    /// Time that each growth of a file takes.
    growth_takes: Duration,
    can_reserve: bool,
}

impl Watched {
    fn note(&self, what: &'static str) {
        let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
        self.changes.lock().unwrap().push((thread, what));
    }

    fn watched(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        let (changes, growth_takes) = (Arc::clone(&self.changes), self.growth_takes);
        Arc::new(WatchedFile { file, changes, growth_takes, can_reserve: self.can_reserve })
    }
}

impl Disk for Watched {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.note("open");
        Ok(self.watched(self.disk.open(path)?))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.note("create");
        Ok(self.watched(self.disk.create(path)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.note("rename");
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.note("remove");
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.note("sync_dir");
        self.disk.sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }
    fn os_path(&self) -> Option<&std::path::Path> {
        None
    }
}

#[derive(Debug)]
struct WatchedFile {
    file: Arc<dyn File>,
    changes: Changes,
    growth_takes: Duration,
    can_reserve: bool,
}

impl WatchedFile {
    fn note_growth(&self, end: u64) {
        if end > self.file.len().unwrap() {
            let thread = std::thread::current().name().unwrap_or("unnamed").to_owned();
            self.changes.lock().unwrap().push((thread, "extend"));
            std::thread::sleep(self.growth_takes);
        }
    }
}

impl File for WatchedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.note_growth(offset + data.len() as u64);
        self.file.write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.note_growth(offset + parts.iter().map(|part| part.len() as u64).sum::<u64>());
        self.file.write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.note_growth(u64::MAX);
        self.file.set_len(len)
    }
    fn reserve(&self, len: u64) -> io::Result<bool> {
        Ok(self.can_reserve && self.file.reserve(len)?)
    }
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        self.note_growth(len);
        self.file.map(len)
    }
}

#[test]
fn the_write_path_creates_renames_and_extends_nothing() {
    let changes = Changes::default();
    let sim = SimDisk::new(6);
    let (watched, growth_takes) = (Arc::clone(&changes), Duration::ZERO);
    let disk: Arc<dyn Disk> =
        Arc::new(Watched { disk: sim.clone(), changes: watched, growth_takes, can_reserve: false });
    let options = LogOptions { segment_bytes: 256 * 1024, ..options() };
    let (log, _) = open_still(&disk, options).unwrap();
    changes.lock().unwrap().clear();
    let rolls = 8;
    let mut number = 0;
    while log.segments().len() < rolls {
        let len = [10, 5000, 40_000][number as usize % 3]; // through the mapping and by system calls
        append(&log, &[payload(number, len)], Durability::ALL[number as usize % 5]).unwrap();
        number += 1;
    }
    log.release(log.end());
    for info in log.freeable(SpaceTime(u64::MAX)) {
        log.free(info.generation).unwrap();
    }
    log.close().unwrap();
    let changes = changes.lock().unwrap();
    let preparing = changes.iter().filter(|(thread, _)| thread == "log-prepare").count();
    assert!(preparing > 3 * rolls, "the changes of the preparer thread must be recorded");
    let others: Vec<_> = changes.iter().filter(|(thread, _)| thread != "log-prepare").collect();
    assert!(others.is_empty(), "{others:?}");
    assert!(sim.counts().extensions > 0);
}

/// A log to which nothing is appended gives its prepared segments back, and prepares others before it needs them.
#[test]
fn a_log_at_rest_keeps_no_prepared_segments() {
    let sim = SimDisk::new(9);
    let (disk, clock): (Arc<dyn Disk>, _) = (Arc::new(sim.clone()), Arc::new(ManualClock::default()));
    let (log, _) = Log::open(Arc::clone(&disk), "log", small_options(), clock.clone(), 7).unwrap();
    let spares = || log.stats().spare_segments;
    let until_spares = |wanted| {
        while spares() != wanted {
            pause();
        }
    };
    let mut payloads = Vec::new();
    let mut add = |len| {
        payloads.push(payload(payloads.len() as u64, len));
        append(&log, &payloads[payloads.len() - 1..], Durability::Os).unwrap();
    };
    add(100);
    until_spares(2);
    log.rest(2 * u64::from(small_options().segment_bytes));
    assert_eq!(spares(), 2, "they are not worth a rest");
    log.rest(2 * u64::from(small_options().segment_bytes) - 1);
    until_spares(0);
    add(100);
    log.rest(0);
    assert_eq!(spares(), 0, "so few bytes need no segment");
    add(5000);
    until_spares(2);
    log.rest(0);
    assert_eq!(spares(), 2, "so few bytes do not pay for new segments");
    clock.advance(Duration::from_secs(600));
    log.rest(0);
    until_spares(0);
    // A batch that does not fit into the rest of the segment waits for another one.
    add(log.max_batch_bytes() as usize - 200);
    until_spares(2);
    clock.advance(Duration::from_secs(600));
    log.rest(0);
    assert_eq!(spares(), 2, "the next append needs a segment");
    add(1000);
    log.rest(0);
    until_spares(0);
    // The disk becomes nearly full, so deletes may soon need a segment.
    sim.set_capacity(1 << 30);
    sim.set_capacity((1 << 30) - disk.free_bytes().unwrap() + (320 << 10));
    log.rest(0);
    until_spares(2);
    assert_records(&read_all(&log), 0, &payloads);
    drop(log);
    let (log, _) = open_still(&disk, small_options()).unwrap();
    assert_records(&read_all(&log), 0, &payloads);
}

/// The disk is slow, so that an append waits for its segment while the log's user goes on calling `rest`.
#[test]
fn a_segment_that_an_append_waits_for_is_not_given_back() {
    let (changes, growth_takes) = (Changes::default(), Duration::from_millis(30));
    let disk = Watched { disk: SimDisk::new(11), changes, growth_takes, can_reserve: false };
    let clock = Arc::new(ManualClock::default());
    let (log, _) = Log::open(Arc::new(disk), "log", small_options(), clock.clone(), 7).unwrap();
    let ready = |wanted| {
        while log.stats().spare_segments != wanted {
            pause();
        }
    };
    let len = log.max_batch_bytes() as usize - 200;
    for (number, is_early) in [(1, true), (2, false), (3, true)] {
        append(&log, &[payload(0, 10)], Durability::Os).unwrap();
        ready(2);
        log.rest(0);
        ready(0);
        std::thread::scope(|scope| {
            let appending = scope.spawn(|| append(&log, &[payload(number, len)], Durability::Os));
            while !appending.is_finished() {
                if !is_early {
                    // A log may rest again after this time, whatever it has written.
                    clock.advance(Duration::from_secs(600));
                }
                log.rest(0);
                pause();
            }
            appending.join().unwrap().unwrap();
        });
        // The next append needs another segment, in which the log may rest.
        append(&log, &[payload(number, len / 2)], Durability::Os).unwrap();
    }
}

/// Zeroes for a segment take 400 ms on this disk, so appends come to wait. The preparer then reserves space.
#[test]
fn a_writer_that_waits_gets_a_segment_without_zeroes() {
    let (sim, options) = (SimDisk::new(12), LogOptions { segment_bytes: 256 * 1024, ..options() });
    for can_reserve in [false, true] {
        let (changes, growth_takes) = (Changes::default(), Duration::from_millis(100));
        let disk: Arc<dyn Disk> = Arc::new(Watched { disk: sim.clone(), changes, growth_takes, can_reserve });
        let (log, _) = open_still(&disk, options.clone()).unwrap();
        let (first, count) = (log.end().get(), 30);
        let payloads: Vec<_> = (0..count).map(|number| payload(number, 40_000)).collect();
        for payload in &payloads {
            append(&log, std::slice::from_ref(payload), Durability::Os).unwrap();
        }
        let stats = log.stats();
        assert!(stats.segment_waits > 0, "{stats:?}");
        assert_eq!(stats.reserved_bytes > 0, can_reserve, "{stats:?}");
        let records: Vec<_> = log.records_from(Lsn(first)).unwrap().collect::<Result<_, _>>().unwrap();
        assert_records(&records, first, &payloads);
        log.close().unwrap();
        drop(log);
        let (log, _) = open_still(&disk, options.clone()).unwrap();
        assert_eq!(log.end().get(), first + count);
        log.close().unwrap();
    }
}

/// If no thread prepares segments, each append ends the rest before it could have to wait. That costs zeroes, as each
/// rest does.
#[test]
fn a_stepped_log_rests_only_between_appends() {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(10));
    let clock = Arc::new(ManualClock::default());
    let (log, _) = Log::open_stepped(Arc::clone(&disk), "log", small_options(), clock, 7).unwrap();
    let mut rested_at = Vec::new();
    for number in 0..40 {
        append(&log, &[payload(number, 5000)], Durability::Os).unwrap();
        log.rest(0);
        log.step();
        if log.stats().spare_segments == 0 {
            rested_at.push(log.stats().bytes);
        }
    }
    assert_eq!(read_all(&log).len(), 40);
    assert!(rested_at.len() >= 3, "{rested_at:?}");
    let written = rested_at.windows(2).map(|rests| rests[1] - rests[0]);
    assert!(written.min().unwrap() >= small_options().segment_bytes.into(), "{rested_at:?}");
}
