//! Findings of an audit.

use std::fmt;

use crate::error::MachineError;

/// Precision of the bytes and counts of values that a segment's row must have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// A segment's row counts at least those that rows point to. A put that does not read the value it replaces leaves
    /// that value counted.
    #[default]
    AtLeast,
    /// A segment's row counts exactly those that rows point to, because no command replaced or deleted a value in
    /// the log without reading it.
    Exactly,
}

/// Kind of a disagreement within the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A row that does not decode.
    Undecodable,
    /// A row of a kind that this version does not recognise.
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
    /// The number of keys that are attached to a lease.
    LeaseKeys,
    /// The index entries of a stream do not cover exactly the range in its head.
    Tiling,
    /// A field of a stream's head.
    StreamHead,
    /// The number of producers of a stream, or a row of one of them.
    Producers,
    /// A version of a key: its own fields, or its position among the other versions.
    Version,
    /// The row of a version's time.
    VersionTime,
    /// The history of a keyspace, compared with its configuration.
    History,
    /// A part, or a trash row, of a collection.
    Collection,
    /// A consumer group and its rows.
    Group,
    /// The row of a deleted prefix.
    Clear,
}

/// A disagreement between rows that an audit has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the disagreement.
    pub kind: FindingKind,
    /// Key of the row that is wrong, missing or superfluous.
    pub key: Vec<u8>,
    /// Expected content according to the other rows.
    pub expected: String,
    /// Content found in the row.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, expected, found } = self;
        let (tag, rest) = key.split_first().map_or((0, key.as_slice()), |(tag, rest)| (*tag, rest));
        write!(f, "{kind:?} at row {tag:02x} {}: expected {expected}, found {found}", rest.escape_ascii())
    }
}

/// The findings of an audit so far.
#[derive(Debug, Default)]
pub(crate) struct Report(pub(crate) Vec<Finding>);

impl Report {
    pub(crate) fn add(&mut self, kind: FindingKind, key: &[u8], expected: impl fmt::Display, found: impl fmt::Display) {
        let (expected, found) = (expected.to_string(), found.to_string());
        self.0.push(Finding { kind, key: key.to_vec(), expected, found });
    }

    /// Compares two values, and adds a finding if they differ.
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

    /// Converts an error about corrupt bytes to a finding. Errors of the backend end the audit.
    pub(crate) fn unless_corrupt<T>(&mut self, result: Result<T, MachineError>) -> Result<Option<T>, MachineError> {
        match result {
            Ok(value) => Ok(Some(value)),
            Err(error @ (MachineError::Corrupt { .. } | MachineError::Format { .. })) => {
                self.add(FindingKind::Undecodable, b"", "rows in the format of this version", error);
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    /// Converts an error like [`unless_corrupt`](Self::unless_corrupt), with the key of the row in the finding.
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
