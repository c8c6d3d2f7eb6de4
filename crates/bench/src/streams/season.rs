//! A log that has been written to for a while: published records are trimmed again, segments are freed as fast as they
//! are filled, and reused. A fresh log makes its segments, and writes each of their bytes once as a zero.
//!
//! Owns: bringing the log there before the first round, and choosing the part of a trimmed stream that is certainly
//! still there.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use thalweg_types::{Durability, command::StreamConfig};

use super::{
    append::AppendWork,
    suite::{FILL_BATCH, Suite},
};
use crate::{
    BenchError,
    native::{
        payload::{Depth, Payloads},
        requests::{self, CallPlan},
    },
    options::require,
};

/// Bytes of a record that is published to get there.
const RECORD_BYTES: usize = 1024;
/// Segments that must have been reused.
const REUSED: f64 = 16.0;
/// Time between two looks at the count.
const STEP: Duration = Duration::from_secs(1);
/// Number of looks.
const STEPS: u32 = 60;

/// Bytes that streams keep if they are published to; `None`: everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retention(pub Option<u64>);

impl Retention {
    /// Returns the configuration of a stream.
    pub fn config(self) -> StreamConfig {
        StreamConfig { max_bytes: self.0, ..StreamConfig::default() }
    }

    /// Returns the offset from which the records of a stream are certainly there, given its end and the bytes of a
    /// record: at most half of the retained bytes lie behind it, so nothing there is trimmed while it is read.
    pub fn safe_start(self, end: u64, record_bytes: usize) -> u64 {
        let kept = self.0.map_or(u64::MAX, |bytes| bytes / 2 / (record_bytes as u64 + 5));
        end.saturating_sub(kept)
    }

    /// Describes the retention, for the report.
    pub fn describe(self) -> String {
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

impl Suite<'_> {
    /// Publishes until the log reuses segments: setup.
    pub(super) fn season(&mut self) -> Result<(), BenchError> {
        let Some(before) = self.reused() else {
            let message = "needs a server of its own, whose metrics say when segments are reused: leave --target out";
            return require(false, "--retention-mib", message);
        };
        self.progress.step("publishing until the log reuses its segments");
        let payloads = Arc::new(Payloads::new(RECORD_BYTES, self.options.load.seed, Depth::Spot));
        let stream = self.create(&self.retention.config())?;
        let setup = CallPlan::setup(&self.place, 4, STEP, &self.options.load);
        let mut published = 0;
        for _ in 0..STEPS {
            let acked: Arc<Vec<AtomicU64>> = Arc::new(vec![AtomicU64::new(0)]);
            let level = Durability::Os;
            let work = |_| AppendWork::new(stream, level, 0, FILL_BATCH, Arc::clone(&payloads), Arc::clone(&acked));
            requests::run(&setup, None, work)?;
            published += acked[0].load(Ordering::Relaxed);
            if self.reused().is_some_and(|now| now - before >= REUSED) {
                return self.delete(stream);
            }
        }
        let remedy = "use a smaller --retention-mib, or --server-arg=--history-bytes=64MiB";
        let message = format!("few are after {published} records: {remedy}");
        Err(BenchError::subject(&self.server.name(), "publishing until segments are reused")(message))
    }

    fn reused(&self) -> Option<f64> {
        self.server.metric("thalweg_log_segments_recycled_total")
    }

    /// Returns the zeroes that the log has written into new segments, in bytes.
    pub(super) fn zeroed_bytes(&self) -> Option<f64> {
        self.server.metric("thalweg_log_zeroed_bytes_total")
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
