//! Pins of open snapshots. While a snapshot is open, no segment of the log is freed.
//!
//! A view of the state points into the log as it was when the view was taken. All segments are kept, so these segments
//! are kept too: freeing moved or trimmed ones has to wait. Only a full disk takes precedence: then segments are
//! freed, and a snapshot that needs one of them fails with an error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_types::limits::MAX_OPEN_SNAPSHOTS;

use crate::error::SnapshotError;

/// Counter of a database's open snapshots.
#[derive(Debug, Default)]
pub struct Pins {
    open: Mutex<usize>,
}

/// Keeps all segments of the log from being freed until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Pins>);

/// Permission to free segments of the log. No snapshot begins while it exists.
#[derive(Debug)]
pub struct MayFree<'a> {
    _open: MutexGuard<'a, usize>,
}

impl Pins {
    /// Keeps all segments of the log from being freed. The caller takes its view of the state afterwards.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, SnapshotError> {
        let mut open = self.lock();
        if *open >= MAX_OPEN_SNAPSHOTS {
            return Err(SnapshotError::TooMany { open: *open });
        }
        *open += 1;
        Ok(Pin(self.clone()))
    }

    /// Returns a guard during which no snapshot can begin, so that segments may be freed; `None` if a snapshot is open
    /// and the disk is not full, so that they may not.
    #[must_use]
    pub fn may_free(&self, is_disk_full: bool) -> Option<MayFree<'_>> {
        let open = self.lock();
        (*open == 0 || is_disk_full).then_some(MayFree { _open: open })
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
