//! The database file, on any [`Disk`](thalweg_disk::Disk).
//!
//! So redb runs on the simulated disk too, and is put through power losses and faults like everything else.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use redb::StorageBackend;
use thalweg_disk::File;

/// redb's file. The directory's lock keeps other processes out, so it has none of its own.
#[derive(Debug)]
pub(super) struct DatabaseFile {
    file: Arc<dyn File>,
    len: Arc<AtomicU64>,
}

impl DatabaseFile {
    /// The file, and a count of its bytes that is kept up to date.
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
