//! The writer role: the holder of the core's lock writes batches into the active segment.
//!
//! Owns: the position of the next batch, the checksum that chains it to the previous batch, sealing and
//! switching segments. Does not own: syncing (see `commit`), preparing segments (see `prepare`).
//!
//! Invariants: `durable <= next`; every byte below `offset` of the active segment belongs to a complete
//! batch; sealed segments that are not completely synced are in `unsynced`, oldest first.

use std::{
    cell::RefCell,
    io,
    sync::{Arc, MutexGuard, atomic::Ordering},
    time::Duration,
};

use thalweg_disk::Mapping;
use thalweg_types::{Durability, Generation, Log2Histogram, LogPosition, Lsn};

use crate::{
    commit::SyncRole,
    encode::{Body, Encoded, MAPPED_MAX_BYTES, Measure, Scratch, Stream},
    errors::AppendError,
    format::{
        BATCH_HEADER_BYTES, BatchHeader, BatchKind, DATA_START, FOOTER_BYTES, Footer, HEADER_BLOCK_BYTES, MARKER_ROOM,
        RECORD_HEADER_BYTES, SegmentHeader, SegmentState, body_crc, padded,
    },
    log::Shared,
    prepare::{NoSpare, Prepared},
    record::{Appended, Draft, Purpose},
    segment::{Extent, Segment, SegmentKey},
};

/// Maximum number of sealed segments that are not yet synced. A writer that would seal another one syncs
/// first.
const MAX_UNSYNCED_SEGMENTS: usize = 4;
/// Maximum time that a writer waits for an empty segment.
const SPARE_PATIENCE: Duration = Duration::from_secs(10);

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::new(Scratch::default());
}

/// Counters protected by the core's lock, which every append holds anyway.
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
enum Through {
    Mapping,
    File,
}

impl Through {
    fn of(level: Durability, total: u64) -> Self {
        if level.waits_for_sync() || total > MAPPED_MAX_BYTES { Self::File } else { Self::Mapping }
    }
}

/// State that the writer needs to append batches. The holder of its lock has the writer role.
#[derive(Debug)]
pub(crate) struct Core {
    pub active: Arc<Segment>,
    mapping: Box<dyn Mapping>,
    offset: u32,
    pub next: Lsn,
    chain: u32,
    /// LSN below which all records are durable according to the last batch written.
    attested: Lsn,
    /// Sealed segments that need a sync, oldest first.
    pub unsynced: Vec<Arc<Segment>>,
    pub role: SyncRole,
    /// Monotonic time of the oldest write of durability level `interval` that no sync covers yet.
    pub interval_since: Option<Duration>,
    /// True if the background sync thread was requested to write an idle marker.
    pub mark_due: bool,
    /// Monotonic time at which the last sync ended.
    pub synced_at: Duration,
    /// Number of record batches since the last sync began.
    pub batches: u64,
    pub counters: WriteCounters,
    /// True after a partly failed write; no further batch may be written, because the segment ends with a
    /// torn one.
    pub torn: bool,
}

impl Core {
    pub fn new(active: Arc<Segment>, mapping: Box<dyn Mapping>, chain: u32) -> Self {
        let extent = active.extent();
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
            torn: false,
        }
    }

    fn fits(&self, total: u32) -> bool {
        u64::from(self.offset) + u64::from(total) + u64::from(MARKER_ROOM) <= u64::from(self.active.key.limit)
    }

    /// Writes one batch after the last one in the active segment. After an error the segment ends with a torn
    /// batch.
    fn write(
        &mut self,
        batch: &mut Encoded<'_>,
        kind: BatchKind,
        attested: Lsn,
        through: Through,
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
                    Through::Mapping => {
                        self.mapping.write(bytes, at.into());
                        Ok(())
                    }
                    Through::File => file.write_all_at(bytes, at.into()),
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

    /// Writes a marker, a batch without records that attests that all records below `attested` are durable.
    /// Returns false if the segment has no room for the marker.
    pub fn mark(&mut self, kind: BatchKind, attested: Lsn) -> bool {
        if self.torn || self.offset + BATCH_HEADER_BYTES as u32 > self.active.key.limit {
            return false;
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
        self.write(&mut batch, kind, attested, Through::File).is_ok()
    }

    /// Writes a marker which attests that the log is durable and idle, unless the last batch already does.
    /// The last bytes reserved for markers are left to those of open and close.
    pub fn mark_idle(&mut self) {
        if self.attested < self.next && self.offset + MARKER_ROOM / 2 <= self.active.key.limit {
            self.mark(BatchKind::Idle, self.next);
        }
    }

    /// Seals the active segment (ends writing to it) and continues in a prepared, empty one.
    fn switch(&mut self, prepared: Prepared, shared: &Shared) {
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
        let fresh = Segment::new(slot, key, (self.next, self.chain), extent, Arc::clone(&shared.spares));
        let fresh = Arc::new(fresh);
        old.seal();
        shared.table.store(Arc::new(shared.table.load().with(Arc::clone(&fresh))));
        self.unsynced.push(std::mem::replace(&mut self.active, fresh));
        self.mapping = mapping;
        self.offset = DATA_START;
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

impl Shared {
    pub fn append(&self, drafts: &[Draft<'_>], level: Durability, purpose: Purpose) -> Result<Appended, AppendError> {
        let measure = Measure::of(drafts)?;
        let max = u64::from(self.options.segment_bytes - DATA_START - FOOTER_BYTES as u32 - MARKER_ROOM);
        if measure.total() > max {
            return Err(AppendError::TooLarge { got: measure.total(), max });
        }
        if purpose == Purpose::Data && self.spares.is_low() {
            self.admit()?;
        }
        let through = Through::of(level, measure.total());
        let mut appended = Appended {
            first: Lsn::ZERO,
            next: Lsn::ZERO,
            payload_at: LogPosition { generation: Generation(0), offset: 0 },
        };
        let mut core = SCRATCH.with_borrow_mut(|scratch| {
            let mut batch = scratch.encode(drafts, &measure);
            self.place(&mut batch, &mut appended, purpose, through)
        })?;
        if measure.truncates {
            core.active.note_truncations();
            self.truncations.add_appended(drafts, appended.first);
        }
        match level {
            Durability::None | Durability::Os => Ok(appended),
            Durability::Interval => {
                if core.interval_since.is_none() {
                    let now = self.clock.monotonic();
                    core.interval_since = Some(now);
                    drop(core);
                    self.syncer.due_at(now + self.options.sync_interval);
                }
                Ok(appended)
            }
            Durability::Disk | Durability::Quorum => self.commit(core, appended.next).map(|()| appended),
        }
    }

    /// Checks the disk's free space again, if the last check found it nearly full. Returns an error if it is
    /// still below the reserve.
    #[cold]
    fn admit(&self) -> Result<(), AppendError> {
        match self.spares.look() {
            (free_bytes, true) => Err(AppendError::DiskFull { free_bytes, reserve_bytes: self.options.reserve_bytes }),
            (_, false) => Ok(()),
        }
    }

    /// Writes a batch, continuing in a new segment if needed, and stores the batch's positions. Keeps the
    /// lock.
    #[inline]
    fn place(
        &self,
        batch: &mut Encoded<'_>,
        appended: &mut Appended,
        purpose: Purpose,
        through: Through,
    ) -> Result<MutexGuard<'_, Core>, AppendError> {
        let mut core = self.writable_core()?;
        let total = padded(BATCH_HEADER_BYTES as u32 + batch.body_len);
        while !core.fits(total) {
            core = self.roll(core, purpose)?;
        }
        let durable = self.durable();
        let (at, first) = match core.write(batch, BatchKind::Records, durable, through) {
            Ok(placed) => placed,
            Err(error) => {
                let reason = format!("write to {}: {error}", core.active.path);
                return Err(self.fail(core, reason));
            }
        };
        core.batches += 1;
        core.counters.appends += 1;
        core.counters.records += u64::from(batch.count);
        core.counters.payload_bytes += batch.payload_len;
        self.end.store(core.next.0, Ordering::Release);
        let offset = at + (BATCH_HEADER_BYTES + RECORD_HEADER_BYTES) as u32;
        let payload_at = LogPosition { generation: core.active.key.generation, offset };
        *appended = Appended { first, next: core.next, payload_at };
        Ok(core)
    }

    /// Takes the lock that gives the writer role. Returns an error if the log has failed or is closed.
    pub fn writable_core(&self) -> Result<MutexGuard<'_, Core>, AppendError> {
        let core = self.core();
        self.check_writable()?;
        Ok(core)
    }

    /// Continues in a new segment. Releases the lock while it waits for an empty segment file.
    pub fn roll<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        purpose: Purpose,
    ) -> Result<MutexGuard<'a, Core>, AppendError> {
        if core.unsynced.len() >= MAX_UNSYNCED_SEGMENTS {
            let next = core.next;
            // The durable bound can already be beyond `next` while a footer is not synced, so this forces a
            // sync.
            self.sync_files(core, next)?;
            return self.writable_core();
        }
        if let Some(prepared) = self.spares.take(purpose) {
            core.switch(prepared, self);
            self.syncer.due_now();
            return Ok(core);
        }
        drop(core);
        self.wait_for_spare(purpose)?;
        self.writable_core()
    }

    fn wait_for_spare(&self, purpose: Purpose) -> Result<(), AppendError> {
        match self.spares.wait(purpose, SPARE_PATIENCE) {
            Ok(()) => Ok(()),
            Err(NoSpare::Failed(fault)) if fault.is_full() => {
                let (free_bytes, _) = self.spares.look();
                Err(AppendError::DiskFull { free_bytes, reserve_bytes: self.options.reserve_bytes })
            }
            Err(NoSpare::Failed(fault)) => {
                Err(AppendError::NoSegment { waited: Duration::ZERO, reason: Some(fault.to_string()) })
            }
            Err(NoSpare::TimedOut) => Err(AppendError::NoSegment { waited: SPARE_PATIENCE, reason: None }),
            Err(NoSpare::Stopped) => Err(AppendError::Closed),
        }
    }
}
