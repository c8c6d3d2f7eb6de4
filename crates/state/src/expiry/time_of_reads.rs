//! The clock that decides, for reads, which keys and leases have ended.
//!
//! A database without deadlines never queries this clock. A flag tells reads to use it. The flag is set before the
//! first deadline becomes visible, and stays set.

use std::{
    fmt,
    ops::ControlFlow,
    sync::{Arc, OnceLock, atomic::AtomicBool},
};

use thalweg_store::{Direction, View};
use thalweg_types::SpaceTime;

use crate::{
    error::MachineError,
    keys::{KeyRange, TAG_DEADLINE},
};

/// Clock for reads. It shows space time: the time that the replicated log entries carry.
pub trait ReadTime: Send + Sync + fmt::Debug {
    /// Returns the current space time. A reader compares it with deadlines to find that a value has not ended yet. To
    /// hide an ended value, the reader needs [`read_time`](Self::read_time).
    fn now(&self) -> SpaceTime;
    /// Returns the current space time, for a reader that hides values with deadlines at or before this time. All log
    /// entries that are applied later must have at least this time; otherwise a later read could show a hidden value
    /// again.
    fn read_time(&self) -> SpaceTime;
}

/// The clock by which reads hide ended values, and the flag that is set once reads need this clock.
#[derive(Debug, Default)]
pub(crate) struct TimeOfReads {
    pub(crate) has_deadlines: AtomicBool,
    pub(crate) source: OnceLock<Arc<dyn ReadTime>>,
}

impl TimeOfReads {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let mut found = false;
        let range = KeyRange::with_prefix(&[TAG_DEADLINE]);
        view.scan(range.lower(), range.upper(), Direction::Forward, &mut |_, _| {
            found = true;
            ControlFlow::Break(())
        })?;
        Ok(Self { has_deadlines: AtomicBool::new(found), source: OnceLock::new() })
    }
}
