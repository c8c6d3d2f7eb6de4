//! The in-memory handle of a live segment, shared by the writer and the readers, and the table of all live segments.
//!
//! Owns: the in-memory state of a segment, and the return of a freed segment's file for recycling when its last holder
//! drops it. Does not own: the bytes (see `format`), writing (see `writer`).
//!
//! Invariant: bytes below `written` never change while the segment is live, so readers need no lock.

use std::sync::{
    Arc, Mutex, PoisonError, Weak,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering},
};

use thalweg_disk::File;
use thalweg_types::{Generation, Lsn, SpaceTime};

use crate::{
    append_progress::ActiveSegment,
    format::{BATCH_ALIGN, DATA_START, FOOTER_BYTES, SegmentId},
    options::SegmentInfo,
    prepare::{SegmentPool, Slot},
};

/// Distance in bytes between entries of a segment's sparse index. A read that starts at an LSN reads at most
/// this many unneeded bytes.
const INDEX_STEP_BYTES: u32 = 256 * 1024;

/// Values that a reader needs to verify the batches of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentKey {
    pub id: SegmentId,
    pub generation: Generation,
    /// Byte position at which the footer begins; all batches of the segment end before it.
    pub limit: u32,
}

impl SegmentKey {
    pub(crate) fn new(id: SegmentId, generation: Generation, segment_bytes: u32) -> Self {
        Self { id, generation, limit: segment_bytes - FOOTER_BYTES as u32 }
    }
}

const _: () = assert!((FOOTER_BYTES as u32).is_multiple_of(BATCH_ALIGN));

/// Byte position up to which a segment is filled, and the ranges of LSNs and times of its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// Byte position in the segment at which the last complete batch ends.
    pub written: u32,
    /// LSN after the segment's last record.
    pub next: Lsn,
    pub first_time: SpaceTime,
    pub last_time: SpaceTime,
    /// True if the segment has records of kind `Truncate`, which void earlier log entries.
    pub truncates: bool,
}

impl Extent {
    pub(crate) fn empty(first: Lsn) -> Self {
        Self { written: DATA_START, next: first, first_time: SpaceTime(0), last_time: SpaceTime(0), truncates: false }
    }
}

#[derive(Debug)]
pub(crate) struct Segment {
    pub file: Arc<dyn File>,
    /// Path of the segment file, relative to the disk's root.
    pub path: String,
    pub slot: u32,
    pub segment_bytes: u32,
    pub key: SegmentKey,
    /// LSN of the segment's first record.
    pub first: Lsn,
    /// Body checksum of the batch before the segment's first batch.
    pub base_chain: u32,
    written: AtomicU32,
    next: AtomicU64,
    first_time: AtomicU64,
    last_time: AtomicU64,
    truncates: AtomicBool,
    sealed: AtomicBool,
    freed: AtomicBool,
    /// Sparse index: the first LSN and the byte position of some batches, ascending.
    index: Mutex<Vec<(Lsn, u32)>>,
    home: Arc<SegmentPool>,
}

impl Segment {
    pub(crate) fn new(slot: Slot, key: SegmentKey, base: (Lsn, u32), extent: Extent, home: Arc<SegmentPool>) -> Self {
        Self {
            file: slot.file,
            path: slot.path,
            slot: slot.slot,
            segment_bytes: slot.segment_bytes,
            key,
            first: base.0,
            base_chain: base.1,
            written: AtomicU32::new(extent.written),
            next: AtomicU64::new(extent.next.0),
            first_time: AtomicU64::new(extent.first_time.0),
            last_time: AtomicU64::new(extent.last_time.0),
            truncates: AtomicBool::new(extent.truncates),
            sealed: AtomicBool::new(false),
            freed: AtomicBool::new(false),
            index: Mutex::new(Vec::new()),
            home,
        }
    }

    /// Byte position in the segment at which the last complete batch ends; readers may read the bytes below it.
    #[inline]
    pub(crate) fn written(&self) -> u32 {
        self.written.load(Ordering::Acquire)
    }

    #[inline]
    pub(crate) fn next(&self) -> Lsn {
        Lsn(self.next.load(Ordering::Acquire))
    }

    pub(crate) fn extent(&self) -> Extent {
        // Loads `written` first. A reader that sees a value of `written` also sees the matching or later values of the
        // other fields.
        let written = self.written();
        Extent {
            written,
            next: self.next(),
            first_time: SpaceTime(self.first_time.load(Ordering::Relaxed)),
            last_time: SpaceTime(self.last_time.load(Ordering::Relaxed)),
            truncates: self.holds_truncations(),
        }
    }

    /// Records that the segment now has records of kind `Truncate`. Only the holder of the writer role calls
    /// this.
    pub(crate) fn note_truncations(&self) {
        self.truncates.store(true, Ordering::Relaxed);
    }

    pub(crate) fn holds_truncations(&self) -> bool {
        self.truncates.load(Ordering::Relaxed)
    }

    /// Makes a batch visible to readers; it was written at byte positions `at` to `end`. Only the holder of
    /// the writer role calls this.
    #[inline]
    pub(crate) fn publish(&self, at: u32, end: u32, first: Lsn, next: Lsn, times: Option<(SpaceTime, SpaceTime)>) {
        debug_assert_eq!(at, self.written.load(Ordering::Relaxed));
        if let Some((first_time, last_time)) = times {
            if self.next.load(Ordering::Relaxed) == self.first.0 {
                self.first_time.store(first_time.0, Ordering::Relaxed);
            }
            if last_time.0 > self.last_time.load(Ordering::Relaxed) {
                self.last_time.store(last_time.0, Ordering::Relaxed);
            }
        }
        if end / INDEX_STEP_BYTES != at / INDEX_STEP_BYTES {
            self.index_batch(first, at);
        }
        self.next.store(next.0, Ordering::Release);
        self.written.store(end, Ordering::Release);
    }

    fn index_batch(&self, first: Lsn, at: u32) {
        let mut index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        if index.last().is_none_or(|last| last.1 < at) {
            index.push((first, at));
        }
    }

    /// Reports to the thread that prepares segments that the writer appends to this segment from now on.
    pub(crate) fn begin_filling(self: &Arc<Self>) {
        let active: Weak<Self> = Arc::downgrade(self);
        self.home.progress.begin_segment(active, self.segment_bytes.into());
    }

    /// Returns the byte position of a batch at or before the batch that contains `lsn`.
    pub(crate) fn seek(&self, lsn: Lsn) -> u32 {
        let index = self.index.lock().unwrap_or_else(PoisonError::into_inner);
        match index.partition_point(|entry| entry.0 <= lsn) {
            0 => DATA_START,
            after => index[after - 1].1,
        }
    }

    /// Installs a sparse index that was built while the segment file was read.
    pub(crate) fn install_index(&self, index: Vec<(Lsn, u32)>) {
        *self.index.lock().unwrap_or_else(PoisonError::into_inner) = index;
    }

    /// Marks the newest segment of a reopened log as not sealed, because the writer continues in it.
    pub(crate) fn reopen(&self) {
        self.sealed.store(false, Ordering::Release);
    }

    pub(crate) fn seal(&self) {
        self.sealed.store(true, Ordering::Release);
    }

    pub(crate) fn is_sealed(&self) -> bool {
        self.sealed.load(Ordering::Acquire)
    }

    /// Frees the segment: when its last holder drops it, its file is returned for recycling.
    pub(crate) fn release_file(&self) {
        self.freed.store(true, Ordering::Release);
    }

    pub(crate) fn info(&self) -> SegmentInfo {
        let extent = self.extent();
        SegmentInfo {
            generation: self.key.generation,
            file: self.path.clone(),
            first: self.first,
            next: extent.next,
            first_time: extent.first_time,
            last_time: extent.last_time,
            bytes: extent.written - DATA_START,
            active: !self.is_sealed(),
        }
    }
}

impl ActiveSegment for Segment {
    fn size_and_written(&self) -> (u64, u64) {
        (self.segment_bytes.into(), self.written().into())
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        if *self.freed.get_mut() {
            self.home.return_file(Slot {
                file: Arc::clone(&self.file),
                path: std::mem::take(&mut self.path),
                slot: self.slot,
                segment_bytes: self.segment_bytes,
            });
        }
    }
}

/// The live segments, oldest first; the last one is active. Never empty.
#[derive(Clone, Debug)]
pub(crate) struct Table(pub Vec<Arc<Segment>>);

impl Table {
    pub(crate) fn find(&self, generation: Generation) -> Option<&Arc<Segment>> {
        let at = self.0.binary_search_by_key(&generation, |segment| segment.key.generation).ok()?;
        Some(&self.0[at])
    }

    /// Returns the newest segments whose records follow each other without a gap up to the end of the log.
    pub(crate) fn contiguous(&self) -> &[Arc<Segment>] {
        let mut from = self.0.len() - 1;
        while from > 0 && self.0[from - 1].next() == self.0[from].first {
            from -= 1;
        }
        &self.0[from..]
    }

    pub(crate) fn with(&self, segment: Arc<Segment>) -> Self {
        let mut segments = Vec::with_capacity(self.0.len() + 1);
        segments.extend(self.0.iter().cloned());
        segments.push(segment);
        Self(segments)
    }

    pub(crate) fn without(&self, generation: Generation) -> Self {
        Self(self.0.iter().filter(|segment| segment.key.generation != generation).cloned().collect())
    }
}
