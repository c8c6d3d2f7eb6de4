//! Planted bugs: deliberate faults in the simulated nodes, which the oracles must find.
//!
//! No oracle has special knowledge of these bugs. A simulator that misses one of them would miss the same bug in the
//! product.

use clap::ValueEnum;

/// A deliberate bug of the simulated nodes, which the checks must find.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Plant {
    /// The log of a node confirms entries before their fsync.
    AckBeforeFsync,
    /// The log of a node confirms a vote without writing it.
    ForgottenVote,
    /// The log of a node confirms a vote immediately, and writes it after the entries that follow it.
    LateVote,
    /// The state of a node applies an entry although a leader has truncated the entry from the log.
    VoidEntryRead,
    /// Followers keep following a leader that does not receive their messages.
    DeafLeaderKept,
    /// A node votes immediately after a restart, although it may have promised its vote to a leader before.
    VoteAfterRestart,
    /// A linearizable read does not check with a majority that its node still leads.
    UncheckedRead,
    /// A node shifts the times of the log entries that it stores by the error of its own clock.
    OwnClock,
    /// A leader takes its own wall clock for the clocks of all members, so it does not notice that its clock is wrong.
    LeaderClock,
    /// An option of the node affects the changes that a log entry makes.
    OptionInApply,
    /// A leader counts the acknowledgement of a learner (a member without a vote) as that of a voter.
    LearnerInQuorum,
    /// A node switches to the state of a snapshot before it has synced that state.
    UnsyncedInstall,
    /// A node that has lost its disk starts again with the same id.
    ReusedId,
    /// A command that must be written in one certain term of the leader is proposed without this requirement.
    OtherTerm,
    /// A leader sends no commit notices: followers learn of a commit only from the next append.
    WithheldNotice,
    /// A forwarded batch of commands is proposed twice, as if its sender had repeated it after a lost answer.
    RepeatedForward,
    /// A failed fsync returns success to the node.
    FailedSyncConfirmed,
    /// A subscriber to the stream (a tail) gets records of log entries that are written but not committed.
    UncommittedTail,
}

impl Plant {
    /// Returns the name of the bug on the command line.
    #[must_use]
    pub fn name(self) -> String {
        self.to_possible_value().expect("no bug is hidden").get_name().to_owned()
    }

    /// Returns the bug that has this name in artifacts, where bugs have the names of their variants.
    #[must_use]
    pub fn in_artifact(name: &str) -> Option<Self> {
        Self::value_variants().iter().copied().find(|plant| format!("{plant:?}") == name)
    }
}
