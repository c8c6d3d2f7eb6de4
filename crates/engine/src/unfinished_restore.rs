//! The marker file of a restore that has not finished.

use std::sync::Arc;

use thalweg_disk::Disk;

/// Returns true if the directory has the marker of a restore that has not finished.
pub(crate) fn is_unfinished(disk: &Arc<dyn Disk>) -> bool {
    disk.open(MARKER).is_ok()
}

/// Removes the marker that a restore leaves if it is killed after it has written the identity. If the identity were
/// lost later, the marker would make another restore clear the directory.
pub(crate) fn forget_finished(disk: &Arc<dyn Disk>) {
    // The name of the identity is on disk before the marker goes.
    if is_unfinished(disk) && disk.sync_dir("").is_ok() {
        // The next open removes a marker that stays.
        let _ = disk.remove(MARKER);
    }
}

pub(crate) const MARKER: &str = "RESTORING";
