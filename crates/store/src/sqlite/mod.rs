//! A backend that stores the state in an SQLite database, behind memtables.
//!
//! Owns: the layout of pairs in the database, its transactions, its write-ahead log and its views. Does not own:
//! the decision when to persist; see `buffered`.
//!
//! Two tables without row ids: `pairs` (key to checksum and value) and `meta` (`applied` and `contents`, written in the
//! same transaction as the pairs). A third table, `large`, has the checksum and value of each row of at least
//! `LARGE_BYTES`; the row in `pairs` then contains the id of the row in `large`. The reason: a search in a table
//! without row ids copies each whole row that it compares with the key. If one of them had 8 MiB, the search would take
//! milliseconds.
//!
//! Journal mode WAL, `synchronous = FULL`: a commit returns when the WAL is on disk. `synchronous = NORMAL` would save
//! nothing for a state behind the node's log: there is one commit per memtable, and the checkpoint after it syncs the
//! WAL anyway. With `FULL`, a commit is durable even while readers block a checkpoint. SQLite receives only batches
//! that are durable in the log.
//!
//! Behind the node's log, the WAL is checkpointed (copied to the database) after each commit. If each batch is synced,
//! it is checkpointed when it has grown. SQLite reuses the WAL from its start only when no view reads it, so the WAL
//! grows while a view exists. SQLite never shortens the file. So once no view reads it, this module empties the file if
//! it is long or if the disk has little free space.
//!
//! Invariant: SQLite reads only a WAL that is on disk. For this, an open first writes the existing WAL again
//! (`rewrite`).

mod connection;
#[cfg(test)]
mod quota_tests;
mod residency;
mod rewrite;
mod view;
mod wal;

use std::{
    fs::{self, DirBuilder, OpenOptions},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _},
    path::PathBuf,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use rusqlite::{Connection, OptionalExtension};
use thalweg_disk::Disk as _;

use crate::{
    backend::{Applied, BackendError, BackendStats, Change, LogBarrier, SyncMode},
    buffered::{BufferOptions, Buffered, Store, checksum},
    files::{io_error, open_os_dir},
};
use connection::{
    APPLICATION_ID, BUSY_TIMEOUT, CREATE_LARGE, FILE, FORMAT_VERSION, FORMAT_VERSION_1, NO_FOLLOW, PAGE_BYTES, Role,
    corrupt, failed, write_failed,
};
use residency::Residency;
use view::{Readers, SqliteView};

const WAL_FILE: &str = "state.sqlite-wal";
const SHM_FILE: &str = "state.sqlite-shm";
/// Number of bytes written to the WAL after which it is checkpointed (copied to the database), if each batch is synced.
const CHECKPOINT_BYTES: u64 = 8 << 20;
/// Maximum size in bytes of a WAL file that is kept when its content is in the database. A kept file takes disk space;
/// an emptied one must get its disk blocks again in the next transaction.
const MAX_KEPT_WAL_BYTES: u64 = 64 << 20;
/// Size in bytes from which checksum and value of a pair are in the table `large`.
const LARGE_BYTES: usize = 16 * 1024;
/// A WAL file is kept only while the free disk space is at least this many times its size.
const FREE_PER_KEPT_WAL: u64 = 16;

/// Options of a [`SqliteBackend`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteOptions {
    /// Directory of the database. Created if missing.
    pub dir: PathBuf,
    /// Size in bytes of the database pages cached in memory: half for the writing connection, half shared by the
    /// reading connections. A smaller size causes more reads from the disk.
    pub cache_bytes: u64,
    /// Maximum size of the database in bytes. Growth beyond this size fails as if the disk were full. `None` means no
    /// maximum.
    pub max_bytes: Option<u64>,
    /// Options of the memtables in front of the database.
    pub buffer: BufferOptions,
}

impl SqliteOptions {
    /// Creates the default options with the given directory.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        Self { dir: dir.into(), cache_bytes: 256 << 20, max_bytes: None, buffer: BufferOptions::default() }
    }
}

/// A backend that consists of memtables in front of an SQLite database.
pub type SqliteBackend = Buffered<SqliteStore>;

impl SqliteBackend {
    /// Opens the SQLite database in `options.dir`, or creates it, and starts the background thread.
    pub fn open(options: SqliteOptions, barrier: Arc<dyn LogBarrier>) -> Result<Self, BackendError> {
        Self::over(SqliteStore::open(&options)?, options.buffer, barrier, &[])
    }
}

/// An SQLite database as a store behind memtables; see the [module](self).
pub struct SqliteStore {
    writer: Mutex<Connection>,
    readers: Arc<Readers>,
    sync: SyncMode,
    dir: PathBuf,
    /// Estimated number of bytes written to the WAL since its last checkpoint: for each change, its bytes and one page.
    unchecked_bytes: AtomicU64,
    /// Bytes of the database's unused pages when they were last counted.
    reusable_bytes: AtomicU64,
}

impl SqliteStore {
    fn open(options: &SqliteOptions) -> Result<Self, BackendError> {
        let created = DirBuilder::new().recursive(true).mode(0o700).create(&options.dir);
        created.map_err(io_error("create the directory"))?;
        // The path to the directory may contain symbolic links, which SQLite would refuse like one in the file's place.
        let dir = fs::canonicalize(&options.dir).map_err(io_error("open the directory"))?;
        let path = dir.join(FILE);
        // SQLite would create the file with read permission for all users. Its other files get the permissions of this
        // one.
        let mut create = OpenOptions::new();
        create.write(true).create(true).truncate(false).mode(0o600).custom_flags(NO_FOLLOW);
        let file = create.open(&path);
        drop(file.map_err(io_error("create the database"))?);
        let disk = open_os_dir(&options.dir)?;
        rewrite::rewrite(&disk, WAL_FILE).map_err(io_error("rewrite the write-ahead log"))?;
        let writer = connection::open(&path, Role::Write, options.cache_bytes / 2)?;
        prepare(&writer)?;
        if let Some(max_bytes) = options.max_bytes {
            let pages = max_bytes / u64::from(PAGE_BYTES);
            writer.execute_batch(&format!("PRAGMA max_page_count = {pages}")).map_err(failed("configure"))?;
        }
        // SQLite does not sync the names of all its files.
        disk.sync_dir("").map_err(io_error("sync the directory"))?;
        let residency = Residency::open(&path).map_err(io_error("open"))?;
        let readers = Arc::new(Readers::new(path.clone(), residency, options.cache_bytes / 2));
        Ok(Self {
            writer: Mutex::new(writer),
            readers,
            sync: options.buffer.sync,
            dir: options.dir.clone(),
            unchecked_bytes: AtomicU64::new(0),
            reusable_bytes: AtomicU64::new(0),
        })
    }

    /// Makes the changes and the position `applied` durable in one transaction.
    fn write<'a>(
        &self,
        writer: &mut Connection,
        changes: impl Iterator<Item = Change<'a>>,
        applied: Applied,
    ) -> Result<u64, BackendError> {
        let transaction = writer.transaction().map_err(failed("write"))?;
        let (mut bytes, mut count) = (0, 0);
        {
            let on_write = |error| write_failed(&transaction, "write", error);
            let mut contents = match view::contents_of(&transaction)? {
                Some(contents) => contents,
                None => view::summarize(&transaction)?,
            };
            if view::format_of(&transaction)? != FORMAT_VERSION {
                let convert = format!("{CREATE_LARGE} PRAGMA user_version = {FORMAT_VERSION}");
                transaction.execute_batch(&convert).map_err(on_write)?;
            }
            let get = "SELECT value FROM pairs WHERE key = ?1";
            let mut get = transaction.prepare_cached(get).map_err(on_write)?;
            let put = "INSERT INTO pairs (key, value) VALUES (?1, ?2) \
                       ON CONFLICT (key) DO UPDATE SET value = excluded.value";
            let mut put = transaction.prepare_cached(put).map_err(on_write)?;
            let mut delete = transaction.prepare_cached("DELETE FROM pairs WHERE key = ?1").map_err(on_write)?;
            let put_large = "INSERT INTO large (stored) VALUES (?1)";
            let mut put_large = transaction.prepare_cached(put_large).map_err(on_write)?;
            let delete_large = "DELETE FROM large WHERE id = ?1";
            let mut delete_large = transaction.prepare_cached(delete_large).map_err(on_write)?;
            let mut stored = Vec::new();
            for change in changes {
                count += 1;
                let (Change::Put(key, _) | Change::Delete(key)) = change;
                let mut old = get.query([key]).map_err(on_write)?;
                let mut old_large = None;
                if let Some(row) = old.next().map_err(on_write)? {
                    old_large = view::large_of(row, 0)?;
                    view::with_stored(&transaction, row, 0, |stored| {
                        contents.remove(key, stored);
                        Ok(())
                    })?;
                }
                drop(old);
                if let Some(id) = old_large {
                    delete_large.execute([id]).map_err(on_write)?;
                }
                match change {
                    Change::Put(key, value) => {
                        bytes += key.len() + value.len();
                        stored.clear();
                        stored.extend_from_slice(&checksum(key, value));
                        stored.extend_from_slice(value);
                        contents.add(key, &stored);
                        if stored.len() < LARGE_BYTES {
                            put.execute([key, &stored]).map_err(on_write)?;
                        } else {
                            let id = put_large.insert([&stored]).map_err(on_write)?;
                            put.execute((key, id)).map_err(on_write)?;
                        }
                    }
                    Change::Delete(key) => {
                        bytes += key.len();
                        delete.execute([key]).map_err(on_write)?;
                    }
                }
            }
            let meta = "INSERT INTO meta (name, value) VALUES (?1, ?2) \
                        ON CONFLICT (name) DO UPDATE SET value = excluded.value";
            let mut meta = transaction.prepare_cached(meta).map_err(on_write)?;
            let applied = applied.encode();
            meta.execute(("applied", &applied)).map_err(on_write)?;
            meta.execute(("contents", contents.encode(&applied))).map_err(on_write)?;
        }
        let committed = self.readers.commit(|| transaction.commit());
        committed.map_err(|error| write_failed(writer, "commit", error))?;
        let written = bytes as u64 + count * u64::from(PAGE_BYTES);
        self.unchecked_bytes.fetch_add(written, Ordering::Relaxed);
        Ok(bytes as u64)
    }

    /// Copies the content of the WAL to the database (a checkpoint). Leaves the part that existing views prevent from
    /// being copied.
    fn checkpoint(&self) -> Result<(), BackendError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        self.copy_wal(&writer)
    }

    fn copy_wal(&self, writer: &Connection) -> Result<(), BackendError> {
        let copied = writer.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()));
        copied.map_err(|error| write_failed(writer, "checkpoint", error))?;
        self.unchecked_bytes.store(0, Ordering::Relaxed);
        Ok(())
    }

    fn is_wal_too_long(&self) -> bool {
        let bytes = fs::metadata(self.dir.join(WAL_FILE)).map_or(0, |file| file.len());
        let room =
            || rustix::fs::statvfs(&self.dir).map_or(u64::MAX, |disk| disk.f_bavail.saturating_mul(disk.f_frsize));
        bytes > MAX_KEPT_WAL_BYTES || (bytes > 0 && bytes.saturating_mul(FREE_PER_KEPT_WAL) > room())
    }

    /// Copies the content of the WAL to the database and truncates the WAL file. Does this only in part, or not at all,
    /// while views read the WAL.
    fn empty_wal(writer: &Connection) -> Result<(), BackendError> {
        // With a timeout, SQLite would wait for the views to end.
        writer.busy_timeout(Duration::ZERO).map_err(failed("configure"))?;
        let emptied = writer.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()));
        writer.busy_timeout(BUSY_TIMEOUT).map_err(failed("configure"))?;
        emptied.map_err(|error| write_failed(writer, "checkpoint", error))
    }
}

/// Creates the tables of a new database, or checks the format of an existing one.
fn prepare(writer: &Connection) -> Result<(), BackendError> {
    let number = |name: &str| -> Result<i32, BackendError> {
        writer.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).map_err(failed("read"))
    };
    let found = (number("application_id")?, number("user_version")?);
    if found == (0, 0) {
        let page_size = format!("PRAGMA page_size = {PAGE_BYTES}");
        writer.execute_batch(&page_size).map_err(failed("create"))?;
    } else if found.0 != APPLICATION_ID || !(FORMAT_VERSION_1..=FORMAT_VERSION).contains(&found.1) {
        return Err(corrupt(format_args!("it is not a state database of format {FORMAT_VERSION}: {found:?}")));
    }
    let mode: String =
        writer.query_row("PRAGMA journal_mode = WAL", [], |row| row.get(0)).map_err(failed("configure"))?;
    if mode != "wal" {
        return Err(BackendError::io("configure", format_args!("the journal mode stays {mode}")));
    }
    let settings = "PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;";
    writer.execute_batch(settings).map_err(failed("configure"))?;
    if found == (0, 0) {
        let create = format!(
            "BEGIN IMMEDIATE;
             CREATE TABLE pairs (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
             CREATE TABLE meta (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
             {CREATE_LARGE}
             PRAGMA application_id = {APPLICATION_ID};
             PRAGMA user_version = {FORMAT_VERSION};
             COMMIT;"
        );
        writer.execute_batch(&create).map_err(|error| write_failed(writer, "create", error))?;
    }
    Ok(())
}

impl Store for SqliteStore {
    const NAME: &'static str = "sqlite";
    type View = SqliteView;
    type Upkeep = ();

    fn applied(&self) -> Result<Option<Applied>, BackendError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let row = |row: &rusqlite::Row<'_>| row.get::<_, Vec<u8>>(0);
        // Verifies the applied position too.
        view::contents_of(&writer)?;
        let found = writer.query_row("SELECT value FROM meta WHERE name = 'applied'", [], row);
        let found = found.optional().map_err(failed("read"))?;
        found.map(|bytes| Applied::decode(&bytes, || corrupt("`applied` does not decode"))).transpose()
    }

    fn persist<'a>(&self, changes: impl Iterator<Item = Change<'a>>, applied: Applied) -> Result<u64, BackendError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let persisted = self.write(&mut writer, changes, applied);
        if persisted.as_ref().is_err_and(BackendError::is_disk_full) {
            // If trimming fails, there is only less free space.
            let _ = wal::trim(&self.dir.join(WAL_FILE), &self.dir.join(SHM_FILE), PAGE_BYTES.into());
            // If the content of the WAL is in the database, the next attempt can reuse the WAL from its start.
            let _ = Self::empty_wal(&writer);
        }
        persisted
    }

    fn stop(&self) {
        self.readers.close();
    }

    fn view(&self) -> Result<Arc<SqliteView>, BackendError> {
        Ok(Arc::new(self.readers.view()?))
    }

    fn maintain(&self) -> Result<bool, BackendError> {
        match self.sync {
            SyncMode::BehindLog => {
                self.checkpoint()?;
                // The newest view was created before the checkpoint and reads the WAL. A new view reads only the
                // database, so the next commit may reuse the WAL from its start.
                Ok(true)
            }
            SyncMode::PerBatch => {
                let is_due = self.unchecked_bytes.load(Ordering::Relaxed) > CHECKPOINT_BYTES;
                if is_due {
                    self.checkpoint()?;
                }
                Ok(is_due)
            }
        }
    }

    fn release(&self) -> Result<(), BackendError> {
        // While a transaction runs, its WAL is in use.
        match self.writer.try_lock() {
            Ok(writer) if self.is_wal_too_long() => Self::empty_wal(&writer),
            _ => Ok(()),
        }
    }

    /// Estimates the disk space that persisting memtables takes. Counts only the rows themselves, once in the WAL and
    /// once in the database. Changed pages may take more: a transaction that runs out of disk space then gives its
    /// space back, and is repeated.
    fn bytes_to_persist(&self, memtables: u64, _changes: u64, bytes: u64) -> u64 {
        memtables * bytes * 2
    }

    fn reusable_bytes(&self) -> u64 {
        // While a transaction runs, this returns the result of the last count.
        if let Ok(writer) = self.writer.try_lock()
            && let Ok(pages) = writer.query_row("PRAGMA freelist_count", [], |row| row.get::<_, i64>(0))
        {
            let bytes = u64::try_from(pages).unwrap_or(0) * u64::from(PAGE_BYTES);
            self.reusable_bytes.store(bytes, Ordering::Relaxed);
        }
        self.reusable_bytes.load(Ordering::Relaxed)
    }

    fn add_stats(&self, _view: &Self::View, stats: &mut BackendStats) {
        let file_bytes = |name: &str| fs::metadata(self.dir.join(name)).map_or(0, |file| file.len());
        stats.disk_bytes += file_bytes(FILE) + file_bytes(WAL_FILE);
        stats.tables += 1;
    }
}
