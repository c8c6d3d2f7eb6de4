//! Handlers of requests about caches.
//!
//! Owns: the handlers, and the choice between copying and sharing a value. Does not own: the caches (`thalweg_broker`,
//! found through `App::views`), or the frames (`thalweg_wire`).
//!
//! Each request is answered immediately from memory, and the replies to pipelined requests leave in one write. A small
//! value is copied from the cache entry into the channel's outbox while the mutex of the entry's shard is held. So a
//! hit allocates no memory and changes no reference count. A large value is shared instead of copied.

use std::{ops::ControlFlow, sync::Arc};

use bytes::Bytes;
use thalweg_broker::{
    Cache, CacheCounts, CacheEntry as Entry, CacheError, CacheId, Condition, CreateCacheError, Expiry, Moment,
    NamedCache, ScanCursor, ScanPage, Version,
};
use thalweg_serving::{app::App, aside, error::ApiError, limits::DEFAULT_CACHE_KEYS};
use thalweg_types::{
    budget,
    limits::{MAX_CACHE_ENTRIES_AT_ONCE, MAX_CACHE_SCAN_KEYS},
    steps::ROW,
};
use thalweg_wire::{
    self as wire, CacheAdd, CacheClear, CacheCounter, CacheCreate, CacheDelete, CacheDone, CacheEntries, CacheExpect,
    CacheFigures, CacheGet, CacheKeys, CacheMultiGet, CacheMultiPut, CacheOpened, CachePut, CacheScan, CacheStats,
    CacheStored, CacheTouch, CacheTtl, CacheValue, DropCache, Kind, List, OpenCache, ReadCacheStats, RemainingBytes,
};

use super::{
    failure::Failure,
    reads::inline_or_blocking,
    replies::{FrameMemory, Replies},
    request::Request,
    turn::{Handled, Turn},
};

/// Maximum number of bytes for which a `cache scan` request reserves memory before it reads its page of keys.
const MAX_SCAN_BYTES: usize = 1024 * 1024;
/// Value of the field `remaining` (time to live) in a reply, for a cache entry that does not expire.
const NEVER: u64 = u64::MAX;
/// Size in bytes from which a cache value is put into the outbox by reference. Smaller values are copied into it while
/// the mutex of the cache's shard is held.
const SHARED_FROM_BYTES: usize = 16 * 1024;
/// Number of bytes before the value in a frame with a cache value.
const VALUE_HEAD_BYTES: usize = 8 + 8;

impl From<CacheError> for Failure {
    fn from(error: CacheError) -> Self {
        ApiError::from(error).into()
    }
}

impl From<CreateCacheError> for Failure {
    fn from(error: CreateCacheError) -> Self {
        ApiError::from(error).into()
    }
}

fn find(app: &App, id: u32) -> Result<Arc<Cache>, Failure> {
    app.views.caches.by_id(CacheId(id)).ok_or_else(|| no_such_cache(&format!("with id {id}")))
}

fn no_such_cache(which: &str) -> Failure {
    let message = format!("there is no cache {which}: it was dropped, or the server restarted; open it by name");
    Failure::invalid("no_such_cache", message)
}

fn expiry(ttl: &CacheTtl, now: Moment) -> Expiry {
    match *ttl {
        CacheTtl::Never {} => Expiry::Never,
        CacheTtl::After { micros } => Expiry::after(now, std::time::Duration::from_micros(micros)),
        CacheTtl::Keep {} => Expiry::Keep,
    }
}

/// Converts the condition in a request to write to a cache to the form that the cache takes. Returns `None` if the
/// write is unconditional.
fn condition<'f>(expect: &CacheExpect<'f>) -> Option<Condition<'f>> {
    match *expect {
        CacheExpect::Any {} => None,
        CacheExpect::Absent {} => Some(Condition::Absent),
        CacheExpect::Present {} => Some(Condition::Present),
        CacheExpect::Version { version } => Some(Condition::Version(Version(version))),
        CacheExpect::Value { value } => Some(Condition::Value(value)),
    }
}

fn remaining(entry: &Entry, now: Moment) -> u64 {
    if entry.deadline == Moment::NEVER { NEVER } else { entry.deadline.after(now).as_micros() as u64 }
}

/// Handles a `cache get` request: replies with the value of one key.
pub(crate) fn get(turn: &mut Turn<'_>, request: &Request<'_>, get: &CacheGet<'_>) -> Result<Handled, Failure> {
    let cache = find(turn.app, get.cache)?;
    let now = turn.app.views.moment(request.received);
    let out = &mut *turn.out;
    let large = cache.read(now, get.key.0, |entry| {
        if entry.value.len() >= SHARED_FROM_BYTES {
            return Ok(Some(entry.clone()));
        }
        let (version, remaining) = (entry.version.0, remaining(entry, now));
        out.reply(request.id, &CacheValue { version, remaining, value: RemainingBytes(&entry.value) }).map(|()| None)
    });
    match large.transpose()? {
        None => turn.out.reply(request.id, &CacheValue { version: 0, remaining: NEVER, value: RemainingBytes(b"") })?,
        Some(Some(entry)) if request.id != 0 => {
            turn.out.shared(
                Kind::CacheValue,
                request.id,
                VALUE_HEAD_BYTES + entry.value.len(),
                FrameMemory::Reserve,
                |parts| {
                    parts.bytes().extend_from_slice(&entry.version.0.to_le_bytes());
                    parts.bytes().extend_from_slice(&remaining(&entry, now).to_le_bytes());
                    parts.share(Bytes::from_owner(entry.value));
                },
            )?;
        }
        Some(_) => {}
    }
    Ok(Handled::Replied)
}

/// Handles a `cache multi get` request: replies with the values of several keys.
pub(crate) fn multi_get(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    get: &CacheMultiGet<'_>,
) -> Result<Handled, Failure> {
    check_entry_count(get.keys.len())?;
    let cache = find(turn.app, get.cache)?;
    let now = turn.app.views.moment(request.received);
    let (mut found, mut bytes) = (Vec::with_capacity(get.keys.len()), 0);
    for key in get.keys.iter() {
        let entry = cache.get(now, key);
        bytes += entry.as_ref().map_or(0, |entry| entry.value.len());
        if bytes > turn.out.max_frame_bytes() {
            let message = format!("the values have more than the {bytes} bytes that the client accepts: request fewer");
            return Err(Failure::invalid("result_too_large", message));
        }
        found.push(entry);
    }
    let entries: Vec<_> = found
        .iter()
        .map(|entry| match entry {
            None => wire::CacheEntry { version: 0, remaining: NEVER, value: b"" },
            Some(entry) => {
                wire::CacheEntry { version: entry.version.0, remaining: remaining(entry, now), value: &entry.value }
            }
        })
        .collect();
    turn.out.reply(request.id, &CacheEntries { entries: List::Items(&entries) })?;
    Ok(Handled::Replied)
}

fn check_entry_count(entries: usize) -> Result<(), Failure> {
    if entries <= MAX_CACHE_ENTRIES_AT_ONCE {
        return Ok(());
    }
    let message =
        format!("a request has at most {MAX_CACHE_ENTRIES_AT_ONCE} entries, not {entries}: send several requests");
    Err(Failure::invalid("too_many_entries", message))
}

/// Handles a `cache put` request: stores a value, optionally on a condition, and replies with the value's version.
pub(crate) fn put(turn: &mut Turn<'_>, request: &Request<'_>, put: &CachePut<'_>) -> Result<Handled, Failure> {
    let cache = find(turn.app, put.cache)?;
    let now = turn.app.views.moment(request.received);
    let expiry = expiry(&put.ttl, now);
    let version = match condition(&put.expect) {
        None => cache.put(now, put.key, put.value.0, expiry)?,
        Some(condition) => cache.put_if(now, put.key, put.value.0, expiry, condition)?,
    };
    turn.out.reply(request.id, &CacheStored { version: version.0 })?;
    Ok(Handled::Replied)
}

/// Handles a `cache multi put` request: stores several values without conditions.
pub(crate) fn multi_put(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    put: &CacheMultiPut<'_>,
) -> Result<Handled, Failure> {
    check_entry_count(put.pairs.len())?;
    let cache = find(turn.app, put.cache)?;
    let now = turn.app.views.moment(request.received);
    let pairs: Vec<_> = put.pairs.iter().map(|pair| (pair.key, pair.value)).collect();
    cache.put_many(now, pairs.iter().copied(), expiry(&put.ttl, now))?;
    done(turn, request, !pairs.is_empty())
}

fn done(turn: &mut Turn<'_>, request: &Request<'_>, existed: bool) -> Result<Handled, Failure> {
    turn.out.reply(request.id, &CacheDone { existed })?;
    Ok(Handled::Replied)
}

/// Handles a `cache delete` request: deletes a key, and replies if the key existed.
pub(crate) fn delete(turn: &mut Turn<'_>, request: &Request<'_>, delete: &CacheDelete<'_>) -> Result<Handled, Failure> {
    let cache = find(turn.app, delete.cache)?;
    let (now, key) = (turn.app.views.moment(request.received), delete.key.0);
    let existed = match condition(&delete.expect) {
        None => cache.delete(now, key),
        // An absent key meets this condition. Then no entry is left to delete.
        Some(condition @ Condition::Absent) => cache.delete_if(now, key, condition).map(|()| false)?,
        Some(condition) => cache.delete_if(now, key, condition).map(|()| true)?,
    };
    done(turn, request, existed)
}

/// Handles a `cache touch` request: sets the time at which an entry of a cache expires.
pub(crate) fn touch(turn: &mut Turn<'_>, request: &Request<'_>, touch: &CacheTouch<'_>) -> Result<Handled, Failure> {
    let cache = find(turn.app, touch.cache)?;
    let now = turn.app.views.moment(request.received);
    let existed = cache.touch(now, touch.key.0, expiry(&touch.ttl, now));
    done(turn, request, existed)
}

/// Handles a `cache add` request: adds a number to a counter and replies with its new value.
pub(crate) fn add(turn: &mut Turn<'_>, request: &Request<'_>, add: &CacheAdd<'_>) -> Result<Handled, Failure> {
    let cache = find(turn.app, add.cache)?;
    let now = turn.app.views.moment(request.received);
    let value = cache.add(now, add.key.0, add.delta, expiry(&add.ttl, now))?;
    turn.out.reply(request.id, &CacheCounter { value })?;
    Ok(Handled::Replied)
}

/// Handles a `cache scan` request: replies with a page of keys and a cursor.
pub(crate) fn scan(turn: &mut Turn<'_>, request: &Request<'_>, scan: &CacheScan) -> Result<Handled, Failure> {
    let cache = find(turn.app, scan.cache)?;
    let count = if scan.limit == 0 { DEFAULT_CACHE_KEYS as usize } else { scan.limit as usize };
    // The fixed fields of the frame and the length prefixes of the keys need a part of the frame.
    let room = turn.out.max_frame_bytes().saturating_sub(64 + 4 * count.min(MAX_CACHE_SCAN_KEYS));
    let (now, cursor) = (turn.app.views.moment(request.received), scan.cursor.map(ScanCursor));
    inline_or_blocking(turn, request, 1, room.min(MAX_SCAN_BYTES), move || {
        // A page of the default size is read on this thread, unless the cache has very many entries.
        let steps = cache.scan_steps() + ROW * count.min(MAX_CACHE_SCAN_KEYS) as u64;
        let page = match budget::charge(steps) {
            ControlFlow::Continue(()) => cache.scan(now, cursor, count, room),
            ControlFlow::Break(()) => ScanPage::default(),
        };
        Ok(move |out: &mut Replies, id: u32| {
            let keys: Vec<&[u8]> = page.keys.iter().map(|key| &**key).collect();
            let cursor = page.next.map(|next| next.0);
            out.reply(id, &CacheKeys { cursor, keys: List::Items(&keys) })
        })
    })
}

/// Handles a `cache clear` request: removes all entries of a cache.
pub(crate) fn clear(turn: &mut Turn<'_>, request: &Request<'_>, clear: &CacheClear) -> Result<Handled, Failure> {
    aside::free(find(turn.app, clear.cache)?.clear());
    done(turn, request, true)
}

/// Handles an `open cache` request: finds a cache by name, or creates it if the request permits.
pub(crate) fn open(turn: &mut Turn<'_>, request: &Request<'_>, open: &OpenCache<'_>) -> Result<Handled, Failure> {
    let views = &turn.app.views;
    let (named, created) = match open.create {
        CacheCreate::Never => {
            let found = views.caches.get(open.name);
            (found.ok_or_else(|| no_such_cache(&format!("named {:?}", open.name)))?, false)
        }
        CacheCreate::IfMissing => {
            views.cache(turn.account, open.name, (open.max_bytes != 0).then_some(open.max_bytes))?
        }
    };
    let NamedCache { id: CacheId(cache), max_bytes, .. } = named;
    turn.out.reply(request.id, &CacheOpened { cache, created, max_bytes })?;
    Ok(Handled::Replied)
}

/// Handles a `drop cache` request: removes a cache and all its entries.
pub(crate) fn drop_cache(turn: &mut Turn<'_>, request: &Request<'_>, gone: &DropCache) -> Result<Handled, Failure> {
    let removed = turn.app.views.caches.remove_id(CacheId(gone.cache));
    let existed = removed.is_some();
    if let Some(removed) = removed {
        aside::free(removed.cache.clear());
    }
    done(turn, request, existed)
}

/// Handles a `read cache stats` request: replies with the statistics of one cache or of all caches.
pub(crate) fn stats(turn: &mut Turn<'_>, request: &Request<'_>, read: &ReadCacheStats) -> Result<Handled, Failure> {
    let mut all = turn.app.views.caches.list();
    if read.cache != 0 {
        all.retain(|named| named.id == CacheId(read.cache));
        if all.is_empty() {
            return Err(no_such_cache(&format!("with id {}", read.cache)));
        }
    }
    all.sort_unstable_by_key(|named| named.id);
    let caches: Vec<_> = all.iter().map(figures).collect();
    turn.out.reply(request.id, &CacheStats { caches: List::Items(&caches) })?;
    Ok(Handled::Replied)
}

fn figures(named: &NamedCache) -> CacheFigures {
    let CacheCounts { entries, bytes, max_bytes: _, hits, misses, puts, deletes, evictions, expired } =
        named.cache.stats();
    CacheFigures {
        cache: named.id.0,
        entries,
        bytes,
        max_bytes: named.max_bytes,
        hits,
        misses,
        puts,
        deletes,
        evictions,
        expirations: expired,
        name: named.name.to_string(),
    }
}
