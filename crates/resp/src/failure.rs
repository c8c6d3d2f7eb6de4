//! Errors of the layers below, as error replies.
//!
//! Clients look at the first word: `ERR` is what they should mend, `BUSY` what may be tried again, `MISCONF` what an
//! operator must look at (Redis says so when it can't write to its disk).

use std::borrow::Cow;

use thalweg_redis::{Reply, StoreError};
use thalweg_types::{Action, Classified};

/// An error reply's text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub Cow<'static, str>);

impl Failure {
    /// A typed error.
    #[must_use]
    pub(crate) fn of(error: &impl Classified) -> Self {
        let first = match error.action() {
            Action::Retry => "BUSY",
            Action::Fix => "ERR",
            Action::Stop => "MISCONF",
        };
        Self(format!("{first} {error}").into())
    }
}

impl From<StoreError> for Failure {
    fn from(error: StoreError) -> Self {
        match error {
            StoreError::Refused(Reply::Error(text)) => Self(text),
            error => Self(format!("MISCONF the database can't be read: {error}").into()),
        }
    }
}
