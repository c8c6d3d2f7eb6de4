//! Takes a snapshot of an open database.
//!
//! Owns: [`Origin`], which begins a snapshot, and [`Snapshot`], which returns its chunks in order and can be rewound by
//! a few chunks. Does not own: the contents of chunks (`gather`), the threads that read and compress them (`pipeline`),
//! or the place to which the caller writes them.
//!
//! Invariant: everything in a snapshot is on disk before its first chunk is returned.

use std::{
    collections::VecDeque,
    io::{self, Write},
    num::NonZeroU64,
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use thalweg_disk::Priority;
use thalweg_log::Log;
use thalweg_state::{machine::Machine, membership::AppliedMembership};
use thalweg_store::{Backend, Background};
use thalweg_types::{
    Lsn, NodeId,
    limits::{SNAPSHOT_CHUNK_BYTES, SNAPSHOT_REWIND_CHUNKS},
};

use crate::{
    chunk::{Link, Packer},
    error::SnapshotError,
    format::{Begin, ChunkKind, Compression, PartKind, SnapshotInfo, Totals},
    gather::{Cursor, Source},
    pins::{Pin, Pins},
    pipeline::{PATIENCE, Pipeline, Ready},
    stats::{Counters, SnapshotCounter},
};

/// Options for taking a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotOptions {
    /// LSN at which an increment (snapshot of changes) begins; `None` for a full snapshot of the state.
    pub since: Option<Lsn>,
    /// Compression of the snapshot's chunks.
    pub compression: Compression,
    /// Number of bytes of rows or log entries in a chunk before compression, at most [`SNAPSHOT_CHUNK_BYTES`].
    pub chunk_bytes: usize,
    /// Maximum number of bytes before compression that the snapshot reads per second while clients write; `None` for no
    /// maximum. A lower pace uses less processor time, but the snapshot takes longer, and keeps log segments from being
    /// freed for longer. The slowest possible pace is four chunks per second.
    pub pace: Option<NonZeroU64>,
}

impl Default for SnapshotOptions {
    fn default() -> Self {
        Self { since: None, compression: Compression::default(), chunk_bytes: SNAPSHOT_CHUNK_BYTES, pace: None }
    }
}

/// A snapshot in progress, which returns one chunk after the other.
///
/// A snapshot has its own threads with idle priority. They read and compress chunks before the caller requests them. If
/// the database was opened without background threads (stepped mode), the snapshot has none either. Memory: six chunks,
/// and six more for each compressing thread after the first; there are at most four such threads. Dropping the snapshot
/// frees all of this memory.
pub struct Snapshot {
    begin: Begin,
    estimated_rows: u64,
    chunk_bytes: usize,
    compression: Compression,
    pace: Option<NonZeroU64>,
    source: Source,
    pipeline: Option<Pipeline>,
    /// Priority of the threads that read and compress chunks.
    priority: Priority,
    /// Threads that read and compress chunks: the snapshot's own threads, or in stepped mode (a database without
    /// background threads) the caller's thread.
    background: Background,
    /// Longest time that the snapshot waits for a chunk from threads with idle priority. If they take longer, they are
    /// restarted with a low priority.
    patience: Duration,
    link: Link,
    next: Cursor,
    /// Positions before each of the chunks returned last, oldest first. The snapshot can be rewound to these chunks.
    cursors: VecDeque<(Link, Cursor)>,
    counted: SnapshotCounter,
    _pin: Pin,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("info", &self.begin.info).field("next", &self.link).finish_non_exhaustive()
    }
}

/// The parts of an open database from which a snapshot is taken.
#[derive(Clone, Copy)]
pub struct Origin<'a> {
    /// Id of the node from which the snapshot is taken.
    pub node: NodeId,
    /// Log of the node from which the snapshot is taken.
    pub log: &'a Log,
    /// Backend that stores the state of the database.
    pub backend: &'a Arc<dyn Backend>,
    /// State machine of the database.
    pub machine: &'a Machine,
    /// Threads that read and compress a snapshot: its own threads, or in stepped mode (a database without background
    /// threads) the caller's thread.
    pub background: Background,
    /// Count of the database's open snapshots. While it is above 0, no log segment is freed, unless the disk is full.
    pub pins: &'a Arc<Pins>,
    /// Counters over all snapshots of the database.
    pub counters: &'a Arc<Counters>,
}

impl std::fmt::Debug for Origin<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Origin").field("node", &self.node).finish_non_exhaustive()
    }
}

impl Origin<'_> {
    /// Begins a snapshot of the present applied state, or of the changes since an LSN. Writes continue concurrently.
    pub fn snapshot(&self, options: &SnapshotOptions) -> Result<Snapshot, SnapshotError> {
        let mut counted = SnapshotCounter::begin(self.counters);
        match self.source(options) {
            Ok((pin, source, begin)) => Ok(self.begin(options, pin, source, begin, counted)),
            Err(error) => {
                counted.failed(&error);
                Err(error)
            }
        }
    }

    fn source(&self, options: &SnapshotOptions) -> Result<(Pin, Source, Begin), SnapshotError> {
        let pin = self.pins.pin()?;
        let (source, begin) = match options.since {
            None => Source::of_state(self.node, self.log, &**self.backend)?,
            Some(since) => Source::of_log(self.node, self.log, self.machine, since)?,
        };
        self.log.sync_through(begin.info.applied.lsn).map_err(|error| SnapshotError::Log(error.to_string()))?;
        Ok((pin, source, begin))
    }

    fn begin(
        &self,
        options: &SnapshotOptions,
        pin: Pin,
        source: Source,
        begin: Begin,
        counted: SnapshotCounter,
    ) -> Snapshot {
        let estimated_rows = match begin.info.kind {
            PartKind::Full => self.backend.stats().estimated_keys,
            PartKind::Increment => 0,
        };
        Snapshot {
            begin,
            estimated_rows,
            chunk_bytes: options.chunk_bytes.clamp(1, SNAPSHOT_CHUNK_BYTES),
            compression: options.compression,
            pace: options.pace,
            source,
            pipeline: None,
            priority: Priority::Idle,
            background: self.background,
            patience: PATIENCE,
            link: Link::default(),
            next: Cursor::Begin,
            cursors: VecDeque::new(),
            counted,
            _pin: pin,
        }
    }
}

impl Snapshot {
    /// Description of the snapshot, as stored in its first chunk.
    #[must_use]
    pub fn info(&self) -> &SnapshotInfo {
        &self.begin.info
    }

    /// Members of the cluster at the time of the snapshot, and the log entry that contained them; `None` in an
    /// increment.
    #[must_use]
    pub fn membership(&self) -> Option<&AppliedMembership> {
        self.begin.membership.as_ref()
    }

    /// Approximate number of rows that the snapshot will have, for a progress bar; 0 if there is no estimate.
    #[must_use]
    pub fn estimated_rows(&self) -> u64 {
        self.estimated_rows
    }

    /// Numbers of rows, log entries and bytes in the chunks returned so far.
    #[must_use]
    pub fn so_far(&self) -> Totals {
        self.next.totals()
    }

    /// Number of the chunk that [`next_chunk`](Self::next_chunk) returns next.
    #[must_use]
    pub fn next_number(&self) -> u64 {
        self.link.number
    }

    /// Returns the next chunk of the snapshot; `None` after the last chunk.
    pub fn next_chunk(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let made = self.make_next();
        let chunk = made.inspect_err(|error| self.counted.failed(error))?;
        self.counted.count_chunk(chunk.as_ref().map_or(0, Bytes::len));
        if matches!(self.next, Cursor::Done(_)) {
            self.counted.taken();
        }
        Ok(chunk)
    }

    fn make_next(&mut self) -> Result<Option<Bytes>, SnapshotError> {
        let before = (self.link, self.next.clone());
        let sealed = match &self.next {
            Cursor::Done(_) => return Ok(None),
            Cursor::Begin => {
                let sealed = self.seal(ChunkKind::Begin, &self.begin.encode())?;
                self.next = self.source.first();
                sealed
            }
            Cursor::Rows(..) | Cursor::Entries(..) => {
                let Ready { kind, packed, after } = self.next_ready()?;
                self.next = after;
                self.link.seal(kind, packed)
            }
            Cursor::End(totals) => {
                let totals = *totals;
                let sealed = self.seal(ChunkKind::End, &totals.encode())?;
                self.next = Cursor::Done(totals);
                self.pipeline = None;
                sealed
            }
        };
        self.cursors.push_back(before);
        if self.cursors.len() > SNAPSHOT_REWIND_CHUNKS {
            self.cursors.pop_front();
        }
        Ok(Some(sealed))
    }

    fn next_ready(&mut self) -> Result<Ready, SnapshotError> {
        loop {
            let (patience, priority) = match self.priority {
                Priority::Idle => (self.patience, Priority::Idle),
                Priority::Low => (Duration::MAX, Priority::Low),
            };
            let pipeline = match &mut self.pipeline {
                Some(pipeline) => pipeline,
                none => {
                    let (source, next, pace) = (&self.source, &self.next, self.pace);
                    let (chunk_bytes, compression) = (self.chunk_bytes, self.compression);
                    none.insert(match self.background {
                        Background::Threads => Pipeline::start(source, next, chunk_bytes, compression, priority, pace)?,
                        Background::Stepped => Pipeline::here(source, next, chunk_bytes, compression)?,
                    })
                }
            };
            if let Some(ready) = pipeline.next(patience)? {
                return Ok(ready);
            }
            self.priority = Priority::Low;
            self.pipeline = None;
        }
    }

    /// Builds the first or the last chunk of the snapshot from its uncompressed contents.
    fn seal(&mut self, kind: ChunkKind, plain: &[u8]) -> io::Result<Bytes> {
        Ok(self.link.seal(kind, Packer::new(self.compression)?.pack(plain)?))
    }

    /// Rewinds the snapshot to a chunk. The next call of [`next_chunk`](Self::next_chunk) returns the chunk with this
    /// number, with the same bytes as the first time.
    ///
    /// # Errors
    /// [`SnapshotError::ChunkGone`] if the chunk was returned more than [`SNAPSHOT_REWIND_CHUNKS`] chunks ago, or was
    /// not returned yet.
    pub fn resume_at(&mut self, chunk: u64) -> Result<(), SnapshotError> {
        let next = self.next_number();
        if chunk == next {
            return Ok(());
        }
        let oldest = self.cursors.front().map_or(next, |(link, _)| link.number);
        if chunk < oldest || chunk > next {
            return Err(SnapshotError::ChunkGone { chunk, oldest, next });
        }
        self.cursors.truncate((chunk - oldest) as usize + 1);
        if let Some((link, cursor)) = self.cursors.pop_back() {
            self.pipeline = None;
            (self.link, self.next) = (link, cursor);
        }
        Ok(())
    }

    /// Writes all remaining chunks to `out`. Calls `progress` after each chunk. Returns the totals of the snapshot.
    pub fn write_to(
        &mut self,
        out: &mut dyn Write,
        progress: &mut dyn FnMut(&Totals),
    ) -> Result<Totals, SnapshotError> {
        while let Some(chunk) = self.next_chunk()? {
            out.write_all(&chunk)?;
            progress(&self.next.totals());
        }
        out.flush()?;
        Ok(self.next.totals())
    }

    /// Returns all remaining chunks as one vector. Use it only for small snapshots.
    pub fn into_bytes(mut self) -> Result<Vec<u8>, SnapshotError> {
        let mut bytes = Vec::new();
        self.write_to(&mut bytes, &mut |_| {})?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use thalweg_disk::SimDisk;
    use thalweg_log::LogOptions;
    use thalweg_state::machine::MachineOptions;
    use thalweg_store::{
        Applied, BarrierFailed, LogBarrier, WriteBatch,
        memory::{MemoryBackend, MemoryOptions},
    };
    use thalweg_types::ManualClock;

    use super::*;

    struct NoBarrier;

    impl LogBarrier for NoBarrier {
        fn sync_through(&self, _lsn: Lsn) -> Result<(), BarrierFailed> {
            Ok(())
        }
    }

    /// A database for tests that exists only in memory.
    struct Node {
        log: Log,
        backend: Arc<dyn Backend>,
        machine: Machine,
        pins: Arc<Pins>,
        counters: Arc<Counters>,
    }

    impl Node {
        fn new() -> Self {
            let disk = Arc::new(SimDisk::new(1));
            let options =
                LogOptions { segment_bytes: 256 * 1024, spare_segments: 2, reserve_bytes: 0, ..LogOptions::default() };
            let (log, _) = Log::open(disk.clone(), "log", options, Arc::new(ManualClock::default()), 3).unwrap();
            let backend = MemoryBackend::open(disk, MemoryOptions::default(), Arc::new(NoBarrier)).unwrap();
            let backend: Arc<dyn Backend> = Arc::new(backend);
            let machine = Machine::open(backend.clone(), MachineOptions::default()).unwrap();
            Self { log, backend, machine, pins: Arc::default(), counters: Arc::default() }
        }

        fn snapshot(&self, options: &SnapshotOptions) -> Snapshot {
            let origin = Origin {
                node: NodeId(7),
                log: &self.log,
                backend: &self.backend,
                machine: &self.machine,
                background: Background::Threads,
                pins: &self.pins,
                counters: &self.counters,
            };
            origin.snapshot(options).unwrap()
        }
    }

    #[test]
    fn a_snapshot_whose_idle_threads_get_nothing_goes_on_with_others_and_is_the_same() {
        let node = Node::new();
        let mut batch = WriteBatch::new();
        for number in 0..2000_u32 {
            // A key in keyspace 1. Snapshots do not examine values that contain no pointer.
            let key = [&[0x10, 0, 0, 0, 1][..], &number.to_be_bytes()].concat();
            batch.put(&[&key], &[&number.to_be_bytes().repeat(100)]);
        }
        node.backend.apply(&batch, Applied::default()).unwrap();
        let options = SnapshotOptions { chunk_bytes: 50_000, ..SnapshotOptions::default() };
        let patient = node.snapshot(&options).into_bytes().unwrap();
        assert_eq!(crate::verify(&patient[..]).unwrap().totals.rows, 2000);
        for after in [1, 5] {
            let mut hasty = node.snapshot(&options);
            let mut bytes = Vec::new();
            while let Some(chunk) = hasty.next_chunk().unwrap() {
                bytes.extend_from_slice(&chunk);
                if hasty.next_number() == after {
                    hasty.patience = Duration::ZERO;
                }
            }
            assert!(bytes == patient);
            assert!(after > 1 || hasty.priority == Priority::Low, "the first chunk cannot be ready immediately");
        }
    }
}
