//! A disk with planted bugs: some of its fsyncs return success although nothing was written.
//!
//! Owns: the fsyncs that are skipped, and those that fail but return success. Does not own: the files (`disk`).

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
};

use thalweg_disk::{Disk, File, LockGuard, Mapping, SimDisk, sim::PowerIsOff};

/// A simulated disk whose fsyncs have a planted bug.
#[derive(Debug)]
pub struct PlantedDisk {
    disk: SimDisk,
    bug: SyncBug,
}

/// Bug in the fsyncs of a disk.
#[derive(Clone, Debug)]
enum SyncBug {
    /// The disk skips the fsyncs of a state that is being installed, and returns success for them. Once the state has
    /// become the current one, the disk performs them again.
    UnsyncedInstalls {
        /// True from the creation of a state directory until it is the current one.
        is_installing: Arc<AtomicBool>,
    },
    /// An fsync that has failed returns success to the node.
    ConfirmedFailures,
}

impl SyncBug {
    /// Performs the fsync of a file or a directory with the planted bug.
    fn sync(&self, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        match self {
            Self::UnsyncedInstalls { is_installing } => {
                if is_installing.load(Relaxed) {
                    Ok(())
                } else {
                    sync()
                }
            }
            Self::ConfirmedFailures => match sync() {
                Err(error) if !PowerIsOff::is_cause_of(&error) => Ok(()),
                synced => synced,
            },
        }
    }

    /// Returns true if the planted bug affects the fsync of this file or directory.
    fn concerns(&self, path: &str) -> bool {
        match self {
            Self::UnsyncedInstalls { .. } => is_installed(path),
            Self::ConfirmedFailures => true,
        }
    }
}

impl PlantedDisk {
    /// Creates a disk that skips the fsyncs of a state that is being installed, and returns success for them. Once the
    /// state has become the current one, the disk performs them again.
    #[must_use]
    pub fn with_unsynced_installs(disk: SimDisk) -> Self {
        Self { disk, bug: SyncBug::UnsyncedInstalls { is_installing: Arc::default() } }
    }

    /// Creates a disk whose failed fsyncs return success.
    #[must_use]
    pub fn with_confirmed_failures(disk: SimDisk) -> Self {
        Self { disk, bug: SyncBug::ConfirmedFailures }
    }

    fn file(&self, path: &str, file: Arc<dyn File>) -> Arc<dyn File> {
        if self.bug.concerns(path) { Arc::new(PlantedFile { file, bug: self.bug.clone() }) } else { file }
    }
}

/// Returns true for a state directory that an install has created, and for the files in it.
fn is_installed(path: &str) -> bool {
    let dir = path.strip_prefix("state/default/").and_then(|rest| rest.split('/').next());
    dir.is_some_and(|dir| dir.contains('.'))
}

impl Disk for PlantedDisk {
    fn open(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(path, self.disk.open(path)?))
    }

    fn create(&self, path: &str) -> io::Result<Arc<dyn File>> {
        Ok(self.file(path, self.disk.create(path)?))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        if let SyncBug::UnsyncedInstalls { is_installing } = &self.bug
            && to == "INSTALLED"
        {
            is_installing.store(false, Relaxed);
        }
        self.disk.rename(from, to)
    }

    fn remove(&self, path: &str) -> io::Result<()> {
        self.disk.remove(path)
    }

    fn create_dir(&self, path: &str) -> io::Result<()> {
        if let SyncBug::UnsyncedInstalls { is_installing } = &self.bug
            && is_installed(path)
            && self.disk.list(path).is_err()
        {
            is_installing.store(true, Relaxed);
        }
        self.disk.create_dir(path)
    }

    fn list(&self, dir: &str) -> io::Result<Vec<String>> {
        self.disk.list(dir)
    }

    fn sync_dir(&self, dir: &str) -> io::Result<()> {
        let sync = || self.disk.sync_dir(dir);
        if self.bug.concerns(dir) { self.bug.sync(sync) } else { sync() }
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
struct PlantedFile {
    file: Arc<dyn File>,
    bug: SyncBug,
}

impl File for PlantedFile {
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
        self.bug.sync(|| self.file.sync_data())
    }

    fn sync_all(&self) -> io::Result<()> {
        self.bug.sync(|| self.file.sync_all())
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
