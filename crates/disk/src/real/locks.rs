//! Locks on files, and the locks that this process holds.
//!
//! Owns: taking and releasing a lock, and waiting for a lock that another handle of this process holds. Does not own:
//! waiting for other processes; a lock held by another process is an immediate error.

use std::{
    collections::BTreeSet,
    fs, io,
    os::unix::fs::MetadataExt,
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

use rustix::fs::FlockOperation;

use crate::LockGuard;

/// Identity of a file: its device number and its inode number.
type FileId = (u64, u64);

/// Files that this process has locked. The mutex is held while a lock is taken or released, so that the set always
/// agrees with the real locks.
static HELD: Mutex<BTreeSet<FileId>> = Mutex::new(BTreeSet::new());
/// Condition variable that is notified after a file was unlocked.
static RELEASED: Condvar = Condvar::new();

/// A locked file; closing it releases the lock.
#[derive(Debug)]
pub(super) struct RealLock {
    /// The locked file; `None` while the lock is being released.
    file: Option<fs::File>,
    id: FileId,
}

impl RealLock {
    /// Locks a file. Waits up to `patience` while another handle of this process holds the lock.
    pub(super) fn take(file: fs::File, patience: Duration) -> io::Result<Self> {
        let metadata = file.metadata()?;
        let id = (metadata.dev(), metadata.ino());
        let held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = RELEASED.wait_timeout_while(held, patience, |held| held.contains(&id));
        let mut held = waited.unwrap_or_else(PoisonError::into_inner).0;
        // `flock` belongs to the open file, not to the process: two handles of one process conflict too.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        held.insert(id);
        Ok(Self { file: Some(file), id })
    }
}

impl LockGuard for RealLock {}

impl Drop for RealLock {
    fn drop(&mut self) {
        let mut held = HELD.lock().unwrap_or_else(PoisonError::into_inner);
        self.file = None;
        held.remove(&self.id);
        drop(held);
        RELEASED.notify_all();
    }
}
