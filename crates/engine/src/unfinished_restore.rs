//! The file `RESTORING`, which shows that a restore of the directory has not finished.

use std::sync::Arc;

use thalweg_disk::Disk;

/// Returns true if the directory has the file `RESTORING` of a restore that has not finished.
pub(crate) fn is_unfinished(disk: &Arc<dyn Disk>) -> bool {
    disk.open(MARKER).is_ok()
}

/// Removes the file `RESTORING` of a restore that was killed after it had written the identity. Otherwise, if the
/// identity were lost later, this file would let another restore clear the directory.
pub(crate) fn forget_finished(disk: &Arc<dyn Disk>) {
    // The name of the identity must be on disk before the marker is removed.
    if is_unfinished(disk) && disk.sync_dir("").is_ok() {
        // If the removal fails, the next open removes the marker.
        let _ = disk.remove(MARKER);
    }
}

pub(crate) const MARKER: &str = "RESTORING";
