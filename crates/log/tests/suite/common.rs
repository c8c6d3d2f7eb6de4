//! Helpers of the log's tests: small logs, records with verifiable content, a seeded random generator.

use std::{io::IoSlice, sync::Arc, time::Duration};

use thalweg_disk::{Disk, RealDisk};
use thalweg_log::{AppendError, Appended, Draft, Log, LogOptions, LogRecord, OpenError, Purpose, RecordKind, Recovery};
use thalweg_types::{Durability, Index, Lsn, ManualClock, SpaceId, SpaceTime, SystemClock, Term};

/// Pauses a loop that waits for another thread or process. Without the pause, the loop takes a processor from it.
pub fn pause() {
    std::thread::sleep(Duration::from_millis(1));
}

pub fn small_options() -> LogOptions {
    LogOptions { segment_bytes: 64 * 1024, reserve_bytes: 0, idle_mark_after: Duration::ZERO, ..LogOptions::default() }
}

pub fn real_disk() -> (tempfile::TempDir, Arc<dyn Disk>) {
    let dir = tempfile::tempdir().unwrap();
    let disk = RealDisk::open(dir.path()).unwrap();
    (dir, Arc::new(disk))
}

pub fn open(disk: &Arc<dyn Disk>, options: LogOptions) -> Result<(Log, Recovery), OpenError> {
    Log::open(Arc::clone(disk), "log", options, Arc::new(SystemClock::default()), 7)
}

/// Opens a log like [`open`], with a clock that stands still, so that no background action becomes due.
pub fn open_still(disk: &Arc<dyn Disk>, options: LogOptions) -> Result<(Log, Recovery), OpenError> {
    Log::open(Arc::clone(disk), "log", options, Arc::new(ManualClock::default()), 7)
}

/// A payload of `len` bytes that contains its LSN.
pub fn payload(number: u64, len: usize) -> Vec<u8> {
    let mut rng = Rng(number.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    (0..len).map(|_| rng.next() as u8).collect()
}

/// Appends one batch with these payloads. Index and time are derived from the expected LSN.
pub fn append(log: &Log, payloads: &[Vec<u8>], level: Durability) -> Result<Appended, AppendError> {
    append_for(log, payloads, level, Purpose::Data)
}

pub fn append_for(
    log: &Log,
    payloads: &[Vec<u8>],
    level: Durability,
    purpose: Purpose,
) -> Result<Appended, AppendError> {
    let next = log.end().get();
    let parts: Vec<[IoSlice<'_>; 2]> = payloads
        .iter()
        .map(|payload| {
            let (head, tail) = payload.split_at(payload.len() / 3);
            [IoSlice::new(head), IoSlice::new(tail)]
        })
        .collect();
    let drafts: Vec<Draft<'_>> = parts
        .iter()
        .zip(next..)
        .map(|(parts, number)| Draft {
            space: SpaceId(number as u32 % 3),
            kind: RecordKind::ALL[number as usize % 7],
            term: Term(number / 10),
            index: Index(number),
            time: SpaceTime(1000 + number),
            payload: parts,
        })
        .collect();
    log.append(&drafts, level, purpose)
}

/// Checks that `records` are those that [`append`] wrote from `first` on, with these payloads.
pub fn assert_records(records: &[LogRecord], first: u64, payloads: &[Vec<u8>]) {
    assert_eq!(records.len(), payloads.len(), "number of records from {first}");
    for ((record, payload), number) in records.iter().zip(payloads).zip(first..) {
        assert_eq!(record.lsn, Lsn(number));
        assert_eq!(record.space, SpaceId(number as u32 % 3));
        assert_eq!(record.kind, RecordKind::ALL[number as usize % 7]);
        assert_eq!(record.term, Term(number / 10));
        assert_eq!(record.index, Index(number));
        assert_eq!(record.time, SpaceTime(1000 + number));
        assert!(record.payload == payload[..], "payload of {number}");
    }
}

pub fn read_all(log: &Log) -> Vec<LogRecord> {
    log.records_from(log.start()).unwrap().collect::<Result<_, _>>().unwrap()
}

/// Seeded random numbers (xorshift64*).
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        (self.next() >> 11) % bound
    }
}
