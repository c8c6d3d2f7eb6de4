//! Finds the batches of one stream that lie in one log segment, for a walk (a search of the segment for live bytes).
//!
//! An append in the log does not contain its offsets, so a walk finds its batch by its time: the batches of a stream
//! are in the order of their times. A window is the result of one such search: all batches of a span of time. A walk
//! reads records in order, so one search serves many records of a stream, live or dead.
//!
//! Invariant: a window contains all batches that were appended in its span and lay in the segment when it was made. No
//! batch can be added later, because a segment that is walked is sealed and its entries are applied. If a batch is
//! removed later, the move that copies it has no effect.

use thalweg_state::{
    machine::{Machine, StreamReadError},
    streams::BatchRef,
};
use thalweg_types::{BlobRef, Generation, LogPosition, Offset, SpaceTime, StreamId};

use crate::error::WriteError;

/// Maximum number of batches of a stream that are all read in one step instead of being searched by time. A segment of
/// many small streams has few batches of each stream, for which searching by time takes longer.
const FEW_BATCHES: usize = 32;
/// Number of batches that a search for a stream's batches reads at a time.
const PAGE_BATCHES: usize = 256;
/// Cost of a search by time, or of reading a page of batches, in state lookups, which the mover limits in each round.
const LOOKUPS_PER_SEARCH: u64 = 10;

/// All batches of a stream that lie in one log segment and were appended between two times.
#[derive(Debug)]
pub(super) struct Window {
    first_time: SpaceTime,
    /// Latest append time, inclusive, up to which this search result has all batches.
    last_time: SpaceTime,
    /// Batches sorted by their position in the segment. They may include batches appended after `last_time`.
    batches: Vec<BatchRef>,
    /// Number of lookups in the state that building the window took.
    lookups: u64,
}

impl Default for Window {
    /// Creates a window (result of a search for batches) without batches, which covers no span of time.
    fn default() -> Self {
        Self { first_time: SpaceTime(1), last_time: SpaceTime(0), batches: Vec::new(), lookups: 0 }
    }
}

impl Window {
    fn whole(batches: Vec<BatchRef>) -> Self {
        Self::new(SpaceTime(0), SpaceTime(u64::MAX), batches, 0)
    }

    fn new(first_time: SpaceTime, last_time: SpaceTime, mut batches: Vec<BatchRef>, lookups: u64) -> Self {
        batches.sort_unstable_by_key(|batch| batch.blob.offset);
        batches.shrink_to_fit();
        Self { first_time, last_time, batches, lookups }
    }

    /// Builds a window (search result) with all batches that the stream has in the segment; `None` if the whole stream
    /// has more than [`FEW_BATCHES`] batches.
    pub(super) fn whole_stream(
        machine: &Machine,
        stream: StreamId,
        segment: Generation,
    ) -> Result<Option<Self>, WriteError> {
        let Some(info) = machine.stream(stream) else { return Ok(Some(Self::whole(Vec::new()))) };
        let mut found = match machine.batches_from(stream, info.start, FEW_BATCHES + 1, u64::MAX) {
            Ok(found) => found.batches,
            Err(StreamReadError::Machine(error)) => return Err(failed(&error)),
            // The stream was just trimmed or deleted.
            Err(_) => return Ok(None),
        };
        if found.len() > FEW_BATCHES {
            return Ok(None);
        }
        found.retain(|batch| batch.blob.generation == segment);
        Ok(Some(Self::whole(found)))
    }

    /// Builds a window (search result) of the stream's batches in the segment that were appended at or after `time`.
    pub(super) fn from_time(
        machine: &Machine,
        stream: StreamId,
        segment: Generation,
        time: SpaceTime,
    ) -> Result<Self, WriteError> {
        let mut from = match machine.offset_at_or_after(stream, time) {
            Ok(from) => from,
            Err(StreamReadError::NoSuchStream(_)) => return Ok(Self::whole(Vec::new())),
            Err(error) => return Err(failed(&error)),
        };
        let (mut batches, mut lookups) = (Vec::new(), LOOKUPS_PER_SEARCH);
        let last_time = loop {
            lookups += LOOKUPS_PER_SEARCH;
            let page = match machine.batches_from(stream, from, PAGE_BATCHES, u64::MAX) {
                Ok(page) => page,
                // The stream was trimmed during the search.
                Err(StreamReadError::Trimmed { start }) if start > from => {
                    from = start;
                    continue;
                }
                Err(StreamReadError::NoSuchStream(_)) => return Ok(Self::whole(Vec::new())),
                Err(error) => return Err(failed(&error)),
            };
            batches.extend(page.batches.iter().filter(|batch| batch.blob.generation == segment));
            match page.batches.last() {
                // The batches after this one have its time or a later time.
                Some(last) if last.end() < page.next && last.time > time => break SpaceTime(last.time.0 - 1),
                Some(last) if last.end() < page.next => from = last.end(),
                _ => break SpaceTime(u64::MAX),
            }
        };
        Ok(Self::new(time, last_time, batches, lookups))
    }

    /// Returns true if this search result contains all batches of the stream and segment that were appended at `time`.
    pub(super) fn covers(&self, time: SpaceTime) -> bool {
        self.first_time <= time && time <= self.last_time
    }

    /// Returns the cost of building this window, as a number of lookups in the state. Later calls return 0, so that the
    /// caller counts the cost once.
    pub(super) fn take_lookups(&mut self) -> u64 {
        std::mem::take(&mut self.lookups)
    }

    /// Returns true if this search result contains all batches that the stream has in the segment.
    pub(super) fn is_whole(&self) -> bool {
        self.covers(SpaceTime(0)) && self.covers(SpaceTime(u64::MAX))
    }

    /// Returns the batch that begins at position `at` of the segment; `None` if this search result has none.
    pub(super) fn at(&self, at: LogPosition) -> Option<BatchRef> {
        let found = self.batches.binary_search_by_key(&at.offset, |batch| batch.blob.offset).ok()?;
        Some(self.batches[found]).filter(|batch| lies_at(&batch.blob, at))
    }
}

/// Returns the readable batch of a stream that contains an offset; `None` if there is no such batch.
pub(super) fn batch_with(machine: &Machine, stream: StreamId, offset: Offset) -> Result<Option<BatchRef>, WriteError> {
    let one_from = |from| match machine.batches_from(stream, from, 1, u64::MAX) {
        Ok(found) => Ok(Ok(found.batches.first().copied())),
        Err(StreamReadError::Machine(error)) => Err(failed(&error)),
        Err(other) => Ok(Err(other)),
    };
    match one_from(offset)? {
        Ok(found) => Ok(found),
        // The batch that contains the stream's start may begin below it. Such a batch is live.
        Err(StreamReadError::Trimmed { start }) if start > offset => {
            Ok(one_from(start)?.ok().flatten().filter(|found| found.first <= offset))
        }
        Err(_) => Ok(None),
    }
}

pub(super) fn lies_at(blob: &BlobRef, at: LogPosition) -> bool {
    blob.generation == at.generation && blob.offset == at.offset
}

pub(super) fn failed(error: &dyn std::error::Error) -> WriteError {
    WriteError::StateFailed { reason: format!("maintenance: {error}") }
}
