//! Terms of an append: the offset that it must get, and the producer that sends it.
//!
//! Owns the types and their encoding within a write. Does not own their evaluation, which is part of the state
//! machine.
//!
//! ```text
//! stamp := epoch u32 | sequence u64 | id_len u8 | id        little-endian; id as a name, 1 to 64 bytes
//! ```
//! A producer numbers its appends to a stream 0, 1, 2, ... within an epoch. A producer that lost an answer can safely
//! send the append again: the state finds the number and returns the first answer again.

use crate::{
    command::{CommandError, check_name},
    ids::Offset,
    limits::MAX_PRODUCER_ID_BYTES,
    record::{Malformed, Reader},
};

/// Offset that the first record of an append must get.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ExpectedOffset {
    /// Any offset.
    #[default]
    Any,
    /// The stream must never have had a record: it was just created, or its first writer believes it is new. A stream
    /// whose records have all been trimmed did have some.
    NoRecords,
    /// The stream's next offset must be this one.
    Exact(Offset),
}

impl ExpectedOffset {
    /// Returns the required next offset. [`NoRecords`](Self::NoRecords) requires 0, since offsets are never reused.
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

/// Checks a producer's id: it follows the rules of names and has at most [`MAX_PRODUCER_ID_BYTES`] bytes.
pub fn check_producer_id(id: &str) -> Result<(), CommandError> {
    if id.len() > MAX_PRODUCER_ID_BYTES || check_name(id).is_err() {
        return Err(CommandError::BadProducerId { id: id.chars().take(MAX_PRODUCER_ID_BYTES).collect() });
    }
    Ok(())
}

/// Identity of one append of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProducerStamp<'a> {
    /// Id of the producer.
    pub id: &'a str,
    /// Epoch of the producer. It rises when another instance takes over; the stream rejects appends with lower epochs.
    pub epoch: u32,
    /// Sequence number of the append: from 0 in each epoch, without gaps.
    pub sequence: u64,
}

impl<'a> ProducerStamp<'a> {
    /// Appends the encoded stamp.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), CommandError> {
        check_producer_id(self.id)?;
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&self.sequence.to_le_bytes());
        encode_producer_id(out, self.id);
        Ok(())
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let epoch = reader.u32("producer epoch")?;
        let sequence = reader.u64("producer sequence")?;
        if sequence == u64::MAX {
            return Err(Malformed { at: reader.position(), expected: "a sequence below 2^64-1" });
        }
        Ok(Self { id: decode_producer_id(reader)?, epoch, sequence })
    }
}

/// An encoded stamp that has been checked. It is small enough to be part of every [`Write`](super::Write).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EncodedStamp<'a>(&'a [u8]);

impl<'a> EncodedStamp<'a> {
    pub(super) fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let mut ahead = reader.clone();
        let from = ahead.position();
        ProducerStamp::decode(&mut ahead)?;
        reader.take(ahead.position() - from, "producer stamp").map(Self)
    }

    /// Decodes the stamp.
    #[must_use]
    pub fn get(&self) -> ProducerStamp<'a> {
        ProducerStamp::decode(&mut Reader::at(self.0, 0)).expect("decode() checked these bytes")
    }
}

pub(super) fn encode_producer_id(out: &mut Vec<u8>, id: &str) {
    out.push(u8::try_from(id.len()).expect("checked against MAX_PRODUCER_ID_BYTES"));
    out.extend_from_slice(id.as_bytes());
}

pub(super) fn decode_producer_id<'a>(reader: &mut Reader<'a>) -> Result<&'a str, Malformed> {
    let len = usize::from(reader.u8("producer id length")?);
    let at = reader.position();
    let id = std::str::from_utf8(reader.take(len, "producer id")?).ok();
    id.filter(|id| check_producer_id(id).is_ok()).ok_or(Malformed { at, expected: "well-formed producer id" })
}

/// Conditions on an append, besides its records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AppendTerms<'a> {
    /// Offset that the append must get.
    pub expected: ExpectedOffset,
    /// Stamp of the producer, which makes the append happen once however often it is sent.
    pub producer: Option<ProducerStamp<'a>>,
}

impl AppendTerms<'_> {
    /// Returns true if the outcome of the append depends on the state.
    #[must_use]
    pub fn is_conditional(&self) -> bool {
        self.expected != ExpectedOffset::Any || self.producer.is_some()
    }
}

impl<T: Into<ExpectedOffset>> From<T> for AppendTerms<'_> {
    fn from(expected: T) -> Self {
        Self { expected: expected.into(), producer: None }
    }
}

/// Reason why a producer's append did nothing. Its sequence number is not used up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProducerRefusal {
    /// The append happened so long ago that the stream has dropped its result; results from `oldest` on are kept.
    DuplicateTooOld {
        /// Oldest sequence whose result is kept.
        oldest: u64,
    },
    /// Appends with lower sequence numbers are missing.
    SequenceGap {
        /// Sequence that must come next.
        expected: u64,
    },
    /// Another instance of the producer has taken over.
    Fenced {
        /// Epoch of that instance.
        epoch: u32,
    },
    /// The stream has no such producer, or has evicted it, and the sequence is not the first.
    Unknown,
    /// Some appends of the commit happened before and others did not, so it is not a repetition of a commit.
    Mixed,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_are_pinned_and_come_back() {
        let stamp = ProducerStamp { id: "p-1", epoch: 2, sequence: 0x0304 };
        let mut bytes = Vec::new();
        stamp.encode(&mut bytes).unwrap();
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
            let stamp = ProducerStamp { id, epoch: 0, sequence: 0 };
            assert_eq!(stamp.encode(&mut Vec::new()).is_ok(), good, "{id:?}");
            let mut foreign = Vec::new();
            encode_producer_id(&mut foreign, id);
            assert_eq!(decode_producer_id(&mut Reader::at(&foreign, 0)).is_ok(), good, "{id:?}");
        }
        let mut last = Vec::new();
        ProducerStamp { id: "p", epoch: 0, sequence: u64::MAX }.encode(&mut last).unwrap();
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
