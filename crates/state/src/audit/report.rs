//! Findings of an audit: rows that disagree with other rows.

use std::fmt;

use crate::error::MachineError;

/// Precision that an audit requires of a liveness row, which counts the live bytes and values of one log segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Values {
    /// The liveness row counts at least the values that other rows point to. A put that does not read the value that
    /// it replaces leaves the replaced value counted.
    #[default]
    AtLeast,
    /// The liveness row counts exactly the values that other rows point to, because no command replaced or deleted a
    /// value in the log without reading it.
    Exactly,
}

/// Kind of a disagreement that an audit has found within the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FindingKind {
    /// A row that does not decode.
    Undecodable,
    /// A row of a kind that this program version does not recognise.
    UnknownKind,
    /// A row that belongs to a keyspace, a stream or a consumer group that does not exist.
    Stray,
    /// A row with a revision above the last one that any command has used.
    FutureRevision,
    /// A liveness row (live bytes and counts of one log segment) that disagrees with the rows that point into it.
    Liveness,
    /// A keyspace whose stored exact counts differ from its keys.
    Counts,
    /// A missing or wrong index row of the deadline of a key or a lease.
    Deadline,
    /// A missing index row of a key that is attached to a lease, or such a row whose lease does not exist.
    Attachment,
    /// A lease whose stored number of attached keys is wrong.
    LeaseKeys,
    /// The index entries of a stream do not cover exactly the offsets between the start and the end in its head row.
    Tiling,
    /// A wrong field in the head row of a stream (its name, settings and offsets).
    StreamHead,
    /// A stream with a wrong number of producers, or a wrong row of one of its producers.
    Producers,
    /// A wrong version (former value) of a key: its own fields, or its position among the key's other versions.
    Version,
    /// A missing or wrong index row of the time at which a version (former value) was superseded.
    VersionTime,
    /// A keyspace's history row that is missing, or that contradicts the keyspace's settings of former values.
    History,
    /// A Redis collection whose parts (fields or entries) belong to no key and have no trash row, or a wrong trash row.
    Collection,
    /// A consumer group whose rows disagree with each other or with the group's stream.
    Group,
    /// A wrong row of a deleted prefix whose hidden rows are not all removed.
    Clear,
}

/// A disagreement between rows that an audit has found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Kind of the disagreement.
    pub kind: FindingKind,
    /// Key of the row that is wrong, missing or superfluous.
    pub key: Vec<u8>,
    /// Expected content of the row, as derived from the other rows.
    pub expected: String,
    /// Content of the row that the audit found.
    pub found: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { kind, key, expected, found } = self;
        let (tag, rest) = key.split_first().map_or((0, key.as_slice()), |(tag, rest)| (*tag, rest));
        write!(f, "{kind:?} at row {tag:02x} {}: expected {expected}, found {found}", rest.escape_ascii())
    }
}

/// The list to which the checks of an audit add their findings.
#[derive(Debug, Default)]
pub(crate) struct Report(pub(crate) Vec<Finding>);

impl Report {
    pub(crate) fn add(&mut self, kind: FindingKind, key: &[u8], expected: impl fmt::Display, found: impl fmt::Display) {
        let (expected, found) = (expected.to_string(), found.to_string());
        self.0.push(Finding { kind, key: key.to_vec(), expected, found });
    }

    /// Compares an expected and a found value of a row, and adds a finding if they differ.
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

    /// Converts an error about corrupt bytes to a finding, and returns `None` for it. An error of the backend is
    /// returned and so ends the audit.
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

    /// Converts an error about corrupt bytes to a finding, like [`unless_corrupt`](Self::unless_corrupt), and stores
    /// the row's `key` in the finding.
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
