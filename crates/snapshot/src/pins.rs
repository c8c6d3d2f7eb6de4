//! Keeps the log's segments from being freed while a snapshot is open: each open snapshot holds a pin.
//!
//! A view of the state contains pointers into the log from the time when the view was taken. So all segments of that
//! time must be kept, including those with bytes that were moved or trimmed since. Only a full disk takes precedence:
//! segments are then freed, and a snapshot that needs one of them fails with an error.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use thalweg_types::limits::MAX_OPEN_SNAPSHOTS;

use crate::error::SnapshotError;

/// Count of a database's open snapshots. While it is above 0, no log segment is freed, unless the disk is full.
#[derive(Debug, Default)]
pub struct Pins {
    state: Mutex<PinState>,
}

#[derive(Debug, Default)]
struct PinState {
    open: usize,
    permitted: u64,
}

/// Keeps all segments of the log from being freed, until this value is dropped.
#[derive(Debug)]
pub(crate) struct Pin(Arc<Pins>);

/// Permission to free segments of the log. While this value exists, no snapshot begins.
#[derive(Debug)]
pub struct MayFree<'a> {
    _state: MutexGuard<'a, PinState>,
}

impl Pins {
    /// Keeps all segments of the log from being freed. The caller must take its view of the state only after this call.
    pub(crate) fn pin(self: &Arc<Self>) -> Result<Pin, SnapshotError> {
        let mut state = self.lock();
        if state.open >= MAX_OPEN_SNAPSHOTS {
            return Err(SnapshotError::TooMany { open: state.open });
        }
        state.open += 1;
        Ok(Pin(self.clone()))
    }

    /// Returns a permission to free segments; no snapshot can begin while it exists. Returns `None` if a snapshot is
    /// open and the disk is not full.
    #[must_use]
    pub fn may_free(&self, is_disk_full: bool) -> Option<MayFree<'_>> {
        let state = self.lock();
        (state.open == 0 || is_disk_full).then_some(MayFree { _state: state })
    }

    /// Records the beginning of a maintenance round. The round may free segments if no snapshot is open or the disk is
    /// full.
    pub fn note_round(&self, is_disk_full: bool) {
        let mut state = self.lock();
        state.permitted += u64::from(state.open == 0 || is_disk_full);
    }

    /// Returns the number of maintenance rounds that were allowed to free segments. The number does not change while at
    /// least one snapshot is open, unless the disk is full.
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
