//! What the fuzz targets share: taking decisions out of the input's bytes, and disks made of them.
//!
//! Inputs are read from the front as decisions and bytes; where the input ends, decisions are zero. So
//! every input means something, and a shorter input means a simpler case.

#[cfg(feature = "engine")]
pub mod engine;
pub mod machine;
// What the property tests of the state machine share with the targets.
#[allow(missing_docs, missing_debug_implementations, dead_code, clippy::unwrap_used)]
#[path = "../../crates/state/tests/machine/random/mod.rs"]
pub mod random;
#[cfg(feature = "native")]
pub mod served;
#[allow(missing_docs, missing_debug_implementations, dead_code, clippy::unwrap_used)]
#[path = "../../crates/state/tests/machine/support.rs"]
pub mod support;

use std::sync::Arc;

use thalweg_disk::{Disk, SimDisk};
use thalweg_store::{BarrierFailed, LogBarrier};
use thalweg_types::Lsn;

pub use random::Input;

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
