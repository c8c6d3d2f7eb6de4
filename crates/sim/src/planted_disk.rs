//! A disk that confirms the fsyncs of an installed state without performing them, until the state is the current one: a
//! planted bug.
//!
//! Owns: which fsyncs are left out. Does not own: the files (`disk`).

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};

/// A disk with the planted bug.
#[derive(Debug)]
pub struct UnsyncedInstalls {
    disk: SimDisk,
    /// True from the creation of a state directory until it is the current one.
    is_installing: Arc<AtomicBool>,
}

impl UnsyncedInstalls {
    /// Plants the bug into a disk.
    #[must_use]
    pub fn new(disk: SimDisk) -> Self {
        Self { disk, is_installing: Arc::default() }
    }

    fn file(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        if is_installed(path) {
            Arc::new(UnsyncedFile { file, is_installing: Arc::clone(&self.is_installing) })
        } else {
            file
        }
    }
}

/// Returns true for a state directory that an install has created, and for the files in it.
fn is_installed(path: &str) -> bool {
    let dir = path.strip_prefix("state/default/").and_then(|rest| rest.split('/').next());
    dir.is_some_and(|dir| dir.contains('.'))
}

impl Disk for UnsyncedInstalls {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(path, self.disk.open(path)?))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(path, self.disk.create(path)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if to == "INSTALLED" {
            self.is_installing.store(false, Relaxed);
        }
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        if is_installed(path) && self.disk.list(path).is_err() {
            self.is_installing.store(true, Relaxed);
        }
        self.disk.create_dir(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        if is_installed(dir) && self.is_installing.load(Relaxed) { Ok(()) } else { self.disk.sync_dir(dir) }
    }

    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }

    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }

    fn os_path(&self) -> Option<&std::path::Path> {
        self.disk.os_path()
    }
}

#[derive(Debug)]
struct UnsyncedFile {
    file: Arc<dyn File>,
    is_installing: Arc<AtomicBool>,
}

impl File for UnsyncedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }

    fn write_all_vectored_at(&self, parts: &[io::IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.file.write_all_vectored_at(parts, offset)
    }

    fn sync_data(&self) -> io::Result<()> {
        if self.is_installing.load(Relaxed) { Ok(()) } else { self.file.sync_data() }
    }

    fn sync_all(&self) -> io::Result<()> {
        if self.is_installing.load(Relaxed) { Ok(()) } else { self.file.sync_all() }
    }

    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn allocated_bytes(&self) -> io::Result<u64> {
        self.file.allocated_bytes()
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        self.file.map(len)
    }
}
