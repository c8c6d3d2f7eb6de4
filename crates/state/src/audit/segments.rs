//! Audit of the live bytes of log segments: the bytes that rows point to, compared with the segments' liveness rows.

use std::collections::BTreeMap;

use thalweg_store::View;
use thalweg_types::{BlobRef, Generation};

use crate::{
    audit::report::{FindingKind, Report, Values},
    error::MachineError,
    keys,
    segments::liveness::{BlobKind, Liveness, LivenessTable},
};

/// Live bytes of each log segment, computed from the pointers in rows.
#[derive(Debug, Default)]
pub(crate) struct Segments(BTreeMap<Generation, Liveness>);

impl Segments {
    /// Adds the bytes that a row's pointer refers to, to the sum of their segment.
    pub(crate) fn add(&mut self, kind: BlobKind, blob: &BlobRef) {
        if blob.len == 0 {
            return;
        }
        let sum = self.0.entry(blob.generation).or_default();
        let (bytes, count) = match kind {
            BlobKind::Batch => (&mut sum.stream_bytes, &mut sum.batches),
            BlobKind::Value => (&mut sum.value_bytes, &mut sum.values),
        };
        *bytes = bytes.saturating_add(u64::from(blob.len));
        *count = count.saturating_add(1);
    }

    /// Compares the computed live bytes of all segments with their liveness rows, and adds differences to `report`.
    pub(crate) fn check(mut self, view: &dyn View, values: Values, report: &mut Report) -> Result<(), MachineError> {
        let Some(table) = report.unless_corrupt(LivenessTable::load(view))? else { return Ok(()) };
        let stored: BTreeMap<_, _> = table.rows().into_iter().collect();
        stored.keys().for_each(|generation| _ = self.0.entry(*generation).or_default());
        for (generation, live) in &self.0 {
            let key = keys::liveness_row(*generation);
            let row = stored.get(generation).copied().unwrap_or_default();
            let batches = |of: &Liveness| (of.stream_bytes, of.batches);
            report.same(FindingKind::Liveness, &key, "bytes and count of batches", &batches(live), &batches(&row));
            let is_enough = row.value_bytes >= live.value_bytes && row.values >= live.values;
            let is_same = (row.value_bytes, row.values) == (live.value_bytes, live.values);
            if !is_enough || (values == Values::Exactly && !is_same) {
                let bound = if values == Values::Exactly { "exactly" } else { "at least" };
                let expected = format_args!("{bound} {} bytes in {} values", live.value_bytes, live.values);
                let found = format_args!("{} bytes in {}", row.value_bytes, row.values);
                report.add(FindingKind::Liveness, &key, expected, found);
            }
        }
        Ok(())
    }
}
