//! Failing calls and a full disk: the log stops, reports the reason, and keeps its guarantees.

use std::{future::Future, sync::Arc, task::Context, time::Duration};

use thalweg_disk::{
    Disk, SimDisk,
    sim::{Errno, Event, Fault, Operation, PowerLoss},
};
use thalweg_log::{
    AppendError, Log, LogOptions, OpenError, Purpose,
    format::{DATA_START, MAX_NUMBER},
};
use thalweg_types::{Action, Classified, Durability, Lsn, ManualClock, SpaceTime};

use crate::common::*;

fn as_disk(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

fn open_sim(disk: &SimDisk, options: LogOptions) -> Log {
    open_still(&as_disk(disk), options).unwrap().0
}

/// Waits until the background thread has prepared its segments, so that faults strike the write path.
fn settled(log: &Log) {
    while log.stats().spare_segments < 2 {
        pause();
    }
}

fn assert_failed(log: &Log, result: &Result<impl std::fmt::Debug, AppendError>) {
    assert!(matches!(result, Err(AppendError::Failed { .. })), "{result:?}");
    assert!(log.failure().is_some());
    assert!(matches!(append(log, &[vec![1]], Durability::Os), Err(AppendError::Failed { .. })));
    assert!(matches!(log.sync(), Err(AppendError::Failed { .. })) || log.durable() == log.end());
    let error = append(log, &[vec![1]], Durability::Disk).unwrap_err();
    assert_eq!((error.code(), error.action()), ("log_failed", Action::Stop));
}

#[test]
fn a_failed_fsync_is_final_and_what_it_left_clean_is_written_again_at_open() {
    for loss in [PowerLoss::LoseUnsynced, PowerLoss::KeepUnsynced, PowerLoss::AnySubset(5), PowerLoss::AnySubset(6)] {
        let disk = SimDisk::new(1);
        let log = open_sim(&disk, small_options());
        settled(&log);
        let payloads: Vec<_> = (0..4).map(|number| payload(number, 2000)).collect();
        append(&log, &payloads[..2], Durability::Disk).unwrap();
        disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).with_partial_effect());
        let result = append(&log, &payloads[2..], Durability::Disk);
        assert_failed(&log, &result);
        assert_eq!(log.durable(), Lsn(2));
        assert_records(&read_all(&log), 0, &payloads); // reads continue
        assert!(log.close().is_err());
        drop(log);
        // The next process finds all records in the cache in clean pages, so a sync alone would not write
        // them.
        let next = disk.kill_process();
        let log = open_sim(&next, small_options());
        assert_eq!(log.end(), Lsn(4));
        drop(log);
        let after = next.after_power_loss_with(loss);
        assert_records(&read_all(&open_sim(&after, small_options())), 0, &payloads);
        // Without an open in between, a power loss can discard the group that was never acknowledged, but no
        // more.
        let log = open_sim(&disk.after_power_loss_with(loss), small_options());
        let end = log.end().get() as usize;
        assert!(end == 2 || end == 4);
        assert_records(&read_all(&log), 0, &payloads[..end]);
    }
}

#[test]
fn a_failed_write_is_final() {
    for part in [false, true] {
        let disk = SimDisk::new(2);
        let options = LogOptions { segment_bytes: 256 * 1024, ..small_options() };
        let log = open_sim(&disk, options.clone());
        settled(&log);
        append(&log, &[payload(0, 100)], Durability::Disk).unwrap();
        let fault = Fault::new(Operation::Write, 1, Errno::Io);
        disk.fail(if part { fault.with_partial_effect() } else { fault });
        let result = append(&log, &[payload(1, 60_000)], Durability::Os); // large: written with a system call
        assert_failed(&log, &result);
        assert_eq!(log.end(), Lsn(1));
        assert_records(&read_all(&log), 0, &[payload(0, 100)]);
        drop(log);
        let log = open_sim(&disk.kill_process(), options);
        assert_records(&read_all(&log), 0, &[payload(0, 100)]);
    }
}

#[test]
fn everyone_who_waits_is_told_of_a_failure() {
    let disk = SimDisk::new(3);
    let log = open_sim(&disk, small_options());
    settled(&log);
    let appended = append(&log, &[vec![1]], Durability::Os).unwrap();
    let mut future = Box::pin(log.durable_at(appended.next));
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending());
    let blocked = std::thread::spawn({
        let log = log.clone();
        move || log.wait_durable(appended.next)
    });
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).for_good());
    let writers: Vec<_> = (0..8)
        .map(|_| {
            let log = log.clone();
            std::thread::spawn(move || log.sync())
        })
        .collect();
    for writer in writers {
        assert!(matches!(writer.join().unwrap(), Err(AppendError::Failed { .. })));
    }
    assert!(matches!(blocked.join().unwrap(), Err(AppendError::Failed { .. })));
    assert!(matches!(future.as_mut().poll(&mut context), std::task::Poll::Ready(Err(AppendError::Failed { .. }))));
}

fn open_stepped(disk: &SimDisk) -> Log {
    let options = LogOptions { segment_bytes: 16 * 1024, ..small_options() };
    Log::open_stepped(as_disk(disk), "log", options, Arc::new(ManualClock::default()), 7).unwrap().0
}

/// A process that was killed, or whose sync failed, can leave the name of a segment in the memory of the kernel only.
#[test]
fn the_name_of_a_prepared_segment_is_on_disk_before_the_segment_holds_records() {
    let open = open_stepped;
    let (path, unfinished) = ("log/00000003.seg", "log/00000003.tmp");
    for has_sync_failed in [false, true] {
        let disk = SimDisk::new(1);
        open(&disk).close().unwrap();
        // Prepares the same segment once more, up to the sync of its name.
        let spare = disk.cached_bytes(path).unwrap();
        disk.remove(path).unwrap();
        disk.sync_dir("log").unwrap();
        let file = disk.create(unfinished).unwrap();
        file.write_all_at(&spare, 0).unwrap();
        file.sync_all().unwrap();
        disk.rename(unfinished, path).unwrap();
        if has_sync_failed {
            disk.fail(Fault::new(Operation::SyncDir, 1, Errno::Io));
            disk.sync_dir("log").unwrap_err();
        }
        let killed = disk.kill_process();
        let log = open(&killed);
        let mut payloads = Vec::new();
        while !log.segments().iter().any(|segment| segment.file == path && !segment.active) {
            assert!(payloads.len() < 100, "the segment is never used");
            payloads.push(payload(payloads.len() as u64, 3000));
            append(&log, &payloads[payloads.len() - 1..], Durability::Disk).unwrap();
        }
        drop(log);
        let lost = killed.after_power_loss_with(PowerLoss::LoseUnsynced);
        assert_records(&read_all(&open(&lost)), 0, &payloads);
    }
}

/// A process that was killed while it made a freed segment void can leave the new headers in the memory of the kernel
/// only.
#[test]
fn the_headers_of_a_prepared_segment_survive_a_power_loss_after_the_open_that_found_it() {
    const HEADERS: usize = DATA_START as usize;
    let path = "log/00000003.seg";
    for has_sync_failed in [false, true] {
        let disk = SimDisk::new(1);
        open_stepped(&disk).close().unwrap();
        let headers = disk.cached_bytes(path).unwrap()[..HEADERS].to_vec();
        let file = disk.open(path).unwrap();
        file.write_all_at(&[7; HEADERS], 0).unwrap();
        file.sync_all().unwrap();
        file.write_all_at(&headers, 0).unwrap();
        if has_sync_failed {
            disk.fail(Fault::new(Operation::Sync, 1, Errno::Io));
            file.sync_all().unwrap_err();
        }
        let killed = disk.kill_process();
        drop(open_stepped(&killed));
        let lost = killed.after_power_loss_with(PowerLoss::LoseUnsynced);
        assert_ne!(lost.cached_bytes(path).unwrap()[..64], [7; 64]);
        open_stepped(&lost);
    }
}

#[test]
fn any_failing_call_during_open_is_an_error_and_the_next_open_succeeds() {
    let disk = SimDisk::new(4);
    let log = open_sim(&disk, small_options());
    let payloads: Vec<_> = (0..3).map(|number| payload(number, 30_000)).collect();
    for payload in &payloads {
        append(&log, std::slice::from_ref(payload), Durability::Os).unwrap();
    }
    drop(log);
    for operation in [Operation::Read, Operation::Write, Operation::Sync, Operation::SyncDir] {
        let mut failed = 0;
        for nth in 1..40 {
            let broken = disk.kill_process();
            broken.fail(Fault::new(operation, nth, Errno::Io).on_path("log"));
            match open_still(&as_disk(&broken), small_options()) {
                Ok((log, _)) => drop(log),
                Err(OpenError::Disk(_)) => failed += 1,
                Err(other) => panic!("{other}"),
            }
            broken.clear_faults();
            let log = open_sim(&broken.kill_process(), small_options());
            assert_records(&read_all(&log), 0, &payloads);
        }
        assert!(failed > 0 || operation == Operation::SyncDir, "{operation:?}");
    }
}

/// Every write to the active segment, the last of which is the marker of the new run.
#[test]
fn an_open_that_can_not_write_its_marker_is_an_error() {
    for is_closed in [false, true] {
        let disk = SimDisk::new(8);
        let log = open_sim(&disk, small_options());
        append(&log, &[payload(0, 100)], Durability::Disk).unwrap();
        if is_closed {
            log.close().unwrap();
        }
        drop(log);
        // Without threads, all writes are those of the open.
        let open = |disk: &SimDisk| {
            Log::open_stepped(as_disk(disk), "log", small_options(), Arc::new(ManualClock::default()), 7)
        };
        let rehearsal = disk.kill_process();
        rehearsal.keep_events(1 << 10);
        assert_eq!(open(&rehearsal).unwrap().1.clean, is_closed);
        let events = rehearsal.events();
        let is_write = |event: &&Event| event.operation == Operation::Write && event.path == "log/00000001.seg";
        let writes = events.iter().filter(is_write).count() as u64;
        assert!(writes > 0);
        for nth in 1..=writes {
            let full = disk.kill_process();
            full.fail(Fault::new(Operation::Write, nth, Errno::NoSpace).on_path("log/00000001.seg"));
            let error = open(&full).map(drop).expect_err("a write has failed");
            assert_eq!((error.code(), error.action()), ("disk_full", Action::Retry), "write {nth} of {writes}");
            let log = open_sim(&full.kill_process(), small_options());
            assert_records(&read_all(&log), 0, &[payload(0, 100)]);
        }
    }
}

#[test]
fn a_close_that_can_not_write_its_marker_is_an_error() {
    let disk = SimDisk::new(8);
    let log = open_sim(&disk, small_options());
    settled(&log);
    append(&log, &[payload(0, 100)], Durability::Disk).unwrap();
    disk.fail(Fault::new(Operation::Write, 1, Errno::Io).on_path("00000001.seg"));
    assert!(matches!(log.close(), Err(AppendError::Failed { .. })));
    drop(log);
    let (log, recovery) = open_still(&as_disk(&disk.kill_process()), small_options()).unwrap();
    assert!(!recovery.clean);
    assert_records(&read_all(&log), 0, &[payload(0, 100)]);
}

/// After the failed fsync, the page cache shows markers that are not on the disk. The next fsync writes only later
/// pages. The length of the record moves the border between two sectors through the markers of both runs.
#[test]
fn markers_whose_fsync_failed_at_the_close_are_written_again_at_the_next_open() {
    for len in (0..600).step_by(8) {
        let disk = SimDisk::new(9);
        let log = open_sim(&disk, small_options());
        settled(&log);
        let payloads = [payload(0, len), payload(1, 2000), payload(2, 10)];
        append(&log, &payloads[..1], Durability::Disk).unwrap();
        disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).on_path("00000001.seg"));
        assert!(log.close().is_err());
        drop(log);
        let next = disk.kill_process();
        let (log, recovery) = open_still(&as_disk(&next), small_options()).unwrap();
        assert!(recovery.clean, "the cache shows the marker of the close");
        append(&log, &payloads[1..2], Durability::Disk).unwrap();
        append(&log, &payloads[2..], Durability::Disk).unwrap();
        drop(log);
        for loss in [PowerLoss::LoseUnsynced, PowerLoss::KeepUnsynced, PowerLoss::AnySubset(len as u64)] {
            let opened = open_still(&as_disk(&next.after_power_loss_with(loss)), small_options());
            let (log, _) = opened.unwrap_or_else(|error| panic!("{len} bytes, {loss:?}: {error}"));
            assert_records(&read_all(&log), 0, &payloads);
        }
    }
}

/// The log would seem to end with the first segment if its footer is lost and the second segment is freed.
#[test]
fn a_footer_whose_fsync_failed_is_written_again_at_the_next_open() {
    // Without idle batches, the first batch of the second segment attests all records of the first one.
    let idle_mark_after = Duration::from_secs(1);
    let options = LogOptions { segment_bytes: 16 * 1024, history_bytes: 0, idle_mark_after, ..small_options() };
    let payloads: Vec<_> = [6500, 1700, 5000, 4000].into_iter().zip(0..).map(|(len, at)| payload(at, len)).collect();
    let disk = SimDisk::new(10);
    let log = open_sim(&disk, options.clone());
    settled(&log);
    append(&log, &payloads[..1], Durability::Disk).unwrap();
    let first = log.segments()[0].clone();
    disk.fail(Fault::new(Operation::Sync, 1, Errno::Io).on_path(&first.file));
    append(&log, &payloads[1..2], Durability::Disk).unwrap_err();
    drop(log);
    let next = disk.kill_process();
    let log = open_sim(&next, options.clone());
    settled(&log);
    assert_eq!(log.end(), Lsn(2));
    append(&log, &payloads[2..3], Durability::Os).unwrap();
    append(&log, &payloads[3..], Durability::Disk).unwrap();
    let second = log.segments()[1].clone();
    assert_eq!((log.segments().len(), second.first), (3, Lsn(1)));
    log.release(second.next);
    log.free(second.generation).unwrap();
    // The file has become a spare, or is removed.
    while log.stats().recycled == 0 && next.paths().contains(&second.file) {
        pause();
    }
    drop(log);
    for loss in [PowerLoss::KeepUnsynced, PowerLoss::AnySubset(1), PowerLoss::AnySubset(2)] {
        let log = open_sim(&next.after_power_loss_with(loss), options.clone());
        assert_eq!((log.segments()[0].generation, log.segments()[0].next), (first.generation, first.next), "{loss:?}");
        let start = log.start().get();
        assert_records(&read_all(&log), start, &payloads[start as usize..]);
    }
}

#[test]
fn the_last_lsn_is_refused_before_anything_is_written() {
    let disk = SimDisk::new(11);
    let first = MAX_NUMBER - 4;
    let options = LogOptions { first_lsn: Lsn(first), ..small_options() };
    let log = open_sim(&disk, options.clone());
    let payloads: Vec<_> = (first..first + 3).map(|number| payload(number, 10)).collect();
    append(&log, &payloads[..1], Durability::Disk).unwrap();
    let four = [payloads.clone(), vec![vec![1]]].concat();
    let refused = append(&log, &four, Durability::Disk).unwrap_err();
    assert_eq!(refused, AppendError::NoLsnLeft { end: Lsn(first + 1) });
    assert_eq!((refused.code(), refused.action()), ("no_lsn_left", Action::Stop));
    append(&log, &payloads[1..], Durability::Disk).unwrap();
    append(&log, &[vec![1]], Durability::Os).unwrap_err();
    assert_eq!(log.failure(), None);
    log.close().unwrap();
    drop(log);
    let (log, recovery) = open_still(&as_disk(&disk), options).unwrap();
    assert_eq!((recovery.clean, log.end()), (true, Lsn(MAX_NUMBER - 1)));
    assert_records(&read_all(&log), first, &payloads);
}

#[test]
fn a_full_disk_refuses_data_but_not_deletes_and_goes_on_when_there_is_room() {
    let disk = SimDisk::new(5);
    let options = LogOptions { reserve_bytes: 100_000, history_bytes: 0, ..small_options() };
    // Capacity for six segments of 64 KiB in addition to the reserve.
    disk.set_capacity(6 * 65_536 + 100_000);
    let log = open_sim(&disk, options.clone());
    settled(&log);
    let mut payloads = Vec::new();
    let refused = loop {
        let next = payload(payloads.len() as u64, 20_000);
        match append(&log, std::slice::from_ref(&next), Durability::Disk) {
            Ok(_) => payloads.push(next),
            Err(error) => break error,
        }
        assert!(payloads.len() < 40);
    };
    assert!(matches!(refused, AppendError::DiskFull { .. }), "{refused}");
    assert_eq!(refused.action(), Action::Retry);
    assert_eq!(log.failure(), None);
    assert!(payloads.len() >= 8, "only {} appends", payloads.len());
    assert_records(&read_all(&log), 0, &payloads);
    // Deletes and trims continue in the reserved space.
    for _ in 0..3 {
        payloads.push(payload(payloads.len() as u64, 20_000));
        append_for(&log, &payloads[payloads.len() - 1..], Durability::Disk, Purpose::Reclaim).unwrap();
    }
    // Freed segments are written again.
    log.release(log.end());
    let freed = log.freeable(SpaceTime(u64::MAX));
    assert!(freed.len() >= 3);
    let before = disk.counts();
    for info in &freed {
        log.free(info.generation).unwrap();
    }
    settled(&log);
    let start = log.start().get() as usize;
    for _ in 0..3 {
        payloads.push(payload(payloads.len() as u64, 20_000));
        // There is no room until the background thread has removed the segments that it does not recycle.
        let appended = loop {
            match append(&log, &payloads[payloads.len() - 1..], Durability::Disk) {
                Err(AppendError::DiskFull { .. }) => pause(),
                appended => break appended,
            }
        };
        appended.unwrap();
    }
    assert_eq!((disk.counts() - before).creates, 0, "segments must be recycled, not created");
    assert!(log.stats().recycled > 0);
    assert_records(&read_all(&log), start as u64, &payloads[start..]);
    log.close().unwrap();
    drop(log);
    let log = open_sim(&disk, options);
    // A freed segment that has not been recycled yet may exist again, unchanged.
    let records: Vec<_> = log.records_from(Lsn(start as u64)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_records(&records, start as u64, &payloads[start..]);
}

#[test]
fn a_disk_that_others_fill_refuses_data_until_it_has_room_again() {
    let disk = SimDisk::new(6);
    disk.set_capacity(10 << 20);
    let options = LogOptions { reserve_bytes: 1 << 20, ..small_options() };
    let log = open_sim(&disk, options);
    settled(&log);
    append(&log, &[vec![1]], Durability::Disk).unwrap();
    disk.set_capacity(1 << 20);
    assert!(log.stats().free_disk_bytes < 1 << 20);
    assert!(matches!(append(&log, &[vec![1]], Durability::Os), Err(AppendError::DiskFull { .. })));
    append_for(&log, &[vec![1]], Durability::Disk, Purpose::Reclaim).unwrap();
    disk.set_capacity(10 << 20);
    append(&log, &[vec![1]], Durability::Disk).unwrap();
    assert_eq!(log.end(), Lsn(3));
}

#[test]
fn a_preparation_that_fails_is_told_and_tried_again() {
    let disk = SimDisk::new(7);
    let log = open_sim(&disk, small_options());
    settled(&log);
    disk.fail(Fault::new(Operation::Create, 1, Errno::Io).for_good());
    let mut count = 0;
    let error = loop {
        match append(&log, &[payload(count, 30_000)], Durability::Os) {
            Ok(_) => count += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, AppendError::NoSegment { .. }), "{error}");
    assert_eq!((error.action(), log.failure()), (Action::Retry, None));
    disk.clear_faults();
    append(&log, &[payload(count, 30_000)], Durability::Disk).unwrap();
    let payloads: Vec<_> = (0..=count).map(|number| payload(number, 30_000)).collect();
    assert_records(&read_all(&log), 0, &payloads);
}

#[test]
fn a_failed_write_of_a_marker_is_final_and_takes_nothing_back() {
    let disk = SimDisk::new(7);
    let log = open_sim(&disk, small_options());
    settled(&log);
    // The first write is the batch; the second is the marker that attests it once it is durable.
    disk.fail(Fault::new(Operation::Write, 2, Errno::Io).on_path("00000001.seg"));
    append(&log, &[vec![1]], Durability::Disk).unwrap();
    assert!(log.failure().is_some_and(|reason| reason.contains("marker")), "{:?}", log.failure());
    assert!(matches!(append(&log, &[vec![2]], Durability::Os).unwrap_err(), AppendError::Failed { .. }));
    drop(log);
    let log = open_sim(&disk.power_loss(7), small_options());
    assert_records(&read_all(&log), 0, &[vec![1]]);
}
