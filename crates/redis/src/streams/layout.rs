//! What a stream is in the store: its meta, and its parts, as bytes.
//!
//! Owns: names and values of all parts; `docs/formats/redis.md` says the same in prose. Does not own what they mean
//! together: who changes a row keeps the counters of the others.
//!
//! ```text
//! name                       value
//! 1 | id                     entry: 0 | (len u32 | bytes)*, fields and values in turn
//! 2 | group's name           group
//! 3 | group u64 | name       number of the consumer of that name
//! 4 | consumer u64           consumer
//! 5 | group u64 | id         pending: delivered, and not acknowledged
//! 6 | consumer u64 | id      nothing: that one is pending with that consumer
//! 7 | group u64              nothing: the group is destroyed, and some of its rows 3 to 6 are left
//! ```
//!
//! Invariants:
//! * Integers in names are big-endian, those in values little-endian.
//! * Groups and consumers have numbers from one counter of the stream, never used again.
//! * For each row 5 there is one row 6, of the consumer that it names, and the reverse.

use std::error::Error;

use bytes::{Buf, BufMut, Bytes};
use thalweg_types::reply::Reply;

use super::id::EntryId;
use crate::store::StoreError;

/// First bytes of names.
const ENTRY: u8 = 1;
const GROUP: u8 = 2;
const CONSUMER_NAME: u8 = 3;
const CONSUMER: u8 = 4;
const PENDING: u8 = 5;
const PENDING_WITH: u8 = 6;
const GRAVE: u8 = 7;
/// The form of an entry that holds its fields. Others are for entries whose fields are elsewhere.
const FORM_FIELDS: u8 = 0;

/// Bytes that no encoder here wrote.
#[derive(Debug, thiserror::Error)]
#[error("a stream's {what} is damaged: {len} bytes that no version of this wrote")]
pub struct Damaged {
    what: &'static str,
    len: usize,
}

/// The error for bytes of that kind.
pub(super) fn damaged(what: &'static str, bytes: &[u8]) -> StoreError {
    let error: Box<dyn Error + Send + Sync> = Box::new(Damaged { what, len: bytes.len() });
    StoreError::Failed(error)
}

/// What a stream's key holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Meta {
    /// Entries.
    pub len: u64,
    /// Of the newest entry ever, or as `XSETID` said. `last_id >= ` the ids of all entries.
    pub last_id: EntryId,
    /// The greatest that `XDEL` removed.
    pub max_deleted_id: EntryId,
    /// Entries ever added, or as `XSETID` said.
    pub added: u64,
    /// Of the first entry; zero if there is none.
    pub first_id: EntryId,
    /// Number of the next group or consumer.
    pub next_number: u64,
    /// Consumer groups.
    pub groups: u32,
    /// Rows 7.
    pub graves: u32,
}

impl Meta {
    /// Bytes of its encoding.
    const LEN: usize = 80;

    /// Its bytes.
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

    /// The reverse.
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

/// A consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its number.
    pub number: u64,
    /// The last entry that was delivered as new.
    pub last_id: EntryId,
    /// How many entries were read up to it; negative: not known.
    pub read: i64,
    /// Rows 5.
    pub pending: u64,
    /// Consumers.
    pub consumers: u64,
}

impl Group {
    const LEN: usize = 48;

    /// Its bytes.
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

    /// The reverse.
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

/// A consumer of a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Consumer {
    /// When it last asked for something.
    pub seen: u64,
    /// Rows 6.
    pub pending: u64,
    /// Its name.
    pub name: Bytes,
}

impl Consumer {
    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(16 + self.name.len());
        bytes.put_u64_le(self.seen);
        bytes.put_u64_le(self.pending);
        bytes.put_slice(&self.name);
        bytes
    }

    /// The reverse.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() < 16 {
            return Err(damaged("consumer", bytes));
        }
        Ok(Self { seen: rest.get_u64_le(), pending: rest.get_u64_le(), name: Bytes::copy_from_slice(rest) })
    }
}

/// An entry that was delivered and not acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pending {
    /// Whose it is.
    pub consumer: u64,
    /// When it was delivered last, in milliseconds since the Unix epoch.
    pub delivered: u64,
    /// How often it was delivered.
    pub deliveries: u64,
}

impl Pending {
    const LEN: usize = 24;

    /// Its bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.consumer.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.delivered.to_le_bytes());
        bytes[16..].copy_from_slice(&self.deliveries.to_le_bytes());
        bytes
    }

    /// The reverse.
    pub fn decode(bytes: &[u8]) -> Result<Self, StoreError> {
        let mut rest = bytes;
        if rest.len() != Self::LEN {
            return Err(damaged("pending entry", bytes));
        }
        Ok(Self { consumer: rest.get_u64_le(), delivered: rest.get_u64_le(), deliveries: rest.get_u64_le() })
    }
}

/// The value of an entry: fields and values in turn.
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

/// The reverse, as the reply that shows them.
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

/// One more. A counter that a damaged row brought to its end stays there.
pub(super) fn one_more(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// One less; there was none only if the rows don't agree with the counter.
pub(super) fn one_less(counter: &mut u64) -> Result<(), StoreError> {
    *counter = counter.checked_sub(1).ok_or_else(|| damaged("counter", b""))?;
    Ok(())
}

/// The value of rows that say all by their names.
pub(super) const NOTHING: &[u8] = &[];
/// The value of rows 3.
pub(super) fn encode_number(number: u64) -> [u8; 8] {
    number.to_le_bytes()
}

/// The reverse.
pub(super) fn decode_number(bytes: &[u8]) -> Result<u64, StoreError> {
    bytes.try_into().map(u64::from_le_bytes).map_err(|_| damaged("consumer's number", bytes))
}

/// Name of an entry.
#[must_use]
pub fn entry(id: EntryId) -> [u8; 17] {
    let mut name = [ENTRY; 17];
    name[1..].copy_from_slice(&id.to_be_bytes());
    name
}

/// Name of a group.
#[must_use]
pub fn group(name: &[u8]) -> Vec<u8> {
    [&[GROUP], name].concat()
}

/// Before all groups, and behind them.
pub(super) const GROUPS: (&[u8], &[u8]) = (&[GROUP], &[GROUP + 1]);
/// Before all graves, and behind them.
pub(super) const GRAVES: (&[u8], &[u8]) = (&[GRAVE], &[GRAVE + 1]);

/// Name of a consumer's number; without a name, what all those of the group begin with.
#[must_use]
pub fn consumer_name(group: u64, name: &[u8]) -> Vec<u8> {
    [&[CONSUMER_NAME], &group.to_be_bytes()[..], name].concat()
}

/// Name of a consumer.
#[must_use]
pub fn consumer(number: u64) -> [u8; 9] {
    numbered(CONSUMER, number)
}

/// Name of a pending entry.
#[must_use]
pub fn pending(group: u64, id: EntryId) -> [u8; 25] {
    numbered_id(PENDING, group, id)
}

/// Name of the row that says with whom it is pending.
#[must_use]
pub fn pending_with(consumer: u64, id: EntryId) -> [u8; 25] {
    numbered_id(PENDING_WITH, consumer, id)
}

/// Name of a grave.
#[must_use]
pub fn grave(group: u64) -> [u8; 9] {
    numbered(GRAVE, group)
}

/// The id at the end of an entry's or a pending entry's name.
pub(super) fn id_of(name: &[u8]) -> Result<EntryId, StoreError> {
    let id = name.last_chunk().filter(|_| name.len() == 17 || name.len() == 25);
    id.map(|id| EntryId::from_be_bytes(*id)).ok_or_else(|| damaged("part's name", name))
}

/// The number in a grave's name.
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
