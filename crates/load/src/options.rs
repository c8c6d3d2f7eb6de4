//! Parsers of option values, and checks of options that the parser of the command line does not make.

use std::time::Duration;

use crate::BenchError;

/// Returns an error that names `option`, unless `holds` is true.
pub fn require(holds: bool, option: &'static str, message: impl Into<String>) -> Result<(), BenchError> {
    if holds { Ok(()) } else { Err(BenchError::Option { option, message: message.into() }) }
}

/// Returns an error that names `option`, unless `value` is from 1 to `most`.
pub fn within(option: &'static str, value: impl TryInto<usize>, most: usize) -> Result<(), BenchError> {
    let value = value.try_into().unwrap_or(usize::MAX);
    require((1..=most).contains(&value), option, format!("must be 1 to {most}"))
}

/// Returns an error if the option `--rate` is given with a value that is not above 0, or that is above `most`.
pub fn rate_within(rate: Option<f64>, most: u32) -> Result<(), BenchError> {
    let is_valid = rate.is_none_or(|rate| rate > 0.0 && rate <= f64::from(most));
    require(is_valid, "--rate", format!("must be above 0 and at most {} million", most / 1_000_000))
}

/// Returns an error if the highest rate of a search is not above 0, or is infinite.
pub fn max_rate_within(rate: f64) -> Result<(), BenchError> {
    require(rate > 0.0 && rate.is_finite(), "--max-rate", "must be above 0")
}

/// Returns an error if the length of a run's windows is given and is below 10 ms. The stalls that windows show are
/// longer.
pub fn check_window(window: Option<Duration>) -> Result<(), BenchError> {
    let is_valid = window.is_none_or(|window| window >= Duration::from_millis(10));
    require(is_valid, "--window", "must be at least 10ms")
}

/// Returns the items of `all` whose names contain `part`; all items if `part` is `None`. If no name contains `part`,
/// returns an error that lists the names.
pub fn only<T>(all: Vec<T>, part: Option<&str>, name: impl Fn(&T) -> &str) -> Result<Vec<T>, BenchError> {
    let Some(part) = part else { return Ok(all) };
    let names = all.iter().map(&name).collect::<Vec<_>>().join(", ");
    let left: Vec<T> = all.into_iter().filter(|one| name(one).contains(part)).collect();
    require(!left.is_empty(), "--only", format!("{part:?} is in none of: {names}"))?;
    Ok(left)
}

/// Parses command-line arguments as the options of a suite. The error is one line without the usage.
pub fn parsed<'a, O: clap::Args>(arguments: impl IntoIterator<Item = &'a str>) -> Result<O, String> {
    #[derive(clap::Parser)]
    #[command(no_binary_name = true)]
    struct Arguments<O: clap::Args> {
        #[command(flatten)]
        options: O,
    }
    let parsed = <Arguments<O> as clap::Parser>::try_parse_from(arguments);
    parsed.map(|arguments| arguments.options).map_err(|error| {
        let text = error.to_string();
        let line = text.lines().next().unwrap_or_default();
        line.strip_prefix("error: ").unwrap_or(line).to_owned()
    })
}

/// Parses a duration such as `10`, `10s`, `1.5s`, `500ms`, `80us` or `2m`. A number without a unit counts as seconds.
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

/// Parses a number of bytes such as `4096`, `64KiB`, `512MiB` or `2GiB`.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("{text:?} is not a number of bytes: write for example 512MiB or 2GiB");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim() {
        "" | "B" => 0,
        "KiB" => 10,
        "MiB" => 20,
        "GiB" => 30,
        _ => return Err(wrong()),
    };
    let number: u64 = number.parse().map_err(|_| wrong())?;
    number.checked_mul(1 << shift).ok_or_else(wrong)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_search_has_a_highest_rate() {
        assert!(max_rate_within(0.5).is_ok());
        for wrong in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(max_rate_within(wrong).unwrap_err().to_string().contains("--max-rate"), "{wrong}");
        }
    }

    #[test]
    fn numbers_of_bytes_have_units() {
        let parsed = ["0", "4096", "1 KiB", "512MiB", "2GiB"].map(|text| parse_bytes(text).unwrap());
        assert_eq!(parsed, [0, 4096, 1024, 512 << 20, 2 << 30]);
        for wrong in ["", "MiB", "1.5GiB", "-1", "1MB", "99999999999GiB", "18446744073709551616"] {
            assert!(parse_bytes(wrong).unwrap_err().contains("512MiB"), "{wrong}");
        }
    }
}
