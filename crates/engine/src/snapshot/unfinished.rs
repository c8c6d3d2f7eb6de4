//! The marker of a restore that has not finished.

use std::sync::Arc;

use thalweg_disk::Disk;

/// Returns true if a restore into the directory has not finished.
pub(crate) fn is_unfinished(disk: &Arc<dyn Disk>) -> bool {
    disk.open(MARKER).is_ok()
}

pub(super) const MARKER: &str = "RESTORING";
