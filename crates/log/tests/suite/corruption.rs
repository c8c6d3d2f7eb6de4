//! Flipped bytes, and payloads that look like a log: typed errors or no loss, never a panic, never wrong
//! data.

use std::{ops::ControlFlow, sync::Arc};

use thalweg_disk::{Disk, SimDisk};
use thalweg_log::{
    Log, LogOptions, OpenError, Repair,
    format::DATA_START,
    offline::{self, Item, Severity, Verdict},
};
use thalweg_types::{Durability, Lsn};

use crate::common::*;

const FIRST: &str = "log/00000001.seg";

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, ..small_options() }
}

fn as_disk(disk: &SimDisk) -> Arc<dyn Disk> {
    Arc::new(disk.clone())
}

/// A cleanly closed log of three segments, its payloads, and the end of the batches in each segment.
fn closed_log() -> (SimDisk, Vec<Vec<u8>>, Vec<(String, u32)>) {
    let disk = SimDisk::new(1);
    let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
    let mut payloads = Vec::new();
    for (batch, sizes) in [&[5, 0, 9][..], &[7000], &[30; 3], &[6000], &[3; 2], &[4000], &[1]].iter().enumerate() {
        let first = payloads.len();
        payloads.extend(sizes.iter().zip(first as u64..).map(|(len, number)| payload(number, *len)));
        append(&log, &payloads[first..], Durability::ALL[1 + batch % 3]).unwrap();
    }
    log.close().unwrap();
    let ends = log.segments().into_iter().map(|info| (info.file, DATA_START + info.bytes)).collect::<Vec<_>>();
    assert_eq!(ends.len(), 3);
    drop(log);
    (disk, payloads, ends)
}

/// Opens the log and reads all records; `None` if an error reports corruption. Records that are read must be
/// correct.
fn read(disk: &SimDisk, payloads: &[Vec<u8>]) -> Option<(usize, bool)> {
    let (log, recovery) = match open_still(&as_disk(disk), options()) {
        Ok(opened) => opened,
        Err(OpenError::Corrupt(_)) => return None,
        Err(other) => panic!("unexpected error: {other}"),
    };
    let mut records = Vec::new();
    for record in log.records_from(log.start()).unwrap() {
        match record {
            Ok(record) => records.push(record),
            Err(_) => {
                assert_records(&records, 0, &payloads[..records.len()]);
                return None;
            }
        }
    }
    assert_records(&records, 0, &payloads[..records.len()]);
    Some((records.len(), recovery.clean))
}

#[test]
fn every_flipped_byte_is_harmless_or_a_typed_error() {
    let (disk, payloads, ends) = closed_log();
    assert_eq!(read(&disk.kill_process(), &payloads), Some((payloads.len(), true)));
    let mut data_end = 0;
    offline::dump(&disk, "log", Lsn(payloads.len() as u64 - 1), u64::MAX, |item| {
        if let Item::Batch { offset, header } = item
            && header.count > 0
        {
            data_end = u64::from(offset + header.total_bytes());
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    let mut detected = 0;
    for (number, (file, end)) in ends.iter().enumerate() {
        let len = disk.cached_bytes(file).unwrap().len() as u64;
        // The bytes between the batches and the footer are unused, so a sample of them suffices.
        let unused = (u64::from(*end)..len - 64).step_by(97);
        for at in (0..u64::from(*end)).chain(unused).chain(len - 64..len) {
            let context = format!("{file} at {at}");
            let flipped = disk.kill_process();
            flipped.flip_bit(file, at, (at % 8) as u8).unwrap();
            let report = offline::verify(&flipped, "log").unwrap();
            let read = read(&flipped, &payloads);
            let is_batch = (u64::from(DATA_START)..u64::from(*end)).contains(&at);
            // The markers of a clean close carry no records; without them the log does not count as closed.
            let is_last_marker = number + 1 == ends.len() && (data_end..u64::from(*end)).contains(&at);
            if is_last_marker {
                assert_eq!(read, Some((payloads.len(), false)), "{context}");
            } else if is_batch {
                assert_eq!(report.verdict, Verdict::Corrupt, "{context}");
                assert!(report.findings.iter().all(|finding| &finding.file == file), "{context}: {report:?}");
                let finding = &report.findings[0];
                assert!(finding.offset <= at && finding.severity == Severity::Data, "{context}: {report:?}");
                assert_eq!(read, None, "{context}");
                detected += 1;
            } else {
                assert_ne!(report.verdict, Verdict::Corrupt, "{context}: {report:?}");
                assert_eq!(read, Some((payloads.len(), true)), "{context}");
            }
            if !is_batch && (at % 4096 < 64 && at < 8192) {
                assert_eq!(report.verdict, Verdict::Degraded, "{context}");
            }
        }
    }
    assert!(detected > 15_000);
}

#[test]
fn dump_shows_what_is_left_around_damage() {
    let (disk, payloads, ends) = closed_log();
    disk.flip_bit(&ends[0].0, u64::from(DATA_START) + 48 + 48 + 40 + 2, 3).unwrap(); // payload of the first record
    let mut records = Vec::new();
    let mut damage = 0;
    let before = disk.operations();
    offline::dump(&disk, "log", Lsn(0), u64::MAX, |item| {
        match item {
            Item::Record(record) => records.push(record),
            Item::Damage(_) => damage += 1,
            Item::Segment { .. } | Item::Batch { .. } => {}
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(damage, 1);
    assert_records(&records, 3, &payloads[3..]);
    let mut some = Vec::new();
    offline::dump(&disk, "log", Lsn(5), 2, |item| {
        if let Item::Record(record) = item {
            some.push(record);
        }
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_records(&some, 5, &payloads[5..7]);
    let stats = offline::stats(&disk, "log").unwrap();
    assert_eq!((stats.segments.len(), stats.first_lsn, stats.end_lsn), (3, 0, payloads.len() as u64));
    assert_eq!(disk.operations(), before, "offline tools must write nothing");
}

#[test]
fn a_repair_cuts_at_the_damage_and_says_so() {
    let (disk, payloads, ends) = closed_log();
    disk.flip_bit(&ends[1].0, u64::from(DATA_START) + 60, 3).unwrap();
    let kept = offline::stats(&disk, "log").unwrap().segments[1].first_lsn as usize;
    // The segment is sealed and attested, so open does not read it, except in a repair.
    assert_eq!(read(&disk.kill_process(), &payloads), None);
    disk.flip_bit(&ends[2].0, u64::from(DATA_START) + 60, 3).unwrap();
    assert!(matches!(open_still(&as_disk(&disk), options()), Err(OpenError::Corrupt(_))));
    let images = |disk: &SimDisk| ends.iter().map(|(file, _)| disk.cached_bytes(file).unwrap()).collect::<Vec<_>>();
    let before = images(&disk);
    assert!(matches!(open_still(&as_disk(&disk), options()), Err(OpenError::Corrupt(_))));
    assert!(before == images(&disk), "a failed open must change nothing");
    let repair = LogOptions { repair: Repair::CutAtCorruption, ..options() };
    let (log, recovery) = open_still(&as_disk(&disk), repair).unwrap();
    assert!(recovery.repaired.as_ref().is_some_and(|told| told.contains("corrupt at byte")), "{recovery:?}");
    let records = read_all(&log);
    assert_records(&records, 0, &payloads[..kept]);
    let more = append(&log, &[payload(kept as u64, 10)], Durability::Disk).unwrap();
    assert_eq!(more.first, Lsn(kept as u64));
    drop(log);
    assert_eq!(offline::verify(&disk, "log").unwrap().verdict, Verdict::Good);
}

/// A copy of a directory that is in use can have a segment as it was before its last batches and its footer.
#[test]
fn a_sealed_segment_that_ends_before_the_next_one_begins_is_corruption() {
    let disk = SimDisk::new(1);
    let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
    let payloads: Vec<_> = (0..20).map(|number| payload(number, 3000)).collect();
    append(&log, &payloads[..1], Durability::Disk).unwrap();
    let early = disk.cached_bytes(FIRST).unwrap();
    for payload in &payloads[1..] {
        append(&log, std::slice::from_ref(payload), Durability::Disk).unwrap();
    }
    log.close().unwrap();
    drop(log);
    disk.open(FIRST).unwrap().write_all_at(&early, 0).unwrap();
    let opened = open_still(&as_disk(&disk), options());
    assert!(matches!(&opened, Err(OpenError::Corrupt(found)) if found.file == FIRST), "{opened:?}");
    assert!(disk.cached_bytes(FIRST).unwrap() == early, "a failed open must change nothing");
    assert_eq!(offline::verify(&disk, "log").unwrap().verdict, Verdict::Corrupt);
    let repair = LogOptions { repair: Repair::CutAtCorruption, ..options() };
    let (log, recovery) = open_still(&as_disk(&disk), repair).unwrap();
    assert!(recovery.repaired.is_some(), "{recovery:?}");
    assert_records(&read_all(&log), 0, &payloads[..1]);
}

#[test]
fn a_stored_copy_of_a_log_changes_nothing() {
    let disk = SimDisk::new(3);
    let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
    let mut payloads = vec![payload(0, 100), payload(1, 1)];
    for payload in payloads.clone() {
        append(&log, &[payload], Durability::Disk).unwrap();
    }
    // The payloads are the file's own batches at every alignment; the last batch is torn.
    let image = disk.cached_bytes(FIRST).unwrap();
    let copy = image[DATA_START as usize..][..600].to_vec();
    for shift in 0..8 {
        let mut shifted = vec![0; shift];
        shifted.extend_from_slice(&copy);
        payloads.push(shifted);
        append(&log, &payloads[payloads.len() - 1..], Durability::Disk).unwrap();
    }
    let end = DATA_START + log.segments()[0].bytes;
    append(&log, &[copy.clone(), copy.clone()], Durability::Os).unwrap();
    drop(log);
    let intact = disk.kill_process();
    payloads.extend([copy.clone(), copy]);
    assert_eq!(read(&intact, &payloads), Some((payloads.len(), false)));
    // Torn: the header of the last batch is destroyed, and its payload is full of headers.
    for at in [0, 8, 60, 90] {
        let torn = disk.kill_process();
        torn.flip_bit(FIRST, u64::from(end) + at, 0).unwrap();
        assert_eq!(read(&torn, &payloads), Some((payloads.len() - 2, false)), "torn at {at}");
    }
    // The same damage in attested data is corruption, and is reported although the batch's own length is
    // unreliable.
    let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
    payloads.push(payload(payloads.len() as u64, 10));
    append(&log, &payloads[payloads.len() - 1..], Durability::Disk).unwrap();
    log.close().unwrap();
    drop(log);
    for at in [0, 8, 9, 60, 90] {
        let bad = disk.kill_process();
        bad.flip_bit(FIRST, u64::from(end) + at, 0).unwrap();
        assert_eq!(read(&bad, &payloads), None, "attested, bad at {at}");
    }
}

#[test]
fn files_that_are_no_segments() {
    let (disk, payloads, ends) = closed_log();
    let file = disk.create("log/notes.txt").unwrap();
    file.write_all_at(b"not ours", 0).unwrap();
    disk.create("log/00000009.tmp").unwrap();
    assert_eq!(read(&disk.kill_process(), &payloads), Some((payloads.len(), true)));
    // A truncated segment, an empty segment, and a segment of another version.
    for len in [0, 10, 4096, 9000] {
        let short = disk.kill_process();
        short.open(&ends[1].0).unwrap().set_len(len).unwrap();
        assert!(matches!(open_still(&as_disk(&short), options()), Err(OpenError::Corrupt(_))), "cut to {len}");
        assert_eq!(offline::verify(&short, "log").unwrap().verdict, Verdict::Corrupt, "cut to {len}");
        // A repaired log needs no second repair, and the discarded bytes are kept in a file.
        let repair = LogOptions { repair: Repair::CutAtCorruption, ..options() };
        let (_, recovery) = open_still(&as_disk(&short), repair).unwrap();
        assert!(recovery.repaired.is_some() && !recovery.clean, "cut to {len}: {recovery:?}");
        let (_, recovery) = open_still(&as_disk(&short), options()).unwrap();
        assert_eq!(recovery.repaired, None, "cut to {len}");
        assert!(short.paths().contains(&format!("{}.bad", ends[1].0)), "cut to {len}: {:?}", short.paths());
    }
    let newer = disk.kill_process();
    for copy in [0, 4096] {
        let file = newer.open(&ends[1].0).unwrap();
        let mut header = [0; 64];
        file.read_exact_at(&mut header, copy).unwrap();
        header[8] = 9;
        let crc = thalweg_log::crc32c(&header[..60]).to_le_bytes();
        header[60..].copy_from_slice(&crc);
        file.write_all_at(&header, copy).unwrap();
    }
    assert!(matches!(open_still(&as_disk(&newer), options()), Err(OpenError::Version { version: 9, .. })));
    assert!(matches!(offline::verify(&SimDisk::new(1), "log"), Err(offline::OfflineError::NoLog { .. })));
}

/// Opening must not read sealed and attested segments.
#[test]
fn open_reads_only_the_end() {
    let disk = SimDisk::new(5);
    let (log, _) = open_still(&as_disk(&disk), options()).unwrap();
    for number in 0..60 {
        append(&log, &[payload(number, 3000)], Durability::Os).unwrap();
    }
    log.close().unwrap();
    let segments = log.segments().len() as u64;
    assert!(segments > 20);
    drop(log);
    let before = disk.counts().bytes_read;
    let (log, _): (Log, _) = open_still(&as_disk(&disk), options()).unwrap();
    let read = disk.counts().bytes_read - before;
    assert!(read < (segments + 3) * 64 * 3 + 5 * 16 * 1024, "{read} bytes for {segments} segments");
    drop(log);
}
