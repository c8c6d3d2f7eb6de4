//! The version of the state machine: which one is in force, and commands that need another.
//!
//! Owns: the check of a command's version before it is carried out, and the command that raises the version in force.
//! Does not own the encoding of versions (`thalweg_types::command`), nor who decides to raise one.
//!
//! | the command needs | |
//! |---|---|
//! | a version above what this binary knows | the machine stops: nothing of the entry is applied |
//! | a version that it knows, above the one in force | the command is refused, by every node alike |
//! | the version in force or one below | it is carried out |
//!
//! Invariants: `1 <= in force <= known`. The version in force is part of the state, rises only by a command, and holds from
//! that command on, also for those behind it in the same entry. So no two nodes can carry out one command differently
//! because their binaries differ: one that would have to guess stops before it has changed anything.

use std::sync::atomic::Ordering;

use thalweg_types::{
    Index,
    command::{FIRST_VERSION, Outcome},
};

use crate::{
    error::MachineError,
    machine::{applying::Applying, state_machine::Machine},
};

/// The highest version of the state machine that this binary knows.
pub const KNOWN_VERSION: u16 = FIRST_VERSION;

/// Refuses a command that needs a version above the one in force; `None` if it can be carried out.
#[cold]
pub(crate) fn gate(applying: &Applying<'_>, needed: u16) -> Result<Option<Outcome>, MachineError> {
    check_known(applying, needed)?;
    let in_force = applying.applier.meta.version;
    Ok((in_force < u32::from(needed)).then(|| Outcome::VersionNotInForce { needed, in_force: saturated(in_force) }))
}

/// Raises the version in force.
pub(crate) fn raise(applying: &mut Applying<'_>, to: u16) -> Result<Outcome, MachineError> {
    check_known(applying, to)?;
    let version = &mut applying.applier.meta.version;
    *version = (*version).max(u32::from(to));
    Ok(Outcome::Version { in_force: saturated(*version) })
}

fn check_known(applying: &Applying<'_>, needed: u16) -> Result<(), MachineError> {
    let known = applying.machine.known_version;
    let entry = applying.applied.index;
    if needed > known { Err(MachineError::EntryNeedsUpgrade { entry, needed, known }) } else { Ok(()) }
}

/// A state whose version in force this binary does not know is not opened.
pub(crate) fn check_state(in_force: u32, known: u16, applied: Index) -> Result<(), MachineError> {
    if in_force > u32::from(known) {
        return Err(MachineError::StateNeedsUpgrade { entry: applied, in_force, known });
    }
    Ok(())
}

/// The version in force never exceeds the known one, so nothing is lost.
fn saturated(version: u32) -> u16 {
    u16::try_from(version).unwrap_or(u16::MAX)
}

impl Machine {
    /// The version of the state machine in force.
    #[must_use]
    pub fn version_in_force(&self) -> u16 {
        self.published.version.load(Ordering::Acquire)
    }

    /// The highest version of the state machine that this machine knows.
    #[must_use]
    pub fn known_version(&self) -> u16 {
        self.known_version
    }

    /// Shows the version that the record has left.
    pub(crate) fn show_version(&self, in_force: u32) {
        self.published.version.store(saturated(in_force), Ordering::Release);
    }
}
