//! Growing arrays of numbers, which all threads of a run share and change without locks.

use std::sync::{
    OnceLock,
    atomic::{AtomicU64, Ordering},
};

/// Number of array elements in a chunk. The elements of a chunk are allocated together when one of them is first used.
const CHUNK: u64 = 1 << 16;
/// Exclusive upper bound of the indices into an array of [`Numbers`].
pub const MAX_NUMBERS: u64 = 1 << 32;

/// A growing array of numbers, all 0 at first. A chunk of it takes memory once one of its indices is used.
#[derive(Debug)]
pub struct Numbers {
    chunks: Box<[OnceLock<Box<[AtomicU64]>>]>,
}

impl Default for Numbers {
    fn default() -> Self {
        Self { chunks: (0..MAX_NUMBERS / CHUNK).map(|_| OnceLock::new()).collect() }
    }
}

impl Numbers {
    /// Returns the array element at an index below [`MAX_NUMBERS`].
    pub fn get(&self, index: u64) -> u64 {
        let chunk = self.chunks[(index / CHUNK) as usize].get();
        chunk.map_or(0, |chunk| chunk[(index % CHUNK) as usize].load(Ordering::Acquire))
    }

    /// Sets the array element at an index below [`MAX_NUMBERS`] to `number`.
    pub fn set(&self, index: u64, number: u64) {
        self.at(index).store(number, Ordering::Release);
    }

    /// Sets the array element at an index to `number` if the element is 0. Otherwise returns the element as the error.
    pub fn claim(&self, index: u64, number: u64) -> Result<(), u64> {
        self.at(index).compare_exchange(0, number, Ordering::AcqRel, Ordering::Acquire).map(|_| ())
    }

    /// Sets one bit of the array, in which each number holds 64 bits. Returns true if the bit was not set before.
    pub fn set_bit(&self, bit: u64) -> bool {
        let mask = 1 << (bit % 64);
        self.at(bit / 64).fetch_or(mask, Ordering::AcqRel) & mask == 0
    }

    /// Returns the bit with the index `bit`. Each number of the array holds 64 bits.
    pub fn bit(&self, bit: u64) -> bool {
        self.get(bit / 64) >> (bit % 64) & 1 == 1
    }

    fn at(&self, index: u64) -> &AtomicU64 {
        let chunk =
            self.chunks[(index / CHUNK) as usize].get_or_init(|| (0..CHUNK).map(|_| AtomicU64::new(0)).collect());
        &chunk[(index % CHUNK) as usize]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_claimed_once_and_bits_set_once() {
        let numbers = Numbers::default();
        for index in [0, 7, CHUNK, MAX_NUMBERS - 1] {
            assert_eq!(numbers.get(index), 0);
            assert_eq!((numbers.claim(index, 5), numbers.claim(index, 6), numbers.get(index)), (Ok(()), Err(5), 5));
        }
        numbers.set(7, 9);
        assert_eq!(numbers.get(7), 9);
        let bits = Numbers::default();
        assert!(
            [0, 63, 64, CHUNK * 64]
                .into_iter()
                .all(|bit| !bits.bit(bit) && bits.set_bit(bit) && bits.bit(bit) && !bits.set_bit(bit))
        );
        assert_eq!(bits.get(0), 1 | 1 << 63);
    }
}
