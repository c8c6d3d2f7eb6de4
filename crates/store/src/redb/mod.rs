//! A backend that stores the state in redb, a copy-on-write B-tree, behind memtables.
//!
//! Owns: the layout of pairs in the database, its transactions and its views. Does not own: the decision when to
//! persist; see `buffered`.
//!
//! Two tables: `pairs` (key to checksum and value) and `meta` (`format`, and `applied` and `contents`, written in the
//! same transaction as the pairs). Every transaction is `Immediate`. If the state is behind the node's log, a
//! transaction also enables redb's quick repair. Quick repair costs a second fsync for each memtable, but makes the
//! open after a crash fast. If each batch is synced, quick repair is off, which is redb's default. An open after a
//! crash then reads the whole database.
//!
//! Invariants: the database file gets its final name only when its tables are in the file and on disk. An open makes
//! the existing contents durable before redb relies on them (`rewrite`).

mod file;
mod rewrite;
mod verified;

use std::{
    fmt::Display,
    io,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use redb::{
    AccessGuard, Builder, Database, ReadOnlyTable, ReadableDatabase, ReadableTable, ReadableTableMetadata,
    TableDefinition,
};
use thalweg_disk::Disk;

use crate::{
    backend::{Applied, BackendError, BackendStats, Change, Direction, LogBarrier, SyncMode},
    buffered::{
        Background, BufferOptions, Buffered, CHECKSUM_BYTES, Contents, Page, PagedView, Store, checked, checksum,
    },
    caught::caught,
    files::{self, create_dir},
};
use file::{DatabaseFile, FileFigures, RoomWait, read_view};
use verified::{KeptBytes, VerifiedValues};

const FILE: &str = "state.redb";
const NEW_FILE: &str = "state.redb.tmp";
const PAIRS: TableDefinition<'_, &[u8], &[u8]> = TableDefinition::new("pairs");
const META: TableDefinition<'_, &str, &[u8]> = TableDefinition::new("meta");
const APPLIED: &str = "applied";
const CONTENTS: &str = "contents";
const FORMAT: &str = "format";
/// Format version of a database whose transactions store a summary of the pairs.
const FORMAT_VERSION: &[u8] = &[2];
/// Format version of a database without a summary of the pairs, which earlier versions of the program wrote. The first
/// transaction converts the database to the present version.
const FORMAT_VERSION_1: &[u8] = &[1];

/// Size in bytes from which a scan refers to a value in redb's cache instead of copying it.
const LARGE_BYTES: usize = 16 * 1024;
/// Divisor: all views together may keep verified large values of up to the cache's size divided by this number. Kept
/// values that redb has dropped from its cache take memory in addition to the cache.
const CACHE_PER_KEPT: u64 = 4;

/// Size of a redb page in bytes. A change of a page writes at least the whole page.
const PAGE_BYTES: u64 = 4096;
/// Number of bytes of a database file that [`Store::reusable_bytes`] attributes to redb's own tables.
const MIN_FILE_BYTES: u64 = 2 << 20;

/// Options of a [`RedbBackend`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedbOptions {
    /// Directory of the database, relative to the disk's root. Created if missing.
    pub dir: String,
    /// Size in bytes of the database pages cached in memory. A smaller size causes more reads from the disk. Large
    /// values that scans pass repeatedly stay in memory even after redb has dropped them from the cache. They take up
    /// to a quarter of this size in addition.
    pub cache_bytes: u64,
    /// Options of the memtables in front of the database.
    pub buffer: BufferOptions,
}

impl Default for RedbOptions {
    fn default() -> Self {
        Self { dir: "state/default".to_owned(), cache_bytes: 256 << 20, buffer: BufferOptions::default() }
    }
}

/// A backend that consists of memtables in front of a redb database.
pub type RedbBackend = Buffered<RedbStore>;

impl RedbBackend {
    /// Opens the redb database in `options.dir`, or creates it, and starts the background thread.
    pub fn open(
        disk: &Arc<dyn Disk>,
        options: RedbOptions,
        barrier: Arc<dyn LogBarrier>,
    ) -> Result<Self, BackendError> {
        let store = catch_panics("opening the database", || RedbStore::open(disk, &options))?;
        Self::over(store, options.buffer, barrier, &[])
    }
}

/// A redb database as a store behind memtables; see the [module](self).
pub struct RedbStore {
    /// The redb database; `None` only while the store is being dropped.
    database: Option<Database>,
    sync: SyncMode,
    figures: FileFigures,
    room: Arc<RoomWait>,
    /// Memory that all views use to keep large values with a verified checksum, and the limit of this memory.
    kept: Arc<KeptBytes>,
    /// Bytes of all keys and stored values after the last transaction of this process; 0 before the first.
    pair_bytes: AtomicU64,
    /// Estimated bytes of the pages that the next two transactions copy before they change them.
    copied_bytes: AtomicU64,
    /// Bytes that recent transactions wrote to the file for each change. Falls by at most a quarter with each
    /// transaction. Before the first transaction, this is the size of a page.
    bytes_per_change: AtomicU64,
}

impl RedbStore {
    fn open(disk: &Arc<dyn Disk>, options: &RedbOptions) -> Result<Self, BackendError> {
        let path = |name: &str| format!("{}/{name}", options.dir);
        let cache_bytes = usize::try_from(options.cache_bytes).unwrap_or(usize::MAX);
        create_dir(&**disk, &options.dir)?;
        disk.remove_if_there(&path(NEW_FILE)).map_err(files::io_error("remove an unfinished file"))?;
        let file = match disk.open(&path(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                create(&**disk, &path(NEW_FILE))?;
                disk.rename(&path(NEW_FILE), &path(FILE)).map_err(io_error("create"))?;
                disk.open(&path(FILE)).map_err(io_error("open"))?
            }
            opened => opened.map_err(io_error("open"))?,
        };
        // A process that created the file may have been killed before it synced the name.
        disk.sync_dir(&options.dir).map_err(io_error("create"))?;
        rewrite::rewrite(&*file).map_err(io_error("rewrite"))?;
        let room = Arc::new(RoomWait::default());
        let (file, figures) = DatabaseFile::new(file, room.clone()).map_err(io_error("open"))?;
        if figures.len.load(Ordering::Relaxed) == 0 {
            return Err(corrupt("the file is empty"));
        }
        let database = Builder::new().set_cache_size(cache_bytes).create_with_backend(file).map_err(failed("open"))?;
        let store = Self {
            database: Some(database),
            sync: options.buffer.sync,
            figures,
            room,
            kept: Arc::new(KeptBytes::new(options.cache_bytes / CACHE_PER_KEPT)),
            pair_bytes: AtomicU64::new(0),
            copied_bytes: AtomicU64::new(0),
            bytes_per_change: AtomicU64::new(PAGE_BYTES),
        };
        match store.meta(FORMAT)? {
            Some(version) if version == FORMAT_VERSION || version == FORMAT_VERSION_1 => {
                // A stepped backend has one thread and cannot wait for room, so it gets the error of a full disk.
                if store.sync == SyncMode::BehindLog && options.buffer.background == Background::Threads {
                    store.room.begin();
                }
                Ok(store)
            }
            found => Err(corrupt(format_args!("its format is {found:?}, not {FORMAT_VERSION:?}"))),
        }
    }

    fn database(&self) -> &Database {
        self.database.as_ref().expect("open until dropped")
    }

    fn meta(&self, name: &str) -> Result<Option<Vec<u8>>, BackendError> {
        let transaction = self.database().begin_read().map_err(failed("read"))?;
        let meta = transaction.open_table(META).map_err(failed("read"))?;
        Ok(meta.get(name).map_err(failed("read"))?.map(|value| value.value().to_vec()))
    }
}

/// Creates a redb database with its tables at a temporary path.
fn create(disk: &dyn Disk, path: &str) -> Result<(), BackendError> {
    let file = disk.create(path).map_err(io_error("create"))?;
    let (file, _) = DatabaseFile::new(file, Arc::default()).map_err(io_error("create"))?;
    let database = Builder::new().create_with_backend(file).map_err(failed("create"))?;
    let mut transaction = database.begin_write().map_err(failed("create"))?;
    transaction.set_quick_repair(true);
    transaction.open_table(PAIRS).map_err(failed("create"))?;
    transaction.open_table(META).map_err(failed("create"))?.insert(FORMAT, FORMAT_VERSION).map_err(failed("create"))?;
    transaction.commit().map_err(failed("create"))?;
    Ok(())
}

impl Store for RedbStore {
    const NAME: &'static str = "redb";
    type View = RedbView;
    type Upkeep = ();

    fn applied(&self) -> Result<Option<Applied>, BackendError> {
        let bytes = catch_panics("reading the applied position", || {
            let transaction = self.database().begin_read().map_err(failed("read"))?;
            // Verifies the applied position too.
            contents_of(&transaction.open_table(META).map_err(failed("read"))?)?;
            self.meta(APPLIED)
        })?;
        bytes.map(|bytes| Applied::decode(&bytes, || corrupt("`applied` does not decode"))).transpose()
    }

    fn persist<'a>(&self, changes: impl Iterator<Item = Change<'a>>, applied: Applied) -> Result<u64, BackendError> {
        catch_panics("persisting", || {
            let mut transaction = self.database().begin_write().map_err(failed("write"))?;
            transaction.set_quick_repair(self.sync == SyncMode::BehindLog);
            let (mut bytes, mut count) = (0, 0);
            let written_before = self.figures.written.load(Ordering::Relaxed);
            let contents = {
                let mut pairs = transaction.open_table(PAIRS).map_err(failed("write"))?;
                let mut meta = transaction.open_table(META).map_err(failed("write"))?;
                let mut contents = match contents_of(&meta)? {
                    Some(contents) => contents,
                    None => summarize(&pairs)?,
                };
                for change in changes {
                    count += 1;
                    match change {
                        Change::Put(key, value) => {
                            bytes += key.len() + value.len();
                            if let Some(old) = pairs.get(key).map_err(failed("write"))? {
                                contents.remove(key, old.value());
                            }
                            let stored_bytes = CHECKSUM_BYTES + value.len();
                            let mut room = pairs.insert_reserve(key, stored_bytes).map_err(failed("write"))?;
                            let room: &mut [u8] = room.as_mut();
                            room[..CHECKSUM_BYTES].copy_from_slice(&checksum(key, value));
                            room[CHECKSUM_BYTES..].copy_from_slice(value);
                            contents.add(key, room);
                        }
                        Change::Delete(key) => {
                            bytes += key.len();
                            if let Some(old) = pairs.remove(key).map_err(failed("write"))? {
                                contents.remove(key, old.value());
                            }
                        }
                    }
                }
                let applied = applied.encode();
                meta.insert(APPLIED, applied.as_slice()).map_err(failed("write"))?;
                meta.insert(CONTENTS, contents.encode(&applied).as_slice()).map_err(failed("write"))?;
                meta.insert(FORMAT, FORMAT_VERSION).map_err(failed("write"))?;
                contents
            };
            transaction.commit().map_err(failed("commit"))?;
            self.pair_bytes.store(contents.bytes, Ordering::Relaxed);
            let written = self.figures.written.load(Ordering::Relaxed) - written_before;
            // The figure falls by at most a quarter for each transaction, because the next one may be as expensive as
            // earlier ones.
            let before = self.bytes_per_change.load(Ordering::Relaxed);
            let per_change = (written / count.max(1)).max(before / 4 * 3);
            self.bytes_per_change.store(per_change, Ordering::Relaxed);
            Ok(bytes as u64)
        })
    }

    fn view(&self) -> Result<Arc<RedbView>, BackendError> {
        catch_panics("making a view", || {
            let transaction = self.database().begin_read().map_err(failed("read"))?;
            let pairs = transaction.open_table(PAIRS).map_err(failed("read"))?;
            let meta = transaction.open_table(META).map_err(failed("read"))?;
            Ok(Arc::new(RedbView { verified: VerifiedValues::new(Arc::clone(&self.kept)), pairs, meta }))
        })
    }

    /// Estimates the disk space that persisting memtables takes. Counts copied pages twice: a transaction copies each
    /// page that it changes, and the old pages become free only for the transaction after the next one. A transaction
    /// copies at most the whole file.
    fn bytes_to_persist(&self, memtables: u64, changes: u64, bytes: u64) -> u64 {
        let copied = changes.saturating_mul(self.bytes_per_change.load(Ordering::Relaxed));
        let copied = copied.min(self.figures.file.allocated_bytes().unwrap_or(u64::MAX));
        self.copied_bytes.store(copied * 2, Ordering::Relaxed);
        copied * 2 + memtables * bytes * 2
    }

    /// Returns a lower bound of the file's bytes that new pairs can use. Assumes that pages are half full and that all
    /// inner pages are in use. Leaves out the pages that the last two transactions have freed, because the next two
    /// transactions need them for copies.
    fn reusable_bytes(&self) -> u64 {
        match self.pair_bytes.load(Ordering::Relaxed) {
            0 => 0,
            pairs => {
                let allocated = self.figures.file.allocated_bytes().unwrap_or(0);
                let copied = self.copied_bytes.load(Ordering::Relaxed);
                allocated.saturating_sub(pairs.saturating_mul(3) + MIN_FILE_BYTES + copied)
            }
        }
    }

    fn full_disk(&self) -> Option<BackendError> {
        self.room.full().map(|message| BackendError::DiskFull { operation: "write", message })
    }

    fn stop(&self) {
        self.room.end();
    }

    fn add_stats(&self, _view: &Self::View, stats: &mut BackendStats) {
        stats.disk_bytes += self.figures.len.load(Ordering::Relaxed);
        stats.tables += 1;
        if self.room.full().is_some() {
            // The transaction that waits for room may hold locks that the figures below need.
            return;
        }
        stats.cache_bytes += self.database().cache_stats().used_bytes() as u64;
        let keys = || self.database().begin_read().ok()?.open_table(PAIRS).ok()?.len().ok();
        stats.estimated_keys += keys().unwrap_or(0);
    }
}

impl Drop for RedbStore {
    /// Closes the database. redb then writes data that makes the next open fast. It may panic if the file is damaged;
    /// such a panic loses no committed data.
    fn drop(&mut self) {
        self.room.end();
        let database = self.database.take();
        let _ = catch_unwind(AssertUnwindSafe(|| drop(database)));
    }
}

/// A view of the pairs of one transaction. While it exists, redb does not reuse the pages of that transaction.
pub struct RedbView {
    /// Large values that scans have verified. This field is dropped before the transaction that owns the values' pages.
    verified: VerifiedValues<StoredValue>,
    pairs: ReadOnlyTable<&'static [u8], &'static [u8]>,
    meta: ReadOnlyTable<&'static str, &'static [u8]>,
}

/// Checksum and value of a pair, in a page of redb. The page stays in memory while this value exists.
#[derive(Clone)]
struct StoredValue(Arc<AccessGuard<'static, &'static [u8]>>);

impl AsRef<[u8]> for StoredValue {
    fn as_ref(&self) -> &[u8] {
        self.0.value()
    }
}

/// A stored value with a verified checksum, shown without this checksum.
struct VerifiedValue(StoredValue);

impl AsRef<[u8]> for VerifiedValue {
    fn as_ref(&self) -> &[u8] {
        &self.0.as_ref()[CHECKSUM_BYTES..]
    }
}

impl RedbView {
    /// Adds a large pair to a page without copying its value. Scans pass the same large values repeatedly; copying and
    /// verifying each one again would take milliseconds.
    fn push_large(
        &self,
        key: &[u8],
        stored: AccessGuard<'static, &'static [u8]>,
        page: &mut Page,
    ) -> Result<(), BackendError> {
        let verified = self.verified.verify(key, StoredValue(Arc::new(stored)))?;
        page.push_shared(key, Box::new(VerifiedValue(verified)));
        Ok(())
    }
}

/// Returns the summary of the pairs in a transaction; `None` if the database has the format without summaries.
fn contents_of(meta: &impl ReadableTable<&'static str, &'static [u8]>) -> Result<Option<Contents>, BackendError> {
    let get = |name| meta.get(name).map_err(failed("read"));
    if get(FORMAT)?.is_some_and(|format| format.value() == FORMAT_VERSION_1) {
        return Ok(None);
    }
    let damaged = || corrupt("`applied` or `contents` is damaged");
    match (get(APPLIED)?, get(CONTENTS)?) {
        (None, None) => Ok(Some(Contents::default())),
        (Some(applied), Some(contents)) => {
            Contents::decode(contents.value(), applied.value()).ok_or_else(damaged).map(Some)
        }
        _ => Err(damaged()),
    }
}

/// Computes the summary of all pairs. Needed only for a database that was written without one.
fn summarize(pairs: &impl ReadableTable<&'static [u8], &'static [u8]>) -> Result<Contents, BackendError> {
    let mut contents = Contents::default();
    for pair in pairs.iter().map_err(failed("read"))? {
        let (key, stored) = pair.map_err(failed("read"))?;
        contents.add(key.value(), stored.value());
    }
    Ok(contents)
}

impl PagedView for RedbView {
    fn contents(&self) -> Result<Option<Contents>, BackendError> {
        catch_panics("reading", || contents_of(&self.meta))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        let get = || {
            let Some(stored) = self.pairs.get(key).map_err(failed("read"))? else { return Ok(None) };
            checked(key, stored.value()).map(|value| Some(Bytes::copy_from_slice(value)))
        };
        catch_panics("reading", || read_view(get))
    }

    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError> {
        let scan = || {
            let mut pairs = self.pairs.range::<&[u8]>((lower, upper)).map_err(failed("read"))?;
            while !page.is_full() {
                let pair = match direction {
                    Direction::Forward => pairs.next(),
                    Direction::Reverse => pairs.next_back(),
                };
                let Some(pair) = pair else { break };
                let (key, stored) = pair.map_err(failed("read"))?;
                if stored.value().len() >= LARGE_BYTES {
                    self.push_large(key.value(), stored, page)?;
                } else {
                    page.push(key.value(), checked(key.value(), stored.value())?);
                }
            }
            Ok(())
        };
        catch_panics("scanning", || read_view(scan))
    }
}

/// Runs a redb operation. redb may panic on a damaged file; such a panic is returned as an error of corruption.
fn catch_panics<T>(doing: &'static str, work: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    caught(work).unwrap_or_else(|text| Err(corrupt(format_args!("redb failed while {doing}: {text}"))))
}

fn failed<E: Into<redb::Error>>(operation: &'static str) -> impl FnOnce(E) -> BackendError {
    move |error| match error.into() {
        redb::Error::Corrupted(message) => corrupt(message),
        redb::Error::Io(error) => io_error(operation)(error),
        other => BackendError::io(operation, other),
    }
}

fn io_error(operation: &'static str) -> impl FnOnce(io::Error) -> BackendError {
    move |error| match error.kind() {
        io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof => corrupt(error),
        _ => files::io_error(operation)(error),
    }
}

fn corrupt(message: impl Display) -> BackendError {
    BackendError::corrupt(FILE, message)
}
