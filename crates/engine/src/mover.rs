//! Reclaiming log space: choosing segments to free, and copying forward the live bytes of others.
//!
//! Owns: the choice of segments, the walks, the copies, and the order of the steps. Does not own: which segments are
//! freeable and their files (`thalweg-log`), the counts of live bytes (`segments` of the state), the position up to
//! which the state is persisted (the backend), or the time of a round (`maintenance`).
//!
//! The log reports freeable segments: those that the state has released and that no watch, backup or follower needs as
//! history. On a full disk it also reports the oldest segments kept for history, as many as the log needs to take new
//! data again. Rows of stream batches and large values may still point into these segments. The state counts the live
//! bytes, but a count only decides which segments are walked first: a segment is freed after a walk over its records
//! (`walk.rs`) found nothing live. If only little of a segment is live, its live bytes are copied to the end of the
//! log, and the segment is freed once the state has persisted past the copies. After a crash, it is walked again.
//!
//! A walk reads the segment once. A segment of 64 MiB in the page cache takes 20 ms with large records, and 0.2 s with
//! small ones. Freeing needs such a read anyway, to find the last entry of the segments at the start of the log. If a
//! walk has found nothing live, its result is kept while the segment is freeable. After other walks, the segment is not
//! walked again for a while (`segment_history.rs`).
//!
//! A round frees the segments known to be free, then walks other segments, then frees those that the walks found free.
//! Segments in which the state counts live bytes take turns over the rounds, so that live segments do not delay dead
//! ones behind them. A problem with one segment does not delay the others: a segment that cannot be read, or whose
//! bytes are too large for a record of this node, is kept. If a copy fails for any other reason, the round makes no
//! more copies.
//!
//! Invariants:
//! - A segment is freed only if a walk found nothing live in it, or everything live was copied forward. New pointers
//!   into it cannot appear: all its entries are applied, and a pointer is only ever set to bytes of the record that is
//!   being applied, or stays unchanged.
//! - Every change that removed a pointer into a segment (a trim, an overwrite) is durable before the segment is freed.
//!   Otherwise a power loss would restore pointers into a segment that is gone.
//! - If a command follows a pointer to a value while it is applied, the state has persisted past the removal of that
//!   pointer before the segment is freed. Otherwise a replay would execute a command whose value is gone.

mod segment_history;
mod walk;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet};

use self::{
    segment_history::{LogNow, SegmentHistory},
    walk::{COPY_BYTES, LiveBytes, WalkError, Walked, last_entry, walk},
};
use thalweg_log::{AppendError, SegmentInfo};
use thalweg_replica::ProposeError;
use thalweg_state::{machine::LocalOutcome, segments::Liveness};
use thalweg_types::{Generation, Lsn};

use crate::{error::WriteError, inner::Inner, maintenance_counts::Maintenance};

/// Maximum live part of a segment, in percent, at which the mover copies the live bytes to free the segment. Copying
/// more would cost more writing than the space is worth.
const MAX_LIVE_PERCENT: u64 = 50;

/// Bytes that a copied stream batch takes in the log in addition to the batch itself: headers, including that of the
/// move record.
const BATCH_COPY_BYTES: u64 = COPY_BYTES + 40;
/// Maximum number of segments that one round walks (reads record by record) although the state counts live bytes in
/// them. Such walks usually lead to copies, so they are limited.
const COUNTED_WALKS_PER_ROUND: usize = 4;
/// Number of state lookups in a round after which the mover begins no walk (reading a segment record by record) of
/// segments with live bytes. Lookups take much longer than reading the segment.
const COUNTED_LOOKUPS_PER_ROUND: u64 = 100_000;
/// Number of walked (read and checked) bytes after which a round of the mover begins no further walk. It is high,
/// because disk space must be freed as fast as writers use it, and a round runs only every second. With
/// [`LOOKUPS_PER_ROUND`] it limits the delay of other maintenance: a few seconds after gigabytes became free, and 0.2 s
/// for 64 MiB.
const WALKED_BYTES_PER_ROUND: u64 = 1 << 30;
/// Number of state lookups after which a round of the mover begins no further walk; see [`WALKED_BYTES_PER_ROUND`].
const LOOKUPS_PER_ROUND: u64 = 1_000_000;
/// Maximum number of walks (complete reads) of one segment in immediate succession. A walk is repeated if values were
/// overwritten just before they could be moved.
const WALKS_PER_SEGMENT: usize = 3;

/// Reclaims space in the log by freeing segments. Remembers past walks, which search a segment for live bytes.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    segments: HashMap<Generation, SegmentHistory>,
    /// Last walked segment among those in which the state counts live bytes. The next round continues after it.
    last_counted: LastWalked,
    /// Last walked segment among those that are kept for history and have live bytes. They are walked only while the
    /// disk is full.
    last_of_history: LastWalked,
}

/// Position in a list of segments that rounds read in turns: the segment that was read (walked) last. The next round
/// continues after it; `None` starts with the oldest segment.
type LastWalked = Option<Generation>;

/// Log segments that may be freed once no row of the state points into them, oldest first.
struct Candidates {
    /// Segments that no watch, backup or follower (the history) needs. Only live bytes still keep them.
    past: Vec<SegmentInfo>,
    /// Segments that only the history (watches, backups, followers) still needs. Filled only while the disk is full.
    kept: Vec<SegmentInfo>,
}

impl Candidates {
    /// Collects the segments that may be freed. If the full disk lacks `short_bytes` bytes, these include segments that
    /// are kept for history.
    fn of(inner: &Inner, short_bytes: u64) -> Self {
        let now = inner.open.replica.now();
        inner.keep_for_followers();
        let mut past = inner.open.log.freeable(now);
        let mut kept = if short_bytes > 0 { inner.open.log.kept_for_history(now) } else { Vec::new() };
        // The state does not point yet to the bytes of an install in progress.
        past.retain(|segment| !inner.installs.holds(segment));
        kept.retain(|segment| !inner.installs.holds(segment));
        Self { past, kept }
    }

    fn generations(&self) -> HashSet<Generation> {
        self.past.iter().chain(&self.kept).map(|segment| segment.generation).collect()
    }
}

/// State of one round of the mover, in which it frees segments and copies live bytes.
struct Round<'a> {
    inner: &'a Inner,
    log: LogNow,
    /// Live bytes of each segment as the state counts them. Has all segments into which the state has ever pointed.
    rows: BTreeMap<Generation, Liveness>,
    /// Bytes of disk space that must still be freed until the log takes new data again; 0 unless the disk is full.
    short_bytes: u64,
    /// Number of segments that this round of the mover has read although the state counts live bytes in them.
    counted: usize,
    walked_bytes: u64,
    lookups: u64,
    /// First error of reading a segment or copying bytes in this round. After an error the round makes no more copies.
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

    fn has_walk_budget(&self, segment: &SegmentInfo) -> bool {
        let is_counted = self.is_counted(segment);
        let most = if is_counted { COUNTED_LOOKUPS_PER_ROUND } else { LOOKUPS_PER_ROUND };
        self.walked_bytes < WALKED_BYTES_PER_ROUND
            && self.lookups < most
            && !(is_counted && self.counted >= COUNTED_WALKS_PER_ROUND)
    }
}

/// Reason why a segment could not be emptied: reading it or copying its live bytes failed.
enum WalkStop {
    Walk(WalkError),
    /// Live bytes could not be copied. Contains the error, or `None` if an earlier error of the round prevents copies.
    Copy(Option<WriteError>),
}

impl From<WalkError> for WalkStop {
    fn from(error: WalkError) -> Self {
        Self::Walk(error)
    }
}

/// Result of copying the live bytes of a segment to the end of the log.
enum CopyResult {
    All,
    /// Some copies had no effect: their bytes were overwritten in the meantime, or are still needed at the old
    /// position. Reading the segment again shows which.
    Partly,
    /// A copy is too large for a log record of this node.
    TooLarge,
}

impl Mover {
    pub(crate) fn round(&mut self, inner: &Inner, done: &mut Maintenance) -> Result<(), WriteError> {
        inner.snapshots.note_round(inner.is_disk_full());
        let short_bytes = inner.open.log.short_bytes();
        let mut candidates = Candidates::of(inner, short_bytes);
        let generations = candidates.generations();
        self.segments.retain(|generation, _| generations.contains(generation));
        if generations.is_empty() {
            return Ok(());
        }
        let mut round = Round::new(inner, short_bytes);
        // Free segments before the walks, because copying needs room.
        self.free_dead_segments(&mut round, &mut candidates, done)?;
        self.walk_segments(&mut round, &candidates, done);
        let freed = self.free_dead_segments(&mut round, &mut candidates, done);
        round.failure.map_or(freed, Err)
    }

    /// Frees segments in which walks (reads) have found nothing live. Frees all of them that history does not need; of
    /// the others, only as many as the full disk requires.
    fn free_dead_segments(
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
        if !free.is_empty() && inner.snapshots.may_free(inner.is_disk_full()).is_some() {
            self.free(inner, &free, done)?;
        }
        Ok(())
    }

    /// Walks segments (reads them record by record) until the round's limits are reached. Segments that history needs
    /// come last, and only until enough segments can be freed for the full disk.
    fn walk_segments(&mut self, round: &mut Round<'_>, candidates: &Candidates, done: &mut Maintenance) {
        let mut free = 0;
        for segment in walk_order(round, &candidates.past, self.last_counted) {
            if self.walk_segment(round, segment, done) && round.is_counted(segment) {
                self.last_counted = Some(segment.generation);
            }
            free += usize::from(self.is_free(round.inner, segment));
        }
        // On a full disk, the walks of the segments below the floor may use up the budget. So walks of the history have
        // their own budget.
        (round.counted, round.lookups) = (0, 0);
        self.last_of_history = self.last_of_history.filter(|_| !candidates.kept.is_empty());
        for segment in walk_order(round, &candidates.kept, self.last_of_history) {
            if bytes_of(round.inner, free) >= round.short_bytes {
                break;
            }
            if self.walk_segment(round, segment, done) && round.is_counted(segment) {
                self.last_of_history = Some(segment.generation);
            }
            free += usize::from(self.is_free(round.inner, segment));
        }
    }

    /// Reads a segment record by record (walks it) if that may help to free it. Returns true if the segment was walked.
    fn walk_segment(&mut self, round: &mut Round<'_>, segment: &SegmentInfo, done: &mut Maintenance) -> bool {
        let live = round.row(segment).unwrap_or_default();
        let walks = round.has_walk_budget(segment) && self.is_walk_worthwhile(round.log, segment, live);
        if walks {
            round.counted += usize::from(round.is_counted(segment));
            self.walk(round, segment, done);
        }
        if let Some(walks) = self.segments.get_mut(&segment.generation) {
            walks.last = live;
        }
        walks
    }

    /// Frees segments. First makes two things durable: all changes that made them free, and a log record with the last
    /// purged entry. If a snapshot has begun in the meantime, the segments stay for now.
    fn free(&mut self, inner: &Inner, segments: &[SegmentInfo], done: &mut Maintenance) -> Result<(), WriteError> {
        self.note_purged(inner, segments)?;
        inner.open.log.sync()?;
        let Some(_held) = inner.snapshots.may_free(inner.is_disk_full()) else { return Ok(()) };
        for segment in segments {
            inner.open.log.free(segment.generation)?;
            inner.open.machine.forget_segment(segment.generation);
            self.segments.remove(&segment.generation);
            done.freed_segments += 1;
        }
        Ok(())
    }

    /// Writes a log record with the term and index of the last log entry that is purged when the segments `going` are
    /// freed. This entry is the last one below the LSN from which the log can then be read in order. Segments that stay
    /// below this LSN because of their live bytes do not change it.
    fn note_purged(&self, inner: &Inner, going: &[SegmentInfo]) -> Result<(), WriteError> {
        let (before, segments) = (inner.open.log.start(), inner.open.log.segments());
        let going: HashSet<_> = going.iter().map(|segment| segment.generation).collect();
        let start = log_start_after_freeing(&segments, &going);
        let gone = segments.iter().rev().filter(|segment| before <= segment.first && segment.first < start);
        for segment in gone {
            let known = self.segments.get(&segment.generation).filter(|walks| walks.free_from.is_some());
            let last = match known {
                Some(walks) => walks.last_entry,
                // The segment can't be read: an earlier one provides the last entry.
                None => last_entry(inner, segment.generation).unwrap_or_default(),
            };
            if let Some((term, index)) = last {
                return Ok(inner.open.replica.note_purged(term, index)?);
            }
        }
        Ok(())
    }

    /// Returns true if persisting the state may allow a segment to be freed.
    pub(crate) fn waits_for_state(&self) -> bool {
        self.segments.values().any(|walks| walks.free_from.is_some_and(|lsn| lsn > Lsn::ZERO))
    }

    fn is_free(&self, inner: &Inner, segment: &SegmentInfo) -> bool {
        let persisted = inner.open.backend.persisted().map_or(Lsn::ZERO, |applied| applied.lsn);
        self.segments.get(&segment.generation).and_then(|walks| walks.free_from).is_some_and(|lsn| lsn <= persisted)
    }

    /// Returns true if walking (reading) the segment could allow it to be freed. The segment must have few live stream
    /// bytes, and must be due for a walk: it was never walked, or enough has changed since its last walk.
    fn is_walk_worthwhile(&self, log: LogNow, segment: &SegmentInfo, live: Liveness) -> bool {
        let copied = live.stream_bytes + live.batches * BATCH_COPY_BYTES;
        if copied * 100 > u64::from(segment.bytes) * MAX_LIVE_PERCENT {
            return false;
        }
        self.segments.get(&segment.generation).is_none_or(|walks| walks.is_due(segment, live, log))
    }

    /// Searches a segment for live bytes, copies them to the end of the log if they are few, and notes the result.
    fn walk(&mut self, round: &mut Round<'_>, segment: &SegmentInfo, done: &mut Maintenance) {
        let row = round.row(segment);
        let mut walks = self.segments.remove(&segment.generation).unwrap_or_default();
        walks.begin(row.unwrap_or_default(), round.log);
        match clear(round, segment, &mut walks, done) {
            Ok(Some(walked)) => walks.set_free(round.inner.open.machine.applied().lsn, row, &walked),
            Ok(None) => walks.keep(),
            Err(WalkStop::Walk(WalkError::Unreadable)) => {
                done.unreadable_segments += u64::from(!walks.unreadable);
                walks.unreadable = true;
                walks.keep();
            }
            Err(WalkStop::Walk(WalkError::State(error))) => {
                round.failure.get_or_insert(error);
                walks.keep();
            }
            Err(WalkStop::Copy(error)) => {
                round.failure = round.failure.take().or(error);
                walks.not_copied = true;
            }
        }
        self.segments.insert(segment.generation, walks);
    }
}

/// Walks a segment until all its live bytes are copied to the end of the log. Returns the result of the last walk, or
/// `None` if the segment must stay.
fn clear(
    round: &mut Round<'_>,
    segment: &SegmentInfo,
    walks: &mut SegmentHistory,
    done: &mut Maintenance,
) -> Result<Option<Walked>, WalkStop> {
    let most = u64::from(segment.bytes) * MAX_LIVE_PERCENT / 100;
    for _ in 0..WALKS_PER_SEGMENT {
        round.walked_bytes += u64::from(segment.bytes);
        let mut walked = walk(round.inner, segment, most)?;
        round.lookups += walked.lookups;
        if walked.has_live_bytes() && !round.is_counted(segment) && !walks.undercounted {
            walks.undercounted = true;
            done.undercounted_segments += 1;
        }
        let Some(live) = &mut walked.live else { return Ok(None) };
        if live.is_empty() {
            return Ok(Some(walked));
        }
        if round.failure.is_some() {
            return Err(WalkStop::Copy(None));
        }
        match copy_forward(round.inner, live, walks, done).map_err(|error| WalkStop::Copy(Some(error)))? {
            CopyResult::All => return Ok(Some(walked)),
            CopyResult::TooLarge => return Ok(None),
            CopyResult::Partly => {}
        }
    }
    Ok(None)
}

/// Copies live bytes to the end of the log, the largest first. If this first copy is too large for a log record, makes
/// no other copy, because the others alone would not free the segment.
fn copy_forward(
    inner: &Inner,
    live: &mut [LiveBytes],
    walks: &mut SegmentHistory,
    done: &mut Maintenance,
) -> Result<CopyResult, WriteError> {
    if let Some(largest) = (0..live.len()).max_by_key(|at| live[*at].payload.len()) {
        live[..=largest].rotate_right(1);
    }
    let mut copied = CopyResult::All;
    for live in &*live {
        match inner.open.replica.relocate(&live.payload) {
            Ok(LocalOutcome::Applied) => {
                walks.copied = true;
                done.moved_bytes += live.bytes;
            }
            Ok(LocalOutcome::Void | LocalOutcome::SegmentForgotten { .. }) => copied = CopyResult::Partly,
            Err(ProposeError::Append(AppendError::TooLarge { .. })) => return Ok(CopyResult::TooLarge),
            Err(error) => return Err(error.into()),
        }
    }
    // The copies are in the log, but a crash could still lose them. So the log is synced before the segment is freed.
    inner.open.log.sync()?;
    Ok(copied)
}

/// Returns the order in which segments are walked: the oldest first. Segments with live bytes up to `last` come at the
/// end, because earlier rounds have walked them.
fn walk_order<'s>(round: &Round<'_>, segments: &'s [SegmentInfo], last: LastWalked) -> Vec<&'s SegmentInfo> {
    let had_turn = |segment: &&SegmentInfo| last.is_some_and(|last| segment.generation <= last);
    let (later, mut order): (Vec<_>, Vec<_>) =
        segments.iter().partition(|segment| had_turn(segment) && round.is_counted(segment));
    order.extend(later);
    order
}

/// Returns the disk space in bytes that freeing this number of segments gains.
fn bytes_of(inner: &Inner, segments: usize) -> u64 {
    segments as u64 * u64::from(inner.options.segment_bytes)
}

/// Returns the LSN from which the log can be read in order once the segments in `going` are freed.
fn log_start_after_freeing(segments: &[SegmentInfo], going: &HashSet<Generation>) -> Lsn {
    let mut start = None;
    for segment in segments.iter().rev().filter(|segment| !going.contains(&segment.generation)) {
        if start.is_some_and(|start| segment.next != start) {
            break;
        }
        start = Some(segment.first);
    }
    start.unwrap_or_default()
}

/// Returns the live bytes of each segment as the state counts them. Removes the state's counters (rows) of segments
/// that no longer exist, for example of those freed just before a crash.
fn current_liveness(inner: &Inner) -> BTreeMap<Generation, Liveness> {
    // The rows are read first: a segment that the log begins in between then has no row. In the other order, its row
    // would be taken for that of a freed segment and removed.
    let rows = inner.open.machine.liveness().into_iter();
    let there: HashSet<_> = inner.open.log.segments().into_iter().map(|segment| segment.generation).collect();
    let (kept, gone): (BTreeMap<_, _>, BTreeMap<_, _>) = rows.partition(|(generation, _)| there.contains(generation));
    gone.into_keys().for_each(|generation| inner.open.machine.forget_segment(generation));
    kept
}
