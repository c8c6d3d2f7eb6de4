//! Kinds of records.

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// Commands of a space. Has term and index.
    Entry = 1,
    /// Membership of a space. Has term and index.
    Membership = 2,
    /// Vote of a space.
    Vote = 3,
    /// Bytes copied forward on this node. Has no term or index.
    Move = 4,
    /// Voids a suffix of a space's entries (Raft only).
    Truncate = 5,
    /// Declares that a space's entries up to an index are no longer needed.
    Purged = 6,
    /// An empty entry of a space (the blank of a new leader). Has term and index.
    Blank = 7,
}

impl RecordKind {
    /// All kinds of records.
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

    /// Returns true for an entry of its space: it has its own index, and a later truncation at or below that
    /// index voids it.
    #[must_use]
    pub const fn has_index(self) -> bool {
        matches!(self, Self::Entry | Self::Membership | Self::Blank)
    }

    /// Name of the kind, as `log dump` prints it.
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
