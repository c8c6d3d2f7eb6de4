//! A minimal backend, and an in-memory log whose records the tests apply.

use std::{
    collections::BTreeMap,
    ops::{Bound, ControlFlow},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use thalweg_state::{
    blobs::{BlobUnreadable, Blobs},
    machine::{Entry, LocalOutcome, Machine, MachineOptions},
};
use thalweg_store::{Applied, Backend, BackendError, BackendStats, Change, Direction, View, Visit, WriteBatch};
use thalweg_types::{
    BlobRef, Generation, Index, LogPosition, Lsn, SpaceTime, Term,
    command::{Move, MoveTarget, Outcome},
};

pub type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// A backend of one map; a view is a copy. It counts reads, so that tests can assert that a command reads nothing.
#[derive(Debug, Default)]
pub struct MapBackend {
    state: Mutex<(Arc<Map>, Option<Applied>)>,
    pub reads: AtomicU64,
    /// Bytes of the values that reads of single keys have copied.
    pub read_bytes: AtomicU64,
    /// Number of changes in all batches.
    pub changes: AtomicU64,
    /// Number of applies that fail from now on.
    pub failures: AtomicU64,
}

impl MapBackend {
    pub fn of(map: Map, applied: Option<Applied>) -> Arc<Self> {
        Arc::new(Self { state: Mutex::new((Arc::new(map), applied)), ..Self::default() })
    }

    pub fn dump(&self) -> Map {
        (*self.state.lock().unwrap().0).clone()
    }

    /// Returns a new backend with a copy of the map, as after a restart.
    pub fn copy(&self) -> Arc<Self> {
        let state = self.state.lock().unwrap();
        Self::of((*state.0).clone(), state.1)
    }
}

impl Backend for MapBackend {
    fn apply(&self, batch: &WriteBatch, applied: Applied) -> Result<(), BackendError> {
        if self.failures.load(Ordering::Relaxed) > 0 {
            return Err(BackendError::Failed("as asked".into()));
        }
        let mut state = self.state.lock().unwrap();
        let map = Arc::make_mut(&mut state.0);
        self.changes.fetch_add(batch.len() as u64, Ordering::Relaxed);
        for change in batch.changes() {
            match change {
                Change::Put(key, value) => {
                    assert!(!key.is_empty() && key.len() <= 65_535);
                    map.insert(key.to_vec(), value.to_vec());
                }
                Change::Delete(key) => {
                    map.remove(key);
                }
            }
        }
        state.1 = Some(applied);
        Ok(())
    }

    fn applied(&self) -> Option<Applied> {
        self.state.lock().unwrap().1
    }

    fn persisted(&self) -> Option<Applied> {
        self.applied()
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let found = self.state.lock().unwrap().0.get(key).map(|value| Bytes::copy_from_slice(value));
        self.read_bytes.fetch_add(found.as_ref().map_or(0, Bytes::len) as u64, Ordering::Relaxed);
        Ok(found)
    }

    fn view(&self) -> Arc<dyn View> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let state = self.state.lock().unwrap();
        Arc::new(MapView { map: state.0.clone(), applied: state.1.unwrap_or_default() })
    }

    fn flush(&self) -> Result<Option<Applied>, BackendError> {
        Ok(self.applied())
    }

    fn maintain(&self) -> Result<(), BackendError> {
        Ok(())
    }

    fn stats(&self) -> BackendStats {
        BackendStats::default()
    }

    fn name(&self) -> &'static str {
        "map"
    }
}

struct MapView {
    map: Arc<Map>,
    applied: Applied,
}

impl View for MapView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        Ok(self.map.get(key).map(|value| Bytes::copy_from_slice(value)))
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        let range = self.map.range::<[u8], _>((lower, upper));
        let mut visit = |(key, value): (&Vec<u8>, &Vec<u8>)| visit(key, value) == ControlFlow::Break(());
        match direction {
            Direction::Forward => range.into_iter().any(&mut visit),
            Direction::Reverse => range.rev().any(&mut visit),
        };
        Ok(())
    }

    fn applied(&self) -> Applied {
        self.applied
    }
}

/// A record as the log contains it.
#[derive(Clone, Debug)]
pub struct LogRecord {
    pub payload: Vec<u8>,
    pub at: LogPosition,
    pub next_lsn: Lsn,
    pub kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Entry { index: Index, time: SpaceTime },
    Move,
    Skip { index: Index, time: SpaceTime },
}

/// The bytes of segments, which the machine reads too.
#[derive(Clone, Debug, Default)]
pub struct Segments(Arc<Mutex<BTreeMap<Generation, Vec<u8>>>>);

impl Blobs for Segments {
    fn read(&self, blob: &BlobRef) -> Result<Bytes, BlobUnreadable> {
        let segments = self.0.lock().unwrap();
        let at = blob.offset as usize;
        let bytes = segments.get(&blob.generation).and_then(|segment| segment.get(at..at + blob.len as usize));
        match bytes.filter(|bytes| crc_fast::crc32_iscsi(bytes) == blob.crc) {
            Some(bytes) => Ok(Bytes::copy_from_slice(bytes)),
            None => Err(BlobUnreadable(format!("{blob:?}"))),
        }
    }
}

/// An in-memory log: segments of bytes, and the records in them.
#[derive(Clone, Debug)]
pub struct Log {
    pub segments: Segments,
    pub records: Vec<LogRecord>,
    pub segment_bytes: usize,
    next_index: u64,
}

impl Log {
    pub fn new(segment_bytes: usize) -> Self {
        Self { segments: Segments::default(), records: Vec::new(), segment_bytes, next_index: 1 }
    }

    /// Creates the empty log of a node whose state has applied entries up to an index on another node.
    pub fn after(segment_bytes: usize, index: Index) -> Self {
        Self { next_index: index.0 + 1, ..Self::new(segment_bytes) }
    }

    /// Returns a log with the same bytes and records, for another node.
    pub fn copy(&self) -> Self {
        let segments = self.segments.0.lock().unwrap().clone();
        Self { segments: Segments(Arc::new(Mutex::new(segments))), ..self.clone() }
    }

    pub fn entry(&mut self, payload: &[u8], time: SpaceTime) -> LogRecord {
        self.next_index += 1;
        self.push(payload, Kind::Entry { index: Index(self.next_index - 1), time })
    }

    pub fn skip(&mut self, time: SpaceTime) -> LogRecord {
        self.next_index += 1;
        self.push(b"", Kind::Skip { index: Index(self.next_index - 1), time })
    }

    pub fn moved(&mut self, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) -> LogRecord {
        let mut payload = Vec::new();
        Move::encode(&mut payload, from, target, bytes);
        self.push(&payload, Kind::Move)
    }

    /// Appends a move record without bytes.
    pub fn local(&mut self, target: &MoveTarget<'_>) -> LogRecord {
        self.push(&target.encode_alone(), Kind::Move)
    }

    fn push(&mut self, payload: &[u8], kind: Kind) -> LogRecord {
        let mut segments = self.segments.0.lock().unwrap();
        let full = segments.last_key_value().is_none_or(|(_, bytes)| bytes.len() > self.segment_bytes);
        if full {
            let next = segments.last_key_value().map_or(1, |(generation, _)| generation.0 + 1);
            segments.insert(Generation(next), vec![0xAA; 64]);
        }
        let (&generation, segment) = segments.iter_mut().next_back().unwrap();
        segment.extend_from_slice(&[0xBB; 24]);
        let at = LogPosition { generation, offset: segment.len() as u32 };
        segment.extend_from_slice(payload);
        drop(segments);
        let next_lsn = Lsn(self.records.len() as u64 + 1);
        self.records.push(LogRecord { payload: payload.to_vec(), at, next_lsn, kind });
        self.records.last().unwrap().clone()
    }

    /// Returns the bytes of a pointer, verified against its checksum.
    pub fn read(&self, blob: &BlobRef) -> Bytes {
        self.segments.read(blob).unwrap()
    }

    /// Opens a machine that reads this log.
    pub fn machine(&self, backend: Arc<dyn Backend>, options: MachineOptions) -> Machine {
        Machine::open(backend, options).unwrap().with_blobs(Arc::new(self.segments.clone()))
    }
}

/// Applies a record of any kind.
pub fn apply(machine: &Machine, record: &LogRecord) -> (Vec<Outcome>, Option<LocalOutcome>) {
    apply_for(machine, record, true)
}

/// Applies a record of any kind. `is_awaited` is true if a client waits for the outcomes of an entry.
pub fn apply_for(machine: &Machine, record: &LogRecord, is_awaited: bool) -> (Vec<Outcome>, Option<LocalOutcome>) {
    let mut outcomes = Vec::new();
    let mut moved = None;
    match record.kind {
        Kind::Entry { index, time } => {
            let (payload, at, next_lsn) = (&record.payload[..], record.at, record.next_lsn);
            let entry = Entry { term: Term(1), index, time, payload, at, next_lsn };
            machine.apply_for(&entry, is_awaited, &mut outcomes).unwrap();
        }
        Kind::Move => moved = Some(machine.apply_move(&record.payload, record.at, record.next_lsn).unwrap()),
        Kind::Skip { index, time } => machine.skip(record.next_lsn, Some((Term(1), index, time))).unwrap(),
    }
    (outcomes, moved)
}

/// Frames commands into an entry's payload.
pub fn frame(commands: &[Vec<u8>]) -> Vec<u8> {
    let mut payload = Vec::new();
    for command in commands {
        payload.extend_from_slice(&(command.len() as u32).to_le_bytes());
        payload.extend_from_slice(command);
    }
    payload
}

/// Encodes one command.
pub fn command(encode: impl FnOnce(&mut Vec<u8>)) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out);
    out
}

/// A machine with its backend and its log.
pub struct Bench {
    pub backend: Arc<MapBackend>,
    pub machine: Machine,
    pub log: Log,
    pub options: MachineOptions,
}

impl Bench {
    pub fn new(options: MachineOptions) -> Self {
        let backend = Arc::new(MapBackend::default());
        let log = Log::new(4096);
        let machine = log.machine(backend.clone(), options);
        Self { backend, machine, log, options }
    }

    /// Applies one entry with these commands.
    pub fn run(&mut self, time: u64, commands: &[Vec<u8>]) -> Vec<Outcome> {
        let record = self.log.entry(&frame(commands), SpaceTime(time));
        apply(&self.machine, &record).0
    }

    /// Applies a node-local record without bytes.
    pub fn local(&mut self, target: &MoveTarget<'_>) -> LocalOutcome {
        let record = self.log.local(target);
        apply(&self.machine, &record).1.expect("a move")
    }

    pub fn reopen(&mut self) {
        self.backend = self.backend.copy();
        self.machine = self.log.machine(self.backend.clone(), self.options);
    }
}
