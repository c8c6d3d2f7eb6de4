//! Payload of a state: the bytes that users have stored and can read.
//!
//! Owns: [`payload`], which counts these bytes by reading every row once, and [`segment_liveness`]. Does not own:
//! files, or the bytes in the log; values in the log count with the lengths that their rows state.
//!
//! Rows of a deleted prefix or a dropped keyspace, and values past their deadline, count until the node has removed
//! them, some seconds later.

use std::ops::{Bound, ControlFlow};

use thalweg_store::View;
use thalweg_types::Generation;

use crate::{
    error::MachineError,
    history::rows::{HistoryKey, VersionRow},
    keys::{DATA_PREFIX_LEN, PART_PREFIX_LEN, TAG_DATA, TAG_PART, TAG_STREAM, TAG_VERSIONS},
    keyspaces::values::decode_value,
    segments::liveness::{Liveness, LivenessTable},
    streams::heads::Head,
};

/// Number of rows between two calls of the `step` callback, which reports progress.
const STEP_ROWS: u64 = 4096;

/// Number and total size of the data that users have stored in a state, by kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Payload {
    /// Number of keys that users have stored.
    pub keys: u64,
    /// Total bytes of all keys that users have stored.
    pub key_bytes: u64,
    /// Total bytes of the values of all keys, wherever they are stored.
    pub value_bytes: u64,
    /// Number of fields and entries of Redis hashes and streams.
    pub parts: u64,
    /// Bytes of the names and values of all fields and entries of Redis hashes and streams.
    pub part_bytes: u64,
    /// Number of readable records of streams.
    pub records: u64,
    /// Total bytes of the batches that contain readable records of streams.
    pub record_bytes: u64,
    /// Number of former values that keyspaces with history keep.
    pub versions: u64,
    /// Bytes of the keys and values of all former values.
    pub version_bytes: u64,
    /// Number of rows of the state, including those that contain no data of users.
    pub rows: u64,
    /// Bytes of the keys and values of all rows. Values that are only in the log count with their pointers.
    pub row_bytes: u64,
}

impl Payload {
    /// Returns the bytes that users can read now: keys, values, fields, entries and records, without former values.
    #[must_use]
    pub fn live_bytes(&self) -> u64 {
        self.key_bytes + self.value_bytes + self.part_bytes + self.record_bytes
    }

    fn add(&mut self, key: &[u8], row: &[u8]) -> Result<(), MachineError> {
        self.rows += 1;
        self.row_bytes += (key.len() + row.len()) as u64;
        match key.first() {
            Some(&TAG_DATA) => {
                self.keys += 1;
                self.key_bytes += key.len().saturating_sub(DATA_PREFIX_LEN) as u64;
                self.value_bytes += decode_value(key, row)?.value.value_len() as u64;
            }
            Some(&TAG_PART) => {
                self.parts += 1;
                self.part_bytes += (key.len().saturating_sub(PART_PREFIX_LEN) + row.len()) as u64;
            }
            Some(&TAG_STREAM) => {
                let head = Head::decode(key, row)?;
                if head.is_live() {
                    self.records += head.records();
                    self.record_bytes += head.live_bytes();
                }
            }
            Some(&TAG_VERSIONS) if HistoryKey::is_of_version(key) => {
                let version = HistoryKey::of_version(key)?;
                if version.revision.is_some() {
                    self.versions += 1;
                    self.version_bytes += (version.key.len() + version_len(key, row)?) as u64;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn version_len(key: &[u8], row: &[u8]) -> Result<usize, MachineError> {
    Ok(VersionRow::decode(key, row)?.decoded(key)?.value.value_len())
}

/// Counts the payload of a view by reading every row once, in order. Calls `step` from time to time with the number of
/// rows read so far, and returns `None` if `step` ends the count with `Break`.
pub fn payload(view: &dyn View, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<Option<Payload>, MachineError> {
    let (mut counted, mut failure, mut is_ended) = (Payload::default(), None, false);
    view.scan_once(Bound::Unbounded, &mut |key, row| {
        if let Err(error) = counted.add(key, row) {
            failure = Some(error);
            return ControlFlow::Break(());
        }
        if counted.rows.is_multiple_of(STEP_ROWS) && step(counted.rows).is_break() {
            is_ended = true;
            return ControlFlow::Break(());
        }
        ControlFlow::Continue(())
    })?;
    match failure {
        Some(error) => Err(error),
        None => Ok((!is_ended).then_some(counted)),
    }
}

/// Loads the live bytes of each segment of the log, as of the last entry that the view includes.
pub fn segment_liveness(view: &dyn View) -> Result<Vec<(Generation, Liveness)>, MachineError> {
    Ok(LivenessTable::load(view)?.rows())
}
