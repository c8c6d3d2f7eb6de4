//! A simulated disk whose calls a test sees, before they are carried out.

use std::{
    fmt::Debug,
    io::{self, IoSlice},
    path::Path,
    sync::Arc,
    time::Duration,
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk};

/// Reactions of a test to the calls of a disk.
pub trait Hook: Debug + Send + Sync {
    /// Called before a read of this number of bytes from a file.
    fn reads(&self, _bytes: usize) {}
    /// Called before each operation that can change the medium.
    fn changes(&self) {}
    /// Called before somebody waits for a lock. Returns how long to wait.
    fn waits_for(&self, _lock: &str, patience: Duration) -> Duration {
        patience
    }
}

#[derive(Clone, Debug)]
pub struct HookedDisk {
    pub disk: SimDisk,
    pub hook: Arc<dyn Hook>,
}

impl HookedDisk {
    fn file(&self, file: Arc<dyn File>) -> Arc<dyn File> {
        Arc::new(HookedFile { file, hook: Arc::clone(&self.hook) })
    }

    fn changed(&self) -> &SimDisk {
        self.hook.changes();
        &self.disk
    }
}

impl Disk for HookedDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.disk.open(path).map(|file| self.file(file))
    }
    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        self.changed().create(path).map(|file| self.file(file))
    }
    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.changed().rename(from, to)
    }
    fn remove(&self, path: &str) -> io::Result<()> {
        self.changed().remove(path)
    }
    fn create_dir(&self, path: &str) -> io::Result<()> {
        self.changed().create_dir(path)
    }
    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }
    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        self.changed().sync_dir(dir)
    }
    fn free_bytes(&self) -> io::Result<u64> {
        self.disk.free_bytes()
    }
    fn lock(&self, path: &str) -> io::Result<Box<dyn LockGuard>> {
        self.disk.lock(path)
    }
    fn lock_within(&self, path: &str, patience: Duration) -> io::Result<Box<dyn LockGuard>> {
        match self.disk.lock(path) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                self.disk.lock_within(path, self.hook.waits_for(path, patience))
            }
            taken => taken,
        }
    }
    fn os_path(&self) -> Option<&Path> {
        None
    }
}

#[derive(Debug)]
struct HookedFile {
    file: Arc<dyn File>,
    hook: Arc<dyn Hook>,
}

impl HookedFile {
    fn changed(&self) -> &dyn File {
        self.hook.changes();
        &*self.file
    }
}

impl File for HookedFile {
    fn read_exact_at(&self, buf: &mut [u8], offset: u64) -> io::Result<()> {
        self.hook.reads(buf.len());
        self.file.read_exact_at(buf, offset)
    }
    fn read_new_at(&self, len: usize, offset: u64) -> io::Result<Vec<u8>> {
        self.hook.reads(len);
        self.file.read_new_at(len, offset)
    }
    fn write_all_at(&self, data: &[u8], offset: u64) -> io::Result<()> {
        self.changed().write_all_at(data, offset)
    }
    fn write_all_vectored_at(&self, parts: &[IoSlice<'_>], offset: u64) -> io::Result<()> {
        self.changed().write_all_vectored_at(parts, offset)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.changed().sync_data()
    }
    fn sync_all(&self) -> io::Result<()> {
        self.changed().sync_all()
    }
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }
    fn allocated_bytes(&self) -> io::Result<u64> {
        self.file.allocated_bytes()
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.changed().set_len(len)
    }
    fn map(&self, len: u64) -> io::Result<Box<dyn Mapping>> {
        let (mapping, hook) = (self.file.map(len)?, Arc::clone(&self.hook));
        Ok(Box::new(HookedMapping { mapping, hook }))
    }
}

#[derive(Debug)]
struct HookedMapping {
    mapping: Box<dyn Mapping>,
    hook: Arc<dyn Hook>,
}

impl Mapping for HookedMapping {
    fn write(&mut self, data: &[u8], offset: u64) {
        self.hook.changes();
        self.mapping.write(data, offset);
    }
}
