//! Values of keys. Each value contains its key and its version.
//!
//! ```text
//! value := index, ten digits | '.' | version, ten digits | '.' | letters and digits that follow from index and version
//! ```
//!
//! So a value can be checked as a whole without a copy of it, even while other connections write.

use std::ops::RangeInclusive;

use crate::{data::Values, random::mix_bits};

/// Length in bytes of the head of a value, which contains the key and the version.
pub const HEAD_BYTES: usize = 22;

/// Makes values of keys, and recognises them in replies.
#[derive(Clone, Debug)]
pub struct Records {
    letters: Values,
    bytes: RangeInclusive<usize>,
    seed: u64,
}

impl Records {
    /// Creates values whose lengths in bytes lie in a range. The start of the range is at least [`HEAD_BYTES`].
    pub fn new(bytes: RangeInclusive<usize>, seed: u64) -> Self {
        Self { letters: Values::text(*bytes.end(), seed), bytes, seed }
    }

    /// Returns the value of a key in this version as two pieces: the head with the key's index and the version, and the
    /// letters and digits after it.
    #[inline]
    pub fn value(&self, index: u64, version: u32) -> ([u8; HEAD_BYTES], &[u8]) {
        let id = mix_bits(index) ^ u64::from(version);
        let lengths = (self.bytes.end() - self.bytes.start() + 1) as u64;
        let len = self.bytes.start() + (mix_bits(id ^ self.seed) % lengths) as usize;
        (head(index, version), &self.letters.of(id)[..len - HEAD_BYTES])
    }

    /// Returns the version that a value contains; `None` if it is not a value of this key.
    #[inline]
    pub fn version_of(&self, index: u64, value: &[u8]) -> Option<u32> {
        let (found, rest) = value.split_at_checked(HEAD_BYTES)?;
        let version = std::str::from_utf8(&found[11..21]).ok()?.parse().ok()?;
        let (head, letters) = self.value(index, version);
        (found == head && rest == letters).then_some(version)
    }
}

fn head(index: u64, version: u32) -> [u8; HEAD_BYTES] {
    let mut head = *b"0000000000.0000000000.";
    write_digits(index, &mut head[..10]);
    write_digits(u64::from(version), &mut head[11..21]);
    head
}

fn write_digits(mut number: u64, out: &mut [u8]) {
    for digit in out.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn whole(records: &Records, index: u64, version: u32) -> Vec<u8> {
        let (head, letters) = records.value(index, version);
        [&head[..], letters].concat()
    }

    #[test]
    fn a_value_belongs_to_one_key_and_one_version() {
        let records = Records::new(100..=100, 1);
        let value = whole(&records, 7, 3);
        assert_eq!(value.len(), 100);
        assert!(value.starts_with(b"0000000007.0000000003."));
        assert_eq!(records.version_of(7, &value), Some(3));
        assert_eq!(records.version_of(8, &value), None);
        assert_ne!(whole(&records, 7, 4)[HEAD_BYTES..], value[HEAD_BYTES..]);
        for at in 0..100 {
            let mut wrong = value.clone();
            wrong[at] ^= 1;
            assert_eq!(records.version_of(7, &wrong), None, "byte {at}");
        }
        for len in 0..100 {
            assert_eq!(records.version_of(7, &value[..len]), None, "{len} bytes");
        }
        assert_eq!(records.version_of(7, &[&value[..], b"x"].concat()), None);
        assert_eq!(records.version_of(7, b"0000000007.4294967296.x"), None, "no version is so large");
    }

    #[test]
    fn lengths_fill_their_range() {
        let records = Records::new(HEAD_BYTES..=HEAD_BYTES + 9, 1);
        let mut seen = [0_u32; 10];
        (0..10_000).for_each(|index| seen[whole(&records, index, 1).len() - HEAD_BYTES] += 1);
        assert!(seen.iter().all(|count| (800..1200).contains(count)), "{seen:?}");
        assert!((0..100).all(|index| records.version_of(index, &whole(&records, index, 9)) == Some(9)));
    }
}
