//! Versions (former values of keys) in keyspaces with history: their rows, keeping and removing them, reads of the
//! past.
//!
//! Owns: former values of keys, and reads at a revision. Does not own: current values (`keyspaces`), or the changes
//! of entries as watches see them (`changes`).
//!
//! Invariant: the versions of a key do not overlap, and a readable revision always gives the value that the key had
//! then.
//!
//! * `rows`: encoding of versions, of the rows which record that versions were removed, and of a keyspace's history.
//! * `keep_versions`: turns the value that a write replaces into a version.
//! * `prune`: removes versions (*forgets* them) by age, and after a change of bounds.
//! * `historical_view`: gets at a revision, and the list of a key's versions. `historical_scan`: scans at a revision.

pub(crate) mod historical_scan;
pub(crate) mod historical_view;
pub(crate) mod keep_versions;
pub(crate) mod prune;
pub(crate) mod rows;

pub use historical_view::{HistoricalView, HistoryError, Version, VersionLifetime, Versions};
pub use rows::VersionEnd;
