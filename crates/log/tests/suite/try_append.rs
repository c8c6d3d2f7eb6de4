//! Appends that refuse instead of waiting, and the wait for their room.

use std::{
    future::Future,
    io::{self, IoSlice},
    sync::{Arc, Condvar, Mutex},
    task::{Context, Poll, Wake, Waker},
    thread::Thread,
};

use thalweg_disk::{
    Disk, File, LockGuard, Mapping, SimDisk,
    sim::{Errno, Fault, Operation},
};
use thalweg_log::{
    AppendError, Appended, Blocked, Draft, Log, LogOptions, Purpose, RecordKind, Truncation, TryAppendError,
};
use thalweg_types::{Action, Classified, Index, Lsn, ManualClock, SpaceId, SpaceTime, Term};

use crate::common::*;

fn options() -> LogOptions {
    LogOptions { segment_bytes: 16 * 1024, ..small_options() }
}

/// Appends one record, which is a [`payload`] of its LSN.
fn try_append(log: &Log, len: usize, purpose: Purpose) -> Result<Appended, TryAppendError> {
    let number = log.end().get();
    let payload = payload(number, len);
    let payload = [IoSlice::new(&payload)];
    let kind = RecordKind::Entry;
    let (term, index, time) = (Term(1), Index(number), SpaceTime(number));
    log.try_append(&[Draft { space: SpaceId(0), kind, term, index, time, payload: &payload }], purpose)
}

/// Appends until the log refuses. Returns the refusal.
fn fill(log: &Log, purpose: Purpose) -> TryAppendError {
    for _ in 0..1000 {
        if let Err(refused) = try_append(log, 6000, purpose) {
            return refused;
        }
    }
    panic!("the log never refuses");
}

fn assert_content(log: &Log) {
    for (record, number) in read_all(log).iter().zip(log.start().get()..) {
        assert_eq!(record.lsn, Lsn(number));
        assert!(record.payload == payload(number, record.payload.len()), "record {number}");
    }
}

struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<T>(future: impl Future<Output = T>) -> T {
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    let mut future = std::pin::pin!(future);
    loop {
        if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(&waker)) {
            return output;
        }
        std::thread::park();
    }
}

fn is_pending(future: impl Future) -> bool {
    std::pin::pin!(future).poll(&mut Context::from_waker(Waker::noop())).is_pending()
}

#[test]
fn records_are_readable_at_once_and_durable_after_a_sync() {
    let sim = SimDisk::new(1);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    let appended = try_append(&log, 100, Purpose::Data).unwrap();
    assert_eq!((appended.first, appended.next), (Lsn(0), Lsn(1)));
    assert_eq!(log.durable(), Lsn(0), "an append at level os does not sync");
    assert_eq!(read_all(&log).len(), 1);
    assert_content(&log);
    log.sync_through(appended.next).unwrap();
    drop(log);
    let disk: Arc<dyn Disk> = Arc::new(sim.after_power_loss_with(thalweg_disk::sim::PowerLoss::LoseUnsynced));
    let (log, _) = open_still(&disk, options()).unwrap();
    assert_eq!(log.end(), Lsn(1));
    assert_content(&log);
}

#[test]
fn a_missing_segment_is_a_refusal_and_its_preparation_ends_the_wait() {
    let sim = SimDisk::new(2);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    sim.fail(Fault::new(Operation::Create, 1, Errno::Io).on_path(".tmp").for_good());
    let refused = fill(&log, Purpose::Data);
    assert_eq!(refused, TryAppendError::WouldBlock(Blocked::NoSegment));
    assert_eq!((refused.code(), refused.action()), ("log_would_block", Action::Retry));
    let end = log.end();
    assert!(try_append(&log, 6000, Purpose::Reclaim).is_ok(), "the last spare is kept for this purpose");
    assert_eq!(log.end(), end.next());
    assert_eq!(fill(&log, Purpose::Reclaim), TryAppendError::WouldBlock(Blocked::NoSegment));

    // Nobody can prepare a segment, so the wait ends with the reason.
    let waited = block_on(log.append_ready(Purpose::Reclaim));
    assert!(matches!(&waited, Err(AppendError::NoSegment { reason: Some(_), .. })), "{waited:?}");
    sim.clear_faults();
    block_on(log.append_ready(Purpose::Reclaim)).unwrap();
    try_append(&log, 6000, Purpose::Reclaim).unwrap();
    block_on(log.append_ready(Purpose::Data)).unwrap();
    try_append(&log, 6000, Purpose::Data).unwrap();
    assert_eq!(log.stats().segment_waits, 3, "refusals alone are no waits");
    assert_content(&log);
}

#[test]
fn rejected_appends_are_those_of_an_append() {
    let sim = SimDisk::new(3);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    let max = log.max_batch_bytes();
    let too_large = try_append(&log, max as usize, Purpose::Data);
    assert!(matches!(too_large, Err(TryAppendError::Append(AppendError::TooLarge { max: at, .. })) if at == max));
    try_append(&log, max as usize - 88, Purpose::Data).unwrap();
    // The segment is full now, and one spare is kept for other purposes.
    block_on(log.append_ready(Purpose::Data)).unwrap();
    assert_eq!(log.try_append(&[], Purpose::Data), Err(TryAppendError::Append(AppendError::Empty)));
    // A truncation takes effect without a sync, as with other appends.
    let truncate = Draft {
        space: SpaceId(0),
        kind: RecordKind::Truncate,
        term: Term::ZERO,
        index: Index(0),
        time: SpaceTime(0),
        payload: &[],
    };
    let at = log.try_append(&[truncate], Purpose::Data).unwrap().first;
    assert_eq!(*log.truncations(), [Truncation { space: SpaceId(0), lsn: at, index: Index(0) }]);

    sim.fail(Fault::new(Operation::Sync, 1, Errno::Io).on_path(".seg").for_good());
    try_append(&log, 1, Purpose::Data).unwrap();
    let failed = log.sync().unwrap_err();
    assert_eq!(try_append(&log, 1, Purpose::Data), Err(TryAppendError::Append(failed.clone())));
    assert_eq!(block_on(log.append_ready(Purpose::Data)), Err(failed));
}

#[test]
fn a_closed_log_ends_the_wait() {
    let sim = SimDisk::new(4);
    let disk: Arc<dyn Disk> = Arc::new(sim.clone());
    let (log, _) = open_still(&disk, options()).unwrap();
    log.close().unwrap();
    assert_eq!(try_append(&log, 1, Purpose::Data), Err(TryAppendError::Append(AppendError::Closed)));
    assert_eq!(block_on(log.append_ready(Purpose::Data)), Err(AppendError::Closed));
}

/// While the disk does not finish an fsync, appends continue into further segments up to a bound, and are then refused.
/// None of them waits for the fsync.
#[test]
fn a_stuck_fsync_never_holds_an_append() {
    let gate = Arc::new(Gate::default());
    let disk: Arc<dyn Disk> = Arc::new(Gated { disk: SimDisk::new(5), gate: Arc::clone(&gate) });
    let options = LogOptions { spare_segments: 16, ..options() };
    let (log, _) = open_still(&disk, options).unwrap();
    while log.stats().spare_segments < 16 {
        pause();
    }
    gate.shut();
    let _opens = OpenAtEnd(Arc::clone(&gate));
    assert_eq!(fill(&log, Purpose::Data), TryAppendError::WouldBlock(Blocked::Unsynced));
    assert_eq!((log.durable(), log.segments().len()), (Lsn(0), 5));
    assert!(log.stats().spare_segments > 1, "segments are not what is missing");
    assert!(is_pending(log.append_ready(Purpose::Data)));
    assert_content(&log);
    gate.open();
    block_on(log.append_ready(Purpose::Data)).unwrap();
    try_append(&log, 6000, Purpose::Data).unwrap();
    log.sync().unwrap();
    assert_eq!(log.durable(), log.end());
}

/// A gate that holds every call of `sync_data` while it is shut.
#[derive(Debug, Default)]
struct Gate {
    is_shut: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn shut(&self) {
        *self.is_shut.lock().unwrap() = true;
    }

    fn open(&self) {
        *self.is_shut.lock().unwrap() = false;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let _open = self.opened.wait_while(self.is_shut.lock().unwrap(), |is_shut| *is_shut).unwrap();
    }
}

/// Opens the gate when a test fails, so that the log's threads end.
struct OpenAtEnd(Arc<Gate>);

impl Drop for OpenAtEnd {
    fn drop(&mut self) {
        self.0.open();
    }
}

#[derive(Debug)]
struct Gated {
    disk: SimDisk,
    gate: Arc<Gate>,
}

impl Gated {
    fn gated(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(GatedFile { file, gate: Arc::clone(&self.gate) })
    }
}

impl Disk for Gated {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.gated(self.disk.open(path)?))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.gated(self.disk.create(path)?))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.disk.rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.disk.create_dir(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
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
struct GatedFile {
    file: Arc<dyn File>,
    gate: Arc<Gate>,
}

impl File for GatedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.gate.pass();
        self.file.sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.file.sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        self.file.map(len)
    }
}

#[test]
fn a_stepped_log_works_only_in_its_steps() {
    let disk = SimDisk::new(1);
    let clock = Arc::new(ManualClock::default());
    let (log, _) = Log::open_stepped(Arc::new(disk.clone()), "log", options(), clock.clone(), 7).unwrap();
    for _ in 0..20 {
        let refused = fill(&log, Purpose::Data);
        assert!(matches!(refused, TryAppendError::WouldBlock(_)), "{refused}");
        let end = log.end();
        assert!(matches!(try_append(&log, 6000, Purpose::Data), Err(TryAppendError::WouldBlock(_))));
        assert!(log.end() == end && log.step());
        while log.step() {}
    }
    assert!(log.end() > Lsn(20), "{:?}", log.end());
    assert_content(&log);
    // A deadline is an interval of the clock, and nobody waits for it.
    try_append(&log, 10, Purpose::Data).unwrap();
    log.request_sync();
    assert!(log.durable() < log.end());
    assert!(log.step() && log.durable() == log.end());
    assert_eq!(log.stats().pacer, Default::default(), "no step pauses");
    drop(log);
    let (log, _) = Log::open(Arc::new(disk), "log", options(), clock, 7).unwrap();
    assert!(!log.step(), "a log with threads has no steps");
}
