//! The disk as the layers above see it: a directory tree of files, behind one trait.
//!
//! Owns: [`Disk`] and [`File`], their real implementation over the operating system ([`RealDisk`]),
//! and a simulated one with faults and power loss ([`SimDisk`]).
//! Does not own: any format, any retry. An error is passed up as it is. In particular a failed sync is
//! final: the kernel may have marked the pages clean without writing them, so a second sync that
//! succeeds proves nothing.
//!
//! The two implementations answer alike, error kinds included (`tests/suite/differential.rs`). Where the
//! simulated one is stricter, it is to catch a caller's mistake: it refuses to map holes, and a power
//! loss takes everything that the promises below do not cover.
//!
//! Paths are relative to the disk's root, `/`-separated, without `..`.

use std::{io, sync::Arc};

mod path;
mod real;
pub mod sim;

pub use real::{DIRECT_BLOCK_BYTES, RealDisk, set_direct, write_out};
pub use sim::SimDisk;

/// A directory tree. Cheap to clone behind an `Arc`; safe from many threads.
pub trait Disk: Send + Sync + std::fmt::Debug {
    /// Opens an existing file for reading and writing. `NotFound` if there is none.
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Creates an empty file; `AlreadyExists` if there is one. Durable only after `sync_all` of the
    /// file and `sync_dir` of its directory.
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>>;
    /// Renames a file over whatever file is at `to`; a directory on either side is `IsADirectory`. Atomic:
    /// a crash leaves the old state or the new one. Durable after `sync_dir`.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;
    /// Removes a file; open handles and mappings keep its content until they are dropped. Durable after
    /// `sync_dir`.
    fn remove(&self, path: &str) -> io::Result<()>;
    /// Creates a directory and those above it; fine if it exists. Durable after `sync_dir` of the parent
    /// of each that was missing.
    fn create_dir(&self, path: &str) -> io::Result<()>;
    /// Names of the files (not directories) directly in a directory, sorted. `NotFound` if there is none.
    fn list(&self, dir: &str) -> io::Result<Vec<String>>;
    /// Makes the directory's entries durable. `""` is the root.
    fn sync_dir(&self, dir: &str) -> io::Result<()>;
    /// Bytes that can still be allocated.
    fn free_bytes(&self) -> io::Result<u64>;
    /// Takes an exclusive lock between processes on `path` (created if missing); released on drop.
    /// `WouldBlock` if another process, or another handle of this one, holds it.
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>>;
    /// The root as a path of the operating system, if it has one: for libraries that do their own I/O.
    fn os_path(&self) -> Option<&std::path::Path>;
}

/// Holds a lock taken by [`Disk::lock`] until dropped.
pub trait LockGuard: Send + Sync + std::fmt::Debug {}

/// An open file. All methods take `&self` and may run at the same time from many threads; two writes
/// that overlap in place and time are the caller's mistake.
pub trait File: Send + Sync + std::fmt::Debug {
    /// Fills `buf` from `offset`; `UnexpectedEof` if the file ends before.
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()>;
    /// As [`read_exact_at`](Self::read_exact_at), `len` bytes into new memory: where it can be, without zeroing that first.
    fn read_new_at(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
    /// Writes all of `data` at `offset`, extending the file if needed.
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()>;
    /// Writes all parts one after the other at `offset`, as one vectored write where possible.
    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()>;
    /// `fdatasync`: data, and what is needed to read it back. Never repeated, not even when interrupted.
    fn sync_data(&self) -> io::Result<()>;
    /// `fsync`.
    fn sync_all(&self) -> io::Result<()>;
    /// Hands a part to the disk and waits until it has taken it, which is no sync: nothing is durable, but a later sync
    /// has less to do, and holds up others' syncs for less. Does nothing where that can't be done.
    fn write_out(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Ok(())
    }
    /// Length in bytes.
    fn len(&self) -> io::Result<u64>;
    /// Whether it has no bytes.
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }
    /// Truncates or extends with zeroes.
    fn set_len(&self, len: u64) -> io::Result<()>;
    /// Maps the first `len` bytes for small writes. A write through the mapping is as good as
    /// [`write_all_at`](Self::write_all_at) of the same bytes (it survives the process, reads see it,
    /// [`sync_data`](Self::sync_data) makes it durable) but costs a copy instead of a system call.
    /// The file must be at least `len` long and its blocks allocated, and must not shrink while mapped.
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>>;
}

/// A writable mapping of a file's beginning; see [`File::map`].
pub trait Mapping: Send + std::fmt::Debug {
    /// Copies `data` to `offset`. Panics if it would pass the end of the mapping: the caller's mistake.
    fn write(&mut self, data: &[u8], offset: u64);
}
