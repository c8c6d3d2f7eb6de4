//! The report about disk space, as a node sends it, and readable names of the kinds of bytes.

use serde::Deserialize;

/// Report about disk space. Fields of newer nodes are ignored.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Report {
    pub(super) directory: Option<String>,
    pub(super) backend: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
    kinds: Vec<Kind>,
    pub(super) payload: Option<Payload>,
    /// Number of bytes that must be read to count the payload (the keys, values and records that clients have stored).
    pub(super) count_bytes: u64,
    pub(super) log: LogFigures,
    pub(super) state: StateFigures,
}

/// Number and total bytes of the directory's files of one kind, such as segments of the log that are still needed.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Kind {
    kind: String,
    pub(super) files: u64,
    pub(super) bytes: u64,
}

/// Payload of the directory: the keys, values and records that clients have stored, without the overhead of storing
/// them.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Payload {
    pub(super) bytes: u64,
    pub(super) keys: u64,
    pub(super) parts: u64,
    pub(super) records: u64,
    pub(super) version_bytes: u64,
    pub(super) row_bytes: u64,
}

/// Options of the node's log that bound disk space, and the number of snapshots that keep old segments.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct LogFigures {
    pub(super) segment_bytes: u64,
    pub(super) spare_segments: u64,
    pub(super) history_bytes: u64,
    pub(super) history_age_seconds: f64,
    pub(super) open_snapshots: u64,
}

/// Figures of the backend that stores the state, as far as they explain its disk space.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct StateFigures {
    pub(super) levels: Vec<Level>,
    pub(super) deletions: u64,
    pub(super) reusable_bytes: u64,
}

/// Number and total bytes of the tables in one level of the LSM backend.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Level {
    pub(super) tables: u64,
    pub(super) bytes: u64,
}

impl Report {
    pub(super) fn kind(&self, name: &str) -> Option<&Kind> {
        self.kinds.iter().find(|kind| kind.kind == name)
    }

    /// Returns the bytes of the directory's files of one kind; 0 if there are none.
    pub(super) fn bytes_of(&self, name: &str) -> u64 {
        self.kind(name).map_or(0, |kind| kind.bytes)
    }

    /// Returns the name of each kind of files, their number, and their bytes.
    pub(super) fn rows(&self) -> impl Iterator<Item = (String, u64, u64)> {
        self.kinds.iter().map(|kind| (kind.kind.clone(), kind.files, kind.bytes))
    }

    /// Returns the bytes of the directory without the log's history (old segments that it keeps within configured
    /// limits) and without segments that are prepared in advance. The user bounds these two by options of the log.
    pub(super) fn bytes_without_history(&self) -> u64 {
        self.bytes.saturating_sub(self.bytes_of("log_history") + self.bytes_of("log_prepared"))
    }

    /// Divides a number of bytes by the payload (the bytes that clients have stored). Returns `None` if the payload is
    /// smaller than [`LEAST_PAYLOAD_BYTES`] or was not counted.
    pub(super) fn ratio(&self, bytes: u64) -> Option<f64> {
        let payload = self.payload.filter(|payload| payload.bytes >= LEAST_PAYLOAD_BYTES)?;
        Some(bytes as f64 / payload.bytes as f64)
    }
}

/// Minimum payload, in bytes of keys and values, at which a report shows the ratio of the directory's size to the
/// payload. An empty directory takes some MiB, mostly segments prepared for the writer. For a few keys the ratio would
/// be in the millions, and would not predict the size for more data.
pub(super) const LEAST_PAYLOAD_BYTES: u64 = 1 << 20;

/// Readable names of the kinds of files in a data directory.
const LABELS: [(&str, &str); 10] = [
    ("log_live", "log: records and large values in use"),
    ("log_replay", "log: to be replayed at a start"),
    ("log_history", "log: history"),
    ("log_dead", "log: no longer needed"),
    ("log_prepared", "log: prepared for the writer"),
    ("state", "state"),
    ("state_journal", "state: journal of SQLite"),
    ("leftovers", "state: not in use"),
    ("node", "identity, clock, lock, directories"),
    ("foreign", "other files"),
];

/// Returns the readable name of a kind of files. A kind that this version does not know keeps its name.
pub(super) fn label(kind: &str) -> &str {
    LABELS.iter().find(|(name, _)| *name == kind).map_or(kind, |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use thalweg_engine::space::SpaceKind;

    use super::*;

    #[test]
    fn every_kind_has_a_label() {
        for kind in SpaceKind::ALL {
            assert!(LABELS.iter().any(|(name, _)| *name == kind.name()), "{}", kind.name());
        }
    }
}
