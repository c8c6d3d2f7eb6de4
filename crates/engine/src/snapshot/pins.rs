//! Open snapshots. While one is open, no segment of the log is freed.
//!
//! A view of the state points into the log as it was. Its segments are kept by keeping all segments: freeing moved or
//! trimmed ones has to wait. Only a full disk takes precedence: then segments are freed, and a snapshot that needs one
//! of them fails with an error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_types::limits::MAX_OPEN_SNAPSHOTS;

use super::SnapshotError;

/// Number of open snapshots of a database.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    open: Mutex<usize>,
}

/// Keeps the log's segments until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Pins>);

impl Pins {
    /// Keeps all segments from now on. Take the view afterwards.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, SnapshotError> {
        let mut open = self.lock();
        if *open >= MAX_OPEN_SNAPSHOTS {
            return Err(SnapshotError::TooMany { open: *open });
        }
        *open += 1;
        Ok(Pin(self.clone()))
    }

    /// Returns a guard under which segments may be freed; `None` if they may not.
    pub(crate) fn may_free(&self, is_disk_full: bool) -> Option<MutexGuard<'_, usize>> {
        Some(self.lock()).filter(|open| **open == 0 || is_disk_full)
    }

    fn lock(&self) -> MutexGuard<'_, usize> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        *self.0.lock() -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn segments_wait_for_the_last_snapshot_unless_the_disk_is_full() {
        let pins = Arc::new(Pins::default());
        let all: Vec<_> = (0..MAX_OPEN_SNAPSHOTS).map(|_| pins.pin().unwrap()).collect();
        assert!(matches!(pins.pin(), Err(SnapshotError::TooMany { open: MAX_OPEN_SNAPSHOTS })));
        assert!(pins.may_free(false).is_none());
        assert!(pins.may_free(true).is_some());
        drop(all);
        assert!(pins.may_free(false).is_some());
        assert!(pins.pin().is_ok());
    }
}
