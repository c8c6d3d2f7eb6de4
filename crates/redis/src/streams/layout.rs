//! Byte layout of a stream in the store: its meta and its parts.
//!
//! Owns: names and values of all parts; `docs/formats/redis.md` describes them in prose. Does not own: consistency
//! between rows. Code that changes a row also updates the counters in other rows.
//!
//! ```text
//! name                       value
//! 1 | id                     entry: 0 | (len u32 | bytes)*, fields and values in turn
//! 2 | group's name           group
//! 3 | group u64 | name       number of the consumer of that name
//! 4 | consumer u64           consumer
//! 5 | group u64 | id         pending: delivered, and not acknowledged
//! 6 | consumer u64 | id      nothing: the entry of row 5 is pending with this consumer
//! 7 | group u64              nothing: the group is destroyed, but some of its rows 3 to 6 are left
//! ```
//!
//! Invariants:
//! * Integers in names are big-endian, those in values little-endian.
//! * Groups and consumers have numbers from one counter of the stream, which are never reused.
//! * For each row 5 (a pending entry) there is exactly one row 6, of the consumer that row 5 names, and vice versa.

use std::error::Error;

use bytes::{Buf, BufMut, Bytes};
use thalweg_types::reply::Reply;

use super::id::EntryId;
use crate::store::StoreError;

/// First byte of an entry's row name. The first byte of a row's name determines the kind of the row.
const ENTRY: u8 = 1;
const GROUP: u8 = 2;
const CONSUMER_NAME: u8 = 3;
const CONSUMER: u8 = 4;
const PENDING: u8 = 5;
const PENDING_WITH: u8 = 6;
const GRAVE: u8 = 7;
/// First byte of an entry's value if the fields follow within the value. Other first bytes are reserved for entries
/// whose fields are stored elsewhere.
const FORM_FIELDS: u8 = 0;

/// Error returned if the bytes of a stream's meta or row are damaged and cannot be decoded.
#[derive(Debug, thiserror::Error)]
#[error("a stream's {what} is damaged: its {len} bytes do not decode")]
pub struct Corrupt {
    what: &'static str,
    len: usize,
}

/// Creates the error for damaged bytes; `what` names the damaged row or value.
pub(super) fn damaged(what: &'static str, bytes: &[u8]) -> StoreError {
    let error: Box<dyn Error + Send + Sync> = Box::new(Corrupt { what, len: bytes.len() });
    StoreError::Failed(error)
}

/// Meta of a stream: the ids and counters that are stored as the value of the stream's key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Number of entries in the stream.
    pub len: u64,
    /// Id of the newest entry ever added, or the id set by `XSETID`. It is at least as high as the ids of all entries.
    pub last_id: EntryId,
    /// Highest id of an entry that `XDEL` removed.
    pub max_deleted_id: EntryId,
    /// Number of entries ever added, or the number set by `XSETID`.
    pub added: u64,
    /// Id of the oldest entry in the stream; zero if the stream is empty.
    pub first_id: EntryId,
    /// Last number assigned to a group or a consumer. Groups and consumers use the same counter.
    pub next_number: u64,
    /// Number of consumer groups of the stream.
    pub groups: u32,
    /// Number of destroyed groups that have rows left. Each of them has a grave row (kind 7).
    pub graves: u32,
}

impl Meta {
    /// Length in bytes of the encoded meta of a stream.
    const LEN: usize = 80;

    /// Encodes the meta of a stream.
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.put_u64_le(self.len);
        put_id(&mut bytes, self.last_id);
        put_id(&mut bytes, self.max_deleted_id);
        bytes.put_u64_le(self.added);
        put_id(&mut bytes, self.first_id);
        bytes.put_u64_le(self.next_number);
        bytes.put_u32_le(self.groups);
        bytes.put_u32_le(self.graves);
        bytes.into()
    }

    /// Decodes the meta of a stream.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() != Self::LEN {
            return Err(damaged("meta", bytes));
        }
        Ok(Self {
            len: rest.get_u64_le(),
            last_id: get_id(&mut rest),
            max_deleted_id: get_id(&mut rest),
            added: rest.get_u64_le(),
            first_id: get_id(&mut rest),
            next_number: rest.get_u64_le(),
            groups: rest.get_u32_le(),
            graves: rest.get_u32_le(),
        })
    }
}

/// A consumer group, as its row stores it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number that identifies the group within the stream.
    pub number: u64,
    /// Id of the last entry that the group has received, not counting repeated deliveries.
    pub last_id: EntryId,
    /// Number of entries up to `last_id` that the group has read; negative if unknown.
    pub read: i64,
    /// Number of entries that were delivered to the group but not acknowledged.
    pub pending: u64,
    /// Number of consumers of the group.
    pub consumers: u64,
}

impl Group {
    const LEN: usize = 48;

    /// Encodes the row of a consumer group.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(Self::LEN);
        bytes.put_u64_le(self.number);
        put_id(&mut bytes, self.last_id);
        bytes.put_i64_le(self.read);
        bytes.put_u64_le(self.pending);
        bytes.put_u64_le(self.consumers);
        bytes
    }

    /// Decodes the row of a consumer group.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() != Self::LEN {
            return Err(damaged("group", bytes));
        }
        Ok(Self {
            number: rest.get_u64_le(),
            last_id: get_id(&mut rest),
            read: rest.get_i64_le(),
            pending: rest.get_u64_le(),
            consumers: rest.get_u64_le(),
        })
    }
}

/// A consumer of a group, as its row stores it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// Time of the consumer's last request, in milliseconds since the Unix epoch.
    pub seen: u64,
    /// Number of entries that were delivered to the consumer but not acknowledged.
    pub pending: u64,
    /// Name of the consumer.
    pub name: Bytes,
}

impl Consumer {
    /// Encodes the consumer's row.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + self.name.len());
        bytes.put_u64_le(self.seen);
        bytes.put_u64_le(self.pending);
        bytes.put_slice(&self.name);
        bytes
    }

    /// Decodes a consumer's row.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() < 16 {
            return Err(damaged("consumer", bytes));
        }
        Ok(Self { seen: rest.get_u64_le(), pending: rest.get_u64_le(), name: Bytes::copy_from_slice(rest) })
    }
}

/// An entry that was delivered but not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Number that identifies the consumer to which the entry was delivered last.
    pub consumer: u64,
    /// Time of the last delivery, in milliseconds since the Unix epoch.
    pub delivered: u64,
    /// Number of times that the entry was delivered.
    pub deliveries: u64,
}

impl Pending {
    const LEN: usize = 24;

    /// Encodes the pending entry's row.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.consumer.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.delivered.to_le_bytes());
        bytes[16..].copy_from_slice(&self.deliveries.to_le_bytes());
        bytes
    }

    /// Decodes a pending entry's row.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() != Self::LEN {
            return Err(damaged("pending entry", bytes));
        }
        Ok(Self { consumer: rest.get_u64_le(), delivered: rest.get_u64_le(), deliveries: rest.get_u64_le() })
    }
}

/// Encodes the value of an entry; `fields` contains names and values of the fields in turn.
#[must_use]
pub fn encode_entry(fields: &[&[u8]]) -> Vec<u8> {
    let len: usize = fields.iter().map(|field| 4 + field.len()).sum();
    let mut bytes = Vec::with_capacity(1 + len);
    bytes.push(FORM_FIELDS);
    for field in fields {
        bytes.put_u32_le(field.len() as u32);
        bytes.put_slice(field);
    }
    bytes
}

/// Decodes the value of an entry into the reply that shows the fields to a client.
pub fn decode_entry(bytes: &[u8]) -> Result<Reply, StoreError> {
    let shared = Bytes::copy_from_slice(bytes);
    let mut fields = Vec::new();
    let mut at = 1;
    if bytes.first() != Some(&FORM_FIELDS) {
        return Err(damaged("entry", bytes));
    }
    while at < shared.len() {
        let len = shared.get(at..at + 4).ok_or_else(|| damaged("entry", bytes))?;
        let len = u32::from_le_bytes(len.try_into().expect("4 bytes")) as usize;
        at += 4;
        if len > shared.len() - at {
            return Err(damaged("entry", bytes));
        }
        fields.push(Reply::Bulk(shared.slice(at..at + len)));
        at += len;
    }
    if fields.is_empty() || !fields.len().is_multiple_of(2) {
        return Err(damaged("entry", bytes));
    }
    Ok(Reply::Array(fields))
}

/// Increments a counter. If the counter is at its maximum, it stays there; only a damaged row can contain the maximum.
pub(super) fn increment(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// Decrements a counter. Returns an error if the counter is zero, because the rows then contradict it.
pub(super) fn decrement(counter: &mut u64) -> Result<(), StoreError> {
    *counter = counter.checked_sub(1).ok_or_else(|| damaged("counter", b""))?;
    Ok(())
}

/// Empty value of rows that store all their information in their name.
pub(super) const NOTHING: &[u8] = &[];
/// Encodes the number that identifies a consumer: the value of the row that is found by the consumer's name.
pub(super) fn encode_number(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// Decodes the number that identifies a consumer: the value of the row that is found by the consumer's name.
pub(super) fn decode_number(bytes: &[u8]) -> Result<u64, StoreError> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| damaged("consumer's number", bytes))
}

/// Returns the name of the row that stores an entry.
#[must_use]
pub fn entry(id: EntryId) -> [u8; 17] {
    let mut name = [ENTRY; 17];
    name[1..].copy_from_slice(&id.to_be_bytes());
    name
}

/// Returns the name of the row that stores a group.
#[must_use]
pub fn group(name: &[u8]) -> Vec<u8> {
    [&[GROUP], name].concat()
}

/// Range of the names of the rows of all groups: start, exclusive end.
pub(super) const GROUPS: (&[u8], &[u8]) = (&[GROUP], &[GROUP + 1]);
/// Range of the names of all grave rows (destroyed groups with leftover rows): start, exclusive end.
pub(super) const GRAVES: (&[u8], &[u8]) = (&[GRAVE], &[GRAVE + 1]);

/// Returns the name of the row that maps a consumer's name to its number. With an empty consumer name, returns the
/// prefix that these rows of a group have in common.
#[must_use]
pub fn consumer_name(group: u64, name: &[u8]) -> Vec<u8> {
    [&[CONSUMER_NAME], &group.to_be_bytes()[..], name].concat()
}

/// Returns the name of the row that stores a consumer.
#[must_use]
pub fn consumer(number: u64) -> [u8; 9] {
    numbered(CONSUMER, number)
}

/// Returns the name of the row that stores a pending entry: one that was delivered to a group but not acknowledged.
#[must_use]
pub fn pending(group: u64, id: EntryId) -> [u8; 25] {
    numbered_id(PENDING, group, id)
}

/// Returns the name of the row that lists a pending entry under its consumer.
#[must_use]
pub fn pending_with(consumer: u64, id: EntryId) -> [u8; 25] {
    numbered_id(PENDING_WITH, consumer, id)
}

/// Returns the name of the grave row of a destroyed group, which records that rows of the group are left.
#[must_use]
pub fn grave(group: u64) -> [u8; 9] {
    numbered(GRAVE, group)
}

/// Returns the entry id at the end of a row's name. The row is an entry or a pending entry.
pub(super) fn id_of(name: &[u8]) -> Result<EntryId, StoreError> {
    let id = name.last_chunk().filter(|_| name.len() == 17 || name.len() == 25);
    id.map(|id| EntryId::from_be_bytes(*id)).ok_or_else(|| damaged("part's name", name))
}

/// Returns the number of the destroyed group in the name of its grave row.
pub(super) fn number_of(name: &[u8]) -> Result<u64, StoreError> {
    let number = name.last_chunk().filter(|_| name.len() == 9);
    number.map(|number| u64::from_be_bytes(*number)).ok_or_else(|| damaged("part's name", name))
}

fn numbered(tag: u8, number: u64) -> [u8; 9] {
    let mut name = [tag; 9];
    name[1..].copy_from_slice(&number.to_be_bytes());
    name
}

fn numbered_id(tag: u8, number: u64, id: EntryId) -> [u8; 25] {
    let mut name = [tag; 25];
    name[1..9].copy_from_slice(&number.to_be_bytes());
    name[9..].copy_from_slice(&id.to_be_bytes());
    name
}

fn put_id(bytes: &mut Vec<u8>, id: EntryId) {
    bytes.put_u64_le(id.ms);
    bytes.put_u64_le(id.seq);
}

fn get_id(bytes: &mut &[u8]) -> EntryId {
    EntryId { ms: bytes.get_u64_le(), seq: bytes.get_u64_le() }
}

#[cfg(test)]
#[path = "layout_tests.rs"]
mod tests;
