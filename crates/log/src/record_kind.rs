//! Kinds of records in a node's log, and the byte that represents each of them on disk.

/// Kind of a record. Each record belongs to a space: one Raft group, with its own sequence of numbered log entries.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// Commands for the replicated state machine of a space (one Raft group). The record has a term and an index.
    Entry = 1,
    /// Membership of a space (one Raft group): the nodes that replicate it. The record has a term and an index.
    Membership = 2,
    /// Vote of this node in an election of the leader of a space (one Raft group).
    Vote = 3,
    /// Bytes that this node copied from an old segment to the end of the log, so that the segment can be
    /// freed. The record has no term or index.
    Move = 4,
    /// Voids the log entries of a space (one Raft group) from an index on, because they conflict with the leader's
    /// entries.
    Truncate = 5,
    /// Declares that the log entries of a space (one Raft group) up to an index are no longer needed.
    Purged = 6,
    /// An empty log entry of a space (one Raft group), which a new leader appends first. The record has a term and an
    /// index.
    Blank = 7,
}

impl RecordKind {
    /// All kinds of records in the log.
    pub const ALL: [Self; 7] =
        [Self::Entry, Self::Membership, Self::Vote, Self::Move, Self::Truncate, Self::Purged, Self::Blank];

    /// Returns the kind of an encoded record, or `None` for an unknown value.
    #[must_use]
    pub const fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Entry,
            2 => Self::Membership,
            3 => Self::Vote,
            4 => Self::Move,
            5 => Self::Truncate,
            6 => Self::Purged,
            7 => Self::Blank,
            _ => return None,
        })
    }

    /// Returns true if records of this kind are entries of their Raft group's log. An entry has its own index, and a
    /// later truncation at or below that index voids the entry.
    #[must_use]
    pub const fn has_index(self) -> bool {
        matches!(self, Self::Entry | Self::Membership | Self::Blank)
    }

    /// Name of the record kind, as the command `log dump` prints it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Entry => "entry",
            Self::Membership => "membership",
            Self::Vote => "vote",
            Self::Move => "move",
            Self::Truncate => "truncate",
            Self::Purged => "purged",
            Self::Blank => "blank",
        }
    }
}
