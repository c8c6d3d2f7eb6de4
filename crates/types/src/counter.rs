//! The text form of a counter, as stored in the value of a key or of a cache entry.

/// Parses a counter in its canonical form: a decimal number without a plus sign, leading zeros or spaces. Returns
/// `None` for any other text.
#[must_use]
pub fn parse_counter(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_are_as_they_would_be_written() {
        for (text, value) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(parse_counter(text.as_bytes()), Some(value));
        }
        for bad in ["", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "one"] {
            assert_eq!(parse_counter(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(parse_counter(b"\xff"), None);
    }
}
