//! The result of a command that changed nothing.

use thalweg_types::{codec::Malformed, command::Outcome};

use crate::error::MachineError;

/// Reason why a command changed nothing: an outcome for the client, or a failure of the state machine.
#[derive(Debug)]
pub(crate) enum Refused {
    Outcome(Outcome),
    Failed(MachineError),
}

impl From<Malformed> for Refused {
    fn from(malformed: Malformed) -> Self {
        Self::Outcome(Outcome::Malformed(malformed))
    }
}

impl<E: Into<MachineError>> From<E> for Refused {
    fn from(error: E) -> Self {
        Self::Failed(error.into())
    }
}
