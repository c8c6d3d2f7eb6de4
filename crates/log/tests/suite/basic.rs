//! Basic behaviour of the log, on real files.

use std::{ops::ControlFlow, sync::Arc, time::Duration};

use thalweg_disk::Disk;
use thalweg_log::{
    AppendError, Log, LogOptions, OpenError, ReadError, Recovery, crc32c,
    format::BatchKind,
    offline::{self, Item},
};
use thalweg_types::{
    BlobRef, Durability, Generation, Lsn, ManualClock,
    limits::{MAX_COMMAND_BYTES, MIN_MEMBER_SEGMENT_BYTES},
};

use crate::common::*;

#[test]
fn records_come_back_in_order_and_after_a_reopen() {
    let (_dir, disk) = real_disk();
    let payloads: Vec<Vec<u8>> = (0..100).map(|number| payload(number, number as usize * 13)).collect();
    let (log, recovery) = open(&disk, small_options()).unwrap();
    assert_eq!(recovery, Recovery { clean: true, segments: 1, ..Recovery::default() });
    for (number, chunk) in payloads.chunks(7).enumerate() {
        let appended = append(&log, chunk, Durability::ALL[number % 5]).unwrap();
        assert_eq!(appended.first, Lsn(number as u64 * 7));
        assert_eq!(appended.next, log.end());
        if Durability::ALL[number % 5].waits_for_sync() {
            assert_eq!(log.durable(), appended.next);
        }
    }
    assert_records(&read_all(&log), 0, &payloads);
    let from_50: Vec<_> = log.records_from(Lsn(50)).unwrap().collect::<Result<_, _>>().unwrap();
    assert_records(&from_50, 50, &payloads[50..]);
    assert_eq!(log.records_from(Lsn(100)).unwrap().count(), 0);
    assert!(matches!(log.records_from(Lsn(101)), Err(ReadError::PastEnd { .. })));
    log.close().unwrap();
    assert_eq!(append(&log, &payloads[..1], Durability::Os), Err(AppendError::Closed));
    assert_records(&read_all(&log), 0, &payloads);
    drop(log);

    let (log, recovery) = open(&disk, small_options()).unwrap();
    let segments = log.segments().len() as u32;
    assert!(segments > 1);
    let expected = Recovery { clean: true, attested: Lsn(100), end: Lsn(100), segments, ..Recovery::default() };
    assert_eq!(recovery, expected);
    assert_eq!((log.end(), log.durable()), (Lsn(100), Lsn(100)));
    assert_records(&read_all(&log), 0, &payloads);
}

#[test]
fn a_log_that_was_not_closed_keeps_all_and_says_what_was_undecided() {
    let (_dir, disk) = real_disk();
    let payloads: Vec<Vec<u8>> = (0..5).map(|number| payload(number, 300)).collect();
    let (log, _) = open(&disk, small_options()).unwrap();
    append(&log, &payloads[..3], Durability::Disk).unwrap();
    append(&log, &payloads[3..], Durability::Os).unwrap();
    drop(log);
    let (log, recovery) = open(&disk, small_options()).unwrap();
    let expected = Recovery { attested: Lsn(3), end: Lsn(5), segments: 1, ..Recovery::default() };
    assert_eq!(recovery, expected);
    assert_records(&read_all(&log), 0, &payloads);
    assert_eq!(log.durable(), Lsn(5), "open must make the records durable that it keeps");
}

#[test]
fn blobs_are_read_by_reference_and_checked() {
    let (_dir, disk) = real_disk();
    let (log, _) = open(&disk, small_options()).unwrap();
    let payloads = [payload(1, 500), payload(2, 40_000), payload(3, 8)];
    for level in [Durability::Os, Durability::Disk] {
        let appended = append(&log, &payloads[..1], level).unwrap();
        let at = appended.payload_at;
        let crc = crc32c(&payloads[0][100..300]);
        let blob = BlobRef { generation: at.generation, offset: at.offset + 100, len: 200, crc };
        assert_eq!(log.read_blob(&blob).unwrap(), payloads[0][100..300]);
        let wrong = BlobRef { offset: blob.offset + 1, ..blob };
        assert!(matches!(log.read_blob(&wrong), Err(ReadError::Corrupt(_))));
    }
    let appended = append(&log, &payloads, Durability::Os).unwrap();
    let records: Vec<_> = log.records_from(appended.first).unwrap().collect::<Result<_, _>>().unwrap();
    assert_eq!(records[0].payload_at, appended.payload_at);
    for record in &records {
        let at = record.payload_at;
        let crc = crc32c(&record.payload);
        let blob = BlobRef { generation: at.generation, offset: at.offset, len: record.payload.len() as u32, crc };
        assert_eq!(log.read_blob(&blob).unwrap(), record.payload);
        for outside in
            [BlobRef { offset: u32::MAX, ..blob }, BlobRef { offset: 0, ..blob }, BlobRef { len: u32::MAX, ..blob }]
        {
            assert!(matches!(log.read_blob(&outside), Err(ReadError::Corrupt(_))));
        }
        let gone = BlobRef { generation: Generation(99), ..blob };
        assert_eq!(log.read_blob(&gone), Err(ReadError::Gone { generation: Generation(99) }));
    }
}

#[test]
fn limits_are_typed_errors_and_change_nothing() {
    let (_dir, disk) = real_disk();
    let (log, _) = open(&disk, small_options()).unwrap();
    assert_eq!(append(&log, &[], Durability::Disk), Err(AppendError::Empty));
    let fits = 64 * 1024 - 8192 - 64 - 4 * 48 - 48 - 40;
    assert!(matches!(append(&log, &[payload(0, fits + 1)], Durability::Disk), Err(AppendError::TooLarge { .. })));
    append(&log, &[payload(0, fits)], Durability::Disk).unwrap();
    append(&log, &[payload(1, fits)], Durability::Disk).unwrap();
    assert_records(&read_all(&log), 0, &[payload(0, fits), payload(1, fits)]);
    for (segment_bytes, spare_segments) in [(8192, 2), (65_537, 2), (u32::MAX, 2), (65_536, 1), (65_536, 65)] {
        let options = LogOptions { segment_bytes, spare_segments, ..small_options() };
        assert!(matches!(open(&disk, options), Err(OpenError::Option { .. })));
    }
}

#[test]
fn a_second_handle_is_refused_until_the_first_is_gone() {
    let (_dir, disk) = real_disk();
    let (log, _) = open(&disk, small_options()).unwrap();
    let clone = log.clone();
    assert!(matches!(open(&disk, small_options()), Err(OpenError::Locked { .. })));
    drop(log);
    assert!(matches!(open(&disk, small_options()), Err(OpenError::Locked { .. })));
    drop(clone);
    open(&disk, small_options()).unwrap();
}

#[test]
fn a_size_of_segments_may_change_between_opens() {
    let (_dir, disk) = real_disk();
    let payloads: Vec<Vec<u8>> = (0..60).map(|number| payload(number, 4000)).collect();
    for (chunk, segment_bytes) in payloads.chunks(20).zip([65_536, 32_768, 131_072]) {
        let options = LogOptions { segment_bytes, ..small_options() };
        let (log, _) = open(&disk, options).unwrap();
        for payload in chunk {
            append(&log, std::slice::from_ref(payload), Durability::Interval).unwrap();
        }
        log.close().unwrap();
    }
    let (log, recovery) = open(&disk, small_options()).unwrap();
    assert!(recovery.clean);
    assert_records(&read_all(&log), 0, &payloads);
}

#[test]
fn an_iteration_goes_on_with_what_was_written_since() {
    let (_dir, disk) = real_disk();
    let (log, _) = open(&disk, small_options()).unwrap();
    let payloads: Vec<Vec<u8>> = (0..300).map(|number| payload(number, number as usize * 5)).collect();
    append(&log, &payloads[..10], Durability::Os).unwrap();
    let mut records = log.records_from(Lsn(4)).unwrap();
    let mut found: Vec<_> = records.by_ref().collect::<Result<_, _>>().unwrap();
    assert!(records.next().is_none());
    let mut next = 10;
    for step in [1, 7, 40, 100, 142] {
        for chunk in payloads[next..next + step].chunks(9) {
            append(&log, chunk, Durability::Os).unwrap();
        }
        next += step;
        assert!(records.next().is_none(), "only after an extension");
        log.extend_records(&mut records).unwrap();
        found.extend(records.by_ref().map(Result::unwrap));
        assert_eq!(found.len(), next - 4);
    }
    assert!(log.segments().len() > 3);
    assert_records(&found, 4, &payloads[4..]);
}

#[test]
fn an_iteration_is_told_when_what_comes_next_is_gone() {
    let (_dir, disk) = real_disk();
    let options = LogOptions { history_bytes: 0, ..small_options() };
    let (log, _) = open(&disk, options).unwrap();
    let payloads: Vec<Vec<u8>> = (0..60).map(|number| payload(number, 5000)).collect();
    append(&log, &payloads[..1], Durability::Os).unwrap();
    let mut records = log.records_from(Lsn(0)).unwrap();
    assert_eq!(records.by_ref().count(), 1);
    for chunk in payloads[1..].chunks(3) {
        append(&log, chunk, Durability::Os).unwrap();
    }
    log.release(log.end());
    let second = log.segments()[1].generation;
    log.free(second).unwrap();
    let oldest = log.start();
    assert_eq!(oldest, log.segments()[1].first);
    assert_eq!(log.extend_records(&mut records), Err(ReadError::Compacted { oldest }));
}

#[test]
fn a_new_log_may_begin_above_zero() {
    let (_dir, disk) = real_disk();
    let options = LogOptions { first_lsn: Lsn(1000), ..small_options() };
    let payloads: Vec<Vec<u8>> = (1000..1030).map(|number| payload(number, 5000)).collect();
    {
        let (log, _) = open(&disk, options.clone()).unwrap();
        assert_eq!((log.start(), log.end(), log.durable()), (Lsn(1000), Lsn(1000), Lsn(1000)));
    }
    for chunk in payloads.chunks(10) {
        // A log without any record continues at `first_lsn` too; an existing log ignores the option.
        let (log, _) = open(&disk, LogOptions { first_lsn: Lsn(7), ..small_options() }).unwrap();
        append(&log, chunk, Durability::Os).unwrap();
    }
    let (log, recovery) = open(&disk, small_options()).unwrap();
    assert_eq!((log.start(), recovery.end), (Lsn(1000), Lsn(1030)));
    let found: Vec<_> = log.records_from(Lsn(1000)).unwrap().map(Result::unwrap).collect();
    assert_records(&found, 1000, &payloads);
    let too_high = LogOptions { first_lsn: Lsn(1 << 62), ..small_options() };
    let (_dir, disk) = real_disk();
    assert!(matches!(open(&disk, too_high), Err(OpenError::Option { option: "first_lsn", .. })));
}

/// LSNs that the log's idle batches attest.
fn idle_marks(disk: &Arc<dyn Disk>) -> Vec<Lsn> {
    let mut found = Vec::new();
    let visit = |item| {
        if let Item::Batch { header, .. } = item
            && header.kind == BatchKind::Idle
        {
            found.push(header.attested);
        }
        ControlFlow::Continue(())
    };
    offline::dump(&**disk, "log", Lsn(0), u64::MAX, visit).unwrap();
    found
}

#[test]
fn a_log_at_rest_is_marked_idle_once_and_only_when_its_time_has_come() {
    let (_dir, disk) = real_disk();
    let clock = Arc::new(ManualClock::default());
    let after = Duration::from_millis(10);
    let options = LogOptions { idle_mark_after: after, ..small_options() };
    let (log, _) = Log::open(Arc::clone(&disk), "log", options, clock.clone(), 7).unwrap();
    for number in 0..20 {
        append(&log, &[payload(number, 10)], Durability::Disk).unwrap();
    }
    assert_eq!(idle_marks(&disk), [], "appends write no idle batches");
    clock.advance(after);
    while idle_marks(&disk).is_empty() {
        pause();
    }
    assert_eq!(idle_marks(&disk), [Lsn(20)]);
    append(&log, &[payload(20, 10)], Durability::Disk).unwrap();
    append(&log, &[payload(21, 10)], Durability::Os).unwrap();
    clock.advance(after);
    log.sync().unwrap();
    clock.advance(after);
    while idle_marks(&disk).len() < 2 {
        pause();
    }
    assert_eq!(idle_marks(&disk), [Lsn(20), Lsn(22)], "only durable records may be attested");
}

#[test]
fn a_log_that_is_synced_again_and_again_is_not_marked_idle() {
    let (_dir, disk) = real_disk();
    let clock = Arc::new(ManualClock::default());
    let after = Duration::from_millis(10);
    let options = LogOptions { idle_mark_after: after, ..small_options() };
    let (log, _) = Log::open(Arc::clone(&disk), "log", options, clock.clone(), 7).unwrap();
    append(&log, &[payload(0, 10)], Durability::Disk).unwrap();
    clock.advance(after + Duration::from_millis(2));
    // The background thread also does these syncs. When the last one is durable, the thread has passed the
    // marker's first deadline.
    for number in 1..20 {
        append(&log, &[payload(number, 10)], Durability::Os).unwrap();
        log.request_sync();
        log.wait_durable(log.end()).unwrap();
    }
    assert!(idle_marks(&disk).iter().all(|attested| *attested == Lsn(1)), "before the first of these syncs, at most");
    clock.advance(after);
    while idle_marks(&disk).last() != Some(&Lsn(20)) {
        pause();
    }
}

#[test]
fn a_segment_of_a_member_takes_the_largest_entry() {
    let (_dir, disk) = real_disk();
    /// Length of a command, before it in an entry.
    const FRAME_BYTES: usize = 4;
    let options = LogOptions { segment_bytes: MIN_MEMBER_SEGMENT_BYTES, ..small_options() };
    let (log, _) = open(&disk, options).unwrap();
    let largest = payload(0, FRAME_BYTES + MAX_COMMAND_BYTES);
    append(&log, std::slice::from_ref(&largest), Durability::Os).unwrap();
    assert!(read_all(&log)[0].payload == largest);
}
