//! Configuration of a stream: its retention, its limits on appends, and compaction.
//!
//! ```text
//! config := max_age u64 | max_bytes u64 | max_records u64 | max_record_bytes u64 | max_batch_bytes u64
//!         | tombstone_grace u64                     little-endian, times in microseconds; 2^64-1: none
//! ```

use std::time::Duration;

use crate::record::{Malformed, Reader};

/// Configuration of a stream. `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamConfig {
    /// Age above which records are trimmed, in space time.
    pub max_age: Option<Duration>,
    /// Encoded size in bytes above which the oldest batches are trimmed.
    pub max_bytes: Option<u64>,
    /// Number of offsets from the first to the end above which the oldest records are trimmed.
    pub max_records: Option<u64>,
    /// Maximum size of a record in bytes: key, headers and payload with their framing. Appends with a larger record
    /// are rejected.
    pub max_record_bytes: Option<u64>,
    /// Maximum encoded size of an append in bytes. Larger appends are rejected.
    pub max_batch_bytes: Option<u64>,
    /// Compaction: keep only the newest record of each key.
    pub compaction: Option<Compaction>,
}

/// Removal of all but the newest record of each key once its segment of the log is full. Records without a key are all
/// kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// Time for which a tombstone is kept for readers, by the time of entries. The first pass after it drops the
    /// tombstone.
    pub tombstone_grace: Duration,
}

impl StreamConfig {
    /// Size of the encoding in bytes.
    pub const ENCODED_LEN: usize = 48;

    /// Appends the encoded configuration.
    pub fn encode(&self, out: &mut Vec<u8>) {
        let limits = [
            self.max_age.map(micros),
            self.max_bytes,
            self.max_records,
            self.max_record_bytes,
            self.max_batch_bytes,
            self.compaction.map(|compaction| micros(compaction.tombstone_grace)),
        ];
        for limit in limits {
            out.extend_from_slice(&limit.unwrap_or(u64::MAX).to_le_bytes());
        }
    }

    /// Decodes a configuration.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let mut limit = || reader.u64("stream limit").map(|limit| (limit != u64::MAX).then_some(limit));
        Ok(Self {
            max_age: limit()?.map(Duration::from_micros),
            max_bytes: limit()?,
            max_records: limit()?,
            max_record_bytes: limit()?,
            max_batch_bytes: limit()?,
            compaction: limit()?.map(|grace| Compaction { tombstone_grace: Duration::from_micros(grace) }),
        })
    }

    /// Returns true if the stream has a retention limit, so that records can be trimmed.
    #[must_use]
    pub fn has_retention(&self) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some() || self.max_records.is_some()
    }

    /// Returns true if appends must be checked against a limit.
    #[must_use]
    pub fn limits_appends(&self) -> bool {
        self.max_record_bytes.is_some() || self.max_batch_bytes.is_some()
    }
}

/// Converts a span to microseconds. The largest span becomes `u64::MAX - 1`, since `u64::MAX` means "none".
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

/// Limit of a stream that an append exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLimit {
    /// The limit [`StreamConfig::max_record_bytes`].
    RecordBytes,
    /// The limit [`StreamConfig::max_batch_bytes`].
    BatchBytes,
}

impl StreamLimit {
    /// Name of the limit in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecordBytes => "max_record_bytes",
            Self::BatchBytes => "max_batch_bytes",
        }
    }
}
