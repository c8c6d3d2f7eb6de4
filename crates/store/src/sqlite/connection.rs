//! Database connections: their configuration, and the meaning of their errors.

use std::{fmt::Display, io, path::Path, time::Duration};

use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use rustix::fs::OFlags;

use crate::backend::BackendError;

/// Name of the SQLite database file in its directory.
pub(super) const FILE: &str = "state.sqlite";
/// Size of a page of a new database in bytes.
pub(super) const PAGE_BYTES: u32 = 8192;

/// Maximum wait for a lock of another connection in this process, which holds it only for a moment.
pub(super) const BUSY_TIMEOUT: Duration = Duration::from_secs(5);

/// Application id in the database's header, "THWG", which identifies a state database.
pub(super) const APPLICATION_ID: i32 = 0x5448_5747;
/// Present format version of the database, in which rows of 16 KiB and more are in a table of their own. Format 2 has
/// all rows in one table. The first transaction converts earlier formats.
pub(super) const FORMAT_VERSION: i32 = 3;
/// First format version of the database, without a summary of the pairs.
pub(super) const FORMAT_VERSION_1: i32 = 1;

/// Open flag that makes the open of a database file fail at a symbolic link, which another user may have put in place
/// of the file. SQLite opens its own files in the same way.
pub(super) const NO_FOLLOW: i32 = OFlags::NOFOLLOW.bits() as i32;

/// Purpose of a connection to the database: writing or reading.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    Write,
    Read,
}

/// SQL statement that creates the table `large`, which stores the values of rows of 16 KiB and more; see the module
/// `sqlite`.
pub(super) const CREATE_LARGE: &str =
    "CREATE TABLE IF NOT EXISTS large (id INTEGER PRIMARY KEY, stored BLOB NOT NULL);";

/// Opens a connection to the database. Only one process uses the directory, so no lock of another process can block the
/// connection. Fails if a part of `path` is a symbolic link.
pub(super) fn open(path: &Path, role: Role, cache_bytes: u64) -> Result<Connection, BackendError> {
    // A reader opens the file for writing too, because it takes part in the WAL's shared index. `query_only`
    // prevents writes.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    flags |= OpenFlags::SQLITE_OPEN_NOFOLLOW;
    flags.set(OpenFlags::SQLITE_OPEN_CREATE, role == Role::Write);
    let connection = Connection::open_with_flags(path, flags).map_err(failed("open"))?;
    connection.busy_timeout(BUSY_TIMEOUT).map_err(failed("configure"))?;
    connection.set_prepared_statement_cache_capacity(32);
    let cache_kib = (cache_bytes / 1024).min(i32::MAX as u64);
    let settings = format!(
        "PRAGMA cache_size = -{cache_kib}; PRAGMA cell_size_check = ON; PRAGMA trusted_schema = OFF; \
         PRAGMA temp_store = MEMORY; PRAGMA mmap_size = 0;"
    );
    connection.execute_batch(&settings).map_err(failed("configure"))?;
    if role == Role::Read {
        connection.execute_batch("PRAGMA query_only = ON;").map_err(failed("configure"))?;
    }
    Ok(connection)
}

pub(super) fn failed(operation: &'static str) -> impl FnOnce(rusqlite::Error) -> BackendError {
    move |error| match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => corrupt(error),
        Some(ErrorCode::DiskFull) => BackendError::DiskFull { operation, message: error.to_string() },
        _ => BackendError::io(operation, error),
    }
}

/// Returns the error of a write through `connection`. SQLite reports a full disk only if a write of its pages fails
/// with `ENOSPC`. If a quota is exhausted (`EDQUOT`), or if a write of the WAL's index fails, SQLite reports an I/O
/// error; this function converts it to the error of a full disk. A failed fsync stays an I/O error, because it may have
/// lost data.
pub(super) fn write_failed(connection: &Connection, operation: &'static str, error: rusqlite::Error) -> BackendError {
    let code = error.sqlite_error().map(|error| error.extended_code);
    if matches!(code, Some(ffi::SQLITE_IOERR_WRITE | ffi::SQLITE_IOERR_SHMSIZE)) {
        // SAFETY: the connection is open, and the call only reads the error number of its last failed system call.
        let errno = unsafe { ffi::sqlite3_system_errno(connection.handle()) };
        let cause = io::Error::from_raw_os_error(errno);
        if thalweg_disk::is_out_of_space(cause.kind()) {
            return BackendError::DiskFull { operation, message: format!("{error}: {cause}") };
        }
    }
    failed(operation)(error)
}

pub(super) fn corrupt(message: impl Display) -> BackendError {
    BackendError::corrupt(FILE, message)
}
