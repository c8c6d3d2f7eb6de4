//! What the fuzz targets share: taking decisions out of the input's bytes, and disks made of them.
//!
//! Inputs are read from the front as decisions and bytes; where the input ends, decisions are zero. So
//! every input means something, and a shorter input means a simpler case.

#[cfg(feature = "engine")]
pub mod engine;
pub mod machine;
#[cfg(feature = "native")]
pub mod served;

use std::sync::Arc;

use thalweg_disk::{Disk, SimDisk};
use thalweg_state::backend::{BarrierFailed, LogBarrier};
use thalweg_types::Lsn;

/// Decisions out of an input.
#[derive(Debug)]
pub struct Input<'a>(pub &'a [u8]);

impl<'a> Input<'a> {
    /// Whether bytes are left.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A byte; zero at the end.
    pub fn byte(&mut self) -> u8 {
        self.take(1).first().copied().unwrap_or_default()
    }

    /// Two bytes.
    pub fn short(&mut self) -> u16 {
        u16::from_le_bytes([self.byte(), self.byte()])
    }

    /// Eight bytes, near zero, near the top, or as they come.
    pub fn number(&mut self) -> u64 {
        match self.byte() % 4 {
            0 => u64::from(self.byte()),
            1 => u64::MAX - u64::from(self.byte()),
            2 => u64::from(self.short()),
            _ => (0..4).fold(0, |number, _| number << 16 | u64::from(self.short())),
        }
    }

    /// At most `len` bytes.
    pub fn take(&mut self, len: usize) -> &'a [u8] {
        let (now, later) = self.0.split_at(len.min(self.0.len()));
        self.0 = later;
        now
    }

    /// Bytes behind a length of one byte.
    pub fn bytes(&mut self) -> &'a [u8] {
        let len = self.byte();
        self.take(len.into())
    }
}

/// A simulated disk with these files in `dir`, all of it durable.
///
/// # Panics
/// If the disk refuses: it has no reason to.
#[must_use]
pub fn disk_with(dir: &str, files: &[(&str, &[u8])]) -> Arc<dyn Disk> {
    let disk: Arc<dyn Disk> = Arc::new(SimDisk::new(0));
    disk.create_dir(dir).expect("a directory");
    for (name, bytes) in files {
        put(&*disk, &format!("{dir}/{name}"), bytes);
    }
    disk
}

/// Writes a file that is not there yet.
///
/// # Panics
/// As [`disk_with`].
pub fn put(disk: &dyn Disk, path: &str, bytes: &[u8]) {
    let file = disk.create(path).expect("a file");
    file.write_all_at(bytes, 0).expect("a write");
    file.sync_all().expect("a sync");
}

/// A log that is always durable.
#[derive(Debug)]
pub struct NoLog;

impl LogBarrier for NoLog {
    fn sync_through(&self, _: Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}
