//! Planted bugs: deliberate faults in the simulated nodes, which the oracles must find.
//!
//! No oracle has special knowledge of these bugs. A simulator that misses one of them would miss the same bug in the
//! product.

use clap::ValueEnum;

/// A bug to plant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// The log confirms entries before their fsync.
    AckBeforeFsync,
    /// The log confirms a vote without writing it.
    ForgottenVote,
    /// The log confirms a vote immediately, and writes it after the entries that follow it.
    LateVote,
    /// The state applies an entry although a truncation has voided it.
    VoidEntryRead,
    /// Followers keep a leader that does not hear them.
    DeafLeaderKept,
    /// A node that restarts votes immediately, although a leader may count on its promise.
    VoteAfterRestart,
    /// A linearizable read does not check with a majority that its node still leads.
    UncheckedRead,
    /// A node stores entries with the time of its own clock.
    OwnClock,
    /// A leader uses its own wall clock as if it were the clock of all members.
    LeaderClock,
    /// An option of the node affects the changes that an entry makes.
    OptionInApply,
    /// A leader counts the answer of a learner as that of a voter.
    LearnerInQuorum,
    /// A node switches to the state of a snapshot before it has synced that state.
    UnsyncedInstall,
    /// A node that has lost its disk starts again with the same id.
    ReusedId,
    /// A command that requires a term of the leader is proposed without this requirement.
    OtherTerm,
    /// A leader sends no commit notices: followers learn of a commit only from the next append.
    WithheldNotice,
    /// A forwarded batch of commands is proposed twice, as if its sender had repeated it after a lost answer.
    RepeatedForward,
    /// A failed fsync is taken for a success.
    FailedSyncConfirmed,
    /// A tail shows records of entries that are written and not committed.
    UncommittedTail,
}
