//! Conversion of long decimal fractions to hexadecimal numbers that are rounded in the same way.
//!
//! `rustc_apfloat` divides bit by bit. For a number that is close to the middle between two floating-point numbers, it
//! computes as many bits as the decimal digits need. For thousands of digits, this takes tens of milliseconds. A
//! mantissa has 64 bits, so rounding needs only 66 bits of the quotient, and the information if a remainder is left.
//!
//! Owns: this division. Numbers are limbs of 64 bits, the least significant first. The last limb is not 0.

/// Number of bits of the quotient that are computed; the first one may be 0.
const QUOTIENT_BITS: u32 = 67;

/// Returns a hexadecimal number that rounds to a mantissa of at most 64 bits in the same way as `digits / 10^scale`.
/// The digits are ASCII, and the first one is not 0. Takes about 0.2 ms for 5,000 digits and a scale of 10,000.
pub(super) fn hexadecimal(digits: &[u8], scale: u32) -> String {
    // A power of ten is a power of five times a power of two. The exponent of the result contains the latter.
    let (mut remainder, mut divisor) = (number(digits), power_of_five(scale));
    let (bits, divisor_bits) = (bit_len(&remainder), bit_len(&divisor));
    shift_left(&mut remainder, divisor_bits.saturating_sub(bits));
    shift_left(&mut divisor, bits.saturating_sub(divisor_bits));
    // Both have the same number of bits now, so the remainder stays below twice the divisor. It needs one bit more.
    let limbs = divisor.len() + 1;
    remainder.resize(limbs, 0);
    divisor.resize(limbs, 0);
    let mut quotient: u128 = 0;
    for _ in 0..QUOTIENT_BITS {
        quotient <<= 1;
        if remainder.iter().rev().ge(divisor.iter().rev()) {
            subtract(&mut remainder, &divisor);
            quotient |= 1;
        }
        double(&mut remainder);
    }
    let is_inexact = remainder.iter().any(|limb| *limb != 0);
    let mantissa = (quotient << 1) | u128::from(is_inexact);
    let exponent = bits as i64 - divisor_bits as i64 - i64::from(scale) - i64::from(QUOTIENT_BITS);
    format!("0x0{mantissa:x}.0p{exponent}")
}

fn number(digits: &[u8]) -> Vec<u64> {
    /// Number of decimal digits that fit into a limb (a 64-bit word of a long number).
    const CHUNK: usize = 19;
    let mut number = Vec::new();
    for chunk in digits.chunks(CHUNK) {
        let value = chunk.iter().fold(0, |value: u64, digit| value * 10 + u64::from(digit - b'0'));
        multiply_add(&mut number, 10_u64.pow(chunk.len() as u32), value);
    }
    number
}

fn power_of_five(exponent: u32) -> Vec<u64> {
    /// Exponent of the largest power of five that fits into a limb (a 64-bit word of a long number).
    const CHUNK: u32 = 27;
    let mut power = vec![1];
    for _ in 0..exponent / CHUNK {
        multiply_add(&mut power, 5_u64.pow(CHUNK), 0);
    }
    multiply_add(&mut power, 5_u64.pow(exponent % CHUNK), 0);
    power
}

fn multiply_add(number: &mut Vec<u64>, factor: u64, summand: u64) {
    let mut carry = summand;
    for limb in number.iter_mut() {
        let product = u128::from(*limb) * u128::from(factor) + u128::from(carry);
        *limb = product as u64;
        carry = (product >> 64) as u64;
    }
    if carry != 0 {
        number.push(carry);
    }
}

fn shift_left(number: &mut Vec<u64>, bits: usize) {
    multiply_add(number, 1 << (bits % 64), 0);
    let mut shifted = vec![0; bits / 64];
    shifted.append(number);
    *number = shifted;
}

fn bit_len(number: &[u64]) -> usize {
    number.len() * 64 - number.last().map_or(0, |last| last.leading_zeros() as usize)
}

/// Subtracts the number `other` from the number `from`, which must not be smaller. Both have the same number of limbs
/// (64-bit words).
fn subtract(from: &mut [u64], other: &[u64]) {
    let mut borrow = false;
    for (limb, other) in from.iter_mut().zip(other) {
        let (difference, is_below) = limb.overflowing_sub(*other);
        let (difference, is_borrowed) = difference.overflowing_sub(u64::from(borrow));
        *limb = difference;
        borrow = is_below || is_borrowed;
    }
}

/// Doubles a number of several limbs (64-bit words) in place. Its highest bit must be 0.
fn double(number: &mut [u64]) {
    let mut carry = 0;
    for limb in number {
        let next = *limb >> 63;
        *limb = (*limb << 1) | carry;
        carry = next;
    }
}

#[cfg(test)]
mod tests {
    use std::str::FromStr;

    use rustc_apfloat::{Float, ieee::X87DoubleExtended};

    use super::*;

    /// Parses `digits / 10^scale` as a hexadecimal and as a decimal number.
    fn both(digits: &str, scale: u32) -> [u128; 2] {
        let bits = |text: &str| X87DoubleExtended::from_str(text).unwrap().to_bits();
        [bits(&hexadecimal(digits.as_bytes(), scale)), bits(&format!("{digits}.0e-{scale}"))]
    }

    #[test]
    fn fractions_are_those_of_the_decimal_number() {
        // A Lehmer generator makes digits without a pattern.
        let mut seed: u64 = 1;
        let mut digit = || {
            seed = seed * 48_271 % 0x7fff_ffff;
            char::from(b'0' + (seed % 10) as u8)
        };
        for round in (0..200).step_by(3) {
            let digits: String = std::iter::once('7').chain((0..round).map(|_| digit())).collect();
            for scale in [1, 19, 64, round, 4_900] {
                let [own, other] = both(&digits, scale);
                assert_eq!(own, other, "{digits}e-{scale}");
            }
        }
        for (digits, scale) in [("1", 0), ("5", 1), ("18446744073709551616", 1), ("1", 4_950), ("4", 4_951)] {
            let [own, other] = both(digits, scale);
            assert_eq!(own, other, "{digits}e-{scale}");
        }
    }

    #[test]
    fn numbers_in_the_middle_are_rounded_to_even_and_others_to_the_nearer_one() {
        let parsed = |digits: &str, scale| {
            let [own, other] = both(digits, scale);
            assert_eq!(own, other, "{digits}e-{scale}");
            own as u64
        };
        let zeros = "0".repeat(80);
        // The mantissa has 64 bits, so numbers between 2^63 and 2^64 are rounded to integers.
        assert_eq!(parsed(&format!("92233720368547758085{zeros}"), 81), 1 << 63);
        assert_eq!(parsed(&format!("92233720368547758085{zeros}1"), 82), (1 << 63) + 1);
        assert_eq!(parsed(&format!("92233720368547758095{zeros}"), 81), (1 << 63) + 2);
        assert_eq!(parsed(&format!("92233720368547758094{}", "9".repeat(80)), 81), (1 << 63) + 1);
    }
}
