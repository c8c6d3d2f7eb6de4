//! Opening, reading and appending to a log made of the input.
//!
//! The first byte chooses:
//! - the bytes are segment files, as they come;
//! - a valid small log is built from the input's first bytes, and the rest mutates its files;
//! - segments are forged: every checksum is right, every field is the input's.
//!
//! Never a panic, and never more memory than a few times what lies on the disk (libFuzzer's limit).

#![no_main]

use std::{io::IoSlice, ops::ControlFlow, sync::Arc};

use libfuzzer_sys::fuzz_target;
use thalweg_disk::Disk;
use thalweg_fuzz::{Input, disk_with, put};
use thalweg_log::{
    Draft, Log, LogOptions, Purpose, ReadError, RecordKind, Repair, crc32c,
    format::{
        BATCH_HEADER_BYTES, BatchHeader, BatchKind, DATA_START, FOOTER_BYTES, Footer, HEADER_BLOCK_BYTES,
        RECORD_HEADER_BYTES, RecordHeader, SegmentHeader, SegmentId, SegmentState, padded, segment_name,
    },
    offline,
};
use thalweg_types::{BlobRef, Durability, Generation, Index, Lsn, ManualClock, SpaceId, SpaceTime, Term};

const SEGMENT_BYTES: u32 = 16 * 1024;

fn options(repair: Repair) -> LogOptions {
    LogOptions { segment_bytes: SEGMENT_BYTES, reserve_bytes: 0, repair, ..LogOptions::DEFAULTS }
}

fn open(disk: &Arc<dyn Disk>, repair: Repair) -> Option<Log> {
    let opened = Log::open(Arc::clone(disk), "log", options(repair), Arc::new(ManualClock::default()), 7);
    opened.ok().map(|(log, _)| log)
}

fn append(log: &Log, payloads: &[&[u8]], level: Durability) -> bool {
    let parts: Vec<[IoSlice<'_>; 1]> = payloads.iter().map(|payload| [IoSlice::new(payload)]).collect();
    let draft = |payload| Draft {
        space: SpaceId(0),
        kind: RecordKind::Entry,
        term: Term(1),
        index: Index(1),
        time: SpaceTime(1),
        payload,
    };
    let drafts: Vec<Draft<'_>> = parts.iter().map(|payload| draft(&payload[..])).collect();
    log.append(&drafts, level, Purpose::Data).is_ok()
}

/// Where the input's files come from.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Origin {
    /// A disk: damage has wrong checksums.
    Disk,
    /// Somebody who computes checksums: recovery need not make sense of it, only survive it.
    Forger,
}

/// What recovery accepted can be read, and written to, and is found again.
fn use_log(log: Log, disk: &Arc<dyn Disk>, origin: Origin) {
    let read = |log: &Log| -> Result<usize, ReadError> {
        log.records_from(log.start())?.try_fold(0, |count, record| record.map(|_| count + 1))
    };
    // Open does not look at what is sealed and attested: damage there is found by reading.
    let before = read(&log);
    for segment in log.segments() {
        log.segment_records(segment.generation).into_iter().flatten().take_while(Result::is_ok).for_each(drop);
        let blob = BlobRef { generation: segment.generation, offset: DATA_START + 88, len: 16, crc: 0 };
        let _ = log.read_blob(&blob);
    }
    let written = append(&log, &[b"after"], Durability::Disk);
    let closed = log.close().is_ok();
    let end = log.end();
    drop(log);
    if written && closed && origin == Origin::Disk {
        let again = open(disk, Repair::Refuse).expect("what was recovered opens again");
        assert_eq!(again.end(), end);
        if let Ok(before) = before {
            assert_eq!(read(&again), Ok(before + 1), "records after reopening");
        }
    }
}

fn fuzz(disk: &Arc<dyn Disk>, origin: Origin) {
    let _ = offline::verify(&**disk, "log");
    let _ = offline::stats(&**disk, "log");
    let mut items = 0_u64;
    let _ = offline::dump(&**disk, "log", Lsn::ZERO, 10_000, |_| {
        items += 1;
        ControlFlow::Continue(())
    });
    assert!(items <= 40_000, "a dump ends");
    match open(disk, Repair::Refuse) {
        Some(log) => use_log(log, disk, origin),
        None => {
            if let Some(log) = open(disk, Repair::CutAtCorruption) {
                use_log(log, disk, origin);
            }
        }
    }
}

/// Builds a log from the input's first bytes and lets the rest mutate it.
fn mutated(input: &mut Input<'_>) -> Arc<dyn Disk> {
    let disk = disk_with("", &[]);
    let log = open(&disk, Repair::Refuse).expect("an empty directory");
    for _ in 0..input.byte() % 16 {
        let shape = input.byte();
        let level = if shape & 1 == 0 { Durability::Disk } else { Durability::Os };
        let repeated: Vec<u8> = input.bytes().repeat(1 + usize::from(shape >> 4));
        let payloads: Vec<&[u8]> = (0..=shape >> 1 & 3).map(|_| &repeated[..]).collect();
        append(&log, &payloads, level);
    }
    if input.byte() & 1 == 0 {
        log.close().expect("nothing fails");
    }
    drop(log);
    while !input.is_empty() {
        let slot = u32::from(input.byte() % 4);
        let path = format!("log/{}", segment_name(slot));
        let Ok(file) = disk.open(&path) else { continue };
        let at = u64::from(input.short()) % u64::from(SEGMENT_BYTES);
        match input.byte() % 4 {
            0 => {
                let mut byte = [0];
                if file.read_exact_at(&mut byte, at).is_ok() {
                    let _ = file.write_all_at(&[byte[0] ^ (1 << (input.byte() % 8))], at);
                }
            }
            1 => {
                let bytes = input.bytes();
                let end = (at + bytes.len() as u64).min(SEGMENT_BYTES.into());
                let _ = file.write_all_at(&bytes[..(end - at) as usize], at);
            }
            2 => {
                // A sector as it was before it was written.
                let _ = file.write_all_at(&[0; 512], at / 512 * 512);
            }
            _ => {
                let _ = file.set_len(at);
            }
        }
    }
    disk
}

/// Segments whose checksums are right and whose fields are whatever the input says.
fn forged(input: &mut Input<'_>) -> Arc<dyn Disk> {
    let disk = disk_with("log", &[]);
    for slot in 0..1 + u32::from(input.byte() % 3) {
        let sizes = [SEGMENT_BYTES, SEGMENT_BYTES, SEGMENT_BYTES, 2 * SEGMENT_BYTES, SEGMENT_BYTES + 1];
        let header = SegmentHeader {
            state: if input.byte() % 8 == 0 { SegmentState::Spare } else { SegmentState::Live },
            id: SegmentId(input.number() | 1),
            generation: Generation(input.number()),
            base: Lsn(input.number()),
            base_chain: u32::from(input.byte()),
            segment_bytes: sizes[usize::from(input.byte()) % sizes.len()],
            slot,
            previous: Generation(input.number()),
        };
        let mut bytes = vec![0; header.segment_bytes as usize];
        for at in [0, HEADER_BLOCK_BYTES as usize] {
            let encoded = header.encode();
            bytes[at..at + encoded.len()].copy_from_slice(&encoded);
        }
        forge_batches(input, &header, &mut bytes);
        put(&*disk, &format!("log/{}", segment_name(slot)), &bytes);
    }
    disk
}

fn forge_batches(input: &mut Input<'_>, header: &SegmentHeader, bytes: &mut [u8]) {
    let (mut at, mut first, mut chain) = (DATA_START as usize, header.base, header.base_chain);
    let limit = bytes.len() - FOOTER_BYTES;
    for _ in 0..input.byte() % 16 {
        let mut sums = chain.to_le_bytes().to_vec();
        let mut body = Vec::new();
        let count = u32::from(input.byte() % 4);
        for _ in 0..count {
            let payload = input.bytes();
            let mut record = RecordHeader {
                crc: 0,
                payload_len: payload.len() as u32,
                space: SpaceId(0),
                kind: RecordKind::ALL[usize::from(input.byte()) % 7],
                term: Term(input.number()),
                index: Index(input.number()),
                time: SpaceTime(input.number()),
            };
            let covered = [&record.encode()[4..], payload].concat();
            record.crc = crc32c(&covered);
            sums.extend_from_slice(&record.crc.to_le_bytes());
            body.extend_from_slice(&record.encode());
            body.extend_from_slice(payload);
        }
        let odd = input.byte();
        let kinds = [BatchKind::Idle, BatchKind::Opened, BatchKind::Closed, BatchKind::Records];
        let batch = BatchHeader {
            body_len: if odd & 1 == 0 { body.len() as u32 } else { input.number() as u32 },
            count: if odd & 2 == 0 { count } else { input.number() as u32 },
            first: if odd & 4 == 0 { first } else { Lsn(input.number()) },
            attested: Lsn(if odd & 8 == 0 { 0 } else { input.number() }),
            chain: if odd & 16 == 0 { chain } else { input.number() as u32 },
            body_crc: if odd & 32 == 0 { crc32c(&sums) } else { 0 },
            kind: if count > 0 { BatchKind::Records } else { kinds[usize::from(input.byte()) % kinds.len()] },
        };
        let end = at + BATCH_HEADER_BYTES + body.len();
        if end > limit {
            break;
        }
        bytes[at..at + BATCH_HEADER_BYTES].copy_from_slice(&batch.encode(header.id, at as u32));
        bytes[at + BATCH_HEADER_BYTES..end].copy_from_slice(&body);
        at += padded((BATCH_HEADER_BYTES + body.len()) as u32) as usize;
        first = Lsn(first.0.wrapping_add(count.into()));
        chain = batch.body_crc;
        if odd & 64 != 0 {
            at = (at + usize::from(input.byte()) * 8).min(limit);
        }
    }
    let shape = input.byte();
    if shape & 1 != 0 {
        let footer = Footer {
            end: if shape & 2 == 0 { at as u32 } else { input.number() as u32 },
            chain: if shape & 4 == 0 { chain } else { input.number() as u32 },
            first: if shape & 8 == 0 { header.base } else { Lsn(input.number()) },
            next: if shape & 16 == 0 { first } else { Lsn(input.number()) },
            first_time: SpaceTime(input.number()),
            last_time: SpaceTime(input.number()),
            truncates: shape & 32 != 0,
        };
        bytes[limit..].copy_from_slice(&footer.encode(header.id, limit as u32));
    }
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input(data);
    let mode = input.byte() % 4;
    let disk = match mode {
        0 => disk_with("log", &[(&segment_name(0), input.0)]),
        1 => {
            let (one, two) = input.0.split_at(input.0.len() / 2);
            disk_with("log", &[(&segment_name(0), one), (&segment_name(1), two)])
        }
        2 => mutated(&mut input),
        _ => forged(&mut input),
    };
    fuzz(&disk, if mode == 3 { Origin::Forger } else { Origin::Disk });
});

const _: () = assert!(RECORD_HEADER_BYTES == 40, "the offset of a blob above");
