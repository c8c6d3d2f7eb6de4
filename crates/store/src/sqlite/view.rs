//! Views of the database as read transactions on dedicated connections.
//!
//! Owns: [`SqliteView`], a few connections that all see the same commit, so that several threads can read the view
//! concurrently; and the pool of these connections. Does not own: the writing connection.
//!
//! Invariant: a connection joins a view only while no commit can happen, so it sees the same commit as the view's
//! first connection. No lock is held while the caller processes a pair.

use std::{
    ops::Bound,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, TryLockError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use bytes::Bytes;
use rusqlite::{Connection, OptionalExtension, types::ValueRef};
use thalweg_types::budget;

use super::{
    connection::{self, FORMAT_VERSION_1, Role, corrupt, failed},
    residency::Residency,
};
use crate::{
    backend::{BackendError, Direction},
    buffered::{Contents, Page, PagedView, checked},
};

/// Maximum number of connections of one view. If more threads read the view, they share these connections in turn.
const MAX_READERS: usize = 8;
/// Maximum number of unused reading connections that are kept for later views.
const MAX_IDLE: usize = MAX_READERS;

/// The pool of reading connections, and the counter of commits.
pub(super) struct Readers {
    path: PathBuf,
    residency: Residency,
    /// Size in bytes of the page cache of each connection.
    cache_bytes: u64,
    idle: Mutex<Vec<Connection>>,
    /// Number of commits begun since open. The lock is held during a commit.
    commits: Mutex<u64>,
    /// Number of finished commits since open, readable during a commit.
    committed: AtomicU64,
}

impl Readers {
    pub(super) fn new(path: PathBuf, residency: Residency, cache_bytes: u64) -> Self {
        let cache_bytes = cache_bytes / MAX_READERS as u64;
        let (idle, commits, committed) = (Mutex::default(), Mutex::default(), AtomicU64::new(0));
        Self { path, residency, cache_bytes, idle, commits, committed }
    }

    /// Fails if the [budget] of the thread's read forbids waiting for the disk and the database is probably not in
    /// memory.
    fn check_residency(&self) -> Result<(), BackendError> {
        let read = budget::read_file(|| self.residency.is_resident().then_some(()), || ());
        read.map_err(|spent| BackendError::io("read", spent))
    }

    /// Runs `commit`, which commits a transaction. No connection can join a view in the meantime.
    pub(super) fn commit<T>(&self, commit: impl FnOnce() -> T) -> T {
        let mut commits = lock(&self.commits);
        *commits += 1;
        let done = commit();
        self.committed.store(*commits, Ordering::Release);
        done
    }

    /// Prevents existing views from opening further connections. Afterwards the files may be removed.
    pub(super) fn close(&self) {
        self.commit(|| ());
    }

    /// Creates a view of the database as of the last commit.
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

    /// Returns a connection with a read transaction. The transaction sees the database as of the last commit before
    /// this call.
    fn begin(&self) -> Result<Connection, BackendError> {
        let idle = lock(&self.idle).pop();
        let connection = match idle {
            Some(connection) => connection,
            None => connection::open(&self.path, Role::Read, self.cache_bytes)?,
        };
        connection.execute_batch("BEGIN").map_err(failed("begin a read"))?;
        // In SQLite a read transaction begins with its first read.
        let mut first = connection.prepare_cached("SELECT 1 FROM meta LIMIT 1").map_err(failed("begin a read"))?;
        first.query_row([], |_| Ok(())).optional().map_err(failed("begin a read"))?;
        drop(first);
        Ok(connection)
    }

    /// Ends the read transaction of a connection, and returns the connection to the pool, if the transaction ended
    /// without an error and the pool has room.
    fn give_back(&self, connection: Connection) {
        let mut idle = lock(&self.idle);
        if idle.len() < MAX_IDLE && connection.execute_batch("ROLLBACK").is_ok() {
            idle.push(connection);
        }
    }
}

/// A view of the database as of one commit; see the [module](self). While the view exists, SQLite does not reuse the
/// WAL from its start, so the WAL grows.
pub struct SqliteView {
    readers: Arc<Readers>,
    /// Number of the commit whose state the view shows.
    commit: u64,
    /// Connections of the view. The first slots are filled, the others are empty.
    slots: [OnceLock<Mutex<Connection>>; MAX_READERS],
    /// Number of connections in `slots`. Its lock is held while another connection is added to the view.
    joining: Mutex<usize>,
    turn: AtomicUsize,
}

impl SqliteView {
    /// Returns one of the view's connections that no other thread is using.
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

    /// Adds a connection to the view, unless the view has the maximum number of connections or a newer commit was made.
    fn join(&self) -> Result<(), BackendError> {
        let mut filled = lock(&self.joining);
        if *filled == MAX_READERS || self.readers.committed.load(Ordering::Acquire) != self.commit {
            return Ok(());
        }
        // A commit can take long. During a commit, the caller uses one of the existing connections.
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

/// Returns the version of the database's format.
pub(super) fn format_of(connection: &Connection) -> Result<i32, BackendError> {
    connection.query_row("PRAGMA user_version", [], |row| row.get(0)).map_err(failed("read"))
}

/// Returns the summary of the pairs in a transaction; `None` if the database has the format without summaries.
pub(super) fn contents_of(connection: &Connection) -> Result<Option<Contents>, BackendError> {
    if format_of(connection)? == FORMAT_VERSION_1 {
        return Ok(None);
    }
    let mut meta = connection.prepare_cached("SELECT value FROM meta WHERE name = ?1").map_err(failed("read"))?;
    let mut meta = |name: &str| {
        let found = meta.query_row([name], |row| row.get::<_, Vec<u8>>(0));
        found.optional().map_err(failed("read"))
    };
    let damaged = || corrupt("`applied` or `contents` is damaged");
    match (meta("applied")?, meta("contents")?) {
        (None, None) => Ok(Some(Contents::default())),
        (Some(applied), Some(contents)) => Contents::decode(&contents, &applied).ok_or_else(damaged).map(Some),
        _ => Err(damaged()),
    }
}

/// Computes the summary of all pairs. Needed only for a database that was written without one.
pub(super) fn summarize(connection: &Connection) -> Result<Contents, BackendError> {
    let mut contents = Contents::default();
    let mut statement = connection.prepare("SELECT key, value FROM pairs").map_err(failed("read"))?;
    let mut rows = statement.query([]).map_err(failed("read"))?;
    while let Some(row) = rows.next().map_err(failed("read"))? {
        let key = blob(row, 0)?;
        with_stored(connection, row, 1, |stored| {
            contents.add(key, stored);
            Ok(())
        })?;
    }
    Ok(contents)
}

impl PagedView for SqliteView {
    fn contents(&self) -> Result<Option<Contents>, BackendError> {
        contents_of(&*self.reader()?)
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.readers.check_residency()?;
        let reader = self.reader()?;
        let mut statement = reader.prepare_cached("SELECT value FROM pairs WHERE key = ?1").map_err(failed("read"))?;
        let mut rows = statement.query([key]).map_err(failed("read"))?;
        let Some(row) = rows.next().map_err(failed("read"))? else { return Ok(None) };
        with_stored(&reader, row, 0, |stored| checked(key, stored).map(|value| Some(Bytes::copy_from_slice(value))))
    }

    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError> {
        let (from, low) = match lower {
            // An empty key is not valid.
            Bound::Unbounded => (">", &b""[..]),
            Bound::Included(key) => (">=", key),
            Bound::Excluded(key) => (">", key),
        };
        let (to, high) = match upper {
            // A key cannot begin with this byte.
            Bound::Unbounded => ("<", &b"\xff"[..]),
            Bound::Included(key) => ("<=", key),
            Bound::Excluded(key) => ("<", key),
        };
        let order = match direction {
            Direction::Forward => "ASC",
            Direction::Reverse => "DESC",
        };
        self.readers.check_residency()?;
        let query = format!("SELECT key, value FROM pairs WHERE key {from} ?1 AND key {to} ?2 ORDER BY key {order}");
        let reader = self.reader()?;
        let mut statement = reader.prepare_cached(&query).map_err(failed("scan"))?;
        let mut rows = statement.query([low, high]).map_err(failed("scan"))?;
        while !page.is_full() {
            let Some(row) = rows.next().map_err(failed("scan"))? else { break };
            let key = blob(row, 0)?;
            with_stored(&reader, row, 1, |stored| {
                page.push(key, checked(key, stored)?);
                Ok(())
            })?;
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

/// Returns the id, in the table `large`, of the stored bytes of a pair; `None` if the column itself contains them.
pub(super) fn large_of(row: &rusqlite::Row<'_>, column: usize) -> Result<Option<i64>, BackendError> {
    match row.get_ref(column).map_err(failed("read"))? {
        ValueRef::Integer(id) => Ok(Some(id)),
        _ => Ok(None),
    }
}

/// Calls `act` with the stored bytes of a pair (checksum and value). They are in the given column of a row of `pairs`,
/// or in the row of the table `large` to which the column refers.
pub(super) fn with_stored<T>(
    connection: &Connection,
    row: &rusqlite::Row<'_>,
    column: usize,
    act: impl FnOnce(&[u8]) -> Result<T, BackendError>,
) -> Result<T, BackendError> {
    let Some(id) = large_of(row, column)? else { return act(blob(row, column)?) };
    let large = "SELECT stored FROM large WHERE id = ?1";
    let mut large = connection.prepare_cached(large).map_err(failed("read"))?;
    let mut rows = large.query([id]).map_err(failed("read"))?;
    match rows.next().map_err(failed("read"))? {
        Some(row) => act(blob(row, 0)?),
        None => Err(corrupt(format_args!("the large row {id} is missing"))),
    }
}

/// Returns the bytes of a column of a row. SQLite can return an empty blob as NULL, which counts as no bytes.
pub(super) fn blob<'a>(row: &'a rusqlite::Row<'_>, column: usize) -> Result<&'a [u8], BackendError> {
    let value = row.get_ref(column).map_err(failed("read"))?;
    value.as_blob_or_null().map(Option::unwrap_or_default).map_err(connection::corrupt)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
