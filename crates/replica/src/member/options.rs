//! Options of a member.

use std::time::Duration;

use thalweg_types::{NodeId, SpaceId, SpaceTime};

/// Options of a space (Raft group) on one of its members.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemberOptions {
    /// Id of the space (Raft group).
    pub space: SpaceId,
    /// Id of this node.
    pub node: NodeId,
    /// Maximum total size of queued commands in bytes. At the limit, blocking proposers wait and async proposers get an
    /// error.
    pub max_queue_bytes: usize,
    /// Maximum time that a proposer waits for its answer.
    pub max_wait: Duration,
    /// Maximum time that a caller waits until a move (a record about bytes that were copied within the log) is applied.
    /// With zero, a caller never blocks; a move after uncommitted entries then returns an error.
    pub max_move_wait: Duration,
    /// Time at which the clock of the space (Raft group) continues, unless the last log entry has a later time. With
    /// `None`, the clock continues from the last entry, or from the wall clock if there are no entries.
    pub anchor: Option<SpaceTime>,
    /// Maximum span by which the clock of a space (Raft group) with one voter jumps forward to the wall clock. Zero
    /// means that there is no limit.
    pub max_clock_jump: Duration,
}

impl MemberOptions {
    /// Default maximum time that a proposer waits for its answer.
    pub const DEFAULT_MAX_WAIT: Duration = Duration::from_secs(10);
    /// Default maximum time that a caller waits for a move (a record about bytes that were copied within the log).
    pub const DEFAULT_MAX_MOVE_WAIT: Duration = Duration::from_secs(2);
    /// Default of [`max_clock_jump`](Self::max_clock_jump).
    pub const DEFAULT_MAX_CLOCK_JUMP: Duration = Duration::from_secs(24 * 3600);

    /// Returns the default options of a member.
    #[must_use]
    pub const fn new(space: SpaceId, node: NodeId, max_queue_bytes: usize) -> Self {
        Self {
            space,
            node,
            max_queue_bytes,
            max_wait: Self::DEFAULT_MAX_WAIT,
            max_move_wait: Self::DEFAULT_MAX_MOVE_WAIT,
            anchor: None,
            max_clock_jump: Self::DEFAULT_MAX_CLOCK_JUMP,
        }
    }
}
