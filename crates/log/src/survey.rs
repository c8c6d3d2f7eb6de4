//! Finds the end of the log, and decides if the log ends there because of a torn write or because of corruption. Reads
//! only.
//!
//! Owns: the decision. Does not own: the writes that follow (see `apply_survey`), or the choice to reject the log (see
//! `recovery`).
//!
//! Each batch header attests an LSN: all records below it were durable when the header was written. Attested records
//! are never torn. So a survey first finds the highest attested LSN. Then it reads the batches from the segment that
//! holds the record before that LSN. The first invalid batch ends the log if no later header attests records at or
//! beyond it; otherwise it is corruption. The length of an invalid batch is unreliable, so the survey searches the rest
//! of the segment and all later segments for valid headers. It does not read segments that lie completely below the
//! attested LSN.

use thalweg_types::{Lsn, SpaceTime};

use crate::{
    cursor::{CHUNK_BYTES, DamageAt, Expected, Window, find_header, read_batch, read_header},
    errors::{Corruption, DiskFault, Explain},
    format::{BATCH_ALIGN, BatchHeader, BatchKind, DATA_START},
    inventory::{FoundSegment, Inventory},
    segment::Extent,
};

/// A segment that contains a part of the log, and how much of the segment is valid.
#[derive(Clone, Debug)]
pub(crate) struct Surveyed {
    pub found: FoundSegment,
    pub extent: Extent,
    /// Body checksum of the segment's last valid batch.
    pub chain: u32,
    /// First LSN and byte position of some of the segment's batches.
    pub index: Vec<(Lsn, u32)>,
    /// True if a valid footer marks the end of the segment.
    pub sealed: bool,
}

impl Surveyed {
    /// Returns true if the first record of `next` comes immediately after the last one of this segment.
    fn is_continued_by(&self, next: &FoundSegment) -> bool {
        next.header.base == self.extent.next && next.header.base_chain == self.chain
    }
}

/// Result of a survey, which searches for the end of the log. The log ends in the last segment of `kept`.
#[derive(Debug)]
pub(crate) struct Survey {
    pub kept: Vec<Surveyed>,
    /// Segments after the end of the log, whose content must be made invalid.
    pub cut: Vec<FoundSegment>,
    pub attested: Lsn,
    pub cut_bytes: u64,
    /// True if the log was closed cleanly: its last batch is of the kind `Closed`.
    pub clean: bool,
    /// Corruption at the end of the log; headers attest that records beyond it were durable. `None` if the log has no
    /// such damage.
    pub corruption: Option<Corruption>,
}

/// Choice of how much of a log is read to find the end of the log (by a survey).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// The part that may not be durable: from the segment that holds the last record attested as durable to
    /// the end.
    Tail,
    /// The whole log, for a repair, which must find the first damage.
    Whole,
}

impl Survey {
    pub(crate) fn end(&self) -> Lsn {
        self.kept.last().map_or(Lsn::ZERO, |last| last.extent.next)
    }

    /// Finds the end of the log in a directory that has live segments.
    pub(crate) fn of(inventory: &Inventory, depth: Depth) -> Result<Self, DiskFault> {
        let live = &inventory.live;
        let mut attested = newest_attestation(live)?;
        let start = match depth {
            // The comparison is strict: a synced record of a segment implies that all earlier segments were
            // synced. If only its base is attested, the idle batch that ends the previous segment may still
            // be missing.
            Depth::Tail => live.iter().rposition(|found| found.header.base < attested).unwrap_or(0),
            Depth::Whole => 0,
        };
        let mut kept = Vec::with_capacity(live.len());
        for pair in live.windows(2).take(start) {
            match settled(&pair[0], &pair[1])? {
                Ok(surveyed) => kept.push(surveyed),
                Err((surveyed, bad)) => {
                    kept.push(surveyed);
                    return Ok(Self::broken(kept, live, attested, bad));
                }
            }
        }
        for at in start..live.len() {
            let walk = walk(&live[at])?;
            attested = attested.max(walk.attested);
            let (end, sealed) = (walk.surveyed.extent, walk.surveyed.sealed);
            let (bad, last_kind) = (walk.bad, walk.last_kind);
            kept.push(walk.surveyed);
            let follows = live.get(at + 1).is_some_and(|next| {
                let joined = kept[at].is_continued_by(next);
                // A segment that was freed in between no longer exists with its generation. A segment that a
                // power loss destroyed before its first sync still exists as a spare.
                let hole = sealed && next.header.base > end.next && !inventory.has_spare(next.header.previous);
                joined || (hole && next.header.previous != live[at].header.generation)
            });
            if !follows {
                let tail = search(live, at, end.written)?;
                attested = attested.max(tail.attested);
                // A segment without a batch was begun by a run that did not end with a close.
                let clean = last_kind == Some(BatchKind::Closed) && tail.bytes == 0 && at + 1 == live.len();
                let mut survey = Self::broken(kept, live, attested, bad);
                survey.cut_bytes = tail.bytes;
                survey.clean = clean;
                if attested <= end.next {
                    survey.corruption = None;
                }
                return Ok(survey);
            }
        }
        unreachable!("no segment follows the last live segment")
    }

    fn broken(kept: Vec<Surveyed>, live: &[FoundSegment], attested: Lsn, bad: DamageAt) -> Self {
        let last = &live[kept.len() - 1];
        let corruption = Some(Corruption::at(last.path(), bad.offset, bad.damage));
        let cut = live[kept.len()..].to_vec();
        Self { kept, cut, attested, cut_bytes: 0, clean: false, corruption }
    }
}

/// Returns the highest attested LSN in the newest segment whose first batch header is valid. Reads batch headers up to
/// the first invalid one. If damage makes the result too low, the search for the end of the log begins at an earlier
/// segment, which is harmless.
fn newest_attestation(live: &[FoundSegment]) -> Result<Lsn, DiskFault> {
    for found in live.iter().rev() {
        let mut window = Window::new(found.slot.file.clone(), found.key().limit, CHUNK_BYTES);
        let mut highest = None;
        visit_headers(found, &mut window, DATA_START, &mut |_, header| highest = highest.max(Some(header.attested)))?;
        if let Some(highest) = highest {
            return Ok(highest);
        }
    }
    Ok(Lsn::ZERO)
}

/// Calls `visit` with each batch header from byte position `from` on, skipping the batches' bodies, up to the
/// first invalid header. Returns the position of that header.
fn visit_headers(
    found: &FoundSegment,
    window: &mut Window,
    from: u32,
    visit: &mut impl FnMut(u32, &BatchHeader),
) -> Result<u32, DiskFault> {
    let mut at = from;
    while let Ok(header) = read_header(window, found.key(), at).explain("read", found.path())? {
        visit(at, &header);
        at += header.total_bytes();
    }
    Ok(at)
}

/// Calls `visit` with every valid batch header from byte position `from` on. After an invalid header,
/// searches for the next valid one.
fn each_header(found: &FoundSegment, from: u32, mut visit: impl FnMut(u32, &BatchHeader)) -> Result<(), DiskFault> {
    let key = found.key();
    let mut window = Window::new(found.slot.file.clone(), key.limit, CHUNK_BYTES);
    let mut at = visit_headers(found, &mut window, from, &mut visit)?;
    while let Some((hit, _)) = find_header(&mut window, key, at).explain("read", found.path())? {
        at = visit_headers(found, &mut window, hit, &mut visit)?;
    }
    Ok(())
}

/// Finds the valid part of a segment whose records are all attested as durable. Uses the segment's footer, or reads the
/// whole segment if it has no valid footer. `next` is the live segment after it.
fn settled(found: &FoundSegment, next: &FoundSegment) -> Result<Result<Surveyed, (Surveyed, DamageAt)>, DiskFault> {
    if let Ok(footer) = found.footer()? {
        let extent = Extent {
            written: footer.end,
            next: footer.next,
            first_time: footer.first_time,
            last_time: footer.last_time,
            truncates: footer.truncates,
        };
        let index = Vec::new();
        return Ok(Ok(Surveyed { found: found.clone(), extent, chain: footer.chain, index, sealed: true }));
    }
    let walk = walk(found)?;
    let mut later = false;
    each_header(found, walk.surveyed.extent.written, |_, _| later = true)?;
    // The footer and the last batches can be lost together: with the last block of the file, or if the file is a copy
    // that was made before they were written. If no segment was freed in between, the header of `next` tells where this
    // one must end.
    let falls_short = next.header.previous == found.header.generation && !walk.surveyed.is_continued_by(next);
    Ok(if later || falls_short { Err((walk.surveyed, walk.bad)) } else { Ok(walk.surveyed) })
}

/// Result of reading the batches of a segment up to the first invalid one.
struct SegmentRead {
    surveyed: Surveyed,
    attested: Lsn,
    last_kind: Option<BatchKind>,
    /// Position and damage of the first invalid batch, which ends the reading.
    bad: DamageAt,
}

/// Verifies the batches of a segment, including their records, up to the first invalid batch.
fn walk(found: &FoundSegment) -> Result<SegmentRead, DiskFault> {
    let key = found.key();
    let mut window = Window::new(found.slot.file.clone(), key.limit, CHUNK_BYTES);
    let mut sums = Vec::new();
    let mut expected = Expected { first: found.header.base, chain: found.header.base_chain };
    let mut extent = Extent::empty(found.header.base);
    let mut times: Option<(SpaceTime, SpaceTime)> = None;
    let mut index = Vec::new();
    let mut attested = Lsn::ZERO;
    let mut last_kind = None;
    let bad = loop {
        let at = extent.written;
        let batch = match read_batch(&mut window, key, at, Some(expected), &mut sums).explain("read", found.path())? {
            Ok(batch) => batch,
            Err(bad) => break bad,
        };
        if index.last().is_none_or(|last: &(Lsn, u32)| at - last.1 > CHUNK_BYTES as u32 / 4) {
            index.push((batch.header.first, at));
        }
        if let Some((first, last)) = batch.times {
            times = Some(times.map_or((first, last), |(began, until)| (began, until.max(last))));
        }
        expected = batch.expects();
        extent.truncates |= batch.truncates;
        attested = attested.max(batch.header.attested);
        last_kind = Some(batch.header.kind);
        extent.written = at + batch.header.total_bytes();
        extent.next = expected.first;
    };
    (extent.first_time, extent.last_time) = times.unwrap_or_default();
    let sealed = found.footer()?.is_ok_and(|footer| footer.end == extent.written && footer.next == extent.next);
    let surveyed = Surveyed { found: found.clone(), extent, chain: expected.chain, index, sealed };
    Ok(SegmentRead { surveyed, attested, last_kind, bad })
}

/// Valid batch headers found after the end of the log.
struct UnattestedEnd {
    attested: Lsn,
    /// Number of bytes behind the end of the log up to the end of the last batch there with a valid header. Such batches
    /// do not belong to the log, because one before them is torn or corrupt.
    bytes: u64,
}

/// Searches the segment at index `at`, from byte position `from` on, and all later segments for valid batch
/// headers.
fn search(live: &[FoundSegment], at: usize, from: u32) -> Result<UnattestedEnd, DiskFault> {
    let mut tail = UnattestedEnd { attested: Lsn::ZERO, bytes: 0 };
    for (number, found) in live[at..].iter().enumerate() {
        let from = if number == 0 { from } else { DATA_START };
        let mut until = from;
        each_header(found, from, |position, header| {
            tail.attested = tail.attested.max(header.attested);
            until = until.max(position + header.total_bytes());
        })?;
        tail.bytes += u64::from(until - from);
    }
    Ok(tail)
}

const _: () = assert!(DATA_START.is_multiple_of(BATCH_ALIGN));
