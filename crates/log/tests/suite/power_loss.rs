//! Simulated power loss at every operation of a workload, and again during the following recovery.
//!
//! Background threads change the order of operations between runs. The crash point is a number of operations,
//! so every point of every order is a valid test. The output of a failure replays the loss, but not the
//! order.

use std::{sync::Arc, time::Duration};

use thalweg_disk::{Disk, SimDisk, sim::PowerLoss};
use thalweg_log::{Log, LogOptions, Purpose, Recovery, offline};
use thalweg_types::{Durability, Lsn, ManualClock, SpaceTime};

use crate::common::*;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, history_bytes: 0, ..small_options() }
}

fn as_disk(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// Results that the workload has received.
#[derive(Default, Clone)]
struct Appends {
    /// Payloads of all appends in order, acknowledged or not.
    given: Vec<Vec<u8>>,
    /// Number of records acknowledged as durable.
    durable: usize,
    finished: bool,
}

impl Appends {
    fn append(&mut self, log: &Log, sizes: &[usize], level: Durability) -> Option<()> {
        let first = self.given.len();
        assert_eq!(log.end(), Lsn(first as u64));
        self.given.extend(sizes.iter().zip(first as u64..).map(|(len, number)| payload(number, *len)));
        let appended = append_for(log, &self.given[first..], level, Purpose::Reclaim).ok()?;
        assert_eq!(appended.first, Lsn(first as u64));
        self.durable = self.durable.max(log.durable().get() as usize);
        if level.waits_for_sync() {
            assert_eq!(log.durable().get() as usize, self.given.len());
        }
        Some(())
    }

    /// Checks that the log contains a prefix of the appended records, including all acknowledged ones.
    fn check(&self, log: &Log, recovery: &Recovery, context: &str) -> usize {
        let end = log.end().get() as usize;
        assert_eq!(recovery.end, log.end(), "{context}");
        assert_eq!(recovery.repaired, None, "{context}");
        assert!(recovery.attested <= recovery.end, "{context}");
        assert!(end >= self.durable, "{context}: {end} records of {} acknowledged", self.durable);
        assert!(end <= self.given.len(), "{context}: {end} records of {} given", self.given.len());
        let start = log.start().get() as usize;
        assert_records(&read_all(log), start as u64, &self.given[start..end]);
        for info in log.segments() {
            let records: Vec<_> = log.segment_records(info.generation).unwrap().collect::<Result<_, _>>().unwrap();
            let range = info.first.get() as usize..info.next.get() as usize;
            assert_records(&records, info.first.get(), &self.given[range]);
        }
        assert_eq!(log.durable(), log.end());
        end
    }
}

/// A workload with every level, small and large batches, two segment switches, a reopen and a free.
fn workload(disk: &SimDisk, appends: &mut Appends) -> Option<()> {
    let (log, _) = open_still(&as_disk(disk), options()).ok()?;
    appends.append(&log, &[100, 0, 700], Durability::Disk)?;
    appends.append(&log, &[300], Durability::Os)?;
    appends.append(&log, &[2000, 9], Durability::Interval)?;
    appends.append(&log, &[30], Durability::Disk)?;
    appends.append(&log, &[3000], Durability::None)?;
    appends.append(&log, &[5000], Durability::Os)?; // into the second segment
    appends.append(&log, &[1, 2, 3], Durability::Os)?;
    log.sync().ok()?;
    appends.durable = appends.durable.max(log.durable().get() as usize);
    appends.append(&log, &[6000], Durability::Os)?; // third
    appends.append(&log, &[10], Durability::Disk)?;
    let segments = log.segments();
    log.release(segments[0].next);
    for info in log.freeable(SpaceTime(1 << 40)) {
        log.free(info.generation).ok()?;
    }
    drop(segments);
    appends.append(&log, &[50], Durability::Os)?;
    log.close().ok()?;
    appends.durable = appends.given.len();
    drop(log);
    let (log, recovery) = open_still(&as_disk(disk), options()).ok()?;
    assert!(recovery.clean);
    appends.append(&log, &[60; 4], Durability::Os)?;
    appends.append(&log, &[60], Durability::Disk)?;
    appends.append(&log, &[6100], Durability::Os)?; // fourth, perhaps recycled
    appends.append(&log, &[400], Durability::Os)?;
    appends.finished = true;
    Some(())
}

fn crashed_at(operations: u64) -> (SimDisk, Appends) {
    let disk = SimDisk::new(operations);
    disk.power_off_after(operations);
    let mut appends = Appends::default();
    let _ = workload(&disk, &mut appends);
    (disk, appends)
}

#[test]
fn power_loss_at_every_operation_and_again_during_recovery() {
    let mut finished = 0;
    let mut undecided = 0;
    let mut cut = 0;
    for crash in 0.. {
        let (disk, appends) = crashed_at(crash);
        for seed in 0..6 {
            let context = format!("crash after {crash}, loss {seed}");
            let found = disk.power_loss(seed * 1000 + crash);
            // Measures the operations of the recovery, and checks its result.
            let whole = found.kill_process();
            let (log, recovery) = open_still(&as_disk(&whole), options()).unwrap_or_else(|e| panic!("{context}: {e}"));
            let kept = appends.check(&log, &recovery, &context);
            undecided += u64::from(recovery.attested < recovery.end);
            cut += u64::from(recovery.cut_bytes > 0);
            let operations = whole.operations();
            // Records that open served are durable, and a log that continues after it loses none of them.
            let mut later = appends.clone();
            later.given.truncate(kept);
            later.durable = kept;
            let _ = later.append(&log, &[70, 80], Durability::Os);
            if seed % 2 == 0 {
                later.append(&log, &[500], Durability::Disk).unwrap();
            }
            drop(log);
            let again = whole.power_loss(seed + 17 * crash);
            let (log, recovery) =
                open_still(&as_disk(&again), options()).unwrap_or_else(|e| panic!("{context}, again: {e}"));
            later.check(&log, &recovery, &format!("{context}, again"));
            drop(log);
            // The power fails during recovery.
            for second in (0..operations).step_by(1 + (crash as usize + seed as usize) % 3) {
                let context = format!("{context}, again after {second} operations of recovery");
                let interrupted = found.kill_process();
                interrupted.power_off_after(second);
                let opened = open_still(&as_disk(&interrupted), options());
                let mut appends = appends.clone();
                if let Ok((log, recovery)) = &opened {
                    appends.durable = appends.durable.max(recovery.end.get() as usize);
                    assert_eq!(log.end(), recovery.end);
                }
                drop(opened);
                let found = interrupted.power_loss(seed + 31 * second);
                let (log, recovery) =
                    open_still(&as_disk(&found), options()).unwrap_or_else(|e| panic!("{context}: {e}"));
                appends.check(&log, &recovery, &context);
            }
        }
        if appends.finished {
            finished += 1;
            if finished == 5 {
                assert!(crash > 60, "the workload has only {crash} operations");
                break;
            }
        }
    }
    assert!(undecided > 0 && cut > 0, "the test must meet undecided groups ({undecided}) and cuts ({cut})");
}

/// An idle batch has no LSN. So when the log continues in the next segment, all records of the sealed segment
/// can be attested while its last batch is not on disk.
#[test]
fn an_idle_batch_lost_before_a_seal_takes_nothing_attested() {
    let mut lost = 0;
    for seed in 0..300 {
        let disk = SimDisk::new(seed);
        let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
        while log.stats().spare_segments < 2 {
            pause();
        }
        // The power fails before the background thread syncs the sealed segment.
        disk.power_off_after(8);
        let mut appends = Appends::default();
        appends.append(&log, &[4000], Durability::Disk);
        appends.append(&log, &[5000], Durability::Os);
        drop(log);
        let found = disk.power_loss(seed);
        lost += u64::from(offline::stats(&found, "log").unwrap().segments.len() < 2);
        let (log, recovery) = open_still(&as_disk(&found), options()).unwrap();
        appends.check(&log, &recovery, &format!("loss {seed}"));
        drop(log);
        let report = offline::verify(&found, "log").unwrap();
        assert_eq!(report.verdict, offline::Verdict::Good, "loss {seed}: {report:?}");
    }
    assert!((1..300).contains(&lost));
}

/// A large batch of short records is written to disk in several writes, the header last.
#[test]
fn a_batch_written_by_pieces_is_there_whole_or_not_at_all() {
    let options = || LogOptions { segment_bytes: 1 << 20, ..options() };
    let (mut whole, mut gone, mut writes) = (0, 0, 0);
    for crash in 0..40 {
        let disk = SimDisk::new(crash);
        let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
        while log.stats().spare_segments < 2 {
            pause();
        }
        let mut appends = Appends::default();
        appends.append(&log, &[100, 7], Durability::Disk).unwrap();
        let before = disk.operations();
        disk.power_off_after(crash);
        appends.finished = appends.append(&log, &[1000; 400], Durability::Disk).is_some();
        writes = writes.max(disk.operations() - before);
        drop(log);
        for seed in 0..8 {
            let found = disk.power_loss(seed + 100 * crash);
            let context = format!("crash after {crash}, loss {seed}");
            let (log, recovery) = open_still(&as_disk(&found), options()).unwrap_or_else(|e| panic!("{context}: {e}"));
            match appends.check(&log, &recovery, &context) {
                2 => gone += 1,
                402 => whole += 1,
                part => panic!("{context}: {part} records of a batch"),
            }
        }
    }
    assert!(writes >= 5, "only {writes} operations: the batch was not written in pieces");
    assert!(whole > 0 && gone > 0, "{whole} whole, {gone} gone");
}

/// A power loss can take the footer of a segment whose records are all attested. Recovery keeps the segment. If its
/// successor is freed later, only a footer shows after the next power loss that nothing was lost in between.
#[test]
fn a_kept_segment_that_lost_its_footer_survives_the_freeing_of_its_successor() {
    // Without idle batches, the next batch attests all records of a segment.
    let options = || LogOptions { idle_mark_after: Duration::from_secs(1), ..options() };
    let (mut lost, mut with_hole) = (0, 0);
    for crash in 2..24 {
        for seed in 0..40 {
            let context = format!("crash after {crash}, loss {seed}");
            let disk = SimDisk::new(seed);
            let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
            while log.stats().spare_segments < 2 {
                pause();
            }
            let mut appends = Appends::default();
            // The small batch that continues in the next segment attests all records of the first one.
            appends.append(&log, &[6500], Durability::Disk).unwrap();
            disk.power_off_after(crash);
            let _ = appends.append(&log, &[1700], Durability::Os);
            drop(log);
            let found = disk.power_loss(seed * 100 + crash);
            let footer_at = u64::from(options().segment_bytes) - 64;
            let before = found.kill_process();
            let (log, recovery) = open_still(&as_disk(&found), options()).unwrap_or_else(|e| panic!("{context}: {e}"));
            appends.given.truncate(appends.check(&log, &recovery, &context));
            if log.segments().len() < 2 {
                continue;
            }
            let kept = log.segments()[0].clone();
            let mut footer = [0; 64];
            before.open(&kept.file).unwrap().read_exact_at(&mut footer, footer_at).unwrap();
            lost += u64::from(footer == [0; 64] && recovery.attested == kept.next);
            // Fill the second segment and continue in a third, whose only batch attests no record of its own. Then free
            // the second.
            appends.append(&log, &[5000], Durability::Os).unwrap();
            appends.append(&log, &[4000], Durability::Disk).unwrap();
            assert_eq!(log.segments().len(), 3, "{context}");
            let freed = log.segments()[1].clone();
            log.release(freed.next);
            let recycled = log.stats().recycled;
            log.free(freed.generation).unwrap();
            // Only a file that was overwritten for later use leaves a hole after a power loss.
            let begun = std::time::Instant::now();
            while log.stats().recycled == recycled {
                assert!(begun.elapsed() < Duration::from_secs(60), "{context}: the file was not overwritten");
                pause();
            }
            drop(log);
            for loss in 0..6 {
                let context = format!("{context}, then {loss}");
                let again = found.power_loss(loss + 1000 * seed);
                let (log, recovery) =
                    open_still(&as_disk(&again), options()).unwrap_or_else(|e| panic!("{context}: {e}"));
                appends.check(&log, &recovery, &context);
                let first = &log.segments()[0];
                with_hole += u64::from(first.generation == kept.generation && log.start() > first.next);
            }
        }
    }
    assert!(lost > 5 && with_hole > 5, "only {lost} footers were lost, and {with_hole} logs had a hole");
}

/// A run that has no room for a marker in the last segment begins another one with its first batch.
#[test]
fn a_segment_that_has_lost_its_first_batch_is_no_clean_end() {
    let open = |disk: &SimDisk| {
        Log::open_stepped(as_disk(disk), "log", options(), Arc::new(ManualClock::default()), 7).unwrap()
    };
    let disk = SimDisk::new(1);
    let mut appends = Appends::default();
    let (log, _) = open(&disk);
    // This batch leaves room for the markers of this run and of the next one.
    appends.append(&log, &[7800], Durability::Disk).unwrap();
    log.close().unwrap();
    drop(log);
    let (log, _) = open(&disk);
    log.close().unwrap();
    drop(log);
    let (log, recovery) = open(&disk);
    assert!(recovery.clean, "{recovery:?}");
    appends.append(&log, &[10], Durability::Os).unwrap();
    assert_eq!(log.segments().len(), 2);
    let mut without_batch = 0;
    for kept in 0..=disk.unsynced_changes() {
        let lost = disk.after_power_loss_with(PowerLoss::KeepPrefix(kept));
        let (found, recovery) = open(&lost);
        assert!(recovery.segments == 1 || !recovery.clean, "{kept} changes were kept: {recovery:?}");
        without_batch += u64::from(recovery.segments == 2 && found.end() == Lsn(1));
    }
    assert!(without_batch > 0);
}
