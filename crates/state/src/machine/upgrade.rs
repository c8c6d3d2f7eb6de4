//! The version of the state machine in force, and the treatment of commands that need another version.
//!
//! Owns: the check of a command's version before it runs, and the command that raises the version in force. Does
//! not own: the encoding of versions (`thalweg_types::command`), or the decision to raise one.
//!
//! | the command needs | |
//! |---|---|
//! | a version above the highest that this binary supports | the machine stops; no change of the entry is applied |
//! | a supported version above the one in force | every node rejects the command |
//! | the version in force or one below | the command runs |
//!
//! Invariants: `1 <= in force <= known`. The version in force is part of the state and increases only by a command.
//! It takes effect with that command, also for later commands of the same entry. So no two nodes execute one
//! command differently because their binaries differ: a node that does not support the version stops before it has
//! changed anything.

use std::sync::atomic::Ordering;

use thalweg_types::{
    Index,
    command::{FIRST_VERSION, Outcome},
};

use crate::{
    error::MachineError,
    machine::{applying::Applying, state_machine::Machine},
};

/// Highest version of the state machine that this binary supports.
pub const KNOWN_VERSION: u16 = FIRST_VERSION;

/// Rejects a command that needs a version of the state machine above the one in force; returns `None` if the command
/// can run. A version that this binary does not support is an error, which stops the machine.
#[cold]
pub(crate) fn gate(applying: &Applying<'_>, needed: u16) -> Result<Option<Outcome>, MachineError> {
    check_known(applying, needed)?;
    let in_force = applying.applier.meta.version;
    Ok((in_force < u32::from(needed)).then(|| Outcome::VersionNotInForce { needed, in_force: saturated(in_force) }))
}

/// Raises the version of the state machine in force to `to`. A lower version than the current one changes nothing.
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

/// Checks that this binary supports the version of the state machine that a stored state uses.
pub(crate) fn check_state(in_force: u32, known: u16, applied: Index) -> Result<(), MachineError> {
    if in_force > u32::from(known) {
        return Err(MachineError::StateNeedsUpgrade { entry: applied, in_force, known });
    }
    Ok(())
}

/// Converts a stored version of the state machine to 16 bits. It never exceeds the highest supported one, so it fits.
fn saturated(version: u32) -> u16 {
    u16::try_from(version).unwrap_or(u16::MAX)
}

impl Machine {
    /// Returns the version of the state machine in force.
    #[must_use]
    pub fn version_in_force(&self) -> u16 {
        self.published.version.load(Ordering::Acquire)
    }

    /// Returns the highest version of the state machine that this machine supports.
    #[must_use]
    pub fn known_version(&self) -> u16 {
        self.known_version
    }

    /// Publishes to readers the version of the state machine in force after a log record.
    pub(crate) fn show_version(&self, in_force: u32) {
        self.published.version.store(saturated(in_force), Ordering::Release);
    }
}
