//! Findings of an audit.

use std::fmt;

use crate::error::MachineError;

/// How exact the bytes of values must be that a segment's row counts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// At least those that rows point at: a put that does not look at the value it replaces leaves that counted.
    #[default]
    AtLeast,
    /// Exactly those: no value in the log was ever replaced or deleted by a command that does not look at it.
    Exactly,
}

/// What two places of the state say differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A row that does not decode.
    Undecodable,
    /// A row of a kind that this version does not know.
    UnknownKind,
    /// A row of a keyspace, a stream or a group that does not exist.
    Stray,
    /// A revision above the last one used.
    FutureRevision,
    /// Live bytes or counts of a segment.
    Liveness,
    /// Exact counts of a keyspace.
    Counts,
    /// The row of a key's or a lease's deadline.
    Deadline,
    /// The row of a key that is attached to a lease, or the lease of such a row.
    Attachment,
    /// How many keys are attached to a lease.
    LeaseKeys,
    /// A stream's index entries do not tile what its head says.
    Tiling,
    /// A field of a stream's head.
    StreamHead,
    /// Producers of a stream.
    Producers,
    /// A version of a key: what it says of itself, or where it stands among the others.
    Version,
    /// The row of a version's time.
    VersionTime,
    /// A keyspace's history, beside its configuration.
    History,
    /// A part, or a trash row, of a collection.
    Collection,
    /// A consumer group and its rows.
    Group,
    /// A deleted prefix.
    Clear,
}

/// A disagreement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Of what kind.
    pub kind: FindingKind,
    /// The row that is wrong, missing or too much.
    pub key: Vec<u8>,
    /// What it should be by the other rows.
    pub expected: String,
    /// What it is.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, expected, found } = self;
        let (tag, rest) = key.split_first().map_or((0, key.as_slice()), |(tag, rest)| (*tag, rest));
        write!(f, "{kind:?} at row {tag:02x} {}: expected {expected}, found {found}", rest.escape_ascii())
    }
}

/// Findings so far.
#[derive(Debug, Default)]
pub(crate) struct Report(pub(crate) Vec<Finding>);

impl Report {
    pub(crate) fn add(&mut self, kind: FindingKind, key: &[u8], expected: impl fmt::Display, found: impl fmt::Display) {
        let (expected, found) = (expected.to_string(), found.to_string());
        self.0.push(Finding { kind, key: key.to_vec(), expected, found });
    }

    /// Compares two figures.
    pub(crate) fn same<T: PartialEq + fmt::Debug>(
        &mut self,
        kind: FindingKind,
        key: &[u8],
        what: &str,
        expected: &T,
        found: &T,
    ) {
        if expected != found {
            self.add(kind, key, format_args!("{what} {expected:?}"), format_args!("{found:?}"));
        }
    }

    /// Bytes that do not decode are a finding; a backend that fails ends the audit.
    pub(crate) fn unless_corrupt<T>(&mut self, result: Result<T, MachineError>) -> Result<Option<T>, MachineError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (MachineError::Corrupt { .. } | MachineError::Format { .. })) => {
                self.add(FindingKind::Undecodable, b"", "rows as this version writes them", error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// As [`unless_corrupt`](Self::unless_corrupt), of the row at a key.
    pub(crate) fn decoded<T>(
        &mut self,
        key: &[u8],
        result: Result<T, MachineError>,
    ) -> Result<Option<T>, MachineError> {
        let before = self.0.len();
        let decoded = self.unless_corrupt(result)?;
        self.0[before..].iter_mut().for_each(|finding| finding.key = key.to_vec());
        Ok(decoded)
    }
}
