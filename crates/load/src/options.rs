//! Parsers of option values, and checks of options that the command line's parser does not make.

use std::time::Duration;

use crate::BenchError;

/// Returns an error that names `option` unless the condition `holds` is true.
pub fn require(holds: bool, option: &'static str, message: impl Into<String>) -> Result<(), BenchError> {
    if holds { Ok(()) } else { Err(BenchError::Option { option, message: message.into() }) }
}

/// Returns an error unless the value of `option` is from 1 to `most`.
pub fn within(option: &'static str, value: impl TryInto<usize>, most: usize) -> Result<(), BenchError> {
    let value = value.try_into().unwrap_or(usize::MAX);
    require((1..=most).contains(&value), option, format!("must be 1 to {most}"))
}

/// Returns an error if a rate is given and is not above 0 and at most `most`.
pub fn rate_within(rate: Option<f64>, most: u32) -> Result<(), BenchError> {
    let is_valid = rate.is_none_or(|rate| rate > 0.0 && rate <= f64::from(most));
    require(is_valid, "--rate", format!("must be above 0 and at most {} million", most / 1_000_000))
}

/// Returns those items of `all` whose name contains `part`. If no name contains it, returns an error that lists the
/// names.
pub fn only<T>(all: Vec<T>, part: Option<&str>, name: impl Fn(&T) -> &str) -> Result<Vec<T>, BenchError> {
    let Some(part) = part else { return Ok(all) };
    let names = all.iter().map(&name).collect::<Vec<_>>().join(", ");
    let left: Vec<T> = all.into_iter().filter(|one| name(one).contains(part)).collect();
    require(!left.is_empty(), "--only", format!("{part:?} is in none of: {names}"))?;
    Ok(left)
}

/// Parses a duration such as `10`, `10s`, `1.5s`, `500ms`, `80us` or `2m`; a number without a unit is seconds.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is not a duration: write for example 10s, 500ms or 80us");
    let digits = text.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let number: f64 = number.parse().map_err(|_| wrong())?;
    let seconds = match unit.trim() {
        "" | "s" => number,
        "m" => number * 60.0,
        "ms" => number / 1e3,
        "us" | "µs" => number / 1e6,
        _ => return Err(wrong()),
    };
    Duration::try_from_secs_f64(seconds).map_err(|_| wrong())
}
