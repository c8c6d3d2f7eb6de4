//! Handlers that read keys, and functions that all handlers of lists share.
//!
//! Owns: the handlers of `get` and `multi get`, the default and maximum lengths of lists, and the transfer of long
//! replies, or replies that need the disk, to the readers. Does not own: pages of keyspaces (`scans`), lists of other
//! objects (`catalog`), or the readers' threads (`blocking`).
//!
//! Invariant: the durability in a reply is determined after the values were read, so it is valid for all of them.

use std::{cell::Cell, convert::Infallible, sync::Arc};

use thalweg_engine::{Entry, Expiry, Keyspace};
use thalweg_serving::{
    admission::{Account, Resource},
    app::App,
    limits::{COUNTED_REPLY_BYTES, DEFAULT_LISTED, INLINE_LISTED, MAX_LISTED},
};
use thalweg_types::{
    KeyspaceId, LeaseId, Revision,
    budget::{Budget, BudgetSpent},
    limits::{MAX_COMMIT_WRITES, MAX_KEYS_READ_AHEAD, MAX_VALUE_BYTES},
};
use thalweg_wire::{self as wire, Entries, Field as _, Get, HEADER_BYTES, Kind, List, MultiGet, RemainingBytes};

use super::{
    blocking::run_again,
    failure::Failure,
    replies::{FrameMemory, Replies, no_room},
    request::Request,
    turn::{Handled, Reply, Turn},
};

/// Value of the field `remaining` (time to live) in a reply, for a key that does not expire.
pub(crate) const NEVER: u64 = u64::MAX;

/// Handles a `get` request: replies with the value of one key.
pub(crate) fn get(turn: &mut Turn<'_>, request: &Request<'_>, get: &Get<'_>) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, get.keyspace)?;
    let (revision, values) = (get.revision, get.values);
    if (revision, values) == (Revision::ZERO, wire::Values::Include) {
        // If this read fails or needs the disk, the read of the value that follows reports the failure or waits.
        let len = || Ok::<_, Infallible>(turn.budget().perform(|| value_bytes(&keyspace, get.key.0)).ok().flatten());
        if !turn.account.has_reply_room(len).unwrap_or_else(|never| match never {}) {
            return Err(no_room());
        }
    }
    match turn.budget().perform(|| read_key(turn.app, &keyspace, revision, values, get.key.0)) {
        Ok(found) => {
            put_value(turn.app, turn.out, request.id, found?)?;
            Ok(Handled::Replied)
        }
        Err(spent) => {
            let (app, key) = (Arc::clone(turn.app), get.key.0.to_vec());
            Ok(reply_off_thread(turn, request, spent, MAX_VALUE_BYTES, move |out, id| {
                put_value(&app, out, id, read_key(&app, &keyspace, revision, values, &key)?)
            }))
        }
    }
}

fn put_value(app: &App, out: &mut Replies, id: u32, found: LookupResult) -> Result<(), Failure> {
    // The durability is determined after the value was read, so it is valid for the value.
    let durability = app.db.blocking().visible_durability();
    out.states(durability);
    let LookupResult { revision, remaining, lease, value_bytes, value } = found;
    let head = wire::Value { durability, revision, remaining, lease, value_bytes, value: RemainingBytes(b"") };
    if value.len() < COUNTED_REPLY_BYTES || id == 0 {
        return out.reply(id, &wire::Value { value: RemainingBytes(&value), ..head });
    }
    out.shared(Kind::Value, id, VALUE_HEAD_BYTES + value.len(), FrameMemory::Reserve, |parts| {
        head.put(parts.bytes()).expect("integers");
        parts.share(value);
    })
}

/// Number of bytes before the value in a frame with a key's value.
const VALUE_HEAD_BYTES: usize = 1 + 8 + 8 + 8 + 8;
/// Maximum number of keys in a `multi get` request, equal to the maximum number of writes in a commit.
const MAX_KEYS: usize = MAX_COMMIT_WRITES;
/// Number of bytes in the reply to a `multi get` in addition to its entries: header, durability, number of entries.
const ENTRIES_HEAD_BYTES: usize = HEADER_BYTES + 1 + 4;
/// Number of bytes of an entry (a key's result in a `multi get` reply) in addition to its value.
const ENTRY_HEAD_BYTES: usize = 8 + 8 + 8 + 8 + 4;

/// Handles a `multi get` request: replies with the values of several keys.
pub(crate) fn multi_get(turn: &mut Turn<'_>, request: &Request<'_>, wanted: &MultiGet<'_>) -> Result<Handled, Failure> {
    let keyspace = keyspace(turn.app, wanted.keyspace)?;
    if wanted.keys.len() > MAX_KEYS {
        let message = format!("{} keys are above the limit of {MAX_KEYS}: request fewer at a time", wanted.keys.len());
        return Err(Failure::invalid("too_many_keys", message));
    }
    let (revision, values, max_bytes) = (wanted.revision, wanted.values, turn.out.max_frame_bytes());
    let mut spent = BudgetSpent::Steps;
    if wanted.keys.len() as u64 <= INLINE_LISTED {
        let read = || read_keys(turn.app, turn.account, &keyspace, revision, values, wanted.keys.iter(), max_bytes);
        // Several values are read from the disk together. This thread does not do that.
        let budget = if wanted.keys.len() > 1 { Budget::RESIDENT } else { turn.budget() };
        match budget.perform(read) {
            Ok(found) => {
                put_entries(turn.app, turn.out, request.id, found?)?;
                return Ok(Handled::Replied);
            }
            Err(reason) => spent = reason,
        }
    }
    if (revision, values) == (Revision::ZERO, wire::Values::Include) {
        // Sum of the lengths of the values that were read until the budget was spent. A lower bound of the reply's
        // size.
        let bytes = Cell::new(0);
        let add = |key| bytes.set(bytes.get() + value_bytes(&keyspace, key).unwrap_or(0));
        let _ = turn.budget().perform(|| wanted.keys.iter().for_each(add));
        if !turn.account.may_hold_reply(bytes.get()) {
            return Err(no_room());
        }
    }
    let (app, keys) = (Arc::clone(turn.app), wanted.keys.iter().map(<[u8]>::to_vec).collect::<Vec<_>>());
    let returns_newest = (revision, values) == (Revision::ZERO, wire::Values::Include);
    // The read may load one value above the limit before it notices that the limit is exceeded.
    Ok(reply_off_thread(turn, request, spent, MAX_VALUE_BYTES, move |out, id| {
        let ahead = keys.chunks(MAX_KEYS_READ_AHEAD).flat_map(|keys| {
            if returns_newest {
                keyspace.read_ahead(keys.iter().map(Vec::as_slice));
            }
            keys.iter().map(Vec::as_slice)
        });
        let found = read_keys(&app, out.account(), &keyspace, revision, values, ahead, max_bytes)?;
        put_entries(&app, out, id, found)
    }))
}

/// Returns the length of a key's value without reading it; `None` if the key has no value or cannot be read.
fn value_bytes(keyspace: &Keyspace, key: &[u8]) -> Option<u64> {
    keyspace.head(key).ok().flatten().map(|head| head.value_bytes)
}

fn read_keys<'k>(
    app: &App,
    account: &Arc<Account>,
    keyspace: &Keyspace,
    revision: Revision,
    values: wire::Values,
    keys: impl Iterator<Item = &'k [u8]>,
    max_bytes: usize,
) -> Result<LookupResults, Failure> {
    let (mut all, mut bytes) = (Vec::new(), ENTRIES_HEAD_BYTES);
    let mut held = account.empty(Resource::ReplyBytes);
    for key in keys {
        let found = read_key(app, keyspace, revision, values, key)?;
        bytes += ENTRY_HEAD_BYTES + found.value.len();
        if bytes > max_bytes {
            // The request is rejected before all values are in memory.
            let message =
                format!("the values have more than the {max_bytes} bytes that the client accepts: request fewer keys");
            return Err(Failure::invalid("result_too_large", message));
        }
        // The reservation grows with the values, because their total size is not known in advance.
        if bytes >= COUNTED_REPLY_BYTES && !held.grow_to(bytes as u64) {
            return Err(no_room());
        }
        all.push(found);
    }
    let room = if bytes < COUNTED_REPLY_BYTES { FrameMemory::Reserve } else { FrameMemory::Reserved(held) };
    Ok(LookupResults { all, bytes, room })
}

/// Results of reading several keys, with the approximate size of their frame in bytes and the frame's memory
/// reservation.
struct LookupResults {
    all: Vec<LookupResult>,
    bytes: usize,
    room: FrameMemory,
}

fn put_entries(app: &App, out: &mut Replies, id: u32, found: LookupResults) -> Result<(), Failure> {
    let durability = app.db.blocking().visible_durability();
    let entries: Vec<_> = found.all.iter().map(LookupResult::entry).collect();
    out.states(durability);
    out.reply_sized(id, &Entries { durability, entries: List::Items(&entries) }, found.bytes, found.room)
}

/// Returns the keyspace with this id. Returns a failure if there is none.
pub(crate) fn keyspace(app: &App, id: KeyspaceId) -> Result<Keyspace, Failure> {
    app.db.blocking().keyspace_by_id(id).ok_or_else(|| {
        let message = format!("there is no keyspace with id {id}: it was dropped; look up the id of its name again");
        Failure::invalid("no_such_keyspace", message)
    })
}

/// Result of reading a key. Revision 0 means that the key has no value.
struct LookupResult {
    revision: Revision,
    remaining: u64,
    lease: LeaseId,
    value_bytes: u64,
    value: bytes::Bytes,
}

impl LookupResult {
    fn entry(&self) -> wire::Entry<'_> {
        let Self { revision, remaining, lease, value_bytes, ref value } = *self;
        wire::Entry { revision, remaining, lease, value_bytes, value }
    }

    fn missing() -> Self {
        Self {
            revision: Revision::ZERO,
            remaining: NEVER,
            lease: LeaseId(0),
            value_bytes: 0,
            value: bytes::Bytes::new(),
        }
    }
}

fn read_key(
    app: &App,
    keyspace: &Keyspace,
    at: Revision,
    values: wire::Values,
    key: &[u8],
) -> Result<LookupResult, Failure> {
    let (revision, expiry, value_bytes, value) = match (at, values) {
        (Revision::ZERO, wire::Values::Omit) => match keyspace.head(key)? {
            None => return Ok(LookupResult::missing()),
            Some(head) => (head.revision, head.expiry, head.value_bytes, bytes::Bytes::new()),
        },
        _ => {
            let entry = if at == Revision::ZERO { keyspace.get(key)? } else { keyspace.get_at(key, at)? };
            let Some(Entry { value, revision, expiry }) = entry else { return Ok(LookupResult::missing()) };
            let bytes = value.len() as u64;
            (revision, expiry, bytes, if values == wire::Values::Include { value } else { bytes::Bytes::new() })
        }
    };
    let remaining = remaining(app, &expiry)?;
    Ok(LookupResult { revision, remaining, lease: expiry.lease.unwrap_or_default(), value_bytes, value })
}

fn remaining(app: &App, expiry: &Expiry) -> Result<u64, Failure> {
    let left = app.db.blocking().remaining(expiry)?;
    Ok(left.map_or(NEVER, |left| u64::try_from(left.as_micros()).unwrap_or(NEVER)))
}

/// Approximate size in bytes of one item in the reply to a list request, such as a list of streams.
pub(crate) const LISTED_BYTES: usize = 512;

/// Returns the maximum number of items in a reply. `limit` comes from the request; 0 means the default.
pub(crate) fn listed(limit: u32) -> usize {
    let limit = if limit == 0 { DEFAULT_LISTED } else { limit.into() };
    limit.min(MAX_LISTED) as usize
}

/// Builds a reply with about `items` items and `bytes` bytes. If there are few items, this thread tries to read them
/// with a limit on its work. If there are many, or this limit is reached, a thread for long or cold reads builds the
/// reply. `read` reads the items, and returns a function that encodes the reply. `read` may be called several times.
pub(crate) fn inline_or_blocking<P>(
    turn: &mut Turn<'_>,
    request: &Request<'_>,
    items: usize,
    bytes: usize,
    read: impl Fn() -> Result<P, Failure> + Send + 'static,
) -> Result<Handled, Failure>
where
    P: FnOnce(&mut Replies, u32) -> Result<(), Failure>,
{
    let mut spent = BudgetSpent::Steps;
    if items as u64 <= INLINE_LISTED {
        match turn.budget().perform(&read) {
            Ok(put) => {
                put?(turn.out, request.id)?;
                return Ok(Handled::Replied);
            }
            Err(reason) => spent = reason,
        }
    }
    Ok(reply_off_thread(turn, request, spent, bytes, move |out, id| read()?(out, id)))
}

/// Reads and encodes a reply of about `bytes` bytes on a thread for long reads or for cold reads; `spent` determines
/// which. The channel's own outbox is not used during this time. The bytes of the finished frame count against the
/// server's limit on replies until they are sent. `put` may be called twice, each time with an empty outbox.
pub(crate) fn reply_off_thread(
    turn: &Turn<'_>,
    request: &Request<'_>,
    spent: BudgetSpent,
    bytes: usize,
    mut put: impl FnMut(&mut Replies, u32) -> Result<(), Failure> + Send + 'static,
) -> Handled {
    let (aside, id) = (turn.out.factory(), request.id);
    let (app, account) = (Arc::clone(turn.app), Arc::clone(turn.account));
    Handled::later(async move {
        let put = move || {
            let mut replies = aside.replies();
            put(&mut replies, id)?;
            Ok(Reply::Encoded(replies))
        };
        run_again(&app, spent, &account, bytes, put).await
    })
}
