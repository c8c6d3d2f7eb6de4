//! Getting log space back: which segments can be freed, and copying forward what keeps others.
//!
//! A segment that the log calls freeable (released by the state, below the history floor; on a full disk also above
//! it, as many of the oldest as it takes until new data is taken again) may still be pointed into by stream batches
//! and large values. The state counts both, but a count only decides which segments are looked at first: a segment is
//! freed after a walk over its records has found nothing live in it (`walk.rs`). When little of a segment is live, those
//! bytes are copied forward, and the segment is freed once the state has persisted past the copies. After a crash the
//! same segments are walked again.
//!
//! A walk reads the segment once: 20 ms for 64 MiB of large records in the page cache, 0.2 s for small ones. It takes the
//! place of the read that freeing needs anyway, to find the last entry of the segments at the begin of the log. One that
//! found nothing live is remembered while the segment is freeable; after the others a segment is left alone for a while
//! (`seen.rs`).
//!
//! A round frees what is known to be free, then walks, then frees what that found. Segments in which the state counts live
//! bytes take turns over the rounds, so that live ones do not hold up dead ones behind them. Nothing about one segment holds
//! up the others: one that cannot be read, or whose bytes are too large for a record of this node, is kept; after a copy
//! that failed otherwise the round copies no more.
//!
//! Invariants:
//! - a segment is freed only if a walk found nothing live in it, or everything live was copied forward. New pointers
//!   into it cannot appear: all of its entries are applied, and a pointer only ever goes to bytes of the record that is
//!   being applied, or stays where it was;
//! - everything that made it so (a trim, an overwrite) is durable by then: else a power loss would bring back pointers
//!   into a segment that is gone;
//! - where a pointer went away that commands follow while they are applied (a value), the state has persisted past that:
//!   else a replay would come across the command that followed it.

mod seen;
mod walk;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_log::{AppendError, RECORD_HEADER_BYTES, SegmentInfo, format::BATCH_HEADER_BYTES};
use thalweg_replica::ProposeError;
use thalweg_state::{machine::Moved, segments::Liveness};
use thalweg_types::{Generation, Lsn};

use self::{
    seen::{LogNow, Seen},
    walk::{Live, WalkError, Walked, last_entry, walk},
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
/// Segments that the state counts live bytes in and one round walks, at most: their walks write copies.
const COUNTED_WALKS_PER_ROUND: usize = 4;
/// Looks at the state after which a round begins no further such walk: they take much longer than reading does.
const COUNTED_LOOKUPS_PER_ROUND: u64 = 100_000;
/// Bytes after which a round begins no walk at all, and looks at the state. What nothing is counted in is mostly free,
/// and space must come back as fast as writers take it; a round comes every second. Both bound how long a round keeps the
/// rest of maintenance waiting: to a few seconds after gigabytes became free at once, 0.2 s for a segment of 64 MiB.
const WALKED_BYTES_PER_ROUND: u64 = 1 << 30;
/// See [`WALKED_BYTES_PER_ROUND`].
const LOOKUPS_PER_ROUND: u64 = 1_000_000;
/// How often a segment is walked at once if something in it was overwritten just before it was moved.
const WALKS_PER_SEGMENT: usize = 3;

/// Remembers what it saw, so that a segment is not walked every round.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    seen: HashMap<Generation, Seen>,
    /// The last segment walked of those that the state counts live bytes in: the next round goes on after it.
    last_counted: Turn,
    /// The same of the history that a full disk gives up.
    last_of_history: Turn,
}

/// After which segment those with counted bytes go on.
type Turn = Option<Generation>;

/// Segments that may be freed when nothing points into them, oldest first.
struct Candidates {
    /// Below the history floor.
    past: Vec<SegmentInfo>,
    /// Above it; none unless the disk is full.
    kept: Vec<SegmentInfo>,
}

impl Candidates {
    /// A full disk gives up history, the oldest first, as far as it is short of bytes.
    fn of(inner: &Inner, short_bytes: u64) -> Self {
        let now = inner.open.solo.now();
        let past = inner.open.log.freeable(now);
        let kept = if short_bytes > 0 { inner.open.log.kept_for_history(now) } else { Vec::new() };
        Self { past, kept }
    }

    fn generations(&self) -> HashSet<Generation> {
        self.past.iter().chain(&self.kept).map(|segment| segment.generation).collect()
    }
}

/// A round under way.
struct Round<'a> {
    inner: &'a Inner,
    log: LogNow,
    /// What the state counts as live in the segments that it has ever pointed into.
    rows: BTreeMap<Generation, Liveness>,
    /// Bytes that the disk is short of, but for what was freed.
    short_bytes: u64,
    /// What was walked so far: segments with counted bytes, and in all.
    counted: usize,
    walked_bytes: u64,
    lookups: u64,
    /// The first error of a walk or a copy: nothing more is copied.
    failure: Option<WriteError>,
}

impl<'a> Round<'a> {
    fn new(inner: &'a Inner, short_bytes: u64) -> Self {
        let log = &inner.open.log;
        let held_bytes = log.segments().iter().map(|segment| u64::from(segment.bytes)).sum();
        let now = LogNow { end: log.end(), written_bytes: log.stats().bytes, held_bytes, is_full: short_bytes > 0 };
        let rows = current_liveness(inner);
        Self { inner, log: now, rows, short_bytes, counted: 0, walked_bytes: 0, lookups: 0, failure: None }
    }

    fn row(&self, segment: &SegmentInfo) -> Option<Liveness> {
        self.rows.get(&segment.generation).copied()
    }

    fn is_counted(&self, segment: &SegmentInfo) -> bool {
        self.row(segment).unwrap_or_default().bytes() > 0
    }

    fn allows_walk(&self, segment: &SegmentInfo) -> bool {
        let is_counted = self.is_counted(segment);
        let most = if is_counted { COUNTED_LOOKUPS_PER_ROUND } else { LOOKUPS_PER_ROUND };
        self.walked_bytes < WALKED_BYTES_PER_ROUND
            && self.lookups < most
            && !(is_counted && self.counted >= COUNTED_WALKS_PER_ROUND)
    }
}

/// Why the walks over a segment ended early.
enum Stopped {
    Walk(WalkError),
    /// Something live was found that could not be copied, now or earlier in the round.
    Copy(Option<WriteError>),
}

impl From<WalkError> for Stopped {
    fn from(error: WalkError) -> Self {
        Self::Walk(error)
    }
}

/// How copying forward went.
enum Copied {
    All,
    /// Some were overwritten meanwhile, or are still wanted where they are: only a walk can tell.
    NotAll,
    /// A record of this node has no room for one of them.
    TooLarge,
}

impl Mover {
    pub(crate) fn round(&mut self, inner: &Inner, done: &mut Maintenance) -> Result<(), WriteError> {
        let short_bytes = inner.open.log.short_bytes();
        let mut candidates = Candidates::of(inner, short_bytes);
        let generations = candidates.generations();
        self.seen.retain(|generation, _| generations.contains(generation));
        if generations.is_empty() {
            return Ok(());
        }
        let mut round = Round::new(inner, short_bytes);
        // Before the walks: copying needs room, and this makes some.
        self.free_known(&mut round, &mut candidates, done)?;
        self.walk_some(&mut round, &candidates, done);
        let freed = self.free_known(&mut round, &mut candidates, done);
        round.failure.map_or(freed, Err)
    }

    /// Frees what is known to be free: all below the history floor, and of the history as much as the disk is short of.
    fn free_known(
        &mut self,
        round: &mut Round<'_>,
        candidates: &mut Candidates,
        done: &mut Maintenance,
    ) -> Result<(), WriteError> {
        let inner = round.inner;
        let free: Vec<_> = candidates.past.extract_if(.., |segment| self.is_free(inner, segment)).collect();
        round.short_bytes = round.short_bytes.saturating_sub(bytes_of(inner, free.len()));
        let of_history = candidates.kept.extract_if(.., |segment| {
            let goes = round.short_bytes > 0 && self.is_free(inner, segment);
            round.short_bytes = round.short_bytes.saturating_sub(bytes_of(inner, goes.into()));
            goes
        });
        let free: Vec<_> = free.into_iter().chain(of_history).collect();
        if !free.is_empty()
            && let Some(_held) = inner.snapshots.may_free(inner.is_disk_full())
        {
            self.free(inner, &free, done)?;
        }
        Ok(())
    }

    /// Walks segments, as far as a round goes: those below the history floor, then history, the oldest first, as far as that
    /// may give the disk what it is short of.
    fn walk_some(&mut self, round: &mut Round<'_>, candidates: &Candidates, done: &mut Maintenance) {
        let mut free = 0;
        for segment in in_turn(round, &candidates.past, self.last_counted) {
            if self.look(round, segment, done) && round.is_counted(segment) {
                self.last_counted = Some(segment.generation);
            }
            free += usize::from(self.is_free(round.inner, segment));
        }
        // On a full disk those below may be walked over and over: history has walks of its own.
        (round.counted, round.lookups) = (0, 0);
        self.last_of_history = self.last_of_history.filter(|_| !candidates.kept.is_empty());
        for segment in in_turn(round, &candidates.kept, self.last_of_history) {
            if bytes_of(round.inner, free) >= round.short_bytes {
                break;
            }
            if self.look(round, segment, done) && round.is_counted(segment) {
                self.last_of_history = Some(segment.generation);
            }
            free += usize::from(self.is_free(round.inner, segment));
        }
    }

    /// Walks a segment if that may bring it closer to being freed; says whether it did.
    fn look(&mut self, round: &mut Round<'_>, segment: &SegmentInfo, done: &mut Maintenance) -> bool {
        let live = round.row(segment).unwrap_or_default();
        let walks = round.allows_walk(segment) && self.worth_a_walk(round.log, segment, live);
        if walks {
            round.counted += usize::from(round.is_counted(segment));
            self.walk(round, segment, done);
        }
        if let Some(seen) = self.seen.get_mut(&segment.generation) {
            seen.last = live;
        }
        walks
    }

    /// What made the segments free, and up to which entry the log is gone, is durable before they are.
    fn free(&mut self, inner: &Inner, segments: &[SegmentInfo], done: &mut Maintenance) -> Result<(), WriteError> {
        self.note_purged(inner, segments)?;
        inner.open.log.sync()?;
        for segment in segments {
            inner.open.log.free(segment.generation)?;
            inner.open.machine.forget_segment(segment.generation);
            self.seen.remove(&segment.generation);
            done.freed_segments += 1;
        }
        Ok(())
    }

    /// Notes in the log up to which entry it will be gone, as a Raft group would: the last one below where the log can be
    /// read in order once the segments are freed. Segments that stay below that, because something live is in them, are
    /// gone for such a reader as well.
    fn note_purged(&self, inner: &Inner, going: &[SegmentInfo]) -> Result<(), WriteError> {
        let (before, segments) = (inner.open.log.start(), inner.open.log.segments());
        let going: HashSet<_> = going.iter().map(|segment| segment.generation).collect();
        let start = start_without(&segments, &going);
        let gone = segments.iter().rev().filter(|segment| before <= segment.first && segment.first < start);
        for segment in gone {
            let known = self.seen.get(&segment.generation).filter(|seen| seen.free_from.is_some());
            let last = match known {
                Some(seen) => seen.last_entry,
                // One that cannot be read: what is known to be gone lies before it.
                None => last_entry(inner, segment.generation).unwrap_or_default(),
            };
            if let Some((term, index)) = last {
                return Ok(inner.open.solo.note_purged(term, index)?);
            }
        }
        Ok(())
    }

    /// Whether a segment could be freed if the state were persisted now.
    pub(crate) fn waits_for_state(&self) -> bool {
        self.seen.values().any(|seen| seen.free_from.is_some_and(|lsn| lsn > Lsn::ZERO))
    }

    fn is_free(&self, inner: &Inner, segment: &SegmentInfo) -> bool {
        let persisted = inner.open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        self.seen.get(&segment.generation).and_then(|seen| seen.free_from).is_some_and(|lsn| lsn <= persisted)
    }

    /// Too many live stream bytes settle it; else look again only after something may have changed.
    fn worth_a_walk(&self, log: LogNow, segment: &SegmentInfo, live: Liveness) -> bool {
        let copied = live.stream_bytes + live.batches * BATCH_COPY_BYTES;
        if copied * 100 > u64::from(segment.bytes) * MAX_LIVE_PERCENT {
            return false;
        }
        self.seen.get(&segment.generation).is_none_or(|seen| seen.is_due(segment, live, log))
    }

    /// Walks a segment, copies forward what is live in it, if that is little, and remembers what it found.
    fn walk(&mut self, round: &mut Round<'_>, segment: &SegmentInfo, done: &mut Maintenance) {
        let row = round.row(segment);
        let mut seen = self.seen.remove(&segment.generation).unwrap_or_default();
        seen.begin(row.unwrap_or_default(), round.log);
        match clear(round, segment, &mut seen, done) {
            Ok(Some(walked)) => seen.set_free(round.inner.open.machine.applied().lsn, row, &walked),
            Ok(None) => seen.keep(),
            Err(Stopped::Walk(WalkError::Unreadable)) => {
                done.unreadable_segments += u64::from(!seen.unreadable);
                seen.unreadable = true;
                seen.keep();
            }
            Err(Stopped::Walk(WalkError::State(error))) => {
                round.failure.get_or_insert(error);
                seen.keep();
            }
            Err(Stopped::Copy(error)) => {
                round.failure = round.failure.take().or(error);
                seen.not_copied = true;
            }
        }
        self.seen.insert(segment.generation, seen);
    }
}

/// Walks a segment until all that is live in it is copied forward; the last walk then. `None` if something keeps it.
fn clear(
    round: &mut Round<'_>,
    segment: &SegmentInfo,
    seen: &mut Seen,
    done: &mut Maintenance,
) -> Result<Option<Walked>, Stopped> {
    let most = u64::from(segment.bytes) * MAX_LIVE_PERCENT / 100;
    for _ in 0..WALKS_PER_SEGMENT {
        round.walked_bytes += u64::from(segment.bytes);
        let mut walked = walk(round.inner, segment, most)?;
        round.lookups += walked.lookups;
        if walked.found_live() && !round.is_counted(segment) && !seen.undercounted {
            seen.undercounted = true;
            done.undercounted_segments += 1;
        }
        let Some(live) = &mut walked.live else { return Ok(None) };
        if live.is_empty() {
            return Ok(Some(walked));
        }
        if round.failure.is_some() {
            return Err(Stopped::Copy(None));
        }
        match copy_forward(round.inner, live, seen, done).map_err(|error| Stopped::Copy(Some(error)))? {
            Copied::All => return Ok(Some(walked)),
            Copied::TooLarge => return Ok(None),
            Copied::NotAll => {}
        }
    }
    Ok(None)
}

/// Copies bytes forward, the largest first: nothing is copied for nothing if that one is too large.
fn copy_forward(
    inner: &Inner,
    live: &mut [Live],
    seen: &mut Seen,
    done: &mut Maintenance,
) -> Result<Copied, WriteError> {
    if let Some(largest) = (0..live.len()).max_by_key(|at| live[*at].payload.len()) {
        live[..=largest].rotate_right(1);
    }
    let mut copied = Copied::All;
    for live in &*live {
        match inner.open.solo.relocate(&live.payload) {
            Ok(Moved::Applied) => {
                seen.copied = true;
                done.moved_bytes += live.bytes;
            }
            Ok(Moved::Void | Moved::Forgot { .. }) => copied = Copied::NotAll,
            Err(ProposeError::Append(AppendError::TooLarge { .. })) => return Ok(Copied::TooLarge),
            Err(error) => return Err(error.into()),
        }
    }
    // The copies are in the log; the source must outlive a crash that loses them.
    inner.open.log.sync()?;
    Ok(copied)
}

/// Segments in the order in which they are walked: of those with counted bytes, the ones up to the last that was walked
/// come last.
fn in_turn<'s>(round: &Round<'_>, segments: &'s [SegmentInfo], last: Turn) -> Vec<&'s SegmentInfo> {
    let had_turn = |segment: &&SegmentInfo| last.is_some_and(|last| segment.generation <= last);
    let (later, mut order): (Vec<_>, Vec<_>) =
        segments.iter().partition(|segment| had_turn(segment) && round.is_counted(segment));
    order.extend(later);
    order
}

/// What the disk gets back of so many segments.
fn bytes_of(inner: &Inner, segments: usize) -> u64 {
    segments as u64 * u64::from(inner.options.segment_bytes)
}

/// Where the log can be read in order from, once some of its segments are gone.
fn start_without(segments: &[SegmentInfo], going: &HashSet<Generation>) -> Lsn {
    let mut start = None;
    for segment in segments.iter().rev().filter(|segment| !going.contains(&segment.generation)) {
        if start.is_some_and(|start| segment.next != start) {
            break;
        }
        start = Some(segment.first);
    }
    start.unwrap_or_default()
}

/// The state's figures by segment. A segment freed just before a crash may have kept its row: it goes now.
fn current_liveness(inner: &Inner) -> BTreeMap<Generation, Liveness> {
    // The rows first: a segment that the writer begins in between has none here yet. The other way round it would have a
    // row, and seem to be gone.
    let rows = inner.open.machine.liveness().into_iter();
    let there: HashSet<_> = inner.open.log.segments().into_iter().map(|segment| segment.generation).collect();
    let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = rows.partition(|(generation, _)| there.contains(generation));
    gone.into_keys().for_each(|generation| inner.open.machine.forget_segment(generation));
    kept
}
