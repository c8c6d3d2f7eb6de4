//! The kinds of rows in the ordered map that stores the state.
//!
//! Owns: [`RowKind`], the kind of row that a key belongs to, and [`Sharing`], the treatment of each kind by snapshots,
//! by the state digest and by the running hash. Does not own: the layout of keys (`keys`), or the code that produces
//! snapshots, digest and hash (`portable`, `digest`, `machine::running_hash`).
//!
//! Invariants: every key that the state machine writes has a kind; a key without a kind is corruption. The match in
//! [`RowKind::sharing`] is exhaustive, so a new kind does not compile until its treatment by snapshots, digest and
//! hash is decided.

use crate::{error::MachineError, keys};

/// Kind of a row, determined by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum RowKind {
    /// The meta row: format version, next ids and replicated counters.
    Meta,
    /// A keyspace's catalog row: name, settings and creation.
    Keyspace,
    /// A stream's head: its name, settings, and first and next offset.
    StreamHead,
    /// The number of live bytes in a segment of this node's log.
    Liveness,
    /// The inline floor: values up to this length in bytes are never stored only in this node's log.
    InlineFloor,
    /// The last applied membership: the list of the Raft group's members.
    Membership,
    /// This node's vote in the election of a leader of the Raft group.
    Vote,
    /// The last entry that this node's log no longer has to retain (the purged entry).
    Purged,
    Removed,
    /// A clear: a deleted prefix whose hidden rows are not all removed yet.
    Clear,
    /// Exact counts of keys and bytes in a keyspace.
    Counts,
    /// An index row by time: the deadline of a key or a lease.
    Deadline,
    /// A lease with its TTL and deadline.
    Lease,
    /// An index row of a lease: a key that is attached to the lease.
    Attached,
    /// The history floor: the revision and entry index from which watches and other readers can read changes from this
    /// node's log.
    HistoryFloor,
    /// A verdict: facts about a log entry, such as rejected commits, that the entry's bytes do not determine.
    Verdict,
    /// A mark: the log position of the log entry that follows a revision.
    Mark,
    /// The last state of an idempotent producer in a stream, or the result of one of its appends.
    Producer,
    /// The id that the next consumer group gets, or the head of a group.
    Consumers,
    /// A member of a consumer group.
    Member,
    /// The current value of a key.
    Value,
    /// An index entry of a stream: where one batch is in the log.
    IndexEntry,
    /// The history row of a keyspace: how far back its former values reach, and pending work.
    History,
    /// A version (former value) of a key, or a row which records that older versions of the key were removed.
    Version,
    /// An index row by time: the time at which a version (former value) of a key was superseded.
    VersionTime,
    /// A part of a Redis collection: a field of a hash, or an entry of a stream.
    Part,
    /// The pending records of one delivery attempt of a consumer group.
    Parcel,
    /// A trash row: a Redis collection that no key refers to any more, whose parts are still to be removed.
    Trash,
}

impl RowKind {
    /// Returns the kind of the row with this key. An unknown first byte is corruption.
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
            | Self::Removed
            | Self::HistoryFloor
            | Self::Verdict
            | Self::Mark => (SnapshotForm::Nothing, Form::Nothing, false),
            Self::IndexEntry => (SnapshotForm::IndexEntry, Form::Nothing, false),
            Self::Meta => (SnapshotForm::Row, Form::Row, false),
            Self::StreamHead => (SnapshotForm::Row, Form::StreamHead, false),
            Self::Value => (SnapshotForm::Value, Form::Value, true),
            Self::Version => (SnapshotForm::Version, Form::Version, true),
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
            | Self::Trash => (SnapshotForm::Row, Form::Row, true),
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
                [4] => Self::Removed,
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

/// Treatment of one kind of row by snapshots, the state digest and the running hash.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sharing {
    /// Form in which a snapshot contains the row.
    pub(crate) snapshot: SnapshotForm,
    /// Form in which the state digest hashes the row.
    pub(crate) digest: Form,
    /// True if puts and deletes of the row enter the running hash. The meta row is excluded, because it follows from
    /// the outcomes. Stream heads are excluded too: the heads in memory are hashed instead of their rows.
    pub(crate) running_hash: bool,
}

/// Form in which a snapshot contains a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotForm {
    /// The snapshot does not contain the row, which belongs to this node, its log or its Raft group.
    Nothing,
    /// The snapshot contains the row unchanged.
    Row,
    /// The row is a key's value, which may point into the log; the snapshot then contains the bytes too.
    Value,
    /// The row is a former value of a key, which may point into the log; the snapshot then contains the bytes too.
    Version,
    /// The row is a stream's index entry. It points to a batch in the log, unless compaction has removed all records
    /// of the batch.
    IndexEntry,
}

/// Form in which the state digest hashes a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// The digest excludes the row, which belongs to this node alone.
    Nothing,
    /// The digest hashes the row unchanged.
    Row,
    /// The digest hashes the length and checksum of the value instead of its bytes.
    Value,
    /// The digest hashes the row of a version (former value) with the length and checksum of its value instead of the
    /// value's bytes.
    Version,
    /// The digest hashes only those fields of a stream's head row that the replicated log entries determine.
    StreamHead,
}

/// Returns a readable name for the kind of the rows whose keys begin with the byte `tag`.
#[must_use]
pub(crate) fn name_of_tag(tag: u8) -> &'static str {
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
