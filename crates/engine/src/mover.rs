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
//! found nothing live is remembered while the segment is freeable.
//!
//! Invariants:
//! - a segment is freed only if a walk found nothing live in it, or everything live was copied forward. New pointers
//!   into it cannot appear: all of its entries are applied, and a pointer only ever goes to bytes of the record that is
//!   being applied, or stays where it was;
//! - everything that made it so (a trim, an overwrite) is durable by then: else a power loss would bring back pointers
//!   into a segment that is gone;
//! - where a pointer went away that commands follow while they are applied (a value), the state has persisted past that:
//!   else a replay would come across the command that followed it.

mod walk;
mod window;

use std::collections::{BTreeMap, HashMap, HashSet};

use thalweg_log::{RECORD_HEADER_BYTES, SegmentInfo, format::BATCH_HEADER_BYTES};
use thalweg_state::{liveness::Liveness, machine::Moved};
use thalweg_types::{Generation, Index, Lsn, Term};

use self::walk::{Walked, last_entry, walk};
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

/// What the walks over a segment that has not been freed yet found.
#[derive(Clone, Copy, Debug)]
struct Seen {
    /// The state's figures at the walk.
    liveness: Liveness,
    /// The log's end then: values are overwritten only by new records.
    end: Lsn,
    /// Set when nothing in it is live any more: it is free when the state has persisted this.
    free_from: Option<Lsn>,
    /// Its last entry that counts; set with `free_from`.
    last_entry: Option<(Term, Index)>,
    /// Something live was found in it although the state counted nothing.
    undercounted: bool,
    /// The state's figures in the last round.
    last: Liveness,
}

/// Remembers what it saw, so that a segment is not walked every round.
#[derive(Debug, Default)]
pub(crate) struct Mover {
    seen: HashMap<Generation, Seen>,
}

/// What a round has walked so far.
#[derive(Default)]
struct Walks {
    counted: usize,
    spent: Spent,
}

impl Walks {
    fn allow(&self, live: Liveness) -> bool {
        let Spent { bytes, lookups } = self.spent;
        let is_counted = live.bytes() > 0;
        let most = if is_counted { COUNTED_LOOKUPS_PER_ROUND } else { LOOKUPS_PER_ROUND };
        bytes < WALKED_BYTES_PER_ROUND && lookups < most && !(is_counted && self.counted >= COUNTED_WALKS_PER_ROUND)
    }

    fn add(&mut self, live: Liveness, spent: Spent) {
        self.spent.bytes += spent.bytes;
        self.spent.lookups += spent.lookups;
        self.counted += usize::from(live.bytes() > 0);
    }
}

/// What walks over a segment took.
#[derive(Clone, Copy, Default)]
struct Spent {
    bytes: u64,
    lookups: u64,
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
        let mut walks = Walks::default();
        let mut free = Vec::new();
        for (number, segment) in freeable.into_iter().enumerate() {
            if number >= below_floor && short_bytes == 0 {
                break;
            }
            let live = liveness.get(&segment.generation).copied();
            self.look(inner, &segment, live, &mut walks, done)?;
            if self.is_free(inner, &segment) {
                short_bytes = short_bytes.saturating_sub(inner.options.segment_bytes.into());
                free.push(segment);
            }
        }
        if !free.is_empty()
            && let Some(_held) = inner.snapshots.may_free(inner.is_disk_full())
        {
            self.free(inner, &free, done)?;
        }
        Ok(())
    }

    /// Walks a segment if that may bring it closer to being freed. `row`: what the state counts as live in it, if it
    /// has ever pointed into it.
    fn look(
        &mut self,
        inner: &Inner,
        segment: &SegmentInfo,
        row: Option<Liveness>,
        walks: &mut Walks,
        done: &mut Maintenance,
    ) -> Result<(), WriteError> {
        let live = row.unwrap_or_default();
        if walks.allow(live) && self.worth_a_walk(inner, segment, live) {
            let spent = self.walk(inner, segment, row, done)?;
            walks.add(live, spent);
        }
        if let Some(seen) = self.seen.get_mut(&segment.generation) {
            seen.last = live;
        }
        Ok(())
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
    fn worth_a_walk(&self, inner: &Inner, segment: &SegmentInfo, live: Liveness) -> bool {
        let copied = live.stream_bytes + live.batches * BATCH_COPY_BYTES;
        if copied * 100 > u64::from(segment.bytes) * MAX_LIVE_PERCENT {
            return false;
        }
        match self.seen.get(&segment.generation) {
            None => true,
            Some(seen) if seen.free_from.is_some() => false,
            // While streams are being reclaimed, there is less every round: wait until that is over, or half is gone.
            Some(seen) if seen.liveness != live => seen.last == live || live.bytes() <= seen.liveness.bytes() / 2,
            // Values die by being overwritten: wait for as many records as the segment holds.
            Some(seen) => inner.open.log.end().0 - seen.end.0 > segment.next.0 - segment.first.0,
        }
    }

    /// Walks a segment, and copies forward what is live in it, if that is little.
    fn walk(
        &mut self,
        inner: &Inner,
        segment: &SegmentInfo,
        row: Option<Liveness>,
        done: &mut Maintenance,
    ) -> Result<Spent, WriteError> {
        let liveness = row.unwrap_or_default();
        let undercounted = self.seen.get(&segment.generation).is_some_and(|seen| seen.undercounted);
        let end = inner.open.log.end();
        let mut seen = Seen { liveness, end, free_from: None, last_entry: None, undercounted, last: liveness };
        let most = u64::from(segment.bytes) * MAX_LIVE_PERCENT / 100;
        let mut spent = Spent::default();
        for _ in 0..WALKS_PER_SEGMENT {
            let walked = walk(inner, segment, most)?;
            spent.bytes += u64::from(segment.bytes);
            spent.lookups += walked.lookups;
            if liveness.bytes() == 0 && walked.found_live() && !seen.undercounted {
                seen.undercounted = true;
                done.undercounted_segments += 1;
            }
            let Some(live) = &walked.live else { break };
            let mut void = false;
            for live in live {
                match inner.open.solo.relocate(&live.payload)? {
                    Moved::Applied => done.moved_bytes += live.bytes,
                    Moved::Void | Moved::Forgot { .. } => void = true,
                }
            }
            // A void copy was overwritten meanwhile, or is still wanted where it is: only a walk can tell.
            if !void {
                if !live.is_empty() {
                    // The copies are in the log; the source must outlive a crash that loses them.
                    inner.open.log.sync()?;
                }
                seen.free_from = Some(free_from(inner, row, &walked));
                seen.last_entry = walked.last_entry;
                break;
            }
        }
        self.seen.insert(segment.generation, seen);
        Ok(spent)
    }
}

/// What the state must have persisted before a segment with nothing live in it is freed. Copies must be what a replay
/// begins with, and so must the end of a value that a command in the log may have looked at before it ended. Batches of
/// streams are not looked at while commands are applied: once they are gone, nothing asks for them.
fn free_from(inner: &Inner, row: Option<Liveness>, walked: &Walked) -> Lsn {
    let held_values = walked.has_long_values && row.is_some();
    if walked.found_live() || held_values { inner.open.machine.applied().lsn } else { Lsn::ZERO }
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
