//! Lets at most one install of a snapshot run at a time, and knows the current state directory.
//!
//! Owns: [`InstallPermit`] and [`InstallGuard`]. Does not own: the work of an install.
//!
//! While an install is in progress, no row of the state points to the log records that the install has appended. A
//! search of their segments for live bytes (a walk) would find none. The guard excludes them from walks and from
//! freeing. Segments that were sealed before the install have no such records, so they are walked and freed as usual.

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use thalweg_log::SegmentInfo;
use thalweg_types::Lsn;

use crate::install_error::InstallError;
use crate::state_dir::StateDir;

/// Gives permission to install a snapshot: a database has at most one install at a time.
#[derive(Debug)]
pub(crate) struct InstallPermit {
    /// LSN of the first log record that the install in progress may have appended; [`NONE`] if none is in progress.
    from: AtomicU64,
    state: Mutex<SlotState>,
}

#[derive(Debug)]
struct SlotState {
    current: StateDir,
    is_taken: bool,
    /// Error of an install that failed while it made its state current. Then no install may begin before the next open.
    failed: Option<String>,
}

const NONE: u64 = u64::MAX;

/// Guard of an install. Until it is dropped, no other install begins, and no segment that this one wrote to is freed.
#[derive(Debug)]
pub(crate) struct InstallGuard(Arc<InstallPermit>);

impl InstallPermit {
    pub(crate) fn new(current: StateDir) -> Self {
        let state = SlotState { current, is_taken: false, failed: None };
        Self { from: AtomicU64::new(NONE), state: Mutex::new(state) }
    }

    /// Returns true if a snapshot's install in progress may have appended records to this log segment.
    pub(crate) fn holds(&self, segment: &SegmentInfo) -> bool {
        segment.next > Lsn(self.from.load(Ordering::Acquire))
    }

    /// Begins an install of a snapshot. `end` returns the end of the log, after which the install appends records.
    pub(crate) fn take(self: &Arc<Self>, end: impl FnOnce() -> Lsn) -> Result<InstallGuard, InstallError> {
        let mut state = self.lock();
        if let Some(reason) = &state.failed {
            return Err(InstallError::SwitchFailed { reason: reason.clone() });
        }
        if state.is_taken {
            return Err(InstallError::InProgress);
        }
        state.is_taken = true;
        self.from.store(end().0, Ordering::Release);
        Ok(InstallGuard(Arc::clone(self)))
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl InstallGuard {
    pub(crate) fn current(&self) -> StateDir {
        self.0.lock().current
    }

    pub(crate) fn switched(&self, to: StateDir) {
        self.0.lock().current = to;
    }

    /// Ends an install with an unknown outcome. Keeps the log segments with its records until the database is closed,
    /// because the next open may need them.
    pub(crate) fn keep(self, reason: &io::Error) -> InstallError {
        let reason = reason.to_string();
        self.0.lock().failed = Some(reason.clone());
        std::mem::forget(self);
        InstallError::SwitchFailed { reason }
    }
}

impl Drop for InstallGuard {
    fn drop(&mut self) {
        self.0.from.store(NONE, Ordering::Release);
        self.0.lock().is_taken = false;
    }
}
