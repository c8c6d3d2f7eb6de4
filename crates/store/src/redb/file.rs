//! redb's database file on any [`Disk`](thalweg_disk::Disk), so that redb also runs on the simulated disk and is tested
//! with power losses and faults like the other backends.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use redb::StorageBackend;
use thalweg_disk::File;

/// The database file of redb. The file has no lock of its own, because the lock of its directory excludes other
/// processes.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    file: Arc<dyn File>,
    len: Arc<AtomicU64>,
}

impl DatabaseFile {
    /// Returns the file and a shared counter of the file's size in bytes, which is updated when redb resizes the file.
    pub(super) fn new(file: Arc<dyn File>) -> io::Result<(Self, Arc<AtomicU64>)> {
        let len = Arc::new(AtomicU64::new(file.len()?));
        Ok((Self { file, len: len.clone() }, len))
    }
}

impl StorageBackend for DatabaseFile {
    fn len(&self) -> io::Result<u64> {
        self.file.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(out, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)?;
        self.len.store(len, Ordering::Relaxed);
        Ok(())
    }

    fn sync_data(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.file.write_all_at(data, offset)
    }
}
