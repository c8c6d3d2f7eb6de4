//! Local maintenance of a node, which must not affect what replicas agree on: bytes copied forward, streams
//! compacted, index entries and history forgotten, flushes and restarts.

use thalweg_state::{
    portable::{self, Row},
    streams::{BatchForm, BatchRange},
};
use thalweg_types::{
    BlobRef, Index, Offset, Revision, SpaceTime, StreamId,
    command::{Compacted, HistoryFloor, MoveTarget},
    record::Records,
    sparse::{Runs, SparseBuilder},
};

use super::{
    Input,
    generator::{max, stream},
    node::Node,
};

/// Number of batches that one compaction replaces.
const STRETCH: usize = 6;

/// Runs one random kind of maintenance.
pub fn some(node: &mut Node, input: &mut Input<'_>) {
    match input.below(10) {
        0..3 => move_bytes(node, input),
        3..5 => compact(node, input),
        5 => record(node, &MoveTarget::Reclaimed { stream: stream(input), max: max(input) }),
        6 => {
            let floor = HistoryFloor { revision: Revision(input.byte().into()), index: Index(input.byte().into()) };
            record(node, &MoveTarget::HistoryFloor { floor, max: max(input) });
        }
        7 => clean(node, input),
        8 => drop(node.backend().flush().expect("the disk works")),
        _ => node.restart(),
    }
}

/// Appends and applies a move record without bytes.
pub fn record(node: &mut Node, target: &MoveTarget<'_>) {
    let nowhere = BlobRef { generation: thalweg_types::Generation(0), offset: 0, len: 0, crc: 0 };
    let record = node.log.moved(&nowhere, target, b"");
    node.apply_record(&record);
}

/// Copies forward the bytes that a row points to, occasionally from a wrong position.
fn move_bytes(node: &mut Node, input: &mut Input<'_>) {
    let rows = node.rows();
    let pointing: Vec<_> = rows
        .iter()
        .filter_map(|(key, row)| match portable::sort(key, row) {
            Ok(Row::Pointing(pointing)) => Some(pointing),
            _ => None,
        })
        .collect();
    let Some(at) = usize::from(input.short()).checked_rem(pointing.len()) else { return };
    let bytes = node.log.read(&pointing[at].blob);
    let elsewhere = u32::from(input.one_in(8));
    let from = BlobRef { offset: pointing[at].blob.offset + elsewhere, ..pointing[at].blob };
    let record = node.log.moved(&from, &pointing[at].owner.target(), &bytes);
    node.apply_record(&record);
}

/// Replaces some batches of a stream by a random selection of their records.
fn compact(node: &mut Node, input: &mut Input<'_>) {
    let Some(candidate) = node.machine().compaction_candidates().first().copied() else { return };
    let whole = node.machine().batches_from(candidate.stream, candidate.start, 99, u64::MAX).expect("readable batches");
    let Some(at) = input.below(256).checked_rem(whole.batches.len()) else { return };
    let (from, count) = (whole.batches[at].first, 1 + input.below(STRETCH));
    let stretch = node.machine().batch_range(candidate.stream, from, candidate.next, count, u64::MAX).expect("batches");
    replace(node, candidate.stream, &stretch, input.byte());
}

/// Records that a stream is compacted up to the beginning of a batch.
fn clean(node: &mut Node, input: &mut Input<'_>) {
    let Some(candidate) = node.machine().compaction_candidates().first().copied() else { return };
    let whole = node.machine().batches_from(candidate.stream, candidate.start, 99, u64::MAX).expect("readable batches");
    let Some(at) = input.below(256).checked_rem(whole.batches.len()) else { return };
    record(node, &MoveTarget::Cleaned { stream: candidate.stream, before: whole.batches[at].end() });
}

/// Replaces a stretch by a selection of its records.
pub fn replace(node: &mut Node, stream: StreamId, stretch: &BatchRange, salt: u8) {
    let (Some(first), Some(last)) = (stretch.batches.first(), stretch.batches.last()) else { return };
    let (first, end) = (first.first, last.end());
    let keeps = |offset: u64| !(offset.wrapping_mul(31) ^ u64::from(salt)).is_multiple_of(3);
    let mut builder = SparseBuilder::new();
    let mut push = |from: u64, time: SpaceTime, bytes: &[u8]| {
        let mut records = Records::new(bytes);
        for offset in from.. {
            let Some(framed) = records.next_framed() else { break };
            if keeps(offset) {
                builder.push((offset - first.0) as u32, time, framed.expect("a framed record"));
            }
        }
    };
    for batch in &stretch.batches {
        match batch.form {
            BatchForm::Whole => push(batch.first.0, batch.time, &node.log.read(&batch.blob)),
            BatchForm::Sparse { kept: 0, .. } => {}
            BatchForm::Sparse { .. } => {
                for run in Runs::new(&node.log.read(&batch.blob)) {
                    let run = run.expect("a run");
                    push(batch.first.0 + u64::from(run.delta), run.time, run.batch);
                }
            }
        }
    }
    let (kept, bytes) = (builder.kept(), builder.finish());
    let crc = crc_fast::crc32_iscsi(&bytes);
    let from = BlobRef { generation: thalweg_types::Generation(0), offset: 0, len: bytes.len() as u32, crc };
    let sources = stretch.batches.len() as u32;
    let end: Offset = end;
    let compacted = Compacted { stream, first, end, sources, rows_crc: stretch.rows_crc, kept };
    let record = node.log.moved(&from, &MoveTarget::Compacted(compacted), &bytes);
    node.apply_record(&record);
}
