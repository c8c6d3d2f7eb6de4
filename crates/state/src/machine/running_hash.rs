//! The running hash: over the outcomes and the replicated writes of every entry since the space began.
//!
//! Owns: which bytes of an entry go into the hash, and how. Does not own the forms of rows (`digest`), nor the bytes of
//! outcomes (`thalweg_types`).
//!
//! ```text
//! hash    := (rotate_left(hash, 29) ^ (XXH3-64(piece) + kind)) * 0x9e3779b185ebca87      for each piece, modulo 2^64
//! pieces  := entry | outcome* | head* | write*
//! entry   := term u64 | index u64 | time u64    kind 1; `time` is the space's time at the entry
//! outcome := bytes of the outcome               kind 2
//! head    := key, form                          kinds 3 and 4: two pieces for each stream head, by id
//! write   := key, form                          kinds 3 and 4: a put; `form` is the row's replicated form
//!          | key                                kind 5: a delete
//! ```
//! The hash is 0 before the first entry. A step is a bijection of the hash before it, so two replicas that differ in one
//! piece differ from there on.
//!
//! Writes are in the order in which the machine made them. Left out are node-local rows; the meta row and the membership,
//! which follow from outcomes and are first written when this node begins; and deletes of stream heads, which happen when
//! this node has reclaimed the last index entry.
//!
//! Invariants: computing it reads nothing, so it costs a put a few nanoseconds. Node-local records leave it as it is.
//! Positions in the log are not part of it.

use std::collections::BTreeMap;

use thalweg_types::{StreamId, command::Outcome};
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    backend::{Applied, Change, WriteBatch},
    digest::{Standing, inline_form, replicated_row},
    keys,
    machine::MachineError,
    row_kinds::RowKind,
    streams::Head,
};

const ENTRY: u64 = 1;
const OUTCOME: u64 = 2;
const KEY: u64 = 3;
const FORM: u64 = 4;
const DELETED: u64 = 5;

/// The first prime of the XXH family: odd, so that multiplying by it loses nothing.
const PRIME: u64 = 0x9e37_79b1_85eb_ca87;

/// The running hash while a record is being applied.
#[derive(Debug, Default)]
pub(crate) struct RunningHash {
    hash: u64,
    is_entry: bool,
    /// Room for pieces that have to be put together.
    piece: Vec<u8>,
}

impl RunningHash {
    /// Begins a node-local record.
    #[inline]
    pub(crate) fn begin_local(&mut self) {
        self.is_entry = false;
    }

    /// Begins an entry. `applied` has the entry's term, index and time, and the hash before it.
    #[inline]
    pub(crate) fn begin_entry(&mut self, applied: &Applied) {
        let mut entry = [0; 24];
        for (place, field) in entry.chunks_exact_mut(8).zip([applied.term.0, applied.index.0, applied.time.0]) {
            place.copy_from_slice(&field.to_le_bytes());
        }
        (self.is_entry, self.hash) = (true, applied.running_hash);
        self.add(ENTRY, &entry);
    }

    /// Adds what came of the entry's commands, in order.
    #[inline]
    pub(crate) fn add_outcomes(&mut self, outcomes: &[Outcome]) {
        for outcome in outcomes {
            match outcome.committed_bytes() {
                Some(bytes) => self.add(OUTCOME, &bytes),
                None => self.add_made(OUTCOME, |piece| outcome.encode_stable(piece)),
            }
        }
    }

    /// Adds the stream heads and the batch of the record. Returns the running hash after it.
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
            if let Some(head) = head.as_ref().filter(|head| !head.is_leftover()) {
                self.add(KEY, &keys::stream_head(id));
                self.add_made(FORM, |piece| head.encode_replicated(piece));
            }
        }
        for change in batch.changes() {
            match change {
                Change::Put(key, row) => self.add_put(key, row)?,
                Change::Delete(key) if is_hashed(RowKind::of(key)?) => self.add(DELETED, key),
                Change::Delete(_) => {}
            }
        }
        Ok(self.hash)
    }

    #[inline]
    fn add_put(&mut self, key: &[u8], row: &[u8]) -> Result<(), MachineError> {
        if !is_hashed(RowKind::of(key)?) {
            return Ok(());
        }
        self.add(KEY, key);
        match inline_form(key, row) {
            Some(form) => self.add(FORM, &form),
            None => {
                let mut standing = Ok(Standing::Replicated);
                self.add_made(FORM, |piece| standing = replicated_row(key, row, piece));
                debug_assert!(!matches!(standing, Ok(Standing::NodeLocal)));
                standing?;
            }
        }
        Ok(())
    }

    #[inline]
    fn add(&mut self, kind: u64, piece: &[u8]) {
        self.hash = (self.hash.rotate_left(29) ^ xxh3_64(piece).wrapping_add(kind)).wrapping_mul(PRIME);
    }

    fn add_made(&mut self, kind: u64, make: impl FnOnce(&mut Vec<u8>)) {
        let mut piece = std::mem::take(&mut self.piece);
        make(&mut piece);
        self.add(kind, &piece);
        piece.clear();
        piece.shrink_to(MAX_KEPT_BYTES);
        self.piece = piece;
    }
}

/// A piece that was larger gives its room back.
const MAX_KEPT_BYTES: usize = 64 * 1024;

/// True for rows whose puts and deletes count. Of a stream's head the fields in memory count instead, see
/// [`RunningHash::finish`].
#[inline]
fn is_hashed(kind: RowKind) -> bool {
    match kind {
        RowKind::Value
        | RowKind::Keyspace
        | RowKind::Clear
        | RowKind::Counts
        | RowKind::Deadline
        | RowKind::Lease
        | RowKind::Attached
        | RowKind::Producer
        | RowKind::Consumers
        | RowKind::Member
        | RowKind::History
        | RowKind::Version
        | RowKind::VersionTime
        | RowKind::Part
        | RowKind::Parcel
        | RowKind::Trash => true,
        RowKind::Meta
        | RowKind::Membership
        | RowKind::StreamHead
        | RowKind::Liveness
        | RowKind::Vote
        | RowKind::Purged
        | RowKind::HistoryFloor
        | RowKind::Verdict
        | RowKind::Mark
        | RowKind::IndexEntry => false,
    }
}
