//! The error returned when a command breaks a limit.

use std::time::Duration;

use crate::{
    command::history::KeyspaceHistory,
    limits::{
        MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_HISTORY_REVISIONS, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_SETTLED_RANGES,
        MAX_TRANSACTION_SCANS, MAX_VALUE_BYTES, MIN_LEASE_TTL,
    },
};

/// Error returned when a command breaks a limit. The command was not proposed, so nothing has changed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CommandError {
    /// A key is longer than [`MAX_KEY_BYTES`].
    #[error("key of {got} bytes is above the limit of {MAX_KEY_BYTES}")]
    KeyTooLong {
        /// Length of the key in bytes.
        got: usize,
    },
    /// A value is longer than [`MAX_VALUE_BYTES`].
    #[error("value of {got} bytes is above the limit of {MAX_VALUE_BYTES}")]
    ValueTooLong {
        /// Length of the value in bytes.
        got: usize,
    },
    /// The command has more than [`MAX_COMMIT_WRITES`] conditions and writes, or more than [`MAX_COMMAND_BYTES`]
    /// bytes.
    #[error("commit is above the limit of {MAX_COMMIT_WRITES} writes or {MAX_COMMAND_BYTES} bytes: split it")]
    CommitTooLarge,
    /// A transaction has more than [`MAX_TRANSACTION_SCANS`] scans.
    #[error("more than {MAX_TRANSACTION_SCANS} scans in a transaction: split it")]
    TooManyScans,
    /// One ack or nack command names more than [`MAX_SETTLED_RANGES`] ranges of offsets.
    #[error("more than {MAX_SETTLED_RANGES} ranges of offsets in one request: split it")]
    TooManyRanges,
    /// A consumer group's configuration or a member's name is outside its limits.
    #[error("bad consumer group request: {what}")]
    BadGroup {
        /// Rule that the group's configuration or the member's name breaks.
        what: &'static str,
    },
    /// A name is empty, longer than [`MAX_NAME_BYTES`], or has characters that names may not have.
    #[error("bad name {name:?}: 1 to {MAX_NAME_BYTES} of the characters A-Z a-z 0-9 . _ -, not starting with a dot")]
    BadName {
        /// Name as the client sent it, truncated to 64 characters.
        name: String,
    },
    /// A producer's id is empty, too long, or has characters that names may not have.
    #[error(
        "bad producer id {id:?}: 1 to {} of the characters A-Z a-z 0-9 . _ -, not starting with a dot",
        crate::limits::MAX_PRODUCER_ID_BYTES
    )]
    BadProducerId {
        /// Producer id as the client sent it, truncated to the longest allowed length.
        id: String,
    },
    /// A time to live is 0, above [`MAX_TTL`](crate::limits::MAX_TTL), or, for a lease, below [`MIN_LEASE_TTL`].
    #[error("bad time to live {got:?}: it must be above 0 (leases: at least {MIN_LEASE_TTL:?}) and at most 100 years")]
    BadTtl {
        /// Time to live as the client sent it.
        got: Duration,
    },
    /// The bounds of a keyspace's history (number of revisions, age) are outside the limits.
    #[error(
        "bad history {got:?}: give 2 to {MAX_HISTORY_REVISIONS} revisions, an age above 0 and at most 100 years, or both"
    )]
    BadHistory {
        /// History bounds as the client sent them.
        got: KeyspaceHistory,
    },
    /// The client chose the lease id 0, which means "no lease".
    #[error("a lease id of 0 means no lease: leave out the id to let the server choose one")]
    BadLeaseId,
}
