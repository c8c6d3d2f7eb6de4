//! Handlers that read pages of keyspaces: scans, and the versions of a key.
//!
//! Owns: the handlers, and cutting a page to the size of a frame. Does not own: reads of single keys (`reads`), or the
//! search in the keyspace (the engine).

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;
use thalweg_engine::{
    self as engine, Entry, Keyspace, KeyspaceIter, ScanCursor, ScanRange, VersionEnd, VersionLifetime,
};
use thalweg_serving::{
    admission::Resource,
    limits::{INLINE_LISTED, INLINE_READ_BYTES, NATIVE_PAGE_BYTES, SCAN_PAGE_ITEMS},
};
use thalweg_types::{Revision, SpaceTime, limits::MAX_VERSIONS_PAGE_BYTES};
use thalweg_wire::{self as wire, HEADER_BYTES, List, Order, Pair, Pairs, Scan, Values, VersionState};

use super::{
    failure::Failure,
    reads::{inline_or_blocking, keyspace},
    replies::{FrameMemory, Replies, no_room},
    request::Request,
    turn::{Handled, Turn},
};

/// Maximum number of versions of a key in a reply if the request has no limit; equal to HTTP's default.
const DEFAULT_VERSIONS: usize = 10;
/// Number of bytes of a pair in a scan's reply in addition to its key and value.
const PAIR_HEAD_BYTES: usize = 8 + 4 + 4;
/// Number of bytes in a scan's reply in addition to its pairs and cursor: durability, revision, two lengths.
const PAGE_HEAD_BYTES: usize = 1 + 8 + 4 + 4;
/// Number of bytes of a version in a list of versions in addition to its value.
const VERSION_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 4;
/// Number of bytes in a list of versions in addition to the versions.
const VERSIONS_HEAD_BYTES: usize = 1 + 8 + 8 + 4;

/// Handles a `scan` request: replies with a page of key-value pairs and a cursor.
pub(crate) fn scan(turn: &mut Turn<'_>, request: &Request<'_>, scan: &Scan<'_>) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, scan.keyspace)?;
    // As over HTTP, the size of a page and the number of concurrent scans are both limited.
    let held = turn.account.take(Resource::Scans, 1);
    let held = held.ok_or_else(|| Failure::overloaded("too many scans at a time: retry later"))?;
    let scan_of = ScanOf::new(scan)?;
    let items = if scan.limit == 0 { SCAN_PAGE_ITEMS } else { (scan.limit as usize).min(SCAN_PAGE_ITEMS) };
    let max_frame_bytes = turn.out.max_frame_bytes();
    let asked = if scan.max_bytes == 0 { NATIVE_PAGE_BYTES } else { scan.max_bytes.into() };
    let bytes = usize::try_from(asked).unwrap_or(usize::MAX).min(max_frame_bytes);
    let app = Arc::clone(turn.app);
    // A page of large values is read on another thread even if it has few pairs.
    let few = if bytes as u64 <= INLINE_READ_BYTES || scan.values == Values::Omit { items } else { usize::MAX };
    let few = if items == 1 { 1 } else { few };
    inline_or_blocking(turn, request, few, bytes, move || {
        // The scan counts until its reply has been made.
        let mut iter = scan_of.begin(&keyspace)?;
        let account = held.account();
        if scan_of.range.values == engine::Values::Include
            && account.is_short_of_reply_room()
            && !account.may_hold_reply(iter.next_value_bytes()?.unwrap_or(0))
        {
            return Err(no_room());
        }
        let mut pairs = iter.next_page(items, bytes)?;
        let cut = truncate_pairs(&mut pairs, max_frame_bytes)?;
        let more = match pairs.last() {
            Some(_) if cut => true,
            Some(_) => !iter.next_page(1, 1)?.is_empty(),
            None => false,
        };
        let cursor = match pairs.last() {
            Some((last, _)) if more => iter.cursor(last)?.encode(),
            _ => Vec::new(),
        };
        let (durability, revision) = (app.db.blocking().visible_durability(), iter.revision());
        Ok(move |out: &mut Replies, id: u32| {
            let bytes = HEADER_BYTES + PAGE_HEAD_BYTES + cursor.len() + pairs.iter().map(pair_bytes).sum::<usize>();
            let pairs: Vec<_> = pairs.iter().map(pair).collect();
            let page = Pairs { durability, revision, cursor: &cursor, pairs: List::Items(&pairs) };
            out.states(durability);
            out.reply_sized(id, &page, bytes, FrameMemory::Reserve)
        })
    })
}

fn pair_bytes((key, entry): &(Bytes, Entry)) -> usize {
    PAIR_HEAD_BYTES + key.len() + entry.value.len()
}

fn pair((key, entry): &(Bytes, Entry)) -> Pair<'_> {
    Pair { revision: entry.revision, key, value: &entry.value }
}

/// Parameters of a scan: its range of keys, the revision that it shows, and the cursor after which it continues.
struct ScanOf {
    range: ScanRange,
    revision: Revision,
    cursor: Option<ScanCursor>,
}

impl ScanOf {
    fn new(scan: &Scan<'_>) -> Result<Self, Failure> {
        let range = ScanRange {
            prefix: scan.prefix.to_vec(),
            start: scan.start.map_or(Bound::Unbounded, |start| Bound::Included(start.to_vec())),
            end: scan.end.map_or(Bound::Unbounded, |end| Bound::Excluded(end.to_vec())),
            order: match scan.order {
                Order::Ascending => engine::Order::Ascending,
                Order::Descending => engine::Order::Descending,
            },
            limit: None,
            values: match scan.values {
                Values::Include => engine::Values::Include,
                Values::Omit => engine::Values::Omit,
            },
        };
        let cursor = if scan.cursor.is_empty() { None } else { Some(ScanCursor::decode(scan.cursor)?) };
        if let Some(cursor) = &cursor
            && scan.revision != Revision::ZERO
            && Some(scan.revision) != cursor.revision()
        {
            let message = "the revision differs from that of the cursor: set it to 0";
            return Err(Failure::invalid("bad_parameter", message));
        }
        Ok(Self { range, revision: scan.revision, cursor })
    }

    /// Begins the scan at the start of its range, or after its cursor.
    fn begin(&self, keyspace: &Keyspace) -> Result<KeyspaceIter, Failure> {
        let range = self.range.clone();
        Ok(match (&self.cursor, self.revision) {
            (Some(cursor), _) => keyspace.resume(range, cursor)?,
            (None, Revision::ZERO) => keyspace.iter(range),
            (None, revision) => keyspace.iter_at(range, revision)?,
        })
    }
}

/// Removes pairs from the end of a page until the page fits into a frame. Returns true if pairs were removed. A page
/// exceeds its limit by at most one pair, and the cursor is about as long as a key.
fn truncate_pairs(pairs: &mut Vec<(Bytes, Entry)>, max_frame_bytes: usize) -> Result<bool, Failure> {
    let cursor = |last: &(Bytes, Entry)| last.0.len() + 128;
    let mut bytes = PAGE_HEAD_BYTES + pairs.iter().map(pair_bytes).sum::<usize>();
    let before = pairs.len();
    while let Some(last) = pairs.last() {
        if bytes + cursor(last) <= max_frame_bytes {
            break;
        }
        if pairs.len() == 1 {
            let message = format!(
                "a pair does not fit into the {max_frame_bytes} bytes that the client accepts: scan without values"
            );
            return Err(Failure::invalid("result_too_large", message));
        }
        bytes -= pair_bytes(last);
        pairs.pop();
    }
    Ok(pairs.len() < before)
}

/// Handles a `versions` request: replies with a page of the retained versions of a key, newest first.
pub(crate) fn versions(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    wanted: &wire::Versions<'_>,
) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, wanted.keyspace)?;
    let held = turn.account.take(Resource::Scans, 1);
    let held = held.ok_or_else(|| Failure::overloaded("too many scans at a time: retry later"))?;
    let limit = if wanted.limit == 0 { DEFAULT_VERSIONS } else { wanted.limit as usize };
    let before = (wanted.before != Revision::ZERO).then_some(wanted.before);
    let (app, key) = (Arc::clone(turn.app), wanted.key.0.to_vec());
    let max_frame_bytes = turn.out.max_frame_bytes();
    inline_or_blocking(turn, request, limit.min(INLINE_LISTED as usize + 1), MAX_VERSIONS_PAGE_BYTES, move || {
        let found = keyspace.versions(&key, before, limit)?;
        let durability = app.db.blocking().visible_durability();
        // The request counts as a scan until its reply has been made.
        let _ = &held;
        Ok(move |out: &mut Replies, id: u32| {
            let fits = versions_that_fit(&found.versions, max_frame_bytes);
            let shown = &found.versions[..fits];
            let next = match shown.last() {
                Some(last) if fits < found.versions.len() => last.entry.revision,
                _ => found.next.unwrap_or(Revision::ZERO),
            };
            let versions: Vec<_> = shown.iter().map(version).collect();
            out.states(durability);
            out.reply(
                id,
                &wire::VersionList { durability, oldest: found.oldest, next, versions: List::Items(&versions) },
            )
        })
    })
}

/// Returns the number of versions that fit into a frame. Returns at least 1, even if the first version is too large.
fn versions_that_fit(versions: &[engine::KeyVersion], max_frame_bytes: usize) -> usize {
    let mut bytes = VERSIONS_HEAD_BYTES;
    let fits = versions.iter().take_while(|version| {
        bytes += VERSION_HEAD_BYTES + version.entry.value.len();
        bytes <= max_frame_bytes
    });
    fits.count().max(1).min(versions.len())
}

fn version(version: &engine::KeyVersion) -> wire::Version<'_> {
    let (state, until, until_time) = match version.lifetime {
        VersionLifetime::Current => (VersionState::Current, Revision::ZERO, SpaceTime(0)),
        VersionLifetime::Ended => (VersionState::Ended, Revision::ZERO, SpaceTime(0)),
        VersionLifetime::Until { revision, time, ending } => {
            let state = match ending {
                VersionEnd::Overwritten => VersionState::Overwritten,
                VersionEnd::Deleted => VersionState::Deleted,
                VersionEnd::Expired => VersionState::Expired,
            };
            (state, revision, time.unwrap_or(SpaceTime(0)))
        }
    };
    wire::Version { state, revision: version.entry.revision, until, until_time, value: &version.entry.value }
}
