//! A table's bloom filter, read in place.
//!
//! Owns: the check if a table may contain a key. A read of a missing key checks a filter of every run, and a read of a
//! present key checks a filter of every newer run. So each probe of a bit must take only a few processor cycles: the
//! header is decoded once, and a multiplication replaces the division by the number of bits. Does not own: building
//! filters; the LSM crate does that.
//!
//! ```text
//! filter := magic, 4 bytes | 0 u8 | 0 u8 | bits u64 | probes u64 | bit array
//! ```
//! Little-endian; bit 0 of the array is the highest of its first byte.

use bytes::Bytes;

use super::block::Malformed;

const HEADER_BYTES: usize = 22;
const STANDARD: u8 = 0;
const HASH: u8 = 0;

pub(super) struct Filter {
    array: Bytes,
    bits: u64,
    /// The largest number whose product with `bits` is below 2^64. A multiplication by this number replaces a division
    /// by `bits`.
    reciprocal: u64,
    probes: u64,
}

impl Filter {
    pub(super) fn new(block: &Bytes) -> Result<Self, Malformed> {
        let (header, array) = block.split_at_checked(HEADER_BYTES).ok_or(Malformed)?;
        let field = |at: usize| header[at..].first_chunk().map(|bytes| u64::from_le_bytes(*bytes)).ok_or(Malformed);
        let (bits, probes) = (field(6)?, field(14)?);
        let fits = bits > 0 && bits.div_ceil(8) <= array.len() as u64;
        if !fits || header[4] != STANDARD || header[5] != HASH {
            return Err(Malformed);
        }
        Ok(Self { array: block.slice_ref(array), bits, reciprocal: u64::MAX / bits, probes })
    }

    /// Returns false only if the table certainly contains no key with this hash.
    #[inline]
    pub(super) fn may_contain(&self, hash: u64) -> bool {
        let mut place = hash;
        let mut step = second_hash(hash);
        for probe in 1..=self.probes {
            if !self.bit(place) {
                return false;
            }
            place = place.wrapping_add(step);
            step = step.wrapping_mul(probe);
        }
        true
    }

    /// Checks only the first two bits for this hash, without a branch between the two checks. A caller can run this
    /// check for several filters in a row, so that their cache misses overlap. Returns false only if the table
    /// certainly contains no key with this hash.
    #[inline]
    pub(super) fn may_contain_at_first_sight(&self, hash: u64) -> bool {
        self.probes < 2 || self.bit(hash) & self.bit(hash.wrapping_add(second_hash(hash)))
    }

    #[inline]
    fn bit(&self, place: u64) -> bool {
        let bit = self.remainder(place);
        self.array[(bit / 8) as usize] & (0x80 >> (bit % 8)) != 0
    }

    /// Returns `value % bits`. Computes it from an estimate of the quotient that is exact, or too small by one or two.
    #[inline]
    fn remainder(&self, value: u64) -> u64 {
        let quotient = ((u128::from(value) * u128::from(self.reciprocal)) >> 64) as u64;
        let mut rest = value - quotient * self.bits;
        while rest >= self.bits {
            rest -= self.bits;
        }
        rest
    }
}

#[inline]
fn second_hash(hash: u64) -> u64 {
    (hash >> 32).wrapping_mul(0x51_7c_c1_b7_27_22_0a_95)
}

#[cfg(test)]
mod tests {
    use lsm_tree::table::filter::standard_bloom::Builder;

    use super::*;

    #[test]
    fn agrees_with_the_crate_on_every_key() {
        for count in [1, 7, 1000, 20_000] {
            let mut builder = Builder::with_bpk(count, 10.0);
            let hash = |number: usize| Builder::get_hash(format!("key {number}").as_bytes());
            (0..count).for_each(|number| builder.set_with_hash(hash(number)));
            let filter = Filter::new(&Bytes::from(builder.build())).unwrap();
            assert!((0..count).all(|number| filter.may_contain(hash(number))), "a key of {count} is missed");
            let consistent = |hash| filter.may_contain_at_first_sight(hash) || !filter.may_contain(hash);
            assert!((0..3 * count).all(|number| consistent(hash(number))));
            let wrong = (count..2 * count + 1000).filter(|number| filter.may_contain(hash(*number))).count();
            assert!(wrong * 20 <= count + 1000, "{wrong} of {} false positives", count + 1000);
        }
    }

    #[test]
    fn remainders_are_exact() {
        for bits in [1, 2, 3, 8, 1_000_003, u64::from(u32::MAX), 1 << 40, u64::MAX] {
            let filter = Filter { array: Bytes::new(), bits, reciprocal: u64::MAX / bits, probes: 1 };
            for value in [0, 1, bits - 1, bits, bits.wrapping_add(1), u64::MAX - 1, u64::MAX, 0x9e37_79b9_7f4a_7c15] {
                assert_eq!(filter.remainder(value), value % bits, "{value} % {bits}");
            }
        }
    }

    #[test]
    fn damaged_filters_are_errors() {
        let mut builder = Builder::with_bpk(100, 10.0);
        builder.set_with_hash(1);
        let whole = builder.build();
        for len in 0..whole.len() {
            assert!(Filter::new(&Bytes::copy_from_slice(&whole[..len])).is_err(), "{len} of {} bytes", whole.len());
        }
    }
}
