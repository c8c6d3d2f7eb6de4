//! Encoding of command outcomes as bytes, from which the state machine computes its running hash.
//!
//! Owns: [`Outcome::encode_stable`], whose bytes are equal on two replicas exactly if the replicas computed the same
//! outcome. Does not own replies to clients: these bytes are never decoded.
//!
//! ```text
//! outcome  := number of the variant u8 | its fields in order, little-endian
//! optional := 0 | 1 | field             list := count u32 | item*
//! bytes    := len u32 | byte*           more than 1,024 of them: len u32 | their XXH3-64
//! ```
//! Invariant: the bytes contain neither texts for people nor the position at which a malformed command stopped
//! decoding. Two versions of the program may word an error differently, and their hashes must still agree. Of a Redis
//! error, only the code (its first word) is encoded.

use std::time::Duration;

use bytes::Bytes;
use xxhash_rust::xxh3::xxh3_64;

use crate::{
    clock::SpaceTime,
    command::{
        append::{AppendedAt, ProducerRefusal},
        groups::{DeliveredRun, Fetched, GroupOutcome, Lapsed, OffsetRun},
        outcome::Outcome,
        stream_config::StreamLimit,
        transaction::{FailedCondition, OperationError, OperationResult, ReadValue, ScanPage, ScannedItem, Transacted},
    },
    ids::{Attempt, GroupId, KeyspaceId, LeaseId, Offset, Revision, StreamId},
    reply::Reply,
};

/// Maximum size in bytes of a value that is copied into the encoding of an outcome. A longer value is replaced by its
/// hash, because the replies of one command may reach 128 MiB.
const MAX_COPIED_BYTES: usize = 1024;

/// A value within an outcome that has a stable encoding for the running hash.
trait Stable {
    /// Appends bytes to `out` that are equal for equal values.
    fn put(&self, out: &mut Vec<u8>);
}

impl Outcome {
    /// Appends bytes to `out` that are equal for equal outcomes, whichever version of the program computed them.
    pub fn encode_stable(&self, out: &mut Vec<u8>) {
        self.put(out);
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Stable for $number {
            fn put(&self, out: &mut Vec<u8>) {
                out.extend_from_slice(&self.to_le_bytes());
            }
        }
    )*};
}

macro_rules! ids {
    ($($id:ty),*) => {$(
        impl Stable for $id {
            fn put(&self, out: &mut Vec<u8>) {
                self.0.put(out);
            }
        }
    )*};
}

numbers!(u8, u32, u64, i64);
ids!(Attempt, GroupId, KeyspaceId, LeaseId, Offset, Revision, SpaceTime, StreamId);

impl Stable for bool {
    fn put(&self, out: &mut Vec<u8>) {
        out.push(u8::from(*self));
    }
}

impl Stable for u16 {
    fn put(&self, out: &mut Vec<u8>) {
        u32::from(*self).put(out);
    }
}

impl Stable for usize {
    fn put(&self, out: &mut Vec<u8>) {
        (*self as u64).put(out);
    }
}

impl Stable for Duration {
    fn put(&self, out: &mut Vec<u8>) {
        u64::try_from(self.as_micros()).unwrap_or(u64::MAX).put(out);
    }
}

impl Stable for [u8] {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        if self.len() > MAX_COPIED_BYTES {
            xxh3_64(self).put(out);
        } else {
            out.extend_from_slice(self);
        }
    }
}

impl Stable for Bytes {
    fn put(&self, out: &mut Vec<u8>) {
        self[..].put(out);
    }
}

impl<T: Stable> Stable for Option<T> {
    fn put(&self, out: &mut Vec<u8>) {
        self.is_some().put(out);
        self.iter().for_each(|field| field.put(out));
    }
}

impl<T: Stable> Stable for Vec<T> {
    fn put(&self, out: &mut Vec<u8>) {
        (self.len() as u32).put(out);
        self.iter().for_each(|item| item.put(out));
    }
}

impl Stable for (Reply, Reply) {
    fn put(&self, out: &mut Vec<u8>) {
        self.0.put(out);
        self.1.put(out);
    }
}

/// Implements [`Stable`] for structs: encodes the fields one after the other in the given order.
macro_rules! structs {
    ($($name:ident { $($field:ident),* })*) => {$(
        impl Stable for $name {
            fn put(&self, out: &mut Vec<u8>) {
                let Self { $($field),* } = self;
                $($field.put(out);)*
            }
        }
    )*};
}

structs! {
    AppendedAt { stream, first, count }
    Transacted { failed, revision, wrote, results }
    FailedCondition { condition, actual }
    ReadValue { revision, value }
    ScanPage { items, after }
    ScannedItem { key, revision, value }
    Lapsed { attempt, run }
    OffsetRun { first, count }
    Fetched { attempt, deadline, deliveries, cursor, dead }
    DeliveredRun { run, deliveries }
}

/// Implements [`Stable`] for enums: encodes the number of the variant, then its fields in the given order.
macro_rules! enums {
    ($($name:ident { $($code:literal: $variant:pat => $($field:expr),*;)* })*) => {$(
        impl Stable for $name {
            fn put(&self, out: &mut Vec<u8>) {
                match self {
                    $($variant => {
                        out.push($code);
                        $($field.put(out);)*
                    })*
                }
            }
        }
    )*};
}

enums! {
    Outcome {
        0: Self::Committed { revision, appends } => revision, appends;
        1: Self::Transacted(done) => done;
        2: Self::OperationFailed { operation, error } => operation, error;
        3: Self::ConditionFailed { condition, actual } => condition, actual;
        4: Self::Duplicate { revision, appends } => revision, appends;
        5: Self::OverStreamLimit { stream, limit, max, got } => stream, limit, max, got;
        6: Self::ProducerRefused { stream, refusal } => stream, refusal;
        7: Self::Producer { epoch } => epoch;
        8: Self::OffsetConflict { stream, next } => stream, next;
        9: Self::Keyspace { id, created } => id, created;
        10: Self::Stream { id, created } => id, created;
        11: Self::Dropped { revision } => revision;
        12: Self::Done => ;
        13: Self::Reclaimed { entries, more } => entries, more;
        14: Self::Lease { id, ttl, deadline } => id, ttl, deadline;
        15: Self::NoSuchLease(id) => id;
        16: Self::LeaseExists(id) => id;
        17: Self::Expired { keys, rows, more } => keys, rows, more;
        18: Self::NoSuchKeyspace(id) => id;
        19: Self::NoSuchStream(id) => id;
        20: Self::TooMany { what: _, limit } => limit;
        21: Self::CannotConfigure { what: _ } => ;
        22: Self::Group(outcome) => outcome;
        23: Self::Redis(replies) => replies;
        24: Self::Malformed(_) => ;
        25: Self::Version { in_force } => in_force;
        26: Self::VersionNotInForce { needed, in_force } => needed, in_force;
        27: Self::TooExpensive { limit } => limit;
    }
    StreamLimit {
        0: Self::RecordBytes => ;
        1: Self::BatchBytes => ;
    }
    OperationResult {
        0: Self::Put => ;
        1: Self::Deleted { existed } => existed;
        2: Self::Appended(at) => at;
        3: Self::Added { value } => value;
        4: Self::Touched { existed } => existed;
        5: Self::PrefixDeleted { keys } => keys;
        6: Self::Settled { records } => records;
        7: Self::Got(got) => got;
        8: Self::Scanned(page) => page;
    }
    OperationError {
        0: Self::NotANumber => ;
        1: Self::HoldsCollection => ;
        2: Self::Overflow { value, delta } => value, delta;
        3: Self::ResultTooLarge { limit } => limit;
    }
    ProducerRefusal {
        0: Self::DuplicateTooOld { oldest } => oldest;
        1: Self::SequenceGap { expected } => expected;
        2: Self::Fenced { epoch } => epoch;
        3: Self::Unknown => ;
        4: Self::Mixed => ;
    }
    GroupOutcome {
        0: Self::Created { id, created } => id, created;
        1: Self::Done => ;
        2: Self::Fetched(fetched) => fetched;
        3: Self::Settled { settled, lapsed } => settled, lapsed;
        4: Self::Extended { deadline, lapsed } => deadline, lapsed;
        5: Self::Sought { cursor } => cursor;
        6: Self::NoSuchGroup(id) => id;
        7: Self::AttemptLapsed { group, attempt } => group, attempt;
        8: Self::BadConfig { what: _ } => ;
    }
    Reply {
        0: Self::Ok => ;
        1: Self::Simple(text) => text.as_bytes();
        2: Self::Error(text) => text.split(' ').next().unwrap_or_default().as_bytes();
        3: Self::Integer(number) => number;
        4: Self::Bulk(bytes) => bytes[..];
        5: Self::Null => ;
        6: Self::NullArray => ;
        7: Self::Array(items) => items;
        8: Self::Map(pairs) => pairs;
        9: Self::Pairs(pairs) => pairs;
        10: Self::FlatPairs(pairs) => pairs;
        11: Self::Set(items) => items;
        12: Self::Push(items) => items;
    }
}

#[cfg(test)]
mod tests;
