//! redb's database file on any [`Disk`](thalweg_disk::Disk), so that redb also runs on the simulated disk and is tested
//! with power losses and faults like the other backends.

use std::{
    cell::Cell,
    io,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use redb::StorageBackend;
use thalweg_disk::File;
use thalweg_types::budget::{self, BudgetSpent};

use crate::backend::BackendError;

/// Pause before a write that found the disk full is tried again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Makes redb's writes wait on a full disk until there is room.
///
/// After a write has failed, redb serves neither reads nor writes until the database is opened again. To avoid this on
/// a full disk, a write waits here until there is room, and redb sees no error. Only the thread that persists memtables
/// ever waits here.
#[derive(Debug, Default)]
pub(super) struct RoomWait {
    state: Mutex<RoomState>,
    changed: Condvar,
}

#[derive(Debug, Default)]
struct RoomState {
    /// Error message of the write that waits for free disk space; `None` if no write waits.
    full: Option<String>,
    /// True if writes wait for free space on a full disk. False while the database is opened or closed, if callers wait
    /// for each batch, and for a backend without threads; writes then return the error.
    waits: bool,
}

impl RoomWait {
    /// Returns the message of the full-disk error while a write waits for free disk space; `None` otherwise.
    pub(super) fn full(&self) -> Option<String> {
        self.lock().full.clone()
    }

    /// Makes later writes wait for free space if the disk is full, instead of failing.
    pub(super) fn begin(&self) {
        self.lock().waits = true;
    }

    /// Makes the waiting write and all later writes fail if the disk is full, instead of waiting.
    pub(super) fn end(&self) {
        self.lock().waits = false;
        self.changed.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, RoomState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Repeats `write` while it finds the disk full and waiting is permitted. Returns the last result of `write`.
    fn until_there_is_room(&self, write: impl Fn() -> io::Result<()>) -> io::Result<()> {
        let mut has_waited = false;
        loop {
            let done = match write() {
                Err(error) if thalweg_disk::is_out_of_space(error.kind()) => {
                    let mut state = self.lock();
                    if state.waits {
                        has_waited = true;
                        state.full = Some(error.to_string());
                        let wait = self.changed.wait_timeout_while(state, RETRY_AFTER, |state| state.waits);
                        drop(wait.unwrap_or_else(PoisonError::into_inner));
                        continue;
                    }
                    Err(error)
                }
                done => done,
            };
            if has_waited {
                self.lock().full = None;
            }
            return done;
        }
    }
}

thread_local! {
    /// True while the thread reads a view. A read of the file may then end with a panic, if it would wait for the disk.
    static IN_VIEW: Cell<bool> = const { Cell::new(false) };
}

/// Panic payload with which a read of the file ends if its thread must not wait for the disk.
struct MustWait(BudgetSpent);

/// Performs a read of a view. If the [budget] of the thread's read forbids waiting for the disk, the read returns an
/// error at the first page that is neither in redb's cache nor in the kernel's memory.
///
/// An error of the file would close the database: redb then serves neither reads nor writes until it is opened again.
/// So the read unwinds through redb instead. redb is not affected: while it asks the file for a page of a view, it
/// holds no lock and has changed nothing (as of version 4.4). Reads of other transactions never end in this way.
pub(super) fn read_view<T>(read: impl FnOnce() -> Result<T, BackendError>) -> Result<T, BackendError> {
    let ended = {
        let _restore = Restore(IN_VIEW.replace(true));
        catch_unwind(AssertUnwindSafe(read))
    };
    ended.unwrap_or_else(|panic| match panic.downcast::<MustWait>() {
        Ok(must_wait) => Err(BackendError::io("read", must_wait.0)),
        Err(panic) => resume_unwind(panic),
    })
}

struct Restore(bool);

impl Drop for Restore {
    fn drop(&mut self) {
        IN_VIEW.set(self.0);
    }
}

/// The database file of redb. The file has no lock of its own, because the lock of its directory excludes other
/// processes.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    file: Arc<dyn File>,
    len: Arc<AtomicU64>,
    written: Arc<AtomicU64>,
    room: Arc<RoomWait>,
}

/// The database file and counters of its size and writes, for the backend's statistics.
#[derive(Debug, Clone)]
pub(super) struct FileFigures {
    /// Size of the file in bytes, updated when redb resizes it.
    pub len: Arc<AtomicU64>,
    /// Number of bytes written to the file since it was opened.
    pub written: Arc<AtomicU64>,
    /// The database file, from which the statistics take the size on the disk. This size is less than `len` if the file
    /// has holes: redb extends the file without writing.
    pub file: Arc<dyn File>,
}

impl DatabaseFile {
    /// Wraps a file for redb. Also returns the counters that the wrapper updates.
    pub(super) fn new(file: Arc<dyn File>, room: Arc<RoomWait>) -> io::Result<(Self, FileFigures)> {
        let len = Arc::new(AtomicU64::new(file.len()?));
        let figures = FileFigures { len, written: Arc::default(), file };
        let FileFigures { len, written, file } = figures.clone();
        Ok((Self { file, len, written, room }, figures))
    }
}

impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        if !IN_VIEW.get() {
            return self.file.read_exact_at(out, offset);
        }
        let len = out.len();
        let resident = || self.file.read_resident_at(len, offset).map(|bytes| bytes.map(Some)).transpose();
        match budget::read_file(resident, || self.file.read_exact_at(out, offset).map(|()| None)) {
            Ok(read) => {
                if let Some(bytes) = read? {
                    out.copy_from_slice(&bytes);
                }
                Ok(())
            }
            // `resume_unwind` does not call the panic hook, so nothing is logged.
            Err(spent) => resume_unwind(Box::new(MustWait(spent))),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.room.until_there_is_room(|| self.file.set_len(len))?;
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.room.until_there_is_room(|| self.file.write_all_at(data, offset))?;
        self.written.fetch_add(data.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
