//! Appends to streams. All appends of a commit are checked before the first one is written.

use thalweg_types::{
    LogPosition, Offset, StreamId,
    codec::Malformed,
    command::{Outcome, StreamConfig, StreamLimit, Write},
    record::Records,
};

use crate::{
    blobs::blob_at,
    keys,
    machine::applying::Applying,
    refused::Refused,
    segments::liveness::BlobKind,
    streams::{index_entry::IndexEntry, producing},
};

pub(crate) fn check_append(applying: &mut Applying<'_>, append: &Write<'_>) -> Result<(), Refused> {
    let Write::Append { stream, expected, producer, count, batch, batch_at } = *append else { return Ok(()) };
    let Some(head) = applying.live_head(stream) else {
        return Err(Refused::Outcome(Outcome::NoSuchStream(stream)));
    };
    let (head_next, config) = (head.next, head.config.is_set().then(|| head.config.get()));
    if let Some(stamp) = producer {
        producing::check(applying, stream, stamp)?;
    }
    let next = applying.applier.pending.next_offsets.entry(stream).or_insert(head_next);
    if expected.is_some_and(|expected| expected != *next) {
        return Err(Refused::Outcome(Outcome::OffsetConflict { stream, next: *next }));
    }
    *next = next.plus(u64::from(count));
    let largest = check_count(batch, count).map_err(|error| Malformed { at: batch_at + error.at, ..error })?;
    match config.filter(StreamConfig::limits_appends) {
        Some(config) => check_limits(stream, &config, largest, batch.len()),
        None => Ok(()),
    }
}

/// Rejects an append that exceeds a limit in the stream's configuration. `record` and `batch` are the bytes of its
/// largest record and of the whole batch.
fn check_limits(stream: StreamId, config: &StreamConfig, record: usize, batch: usize) -> Result<(), Refused> {
    let limits = [
        (StreamLimit::RecordBytes, config.max_record_bytes, record as u64),
        (StreamLimit::BatchBytes, config.max_batch_bytes, batch as u64),
    ];
    for (limit, max, got) in limits {
        if let Some(max) = max.filter(|max| got > *max) {
            return Err(Refused::Outcome(Outcome::OverStreamLimit { stream, limit, max, got }));
        }
    }
    Ok(())
}

/// Checks that the batch has `count` records. Offsets are assigned by this number, so a wrong one from the proposer
/// must be found. Returns the bytes of the largest record.
fn check_count(batch: &[u8], count: u32) -> Result<usize, Malformed> {
    let mut records = Records::new(batch);
    let (mut found, mut largest) = (0_u64, 0);
    while let Some(record) = records.next_framed() {
        largest = largest.max(record?.len() - 4);
        found += 1;
    }
    if found == u64::from(count) {
        Ok(largest)
    } else {
        Err(Malformed { at: 0, expected: "as many records as counted" })
    }
}

/// Appends a checked batch to a stream. A batch without records changes nothing. Returns the first record's offset.
pub(crate) fn append(
    applying: &mut Applying<'_>,
    stream: StreamId,
    count: u32,
    batch: &[u8],
    at: LogPosition,
) -> Offset {
    let time = applying.applied.time;
    let head = applying.live_head(stream).expect("checked before");
    let first = head.next;
    if count == 0 {
        return first;
    }
    let blob = blob_at(at, batch);
    let entry = IndexEntry { blob, count, time, bytes_before: head.end_bytes, sparse: None };
    if head.start_batch == head.next {
        head.start_time = time;
    }
    head.next = entry.end(first);
    head.end_bytes += u64::from(blob.len);
    head.last_time = time;
    head.add_content(first, &entry);
    applying.applier.staged.put(&[&keys::index_entry(stream, first)], &[&entry.encode_dense()]);
    applying.raise(BlobKind::Batch, &blob);
    first
}
