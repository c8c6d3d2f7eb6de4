//! The clock of reads.
//!
//! A space without deadlines never asks for the time. The flag that says so is set before the first deadline becomes visible,
//! and stays set.

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

/// Where reads get the space's time from.
pub trait ReadTime: Send + Sync + fmt::Debug {
    /// The time now, for whoever shows only what has not ended by it.
    fn now(&self) -> SpaceTime;
    /// The time now, for whoever hides what has ended by it: no entry that is not applied yet may have, or
    /// get, a lower one.
    fn read_time(&self) -> SpaceTime;
}

/// What the machine knows of time beside its entries.
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
