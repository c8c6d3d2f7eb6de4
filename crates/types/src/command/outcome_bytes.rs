//! Outcomes as bytes, for the running hash of the state machine.
//!
//! Owns: [`Outcome::encode_stable`], whose bytes are equal exactly if replicas agree on an outcome. Does not own
//! replies to clients: these bytes are never decoded.
//!
//! ```text
//! outcome  := number of the variant u8 | its fields in order, little-endian
//! optional := 0 | 1 | field             list := count u32 | item*
//! bytes    := len u32 | byte*           more than 1,024 of them: len u32 | their XXH3-64
//! ```
//! Invariant: texts for people are left out, and so is the position at which a malformed command stopped decoding. Two
//! versions may word an error differently and must still agree. Of a Redis error only its code, the first word,
//! counts.

use xxhash_rust::xxh3::xxh3_64;

use super::{
    AppendedAt, FailedCondition, OperationError, OperationResult, Outcome, ProducerRefusal, ScanPage, StreamLimit,
    Transacted,
    groups::{Fetched, GroupOutcome, Lapsed, OffsetRun},
};
use crate::{ids::Revision, reply::Reply};

impl Outcome {
    /// Appends bytes that are equal for equal outcomes, whichever version of the program computed them.
    pub fn encode_stable(&self, out: &mut Vec<u8>) {
        self.encode_to(&mut Sink(out));
    }

    fn encode_to(&self, sink: &mut Sink<'_>) {
        match self {
            Self::Committed { revision, appends } => {
                sink.u8(0).u64(revision.0).list(appends, AppendedAt::sink);
            }
            Self::Transacted(done) => done.sink(sink.u8(1)),
            Self::OperationFailed { operation, error } => error.sink(sink.u8(2).u32(*operation)),
            Self::ConditionFailed { condition, actual } => {
                sink.u8(3).u32(*condition).revision(*actual);
            }
            Self::Duplicate { revision, appends } => {
                sink.u8(4).u64(revision.0).list(appends, AppendedAt::sink);
            }
            Self::OverStreamLimit { stream, limit, max, got } => {
                let limit = match limit {
                    StreamLimit::RecordBytes => 0,
                    StreamLimit::BatchBytes => 1,
                };
                sink.u8(5).u32(stream.0).u8(limit).u64(*max).u64(*got);
            }
            Self::ProducerRefused { stream, refusal } => refusal.sink(sink.u8(6).u32(stream.0)),
            Self::Producer { epoch } => {
                sink.u8(7).u32(*epoch);
            }
            Self::OffsetConflict { stream, next } => {
                sink.u8(8).u32(stream.0).u64(next.0);
            }
            Self::Keyspace { id, created } => {
                sink.u8(9).u32(id.0).flag(*created);
            }
            Self::Stream { id, created } => {
                sink.u8(10).u32(id.0).flag(*created);
            }
            Self::Dropped { revision } => {
                sink.u8(11).u64(revision.0);
            }
            Self::Done => {
                sink.u8(12);
            }
            Self::Reclaimed { entries, more } => {
                sink.u8(13).u32(*entries).flag(*more);
            }
            Self::Lease { id, ttl, deadline } => {
                let ttl = u64::try_from(ttl.as_micros()).unwrap_or(u64::MAX);
                sink.u8(14).u64(id.get()).u64(ttl).u64(deadline.0);
            }
            Self::NoSuchLease(id) => {
                sink.u8(15).u64(id.get());
            }
            Self::LeaseExists(id) => {
                sink.u8(16).u64(id.get());
            }
            Self::Expired { keys, rows, more } => {
                sink.u8(17).u32(*keys).u32(*rows).flag(*more);
            }
            Self::NoSuchKeyspace(id) => {
                sink.u8(18).u32(id.0);
            }
            Self::NoSuchStream(id) => {
                sink.u8(19).u32(id.0);
            }
            Self::TooMany { what: _, limit } => {
                sink.u8(20).u64(*limit as u64);
            }
            Self::CannotConfigure { what: _ } => {
                sink.u8(21);
            }
            Self::Group(outcome) => outcome.sink(sink.u8(22)),
            Self::Redis(replies) => {
                sink.u8(23).optional(replies.as_deref(), |replies, sink| {
                    sink.list(replies, Reply::sink);
                });
            }
            Self::Malformed(_) => {
                sink.u8(24);
            }
            Self::Version { in_force } => {
                sink.u8(25).u32(u32::from(*in_force));
            }
            Self::VersionNotInForce { needed, in_force } => {
                sink.u8(26).u32(u32::from(*needed)).u32(u32::from(*in_force));
            }
        }
    }
}

/// Maximum number of bytes copied. Longer ones are hashed, because the replies of one command may reach 128 MiB.
const MAX_COPIED_BYTES: usize = 1024;

/// Writer that appends fields.
struct Sink<'a>(&'a mut Vec<u8>);

impl Sink<'_> {
    fn u8(&mut self, field: u8) -> &mut Self {
        self.0.push(field);
        self
    }

    fn flag(&mut self, field: bool) -> &mut Self {
        self.u8(u8::from(field))
    }

    fn u32(&mut self, field: u32) -> &mut Self {
        self.0.extend_from_slice(&field.to_le_bytes());
        self
    }

    fn u64(&mut self, field: u64) -> &mut Self {
        self.0.extend_from_slice(&field.to_le_bytes());
        self
    }

    fn bytes(&mut self, field: &[u8]) -> &mut Self {
        self.u32(field.len() as u32);
        if field.len() > MAX_COPIED_BYTES {
            return self.u64(xxh3_64(field));
        }
        self.0.extend_from_slice(field);
        self
    }

    fn optional<T: ?Sized>(&mut self, field: Option<&T>, sink: impl FnOnce(&T, &mut Sink<'_>)) -> &mut Self {
        self.flag(field.is_some());
        if let Some(field) = field {
            sink(field, self);
        }
        self
    }

    fn revision(&mut self, field: Option<Revision>) -> &mut Self {
        self.optional(field.as_ref(), |revision, sink| {
            sink.u64(revision.0);
        })
    }

    fn list<T>(&mut self, items: &[T], sink: impl Fn(&T, &mut Sink<'_>)) -> &mut Self {
        self.u32(items.len() as u32);
        items.iter().for_each(|item| sink(item, self));
        self
    }
}

impl AppendedAt {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.u32(self.stream.0).u64(self.first.0).u32(self.count);
    }
}

impl Transacted {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.optional(self.failed.as_ref(), |FailedCondition { condition, actual }, sink| {
            sink.u32(*condition).revision(*actual);
        });
        sink.u64(self.revision.0).flag(self.wrote).list(&self.results, OperationResult::sink);
    }
}

impl OperationResult {
    fn sink(&self, sink: &mut Sink<'_>) {
        match self {
            Self::Put => sink.u8(0),
            Self::Deleted { existed } => sink.u8(1).flag(*existed),
            Self::Appended(at) => {
                at.sink(sink.u8(2));
                sink
            }
            Self::Added { value } => sink.u8(3).u64(value.cast_unsigned()),
            Self::Touched { existed } => sink.u8(4).flag(*existed),
            Self::PrefixDeleted { keys } => sink.u8(5).optional(keys.as_ref(), |keys, sink| {
                sink.u64(*keys);
            }),
            Self::Settled { records } => sink.u8(6).u32(*records),
            Self::Got(got) => sink.u8(7).optional(got.as_ref(), |got, sink| {
                sink.u64(got.revision.0).bytes(&got.value);
            }),
            Self::Scanned(page) => {
                page.sink(sink.u8(8));
                sink
            }
        };
    }
}

impl ScanPage {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.list(&self.items, |item, sink| {
            sink.bytes(&item.key).u64(item.revision.0);
            sink.optional(item.value.as_deref(), |value, sink| {
                sink.bytes(value);
            });
        });
        sink.optional(self.after.as_deref(), |after, sink| {
            sink.bytes(after);
        });
    }
}

impl OperationError {
    fn sink(&self, sink: &mut Sink<'_>) {
        match self {
            Self::NotANumber => sink.u8(0),
            Self::HoldsCollection => sink.u8(1),
            Self::Overflow { value, delta } => sink.u8(2).u64(value.cast_unsigned()).u64(delta.cast_unsigned()),
            Self::ResultTooLarge { limit } => sink.u8(3).u64(*limit as u64),
        };
    }
}

impl ProducerRefusal {
    fn sink(&self, sink: &mut Sink<'_>) {
        match self {
            Self::DuplicateTooOld { oldest } => sink.u8(0).u64(*oldest),
            Self::SequenceGap { expected } => sink.u8(1).u64(*expected),
            Self::Fenced { epoch } => sink.u8(2).u32(*epoch),
            Self::Unknown => sink.u8(3),
            Self::Mixed => sink.u8(4),
        };
    }
}

impl GroupOutcome {
    fn sink(&self, sink: &mut Sink<'_>) {
        match self {
            Self::Created { id, created } => sink.u8(0).u32(id.0).flag(*created),
            Self::Done => sink.u8(1),
            Self::Fetched(fetched) => {
                fetched.sink(sink.u8(2));
                sink
            }
            Self::Settled { settled, lapsed } => sink.u8(3).u32(*settled).list(lapsed, Lapsed::sink),
            Self::Extended { deadline, lapsed } => sink.u8(4).u64(deadline.0).list(lapsed, |attempt, sink| {
                sink.u64(attempt.0);
            }),
            Self::Sought { cursor } => sink.u8(5).u64(cursor.0),
            Self::NoSuchGroup(id) => sink.u8(6).u32(id.0),
            Self::AttemptLapsed { group, attempt } => sink.u8(7).u32(group.0).u64(attempt.0),
            Self::BadConfig { what: _ } => sink.u8(8),
        };
    }
}

impl Lapsed {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.u64(self.attempt.0).optional(self.run.as_ref(), OffsetRun::sink);
    }
}

impl OffsetRun {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.u64(self.first.0).u32(self.count);
    }
}

impl Fetched {
    fn sink(&self, sink: &mut Sink<'_>) {
        sink.u64(self.attempt.0).u64(self.deadline.0);
        sink.list(&self.deliveries, |delivered, sink| {
            delivered.run.sink(sink);
            sink.u32(delivered.deliveries);
        });
        sink.u64(self.cursor.0).flag(self.dead);
    }
}

impl Reply {
    fn sink(&self, sink: &mut Sink<'_>) {
        let pair = |(first, second): &(Self, Self), sink: &mut Sink<'_>| {
            first.sink(sink);
            second.sink(sink);
        };
        match self {
            Self::Ok => sink.u8(0),
            Self::Simple(text) => sink.u8(1).bytes(text.as_bytes()),
            Self::Error(text) => sink.u8(2).bytes(text.split(' ').next().unwrap_or_default().as_bytes()),
            Self::Integer(number) => sink.u8(3).u64(number.cast_unsigned()),
            Self::Bulk(bytes) => sink.u8(4).bytes(bytes),
            Self::Null => sink.u8(5),
            Self::NullArray => sink.u8(6),
            Self::Array(items) => sink.u8(7).list(items, Self::sink),
            Self::Map(pairs) => sink.u8(8).list(pairs, pair),
            Self::Pairs(pairs) => sink.u8(9).list(pairs, pair),
            Self::FlatPairs(pairs) => sink.u8(10).list(pairs, pair),
            Self::Set(items) => sink.u8(11).list(items, Self::sink),
            Self::Push(items) => sink.u8(12).list(items, Self::sink),
        };
    }
}

#[cfg(test)]
mod tests;
