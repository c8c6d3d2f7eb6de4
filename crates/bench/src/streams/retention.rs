//! Retention of the streams to which the benchmark publishes.
//!
//! With retention, the log reuses its segments after a while: published records are trimmed, and segments become free
//! as fast as others are filled. Without retention, the log creates new segments, and fills them with zeroes before it
//! uses them.

use thalweg_types::command::StreamConfig;

/// Bytes that each published stream retains; `None` retains everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Retention(pub Option<u64>);

impl Retention {
    /// Returns the configuration of a stream with this retention.
    pub(super) fn config(self) -> StreamConfig {
        StreamConfig { max_bytes: self.0, ..StreamConfig::default() }
    }

    /// Returns an offset from which on all records of a stream are certainly retained. `end` is the end of the stream.
    /// At most half of the retained bytes follow the offset, so no record after it is trimmed while it is read.
    pub(super) fn safe_start(self, end: u64, record_bytes: usize) -> u64 {
        let kept = self.0.map_or(u64::MAX, |bytes| bytes / 2 / (record_bytes as u64 + 5));
        end.saturating_sub(kept)
    }

    /// Describes the retention in words, for the report.
    pub(super) fn describe(self) -> String {
        match self.0 {
            None => "none: a fresh log makes its segments, and writes each of their bytes once as a zero".to_owned(),
            Some(bytes) => format!(
                "{} MiB of each stream that is published to; before the first round so much was published that the log reuses \
                 segments",
                bytes >> 20
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_back_is_never_trimmed() {
        assert_eq!(Retention(None).safe_start(1_000_000, 100), 0);
        let kept = Retention(Some(1 << 20));
        assert_eq!(kept.safe_start(100, 1024), 0);
        assert_eq!(kept.safe_start(10_000, 1019), 10_000 - 512);
    }
}
