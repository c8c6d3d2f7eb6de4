//! The state of the writer role: the holder of its lock writes batches into the active segment.
//!
//! Owns: the position of the next batch, the last batch's checksum (which the next batch repeats), sealing and
//! switching segments. Does not own: the decision to write a batch (see `writer`), syncing (see `commit`), preparing
//! segments (see `prepare`).
//!
//! Invariants: `durable <= next`; every byte below `offset` of the active segment belongs to a complete batch; sealed
//! segments that are not completely synced are in `unsynced`, oldest first.

use std::{io, sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use thalweg_disk::Mapping;
use thalweg_types::{Durability, Log2Histogram, Lsn};

use crate::{
    encode::{Body, Encoded, MAPPED_MAX_BYTES, Stream},
    format::{
        BATCH_HEADER_BYTES, BatchHeader, BatchKind, DATA_START, FOOTER_BYTES, Footer, HEADER_BLOCK_BYTES, MARKER_ROOM,
        SegmentHeader, SegmentState, body_crc, padded,
    },
    gates::SyncRole,
    prepare::{Prepared, SegmentPool},
    segment::{Extent, Segment, SegmentKey, Table},
    writer_rest::RestBounds,
};

/// Counters of appends and syncs. Protected by the mutex `Shared::core`, which every append holds anyway.
#[derive(Debug, Default)]
pub(crate) struct WriteCounters {
    pub appends: u64,
    pub records: u64,
    pub bytes: u64,
    pub payload_bytes: u64,
    pub syncs: u64,
    pub sync_micros: u64,
    pub batches_per_sync_max: u64,
    pub sync_latency: Log2Histogram,
    pub batches_per_sync: Log2Histogram,
}

/// Way in which a batch is written: copied into the memory-mapped segment, or written with a system call.
///
/// A copy into the mapping needs no system call. But the next fsync must remove every page touched this way
/// from the page tables of all processors, and the next copy faults it in again: 10 to 25 µs for each sync on
/// our machines. So a batch that is fsynced immediately is written with a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritePath {
    Mapping,
    File,
}

impl WritePath {
    pub(crate) fn of(level: Durability, total: u64) -> Self {
        if level.waits_for_sync() || total > MAPPED_MAX_BYTES { Self::File } else { Self::Mapping }
    }
}

/// Outcome of writing a marker (a batch without records).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marked {
    Written,
    /// The active segment has no room for the marker.
    NoRoom,
}

/// State that the writer needs to append batches. The holder of its lock has the writer role.
#[derive(Debug)]
pub(crate) struct Core {
    pub active: Arc<Segment>,
    mapping: Box<dyn Mapping>,
    offset: u32,
    pub next: Lsn,
    chain: u32,
    /// LSN below which all records are durable, as the header of the last written batch attests.
    attested: Lsn,
    /// Sealed segments that are not completely synced yet, oldest first.
    pub unsynced: Vec<Arc<Segment>>,
    pub role: SyncRole,
    /// Monotonic time of the oldest write of durability level `interval` that no sync covers yet.
    pub interval_since: Option<Duration>,
    /// True if the background sync thread was requested to write an idle marker.
    pub mark_due: bool,
    /// Monotonic time at which the last sync ended.
    pub synced_at: Duration,
    /// Number of batches with records that were written since the last sync began.
    pub batches: u64,
    pub counters: WriteCounters,
    pub rest: RestBounds,
    /// True after a write that failed in part. No further batch may be written, because the segment ends with a torn
    /// batch.
    pub torn: bool,
}

impl Core {
    pub(crate) fn new(active: Arc<Segment>, mapping: Box<dyn Mapping>, chain: u32) -> Self {
        let extent = active.extent();
        active.begin_filling();
        Self {
            active,
            mapping,
            offset: extent.written,
            next: extent.next,
            chain,
            attested: Lsn::ZERO,
            unsynced: Vec::new(),
            role: SyncRole::default(),
            interval_since: None,
            mark_due: false,
            synced_at: Duration::ZERO,
            batches: 0,
            counters: WriteCounters::default(),
            rest: RestBounds::default(),
            torn: false,
        }
    }

    /// Returns the byte position in the active segment after the last batch.
    #[inline]
    pub(crate) fn written_bytes(&self) -> u32 {
        self.offset
    }

    /// Returns the number of bytes between the last batch and the end of the active segment.
    pub(crate) fn free_bytes(&self) -> u32 {
        self.active.key.limit.saturating_sub(self.offset)
    }

    pub(crate) fn fits(&self, total: u32) -> bool {
        u64::from(self.offset) + u64::from(total) + u64::from(MARKER_ROOM) <= u64::from(self.active.key.limit)
    }

    /// Writes one batch after the last one in the active segment. After an error the segment ends with a torn
    /// batch.
    pub(crate) fn write(
        &mut self,
        batch: &mut Encoded<'_>,
        kind: BatchKind,
        attested: Lsn,
        through: WritePath,
    ) -> io::Result<(u32, Lsn)> {
        let at = self.offset;
        let first = self.next;
        if let Body::Streamed(stream) = &mut batch.body {
            self.stream(stream, batch.sums, at)?;
        }
        let crc = body_crc(batch.sums, self.chain);
        let header = BatchHeader {
            body_len: batch.body_len,
            count: batch.count,
            first,
            attested,
            chain: self.chain,
            body_crc: crc,
            kind,
        };
        let header_bytes = header.encode(self.active.key.id, at);
        let file = &self.active.file;
        let written = match &mut batch.body {
            Body::Flat(bytes) => {
                bytes[..BATCH_HEADER_BYTES].copy_from_slice(&header_bytes);
                match through {
                    WritePath::Mapping => {
                        self.mapping.write(bytes, at.into());
                        Ok(())
                    }
                    WritePath::File => file.write_all_at(bytes, at.into()),
                }
            }
            Body::Parts(parts) => {
                let mut whole = Vec::with_capacity(parts.len() + 1);
                whole.push(io::IoSlice::new(&header_bytes));
                whole.extend_from_slice(parts);
                file.write_all_vectored_at(&whole, at.into())
            }
            Body::Streamed(_) => file.write_all_at(&header_bytes, at.into()),
        };
        if let Err(error) = written {
            self.torn = true;
            return Err(error);
        }
        let total = padded(BATCH_HEADER_BYTES as u32 + batch.body_len);
        self.offset = at + total;
        self.next = header.next();
        self.chain = crc;
        self.attested = attested;
        self.counters.bytes += u64::from(total);
        self.active.publish(at, self.offset, first, self.next, batch.times);
        Ok((at, first))
    }

    /// Writes the body of a batch at byte position `at`, piece by piece. The batch is invalid until its
    /// header is written.
    fn stream(&mut self, stream: &mut Stream<'_>, sums: &mut [u8], at: u32) -> io::Result<()> {
        let mut to = u64::from(at) + BATCH_HEADER_BYTES as u64;
        let mut done = 4;
        loop {
            let piece = stream.next_piece(sums, &mut done);
            if piece.is_empty() {
                return Ok(());
            }
            if let Err(error) = self.active.file.write_all_at(piece, to) {
                self.torn = true;
                return Err(error);
            }
            to += piece.len() as u64;
        }
    }

    /// Writes a marker: a batch without records, which attests that all records below `attested` are durable. After an
    /// error the segment ends with a torn batch.
    pub(crate) fn mark(&mut self, kind: BatchKind, attested: Lsn) -> io::Result<Marked> {
        if self.torn {
            return Err(io::Error::other("an earlier write has failed"));
        }
        if self.offset + BATCH_HEADER_BYTES as u32 > self.active.key.limit {
            return Ok(Marked::NoRoom);
        }
        let mut bytes = [0; BATCH_HEADER_BYTES];
        let mut batch = Encoded {
            count: 0,
            body_len: 0,
            payload_len: 0,
            times: None,
            sums: &mut [0; 4],
            body: Body::Flat(&mut bytes),
        };
        self.write(&mut batch, kind, attested, WritePath::File).map(|_| Marked::Written)
    }

    /// Writes a marker (a batch without records) which attests that the log is durable and idle, unless the last batch
    /// already attests it. Leaves the last bytes reserved for markers to those that open and close write. After a
    /// failed write, `torn` is true.
    pub(crate) fn mark_idle(&mut self) {
        if self.attested < self.next && self.offset + MARKER_ROOM / 2 <= self.active.key.limit {
            let _ = self.mark(BatchKind::Idle, self.next);
        }
    }

    /// Seals the active segment (ends writing to it) and continues in a prepared, empty one.
    pub(crate) fn switch(&mut self, prepared: Prepared, table: &ArcSwap<Table>, spares: &Arc<SegmentPool>) {
        let old = &self.active;
        let extent = old.extent();
        let footer = Footer {
            end: self.offset,
            chain: self.chain,
            first: old.first,
            next: self.next,
            first_time: extent.first_time,
            last_time: extent.last_time,
            truncates: extent.truncates,
        };
        let limit = old.key.limit;
        self.mapping.write(&footer.encode(old.key.id, limit), limit.into());
        let Prepared { slot, id, generation, mut mapping } = prepared;
        let header = SegmentHeader {
            state: SegmentState::Live,
            id,
            generation,
            base: self.next,
            base_chain: self.chain,
            segment_bytes: slot.segment_bytes,
            slot: slot.slot,
            previous: old.key.generation,
        };
        write_live_header(&mut *mapping, &header);
        let key = SegmentKey::new(id, generation, slot.segment_bytes);
        let extent = Extent::empty(self.next);
        let fresh = Segment::new(slot, key, (self.next, self.chain), extent, Arc::clone(spares));
        let fresh = Arc::new(fresh);
        fresh.begin_filling();
        old.seal();
        table.store(Arc::new(table.load().with(Arc::clone(&fresh))));
        self.unsynced.push(std::mem::replace(&mut self.active, fresh));
        self.mapping = mapping;
        self.offset = DATA_START;
        // Taking the prepared segment has ended the rest.
        self.rest.end_with_segment();
    }
}

const _: () = assert!(FOOTER_BYTES < HEADER_BLOCK_BYTES as usize);

/// Turns a prepared segment into a live one by writing its header, without a sync. A power loss that destroys
/// the header destroys no attested batch, because the sync that makes a batch durable makes the header
/// durable too.
pub(crate) fn write_live_header(mapping: &mut dyn Mapping, header: &SegmentHeader) {
    let bytes = header.encode();
    mapping.write(&bytes, 0);
    mapping.write(&bytes, HEADER_BLOCK_BYTES.into());
}
