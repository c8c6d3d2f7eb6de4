//! Snapshots of a simulated node's database for consensus, connected as in the product's server, but without threads.
//!
//! Owns: the snapshot of the last interrupted transfer, and the record that an install has begun. Does not own: the
//! content of chunks (`engine`), or their transport (`network`).

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    rc::Rc,
    time::Duration,
};

use bytes::Bytes;
use futures_util::{FutureExt, future::LocalBoxFuture};
use thalweg_engine::{
    Database,
    snapshot::{Compression, Install, InstallError, Snapshot, SnapshotOptions},
};
use thalweg_raft::{SnapshotId, SnapshotPosition, SnapshotReader, SnapshotWriter, Snapshots, Switch};
use thalweg_replica::Membership;
use thalweg_state::membership::LogId;
use thalweg_types::Index;

use crate::{
    runtime::{ProcessId, now, random, random_duration, record, sleep},
    truth::Truth,
};

/// Time for which a snapshot is kept after its transfer was interrupted.
const KEEP: Duration = Duration::from_secs(2);
/// Text of the event that is recorded when a node is about to lose power during an install of a snapshot.
pub(crate) const INSTALL_CUT: &str = "is about to lose power amid its install";
/// First words of the event that is recorded when a node has installed a snapshot.
pub(crate) const INSTALLED: &str = "has installed a snapshot";
/// First words of the event that is recorded when a node has received a snapshot, but fails to switch to its state.
pub(crate) const NOT_INSTALLED: &str = "does not install a snapshot";
/// Range of the time that a node's disk takes to read or write a chunk of a snapshot.
const CHUNK_TIME: std::ops::Range<Duration> = Duration::from_micros(50)..Duration::from_micros(500);

/// A snapshot that is kept after its transfer was interrupted, with its id. `at` is the virtual time at which the
/// transfer last read a chunk; before the first chunk, the time at which the snapshot was taken.
struct KeptSnapshot {
    id: SnapshotId,
    snapshot: Snapshot,
    at: Duration,
}

/// Snapshots that a simulated node sends to other nodes and receives from them. Clones refer to the same snapshots.
#[derive(Clone)]
pub struct NodeSnapshots {
    node: ProcessId,
    db: Database,
    truth: Truth,
    chunk_bytes: usize,
    /// Snapshot of the last transfer, kept if the transfer was interrupted.
    kept: Rc<RefCell<Option<KeptSnapshot>>>,
    /// Number of chunks of snapshots that the node has received since its first start.
    received: Rc<Cell<u64>>,
}

impl fmt::Debug for NodeSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "snapshots of node {}", self.node)
    }
}

fn begin(db: &Database, chunk_bytes: usize) -> io::Result<KeptSnapshot> {
    let options = SnapshotOptions { compression: Compression::Lz4, chunk_bytes, ..SnapshotOptions::default() };
    let snapshot = db.snapshot(&options).map_err(io::Error::other)?;
    let applied = snapshot.info().applied;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the state has no membership");
    let stored = snapshot.membership().ok_or_else(malformed)?;
    let membership = Membership::decode(&stored.payload).ok_or_else(malformed)?;
    let last = LogId { term: applied.term, index: applied.index };
    let position = SnapshotPosition { last, membership: (stored.id, membership) };
    Ok(KeptSnapshot { id: SnapshotId { position, nonce: random(0..u64::MAX) }, snapshot, at: now() })
}

impl NodeSnapshots {
    /// Creates the snapshots of a node that has started. `received` counts the chunks that the node receives.
    #[must_use]
    pub fn new(node: ProcessId, db: Database, truth: Truth, chunk_bytes: usize, received: Rc<Cell<u64>>) -> Self {
        Self { node, db, truth, chunk_bytes, kept: Rc::default(), received }
    }

    /// Drops a snapshot whose transfer was interrupted long ago.
    pub fn drop_old(&self) {
        let old = self.kept.borrow_mut().take_if(|kept| kept.at + KEEP < now());
        drop(old);
    }
}

impl Snapshots for NodeSnapshots {
    fn open(&self, least: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>> {
        async move {
            let kept = self.kept.borrow_mut().take();
            let kept = kept.filter(|kept| kept.id.position.last.index >= least);
            let kept = kept.map_or_else(|| begin(&self.db, self.chunk_bytes), Ok)?;
            let KeptSnapshot { id, snapshot, at } = kept;
            let reader = ChunkReader { id, snapshot: Some(snapshot), at, kept: Rc::clone(&self.kept) };
            Ok(Box::new(reader) as Box<dyn SnapshotReader>)
        }
        .boxed_local()
    }

    fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>> {
        async move {
            let install = self.db.install().map_err(io::Error::other)?;
            record(self.node, format!("receives a snapshot up to entry {}", id.position.last.index));
            let writer = ChunkWriter { id: id.clone(), install: Some(install), of: self.clone() };
            Ok(Box::new(writer) as Box<dyn SnapshotWriter>)
        }
        .boxed_local()
    }
}

struct ChunkReader {
    id: SnapshotId,
    /// The snapshot whose chunks this transfer reads; `None` after an error, and after the last chunk.
    snapshot: Option<Snapshot>,
    at: Duration,
    kept: Rc<RefCell<Option<KeptSnapshot>>>,
}

impl fmt::Debug for ChunkReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkReader").field("id", &self.id).finish_non_exhaustive()
    }
}

fn ended() -> io::Error {
    io::Error::other("the snapshot has ended with an error")
}

impl SnapshotReader for ChunkReader {
    fn id(&self) -> &SnapshotId {
        &self.id
    }

    fn chunk(&mut self, number: u64) -> LocalBoxFuture<'_, io::Result<Option<Bytes>>> {
        async move {
            sleep(random_duration(CHUNK_TIME)).await;
            self.at = now();
            let mut snapshot = self.snapshot.take().ok_or_else(ended)?;
            snapshot.resume_at(number).map_err(io::Error::other)?;
            let chunk = snapshot.next_chunk().map_err(io::Error::other)?;
            // After the last chunk, the transfer is complete, so the snapshot is not kept.
            self.snapshot = chunk.is_some().then_some(snapshot);
            Ok(chunk)
        }
        .boxed_local()
    }
}

impl Drop for ChunkReader {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            *self.kept.borrow_mut() = Some(KeptSnapshot { id: self.id.clone(), snapshot, at: self.at });
        }
    }
}

struct ChunkWriter {
    id: SnapshotId,
    /// The install that gets the received chunks; `None` after an error.
    install: Option<Install>,
    of: NodeSnapshots,
}

impl fmt::Debug for ChunkWriter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ChunkWriter").field("id", &self.id).finish_non_exhaustive()
    }
}

impl SnapshotWriter for ChunkWriter {
    fn id(&self) -> &SnapshotId {
        &self.id
    }

    fn next(&self) -> u64 {
        self.install.as_ref().map_or(0, Install::next_number)
    }

    fn write(&mut self, chunk: Bytes) -> LocalBoxFuture<'_, io::Result<()>> {
        async move {
            sleep(random_duration(CHUNK_TIME)).await;
            self.of.received.set(self.of.received.get() + 1);
            let mut install = self.install.take().ok_or_else(ended)?;
            install.push(chunk).map_err(io::Error::other)?;
            self.install = Some(install);
            Ok(())
        }
        .boxed_local()
    }

    fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>> {
        async move {
            let mut install = self.install.take().ok_or_else(ended)?;
            install.prepare().map_err(io::Error::other)?;
            self.install = Some(install);
            Ok(())
        }
        .boxed_local()
    }

    fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>> {
        async move {
            let mut install = self.install.take().ok_or_else(ended)?;
            let installed = match install.finish() {
                Ok(installed) => installed,
                Err(error @ InstallError::NotSwitched { .. }) => {
                    record(self.of.node, format!("{NOT_INSTALLED}: {error}"));
                    self.install = Some(install);
                    return Ok(Switch::Failed(io::Error::other(error)));
                }
                Err(error) => return Err(io::Error::other(error)),
            };
            record(self.of.node, format!("{INSTALLED} up to entry {}", installed.applied.index));
            self.of.truth.opened(self.of.node, installed.applied);
            Ok(Switch::Done)
        }
        .boxed_local()
    }
}
