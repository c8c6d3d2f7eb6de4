//! The result of a command that did nothing.

use thalweg_types::{command::Outcome, record::Malformed};

use crate::error::MachineError;

/// Why a command did nothing: for a reason that its sender learns, or because the state failed.
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
