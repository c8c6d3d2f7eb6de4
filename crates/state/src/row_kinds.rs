//! The kinds of rows in the map.
//!
//! Owns: [`RowKind`], the kind of row that a key belongs to, and [`Sharing`], the treatment of each kind by
//! snapshots, by the state digest and by the running hash. Does not own: the layout of keys (`keys`), or the
//! reading of rows for those three (`portable`, `digest`, `machine::running_hash`).
//!
//! Invariants: every key that the state machine writes has a kind; a key without a kind is corruption. The table in
//! [`RowKind::sharing`] is exhaustive, so a new kind does not compile until all three treatments are decided.

use crate::{error::MachineError, keys};

/// Kind of a row, determined by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKind {
    /// The meta row: format version, next ids and counters of the space.
    Meta,
    /// A keyspace's catalog row.
    Keyspace,
    /// A stream's head.
    StreamHead,
    /// The live bytes of a segment.
    Liveness,
    /// The inline floor: the length up to which values are never in this node's log.
    InlineFloor,
    /// The group's last applied membership.
    Membership,
    /// This node's vote in the space's group.
    Vote,
    /// The last entry that this node's log no longer has to retain.
    Purged,
    /// A deleted prefix.
    Clear,
    /// Exact counts of a keyspace.
    Counts,
    /// The deadline of a key or a lease.
    Deadline,
    /// A lease.
    Lease,
    /// A key attached to a lease.
    Attached,
    /// The point from which this node's log can be read as history.
    HistoryFloor,
    /// The verdict of an entry.
    Verdict,
    /// The position of a revision in this node's log.
    Mark,
    /// A producer's head or one of its results.
    Producer,
    /// The next consumer group, or a group's head.
    Consumers,
    /// A member of a consumer group.
    Member,
    /// A key's value.
    Value,
    /// An index entry of a stream.
    IndexEntry,
    /// A keyspace's history.
    History,
    /// A version of a key, or a mark that older versions were forgotten.
    Version,
    /// The time at which a version was superseded.
    VersionTime,
    /// A part of a collection.
    Part,
    /// The pending records of an attempt.
    Parcel,
    /// A collection that no key refers to any more.
    Trash,
}

impl RowKind {
    /// Returns the kind of the row with this key.
    #[inline]
    pub(crate) fn of(key: &[u8]) -> Result<Self, MachineError> {
        let Some((&tag, rest)) = key.split_first() else {
            return Err(MachineError::corrupt("row", key, "its key is empty"));
        };
        Self::of_tag(tag, rest)
            .ok_or_else(|| MachineError::corrupt("row", key, "this version does not recognise its kind"))
    }

    /// Returns the treatment of rows of this kind by snapshots, the state digest and the running hash.
    #[inline]
    pub(crate) const fn sharing(self) -> Sharing {
        let (snapshot, digest, running_hash) = match self {
            Self::Liveness
            | Self::InlineFloor
            | Self::Membership
            | Self::Vote
            | Self::Purged
            | Self::HistoryFloor
            | Self::Verdict
            | Self::Mark => (Carried::Nothing, Form::Nothing, false),
            Self::IndexEntry => (Carried::IndexEntry, Form::Nothing, false),
            Self::Meta => (Carried::Row, Form::Row, false),
            Self::StreamHead => (Carried::Row, Form::StreamHead, false),
            Self::Value => (Carried::Value, Form::Value, true),
            Self::Version => (Carried::Version, Form::Version, true),
            Self::Keyspace
            | Self::Clear
            | Self::Counts
            | Self::Deadline
            | Self::Lease
            | Self::Attached
            | Self::Producer
            | Self::Consumers
            | Self::Member
            | Self::History
            | Self::VersionTime
            | Self::Part
            | Self::Parcel
            | Self::Trash => (Carried::Row, Form::Row, true),
        };
        Sharing { snapshot, digest, running_hash }
    }

    #[inline]
    fn of_tag(tag: u8, rest: &[u8]) -> Option<Self> {
        Some(match tag {
            keys::TAG_DATA => Self::Value,
            keys::TAG_PART => Self::Part,
            keys::TAG_INDEX => Self::IndexEntry,
            keys::TAG_META => Self::Meta,
            keys::TAG_KEYSPACE => Self::Keyspace,
            keys::TAG_STREAM => Self::StreamHead,
            keys::TAG_LIVENESS if rest.is_empty() => Self::InlineFloor,
            keys::TAG_LIVENESS => Self::Liveness,
            keys::TAG_MEMBERSHIP => match rest {
                [1] => Self::Membership,
                [2] => Self::Vote,
                [3] => Self::Purged,
                _ => return None,
            },
            keys::TAG_CLEAR => Self::Clear,
            keys::TAG_COUNTS => Self::Counts,
            keys::TAG_DEADLINE => Self::Deadline,
            keys::TAG_LEASE => Self::Lease,
            keys::TAG_ATTACHED => Self::Attached,
            keys::TAG_VERDICT if rest.is_empty() => Self::HistoryFloor,
            keys::TAG_VERDICT => Self::Verdict,
            keys::TAG_MARK => Self::Mark,
            keys::TAG_PRODUCER => Self::Producer,
            keys::TAG_CONSUMERS => Self::Consumers,
            keys::TAG_MEMBER => Self::Member,
            keys::TAG_VERSIONS => match rest.first() {
                Some(0) => Self::History,
                Some(1) => Self::Version,
                Some(2) => Self::VersionTime,
                _ => return None,
            },
            keys::TAG_PARCEL => Self::Parcel,
            keys::TAG_TRASH => Self::Trash,
            _ => return None,
        })
    }
}

/// Treatment of a kind of row outside this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Content of a snapshot for the row.
    pub(crate) snapshot: Carried,
    /// Form of the row in the state digest.
    pub(crate) digest: Form,
    /// True if puts and deletes of the row enter the running hash. Rows that follow from outcomes (the meta row)
    /// are excluded, and so are stream heads: their fields in memory are hashed instead.
    pub(crate) running_hash: bool,
}

/// Content of a snapshot for a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Carried {
    /// No content: the row belongs to this node, its log or its group.
    Nothing,
    /// The snapshot contains the row unchanged.
    Row,
    /// A value, which may point into the log.
    Value,
    /// A version, which may point into the log.
    Version,
    /// An index entry, which points into the log unless compaction has removed all records of its batch.
    IndexEntry,
}

/// Form of a row in the state digest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// No form: the row belongs to this node alone.
    Nothing,
    /// The form is the row unchanged.
    Row,
    /// A value's length and checksum instead of its bytes.
    Value,
    /// A version with the form of its value.
    Version,
    /// The fields of a stream's head that the space's entries determine.
    StreamHead,
}

/// Returns a readable name of the rows whose keys begin with this byte.
#[must_use]
pub fn name_of_tag(tag: u8) -> &'static str {
    match tag {
        keys::TAG_META => "meta",
        keys::TAG_KEYSPACE => "keyspaces",
        keys::TAG_STREAM => "stream heads",
        keys::TAG_LIVENESS => "segment liveness",
        keys::TAG_MEMBERSHIP => "membership",
        keys::TAG_CLEAR => "deleted prefixes",
        keys::TAG_COUNTS => "exact counts",
        keys::TAG_DEADLINE => "deadlines",
        keys::TAG_LEASE => "leases",
        keys::TAG_ATTACHED => "keys of leases",
        keys::TAG_VERDICT => "verdicts",
        keys::TAG_MARK => "marks",
        keys::TAG_PRODUCER => "producers",
        keys::TAG_CONSUMERS => "consumer groups",
        keys::TAG_MEMBER => "group members",
        keys::TAG_DATA => "values",
        keys::TAG_INDEX => "index entries",
        keys::TAG_VERSIONS => "versions",
        keys::TAG_PART => "parts of collections",
        keys::TAG_PARCEL => "pending attempts",
        keys::TAG_TRASH => "dropped collections",
        _ => "unknown",
    }
}
