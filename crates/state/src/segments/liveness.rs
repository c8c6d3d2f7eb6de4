//! Live bytes of each log segment: those that rows of the state point to.
//!
//! Owns: the liveness rows, one for each segment that the state points into. They are written in the same batches
//! as the pointers, so both survive a crash together. Does not own: the segments, or the choice of segments to copy
//! forward.
//!
//! `stream_bytes` is exact: an append raises it, reclaiming the index entry lowers it, and a move transfers it.
//! `value_bytes` is an upper bound: a put or delete of a key does not read the row that it replaces, so the
//! replaced bytes stay counted. Moves, deletes of prefixes, sweeps, expiry and forgotten versions lower it, because
//! all of these have read the removed row.
//!
//! These rows name segments of this node's log, so they differ between the replicas, and no outcome of a command may
//! depend on them.
//!
//! ```text
//! row := stream_bytes u64 | batches u64 | value_bytes u64 | values u64      little-endian
//! ```

use std::collections::BTreeMap;

use thalweg_store::{View, WriteBatch};
use thalweg_types::{BlobRef, Generation};

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
};

/// Live bytes of one log segment: those that rows of the state point to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Liveness {
    /// Bytes of the stream batches in the segment that have an index entry; exact.
    pub stream_bytes: u64,
    /// Number of stream batches in the segment that have an index entry; exact.
    pub batches: u64,
    /// Bytes of the segment's values to which rows have pointed, less those known to be removed. An upper bound of the
    /// live bytes.
    pub value_bytes: u64,
    /// Number of the segment's values to which rows have pointed, less those known to be removed. An upper bound of
    /// the live values.
    pub values: u64,
}

const ROW_LEN: usize = 32;

impl Liveness {
    /// Returns an upper bound of the segment's live bytes, of batches and values together.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.stream_bytes.saturating_add(self.value_bytes)
    }

    fn encode(&self) -> [u8; ROW_LEN] {
        let mut row = [0; ROW_LEN];
        let fields = [self.stream_bytes, self.batches, self.value_bytes, self.values];
        for (chunk, field) in row.chunks_exact_mut(8).zip(fields) {
            chunk.copy_from_slice(&field.to_le_bytes());
        }
        row
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let row: &[u8; ROW_LEN] = row.try_into().ok()?;
        let mut fields = row.chunks_exact(8).map(|chunk| u64::from_le_bytes(chunk.try_into().expect("8 bytes")));
        let mut next = || fields.next().expect("four fields");
        Some(Self { stream_bytes: next(), batches: next(), value_bytes: next(), values: next() })
    }
}

/// The liveness rows of all segments, as of the last applied log record.
#[derive(Debug, Default)]
pub(crate) struct LivenessTable(BTreeMap<Generation, Liveness>);

impl LivenessTable {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let mut table = Self::default();
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_LIVENESS]), |key, row| {
            if key == keys::INLINE_FLOOR {
                return Ok(());
            }
            let bad = |message| MachineError::corrupt("segment liveness", key, message);
            let generation = keys::generation_of(key).ok_or_else(|| bad("key of a wrong length"))?;
            table.0.insert(generation, Liveness::decode(row).ok_or_else(|| bad("row of a wrong length"))?);
            Ok(())
        })?;
        Ok(table)
    }

    pub(crate) fn rows(&self) -> Vec<(Generation, Liveness)> {
        self.0.iter().map(|(&generation, &liveness)| (generation, liveness)).collect()
    }

    /// Stores the liveness rows that a log record has changed, after its batch is applied to the backend.
    pub(crate) fn publish(&mut self, changes: &mut LivenessChanges) {
        for generation in changes.forgotten.drain(..) {
            self.0.remove(&generation);
        }
        self.0.extend(std::mem::take(&mut changes.rows));
    }
}

/// Changes that the log record being applied makes to liveness rows.
#[derive(Debug, Default)]
pub(crate) struct LivenessChanges {
    rows: BTreeMap<Generation, Liveness>,
    forgotten: Vec<Generation>,
}

/// Kind of the log bytes that a row of the state points to: a stream batch or a key's value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlobKind {
    Batch,
    Value,
}

impl LivenessChanges {
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.forgotten.is_empty()
    }

    /// Deletes the liveness row of a freed segment with the current batch.
    pub(crate) fn forget(&mut self, generation: Generation) {
        self.rows.remove(&generation);
        self.forgotten.push(generation);
    }

    /// Adds bytes that the state now points to, to the live bytes of their segment. `base` has the rows of the last
    /// applied log record.
    pub(crate) fn raise(&mut self, kind: BlobKind, blob: &BlobRef, base: &LivenessTable) {
        if blob.len == 0 {
            return;
        }
        let row = self
            .rows
            .entry(blob.generation)
            .or_insert_with(|| base.0.get(&blob.generation).copied().unwrap_or_default());
        let (bytes, count) = fields(row, kind);
        *bytes = bytes.saturating_add(u64::from(blob.len));
        *count = count.saturating_add(1);
    }

    /// Subtracts bytes that the state no longer points to from the live bytes of their segment. A segment without a
    /// row was freed; then nothing is subtracted.
    pub(crate) fn lower(&mut self, kind: BlobKind, blob: &BlobRef, base: &LivenessTable) {
        if blob.len == 0 {
            return;
        }
        if !self.rows.contains_key(&blob.generation) {
            match base.0.get(&blob.generation) {
                Some(row) if !self.forgotten.contains(&blob.generation) => self.rows.insert(blob.generation, *row),
                _ => return,
            };
        }
        let Some(row) = self.rows.get_mut(&blob.generation) else { return };
        let (bytes, count) = fields(row, kind);
        *bytes = bytes.saturating_sub(u64::from(blob.len));
        *count = count.saturating_sub(1);
    }

    /// Returns the liveness row of a segment, if the log record being applied has changed it; `None` otherwise.
    pub(crate) fn changed(&self, generation: Generation) -> Option<Liveness> {
        self.rows.get(&generation).copied()
    }

    /// Undoes a change of a segment's liveness row. `before` is what [`changed`](Self::changed) returned before the
    /// change.
    pub(crate) fn restore(&mut self, generation: Generation, before: Option<Liveness>) {
        match before {
            Some(row) => drop(self.rows.insert(generation, row)),
            None => drop(self.rows.remove(&generation)),
        }
    }

    pub(crate) fn write(&self, batch: &mut WriteBatch) {
        for &generation in &self.forgotten {
            batch.delete(&[&keys::liveness_row(generation)]);
        }
        for (&generation, row) in &self.rows {
            batch.put(&[&keys::liveness_row(generation)], &[&row.encode()]);
        }
    }
}

fn fields(row: &mut Liveness, kind: BlobKind) -> (&mut u64, &mut u64) {
    match kind {
        BlobKind::Batch => (&mut row.stream_bytes, &mut row.batches),
        BlobKind::Value => (&mut row.value_bytes, &mut row.values),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn blob(generation: u64, len: u32) -> BlobRef {
        BlobRef { generation: Generation(generation), offset: 0, len, crc: 0 }
    }

    #[test]
    fn row_layout_is_pinned() {
        let row = Liveness { stream_bytes: 1, batches: 2, value_bytes: 0x0304, values: 5 };
        let bytes = b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x04\x03\0\0\0\0\0\0\x05\0\0\0\0\0\0\0";
        assert_eq!(&row.encode(), bytes);
        assert_eq!(Liveness::decode(bytes), Some(row));
        assert_eq!(Liveness::decode(&bytes[1..]), None);
    }

    #[test]
    fn a_freed_segment_does_not_come_back_by_lowering() {
        let mut table = LivenessTable::default();
        let mut changes = LivenessChanges::default();
        changes.raise(BlobKind::Batch, &blob(1, 10), &table);
        changes.raise(BlobKind::Value, &blob(1, 7), &table);
        table.publish(&mut changes);
        assert_eq!(table.rows()[0].1, Liveness { stream_bytes: 10, batches: 1, value_bytes: 7, values: 1 });
        changes.forget(Generation(1));
        changes.lower(BlobKind::Batch, &blob(1, 10), &table);
        table.publish(&mut changes);
        assert_eq!(table.rows(), vec![]);
        changes.lower(BlobKind::Batch, &blob(1, 10), &table);
        assert!(changes.is_empty());
    }
}
