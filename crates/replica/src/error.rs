//! What can go wrong when opening a space and when proposing to it.

use thalweg_log::{AppendError, ReadError};
use thalweg_state::machine::MachineError;
use thalweg_types::{Action, Classified, Index, Lsn, NodeId, Term};

/// A space could not be brought up from its log and state.
#[derive(Clone, Debug, thiserror::Error)]
pub enum OpenError {
    /// The state holds entries that the log has lost. Serving it would show writes that never happened.
    #[error(
        "the state is ahead of the log: it has applied up to LSN {applied}, the log ends at {end}; restore the log, or keep the state with `thalweg serve --repair`"
    )]
    StateAhead {
        /// Exclusive bound of what the state applied.
        applied: Lsn,
        /// Exclusive bound of the log.
        end: Lsn,
    },
    /// The log no longer holds what the state still needs.
    #[error(
        "the log starts at LSN {start} but the state needs it from {needed} on: the state directory is older than the log; restore both from one backup"
    )]
    LogTooShort {
        /// First LSN that the state needs.
        needed: Lsn,
        /// First LSN of the log.
        start: Lsn,
    },
    /// Entries of the space are not consecutive.
    #[error("entry {found} follows entry {last} in the log: an entry is missing; run `thalweg log verify`")]
    Gap {
        /// The last index before it.
        last: Index,
        /// The index found.
        found: Index,
    },
    /// Terms of entries never go back.
    #[error(
        "an entry of term {found} follows one of term {last}: the log is not of one space; run `thalweg log verify`"
    )]
    TermWentBack {
        /// The term of the entry before.
        last: Term,
        /// The term found.
        found: Term,
    },
    /// The log can't be read.
    #[error(transparent)]
    Read(#[from] ReadError),
    /// The log can't be written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The state can't be applied to.
    #[error(transparent)]
    Machine(#[from] MachineError),
    /// A record of the group's own (membership, vote) does not decode.
    #[error("record at LSN {lsn} does not decode: {what}")]
    Malformed {
        /// Where.
        lsn: Lsn,
        /// What it should be.
        what: &'static str,
    },
    /// The state has applied entries but does not hold the group's membership or vote.
    #[error("the state does not hold the group's {what}: remove the state directory to rebuild it from the log")]
    NoGroup {
        /// Which of them.
        what: &'static str,
    },
    /// Others vote in the space, or voted: what the log holds need not have been agreed on.
    #[error(
        "nodes {voters:?} vote in this space: a node alone must not decide for them; start it as a member of its group"
    )]
    NotAlone {
        /// Everybody who votes.
        voters: Vec<NodeId>,
    },
    /// A truncation takes back an entry that the state has applied. What is applied was agreed on, so log and state
    /// are not of one node.
    #[error(
        "the record at LSN {lsn} takes back entries from {index} on, but the state has applied them up to {applied}: the log is not the state's; restore both from one backup"
    )]
    Truncated {
        /// Where.
        lsn: Lsn,
        /// The first index that it takes back.
        index: Index,
        /// The last index that the state has applied.
        applied: Index,
    },
}

impl Classified for OpenError {
    fn code(&self) -> &'static str {
        match self {
            Self::StateAhead { .. } => "state_ahead_of_log",
            Self::LogTooShort { .. } => "log_too_short",
            Self::Gap { .. } => "entry_missing",
            Self::TermWentBack { .. } => "term_went_back",
            Self::Read(_) => "log_read",
            Self::Append(_) => "log_append",
            Self::Machine(error) => error.code(),
            Self::Malformed { .. } => "malformed_record",
            Self::NoGroup { .. } => "group_missing",
            Self::NotAlone { .. } => "not_alone",
            Self::Truncated { .. } => "entries_truncated",
        }
    }

    fn action(&self) -> Action {
        Action::Stop
    }
}

/// A proposal was not committed, or its outcome can't be known.
#[derive(Clone, Debug, thiserror::Error)]
pub enum ProposeError {
    /// The queue is full. Only async callers see this; blocking ones wait.
    #[error("{queued_bytes} bytes wait for the log: retry later")]
    Overloaded {
        /// Bytes in the queue.
        queued_bytes: usize,
    },
    /// The log refused or failed; see there whether anything was written.
    #[error(transparent)]
    Append(#[from] AppendError),
    /// The state failed; the entry may be in the log. The space takes no more proposals.
    #[error("the state failed: {0}")]
    State(String),
    /// The space is closed.
    #[error("closed")]
    Closed,
}

impl Classified for ProposeError {
    fn code(&self) -> &'static str {
        match self {
            Self::Overloaded { .. } => "overloaded",
            Self::Append(error) => error.code(),
            Self::State(_) => "state_failed",
            Self::Closed => "closed",
        }
    }

    fn action(&self) -> Action {
        match self {
            Self::Overloaded { .. } => Action::Retry,
            Self::Append(error) => error.action(),
            Self::State(_) | Self::Closed => Action::Stop,
        }
    }
}
