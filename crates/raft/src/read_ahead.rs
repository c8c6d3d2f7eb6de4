//! Old entries that a reader has read from the log before openraft asks for them.
//!
//! Owns: the entries of one reader that were not returned yet, and the check that they are still valid. Does not own:
//! the read itself (see `reader`).
//!
//! The log is read in pieces of a MiB, and checked in whole batches. If each append to a follower were read on its own,
//! most bytes of a log with large entries would be read and checked two to four times.
//!
//! Invariants: the entries have consecutive indexes; no entry is returned after a later truncation of the log.

use std::collections::VecDeque;

use openraft::EntryPayload;
use thalweg_types::Index;

use crate::types::RaftEntry;

/// Entries that a reader has read and not returned yet.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    entries: VecDeque<RaftEntry>,
    /// Number of truncations of the log when the entries were read.
    truncations: u64,
}

/// Clones as empty: the clone of a reader does not get the entries that the reader has read ahead.
impl Clone for ReadAhead {
    fn clone(&self) -> Self {
        Self::default()
    }
}

impl ReadAhead {
    /// Holds `entries`, which a reader has just read. At that time, the log had been truncated `truncations` times.
    pub(crate) fn new(entries: Vec<RaftEntry>, truncations: u64) -> Self {
        Self { entries: entries.into(), truncations }
    }

    /// Returns true if the entry at `from` is the next one held, and if the log, now truncated `truncations` times in
    /// all, has not been truncated since the entries were read.
    pub(crate) fn has(&self, from: Index, truncations: u64) -> bool {
        let is_next = self.entries.front().is_some_and(|next| next.log_id.index == from.0);
        is_next && self.truncations == truncations
    }

    /// Removes and returns the next entries below `to`, up to `max_bytes` of payload. Returns the first entry even if
    /// it is larger.
    pub(crate) fn take(&mut self, to: Index, max_bytes: usize) -> Vec<RaftEntry> {
        let (mut taken, mut bytes) = (Vec::new(), 0);
        while let Some(next) = self.entries.front() {
            bytes += payload_bytes(next);
            if next.log_id.index >= to.0 || (bytes > max_bytes && !taken.is_empty()) {
                break;
            }
            taken.extend(self.entries.pop_front());
        }
        taken
    }
}

fn payload_bytes(entry: &RaftEntry) -> usize {
    match &entry.payload {
        EntryPayload::Normal(commands) => commands.bytes.len(),
        // A membership has only a few bytes, and a blank entry has none.
        _ => 0,
    }
}
