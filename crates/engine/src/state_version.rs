//! Version of the state machine: reading it, and raising it.
//!
//! Does not own: the meaning of a version, or the treatment of commands that need another version (`machine/upgrade.rs`
//! of the state).

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_types::{
    Durability,
    command::{CommandError, Outcome, encode_raise_version},
};

use crate::{
    ack::unexpected,
    async_database::AsyncDatabase,
    database::Database,
    error::{WriteError, refusal},
};

impl Database {
    /// Returns the version of the state machine in force: commands that need a higher version are rejected.
    #[must_use]
    pub fn version_in_force(&self) -> u16 {
        self.inner.open.machine.version_in_force()
    }

    /// Returns the highest version of the state machine that this node supports.
    #[must_use]
    pub fn known_version(&self) -> u16 {
        self.inner.open.machine.known_version()
    }

    /// Raises the version of the state machine in force to at least `to`, and returns the version in force afterwards.
    /// The version cannot be lowered again. A node that does not support it stops, so upgrade all nodes first.
    pub fn raise_version(&self, to: u16) -> Result<u16, WriteError> {
        self.check_raise(to)?;
        raised(self.inner.propose(self.durability().max(Durability::Os), Purpose::Reclaim, |out| raise(out, to))?)
    }

    fn check_raise(&self, to: u16) -> Result<(), WriteError> {
        let known = self.known_version();
        if to > known { Err(WriteError::VersionUnknown { to, known }) } else { Ok(()) }
    }
}

impl AsyncDatabase {
    /// Raises the version like [`Database::raise_version`], as a future.
    pub fn raise_version(
        &self,
        to: u16,
        level: Durability,
    ) -> impl Future<Output = Result<u16, WriteError>> + Send + use<> {
        let checked = self.blocking().check_raise(to);
        let level = level.max(Durability::Os);
        let proposed = checked.and_then(|()| self.propose(level, Purpose::Reclaim, |out| raise(out, to)));
        async move { raised(proposed?.await?) }
    }
}

fn raise(out: &mut Vec<u8>, to: u16) -> Result<(), CommandError> {
    encode_raise_version(out, to);
    Ok(())
}

fn raised(committed: Committed) -> Result<u16, WriteError> {
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Version { in_force }) => Ok(in_force),
        other => Err(unexpected(other.as_ref())),
    }
}
