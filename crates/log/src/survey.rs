//! Where does the log end? Decides between torn and corrupt. Reads only.
//!
//! Owns: the decision. Does not own: what is then written (see `mend`), nor whether to refuse (see `recovery`).
//!
//! What any valid header attests as durable is never torn. So: find the highest attested LSN; go through the
//! batches from the segment that holds the record before it; the first bad batch ends the log if nothing attests records at or past
//! it, and is corruption otherwise. After a bad batch its length means nothing, so the rest of the segment and all
//! later segments are searched for valid headers. Segments wholly below the attested LSN are not read.

use thalweg_types::{Lsn, SpaceTime};

use crate::{
    cursor::{BadAt, CHUNK_BYTES, Expected, Window, find_header, read_batch, read_header},
    errors::{Corruption, DiskFault, Explain},
    format::{BATCH_ALIGN, BatchHeader, BatchKind, DATA_START},
    inventory::{Found, Inventory},
    segment::Extent,
};

/// A live segment and what of it is good.
#[derive(Clone, Debug)]
pub(crate) struct Surveyed {
    pub found: Found,
    pub extent: Extent,
    /// Body checksum of its last good batch.
    pub chain: u32,
    /// Some batches' first LSN and position.
    pub index: Vec<(Lsn, u32)>,
}

/// The result: the log ends in the last of `kept`.
#[derive(Debug)]
pub(crate) struct Survey {
    pub kept: Vec<Surveyed>,
    /// Live segments past the end, to be voided.
    pub cut: Vec<Found>,
    /// The first of `kept` that was gone through: those before are known to be durable.
    pub walked_from: usize,
    pub attested: Lsn,
    pub cut_bytes: u64,
    /// The last batch says that the log was closed.
    pub clean: bool,
    /// The log ends here although more was attested.
    pub corruption: Option<Corruption>,
}

/// How much of a log a survey reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Depth {
    /// What may not be durable: from the segment that holds the last attested record on.
    Tail,
    /// Everything: for a repair, which must find the first bad place.
    Whole,
}

impl Survey {
    pub fn end(&self) -> Lsn {
        self.kept.last().map_or(Lsn::ZERO, |last| last.extent.next)
    }

    /// Surveys a directory that has live segments.
    pub fn of(inventory: &Inventory, depth: Depth) -> Result<Self, DiskFault> {
        let live = &inventory.live;
        let mut attested = newest_attestation(live)?;
        let start = match depth {
            // Strictly below: a record of the segment was synced, and with it all of the segments before. Of one whose
            // base is attested, the idle batch that ends its predecessor may still be missing.
            Depth::Tail => live.iter().rposition(|found| found.header.base < attested).unwrap_or(0),
            Depth::Whole => 0,
        };
        let mut kept = Vec::with_capacity(live.len());
        for (at, found) in live[..start].iter().enumerate() {
            match settled(found)? {
                Ok(surveyed) => kept.push(surveyed),
                Err((surveyed, bad)) => {
                    kept.push(surveyed);
                    return Ok(Self::broken(kept, at, live, attested, bad));
                }
            }
        }
        let mut last_kind = BatchKind::Records;
        for at in start..live.len() {
            let walk = walk(&live[at])?;
            attested = attested.max(walk.attested);
            last_kind = walk.last_kind.unwrap_or(last_kind);
            let (end, sealed) = (walk.surveyed.extent, walk.sealed);
            let bad = walk.bad;
            kept.push(walk.surveyed);
            let follows = live.get(at + 1).is_some_and(|next| {
                let joined = next.header.base == end.next && next.header.base_chain == kept[at].chain;
                // A segment that was freed in between is no longer there under its generation; one that a power
                // loss took before its first sync is still there, as a spare.
                let hole = sealed && next.header.base > end.next && !inventory.has_spare(next.header.previous);
                joined || (hole && next.header.previous != live[at].header.generation)
            });
            if !follows {
                let tail = search(live, at, end.written)?;
                attested = attested.max(tail.attested);
                let clean = last_kind == BatchKind::Closed && tail.bytes == 0 && at + 1 == live.len();
                let mut survey = Self::broken(kept, start, live, attested, bad);
                survey.cut_bytes = tail.bytes;
                survey.clean = clean;
                if attested <= end.next {
                    survey.corruption = None;
                }
                return Ok(survey);
            }
        }
        unreachable!("nothing follows the last live segment")
    }

    fn broken(kept: Vec<Surveyed>, walked_from: usize, live: &[Found], attested: Lsn, bad: BadAt) -> Self {
        let last = &live[kept.len() - 1];
        let corruption = Some(Corruption::at(last.path(), bad.offset, bad.damage));
        let cut = live[kept.len()..].to_vec();
        Self { kept, cut, walked_from, attested, cut_bytes: 0, clean: false, corruption }
    }
}

/// The highest LSN attested in the newest segment that begins with a valid header, up to the first bad one. Less than
/// what is attested behind damage only makes the survey begin earlier.
fn newest_attestation(live: &[Found]) -> Result<Lsn, DiskFault> {
    for found in live.iter().rev() {
        let mut window = Window::new(found.slot.file.clone(), found.key().limit, CHUNK_BYTES);
        let mut highest = None;
        hop(found, &mut window, DATA_START, &mut |_, header| highest = highest.max(Some(header.attested)))?;
        if let Some(highest) = highest {
            return Ok(highest);
        }
    }
    Ok(Lsn::ZERO)
}

/// Calls `visit` with each header from `from` on, hopping over bodies, up to the first bad one; says where that is.
fn hop(
    found: &Found,
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

/// Calls `visit` with every valid header from `from` on: hops, and searches where one is bad.
fn each_header(found: &Found, from: u32, mut visit: impl FnMut(u32, &BatchHeader)) -> Result<(), DiskFault> {
    let key = found.key();
    let mut window = Window::new(found.slot.file.clone(), key.limit, CHUNK_BYTES);
    let mut at = hop(found, &mut window, from, &mut visit)?;
    while let Some((hit, _)) = find_header(&mut window, key, at).explain("read", found.path())? {
        at = hop(found, &mut window, hit, &mut visit)?;
    }
    Ok(())
}

/// A segment wholly below the attested LSN: its footer says what it holds. Without one it is gone through.
fn settled(found: &Found) -> Result<Result<Surveyed, (Surveyed, BadAt)>, DiskFault> {
    if let Ok(footer) = found.footer()? {
        let extent = Extent {
            written: footer.end,
            next: footer.next,
            first_time: footer.first_time,
            last_time: footer.last_time,
            truncates: footer.truncates,
        };
        return Ok(Ok(Surveyed { found: found.clone(), extent, chain: footer.chain, index: Vec::new() }));
    }
    let walk = walk(found)?;
    let mut later = false;
    each_header(found, walk.surveyed.extent.written, |_, _| later = true)?;
    Ok(if later { Err((walk.surveyed, walk.bad)) } else { Ok(walk.surveyed) })
}

/// What going through a segment found.
struct Walk {
    surveyed: Surveyed,
    attested: Lsn,
    last_kind: Option<BatchKind>,
    /// A valid footer says that the segment ends here.
    sealed: bool,
    /// What stopped the walk.
    bad: BadAt,
}

/// Goes through the batches of a segment and verifies all of each, up to the first bad one.
fn walk(found: &Found) -> Result<Walk, DiskFault> {
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
    let surveyed = Surveyed { found: found.clone(), extent, chain: expected.chain, index };
    Ok(Walk { surveyed, attested, last_kind, sealed, bad })
}

/// What lies past the end.
struct Tail {
    attested: Lsn,
    /// Bytes up to the end of the last batch whose header is there.
    bytes: u64,
}

/// Searches the rest of segment `at` from `from` on, and all later ones, for valid headers.
fn search(live: &[Found], at: usize, from: u32) -> Result<Tail, DiskFault> {
    let mut tail = Tail { attested: Lsn::ZERO, bytes: 0 };
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
