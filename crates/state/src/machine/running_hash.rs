//! The running hash over the outcomes and the replicated writes of every log entry since the first one.
//!
//! Owns: the selection and encoding of an entry's bytes that enter the hash. Does not own: the forms of rows
//! (`digest`), or the bytes of outcomes (`thalweg_types`).
//!
//! ```text
//! hash := (rotate_left(hash, 29) ^ (word + kind)) * 0x9e3779b185ebca87      for each word, modulo 2^64
//!
//! kind 1: the entry: time + index * 0xc2b2ae3d27d4eb4f + term * 0x165667b19e3779f9
//!         (the time is the space time of the entry)
//!      2: an outcome that is only *committed*: its revision
//!      3: any other outcome: XXH3-64 of its bytes
//!      4: a row that is put: XXH3-64 of its key
//!      5: its form, if it is a value that does not end: the revision, and length + 2^32 * CRC-32C, two words
//!      6: any other form: XXH3-64 of the form
//!      7: a row that is deleted: XXH3-64 of its key
//!      8: instead of 4 and 5, if every node has the value in its state, because it is at most 128 bytes long: the
//!         XXH3-64 of key and row, one behind the other, plus 2^32 times the length of the key
//! ```
//! The order is: the entry, the outcomes, the heads of streams by id (as put), and the writes of the batch.
//!
//! The hash is 0 before the first entry. A step is a bijection of the hash and of the word, so two replicas that differ
//! in one word differ from then on.
//!
//! Replies to reads of Redis batches that are not performed on all nodes count as null.
//!
//! Writes are in the order in which the machine made them. Excluded are node-local rows; the meta row, which follows
//! from outcomes; and deletes of stream heads, which happen when this node has reclaimed the last index entry.
//!
//! Invariants: computing the hash reads nothing, so it costs a put a few nanoseconds. Node-local records don't change
//! it. Positions in the log are not part of it.

use std::collections::BTreeMap;

use thalweg_store::{Applied, Change, WriteBatch};
use thalweg_types::{StreamId, command::Outcome, limits::MIN_INLINE_VALUE_BYTES, reply::Reply};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    digest::state_digest::{LastingValue, RowScope, lasting_value, replicated_row},
    error::MachineError,
    keys,
    keyspaces::values::{FORM_INLINE, HEAD_LEN},
    row_kinds::RowKind,
    streams::heads::Head,
};

const ENTRY: u64 = 1;
const COMMITTED: u64 = 2;
const OUTCOME: u64 = 3;
const KEY: u64 = 4;
const LASTING: u64 = 5;
const FORM: u64 = 6;
const DELETED: u64 = 7;
const SHORT: u64 = 8;

/// First prime of the XXH hash family, by which each step multiplies. It is odd, so the multiplication is a bijection.
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;
/// Factor of a log entry's index: the second prime of the XXH hash family. This and [`TERM`], the third prime, keep the
/// entry's index, term and time apart in the hash.
const INDEX: u64 = 0xc2b2_ae3d_27d4_eb4f;
const TERM: u64 = 0x1656_67b1_9e37_79f9;

/// The running hash over all entries since the first one, with the data to update it by the log record being applied.
#[derive(Debug, Default)]
pub(crate) struct RunningHash {
    hash: u64,
    is_entry: bool,
    /// Replies that are hashed as null: the number of the outcome in the log entry, and the number of the reply in the
    /// outcome.
    excluded: Vec<(usize, usize)>,
    /// Buffer for encoded outcomes and rows before they are hashed.
    room: Vec<u8>,
}

impl RunningHash {
    /// Begins a log record that concerns only this node and does not change the hash.
    #[inline]
    pub(crate) fn begin_local(&mut self) {
        self.is_entry = false;
    }

    /// Begins a log entry. `applied` has the entry's term, index and time, and the running hash before the entry.
    #[inline]
    pub(crate) fn begin_entry(&mut self, applied: &Applied) {
        (self.is_entry, self.hash) = (true, applied.running_hash);
        // Combined into one word, because each step waits for the previous one.
        let (term, index) = (applied.term.0.wrapping_mul(TERM), applied.index.0.wrapping_mul(INDEX));
        self.step(ENTRY, applied.time.0.wrapping_add(index).wrapping_add(term));
    }

    /// Excludes replies of an outcome from the hash. `replies` has their numbers, and is empty after the call.
    #[inline]
    pub(crate) fn exclude(&mut self, outcome: usize, replies: &mut Vec<usize>) {
        if !replies.is_empty() {
            self.excluded.extend(replies.drain(..).map(|reply| (outcome, reply)));
        }
    }

    /// Adds the outcomes of the log entry's commands to the hash, in order. Leaves them as they were.
    #[inline]
    pub(crate) fn add_outcomes(&mut self, outcomes: &mut [Outcome]) {
        if self.excluded.is_empty() {
            return self.add_all(outcomes);
        }
        let excluded = std::mem::take(&mut self.excluded);
        let swap = |outcomes: &mut [Outcome], replies: &mut [Reply]| {
            for (&(outcome, reply), kept) in excluded.iter().zip(replies) {
                if let Some(Outcome::Redis(Some(replies))) = outcomes.get_mut(outcome)
                    && let Some(reply) = replies.get_mut(reply)
                {
                    std::mem::swap(reply, kept);
                }
            }
        };
        let mut replies = vec![Reply::Null; excluded.len()];
        swap(outcomes, &mut replies);
        self.add_all(outcomes);
        swap(outcomes, &mut replies);
    }

    #[inline]
    fn add_all(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome {
                Outcome::Committed { revision, appends } if appends.is_empty() => self.step(COMMITTED, revision.0),
                _ => self.add_encoded(OUTCOME, |bytes| outcome.encode_stable(bytes)),
            }
        }
    }

    /// Adds the changed stream heads and the backend batch of the log record to the hash. Returns the running hash
    /// after the record.
    #[inline]
    pub(crate) fn finish(
        &mut self,
        before: u64,
        heads: &BTreeMap<StreamId, Option<Head>>,
        batch: &WriteBatch,
    ) -> Result<u64, MachineError> {
        if !self.is_entry {
            return Ok(before);
        }
        for (&id, head) in heads {
            if let Some(head) = head.as_ref().filter(|head| !head.is_empty_marker()) {
                self.add(KEY, &keys::stream_head(id));
                self.add_encoded(FORM, |form| head.encode_replicated(form));
            }
        }
        for (change, whole) in batch.changes_whole() {
            match change {
                Change::Put(key, row) if is_short_value(key, row) => {
                    self.step(SHORT, xxh3_64(whole).wrapping_add((key.len() as u64) << 32));
                }
                Change::Put(key, row) => self.add_put(key, row)?,
                Change::Delete(key) if RowKind::of(key)?.sharing().running_hash => self.add(DELETED, key),
                Change::Delete(_) => {}
            }
        }
        Ok(self.hash)
    }

    #[inline]
    fn add_put(&mut self, key: &[u8], row: &[u8]) -> Result<(), MachineError> {
        if !RowKind::of(key)?.sharing().running_hash {
            return Ok(());
        }
        self.add(KEY, key);
        match lasting_value(key, row) {
            Some(LastingValue { revision, len, crc }) => {
                self.step(LASTING, revision);
                self.step(LASTING, u64::from(len) | u64::from(crc) << 32);
            }
            None => {
                let mut standing = Ok(RowScope::Replicated);
                self.add_encoded(FORM, |form| standing = replicated_row(key, row, form));
                debug_assert!(!matches!(standing, Ok(RowScope::NodeLocal)));
                standing?;
            }
        }
        Ok(())
    }

    #[inline]
    fn step(&mut self, kind: u64, word: u64) {
        self.hash = (self.hash.rotate_left(29) ^ word.wrapping_add(kind)).wrapping_mul(PRIME);
    }

    #[inline]
    fn add(&mut self, kind: u64, bytes: &[u8]) {
        self.step(kind, xxh3_64(bytes));
    }

    fn add_encoded(&mut self, kind: u64, make: impl FnOnce(&mut Vec<u8>)) {
        let mut room = std::mem::take(&mut self.room);
        make(&mut room);
        self.add(kind, &room);
        room.clear();
        room.shrink_to(MAX_KEPT_BYTES);
        self.room = room;
    }
}

/// Returns true for the row of a value that has no deadline and no lease, and is so short that every node stores it
/// inline. Most rows that log entries write are such values.
#[inline]
fn is_short_value(key: &[u8], row: &[u8]) -> bool {
    key.first() == Some(&keys::TAG_DATA)
        && row.first() == Some(&FORM_INLINE)
        && row.len() <= HEAD_LEN + MIN_INLINE_VALUE_BYTES
}

/// Maximum bytes of the encoding buffer that are kept allocated between log records.
const MAX_KEPT_BYTES: usize = 64 * 1024;
