//! Conditions on an append to a stream: the offset that its first record must get, and the identity of the producer
//! that sends it.
//!
//! Owns the types and their encoding within a write. Does not own the evaluation of these conditions, which is part of
//! the state machine.
//!
//! A producer numbers its appends to a stream 0, 1, 2, ... within an epoch. A producer that did not receive an answer
//! can safely send the append again: the state machine finds the append's number and returns the stored first answer.

use crate::{
    codec::{EncodeError, Encoding, Field, Malformed, Reader, conversions, structure},
    command::{checks::check_name, error::CommandError},
    ids::{Offset, StreamId},
    limits::MAX_PRODUCER_ID_BYTES,
};

/// Offset that the first record of an append must get, otherwise the append is rejected.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedOffset {
    /// Any offset: the append is never rejected because of its offset.
    #[default]
    Any,
    /// The stream must never have had a record. A stream whose records were all trimmed does not meet this condition.
    NoRecords,
    /// The stream's next offset must be this offset.
    Exact(Offset),
}

impl ExpectedOffset {
    /// Returns the required next offset of the stream; `None` if any offset is allowed. [`NoRecords`](Self::NoRecords)
    /// requires offset 0, since offsets are never reused.
    #[must_use]
    pub fn offset(self) -> Option<Offset> {
        match self {
            Self::Any => None,
            Self::NoRecords => Some(Offset::ZERO),
            Self::Exact(offset) => Some(offset),
        }
    }

    /// Parses `any`, `none` or an offset, as used in query strings and on the command line.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        match text {
            "any" => Some(Self::Any),
            "none" => Some(Self::NoRecords),
            digits if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                digits.parse().ok().map(|offset| Self::Exact(Offset(offset)))
            }
            _ => None,
        }
    }
}

impl std::fmt::Display for ExpectedOffset {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Any => f.write_str("any"),
            Self::NoRecords => f.write_str("none"),
            Self::Exact(offset) => offset.fmt(f),
        }
    }
}

impl From<Option<Offset>> for ExpectedOffset {
    fn from(offset: Option<Offset>) -> Self {
        offset.map_or(Self::Any, Self::Exact)
    }
}

impl From<Offset> for ExpectedOffset {
    fn from(offset: Offset) -> Self {
        Self::Exact(offset)
    }
}

/// Checks a producer's id: it has 1 to [`MAX_PRODUCER_ID_BYTES`] bytes and only the characters that names may have.
pub fn check_producer_id(id: &str) -> Result<(), CommandError> {
    if id.len() > MAX_PRODUCER_ID_BYTES || check_name(id).is_err() {
        return Err(CommandError::BadProducerId { id: id.chars().take(MAX_PRODUCER_ID_BYTES).collect() });
    }
    Ok(())
}

/// Encoding of a producer's id: one byte with the length of the id, then the id.
pub(super) enum ProducerId {}

impl<'a> Encoding<'a, &'a str> for ProducerId {
    fn layout() -> String {
        "producer id".to_owned()
    }

    fn put(id: &&'a str, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        out.push(u8::try_from(id.len()).map_err(|_| EncodeError::TextTooLong { got: id.len() })?);
        out.extend_from_slice(id.as_bytes());
        Ok(())
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<&'a str, Malformed> {
        let len = usize::from(reader.u8(what)?);
        let at = reader.position();
        let id = std::str::from_utf8(reader.take(len, what)?).ok();
        id.filter(|id| check_producer_id(id).is_ok()).ok_or(Malformed { at, expected: "well-formed producer id" })
    }
}

conversions! {
    /// A sequence number below `u64::MAX`, so that there is a next sequence number.
    Sequence: u64 as u64, "sequence" {
        put |sequence| *sequence,
        take |sequence| (sequence != u64::MAX).then_some(sequence)
    }
}

structure! {
    /// Identity of an append: the producer's id, its epoch and a sequence number. By this stamp the stream recognises
    /// an append that the producer sends again.
    #[derive(Copy)]
    ProducerStamp<'a> as "stamp" {
        /// Epoch of the producer. The epoch rises when another instance of the producer takes over; the stream rejects
        /// appends with lower epochs.
        epoch: u32,
        /// Sequence number of the append: from 0 in each epoch, without gaps.
        sequence: u64 as Sequence,
        /// Id of the appending producer.
        id: &'a str as ProducerId,
    }
}

/// An encoded [`ProducerStamp`] that has been checked. The encoded form is small enough to be part of every
/// [`Write`](super::Write).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedStamp<'a>(&'a [u8]);

impl<'a> EncodedStamp<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut ahead = reader.clone();
        let from = ahead.position();
        ProducerStamp::take(&mut ahead, "producer stamp")?;
        reader.take(ahead.position() - from, "producer stamp").map(Self)
    }

    /// Decodes the stamp, which has been checked before.
    #[must_use]
    pub fn get(&self) -> ProducerStamp<'a> {
        ProducerStamp::take(&mut Reader::at(self.0, 0), "producer stamp").expect("decode() checked these bytes")
    }
}

/// Conditions on an append, apart from its records: the offset that the append must get, and the producer's stamp.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendConditions<'a> {
    /// Offset that the first record of the append must get.
    pub expected: ExpectedOffset,
    /// Stamp of the producer. With a stamp, the stream executes the append only once, even if the producer sends it
    /// several times.
    pub producer: Option<ProducerStamp<'a>>,
}

impl AppendConditions<'_> {
    /// Returns true if the append can be rejected depending on the state: it expects an offset or has a producer's
    /// stamp.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.expected != ExpectedOffset::Any || self.producer.is_some()
    }
}

impl<T: Into<ExpectedOffset>> From<T> for AppendConditions<'_> {
    fn from(expected: T) -> Self {
        Self { expected: expected.into(), producer: None }
    }
}

/// Reason why the stream rejected a producer's append, which then changed nothing. The producer can use the append's
/// sequence number again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerRefusal {
    /// The append was executed so long ago that the stream has dropped its result. The stream keeps results of the
    /// sequence numbers from `oldest` on.
    DuplicateTooOld {
        /// Oldest sequence number whose result the stream keeps.
        oldest: u64,
    },
    /// Appends with lower sequence numbers are missing: the producer skipped them.
    SequenceGap {
        /// Sequence number that the producer's next append must have.
        expected: u64,
    },
    /// Another instance of the producer has taken over, with a higher epoch.
    Fenced {
        /// Epoch of the producer's instance that has taken over.
        epoch: u32,
    },
    /// The stream does not remember this producer, or has evicted it, and the append's sequence number is not the
    /// first.
    Unknown,
    /// Some appends of the commit were executed before and others were not, so the commit is not a repetition of an
    /// earlier commit.
    Mixed,
}

/// Position of the records of one append in their stream: the offsets `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AppendedAt {
    /// Id of the stream to which the records were appended.
    pub stream: StreamId,
    /// Offset of the first record of the append.
    pub first: Offset,
    /// Number of appended records.
    pub count: u32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_pinned_and_come_back() {
        let stamp = ProducerStamp { id: "p-1", epoch: 2, sequence: 0x0304 };
        let mut bytes = Vec::new();
        stamp.put(&mut bytes).unwrap();
        assert_eq!(bytes, b"\x02\0\0\0\x04\x03\0\0\0\0\0\0\x03p-1");
        assert_eq!(EncodedStamp::decode(&mut Reader::at(&bytes, 0)).unwrap().get(), stamp);
        for cut in 0..bytes.len() {
            assert!(EncodedStamp::decode(&mut Reader::at(&bytes[..cut], 0)).is_err());
        }
    }

    #[test]
    fn ids_and_sequences_are_bounded_on_both_sides() {
        let longest = "p".repeat(MAX_PRODUCER_ID_BYTES);
        let too_long = "p".repeat(MAX_PRODUCER_ID_BYTES + 1);
        for (id, good) in [("", false), ("a b", false), (longest.as_str(), true), (too_long.as_str(), false)] {
            assert_eq!(check_producer_id(id).is_ok(), good, "{id:?}");
            let mut foreign = Vec::new();
            ProducerId::put(&id, &mut foreign).unwrap();
            assert_eq!(ProducerId::take(&mut Reader::at(&foreign, 0), "id").is_ok(), good, "{id:?}");
        }
        let mut last = Vec::new();
        ProducerStamp { id: "p", epoch: 0, sequence: u64::MAX }.put(&mut last).unwrap();
        assert!(EncodedStamp::decode(&mut Reader::at(&last, 0)).is_err(), "no sequence can follow it");
    }

    #[test]
    fn expectations_are_read_as_they_are_shown() {
        for expected in [ExpectedOffset::Any, ExpectedOffset::NoRecords, ExpectedOffset::Exact(Offset(7))] {
            assert_eq!(ExpectedOffset::parse(&expected.to_string()), Some(expected));
        }
        for bad in ["", "-1", "none ", "18446744073709551616"] {
            assert_eq!(ExpectedOffset::parse(bad), None, "{bad:?}");
        }
        assert_eq!(ExpectedOffset::NoRecords.offset(), Some(Offset(0)));
    }
}
