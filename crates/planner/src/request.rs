//! The input of a capacity plan besides the measurements: the load, the latency objective, and the settings of the
//! nodes.

use std::time::Duration;

use serde::Serialize;

use crate::Run;

/// Percentile of the write latency for which an objective sets a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Quantile {
    /// Median of the write latency.
    P50,
    /// 90th percentile of the write latency.
    P90,
    /// 99th percentile of the write latency.
    P99,
    /// 99.9th percentile of the write latency.
    P999,
}

impl Quantile {
    /// Returns the name of the percentile, such as `p99`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::P50 => "p50",
            Self::P90 => "p90",
            Self::P99 => "p99",
            Self::P999 => "p999",
        }
    }

    /// Returns this percentile of the write times in `run`, in microseconds.
    #[must_use]
    pub fn of(self, run: &Run) -> f64 {
        match self {
            Self::P50 => run.p50_micros,
            Self::P90 => run.p90_micros,
            Self::P99 => run.p99_micros,
            Self::P999 => run.p999_micros,
        }
    }
}

/// Objective for the write latency: one percentile must stay below a maximum.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Objective {
    /// Percentile for which the objective sets a maximum.
    pub quantile: Quantile,
    /// Maximum, exclusive, of the percentile of the write latency.
    pub below: Duration,
}

/// Load for which a capacity plan is requested, and the latency objective that the plan must meet.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Request {
    /// Number of writes per second that all planned clusters together must take.
    pub writes_per_second: f64,
    /// Size of each write's payload, in bytes.
    pub payload_bytes: u64,
    /// Time for which the nodes keep the written data.
    pub retention: Duration,
    /// Number of members of each planned cluster; 1 is a single node.
    pub replicas: u32,
    /// Objective that the latency of writes must meet.
    pub objective: Objective,
    /// Network round-trip time between the planned nodes.
    pub round_trip: Duration,
    /// Fraction of each resource that the plan leaves unused, from 0 to below 1.
    pub headroom: f64,
}

/// Settings of the planned nodes that determine disk space and memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct Settings {
    /// Disk space in bytes that a node always keeps free (setting `reserve_bytes`).
    pub reserve_bytes: u64,
    /// Size in bytes of the log segments that a node allocates ahead: the one in use and the prepared ones.
    pub segments_bytes: u64,
    /// Size of the block cache (`cache_bytes`). The plan adds it, because the short runs of a profile do not fill the
    /// cache.
    pub cache_bytes: u64,
}

/// Parses a rate in writes per second, such as `20000/s`, `20k/s` or `500`.
///
/// # Errors
///
/// Returns a description of valid rates.
pub fn parse_rate(text: &str) -> Result<f64, String> {
    let expected = || "use writes per second, such as 20000/s or 20k/s".to_owned();
    let number = text.strip_suffix("/s").unwrap_or(text).trim();
    let (digits, factor) = match number.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1e3),
        None => number.strip_suffix('M').map_or((number, 1.0), |digits| (digits, 1e6)),
    };
    let rate = digits.parse::<f64>().map_err(|_| expected())? * factor;
    if rate.is_finite() && rate > 0.0 { Ok(rate) } else { Err(expected()) }
}

/// Parses a size in bytes, such as `100`, `1KB` (1000) or `1KiB` (1024).
///
/// # Errors
///
/// Returns a description of valid sizes.
pub fn parse_size(text: &str) -> Result<u64, String> {
    const UNITS: [(&str, u64); 5] = [("KiB", 1 << 10), ("MiB", 1 << 20), ("KB", 1000), ("MB", 1_000_000), ("B", 1)];
    let expected = || "use a size such as 100, 1KB or 1KiB".to_owned();
    let found = UNITS.iter().find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, *factor)));
    let (digits, factor) = found.unwrap_or((text, 1));
    let number: u64 = digits.trim().parse().map_err(|_| expected())?;
    number.checked_mul(factor).filter(|bytes| *bytes > 0).ok_or_else(expected)
}

impl std::str::FromStr for Quantile {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "p50" => Ok(Self::P50),
            "p90" => Ok(Self::P90),
            "p99" => Ok(Self::P99),
            "p999" | "p99.9" => Ok(Self::P999),
            _ => Err("use p50, p90, p99 or p999".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_sizes_and_percentiles_are_parsed() {
        let rates = ["20000/s", "20k/s", "1.5M/s", "7"].map(|text| parse_rate(text).unwrap());
        assert_eq!(rates, [20_000.0, 20_000.0, 1_500_000.0, 7.0]);
        for wrong in ["", "/s", "-1", "0", "NaN", "inf/s", "20000/m"] {
            assert!(parse_rate(wrong).is_err(), "{wrong}");
        }
        assert_eq!(
            ["100", "1KB", "1KiB", "2 MB", "9B"].map(|text| parse_size(text).unwrap()),
            [100, 1000, 1024, 2_000_000, 9]
        );
        for wrong in ["", "0", "KB", "1TB", "-1", "99999999999999999MiB"] {
            assert!(parse_size(wrong).is_err(), "{wrong}");
        }
        assert_eq!("p99.9".parse(), Ok(Quantile::P999));
        assert!("p42".parse::<Quantile>().is_err());
    }
}
