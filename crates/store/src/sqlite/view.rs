//! Views: read transactions on connections of their own.
//!
//! Owns: [`SqliteView`], a few connections that all see the same commit, so that several threads read it
//! at once; and the pool that they come from and go back to. Does not own: the connection that writes.
//!
//! Invariant: a connection joins a view only while no commit can come between, so it sees what the
//! view's first one sees. No lock is held while the caller looks at a pair.

use std::{
    ops::Bound,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension};

use super::connection::{self, Role, failed};
use crate::{
    backend::{BackendError, Direction},
    buffered::{Page, StoreView, checked},
};

/// Connections of one view. More threads than this take turns.
const MAX_READERS: usize = 8;
/// Connections kept for later views.
const MAX_IDLE: usize = MAX_READERS;

/// Connections that read, and what is committed.
pub(super) struct Readers {
    path: PathBuf,
    /// Of each connection.
    cache_bytes: u64,
    idle: Mutex<Vec<Connection>>,
    /// Held while a commit is made. Counts them.
    commits: Mutex<u64>,
    /// As `commits`, readable during one.
    committed: AtomicU64,
}

impl Readers {
    pub(super) fn new(path: PathBuf, cache_bytes: u64) -> Self {
        let cache_bytes = cache_bytes / MAX_READERS as u64;
        Self { path, cache_bytes, idle: Mutex::default(), commits: Mutex::default(), committed: AtomicU64::new(0) }
    }

    /// Runs a commit: no connection joins a view meanwhile.
    pub(super) fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        let mut commits = lock(&self.commits);
        *commits += 1;
        let done = commit();
        self.committed.store(*commits, Ordering::Release);
        done
    }

    /// A view of the last commit.
    pub(super) fn view(self: &Arc<Self>) -> Result<SqliteView, BackendError> {
        let commits = lock(&self.commits);
        let first = self.begin()?;
        let slots: [OnceLock<Mutex<Connection>>; MAX_READERS] = Default::default();
        let _ = slots[0].set(Mutex::new(first));
        Ok(SqliteView {
            readers: Arc::clone(self),
            commit: *commits,
            slots,
            joining: Mutex::new(1),
            turn: AtomicUsize::new(0),
        })
    }

    /// A connection in a read transaction, which sees the last commit from now on.
    fn begin(&self) -> Result<Connection, BackendError> {
        let idle = lock(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connection::open(&self.path, Role::Read, self.cache_bytes)?,
        };
        connection.execute_batch("BEGIN").map_err(failed("begin a read"))?;
        // A transaction begins with its first read.
        let mut first = connection.prepare_cached("SELECT 1 FROM meta LIMIT 1").map_err(failed("begin a read"))?;
        first.query_row([], |_| Ok(())).optional().map_err(failed("begin a read"))?;
        drop(first);
        Ok(connection)
    }

    /// Takes a connection back, if it is in order.
    fn give_back(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE && connection.execute_batch("ROLLBACK").is_ok() {
            idle.push(connection);
        }
    }
}

/// See the module. Keeps the WAL from being overwritten from its commit on.
pub(super) struct SqliteView {
    readers: Arc<Readers>,
    /// The commit that it shows.
    commit: u64,
    /// Filled from the front.
    slots: [OnceLock<Mutex<Connection>>; MAX_READERS],
    /// How many are filled; held while another joins.
    joining: Mutex<usize>,
    turn: AtomicUsize,
}

impl SqliteView {
    /// A connection that nobody else uses now.
    fn reader(&self) -> Result<MutexGuard<'_, Connection>, BackendError> {
        for slot in self.slots.iter().map_while(OnceLock::get) {
            match slot.try_lock() {
                Ok(connection) => return Ok(connection),
                Err(TryLockError::Poisoned(poisoned)) => return Ok(poisoned.into_inner()),
                Err(TryLockError::WouldBlock) => {}
            }
        }
        self.join()?;
        let filled = self.slots.iter().map_while(OnceLock::get).count();
        let turn = self.turn.fetch_add(1, Ordering::Relaxed) % filled;
        let slot = self.slots[filled - 1 - turn].get().expect("the first `filled` are");
        Ok(lock(slot))
    }

    /// Adds a connection, unless there are enough or what it would see is something newer.
    fn join(&self) -> Result<(), BackendError> {
        let mut filled = lock(&self.joining);
        if *filled == MAX_READERS || self.readers.committed.load(Ordering::Acquire) != self.commit {
            return Ok(());
        }
        // A commit may take long; then one of those that are there will do.
        let commits = match self.readers.commits.try_lock() {
            Ok(commits) => commits,
            Err(TryLockError::Poisoned(poisoned)) => poisoned.into_inner(),
            Err(TryLockError::WouldBlock) => return Ok(()),
        };
        if *commits == self.commit {
            let _ = self.slots[*filled].set(Mutex::new(self.readers.begin()?));
            *filled += 1;
        }
        Ok(())
    }
}

impl StoreView for SqliteView {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        let reader = self.reader()?;
        let mut statement = reader.prepare_cached("SELECT value FROM pairs WHERE key = ?1").map_err(failed("read"))?;
        let mut rows = statement.query([key]).map_err(failed("read"))?;
        let Some(row) = rows.next().map_err(failed("read"))? else { return Ok(None) };
        checked(key, blob(row, 0)?).map(|value| Some(Bytes::copy_from_slice(value)))
    }

    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError> {
        let (from, low) = match lower {
            // No key is empty.
            Bound::Unbounded => (">", &b""[..]),
            Bound::Included(key) => (">=", key),
            Bound::Excluded(key) => (">", key),
        };
        let (to, high) = match upper {
            // No key begins with this byte.
            Bound::Unbounded => ("<", &b"\xff"[..]),
            Bound::Included(key) => ("<=", key),
            Bound::Excluded(key) => ("<", key),
        };
        let order = match direction {
            Direction::Forward => "ASC",
            Direction::Reverse => "DESC",
        };
        let query = format!("SELECT key, value FROM pairs WHERE key {from} ?1 AND key {to} ?2 ORDER BY key {order}");
        let reader = self.reader()?;
        let mut statement = reader.prepare_cached(&query).map_err(failed("scan"))?;
        let mut rows = statement.query([low, high]).map_err(failed("scan"))?;
        while !page.is_full() {
            let Some(row) = rows.next().map_err(failed("scan"))? else { break };
            let key = blob(row, 0)?;
            page.push(key, checked(key, blob(row, 1)?)?);
        }
        Ok(())
    }
}

impl Drop for SqliteView {
    fn drop(&mut self) {
        for slot in std::mem::take(&mut self.slots) {
            if let Some(connection) = slot.into_inner() {
                self.readers.give_back(connection.into_inner().unwrap_or_else(PoisonError::into_inner));
            }
        }
    }
}

/// A column's bytes; an empty blob may come as NULL.
fn blob<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<&'a [u8], BackendError> {
    let value = row.get_ref(column).map_err(failed("read"))?;
    value.as_blob_or_null().map(Option::unwrap_or_default).map_err(|error| connection::corrupt(&error.to_string()))
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
