//! Histograms and counters split over shards, so that threads do not share cache lines.
//!
//! Owns: the counters of all threads, the bounds of the buckets, and quantiles. Does not own: the names and labels of
//! metrics, or the numbers by which callers address them (`mod`).
//!
//! Bucket bounds are 2^n and 1.5 x 2^n microseconds, from 16 us to 16 s. A quantile computed from the buckets is at
//! most a third above the exact one.

use std::{
    cell::Cell,
    sync::atomic::{AtomicU64, AtomicUsize, Ordering},
    time::Duration,
};

const FIRST_OCTAVE: u32 = 4;
const OCTAVES: u32 = 20;
/// Number of buckets of a histogram: two for each doubling of the duration, and one for all slower values.
const BUCKETS: usize = OCTAVES as usize * 2 + 1;
const SHARDS: usize = 8;

/// Returns the inclusive upper bound of a histogram's bucket in seconds. The bound of the last bucket is infinite. The
/// metrics must show this bucket (as `+Inf`), because Prometheus computes no quantile without it.
#[must_use]
fn upper_bound_seconds(bucket: usize) -> f64 {
    if bucket + 1 == BUCKETS {
        return f64::INFINITY;
    }
    let octave = FIRST_OCTAVE + bucket as u32 / 2;
    let base = 1_u64 << octave;
    let micros = if bucket.is_multiple_of(2) { base } else { base + base / 2 };
    micros as f64 / 1e6
}

/// Returns the number of the histogram bucket for a duration: the first bucket whose bound is at least the duration.
#[must_use]
fn bucket_of(took: Duration) -> usize {
    let micros = u64::try_from(took.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX);
    if micros <= 1 << FIRST_OCTAVE {
        return 0;
    }
    let octave = 63 - (micros - 1).leading_zeros();
    let base = 1_u64 << octave;
    let half = if micros <= base + base / 2 { 1 } else { 2 };
    (((octave - FIRST_OCTAVE) * 2 + half) as usize).min(BUCKETS - 1)
}

#[derive(Debug)]
#[repr(align(128))]
struct Shard {
    buckets: Box<[AtomicU64]>,
    micros: Box<[AtomicU64]>,
    counters: Box<[AtomicU64]>,
}

/// A list of histograms of durations, and a list of counters. Each thread counts in one of several copies (shards).
/// Callers address a histogram or a counter by its index in the list.
#[derive(Debug)]
pub struct Shards {
    shards: Box<[Shard]>,
}

/// Counts of one histogram, summed over its copies for the threads (shards).
#[derive(Clone, Debug, PartialEq)]
pub struct HistogramCounts {
    /// Number of values in the histogram.
    pub count: u64,
    /// Sum of the histogram's values in seconds.
    pub sum: f64,
    /// Upper bound of each bucket in seconds, and the number of values in it.
    pub buckets: Vec<(f64, u64)>,
}

impl HistogramCounts {
    /// Returns the values that were added after `earlier`, the counts of the same histogram at an earlier time. `None`
    /// if no values were added.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Option<Self> {
        let pairs = self.buckets.iter().zip(&earlier.buckets);
        let buckets: Vec<_> = pairs.map(|((bound, now), (_, then))| (*bound, now.saturating_sub(*then))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        (count > 0).then(|| Self { count, sum: (self.sum - earlier.sum).max(0.0), buckets })
    }

    /// Returns an upper bound in seconds of a quantile; `part` is the part of the values below it, such as 0.99. For
    /// values above the last finite bound, returns this bound.
    #[must_use]
    pub fn quantile(&self, part: f64) -> f64 {
        let wanted = (self.count as f64 * part).ceil() as u64;
        let mut below = 0;
        let reached = self.buckets.iter().find(|(_, count)| {
            below += count;
            below >= wanted
        });
        reached.map_or(f64::INFINITY, |(bound, _)| *bound).min(upper_bound_seconds(BUCKETS - 2))
    }
}

thread_local! {
    static SHARD: Cell<usize> = const { Cell::new(usize::MAX) };
}
static NEXT_SHARD: AtomicUsize = AtomicUsize::new(0);

fn own_shard() -> usize {
    SHARD.with(|shard| {
        if shard.get() == usize::MAX {
            shard.set(NEXT_SHARD.fetch_add(1, Ordering::Relaxed) % SHARDS);
        }
        shard.get()
    })
}

fn zeroes(len: usize) -> Box<[AtomicU64]> {
    (0..len).map(|_| AtomicU64::new(0)).collect()
}

impl Shards {
    /// Creates lists of `histograms` histograms and `counters` counters, all at zero.
    #[must_use]
    pub fn new(histograms: usize, counters: usize) -> Self {
        let shard =
            || Shard { buckets: zeroes(histograms * BUCKETS), micros: zeroes(histograms), counters: zeroes(counters) };
        Self { shards: (0..SHARDS).map(|_| shard()).collect() }
    }

    /// Adds the duration `took` to the histogram with the index `histogram`, and 1 to the counter with the index
    /// `counter`.
    pub fn record(&self, histogram: usize, counter: usize, took: Duration) {
        let shard = &self.shards[own_shard()];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        shard.buckets[histogram * BUCKETS + bucket_of(took)].fetch_add(1, Ordering::Relaxed);
        shard.micros[histogram].fetch_add(micros, Ordering::Relaxed);
        shard.counters[counter].fetch_add(1, Ordering::Relaxed);
    }

    /// Adds `count` to the counter with the index `counter`.
    pub fn add(&self, counter: usize, count: u64) {
        self.shards[own_shard()].counters[counter].fetch_add(count, Ordering::Relaxed);
    }

    /// Adds `count` durations to the histogram with the index `histogram`. All are counted in the bucket of the
    /// duration `each`. `total` is added to the histogram's sum.
    pub fn record_many(&self, histogram: usize, each: Duration, total: Duration, count: u64) {
        let shard = &self.shards[own_shard()];
        let micros = u64::try_from(total.as_micros()).unwrap_or(u64::MAX);
        shard.buckets[histogram * BUCKETS + bucket_of(each)].fetch_add(count, Ordering::Relaxed);
        shard.micros[histogram].fetch_add(micros, Ordering::Relaxed);
    }

    /// Returns the value of the counter with the index `counter`, summed over all threads.
    #[must_use]
    pub fn count(&self, counter: usize) -> u64 {
        self.shards.iter().map(|shard| shard.counters[counter].load(Ordering::Relaxed)).sum()
    }

    /// Returns the histogram with the index `histogram`, summed over all threads; `None` while it is empty.
    #[must_use]
    pub fn histogram(&self, histogram: usize) -> Option<HistogramCounts> {
        let in_bucket = |bucket: usize| -> u64 {
            let at = histogram * BUCKETS + bucket;
            self.shards.iter().map(|shard| shard.buckets[at].load(Ordering::Relaxed)).sum()
        };
        let buckets: Vec<(f64, u64)> =
            (0..BUCKETS).map(|bucket| (upper_bound_seconds(bucket), in_bucket(bucket))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let micros: u64 = self.shards.iter().map(|shard| shard.micros[histogram].load(Ordering::Relaxed)).sum();
        (count > 0).then_some(HistogramCounts { count, sum: micros as f64 / 1e6, buckets })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;

    #[test]
    fn every_duration_falls_below_the_bound_of_its_bucket_and_above_the_one_before() {
        for nanos in (0..60_000).step_by(7).chain((60_000..40_000_000_000).step_by(97_777_777)) {
            let took = Duration::from_nanos(nanos);
            let bucket = bucket_of(took);
            assert!(took.as_secs_f64() <= upper_bound_seconds(bucket), "{nanos}");
            if bucket > 0 {
                assert!(took.as_secs_f64() > upper_bound_seconds(bucket - 1), "{nanos} {bucket}");
            }
        }
    }

    #[test]
    fn a_quantile_is_the_bound_of_the_bucket_that_holds_it() {
        let shards = Shards::new(1, 1);
        let record = |micros: u64, count: u64| {
            shards.record_many(0, Duration::from_micros(micros), Duration::from_micros(micros), count);
        };
        record(100, 98);
        record(1000, 2);
        let before = shards.histogram(0).unwrap();
        let micros = |counts: &HistogramCounts, part: f64| (counts.quantile(part) * 1e6).round() as u64;
        assert_eq!((micros(&before, 0.5), micros(&before, 0.98), micros(&before, 0.99)), (128, 128, 1024));
        assert_eq!(before.since(&before), None);
        record(60_000_000, 1);
        let after = shards.histogram(0).unwrap().since(&before).unwrap();
        assert_eq!((after.count, micros(&after, 0.5), after.sum.round() as u64), (1, 12 * 1024 * 1024, 60));
    }

    #[test]
    fn threads_add_up() {
        let shards = Shards::new(2, 1);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| shards.record(1, 0, Duration::from_micros(100))));
            }
        });
        assert_eq!(shards.count(0), 4000);
        assert_eq!(shards.histogram(0), None);
        let all = shards.histogram(1).unwrap();
        assert_eq!((all.count, all.buckets[bucket_of(Duration::from_micros(100))].1), (4000, 4000));
        assert!((all.sum - 0.4).abs() < 1e-9);
    }

    /// Prints the time that recording a duration adds to every request. Run with `cargo test --release -p
    /// thalweg-serving --lib -- --ignored --nocapture recording`.
    #[test]
    #[ignore = "a measurement: \
                cargo test --release -p thalweg-serving --lib -- --ignored --nocapture recording"]
    fn recording_costs_little() {
        const TIMES: u32 = 5_000_000;
        let shards = Shards::new(2, 2);
        let begun = Instant::now();
        for _ in 0..TIMES {
            let from = Instant::now();
            shards.record(1, 1, std::hint::black_box(from.elapsed()));
        }
        let each = begun.elapsed() / TIMES;
        eprintln!("timing a request and recording it: {each:?}, the clock read twice included");
        assert_eq!(shards.count(1), u64::from(TIMES));
        assert!(each < Duration::from_micros(1), "{each:?}");
    }
}
