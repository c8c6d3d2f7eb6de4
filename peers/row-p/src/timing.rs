//! Times of single operations, and what is reported of them.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Failure;

/// What one process measured in one line of the table.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Measured {
    /// Title of the line, with the durability of its writes.
    pub title: String,
    /// Unit of `value`.
    pub unit: Unit,
    /// Operations per second, or bytes of files for each byte of keys and values.
    pub value: f64,
    /// Latencies of the operations; `None` for a line without operations.
    pub micros: Option<Quantiles>,
}

/// Unit of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Unit {
    /// Operations per second; more is better.
    PerSecond,
    /// Bytes of files for each byte of keys and values; less is better.
    OfPayload,
}

/// Latencies in microseconds.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Quantiles {
    /// Median.
    pub p50: f64,
    /// 99 of 100 operations were at most this long.
    pub p99: f64,
    /// 999 of 1000 operations were at most this long.
    pub p999: f64,
    /// Longest operation.
    pub max: f64,
}

/// Performs `count` operations and times each. The rate is that of the whole, so the time between two operations counts.
pub fn timed(
    title: impl Into<String>,
    count: u64,
    mut operation: impl FnMut(u64) -> Result<(), Failure>,
) -> Result<Measured, Failure> {
    let mut nanos: Vec<u64> = Vec::with_capacity(count as usize);
    // The pages of the list are touched before the clock runs.
    nanos.resize(count as usize, 1);
    nanos.clear();
    let begun = Instant::now();
    let mut last = begun;
    for number in 0..count {
        operation(number)?;
        let now = Instant::now();
        nanos.push((now - last).as_nanos() as u64);
        last = now;
    }
    let seconds = (last - begun).as_secs_f64();
    nanos.sort_unstable();
    let at = |share: f64| nanos.get(((count as f64 * share) as usize).min(nanos.len() - 1)).map_or(0.0, micros);
    let quantiles = (count > 0).then(|| Quantiles { p50: at(0.5), p99: at(0.99), p999: at(0.999), max: at(1.0) });
    Ok(Measured { title: title.into(), unit: Unit::PerSecond, value: count as f64 / seconds, micros: quantiles })
}

fn micros(nanos: &u64) -> f64 {
    *nanos as f64 / 1000.0
}
