//! Durations, sizes and times in the notation that users type and read on the command line. The configuration and the
//! API use the same notation.

use std::time::Duration;

use jiff::tz::TimeZone;
use serde_json::Value;
use thalweg_server::{
    config::{ByteSize, Setting, Span},
    parse::{parse_time, rfc3339},
};
use thalweg_types::{Clock as _, SpaceTime, SystemClock};

/// Parses a duration such as `250ms`, `10s`, `5m`, `1.5h`, `1h30m` or `7d`.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    Span::parse(text).map(|span| span.0).map_err(|expected| format!("use {expected}"))
}

/// Parses a size in bytes such as `64KiB`, `1GiB`, or a plain number of bytes.
pub(crate) fn parse_bytes(text: &str) -> Result<u64, String> {
    ByteSize::parse(text).map(|size| size.0).map_err(|expected| format!("use {expected}"))
}

/// Value of a setting that is a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limit<T> {
    /// There is no limit.
    Unlimited,
    /// The limit has this value.
    At(T),
}

/// Parses `none`, or a limit that `parse` understands.
pub(crate) fn parse_limit<T>(text: &str, parse: impl Fn(&str) -> Result<T, String>) -> Result<Limit<T>, String> {
    match text {
        "none" => Ok(Limit::Unlimited),
        limit => parse(limit).map(Limit::At).map_err(|expected| format!("{expected}, or none")),
    }
}

/// Returns a limit in the JSON format of the HTTP API, in which null means no limit.
pub(crate) fn limit_json<T>(limit: Limit<T>, json: impl FnOnce(T) -> Value) -> Value {
    match limit {
        Limit::Unlimited => Value::Null,
        Limit::At(limit) => json(limit),
    }
}

/// Smallest number that is accepted as microseconds since the Unix epoch; it is a time in 2001. No data is older. A
/// smaller number must be a mistake, such as seconds, milliseconds, or a span without its unit. As microseconds, it
/// would select all data.
const FIRST_MICROS: u64 = 1_000_000_000_000_000;

/// Start time that the user gives with `--since`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StartTime {
    /// A span before the current time.
    Ago(Duration),
    /// A point in time.
    At(SpaceTime),
}

impl StartTime {
    /// Returns the point in time. A span is subtracted from the present time of the wall clock.
    pub(crate) fn time(self) -> SpaceTime {
        self.time_at(SystemClock::default().wall())
    }

    fn time_at(self, now: SpaceTime) -> SpaceTime {
        match self {
            Self::Ago(span) => now.minus(span),
            Self::At(time) => time,
        }
    }
}

/// Parses a time: a span before now such as `10m` or `1.5h ago`, a date such as `2026-11-22`, a date with a time such
/// as `2026-11-20 08:30` or `2026-11-20T08:30:00Z`, or microseconds since the Unix epoch. A date without a time means
/// the first moment of the day. A time without an offset is in UTC. Times are also shown in UTC.
pub(crate) fn parse_since(text: &str) -> Result<StartTime, String> {
    if text.parse::<u64>().is_ok_and(|number| (1..FIRST_MICROS).contains(&number)) {
        let wanted = "a number without a unit means microseconds since 1970, which have 16 digits today: add three \
                      zeros to milliseconds, six to seconds, and the unit to a span before now (10m)";
        return Err(wanted.to_owned());
    }
    if let Some(time) = parse_time(text).or_else(|| parse_civil_time(text)) {
        return Ok(StartTime::At(time));
    }
    let span = text.strip_suffix("ago").unwrap_or(text).trim_end();
    parse_span(span).map(StartTime::Ago).map_err(|_| {
        "use a span before now (10m, 1.5h), a date (2026-11-20), 2026-11-20T08:30:00Z, or microseconds since 1970"
            .to_owned()
    })
}

fn parse_civil_time(text: &str) -> Option<SpaceTime> {
    let time: jiff::civil::DateTime = text.parse().ok()?;
    let time = TimeZone::UTC.to_timestamp(time).ok()?;
    u64::try_from(time.as_microsecond()).ok().map(SpaceTime)
}

/// Formats a time in microseconds since the Unix epoch as RFC 3339 in UTC.
pub(crate) fn show_time(micros: u64) -> String {
    rfc3339(SpaceTime(micros))
}

/// Formats a span of time for people, such as `850 ms`, `1.2 s` or `3 m 20 s`.
pub(crate) fn show_span(span: Duration) -> String {
    let seconds = span.as_secs_f64();
    match seconds {
        s if s < 0.001 => format!("{:.0} µs", s * 1e6),
        s if s < 1.0 => format!("{:.0} ms", s * 1e3),
        s if s < 60.0 => format!("{s:.1} s"),
        s if s < 3600.0 => format!("{} m {} s", span.as_secs() / 60, span.as_secs() % 60),
        s if s < 86_400.0 => format!("{} h {} m", span.as_secs() / 3600, span.as_secs() / 60 % 60),
        _ => format!("{} d {} h", span.as_secs() / 86_400, span.as_secs() / 3600 % 24),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_time_is_a_point_or_a_span_before_now() {
        let now = SpaceTime(60_000_000);
        assert_eq!(parse_since("10s").map(|since| since.time_at(now)), Ok(SpaceTime(50_000_000)));
        assert_eq!(parse_since("10m").map(|since| since.time_at(now)), Ok(SpaceTime(0)));
        let micros = 1_796_081_149_736_448;
        assert_eq!(parse_since(&micros.to_string()).map(|since| since.time_at(now)), Ok(SpaceTime(micros)));
        assert_eq!(parse_since("0").map(|since| since.time_at(now)), Ok(SpaceTime(0)));
        assert_eq!(parse_since("1970-01-01T00:00:01Z").map(|since| since.time_at(now)), Ok(SpaceTime(1_000_000)));
        assert_eq!(parse_since("0.5m ago").map(|since| since.time_at(now)), Ok(SpaceTime(30_000_000)));
        let day = 86_400_000_000;
        for (text, micros) in [
            ("1970-01-02", day),
            ("1970-01-02T00:00:01", day + 1_000_000),
            ("1970-01-02 01:00", day + 3_600_000_000),
            ("1970-01-02 01:00+01", day),
        ] {
            assert_eq!(parse_since(text), Ok(StartTime::At(SpaceTime(micros))), "{text}");
        }
        for wrong in ["yesterday", "2026-13-01", "1969-12-31", "-10m", "1 month"] {
            assert!(parse_since(wrong).is_err(), "{wrong}");
        }
        // Ten minutes without the unit, a number of seconds, and a number of milliseconds.
        for wrong in ["10", "1796081149", "1796081149736"] {
            assert!(parse_since(wrong).is_err_and(|why| why.contains("16 digits")), "{wrong}");
        }
    }

    #[test]
    fn spans_have_fractions_and_several_units() {
        let seconds = |text: &str| parse_span(text).map(|span| span.as_secs_f64());
        for (text, wanted) in [
            ("1.5h", 5400.0),
            ("1h30m", 5400.0),
            ("1h 30m", 5400.0),
            ("2 days", 172_800.0),
            ("PT90S", 90.0),
            ("0.25s", 0.25),
        ] {
            assert_eq!(seconds(text), Ok(wanted), "{text}");
        }
        for wrong in ["", "10", "1.5", "1 month", "-5s", "5s ago", "1.5ns", "h"] {
            assert!(parse_span(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn spans_are_short_to_read() {
        let shown = [
            (0, "0 µs"),
            (850_000, "850 ms"),
            (1_230_000, "1.2 s"),
            (200_000_000, "3 m 20 s"),
            (604_800_000_000, "7 d 0 h"),
        ];
        for (micros, text) in shown {
            assert_eq!(show_span(Duration::from_micros(micros)), text);
        }
    }
}
