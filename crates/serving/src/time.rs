//! Parsing and formatting of points in time for clients.

use jiff::Timestamp;
use thalweg_types::SpaceTime;

/// Parses microseconds since the Unix epoch, or a date and time with an offset, such as `2026-11-20T10:00:00Z` or
/// `2026-11-20T10:00:00.25+01:00` (RFC 3339). Digits after the microseconds are dropped. Returns `None` for other text
/// and for times before 1970.
#[must_use]
pub fn parse_time(text: &str) -> Option<SpaceTime> {
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return text.parse().ok().map(SpaceTime);
    }
    let time: Timestamp = text.parse().ok()?;
    u64::try_from(time.as_microsecond()).ok().filter(|_| time >= Timestamp::UNIX_EPOCH).map(SpaceTime)
}

/// Formats a time as RFC 3339 in UTC with microseconds, for people to read. Programs get the number of microseconds
/// instead. A time after the year 9999 is formatted as the number of microseconds, too.
#[must_use]
pub fn rfc3339(time: SpaceTime) -> String {
    let stamp = i64::try_from(time.0).ok().and_then(|micros| Timestamp::from_microsecond(micros).ok());
    stamp.map_or_else(|| time.0.to_string(), |stamp| format!("{stamp:.6}"))
}
