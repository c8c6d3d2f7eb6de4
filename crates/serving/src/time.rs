//! Points in time as clients write them, and as we show them.

use thalweg_types::SpaceTime;

/// Microseconds since the Unix epoch, or RFC 3339 as in `2026-11-20T10:00:00Z`,
/// `2026-11-20T10:00:00.25+01:00`. `None` if it is neither, or before 1970.
#[must_use]
pub fn parse_time(text: &str) -> Option<SpaceTime> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(SpaceTime);
    }
    let bytes = text.as_bytes();
    let number = |from: usize, to: usize| -> Option<i64> {
        let digits = bytes.get(from..to)?;
        digits.iter().all(u8::is_ascii_digit).then_some(())?;
        std::str::from_utf8(digits).ok()?.parse().ok()
    };
    let is = |at: usize, wanted: &[u8]| bytes.get(at).is_some_and(|byte| wanted.contains(byte));
    let shape = is(4, b"-") && is(7, b"-") && is(10, b"Tt ") && is(13, b":") && is(16, b":");
    shape.then_some(())?;
    let (year, month, day) = (number(0, 4)?, number(5, 7)?, number(8, 10)?);
    let (hour, minute, second) = (number(11, 13)?, number(14, 16)?, number(17, 19)?);
    let in_range = (1..=12).contains(&month)
        && (1..=days_in_month(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second < 61;
    in_range.then_some(())?;
    let (fraction, zone) = fraction_micros(bytes.get(19..)?)?;
    let seconds = days_from_epoch(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
    let micros = (seconds - zone_seconds(zone)?).checked_mul(1_000_000)? + fraction;
    u64::try_from(micros).ok().map(SpaceTime)
}

/// The microseconds of `.123456789`, and what follows; digits beyond the sixth are dropped.
fn fraction_micros(rest: &[u8]) -> Option<(i64, &[u8])> {
    let Some(digits) = rest.strip_prefix(b".") else { return Some((0, rest)) };
    let len = digits.iter().take_while(|byte| byte.is_ascii_digit()).count();
    (1..=9).contains(&len).then_some(())?;
    let micros = (0..6).fold(0, |sum, at| sum * 10 + if at < len { i64::from(digits[at] - b'0') } else { 0 });
    Some((micros, &digits[len..]))
}

fn zone_seconds(zone: &[u8]) -> Option<i64> {
    match *zone {
        [b'Z' | b'z'] => Some(0),
        [sign @ (b'+' | b'-'), h1, h2, b':', m1, m2] if [h1, h2, m1, m2].iter().all(u8::is_ascii_digit) => {
            let two = |high: u8, low: u8| i64::from(high - b'0') * 10 + i64::from(low - b'0');
            let seconds = two(h1, h2) * 3600 + two(m1, m2) * 60;
            Some(if sign == b'-' { -seconds } else { seconds })
        }
        _ => None,
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in_month(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days since 1970-01-01, counting years from March so that the leap day comes last.
fn days_from_epoch(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let month = (month + 9) % 12;
    let day_of_year = (153 * month + 2) / 5 + day - 1;
    365 * year + year.div_euclid(4) - year.div_euclid(100) + year.div_euclid(400) + day_of_year - 719_468
}

/// RFC 3339 in UTC with microseconds, for people; programs get the number.
#[must_use]
pub fn rfc3339(time: SpaceTime) -> String {
    let (seconds, micros) = (time.0 / 1_000_000, time.0 % 1_000_000);
    let (mut days, in_day) = ((seconds / 86_400) as i64, seconds % 86_400);
    let mut year = 1970 + days / 366;
    days -= days_from_epoch(year, 1, 1);
    while days >= 365 + i64::from(is_leap(year)) {
        days -= 365 + i64::from(is_leap(year));
        year += 1;
    }
    let mut month = 1;
    while days >= days_in_month(year, month) {
        days -= days_in_month(year, month);
        month += 1;
    }
    let (hour, minute, second) = (in_day / 3600, in_day / 60 % 60, in_day % 60);
    format!("{year:04}-{month:02}-{:02}T{hour:02}:{minute:02}:{second:02}.{micros:06}Z", days + 1)
}
