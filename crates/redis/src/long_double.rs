//! Numbers of INCRBYFLOAT and HINCRBYFLOAT: x86's 80-bit floating point, parsed like C's `strtold` and formatted like
//! `%.17Lf`.
//!
//! Owns: the conversion from and to text, and the steps of work that it costs. `rustc_apfloat` does the arithmetic in
//! software, identically on every machine, so a log entry has the same effect everywhere. Parsing and addition round to
//! a mantissa of 64 bits, ties to even.

mod decimal;

use std::str::FromStr;

use rustc_apfloat::{Float, Round, ieee::X87DoubleExtended};
use thalweg_types::steps::{MAX_FLOAT_DIGITS, parsed_float, written_float};

use crate::{
    errors::{CommandEnd, NOT_A_FLOAT, refused},
    store::{Read, StoreError},
};

/// Maximum length in bytes of a text that is parsed as a number, as in Redis.
const MAX_TEXT_BYTES: usize = 5 * 1024 - 1;
/// Limit to which a parsed exponent is clamped. A text has at most 5 KiB of digits, so with a larger exponent the
/// number would be infinity or zero anyway.
const MAX_EXPONENT: i64 = 100_000;
/// Maximum number of digits of a fraction that `rustc_apfloat` divides. Its division of longer fractions is too slow.
const MAX_DIVIDED_DIGITS: usize = 40;
/// Exponent of the power of ten below which all numbers are rounded to zero. Half of the smallest number is 1.8e-4951.
const MIN_EXPONENT: i64 = -4951;
/// Maximum number of digits written after the decimal point.
const DECIMALS: usize = 17;

/// A finite number or an infinity. Never NaN when parsed from text.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LongDouble(X87DoubleExtended);

/// Parses an argument or a value that must be a number.
pub(crate) fn float(text: &[u8]) -> Result<LongDouble, CommandEnd> {
    LongDouble::parse(text).ok_or_else(|| refused(NOT_A_FLOAT))
}

/// Counts the work of parsing a text as a number towards the command's limit on work. Parsing most numbers costs
/// nothing.
pub(crate) fn charge_parsing(read: &(impl Read + ?Sized), text: &[u8]) -> Result<(), StoreError> {
    charge(read, parsed_float(digits(text)))
}

/// Returns the number of digits for which a command is charged when it parses a text: the text's length plus its
/// decimal exponent. Returns 0 for a text that is too long to be parsed.
fn digits(text: &[u8]) -> usize {
    if text.len() > MAX_TEXT_BYTES {
        return 0;
    }
    let mark = text.iter().position(|byte| matches!(byte, b'e' | b'E'));
    let exponent = mark.and_then(|at| exponent(&text[at + 1..])).unwrap_or(0).unsigned_abs();
    text.len() + exponent.min(MAX_FLOAT_DIGITS as u64) as usize
}

/// Returns an upper bound of the digits before the decimal point in the number with this text. The bound is at least
/// the number of digits for which a command is charged when it parses the text.
pub(crate) fn max_digits(text: &[u8]) -> usize {
    match text {
        // The exponent of a hexadecimal number is a power of 2, and its digits may contain an `e`. So the maximum is
        // assumed.
        [b'0', b'x' | b'X', ..] | [b'+' | b'-', b'0', b'x' | b'X', ..] => MAX_FLOAT_DIGITS,
        _ => digits(text),
    }
}

/// Returns the maximum steps of work of adding two numbers with at most `left` and `right` [digits](max_digits), and
/// the maximum digits of their sum.
pub(crate) fn addition(left: usize, right: usize) -> (u64, usize) {
    let sum = left.max(right) + 1;
    let parsed = parsed_float(max_text_bytes(left)) + parsed_float(max_text_bytes(right));
    (parsed + written_float(max_text_bytes(sum)), sum)
}

/// Returns the maximum length in bytes of the text of a number with at most `digits` digits before the decimal point.
/// The length includes the sign, the decimal point, and the decimals.
pub(crate) const fn max_text_bytes(digits: usize) -> usize {
    let bytes = digits + 2 + DECIMALS;
    if bytes < MAX_FLOAT_DIGITS { bytes } else { MAX_FLOAT_DIGITS }
}

/// Counts the work of formatting a number towards the command's limit on work, given the resulting `text`.
pub(crate) fn charge_writing(read: &(impl Read + ?Sized), text: &[u8]) -> Result<(), StoreError> {
    charge(read, written_float(text.len()))
}

fn charge(read: &(impl Read + ?Sized), steps: u64) -> Result<(), StoreError> {
    if steps == 0 { Ok(()) } else { read.work(steps) }
}

impl LongDouble {
    /// The number zero.
    pub const ZERO: Self = Self(X87DoubleExtended::ZERO);

    /// Parses decimal or hexadecimal digits with decimal point and exponent, or an infinity. Returns `None` for NaN,
    /// for overflow, and for a nonzero number that would be rounded to zero.
    #[must_use]
    pub fn parse(text: &[u8]) -> Option<Self> {
        if text.len() > MAX_TEXT_BYTES {
            return None;
        }
        let (negative, text) = match text {
            [b'-', text @ ..] => (true, text),
            [b'+', text @ ..] => (false, text),
            text => (false, text),
        };
        let magnitude = if text.eq_ignore_ascii_case(b"inf") || text.eq_ignore_ascii_case(b"infinity") {
            X87DoubleExtended::INFINITY
        } else {
            finite(text)?
        };
        Some(Self(if negative { -magnitude } else { magnitude }))
    }

    /// Returns the sum of this number and `other`.
    #[must_use]
    pub fn plus(self, other: Self) -> Self {
        Self(self.0.add_r(other.0, Round::NearestTiesToEven).value)
    }

    /// Returns true if the number is neither infinite nor NaN.
    #[must_use]
    pub fn is_finite(self) -> bool {
        self.0.is_finite()
    }

    /// Formats a finite number with up to 17 digits after the decimal point, without trailing zeros, and
    /// never as "-0".
    #[must_use]
    pub fn to_text(self) -> Vec<u8> {
        // One bit of sign, 15 bits of exponent, 64 bits of mantissa with an explicit leading bit.
        let bits = self.0.to_bits();
        let (mantissa, biased) = (bits as u64, ((bits >> 64) & 0x7fff) as i32);
        let exponent = biased.max(1) - 16383 - 63;
        let mut text = if exponent >= 0 {
            integer_text(mantissa, exponent.unsigned_abs())
        } else {
            fraction_text(mantissa, exponent.unsigned_abs())
        };
        if self.0.is_negative() && text != b"0" {
            text.insert(0, b'-');
        }
        text
    }
}

/// Parses the text of a finite number without a sign.
fn finite(text: &[u8]) -> Option<X87DoubleExtended> {
    let (hexadecimal, text) = match text {
        [b'0', b'x' | b'X', text @ ..] => (true, text),
        text => (false, text),
    };
    let is_digit = |byte: &u8| if hexadecimal { byte.is_ascii_hexdigit() } else { byte.is_ascii_digit() };
    let (whole, rest) = text.split_at(text.iter().take_while(|byte| is_digit(byte)).count());
    let (fraction, rest) = match rest {
        [b'.', rest @ ..] => rest.split_at(rest.iter().take_while(|byte| is_digit(byte)).count()),
        rest => (&rest[..0], rest),
    };
    if whole.is_empty() && fraction.is_empty() {
        return None;
    }
    let exponent = match rest {
        [] => 0,
        [b'e' | b'E', digits @ ..] if !hexadecimal => exponent(digits)?,
        [b'p' | b'P', digits @ ..] if hexadecimal => exponent(digits)?,
        _ => return None,
    };
    let is_zero = whole.iter().chain(fraction).all(|digit| *digit == b'0');
    if is_zero {
        return Some(X87DoubleExtended::ZERO);
    }
    let text = if !hexadecimal && whole.len() + fraction.len() > MAX_DIVIDED_DIGITS {
        long_text(whole, fraction, exponent)?
    } else {
        let (whole, fraction) = (std::str::from_utf8(whole).ok()?, std::str::from_utf8(fraction).ok()?);
        let (prefix, mark) = if hexadecimal { ("0x", 'p') } else { ("", 'e') };
        format!("{prefix}0{whole}.{fraction}0{mark}{exponent}")
    };
    let number = X87DoubleExtended::from_str(&text).ok()?;
    (number.is_finite() && number.is_non_zero()).then_some(number)
}

/// Returns a text of the decimal number that `rustc_apfloat` parses in a short time. The number is above 0. Returns
/// `None` if it is rounded to zero.
fn long_text(whole: &[u8], fraction: &[u8], exponent: i64) -> Option<String> {
    let zeros = whole.iter().chain(fraction).take_while(|digit| **digit == b'0').count();
    let digits: Vec<u8> = whole.iter().chain(fraction).skip(zeros).copied().collect();
    let scale = fraction.len() as i64 - exponent;
    if digits.len() <= MAX_DIVIDED_DIGITS || scale <= 0 {
        return Some(format!("{}.0e{}", String::from_utf8(digits).ok()?, -scale));
    }
    let is_zero = digits.len() as i64 - scale <= MIN_EXPONENT;
    (!is_zero).then(|| decimal::hexadecimal(&digits, scale as u32))
}

/// Parses the exponent of a number: the digits after `e` or `p`.
fn exponent(text: &[u8]) -> Option<i64> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] => (false, digits),
        digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let cut = |value: i64, digit: &u8| (value * 10 + i64::from(digit - b'0')).min(MAX_EXPONENT);
    let magnitude = digits.iter().fold(0, cut);
    Some(if negative { -magnitude } else { magnitude })
}

/// Formats `mantissa / 2^shift`, with the last digit rounded to even.
fn fraction_text(mantissa: u64, shift: u32) -> Vec<u8> {
    // The product is below 2^64 * 10^17 < 2^121.
    let scaled = u128::from(mantissa) * 10_u128.pow(DECIMALS as u32);
    let rounded = if shift >= 128 {
        0
    } else {
        let (quotient, rest, half) = (scaled >> shift, scaled & ((1 << shift) - 1), 1_u128 << (shift - 1));
        let up = rest > half || (rest == half && quotient & 1 == 1);
        quotient + u128::from(up)
    };
    let mut text = format!("{rounded:0width$}", width = DECIMALS + 1).into_bytes();
    text.insert(text.len() - DECIMALS, b'.');
    let end = text.iter().rposition(|byte| *byte != b'0').map_or(0, |last| last + 1);
    text.truncate(end);
    if text.last() == Some(&b'.') {
        text.pop();
    }
    text
}

/// Formats `mantissa * 2^shift` exactly, with up to 4933 digits.
fn integer_text(mantissa: u64, shift: u32) -> Vec<u8> {
    const LIMB: u64 = 1_000_000_000;
    let (zeros, offset) = ((shift / 32) as usize, shift % 32);
    let top = u128::from(mantissa) << offset;
    // Limbs, least significant first.
    let mut limbs = vec![0_u32; zeros];
    limbs.extend([top as u32, (top >> 32) as u32, (top >> 64) as u32]);
    let mut groups = Vec::new();
    while let Some(last) = limbs.iter().rposition(|limb| *limb != 0) {
        limbs.truncate(last + 1);
        let mut rest = 0_u64;
        for limb in limbs.iter_mut().rev() {
            let dividend = (rest << 32) | u64::from(*limb);
            *limb = (dividend / LIMB) as u32;
            rest = dividend % LIMB;
        }
        groups.push(rest);
    }
    let mut text = groups.pop().unwrap_or(0).to_string();
    for group in groups.iter().rev() {
        text.push_str(&format!("{group:09}"));
    }
    text.into_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sum(left: &str, right: &str) -> String {
        let [left, right] = [left, right].map(|text| LongDouble::parse(text.as_bytes()).unwrap());
        String::from_utf8(left.plus(right).to_text()).unwrap()
    }

    // The expected sums come from redis-server 7.0 on x86-64. The differential test compares many more.
    #[test]
    fn sums_are_those_of_80_bits() {
        assert_eq!(sum("0.1", "0.2"), "0.3");
        assert_eq!(sum("10.50", "0.1"), "10.6");
        assert_eq!(sum("5.0e3", "2.0e2"), "5200");
        assert_eq!(sum("0", "-0"), "0");
        assert_eq!(sum("-0", "-1e-30"), "0");
        assert_eq!(sum("0", "0x1p3"), "8");
        assert_eq!(sum("0x.8", "0X1.P-1"), "1");
        assert_eq!(sum("25.5", "1e-17"), "25.50000000000000001");
        assert_eq!(sum("3.0e-18", "3.0e-18"), "0.00000000000000001");
        assert_eq!(sum("18446744073709551615", "1"), "18446744073709551616");
        assert_eq!(sum("1e30", "0"), "1000000000000000000024696061952");
        assert_eq!(sum(&format!("0.{}1e4001", "0".repeat(4000)), "1"), "2");
        assert_eq!(sum("1e4932", "0").len(), 4933);
    }

    #[test]
    fn long_fractions_are_rounded_once() {
        let zeros = "0".repeat(5_000);
        assert_eq!(sum(&format!("9223372036854775808.5{zeros}"), "0"), "9223372036854775808");
        assert_eq!(sum(&format!("9223372036854775808.5{zeros}1"), "0"), "9223372036854775809");
        assert_eq!(sum(&format!("92233720368547758085{zeros}1e-5002"), "0"), "9223372036854775809");
        assert_eq!(sum(&format!("1{zeros}e-5000"), "-1"), "0");
        assert_eq!(sum(&format!("{zeros}3e-5"), &format!("0.{}", "1".repeat(5_000))), "0.11114111111111111");
        assert!(LongDouble::parse(format!("{}e-9900", "7".repeat(5_000)).as_bytes()).is_some());
        for rounded_to_zero in ["e-9952", "e-99999", "e-99999999999"] {
            let text = format!("{}{rounded_to_zero}", "7".repeat(5_000));
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{rounded_to_zero}");
        }
        assert_eq!(LongDouble::parse(format!("{}e4000", "7".repeat(5_000)).as_bytes()), None, "overflows");
        assert_eq!(LongDouble::parse(format!("0.{zeros}e5").as_bytes()), Some(LongDouble::ZERO));
    }

    #[test]
    fn sums_have_at_most_the_digits_of_their_bound() {
        let texts = ["0", "9.99", "-9", "1e4900", "-1E+4000", "1e-4000", "0x1p16000", "-0X1e5000", "+0x1p3", "1e4932"];
        for (left, right) in texts.into_iter().flat_map(|left| [(left, "9.99"), (left, left)]) {
            let [first, second] = [left, right].map(|text| LongDouble::parse(text.as_bytes()));
            let (Some(first), Some(second)) = (first, second) else { continue };
            let (steps, digits) = addition(max_digits(left.as_bytes()), max_digits(right.as_bytes()));
            let text = first.plus(second).to_text();
            assert!(text.len() <= max_text_bytes(digits), "{left} + {right}: {digits}");
            let [parsed, other] = [left, right].map(|text| parsed_float(super::digits(text.as_bytes())));
            assert!(parsed + other + written_float(text.len()) <= steps, "{left} + {right}: {steps}");
        }
        assert_eq!(addition(max_digits(b"0.5"), max_digits(b"-12.25")), (0, 7));
    }

    #[test]
    fn what_is_no_number_is_none() {
        let long = "1".repeat(MAX_TEXT_BYTES + 1);
        let cases = [
            "",
            "-",
            "+",
            ".",
            "-.",
            "e5",
            "1e",
            "1e+",
            "0x",
            "0xg",
            "0x.",
            "1p3",
            "0x1e+3",
            " 1",
            "1 ",
            "1\0",
            "--1",
            "nan",
            "infinit",
            "1_0",
            "1e4933",
            "-1e99999999999999999999",
            "1e-99999",
            &long,
        ];
        for text in cases {
            assert_eq!(LongDouble::parse(text.as_bytes()), None, "{text:?}");
        }
        assert!(LongDouble::parse(&long.as_bytes()[1..]).is_none(), "overflows");
        assert_eq!(LongDouble::parse(b"0e99999999999999999999"), Some(LongDouble::ZERO));
        assert!(!LongDouble::parse(b"-InFiNiTy").unwrap().is_finite());
    }
}
