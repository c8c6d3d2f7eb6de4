//! A histogram with few buckets, small enough to be kept beside a component's counters and copied with them.
//!
//! Buckets double: bucket `i` counts values of `2^(i-1) < value <= 2^i`, bucket 0 those up to 1, and the last bucket
//! all values above. A value estimated from the buckets is therefore at most a factor of two off; load generators
//! use finer histograms.

/// Number of buckets of a [`Log2Histogram`]. The last one has no upper bound.
pub const LOG2_BUCKETS: usize = 28;

/// Histogram that counts values in buckets bounded by powers of two.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Log2Histogram {
    /// Sum of all recorded values.
    pub sum: u64,
    /// Number of recorded values in each bucket.
    pub buckets: [u64; LOG2_BUCKETS],
}

impl Log2Histogram {
    /// Counts `value` in its bucket and adds it to the sum.
    #[inline]
    pub fn record(&mut self, value: u64) {
        self.sum = self.sum.saturating_add(value);
        self.buckets[Self::bucket_of(value)] += 1;
    }

    /// Returns the index of the bucket that counts `value`.
    #[inline]
    #[must_use]
    pub fn bucket_of(value: u64) -> usize {
        let bits = u64::BITS - value.saturating_sub(1).leading_zeros();
        (bits as usize).min(LOG2_BUCKETS - 1)
    }

    /// Number of values recorded so far.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().sum()
    }

    /// Inclusive upper bound of the values in a bucket; `None` for the last bucket, which has no upper bound.
    #[must_use]
    pub fn upper_bound(bucket: usize) -> Option<u64> {
        (bucket + 1 < LOG2_BUCKETS).then(|| 1 << bucket)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_value_is_in_the_bucket_whose_bounds_hold_it() {
        let edges = (0..40).flat_map(|bit| [(1_u64 << bit) - 1, 1 << bit, (1 << bit) + 1]);
        for value in edges.chain([u64::MAX]) {
            let bucket = Log2Histogram::bucket_of(value);
            assert!(Log2Histogram::upper_bound(bucket).is_none_or(|bound| value <= bound), "{value}");
            if bucket > 0 {
                assert!(Log2Histogram::upper_bound(bucket - 1).is_some_and(|bound| value > bound), "{value}");
            }
        }
    }

    #[test]
    fn counts_and_sums() {
        let mut histogram = Log2Histogram::default();
        [1, 2, 3, 100].into_iter().for_each(|value| histogram.record(value));
        assert_eq!((histogram.count(), histogram.sum), (4, 106));
        assert_eq!(histogram.buckets[..8], [1, 1, 1, 0, 0, 0, 0, 1]);
    }
}
