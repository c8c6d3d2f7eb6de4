//! Conversion of errors of the lower layers to error replies.
//!
//! Clients evaluate the first word of an error. `ERR` stands for requests to be fixed, `BUSY` for requests to be
//! retried, and `MISCONF` for states that an operator must fix (Redis uses it when it cannot write to its disk). In a
//! cluster, the words are those of Redis: `CLUSTERDOWN` without a leader, `TRYAGAIN` while leadership changes,
//! `LOADING` while the node recovers. Redis clients retry after these by themselves. `UNKNOWN` stands for a write that
//! the server may or may not have carried out. Client libraries do not repeat a request after a word that they do not
//! know.

use std::borrow::Cow;

use thalweg_redis::{Reply, StoreError};
use thalweg_types::{Action, Classified};

/// Text of an error reply to a Redis client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Failure(pub Cow<'static, str>);

impl Failure {
    /// Creates the text of the error reply for an error of a lower layer. The first word depends on the error's code,
    /// or on its recommended action (retry, fix or stop).
    #[must_use]
    pub(crate) fn of(error: &impl Classified) -> Self {
        let first = match (error.code(), error.action()) {
            ("no_leader", _) => "CLUSTERDOWN",
            ("not_leader" | "read_timeout" | "revision_not_reached", _) => "TRYAGAIN",
            ("recovering", _) => "LOADING",
            ("outcome_unknown", _) => "UNKNOWN",
            (_, Action::Retry) => "BUSY",
            (_, Action::Fix) => "ERR",
            (_, Action::Stop) => "MISCONF",
        };
        Self(format!("{first} {error}").into())
    }

    /// Returns true if the server failed, and not the client's request. An operator should know of such a failure.
    pub(crate) fn is_of_server(&self) -> bool {
        self.0.starts_with("MISCONF")
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
