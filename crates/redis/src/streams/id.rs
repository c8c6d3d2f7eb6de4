//! Ids of entries, and the forms in which clients write them.
//!
//! Owns: `ms-seq` in all forms that Redis accepts, including unusual ones: a zero byte ends an id, as in a C string,
//! and numbers that are not canonical are parsed as `strtoull` does.

use std::fmt;

use bytes::Bytes;
use thalweg_types::reply::Reply;

use crate::{
    errors::{CommandEnd, c_string},
    number::{MAX_DIGITS, put_digits},
};

/// Error text for an argument that is not a valid id of a stream entry.
const INVALID: &str = "ERR Invalid stream ID specified as stream command argument";
/// Maximum bytes of an argument that is parsed as an id.
const MAX_ID_BYTES: usize = 127;

/// Id of an entry. Ids are ordered. Each has a direct successor and a direct predecessor, except the highest and the
/// lowest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryId {
    /// Milliseconds since the Unix epoch, unless the client chose another value.
    pub ms: u64,
    /// Sequence number among the entries of the same millisecond.
    pub seq: u64,
}

impl EntryId {
    /// The entry id 0-0, which is below the ids of all entries.
    pub const ZERO: Self = Self { ms: 0, seq: 0 };
    /// The highest possible id of a stream entry.
    pub const MAX: Self = Self { ms: u64::MAX, seq: u64::MAX };

    /// Returns the next higher entry id; `None` after the highest possible one.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        match self.seq.checked_add(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_add(1)?, seq: 0 }),
        }
    }

    /// Returns the next lower entry id; `None` for the id 0-0.
    #[must_use]
    pub fn before(self) -> Option<Self> {
        match self.seq.checked_sub(1) {
            Some(seq) => Some(Self { seq, ..self }),
            None => Some(Self { ms: self.ms.checked_sub(1)?, seq: u64::MAX }),
        }
    }

    /// Encodes the entry id in 16 bytes that sort in the order of ids, for use in the names of stored rows.
    #[must_use]
    pub fn to_be_bytes(self) -> [u8; 16] {
        ((u128::from(self.ms) << 64) | u128::from(self.seq)).to_be_bytes()
    }

    /// Decodes an entry id encoded by [`to_be_bytes`](Self::to_be_bytes).
    #[must_use]
    pub fn from_be_bytes(bytes: [u8; 16]) -> Self {
        let both = u128::from_be_bytes(bytes);
        Self { ms: (both >> 64) as u64, seq: both as u64 }
    }

    /// Returns the entry id as a reply of the Redis protocol: a bulk string.
    pub(super) fn reply(self) -> Reply {
        // The text is the same as that of `Display`, but this code is many times faster. Every XADD replies with an id.
        let mut text = [b'-'; 2 * MAX_DIGITS + 1];
        let dash = put_digits(&mut text, self.seq) - 1;
        let begin = put_digits(&mut text[..dash], self.ms);
        Reply::Bulk(Bytes::copy_from_slice(&text[begin..]))
    }

    /// Parses an entry id that is neither `-` nor `+`. An id without a sequence number gets the sequence number `seq`.
    pub(super) fn strict(argument: &[u8], seq: u64) -> Result<Self, CommandEnd> {
        match ParsedId::parse(argument) {
            Some(ParsedId::Id(id)) => Ok(id),
            Some(ParsedId::Ms(ms)) => Ok(Self { ms, seq }),
            Some(ParsedId::Lowest | ParsedId::Highest | ParsedId::AnySeq(_)) | None => Err(CommandEnd::error(INVALID)),
        }
    }

    /// Parses an entry id, `-` (the lowest id) or `+` (the highest). An id without a sequence number gets the sequence
    /// number `seq`.
    pub(super) fn any(argument: &[u8], seq: u64) -> Result<Self, CommandEnd> {
        match ParsedId::parse(argument) {
            Some(ParsedId::Lowest) => Ok(Self::ZERO),
            Some(ParsedId::Highest) => Ok(Self::MAX),
            _ => Self::strict(argument, seq),
        }
    }

    /// Parses the start of a range of entry ids. Returns the first id in the range.
    pub(super) fn range_start(argument: &[u8]) -> Result<Self, CommandEnd> {
        match exclusive(argument) {
            Some(rest) => {
                let next = Self::strict(rest, 0)?.next();
                next.ok_or_else(|| CommandEnd::error("ERR invalid start ID for the interval"))
            }
            None => Self::any(argument, 0),
        }
    }

    /// Parses the end of a range of entry ids. Returns the last id in the range.
    pub(super) fn range_end(argument: &[u8]) -> Result<Self, CommandEnd> {
        match exclusive(argument) {
            Some(rest) => {
                let before = Self::strict(rest, u64::MAX)?.before();
                before.ok_or_else(|| CommandEnd::error("ERR invalid end ID for the interval"))
            }
            None => Self::any(argument, u64::MAX),
        }
    }
}

impl fmt::Display for EntryId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.ms, self.seq)
    }
}

/// The id that a client requests in `XADD`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NewId {
    /// `*`: the store derives the id from the current time.
    Next,
    /// `ms-*`: the next id of the given millisecond.
    NextOf(u64),
    /// A complete id that the client chose.
    Is(EntryId),
}

impl NewId {
    pub(super) fn parse(argument: &[u8]) -> Result<Self, CommandEnd> {
        match ParsedId::parse(argument) {
            _ if c_string(argument) == b"*" => Ok(Self::Next),
            Some(ParsedId::AnySeq(ms)) => Ok(Self::NextOf(ms)),
            _ => EntryId::strict(argument, 0).map(Self::Is),
        }
    }

    /// Returns the id of an entry that is added after `last` at the time `now`. Returns `None` if no id above `last`
    /// satisfies the request.
    pub(super) fn after(self, last: EntryId, now: u64) -> Option<EntryId> {
        let id = match self {
            Self::Next if now > last.ms => EntryId { ms: now, seq: 0 },
            Self::Next => last.next()?,
            Self::NextOf(ms) if ms == last.ms => EntryId { ms, seq: last.seq.checked_add(1)? },
            Self::NextOf(ms) => EntryId { ms, seq: 0 },
            Self::Is(id) => id,
        };
        (id > last).then_some(id)
    }
}

/// An entry id as the client wrote it in an argument: `-`, `+` or a number.
enum ParsedId {
    Lowest,
    Highest,
    Ms(u64),
    AnySeq(u64),
    Id(EntryId),
}

impl ParsedId {
    fn parse(argument: &[u8]) -> Option<Self> {
        if argument.len() > MAX_ID_BYTES {
            return None;
        }
        let text = c_string(argument);
        match text {
            b"-" => return Some(Self::Lowest),
            b"+" => return Some(Self::Highest),
            _ => {}
        }
        let Some(dash) = text.iter().position(|byte| *byte == b'-') else { return Some(Self::Ms(number(text)?)) };
        let (ms, seq) = (number(&text[..dash])?, &text[dash + 1..]);
        if seq == b"*" {
            return Some(Self::AnySeq(ms));
        }
        Some(Self::Id(EntryId { ms, seq: number(seq)? }))
    }
}

/// Returns the text after the opening bracket of an exclusive bound such as `(5-1`. Returns `None` for an inclusive
/// bound.
fn exclusive(argument: &[u8]) -> Option<&[u8]> {
    argument.strip_prefix(b"(").filter(|rest| !rest.is_empty())
}

/// Parses a number like `strtoull`: leading white space and a sign are permitted. A canonical negative number
/// is rejected; other negative numbers wrap modulo 2^64, as in C.
fn number(text: &[u8]) -> Option<u64> {
    let is_space = |byte: &u8| matches!(byte, b' ' | b'\t'..=b'\r');
    let start = text.iter().position(|byte| !is_space(byte))?;
    let (negative, digits) = match text[start..].split_first()? {
        (b'-', digits) => (true, digits),
        (b'+', digits) => (false, digits),
        _ => (false, &text[start..]),
    };
    if digits.is_empty() {
        return None;
    }
    let magnitude = digits.iter().try_fold(0u64, |value, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        value.checked_mul(10)?.checked_add(digit)
    })?;
    if !negative {
        return Some(magnitude);
    }
    let canonical = start == 0 && digits[0] != b'0' && magnitude <= 1 << 63;
    (!canonical).then(|| magnitude.wrapping_neg())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(ms: u64, seq: u64) -> EntryId {
        EntryId { ms, seq }
    }

    #[test]
    fn neighbours_cross_milliseconds_and_end_at_the_ends() {
        assert_eq!(id(1, u64::MAX).next(), Some(id(2, 0)));
        assert_eq!(id(2, 0).before(), Some(id(1, u64::MAX)));
        assert_eq!((EntryId::MAX.next(), EntryId::ZERO.before()), (None, None));
    }

    #[test]
    fn bytes_are_in_order_and_come_back() {
        let (low, high) = (id(1, u64::MAX), id(0x0102, 3));
        assert!(low.to_be_bytes() < high.to_be_bytes());
        assert_eq!(high.to_be_bytes(), [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 0, 0, 0, 3]);
        assert_eq!(EntryId::from_be_bytes(high.to_be_bytes()), high);
    }

    #[test]
    fn replies_say_what_display_says() {
        for id in [EntryId::ZERO, EntryId::MAX, id(9, 10), id(1_700_000_000_000, 0)] {
            assert_eq!(id.reply(), Reply::bulk(id.to_string().as_bytes()));
        }
    }

    #[test]
    fn odd_numbers_are_read_as_c_reads_them() {
        for (text, value) in [
            (&b"007"[..], Some(7)),
            (b" +7", Some(7)),
            (b"18446744073709551615", Some(u64::MAX)),
            (b"18446744073709551616", None),
            (b"-7", None),
            (b" -1", Some(u64::MAX)),
            (b"", None),
            (b" ", None),
            (b"7 ", None),
            (b"+", None),
        ] {
            assert_eq!(number(text), value, "{text:?}");
        }
        assert_eq!(EntryId::strict(b"5-1\0junk", 0).unwrap(), id(5, 1));
        assert!(EntryId::strict(&[b'1'; 128], 0).is_err());
    }

    #[test]
    fn ids_by_time_never_go_back() {
        assert_eq!(NewId::Next.after(id(5, 3), 5), Some(id(5, 4)));
        assert_eq!(NewId::Next.after(id(5, 3), 4), Some(id(5, 4)));
        assert_eq!(NewId::Next.after(id(5, 3), 6), Some(id(6, 0)));
        assert_eq!(NewId::Next.after(EntryId::MAX, 6), None);
        assert_eq!(NewId::NextOf(5).after(id(5, u64::MAX), 6), None);
        assert_eq!(NewId::NextOf(0).after(EntryId::ZERO, 6), Some(id(0, 1)));
        assert_eq!(NewId::Is(id(5, 3)).after(id(5, 3), 6), None);
    }
}
