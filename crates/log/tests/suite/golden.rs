//! The format of the files is stable: files of format version 1 are written identically and can be read.
//!
//! `THALWEG_BLESS=1 cargo test -p thalweg-log --test suite golden` rewrites the files. A difference in a
//! released file means a new format version.

use std::{
    fmt::Write as _,
    io::IoSlice,
    path::{Path, PathBuf},
    sync::Arc,
};

use thalweg_disk::{Disk, SimDisk};
use thalweg_log::{
    Draft, Log, LogOptions, Purpose, RecordKind,
    format::{BATCH_HEADER_BYTES, BatchHeader, BatchKind, DATA_START, RECORD_HEADER_BYTES, RecordHeader, SegmentId},
    offline,
};
use thalweg_types::{Durability, Index, Lsn, SpaceId, SpaceTime, Term};

use crate::common::*;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, ..small_options() }
}

/// A closed log of two segments, with every kind of record and of batch, a footer, and headers in both
/// states.
fn write() -> (SimDisk, Vec<Vec<u8>>) {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    let mut payloads = Vec::new();
    for (sizes, level) in [
        (&[0, 1, 7, 8, 9, 30, 100][..], Durability::Disk), // an idle marker follows
        (&[13], Durability::Os),
        (&[6500], Durability::Os),
        (&[5000], Durability::Os), // in the second segment
    ] {
        let first = payloads.len();
        payloads.extend(sizes.iter().zip(first as u64..).map(|(len, number)| payload(number, *len)));
        append(&log, &payloads[first..], level).unwrap();
    }
    log.close().unwrap();
    (sim, payloads)
}

fn path(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

fn golden(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

const FILES: [(&str, &str); 2] = [("sealed-v1.seg", "log/00000001.seg"), ("closed-v1.seg", "log/00000002.seg")];

#[test]
fn a_log_is_written_byte_for_byte_as_before() {
    let (disk, _) = write();
    for (name, path) in FILES {
        let bytes = disk.cached_bytes(path).unwrap();
        if std::env::var_os("THALWEG_BLESS").is_some() {
            std::fs::write(self::path(name), &bytes).unwrap();
        }
        let golden = golden(name);
        let difference = bytes.iter().zip(&golden).position(|(ours, theirs)| ours != theirs);
        assert_eq!((difference, bytes.len()), (None, golden.len()), "{name}");
    }
}

/// Files written before footers had flags. At that time no program wrote truncations, except for this test.
const WITHOUT_FLAGS: [(&str, &str); 2] = [("sealed-v1-without-flags.seg", FILES[0].1), FILES[1]];

#[test]
fn golden_files_can_be_read() {
    let disk = disk_of(FILES);
    let log = check(&disk);
    assert_eq!(log.truncations().len(), 1, "the footer of the sealed segment has the flag");
    check(&disk_of(WITHOUT_FLAGS));
}

fn disk_of(files: [(&str, &str); 2]) -> SimDisk {
    let disk = SimDisk::new(2);
    disk.create_dir("log").unwrap();
    for (name, path) in files {
        disk.create(path).unwrap().write_all_at(&golden(name), 0).unwrap();
    }
    disk
}

fn check(disk: &SimDisk) -> Log {
    let (_, payloads) = write();
    let report = offline::verify(disk, "log").unwrap();
    assert_eq!(report.verdict, offline::Verdict::Good, "{report:?}");
    assert!(report.clean);
    let (log, recovery) = open_still(&(Arc::new(disk.clone()) as Arc<dyn Disk>), options()).unwrap();
    assert!(recovery.clean);
    assert_records(&read_all(&log), 0, &payloads);
    log
}

fn hex(bytes: &[u8], from: u32) -> String {
    let mut text = String::new();
    for (line, chunk) in bytes.chunks(16).enumerate() {
        write!(text, "{:04x} ", from as usize + line * 16).unwrap();
        for byte in chunk {
            write!(text, " {byte:02x}").unwrap();
        }
        text.push('\n');
    }
    text
}

/// The format document's example must equal the bytes that the code writes, and decode to the values in the
/// document.
#[test]
fn the_documented_example_is_real() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    let payload = [IoSlice::new(b"hello")];
    let draft = Draft {
        space: SpaceId(0),
        kind: RecordKind::Entry,
        term: Term(1),
        index: Index(1),
        time: SpaceTime(1_000_000),
        payload: &payload,
    };
    log.append(&[draft], Durability::Os, Purpose::Data).unwrap();
    let image = sim.cached_bytes("log/00000001.seg").unwrap();
    let at = DATA_START + BATCH_HEADER_BYTES as u32;
    let batch = &image[at as usize..][..96];
    let example =
        hex(&image[..64], 0) + "...\n" + &hex(&image[DATA_START as usize..][..48], DATA_START) + &hex(batch, at);
    let document = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/formats/log.md");
    let document = std::fs::read_to_string(document).unwrap();
    assert!(document.contains(&example), "docs/formats/log.md should contain\n{example}");
    let id = SegmentId(u64::from_le_bytes(image[16..24].try_into().unwrap()));
    let header = BatchHeader::decode(batch[..48].try_into().unwrap(), id, at, 16 * 1024).unwrap();
    assert_eq!((header.first, header.count, header.body_len, header.kind), (Lsn(0), 1, 45, BatchKind::Records));
    let record = RecordHeader::decode(&batch[48..]).unwrap();
    assert_eq!((record.payload_len, record.index), (5, Index(1)));
    assert_eq!(&batch[48 + RECORD_HEADER_BYTES..][..5], b"hello");
}
