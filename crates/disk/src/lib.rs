//! Access to the disk for all other crates: a directory tree of files, behind one trait.
//!
//! Owns: [`Disk`] and [`File`], their real implementation over the operating system ([`RealDisk`]), and a simulated one
//! with faults and power loss ([`SimDisk`]); the [`Priority`] of threads that use files in the background; and the
//! [`Pacer`], which makes such threads pause so that clients' syncs stay fast. Does not own: any file format, any
//! retry. Errors are returned unchanged. In particular a failed sync is final: the kernel may have marked the pages
//! clean without writing them, so a later successful sync proves nothing.
//!
//! Both implementations return the same results, including error kinds (`tests/suite/differential.rs`). The
//! simulated disk is stricter where that catches a caller's mistake: it rejects mappings of holes, and a
//! power loss discards everything that the guarantees below do not cover.
//!
//! Paths are relative to the disk's root, `/`-separated, without `..`.

use std::{io, sync::Arc, time::Duration};

mod pacer;
mod pacing;
mod path;
mod priority;
mod real;
pub mod sim;

pub use pacer::{Pacer, PacerStats, Permit};
pub use pacing::{MAX_PAUSE_FACTOR, PacedJob, PacedWork, WriteMeter};
pub use priority::Priority;
pub use real::{DIRECT_BLOCK_BYTES, RealDisk, begin_write_out, decode_resident, read_resident, set_direct, write_out};
pub use sim::SimDisk;

/// Longest time for which opening a database or snapshot waits for a lock that another handle in the same process
/// holds. Such a wait is needed because the lock is released by background threads, a moment after the last handle was
/// dropped.
pub const LOCK_PATIENCE: Duration = Duration::from_secs(5);

/// Returns true for the errors of an operation that failed because the disk, or a quota, has no room left.
#[must_use]
pub const fn is_out_of_space(kind: io::ErrorKind) -> bool {
    matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// A directory tree. Cheap to clone behind an `Arc`; safe from many threads.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Opens an existing file for reading and writing. Returns `NotFound` if it does not exist.
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Creates an empty file; returns `AlreadyExists` if a file has this name. The file is durable only after
    /// `sync_all` of the file and `sync_dir` of its directory.
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Renames a file and replaces any file at `to`. Returns `IsADirectory` if either path is a directory.
    /// Atomic: a crash leaves the old state or the new one. Durable after `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; open handles and mappings keep its content until they are dropped. Durable after
    /// `sync_dir`.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Removes a file like [`remove`](Self::remove). Succeeds also if the file does not exist.
    fn remove_if_there(&self, path: &str) -> io::Result<()> {
        match self.remove(path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
    /// Creates a directory and its missing ancestors; succeeds if it exists. Durable after `sync_dir` of the
    /// parent of each created directory.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Names of the files (not directories) directly in a directory, sorted. `NotFound` if the directory does
    /// not exist.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes the names in a directory durable: created, renamed and removed files. `""` is the root.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Bytes that are free on the disk for new data.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Takes an exclusive lock between processes on `path` (created if missing), released on drop. Returns
    /// `WouldBlock` if another process, or another handle of this process, holds it.
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>>;
    /// Takes a lock like [`lock`](Self::lock), but waits up to `patience` while another handle of this process holds
    /// it. Returns `WouldBlock` without waiting if another process holds it.
    fn lock_within(&self, path: &str, patience: Duration) -> io::Result<Box<dyn LockGuard>> {
        let _ = patience;
        self.lock(path)
    }
    /// Path of this disk's root directory in the operating system, for libraries that do their own I/O. `None` for the
    /// simulated disk.
    fn os_path(&self) -> Option<&std::path::Path>;
}

/// Holds a lock taken by [`Disk::lock`] until dropped.
pub trait LockGuard: Send + Sync + std::fmt::Debug {}

/// An open file. All methods take `&self` and can be called from many threads concurrently. Callers must not
/// issue overlapping writes to the same range concurrently.
pub trait File: Send + Sync + std::fmt::Debug {
    /// Fills `buf` from `offset`. Returns `UnexpectedEof` if the file ends earlier.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// Reads `len` bytes at `offset` into new memory, without zeroing it first where possible. Errors as in
    /// [`read_exact_at`](Self::read_exact_at).
    fn read_new_at(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
    /// Reads like [`read_new_at`](Self::read_new_at), if this needs no wait for the disk. Returns `None` if the bytes
    /// are not in memory, or if the file cannot tell.
    fn read_resident_at(&self, len: usize, offset: u64) -> io::Result<Option<Vec<u8>>> {
        let _ = (len, offset);
        Ok(None)
    }
    /// Requests that the system reads a range into memory, and does not wait for it. Does nothing where the system does
    /// not support it.
    fn read_ahead(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }
    /// Writes all of `data` at `offset`, extending the file if needed.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Writes the buffers in `parts` one after the other at `offset`, as one vectored write where possible.
    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// Makes the file's data durable, with the metadata needed to read it (`fdatasync`). Never retried, not even after
    /// an interruption.
    fn sync_data(&self) -> io::Result<()>;
    /// Makes the file's data and all of its metadata durable (`fsync`).
    fn sync_all(&self) -> io::Result<()>;
    /// Writes a range out to the disk and waits until the disk has received it. This is not a sync: nothing
    /// is durable afterwards. But a later sync has less to do, and delays other syncs for a shorter time.
    /// Does nothing where the system does not support it.
    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }
    /// Length of the file in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Bytes of disk space that the file takes. This is less than its length if it has holes.
    fn allocated_bytes(&self) -> io::Result<u64> {
        self.len()
    }
    /// Returns true if the file has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
    /// Truncates the file, or extends it with zeroes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Reserves disk space for the first `len` bytes without writing them, and extends the file if it is shorter. Bytes
    /// that were never written read as zeroes. Returns an error if the disk is full, and false if the system cannot
    /// reserve space: the caller then writes zeroes.
    ///
    /// Reserving is much faster than writing zeroes. But the first later write of each block also changes metadata, so
    /// a sync after such a write takes longer.
    fn reserve(&self, len: u64) -> io::Result<bool> {
        let _ = len;
        Ok(false)
    }
    /// Maps the first `len` bytes for small writes. A write through the mapping is equivalent to
    /// [`write_all_at`](Self::write_all_at) of the same bytes: it survives a crash of the process, reads see
    /// it, and [`sync_data`](Self::sync_data) makes it durable. It costs a copy instead of a system call. The
    /// file must be at least `len` bytes long with all blocks allocated, and must not shrink while it is
    /// mapped.
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>>;
}

/// A writable mapping of a file's beginning; see [`File::map`].
pub trait Mapping: Send + std::fmt::Debug {
    /// Copies `data` to `offset`. Panics if the range exceeds the mapping, which is a caller's mistake.
    fn write(&mut self, data: &[u8], offset: u64);
}
