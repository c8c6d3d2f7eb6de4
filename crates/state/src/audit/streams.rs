//! Audit of streams: their heads compared with their index entries and producers.

use thalweg_store::View;
use thalweg_types::{Offset, SpaceTime, StreamId};

use crate::{
    audit::{
        pages::{each_beginning, each_row, is_there},
        report::{FindingKind, Report},
        segments::Segments,
    },
    error::MachineError,
    keys::{self, KeyRange, TAG_INDEX, TAG_PRODUCER, TAG_STREAM},
    segments::liveness::BlobKind,
    streams::{
        heads::Head,
        index_entry::IndexEntry,
        producers::{self, ProducerResult, ProducerRow},
    },
};

/// Number of bytes (tag and stream id) with which the keys of a stream's rows begin.
const STREAM_LEN: usize = 5;

pub(crate) fn check(view: &dyn View, segments: &mut Segments, report: &mut Report) -> Result<(), MachineError> {
    each_row(view, &KeyRange::with_prefix(&[TAG_STREAM]), |key, row| {
        let Some(head) = report.decoded(key, Head::decode(key, row))? else { return Ok(()) };
        let Some(id) = keys::id_of(key).map(StreamId) else {
            report.add(FindingKind::Undecodable, key, "the key of a stream", "a key of another length");
            return Ok(());
        };
        check_index(view, id, &head, segments, report)?;
        check_producers(view, id, &head, report)
    })?;
    for tag in [TAG_INDEX, TAG_PRODUCER] {
        each_beginning(view, &[tag], STREAM_LEN, |beginning| {
            match keys::id_of(beginning).map(|id| keys::stream_head(StreamId(id))) {
                Some(head) if is_there(view, &head)? => {}
                _ => report.add(FindingKind::Stray, beginning, "a stream that exists", "none"),
            }
            Ok(())
        })?;
    }
    Ok(())
}

/// Sums over the index entries of one stream, from the first entry up to the one checked last.
struct EntryWalk {
    /// Offset at which the next index entry must begin.
    next: Offset,
    /// Bytes of all batches before the next entry. The sum starts with the number that the first entry states; `None`
    /// before the first entry.
    bytes: Option<u64>,
    time: SpaceTime,
    saved: i64,
    /// First offset of the batch with the stream's start offset, bytes of all batches before that batch, and its time.
    start: Option<(Offset, u64, SpaceTime)>,
    is_clean_boundary: bool,
}

fn check_index(
    view: &dyn View,
    id: StreamId,
    head: &Head,
    segments: &mut Segments,
    report: &mut Report,
) -> Result<(), MachineError> {
    let key = keys::stream_head(id);
    let mut walk = EntryWalk {
        next: head.first_indexed,
        bytes: None,
        time: SpaceTime(0),
        saved: 0,
        start: None,
        is_clean_boundary: head.cleaned >= head.next || head.cleaned <= head.start_batch,
    };
    let mut prefix = [TAG_INDEX; STREAM_LEN];
    prefix[1..].copy_from_slice(&id.0.to_be_bytes());
    each_row(view, &KeyRange::with_prefix(&prefix), |key, row| {
        let Some((first, entry)) = report.decoded(key, IndexEntry::decode(key, row))? else { return Ok(()) };
        segments.add(BlobKind::Batch, &entry.blob);
        walk.visit(head, key, first, &entry, report);
        Ok(())
    })?;
    let kind = FindingKind::StreamHead;
    report.same(FindingKind::Tiling, &key, "entries up to", &head.next, &walk.next);
    let (start_batch, start_bytes, start_time) = walk.start.unwrap_or((head.next, head.end_bytes, head.start_time));
    report.same(kind, &key, "start batch", &start_batch, &head.start_batch);
    report.same(kind, &key, "start bytes", &start_bytes, &head.start_bytes);
    report.same(kind, &key, "start time", &start_time, &head.start_time);
    if let Some(bytes) = walk.bytes {
        report.same(kind, &key, "end bytes", &bytes, &head.end_bytes);
        report.same(kind, &key, "last time", &walk.time, &head.last_time);
    }
    report.same(kind, &key, "saved bytes", &walk.saved, &head.saved_bytes);
    if !walk.is_clean_boundary {
        report.add(kind, &key, "an entry that begins at the cleaned offset", head.cleaned.0);
    }
    Ok(())
}

impl EntryWalk {
    fn visit(&mut self, head: &Head, key: &[u8], first: Offset, entry: &IndexEntry, report: &mut Report) {
        report.same(FindingKind::Tiling, key, "entry at", &self.next, &first);
        let bytes = self.bytes.unwrap_or(entry.bytes_before);
        report.same(FindingKind::Tiling, key, "bytes before", &bytes, &entry.bytes_before);
        if entry.time < self.time || entry.last_time() < entry.time {
            report.add(FindingKind::Tiling, key, "a time at or after the previous one", entry.time.0);
        }
        if first <= head.start && head.start < entry.end(first) {
            self.start = Some((first, entry.bytes_before, entry.last_time()));
        }
        self.is_clean_boundary |= head.cleaned == first;
        self.next = entry.end(first);
        self.bytes = Some(entry.bytes_before.saturating_add(entry.source_bytes()));
        self.time = entry.last_time();
        self.saved = self.saved.saturating_add(entry.saved_bytes());
    }
}

fn check_producers(view: &dyn View, id: StreamId, head: &Head, report: &mut Report) -> Result<(), MachineError> {
    let key = keys::stream_head(id);
    let mut count = 0;
    let visited = producers::visit(view, id, &mut |_, _| count += 1);
    let is_read = report.decoded(&key, visited)?.is_some();
    // The producers of a deleted stream are removed in steps, heads first.
    if !head.is_live() {
        return Ok(());
    }
    if is_read && count != head.producers {
        report.add(FindingKind::Producers, &key, format_args!("{count} producers"), head.producers);
    }
    let results = [&keys::producers(id), [1].as_slice()].concat();
    each_row(view, &KeyRange::with_prefix(&results), |key, row| {
        let Some(_) = report.decoded(key, ProducerResult::decode(key, row))? else { return Ok(()) };
        let of = key.get(results.len()..).and_then(|rest| {
            let (len, rest) = rest.split_first()?;
            let (name, slot) = rest.split_at_checked(usize::from(*len))?;
            Some((std::str::from_utf8(name).ok()?, *slot.first()?))
        });
        let Some((name, slot)) = of else {
            report.add(FindingKind::Undecodable, key, "the key of a producer's result", "another key");
            return Ok(());
        };
        let head = keys::producer_head(id, name);
        let producer = view.get(&head)?.map(|row| ProducerRow::decode(&head, &row));
        let producer = producer.map(|row| report.decoded(&head, row)).transpose()?.flatten();
        if producer.is_none_or(|producer| slot >= producer.used) {
            report.add(FindingKind::Producers, key, "a slot that its producer has used", slot);
        }
        Ok(())
    })
}
