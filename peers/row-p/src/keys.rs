//! Keys, values and orders, which follow from a seed.

/// Length of a key in bytes: `key_` and ten digits.
pub const KEY_BYTES: usize = 14;
const POOL_BYTES: usize = 1 << 20;

/// Returns the key with this number.
pub fn key(number: u64) -> [u8; KEY_BYTES] {
    let mut key = *b"key_0000000000";
    let mut rest = number;
    for digit in key[4..].iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    key
}

/// A generator of pseudo-random numbers.
#[derive(Clone, Debug)]
pub struct Numbers(u64);

impl Numbers {
    /// Creates the sequence of a seed.
    pub fn new(seed: u64) -> Self {
        Self(mixed(seed ^ 0x5ee1_1e55_0f70_0d1e))
    }

    /// Returns the next number below `end`.
    pub fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        ((u128::from(mixed(self.0)) * u128::from(end)) >> 64) as u64
    }

    /// Returns the numbers below `count` in a random order.
    pub fn shuffled(&mut self, count: u64) -> Vec<u64> {
        let mut numbers: Vec<u64> = (0..count).collect();
        for at in (1..numbers.len()).rev() {
            numbers.swap(at, self.below(at as u64 + 1) as usize);
        }
        numbers
    }
}

fn mixed(number: u64) -> u64 {
    let number = (number ^ (number >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let number = (number ^ (number >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    number ^ (number >> 33)
}

/// Values of one length, which do not compress. A value is a window into a pool, so making one costs nothing while the
/// clock runs.
#[derive(Debug)]
pub struct Values {
    pool: Vec<u8>,
    len: usize,
}

impl Values {
    /// Creates the values of `len` bytes of a seed.
    pub fn new(len: usize, seed: u64) -> Self {
        let mut numbers = Numbers::new(!seed);
        let pool = (0..POOL_BYTES + len).map(|_| numbers.below(256) as u8).collect();
        Self { pool, len }
    }

    /// Returns the value of the key with this number.
    pub fn of(&self, number: u64) -> &[u8] {
        let at = mixed(number) as usize & (POOL_BYTES - 1);
        &self.pool[at..at + self.len]
    }
}
