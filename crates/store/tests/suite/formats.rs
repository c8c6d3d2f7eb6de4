//! Databases of format 1, which earlier versions of the program wrote: they are read, and the first transaction
//! converts them (`docs/formats/directory.md`). The databases are made without the code under test, as the document
//! describes them.

use std::{
    collections::BTreeMap,
    fs,
    ops::{Bound, ControlFlow},
    path::{Path, PathBuf},
    sync::Arc,
};

use ::redb::{Database, ReadableDatabase as _, TableDefinition};
use rusqlite::{Connection, OptionalExtension as _};
use thalweg_disk::{Disk, RealDisk};
use thalweg_store::{
    Applied, Backend, BackendError, Direction, SyncMode, WriteBatch,
    redb::{RedbBackend, RedbOptions},
    sqlite::{SqliteBackend, SqliteOptions},
};
use thalweg_types::{Classified, Index, Lsn, Revision, SpaceTime, Term};

use crate::backend_support::{Barrier, small_buffer};

/// More pairs than a page of a scan has.
const PAIRS: u32 = 600;
/// Applied position of the databases: version 2 of its encoding, then LSN, term, index, revision, time and running
/// hash.
const APPLIED: [u8; 49] =
    *b"\x02\x05\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\x03\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0\x09\0\0\0\0\0\0\0";

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

fn applied() -> Applied {
    Applied { lsn: Lsn(5), term: Term(2), index: Index(4), revision: Revision(3), time: SpaceTime(7), running_hash: 9 }
}

/// CRC-32C, bit by bit.
fn crc32c(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| crc >> 1 ^ if crc & 1 == 1 { 0x82f6_3b78 } else { 0 })
    })
}

/// Returns a value as it is stored: after the checksum of key and value.
fn stored(key: &[u8], value: &[u8]) -> Vec<u8> {
    [&crc32c(&[key, value].concat()).to_le_bytes(), value].concat()
}

fn pairs() -> Map {
    // The first ones are long: formats 1 and 2 have them among the others.
    let len = |number| if number < 9 { 40_000 } else { 50 };
    (0..PAIRS).map(|number| (format!("key{number:05}").into_bytes(), vec![number as u8; len(number)])).collect()
}

/// A backend with a database of a format that a test chooses.
trait Format {
    /// Format of databases that the backend writes.
    const CURRENT: u8;
    /// Creates a database with these pairs.
    fn create(dir: &Path, format: u8, pairs: &Map);
    fn open(dir: &Path) -> Result<Box<dyn Backend>, BackendError>;
    /// Returns the format of a database, and whether it has a summary.
    fn inspect(dir: &Path) -> (u8, bool);
    /// Removes a pair without the knowledge of the backend.
    fn lose(dir: &Path, key: &[u8]);
}

struct Redb;

impl Redb {
    const PAIRS: TableDefinition<'static, &'static [u8], &'static [u8]> = TableDefinition::new("pairs");
    const META: TableDefinition<'static, &'static str, &'static [u8]> = TableDefinition::new("meta");

    fn path(dir: &Path) -> PathBuf {
        dir.join("redb").join("state.redb")
    }
}

impl Format for Redb {
    const CURRENT: u8 = 2;

    fn create(dir: &Path, format: u8, pairs: &Map) {
        fs::create_dir(dir.join("redb")).unwrap();
        let database = Database::create(Self::path(dir)).unwrap();
        let transaction = database.begin_write().unwrap();
        {
            let mut table = transaction.open_table(Self::PAIRS).unwrap();
            for (key, value) in pairs {
                table.insert(&key[..], &stored(key, value)[..]).unwrap();
            }
            let mut meta = transaction.open_table(Self::META).unwrap();
            meta.insert("format", &[format][..]).unwrap();
            meta.insert("applied", &APPLIED[..]).unwrap();
        }
        transaction.commit().unwrap();
    }

    fn open(dir: &Path) -> Result<Box<dyn Backend>, BackendError> {
        let disk: Arc<dyn Disk> = Arc::new(RealDisk::open(dir).unwrap());
        let buffer = small_buffer(SyncMode::BehindLog);
        let options = RedbOptions { dir: "redb".to_owned(), cache_bytes: 400_000, buffer };
        Ok(Box::new(RedbBackend::open(&disk, options, Arc::new(Barrier::default()))?))
    }

    fn inspect(dir: &Path) -> (u8, bool) {
        let database = Database::open(Self::path(dir)).unwrap();
        let meta = database.begin_read().unwrap().open_table(Self::META).unwrap();
        let format = meta.get("format").unwrap().unwrap().value()[0];
        (format, meta.get("contents").unwrap().is_some())
    }

    fn lose(dir: &Path, key: &[u8]) {
        let database = Database::open(Self::path(dir)).unwrap();
        let transaction = database.begin_write().unwrap();
        assert!(transaction.open_table(Self::PAIRS).unwrap().remove(key).unwrap().is_some());
        transaction.commit().unwrap();
    }
}

struct Sqlite;

impl Sqlite {
    fn connect(dir: &Path) -> Connection {
        Connection::open(dir.join("state.sqlite")).unwrap()
    }
}

impl Format for Sqlite {
    const CURRENT: u8 = 3;

    fn create(dir: &Path, format: u8, pairs: &Map) {
        let connection = Self::connect(dir);
        let tables = format!(
            "PRAGMA page_size = 8192; PRAGMA journal_mode = WAL;
             BEGIN;
             CREATE TABLE pairs (key BLOB PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
             CREATE TABLE meta (name TEXT PRIMARY KEY NOT NULL, value BLOB NOT NULL) WITHOUT ROWID;
             PRAGMA application_id = {}; PRAGMA user_version = {format};",
            u32::from_be_bytes(*b"THWG")
        );
        connection.execute_batch(&tables).unwrap();
        for (key, value) in pairs {
            connection.execute("INSERT INTO pairs VALUES (?1, ?2)", (key, stored(key, value))).unwrap();
        }
        connection.execute("INSERT INTO meta VALUES ('applied', ?1)", [&APPLIED[..]]).unwrap();
        connection.execute_batch("COMMIT").unwrap();
    }

    fn open(dir: &Path) -> Result<Box<dyn Backend>, BackendError> {
        let options = SqliteOptions {
            cache_bytes: 400_000,
            buffer: small_buffer(SyncMode::BehindLog),
            ..SqliteOptions::new(dir)
        };
        Ok(Box::new(SqliteBackend::open(options, Arc::new(Barrier::default()))?))
    }

    fn inspect(dir: &Path) -> (u8, bool) {
        let connection = Self::connect(dir);
        let format = connection.query_row("PRAGMA user_version", [], |row| row.get(0)).unwrap();
        let contents = connection.query_row("SELECT 1 FROM meta WHERE name = 'contents'", [], |_| Ok(()));
        (format, contents.optional().unwrap().is_some())
    }

    fn lose(dir: &Path, key: &[u8]) {
        assert_eq!(Self::connect(dir).execute("DELETE FROM pairs WHERE key = ?1", [key]).unwrap(), 1);
    }
}

/// Asserts that a backend has exactly these pairs, by scan, by key and by verification.
fn has(backend: &dyn Backend, expected: &Map) {
    let mut scanned = Map::new();
    let (all, forward) = ((Bound::Unbounded, Bound::Unbounded), Direction::Forward);
    let mut visit = |key: &[u8], value: &[u8]| {
        scanned.insert(key.to_vec(), value.to_vec());
        ControlFlow::Continue(())
    };
    backend.view().scan(all.0, all.1, forward, &mut visit).unwrap();
    assert_eq!(scanned, *expected);
    for key in pairs().keys() {
        assert_eq!(backend.get(key).unwrap().as_deref(), expected.get(key).map(Vec::as_slice), "{key:?}");
    }
    let verified = backend.verify(&mut |_| ControlFlow::Continue(())).unwrap();
    assert!(verified.is_complete && verified.rows == expected.len() as u64, "{verified:?}");
}

fn the_first_write_converts<F: Format>() {
    let dir = tempfile::tempdir().unwrap();
    let mut expected = pairs();
    F::create(dir.path(), 1, &expected);

    // Opening and reading changes nothing, so the program that wrote the database can still open it.
    let backend = F::open(dir.path()).unwrap();
    assert_eq!((backend.applied(), backend.persisted()), (Some(applied()), Some(applied())));
    has(&*backend, &expected);
    drop(backend);
    assert_eq!(F::inspect(dir.path()), (1, false));

    // One transaction that adds, replaces and removes pairs; the summary counts all others, too.
    let backend = F::open(dir.path()).unwrap();
    let mut batch = WriteBatch::new();
    for (key, value) in [("key00001", "replaced"), ("new", "value")] {
        batch.put(&[key.as_bytes()], &[value.as_bytes()]);
        expected.insert(key.into(), value.into());
    }
    for key in ["key00007", "nothing"] {
        batch.delete(&[key.as_bytes()]);
        expected.remove(key.as_bytes());
    }
    let later = Applied { lsn: Lsn(6), index: Index(5), ..applied() };
    backend.apply(&batch, later).unwrap();
    assert_eq!(backend.flush().unwrap(), Some(later));
    has(&*backend, &expected);
    drop(backend);
    assert_eq!(F::inspect(dir.path()), (F::CURRENT, true));
    let backend = F::open(dir.path()).unwrap();
    assert_eq!(backend.applied(), Some(later));
    has(&*backend, &expected);
    drop(backend);

    // From now on a pair that disappears is noticed, also one that was written in format 1.
    F::lose(dir.path(), b"key00300");
    let backend = F::open(dir.path()).unwrap();
    let error = backend.verify(&mut |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.code(), "state_corrupt", "{error}");
}

fn without_a_write_nothing_changes<F: Format>() {
    let dir = tempfile::tempdir().unwrap();
    F::create(dir.path(), 1, &pairs());
    let backend = F::open(dir.path()).unwrap();
    let mut batch = WriteBatch::new();
    batch.put(&[b"new"], &[b"value"]);
    backend.apply(&batch, Applied { lsn: Lsn(6), index: Index(5), ..applied() }).unwrap();
    // Dropped without a flush: the changes are lost with the process, and the log replays them.
    drop(backend);
    assert_eq!(F::inspect(dir.path()), (1, false));
    let backend = F::open(dir.path()).unwrap();
    assert_eq!(backend.applied(), Some(applied()));
    has(&*backend, &pairs());
}

fn an_unknown_format_is_refused<F: Format>() {
    let dir = tempfile::tempdir().unwrap();
    let unknown = F::CURRENT + 1;
    F::create(dir.path(), unknown, &pairs());
    let error = F::open(dir.path()).map(|_| ()).unwrap_err();
    assert_eq!(error.code(), "state_corrupt", "{error}");
    assert_eq!(F::inspect(dir.path()), (unknown, false));
}

#[test]
fn the_first_write_converts_a_redb_database_of_format_1() {
    the_first_write_converts::<Redb>();
}

#[test]
fn the_first_write_converts_an_sqlite_database_of_format_1() {
    the_first_write_converts::<Sqlite>();
}

#[test]
fn a_database_of_format_1_that_is_not_written_stays_as_it_is() {
    without_a_write_nothing_changes::<Redb>();
    without_a_write_nothing_changes::<Sqlite>();
}

#[test]
fn a_database_of_an_unknown_format_is_refused() {
    an_unknown_format_is_refused::<Redb>();
    an_unknown_format_is_refused::<Sqlite>();
}

/// A search in the table of pairs copies the rows with which it compares a key, so none of them may be large.
#[test]
fn large_rows_of_an_sqlite_database_are_in_a_table_of_their_own() {
    let dir = tempfile::tempdir().unwrap();
    let (mut expected, mut lsn) = (pairs(), 5);
    let mut write = |backend: &dyn Backend, changes: &[(&str, Option<usize>)], expected: &mut Map| {
        let mut batch = WriteBatch::new();
        for (key, len) in changes {
            let value = len.map(|len| vec![lsn as u8; len]);
            match &value {
                Some(value) => batch.put(&[key.as_bytes()], &[value]),
                None => batch.delete(&[key.as_bytes()]),
            }
            expected.remove(key.as_bytes());
            expected.extend(value.map(|value| (key.as_bytes().to_vec(), value)));
        }
        lsn += 1;
        backend.apply(&batch, Applied { lsn: Lsn(lsn), index: Index(lsn), ..applied() }).unwrap();
        backend.flush().unwrap();
    };
    let large = || {
        let connection = Sqlite::connect(dir.path());
        let number = |query: &str| connection.query_row(query, [], |row| row.get::<_, u32>(0)).unwrap();
        assert!(number("SELECT max(length(value)) FROM pairs") < 17_000);
        number("SELECT count(*) FROM large")
    };
    let backend = Sqlite::open(dir.path()).unwrap();
    let all: Vec<_> =
        expected.iter().map(|(key, value)| (String::from_utf8(key.clone()).unwrap(), value.len())).collect();
    let all: Vec<_> = all.iter().map(|(key, len)| (key.as_str(), Some(*len))).collect();
    expected.clear();
    write(&*backend, &all, &mut expected);
    write(
        &*backend,
        &[("key00000", Some(1 << 20)), ("key00010", Some(16 * 1024)), ("key00011", Some(16 * 1000))],
        &mut expected,
    );
    has(&*backend, &expected);
    drop(backend);
    assert_eq!(large(), 10);

    let backend = Sqlite::open(dir.path()).unwrap();
    has(&*backend, &expected);
    write(&*backend, &[("key00000", Some(5)), ("key00001", None), ("key00002", Some(30_000))], &mut expected);
    has(&*backend, &expected);
    drop(backend);
    assert_eq!(large(), 8);

    Sqlite::connect(dir.path()).execute("DELETE FROM large WHERE length(stored) = 30004", []).unwrap();
    let backend = Sqlite::open(dir.path()).unwrap();
    assert_eq!(backend.get(b"key00002").unwrap_err().code(), "state_corrupt");
    assert_eq!(backend.verify(&mut |_| ControlFlow::Continue(())).unwrap_err().code(), "state_corrupt");
}
