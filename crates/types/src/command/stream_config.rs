//! What a stream keeps, and what it takes.
//!
//! ```text
//! config := max_age u64 | max_bytes u64 | max_records u64 | max_record_bytes u64 | max_batch_bytes u64
//!         | tombstone_grace u64                     little-endian, times in microseconds; 2^64-1: none
//! ```

use std::time::Duration;

use crate::record::{Malformed, Reader};

/// What a stream keeps and takes. `None`: no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StreamConfig {
    /// Records older than this, in space time, are trimmed.
    pub max_age: Option<Duration>,
    /// The oldest batches are trimmed while the stream holds more encoded bytes than this.
    pub max_bytes: Option<u64>,
    /// The oldest records are trimmed while there are more offsets than this from the first to the end.
    pub max_records: Option<u64>,
    /// An append with a larger record is refused: key, headers and payload with their framing.
    pub max_record_bytes: Option<u64>,
    /// An append of more encoded bytes is refused.
    pub max_batch_bytes: Option<u64>,
    /// Only the newest record of each key is kept.
    pub compaction: Option<Compaction>,
}

/// Keeping only the newest record of each key, once its segment of the log is full. Records without a key
/// are all kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// How long a tombstone is kept for readers to see, by the time of entries. The first pass after it
    /// drops the tombstone.
    pub tombstone_grace: Duration,
}

impl StreamConfig {
    /// Bytes of the encoding.
    pub const ENCODED_LEN: usize = 48;

    /// Appends the encoding.
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

    /// Reads the encoding.
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

    /// Whether anything is ever trimmed.
    #[must_use]
    pub fn has_retention(&self) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some() || self.max_records.is_some()
    }

    /// Whether appends must be looked at.
    #[must_use]
    pub fn limits_appends(&self) -> bool {
        self.max_record_bytes.is_some() || self.max_batch_bytes.is_some()
    }
}

/// The longest span that is not "none" stays a span.
fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

/// Which of a stream's limits an append breaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLimit {
    /// [`StreamConfig::max_record_bytes`].
    RecordBytes,
    /// [`StreamConfig::max_batch_bytes`].
    BatchBytes,
}

impl StreamLimit {
    /// The limit's name in configurations.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecordBytes => "max_record_bytes",
            Self::BatchBytes => "max_batch_bytes",
        }
    }
}
