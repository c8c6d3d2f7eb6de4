//! Numbers as text, in tables and checks of reports.

/// Formats a number with three significant digits. Numbers from 1000 on keep all digits of the whole part and get
/// thousands separators. Numbers from 0.001 to 1 have three decimal places.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".to_owned()
    } else if size >= 100.0 {
        let sign = if value < 0.0 { "-" } else { "" };
        format!("{sign}{}", grouped(size.round() as u64))
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 1.0 || size == 0.0 {
        format!("{value:.2}")
    } else if size >= 1e-3 {
        format!("{value:.3}")
    } else if size >= 1e-6 {
        // Each zero after the decimal point adds one decimal place. Three places would show 0.000.
        let places = (2.0 - size.log10().floor()) as usize;
        format!("{value:.places$}")
    } else {
        format!("{value:.2e}")
    }
}

/// Formats a count with all digits and thousands separators.
pub(super) fn grouped(count: u64) -> String {
    let digits = count.to_string();
    let mut out = String::with_capacity(digits.len() * 4 / 3);
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_for_people() {
        let shown: Vec<_> = [0.0, 0.1234, 1.234, 12.34, 123.4, 1_234_567.0, -2000.0].map(number).to_vec();
        assert_eq!(shown, ["0.00", "0.123", "1.23", "12.3", "123", "1,234,567", "-2,000"]);
        let small: Vec<_> = [0.0123, 0.0006, 0.000_42, -0.000_012_3, 4.2e-9].map(number).to_vec();
        assert_eq!(small, ["0.012", "0.000600", "0.000420", "-0.0000123", "4.20e-9"]);
    }
}
