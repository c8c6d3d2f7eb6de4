//! The marker file of a restore that has not finished.

use std::sync::Arc;

use thalweg_disk::Disk;

/// Returns true if the directory has the marker of a restore that has not finished.
pub(crate) fn is_unfinished(disk: &Arc<dyn Disk>) -> bool {
    disk.open(MARKER).is_ok()
}

pub(crate) const MARKER: &str = "RESTORING";
