//! Keys and values of the benchmark workloads. Both follow from an index and a seed, so a value that a benchmark reads
//! can be compared with the value that was written, without keeping a copy of it.

use rand::Rng as _;

use crate::random::{generator, mix_bits};

/// Length of a key in bytes: `key_` and ten digits.
pub const KEY_BYTES: usize = 14;

/// Writes the key with this index to `out`: `key_0000000000` for index 0, and so on. Indices from 10^10 on would need
/// more than ten digits, so they wrap around.
#[inline]
pub fn write_key(index: u64, out: &mut [u8; KEY_BYTES]) {
    *out = *b"key_0000000000";
    let mut rest = index;
    for digit in out[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
}

/// Returns the key with this index.
#[inline]
pub fn key(index: u64) -> [u8; KEY_BYTES] {
    let mut out = [0; KEY_BYTES];
    write_key(index, &mut out);
    out
}

/// Generator of values of one length, one for each index. Values are windows into one pool of random bytes. Therefore
/// making a value costs nothing in the timed part, and a store cannot compress the values well.
#[derive(Clone, Debug)]
pub struct Values {
    pool: Vec<u8>,
    len: usize,
    seed: u64,
}

const POOL_BYTES: usize = 1 << 20;

impl Values {
    /// Creates a generator of values of `len` bytes.
    pub fn new(len: usize, seed: u64) -> Self {
        let mut rng = generator(seed ^ 0x7661_6c75_6573);
        let words = (POOL_BYTES + len).div_ceil(8);
        let pool = (0..words).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
        Self { pool, len, seed }
    }

    /// Creates a generator of values of `len` characters: letters, digits, `-` and `_`. JSON needs no escapes for these
    /// characters.
    pub fn text(len: usize, seed: u64) -> Self {
        const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let mut values = Self::new(len, seed);
        values.pool.iter_mut().for_each(|byte| *byte = LETTERS[usize::from(*byte % 64)]);
        values
    }

    /// Returns the value with this index.
    #[inline]
    pub fn of(&self, index: u64) -> &[u8] {
        let at = (mix_bits(index ^ self.seed) as usize) & (POOL_BYTES - 1);
        &self.pool[at..at + self.len]
    }

    /// Returns the length of each value in bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns true if the values have a length of 0 bytes.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_have_the_suites_format_and_sort_by_index() {
        assert_eq!(&key(0), b"key_0000000000");
        assert_eq!(&key(1_234_567_890), b"key_1234567890");
        assert!(key(99) < key(100));
    }

    #[test]
    fn values_follow_from_index_and_seed() {
        let (values, same, other) = (Values::new(100, 1), Values::new(100, 1), Values::new(100, 2));
        assert_eq!(values.of(5), same.of(5));
        assert_ne!(values.of(5), values.of(6));
        assert_ne!(values.of(5), other.of(5));
        assert!((0..10_000).all(|index| values.of(index).len() == 100));
        assert!(Values::new(0, 1).of(3).is_empty());
        let text = Values::text(100, 1);
        assert!(
            (0..1000)
                .all(|index| text.of(index).iter().all(|byte| byte.is_ascii_alphanumeric() || b"-_".contains(byte)))
        );
        assert_ne!(text.of(5), text.of(6));
    }
}
