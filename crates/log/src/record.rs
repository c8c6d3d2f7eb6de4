//! Records as they are given to the log and as they come back.

use std::io::IoSlice;

use bytes::Bytes;
use thalweg_types::{Index, LogPosition, Lsn, SpaceId, SpaceTime, Term};

use crate::format::RECORD_HEADER_BYTES;

/// What a record is, to those who read the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RecordKind {
    /// Commands of a space; has term and index.
    Entry = 1,
    /// A space's membership; has term and index.
    Membership = 2,
    /// A space's vote.
    Vote = 3,
    /// Bytes copied forward on this node; has no term or index.
    Move = 4,
    /// A suffix of a space's entries is void (Raft only).
    Truncate = 5,
    /// A space's entries up to an index are no longer needed.
    Purged = 6,
    /// An entry of a space that carries nothing (a new leader's blank); has term and index.
    Blank = 7,
}

impl RecordKind {
    /// All kinds.
    pub const ALL: [Self; 7] =
        [Self::Entry, Self::Membership, Self::Vote, Self::Move, Self::Truncate, Self::Purged, Self::Blank];

    /// The kind of an encoded record; `None` if there is no such kind.
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

    /// Whether it is an entry of its space: has an index of its own, and is void once a truncation takes that back.
    #[must_use]
    pub const fn has_index(self) -> bool {
        matches!(self, Self::Entry | Self::Membership | Self::Blank)
    }

    /// Its name, as `log dump` prints it.
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

/// A record to append. The payload is given in parts, which are written one after the other.
#[derive(Clone, Copy, Debug)]
pub struct Draft<'a> {
    /// The space it belongs to.
    pub space: SpaceId,
    /// What it is.
    pub kind: RecordKind,
    /// Its term, or zero.
    pub term: Term,
    /// Its index, or zero.
    pub index: Index,
    /// Its space time.
    pub time: SpaceTime,
    /// Its payload.
    pub payload: &'a [IoSlice<'a>],
}

impl Draft<'_> {
    /// Bytes of the payload.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload.iter().map(|part| part.len()).sum()
    }
}

/// A record of kind [`Truncate`](RecordKind::Truncate): the entries of its space that lie before it in the log, and have
/// its index or a later one, are void.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Truncation {
    /// The space.
    pub space: SpaceId,
    /// Where the record lies.
    pub lsn: Lsn,
    /// The first index that is void.
    pub index: Index,
}

/// Why something is appended: decides what happens when the disk is nearly full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Purpose {
    /// New data: refused below the reserve.
    #[default]
    Data,
    /// Deletes, trims, moves: go on from the space kept back for them.
    Reclaim,
}

/// Where a batch of records went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// LSN of the first record.
    pub first: Lsn,
    /// Exclusive bound: LSN after the last record.
    pub next: Lsn,
    /// Where the first record's payload begins.
    pub payload_at: LogPosition,
}

impl Appended {
    /// Where the payload of each of `drafts` begins, given the drafts that were appended.
    pub fn payload_positions<'a>(&self, drafts: &'a [Draft<'_>]) -> impl Iterator<Item = LogPosition> + use<'a> {
        let mut at = self.payload_at;
        drafts.iter().map(move |draft| {
            let here = at;
            // A batch fits in a segment, whose offsets fit in 31 bits.
            at.offset += (draft.payload_len() + RECORD_HEADER_BYTES) as u32;
            here
        })
    }
}

/// A record as read back; its checksum has been verified.
///
/// The payload shares the buffer it was read into (about 1 MiB): keep a copy, not the `Bytes`, of what
/// lives long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRecord {
    /// Its position in the log.
    pub lsn: Lsn,
    /// The space it belongs to.
    pub space: SpaceId,
    /// What it is.
    pub kind: RecordKind,
    /// Its term, or zero.
    pub term: Term,
    /// Its index, or zero.
    pub index: Index,
    /// Its space time.
    pub time: SpaceTime,
    /// Its payload.
    pub payload: Bytes,
    /// Where the payload lies.
    pub payload_at: LogPosition,
}
