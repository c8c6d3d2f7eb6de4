//! Getting log space back: which segments can be freed, and copying forward what keeps others.
//!
//! A segment that the log calls freeable (released by the state, below the history floor; on a full disk also above it, as
//! many of the oldest as it takes until new data is taken again) may still be
//! pointed into by stream batches and large values. Stream bytes are counted exactly by the state.
//! Values are not, because a blind overwrite reads nothing: so a segment with values is walked, and each
//! value is looked up. When little of a segment is live, those bytes are copied forward, and the segment
//! is freed once the state has persisted past the copies. Nothing else is remembered: after a crash the
//! same segments are found again.
//!
//! Invariant: a segment is freed only if a walk found nothing live in it, or the state's figures say that
//! nothing points into it; new pointers into a sealed segment cannot appear. Whatever made it so (a trim, an
//! overwrite) is durable by then: else a power loss would bring back pointers into a segment that is gone.

use std::collections::{BTreeMap, HashMap, HashSet, hash_map::Entry};

use thalweg_log::{LogRecord, RECORD_HEADER_BYTES, RecordKind, SegmentInfo, format::BATCH_HEADER_BYTES};
use thalweg_state::{
    keyspaces::Snapshot,
    liveness::Liveness,
    machine::{Moved, StreamReadError},
    streams::BatchRef,
};
use thalweg_types::{
    BlobRef, Generation, Index, KeyspaceId, LogPosition, Lsn, Offset, SpaceTime, StreamId, Term,
    command::{Command, Commands, Compacted, Move, MoveTarget, Write},
    limits::MIN_INLINE_VALUE_BYTES,
};

use crate::{database::Inner, error::WriteError, maintenance::Maintenance};

/// A segment is copied forward only if at most this part of it is live, in percent: copying more costs
/// more writing than the space is worth.
const MAX_LIVE_PERCENT: u64 = 50;
/// What a copy takes in the log beside what the move says: small records weigh as much again, and a segment full of
/// them is not to be copied for ever because their bytes alone are less than half of it.
const COPY_BYTES: u64 = (BATCH_HEADER_BYTES + RECORD_HEADER_BYTES) as u64;
/// The same of a batch, with what the move says of it.
const BATCH_COPY_BYTES: u64 = COPY_BYTES + 40;
/// Segments that one round walks at most.
const WALKS_PER_ROUND: usize = 4;
/// Records after which a round begins no further walk: each may need a look at the state, so a segment of small ones
/// takes much longer than one of large ones. Bounds how long a round keeps the rest of maintenance waiting, to this and
/// what one segment holds.
const RECORDS_PER_ROUND: u64 = 100_000;
/// How often a segment is walked at once if something in it was overwritten just before it was moved.
const WALKS_PER_SEGMENT: usize = 3;

/// Batches up to which a walk looks at all of a stream at once, and then knows of each of its records whether it is
/// live. A segment of many small streams has few of each, and looking for every one by itself takes much longer.
const FEW_BATCHES: usize = 32;
/// Keys of which a walk remembers where their versions lie.
const MAX_KNOWN_KEYS: usize = 4096;

/// What is known of a segment that could not be freed.
#[derive(Clone, Copy, Debug)]
struct Seen {
    liveness: Liveness,
    /// The log's end then: values are overwritten only by new records.
    end: Lsn,
    /// Set when everything live was copied forward: free when the state has persisted this.
    drained_at: Option<Lsn>,
    /// In the last round.
    last: Liveness,
}

/// Remembers what it saw, so that a segment is not walked every round.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    seen: HashMap<Generation, Seen>,
}

/// Bytes that something still points at, ready to be copied forward.
struct Live {
    bytes: u64,
    payload: Vec<u8>,
}

impl Mover {
    pub(crate) fn round(&mut self, inner: &Inner, done: &mut Maintenance) -> Result<(), WriteError> {
        let now = inner.open.solo.now();
        let mut freeable = inner.open.log.freeable(now);
        let below_floor = freeable.len();
        // A full disk gives up history, the oldest first, as far as it is short of bytes.
        let mut short_bytes = inner.open.log.short_bytes();
        if short_bytes > 0 {
            freeable.extend(inner.open.log.kept_for_history(now));
        }
        if freeable.is_empty() {
            return Ok(());
        }
        let liveness = current_liveness(inner);
        self.seen.retain(|generation, _| freeable.iter().any(|segment| segment.generation == *generation));
        let (mut walks, mut records) = (0, 0);
        let mut free = Vec::new();
        for (number, segment) in freeable.into_iter().enumerate() {
            if number >= below_floor && short_bytes == 0 {
                break;
            }
            let live = liveness.get(&segment.generation).copied().unwrap_or_default();
            if live.bytes() == 0 || self.is_drained(inner, &segment) {
                short_bytes = short_bytes.saturating_sub(inner.options.segment_bytes.into());
                free.push(segment);
                continue;
            }
            let may_walk = walks < WALKS_PER_ROUND && records < RECORDS_PER_ROUND;
            if may_walk && self.worth_a_walk(inner, &segment, live) {
                walks += 1;
                records += segment.next.0 - segment.first.0;
                self.walk(inner, &segment, live, done)?;
            }
            if let Some(seen) = self.seen.get_mut(&segment.generation) {
                seen.last = live;
            }
        }
        if !free.is_empty()
            && let Some(_held) = inner.snapshots.may_free(inner.is_disk_full())
        {
            self.free(inner, &free, done)?;
        }
        Ok(())
    }

    /// What made the segments free, and up to which entry the log is gone, is durable before they are.
    fn free(&mut self, inner: &Inner, segments: &[SegmentInfo], done: &mut Maintenance) -> Result<(), WriteError> {
        note_purged(inner, segments)?;
        inner.open.log.sync()?;
        for segment in segments {
            inner.open.log.free(segment.generation)?;
            inner.open.machine.forget_segment(segment.generation);
            self.seen.remove(&segment.generation);
            done.freed_segments += 1;
        }
        Ok(())
    }

    /// Whether a segment could be freed if the state were persisted now.
    pub(crate) fn waits_for_state(&self) -> bool {
        self.seen.values().any(|seen| seen.drained_at.is_some())
    }

    fn is_drained(&self, inner: &Inner, segment: &SegmentInfo) -> bool {
        let persisted = inner.open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        self.seen.get(&segment.generation).and_then(|seen| seen.drained_at).is_some_and(|lsn| lsn <= persisted)
    }

    /// Too many live stream bytes settle it; else look again only after something may have changed.
    fn worth_a_walk(&self, inner: &Inner, segment: &SegmentInfo, live: Liveness) -> bool {
        let copied = live.stream_bytes + live.batches * BATCH_COPY_BYTES;
        if copied * 100 > u64::from(segment.bytes) * MAX_LIVE_PERCENT {
            return false;
        }
        match self.seen.get(&segment.generation) {
            None => true,
            Some(seen) if seen.drained_at.is_some() => false,
            // While streams are being reclaimed, there is less every round: wait until that is over, or half is gone.
            Some(seen) if seen.liveness != live => seen.last == live || live.bytes() <= seen.liveness.bytes() / 2,
            // Values die by being overwritten: wait for as many records as the segment holds.
            Some(seen) => inner.open.log.end().0 - seen.end.0 > segment.next.0 - segment.first.0,
        }
    }

    fn walk(
        &mut self,
        inner: &Inner,
        segment: &SegmentInfo,
        liveness: Liveness,
        done: &mut Maintenance,
    ) -> Result<(), WriteError> {
        let mut seen = Seen { liveness, end: inner.open.log.end(), drained_at: None, last: liveness };
        let most = u64::from(segment.bytes) * MAX_LIVE_PERCENT / 100;
        for _ in 0..WALKS_PER_SEGMENT {
            let Some(live) = live_bytes(inner, segment, most)? else { break };
            let mut void = false;
            for live in &live {
                match inner.open.solo.relocate(&live.payload)? {
                    Moved::Applied => done.moved_bytes += live.bytes,
                    Moved::Void | Moved::Forgot { .. } => void = true,
                }
            }
            // A void copy was overwritten meanwhile, or is still wanted where it is: only a walk can tell.
            if !void {
                // The copies are in the log; the source must outlive a crash that loses them.
                inner.open.log.sync()?;
                seen.drained_at = Some(inner.open.machine.applied().lsn);
                break;
            }
        }
        self.seen.insert(segment.generation, seen);
        Ok(())
    }
}

/// The state's figures by segment. A segment freed just before a crash may have kept its row: it goes now.
fn current_liveness(inner: &Inner) -> BTreeMap<Generation, Liveness> {
    let there: HashSet<_> = inner.open.log.segments().into_iter().map(|segment| segment.generation).collect();
    let rows = inner.open.machine.liveness().into_iter();
    let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = rows.partition(|(generation, _)| there.contains(generation));
    gone.into_keys().for_each(|generation| inner.open.machine.forget_segment(generation));
    kept
}

/// Everything live in a segment; `None` if copies of it would take more than `most` bytes.
fn live_bytes(inner: &Inner, segment: &SegmentInfo, most: u64) -> Result<Option<Vec<Live>>, WriteError> {
    let snapshot = inner.open.machine.snapshot();
    let generation = segment.generation;
    let mut walk = Walk {
        inner,
        generation,
        snapshot,
        histories: HashMap::new(),
        versions: HashMap::new(),
        streams: HashMap::new(),
        cursors: HashMap::new(),
        live: Vec::new(),
        total: 0,
    };
    let records = inner.open.log.segment_records(segment.generation).map_err(|error| failed(&error))?;
    for record in records {
        walk.record(&record.map_err(|error| failed(&error))?)?;
        if walk.total > most {
            return Ok(None);
        }
    }
    Ok(Some(walk.live))
}

/// A walk over the records of one segment.
struct Walk<'a> {
    inner: &'a Inner,
    generation: Generation,
    /// All values are looked up in one view: one that was superseded while the walk went on is found where it was
    /// then, or where it went.
    snapshot: Snapshot,
    /// Which keyspaces have versions of their keys.
    histories: HashMap<KeyspaceId, bool>,
    /// Of keys in keyspaces with history: where in the segment values of their versions lie. Forgotten when there
    /// are too many.
    versions: HashMap<(KeyspaceId, Vec<u8>), BTreeMap<u32, BlobRef>>,
    /// What of each stream lies in the segment; `None` if it has more than [`FEW_BATCHES`].
    streams: HashMap<StreamId, Option<Vec<BatchRef>>>,
    /// Per stream: the offset after the last batch found, where the next one is looked for first.
    cursors: HashMap<StreamId, Offset>,
    live: Vec<Live>,
    /// Bytes that copies of it would take.
    total: u64,
}

impl Walk<'_> {
    fn record(&mut self, record: &LogRecord) -> Result<(), WriteError> {
        let at = |offset: usize| LogPosition {
            generation: record.payload_at.generation,
            offset: record.payload_at.offset.saturating_add(u32::try_from(offset).unwrap_or(u32::MAX)),
        };
        match record.kind {
            RecordKind::Entry => {
                for (command_at, bytes) in Commands::new(&record.payload).flatten() {
                    let Ok(command) = Command::decode(bytes) else { continue };
                    for write in command.writes() {
                        match write {
                            Write::Put { keyspace, key, value, value_at }
                            | Write::PutUntil { keyspace, key, value, value_at, .. }
                                if value.len() > MIN_INLINE_VALUE_BYTES =>
                            {
                                self.value(keyspace, key, value, at(command_at + value_at))?;
                            }
                            Write::Append { stream, batch, batch_at, .. } => {
                                self.batch(stream, batch, record.time, at(command_at + batch_at))?;
                            }
                            _ => {}
                        }
                    }
                }
            }
            RecordKind::Move => {
                let Ok(moved) = Move::decode(&record.payload) else { return Ok(()) };
                match moved.target {
                    MoveTarget::Value { keyspace, key } => {
                        self.value(keyspace, key, moved.bytes, at(moved.bytes_at))?;
                    }
                    MoveTarget::Batch { stream, first } | MoveTarget::Compacted(Compacted { stream, first, .. }) => {
                        if self.batch_of_few(stream, moved.bytes, at(moved.bytes_at))? == Known::Yes {
                            return Ok(());
                        }
                        self.batch_at(stream, first, moved.bytes, at(moved.bytes_at))?;
                    }
                    MoveTarget::Cleaned { .. } | MoveTarget::Reclaimed { .. } | MoveTarget::HistoryFloor { .. } => {}
                }
            }
            RecordKind::Membership
            | RecordKind::Vote
            | RecordKind::Truncate
            | RecordKind::Purged
            | RecordKind::Blank => {}
        }
        Ok(())
    }

    fn value(&mut self, keyspace: KeyspaceId, key: &[u8], value: &[u8], at: LogPosition) -> Result<(), WriteError> {
        let own = self.snapshot.value_blob(keyspace, key).map_err(|error| failed(&error))?;
        let found = match own.filter(|blob| lies_at(blob, at)) {
            Some(own) => Some(own),
            None => self.version(keyspace, key, at)?,
        };
        if let Some(blob) = found {
            self.keep(&blob, &MoveTarget::Value { keyspace, key }, value);
        }
        Ok(())
    }

    /// The value of the version of a key that lies at a place of the segment.
    fn version(&mut self, keyspace: KeyspaceId, key: &[u8], at: LogPosition) -> Result<Option<BlobRef>, WriteError> {
        if !self.has_versions(keyspace)? {
            return Ok(None);
        }
        let of = (keyspace, key.to_vec());
        if let Some(known) = self.versions.get(&of) {
            return Ok(known.get(&at.offset).copied());
        }
        if self.versions.len() >= MAX_KNOWN_KEYS {
            self.versions.clear();
        }
        let blobs = self.snapshot.version_blobs(keyspace, key).map_err(|error| failed(&error))?;
        let here = blobs.into_iter().filter(|blob| blob.generation == self.generation);
        let known: BTreeMap<_, _> = here.map(|blob| (blob.offset, blob)).collect();
        let found = known.get(&at.offset).copied();
        self.versions.insert(of, known);
        Ok(found)
    }

    fn has_versions(&mut self, keyspace: KeyspaceId) -> Result<bool, WriteError> {
        if let Some(&known) = self.histories.get(&keyspace) {
            return Ok(known);
        }
        let has = self.snapshot.has_versions(keyspace).map_err(|error| failed(&error))?;
        self.histories.insert(keyspace, has);
        Ok(has)
    }

    /// Keeps the batch if it is live, if that is known.
    fn batch_of_few(&mut self, stream: StreamId, batch: &[u8], at: LogPosition) -> Result<Known, WriteError> {
        let few = match self.streams.entry(stream) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(unknown) => unknown.insert(few_batches(self.inner, stream, self.generation)?),
        };
        let Some(few) = few else { return Ok(Known::No) };
        if let Some(found) = few.iter().copied().find(|found| lies_at(&found.blob, at)) {
            self.keep(&found.blob, &MoveTarget::Batch { stream, first: found.first }, batch);
        }
        Ok(Known::Yes)
    }

    /// An append's record does not say which offsets it got: the stream's batches are in the order of
    /// their appends, so the next one is mostly the one after the last; else its time leads to it.
    fn batch(&mut self, stream: StreamId, batch: &[u8], time: SpaceTime, at: LogPosition) -> Result<(), WriteError> {
        if self.batch_of_few(stream, batch, at)? == Known::Yes {
            return Ok(());
        }
        if let Some(cursor) = self.cursors.get(&stream).copied()
            && self.batch_at(stream, cursor, batch, at)?
        {
            return Ok(());
        }
        let machine = &self.inner.open.machine;
        let mut from = match machine.offset_at_or_after(stream, time) {
            Ok(from) => from,
            Err(StreamReadError::Machine(error)) => return Err(failed(&error)),
            Err(_) => return Ok(()),
        };
        // A sparse batch may reach over this time from below.
        while let Some(found) = self.lookup(stream, from)?.filter(|found| found.time <= time) {
            if self.batch_at(stream, found.first, batch, at)? {
                break;
            }
            from = found.first.plus(u64::from(found.count));
        }
        Ok(())
    }

    /// Keeps the batch if the stream's batch that holds `offset` is the one at `at`.
    fn batch_at(
        &mut self,
        stream: StreamId,
        offset: Offset,
        batch: &[u8],
        at: LogPosition,
    ) -> Result<bool, WriteError> {
        let Some(found) = self.lookup(stream, offset)?.filter(|found| lies_at(&found.blob, at)) else {
            return Ok(false);
        };
        self.cursors.insert(stream, found.first.plus(u64::from(found.count)));
        self.keep(&found.blob, &MoveTarget::Batch { stream, first: found.first }, batch);
        Ok(true)
    }

    fn lookup(&self, stream: StreamId, offset: Offset) -> Result<Option<BatchRef>, WriteError> {
        match self.inner.open.machine.batches_from(stream, offset, 1, u64::MAX) {
            Ok(found) => Ok(found.batches.first().copied()),
            Err(StreamReadError::Machine(error)) => Err(failed(&error)),
            Err(StreamReadError::Trimmed { start }) if start > offset => {
                self.lookup_partly_trimmed(stream, start, offset)
            }
            Err(_) => Ok(None),
        }
    }

    /// The batch that holds the start offset may begin below it, and is live.
    fn lookup_partly_trimmed(
        &self,
        stream: StreamId,
        start: Offset,
        offset: Offset,
    ) -> Result<Option<BatchRef>, WriteError> {
        match self.inner.open.machine.batches_from(stream, start, 1, u64::MAX) {
            Ok(found) => Ok(found.batches.first().copied().filter(|found| found.first <= offset)),
            Err(StreamReadError::Machine(error)) => Err(failed(&error)),
            Err(_) => Ok(None),
        }
    }

    fn keep(&mut self, from: &BlobRef, target: &MoveTarget<'_>, bytes: &[u8]) {
        let mut payload = Vec::with_capacity(bytes.len() + 64);
        Move::encode(&mut payload, from, target, bytes);
        self.total += payload.len() as u64 + COPY_BYTES;
        self.live.push(Live { bytes: u64::from(from.len), payload });
    }
}

/// Whether it is known of all of a stream's batches what of them lies in the segment.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Known {
    Yes,
    No,
}

/// Those of a stream's batches that lie in a segment, if it has few. No new ones can appear in a segment that is
/// sealed; one that goes while the walk is on makes its copy void.
fn few_batches(inner: &Inner, stream: StreamId, segment: Generation) -> Result<Option<Vec<BatchRef>>, WriteError> {
    let machine = &inner.open.machine;
    let Some(info) = machine.stream(stream) else { return Ok(Some(Vec::new())) };
    let mut found = match machine.batches_from(stream, info.start, FEW_BATCHES + 1, u64::MAX) {
        Ok(found) => found.batches,
        Err(StreamReadError::Machine(error)) => return Err(failed(&error)),
        // Trimmed or deleted just now.
        Err(_) => return Ok(None),
    };
    if found.len() > FEW_BATCHES {
        return Ok(None);
    }
    found.retain(|batch| batch.blob.generation == segment);
    found.shrink_to_fit();
    Ok(Some(found))
}

fn lies_at(blob: &BlobRef, at: LogPosition) -> bool {
    blob.generation == at.generation && blob.offset == at.offset
}

/// Notes in the log up to which entry it will be gone, as a Raft group would: the last entry of the
/// consecutive segments at its beginning that are about to be freed.
fn note_purged(inner: &Inner, segments: &[SegmentInfo]) -> Result<(), WriteError> {
    let log = &inner.open.log;
    let mut start = log.start();
    let mut last = None;
    for segment in segments {
        if segment.first <= start && start < segment.next {
            start = segment.next;
            last = last_entry(inner, segment)?.or(last);
        }
    }
    match last {
        Some((term, index)) => Ok(inner.open.solo.note_purged(term, index)?),
        None => Ok(()),
    }
}

fn last_entry(inner: &Inner, segment: &SegmentInfo) -> Result<Option<(Term, Index)>, WriteError> {
    let mut last = None;
    for record in inner.open.log.segment_records(segment.generation).map_err(|error| failed(&error))? {
        let record = record.map_err(|error| failed(&error))?;
        if matches!(record.kind, RecordKind::Entry | RecordKind::Membership | RecordKind::Blank) {
            last = Some((record.term, record.index));
        }
    }
    Ok(last)
}

fn failed(error: &dyn std::error::Error) -> WriteError {
    WriteError::StateFailed { reason: format!("maintenance: {error}") }
}
