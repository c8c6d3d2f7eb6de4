//! Reads and compresses the chunks of a snapshot. Usually background threads do this before the caller requests the
//! chunks. If the database was opened without background threads (stepped mode), the caller's thread does it.
//!
//! Owns: one thread that reads the contents of chunks (the gatherer), several threads that compress chunks in turn (the
//! packers), and the order of their chunks. Does not own: the contents of a chunk (`gather`), or numbers and checksums
//! (`chunk`).
//!
//! ```text
//!             +- packer 0 -+
//! gatherer ---+- packer 1 -+---> next(): chunks 0, 1, .. from packer 0, 1, .. in turns
//!             +- ...      -+
//! ```
//! All these threads have idle priority, so a snapshot uses only processor time that other threads leave. On two cores
//! with compression at normal priority, one put in ten waited for 2 to 3 ms. If no processor time is left for
//! [`PATIENCE`], the threads are restarted with a low priority, at a tenth of the share of other threads: a snapshot
//! keeps log from being freed, so it must end.
//!
//! When a snapshot is dropped, it stops keeping the log from being freed. This happens immediately, unless the gatherer
//! is reading from the log at this moment. The gatherer may then have to wait for processor time before it notices the
//! drop. The log is also released when the caller has the last chunk.
//!
//! Memory: for each packer, one chunk waits for compression, one is being compressed, and one waits for the caller. One
//! further chunk is being gathered.

use std::{
    io,
    num::NonZeroU64,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};

use thalweg_disk::Priority;

use crate::{
    chunk::{Packed, Packer},
    error::SnapshotError,
    format::{ChunkKind, Compression},
    gather::{Cursor, GatheredChunk, Gatherer, Source, stopped},
    pace::{MAX_REST, Pacer},
    stop::Stop,
};

/// Maximum number of threads that compress. A machine gets one such thread for every two processors. Each holds up to
/// three chunks. With one thread for each processor, a snapshot on two processors was a third faster without writers,
/// but no faster while clients wrote. The p99 of their writes was then 2 to 3 times as long.
const MAX_PACKERS: usize = 4;
/// Longest time that a snapshot waits for a chunk from threads with idle priority. A chunk normally takes a few
/// milliseconds, or some tens of milliseconds from a slow disk.
pub(crate) const PATIENCE: Duration = Duration::from_secs(1);

const _: () = assert!(MAX_REST.as_millis() * 2 < PATIENCE.as_millis(), "a rest is shorter than the patience");

/// Compressed contents of a chunk, still without the header, and the position of the snapshot after this chunk.
pub(crate) struct Ready {
    pub(crate) kind: ChunkKind,
    pub(crate) packed: Packed,
    pub(crate) after: Cursor,
}

type Lane<T> = SyncSender<Result<T, SnapshotError>>;

/// Source from which a snapshot takes its compressed chunks: background threads, or the caller's thread.
pub(crate) enum Pipeline {
    Threads(Threads),
    /// The caller's thread gathers and compresses a chunk when it requests the chunk.
    Here(Box<Gatherer>, Packer),
}

/// The threads that gather and compress chunks. They end when this value is dropped, at the end of the snapshot, or at
/// an error.
pub(crate) struct Threads {
    lanes: Vec<Receiver<Result<Ready, SnapshotError>>>,
    /// Index of the packer (compressing thread) that has the next chunk.
    turn: usize,
    shared: Arc<Reading>,
}

/// State of the reading thread, which this thread shares with the owner of the snapshot.
struct Reading {
    /// Gatherer of the snapshot; `None` after the last chunk. Locked while a chunk is being gathered.
    gatherer: Mutex<Option<Gatherer>>,
    stop: Arc<Stop>,
}

impl Reading {
    fn lock(&self) -> MutexGuard<'_, Option<Gatherer>> {
        self.gatherer.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.shared.stop.set();
        // If the lock is taken, the thread that holds it drops the gatherer later, with the last reference.
        if let Ok(mut gatherer) = self.shared.gatherer.try_lock() {
            drop(gatherer.take());
        }
    }
}

impl Pipeline {
    /// Creates a pipeline without threads: the caller's thread does all work.
    pub(crate) fn here(
        source: &Source,
        from: &Cursor,
        chunk_bytes: usize,
        compression: Compression,
    ) -> Result<Self, SnapshotError> {
        let gatherer = Gatherer::new(source.clone(), from.clone(), chunk_bytes, Arc::default())?;
        Ok(Self::Here(Box::new(gatherer), Packer::new(compression)?))
    }

    pub(crate) fn start(
        source: &Source,
        from: &Cursor,
        chunk_bytes: usize,
        compression: Compression,
        priority: Priority,
        pace: Option<NonZeroU64>,
    ) -> Result<Self, SnapshotError> {
        let stop = Arc::<Stop>::default();
        let gatherer = Gatherer::new(source.clone(), from.clone(), chunk_bytes, Arc::clone(&stop))?;
        let shared = Arc::new(Reading { gatherer: Mutex::new(Some(gatherer)), stop });
        let (free, freed) = channel();
        let (mut to_packers, mut lanes) = (Vec::new(), Vec::new());
        for _ in 0..packers(compression) {
            let (to_packer, gathered) = sync_channel(1);
            let (send, lane) = sync_channel(1);
            let (packer, free) = (Packer::new(compression)?, free.clone());
            spawn("snapshot-pack", priority, move || pack(packer, &gathered, &send, &free))?;
            to_packers.push(to_packer);
            lanes.push(lane);
        }
        let pacer = Pacer::new(pace, Instant::now());
        let threads = Threads { lanes, turn: 0, shared: Arc::clone(&shared) };
        spawn("snapshot-read", priority, move || gather(&shared, pacer, &to_packers, &freed))?;
        Ok(Self::Threads(threads))
    }

    /// Returns the next chunk of the snapshot; `None` if the chunk is not ready within `patience`.
    pub(crate) fn next(&mut self, patience: Duration) -> Result<Option<Ready>, SnapshotError> {
        match self {
            Self::Threads(threads) => threads.next(patience),
            Self::Here(gatherer, packer) => {
                let gathered = gatherer.next(Vec::new()).ok_or_else(|| SnapshotError::Io(stopped()))?;
                let GatheredChunk { kind, plain, after } = gathered?;
                Ok(Some(Ready { kind, packed: packer.pack(&plain)?, after }))
            }
        }
    }
}

impl Threads {
    fn next(&mut self, patience: Duration) -> Result<Option<Ready>, SnapshotError> {
        match self.lanes[self.turn].recv_timeout(patience) {
            Ok(ready) => {
                self.turn = (self.turn + 1) % self.lanes.len();
                ready.map(Some)
            }
            Err(RecvTimeoutError::Timeout) => Ok(None),
            Err(RecvTimeoutError::Disconnected) => Err(SnapshotError::Io(stopped())),
        }
    }
}

fn packers(compression: Compression) -> usize {
    match compression {
        // Without compression one packer is enough, because it only copies.
        Compression::None => 1,
        Compression::Lz4 | Compression::Zstd => {
            (thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, MAX_PACKERS)
        }
    }
}

fn spawn(name: &str, priority: Priority, work: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let run = move || {
        priority.take();
        work();
    };
    thread::Builder::new().name(name.to_owned()).spawn(run).map(drop)
}

fn gather(shared: &Reading, mut pacer: Pacer, packers: &[Lane<GatheredChunk>], freed: &Receiver<Vec<u8>>) {
    for packer in packers.iter().cycle() {
        let plain = freed.try_recv().unwrap_or_default();
        let mut gatherer = shared.lock();
        let Some(gathered) = gatherer.as_mut().and_then(|gatherer| gatherer.next(plain)) else { return };
        let continues = gathered.as_ref().ok().filter(|chunk| !matches!(chunk.after, Cursor::End(_)));
        let bytes = continues.map(|chunk| chunk.plain.len());
        if bytes.is_none() {
            // The gatherer is dropped before the last chunk is sent, because the receiver may rely on the log being
            // released.
            *gatherer = None;
        }
        drop(gatherer);
        if packer.send(gathered).is_err() {
            return;
        }
        let Some(bytes) = bytes else { return };
        let Some(end) = shared.lock().as_ref().map(|gatherer| gatherer.log().end()) else { return };
        if shared.stop.rest(pacer.rest(bytes, end, Instant::now())) {
            return;
        }
    }
}

fn pack(
    mut packer: Packer,
    gathered: &Receiver<Result<GatheredChunk, SnapshotError>>,
    ready: &Lane<Ready>,
    free: &Sender<Vec<u8>>,
) {
    while let Ok(gathered) = gathered.recv() {
        let packed = gathered.and_then(|GatheredChunk { kind, mut plain, after }| {
            let packed = packer.pack(&plain)?;
            plain.clear();
            // If the gatherer has ended, it needs no buffer back, so an error is ignored.
            let _ = free.send(plain);
            Ok(Ready { kind, packed, after })
        });
        if ready.send(packed).is_err() {
            return;
        }
    }
}
