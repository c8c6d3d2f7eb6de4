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
    state: Mutex<PinState>,
}

#[derive(Debug, Default)]
struct PinState {
    open: usize,
    permitted: u64,
}

/// Keeps all segments of the log from being freed until it is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Pins>);

/// Permission to free segments of the log. No snapshot begins while it exists.
#[derive(Debug)]
pub struct MayFree<'a> {
    _state: MutexGuard<'a, PinState>,
}

impl Pins {
    /// Keeps all segments of the log from being freed. The caller takes its view of the state afterwards.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, SnapshotError> {
        let mut state = self.lock();
        if state.open >= MAX_OPEN_SNAPSHOTS {
            return Err(SnapshotError::TooMany { open: state.open });
        }
        state.open += 1;
        Ok(Pin(self.clone()))
    }

    /// Returns a guard during which no snapshot can begin, so that segments may be freed; `None` if a snapshot is open
    /// and the disk is not full, so that they may not.
    #[must_use]
    pub fn may_free(&self, is_disk_full: bool) -> Option<MayFree<'_>> {
        let state = self.lock();
        (state.open == 0 || is_disk_full).then_some(MayFree { _state: state })
    }

    /// Notes that a round of maintenance begins, which frees segments if no snapshot is open or the disk is full.
    pub fn note_round(&self, is_disk_full: bool) {
        let mut state = self.lock();
        state.permitted += u64::from(state.open == 0 || is_disk_full);
    }

    /// Returns the number of rounds of maintenance in which segments might be freed. While snapshots overlap, it does
    /// not change.
    #[must_use]
    pub fn permitted_rounds(&self) -> u64 {
        self.lock().permitted
    }

    fn lock(&self) -> MutexGuard<'_, PinState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Pin {
    fn drop(&mut self) {
        self.0.lock().open -= 1;
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
        pins.note_round(false);
        assert_eq!(pins.permitted_rounds(), 0);
        assert!(pins.may_free(true).is_some());
        pins.note_round(true);
        drop(all);
        assert!(pins.may_free(false).is_some());
        pins.note_round(false);
        assert_eq!(pins.permitted_rounds(), 2);
        assert!(pins.pin().is_ok());
    }
}
