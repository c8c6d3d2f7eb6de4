//! Snapshots of this node's database for consensus: the leader reads them in chunks, and a follower installs them.
//!
//! Owns: the threads on which blocking calls of the database run, and the state of the last interrupted transfer. Does
//! not own: the content of chunks (`engine`), or their transport (`network`, `service`).
//!
//! An interrupted transfer can continue until [`KEEP`] after its last chunk: the leader keeps the snapshot at its
//! position, and the follower keeps the received chunks. A member that repairs its state requests each chunk
//! separately, so its snapshot is kept between all chunks. A transfer does not continue with a snapshot that is older
//! than the position that openraft announces to the follower: the leader would count entries that the follower lacks. A
//! kept snapshot, like an open one, prevents segments of the log from being freed.

use std::{
    cell::{Cell, RefCell},
    fmt, io,
    rc::{Rc, Weak},
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
use tokio::{
    task::{spawn_blocking, spawn_local},
    time::{Instant, sleep_until},
};

use crate::secret::nonce;

/// Time for which the snapshot of an interrupted transfer is kept after its last use.
const KEEP: Duration = Duration::from_secs(20);

/// A snapshot that is kept for an interrupted transfer, with its id and the time of its last use.
struct KeptSnapshot {
    id: SnapshotId,
    snapshot: Snapshot,
    last_use: Instant,
}

/// Snapshot of the last transfer, if that transfer was interrupted.
#[derive(Default)]
struct InterruptedTransfer {
    kept: RefCell<Option<KeptSnapshot>>,
    /// True while a task waits for the time at which the kept snapshot must be dropped.
    is_watched: Cell<bool>,
}

impl InterruptedTransfer {
    /// Keeps a snapshot for [`KEEP`] from now on.
    fn keep(self: &Rc<Self>, id: SnapshotId, snapshot: Snapshot) {
        let before = self.kept.borrow_mut().replace(KeptSnapshot { id, snapshot, last_use: Instant::now() });
        drop(before);
        // Without a runtime, the node is stopping, and the snapshot is dropped with it.
        if tokio::runtime::Handle::try_current().is_ok() && !self.is_watched.replace(true) {
            spawn_local(drop_unused(Rc::downgrade(self)));
        }
    }
}

/// Drops the kept snapshot when [`KEEP`] has passed since its last use. Ends when no snapshot is kept.
async fn drop_unused(interrupted: Weak<InterruptedTransfer>) {
    let mut look_at = Instant::now() + KEEP;
    loop {
        sleep_until(look_at).await;
        let Some(interrupted) = interrupted.upgrade() else { return };
        let mut kept = interrupted.kept.borrow_mut();
        match kept.as_ref().map(|kept| kept.last_use + KEEP) {
            Some(until) if until > Instant::now() => look_at = until,
            _ => {
                interrupted.is_watched.set(false);
                *kept = None;
                return;
            }
        }
    }
}

/// Snapshots of a node's database, which consensus reads and installs.
struct DatabaseSnapshots {
    db: Database,
    interrupted: Rc<InterruptedTransfer>,
}

impl DatabaseSnapshots {
    fn new(db: &Database) -> Self {
        Self { db: db.clone(), interrupted: Rc::default() }
    }
}

impl fmt::Debug for DatabaseSnapshots {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("DatabaseSnapshots")
    }
}

/// Returns the snapshots of a node's database in the form in which consensus uses them.
pub(crate) fn of(db: &Database) -> Option<Rc<dyn Snapshots>> {
    Some(Rc::new(DatabaseSnapshots::new(db)))
}

/// Runs a blocking database operation on one of the runtime's threads for blocking work.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    spawn_blocking(work).await.map_err(io::Error::other)?
}

fn begin(db: &Database) -> io::Result<(SnapshotId, Snapshot)> {
    // The network is usually faster than zstd.
    let options = SnapshotOptions { compression: Compression::Lz4, ..SnapshotOptions::default() };
    let snapshot = db.snapshot(&options).map_err(io::Error::other)?;
    let applied = snapshot.info().applied;
    let malformed = || io::Error::new(io::ErrorKind::InvalidData, "the state has no membership");
    let stored = snapshot.membership().ok_or_else(malformed)?;
    let membership = Membership::decode(&stored.payload).ok_or_else(malformed)?;
    let last = LogId { term: applied.term, index: applied.index };
    let position = SnapshotPosition { last, membership: (stored.id, membership) };
    let [n0, n1, n2, n3, n4, n5, n6, n7, ..] = nonce().0;
    let nonce = u64::from_le_bytes([n0, n1, n2, n3, n4, n5, n6, n7]);
    Ok((SnapshotId { position, nonce }, snapshot))
}

impl Snapshots for DatabaseSnapshots {
    fn open(&self, least: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>> {
        async move {
            let kept = self.interrupted.kept.borrow_mut().take();
            let is_usable =
                |kept: &KeptSnapshot| kept.id.position.last.index >= least && self.db.stopped_serving().is_none();
            let (id, snapshot) = match kept.filter(is_usable) {
                Some(kept) => (kept.id, kept.snapshot),
                None => {
                    let db = self.db.clone();
                    blocking(move || begin(&db)).await?
                }
            };
            let reader = ChunkReader { id, snapshot: Some(snapshot), interrupted: Rc::clone(&self.interrupted) };
            Ok(Box::new(reader) as Box<dyn SnapshotReader>)
        }
        .boxed_local()
    }

    fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>> {
        async move {
            let db = self.db.clone();
            let install = blocking(move || db.install().map_err(io::Error::other)).await?;
            Ok(Box::new(ChunkWriter { id: id.clone(), install: Some(install) }) as Box<dyn SnapshotWriter>)
        }
        .boxed_local()
    }
}

struct ChunkReader {
    id: SnapshotId,
    /// Open snapshot; `None` after an error, and while a chunk is being read.
    snapshot: Option<Snapshot>,
    interrupted: Rc<InterruptedTransfer>,
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
            let mut snapshot = self.snapshot.take().ok_or_else(ended)?;
            let (snapshot, chunk) = blocking(move || {
                snapshot.resume_at(number).map_err(io::Error::other)?;
                let chunk = snapshot.next_chunk().map_err(io::Error::other)?;
                Ok((snapshot, chunk))
            })
            .await?;
            // After the last chunk, nothing is left to continue with.
            self.snapshot = chunk.is_some().then_some(snapshot);
            Ok(chunk)
        }
        .boxed_local()
    }
}

impl Drop for ChunkReader {
    fn drop(&mut self) {
        if let Some(snapshot) = self.snapshot.take() {
            self.interrupted.keep(self.id.clone(), snapshot);
        }
    }
}

struct ChunkWriter {
    id: SnapshotId,
    /// Install in progress; `None` after an error, and while a chunk is being written.
    install: Option<Install>,
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
            let mut install = self.install.take().ok_or_else(ended)?;
            let install = blocking(move || {
                install.push(chunk).map_err(io::Error::other)?;
                Ok(install)
            })
            .await?;
            self.install = Some(install);
            Ok(())
        }
        .boxed_local()
    }

    fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>> {
        async move {
            let mut install = self.install.take().ok_or_else(ended)?;
            let install = blocking(move || {
                install.prepare().map_err(io::Error::other)?;
                Ok(install)
            })
            .await?;
            self.install = Some(install);
            Ok(())
        }
        .boxed_local()
    }

    fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>> {
        async move {
            let mut install = self.install.take().ok_or_else(ended)?;
            let (install, finished) = blocking(move || {
                let finished = install.finish();
                Ok((install, finished))
            })
            .await?;
            let installed = match finished {
                Ok(installed) => installed,
                Err(error @ InstallError::NotSwitched { .. }) => {
                    tracing::warn!(%error, "a snapshot could not be installed");
                    self.install = Some(install);
                    return Ok(Switch::Failed(io::Error::other(error)));
                }
                Err(error) => return Err(io::Error::other(error)),
            };
            if let Some(leftover) = installed.leftover {
                tracing::warn!(%leftover, "could not remove files of the state that a snapshot replaced");
            }
            tracing::info!(from = %installed.from, index = installed.applied.index.0, "installed a snapshot");
            Ok(Switch::Done)
        }
        .boxed_local()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_engine::Options;
    use tokio::time::{pause, sleep};

    use super::*;
    use crate::testing::run;

    /// Reads the first chunk. Returns the number of the snapshot.
    async fn read(snapshots: &DatabaseSnapshots) -> u64 {
        let mut reader = snapshots.open(Index::ZERO).await.unwrap();
        assert!(reader.chunk(0).await.unwrap().is_some());
        reader.id().nonce
    }

    #[test]
    fn a_snapshot_is_kept_for_some_time_after_each_use() {
        let dir = tempfile::tempdir().unwrap();
        let db = Database::open(dir.path(), Options { reserve_bytes: 0, ..Options::default() }).unwrap();
        run(async {
            pause();
            let snapshots = DatabaseSnapshots::new(&db);
            let first = read(&snapshots).await;
            for _ in 0..5 {
                sleep(KEEP * 2 / 3).await;
                assert_eq!(read(&snapshots).await, first);
            }
            sleep(KEEP * 2).await;
            assert!(snapshots.interrupted.kept.borrow().is_none(), "it holds the log back no longer");
            // The next chunk leads to the same result.
            let second = read(&snapshots).await;
            assert_ne!(second, first);
            sleep(KEEP * 2).await;
            assert_ne!(read(&snapshots).await, second);
        });
    }
}
