//! Configuration of a stream: its retention, its limits on appends, and compaction.

use std::time::Duration;

use crate::codec::{Field, LimitOrNone, Malformed, Reader, conversion, put_checked, structure};

structure! {
    /// Configuration of a stream. `None` in a field means that there is no such limit, or no compaction.
    #[derive(Copy, Default)]
    StreamConfig as "config" {
        /// Maximum age of records; older ones are trimmed (removed from the start of the stream). Measured by the clock
        /// that all replicas share, [`SpaceTime`](crate::SpaceTime).
        max_age: Option<Duration> as LimitOrNone,
        /// Total size of the encoded records in bytes above which the oldest batches are trimmed.
        max_bytes: Option<u64> as LimitOrNone,
        /// Number of records, counted as the distance from the stream's first offset to its end, above which the oldest
        /// records are trimmed.
        max_records: Option<u64> as LimitOrNone,
        /// Maximum size of one record in bytes: key, headers and payload, with their length fields. Appends with a
        /// larger record are rejected.
        max_record_bytes: Option<u64> as LimitOrNone,
        /// Maximum encoded size in bytes of the batch of one append. Larger appends are rejected.
        max_batch_bytes: Option<u64> as LimitOrNone,
        /// Settings of compaction, which keeps only the newest record of each key.
        compaction: Option<Compaction> as LimitOrNone,
    }
}

conversion!(LimitOrNone: Option<Compaction> as u64 {
    put |compaction| compaction.map_or(u64::MAX, |compaction| {
        u64::try_from(compaction.tombstone_grace.as_micros()).unwrap_or(u64::MAX).min(u64::MAX - 1)
    }),
    take |grace| {
        let grace = Some(grace).filter(|&grace| grace != u64::MAX);
        Some(grace.map(|grace| Compaction { tombstone_grace: Duration::from_micros(grace) }))
    }
});

/// Compaction of a stream: once a log segment is full, all records in it but the newest of each key are removed.
/// Records without a key are all kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// Time for which a tombstone (a record that marks its key as deleted) is kept for readers, by the clock that all
    /// replicas share (space time). The first compaction after that time drops the tombstone.
    pub tombstone_grace: Duration,
}

impl StreamConfig {
    /// Size of an encoded stream configuration in bytes.
    pub const ENCODED_LEN: usize = 48;

    /// Appends the encoded configuration to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_checked(out, self);
    }

    /// Decodes a stream configuration.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::take(reader, "stream configuration")
    }

    /// Returns true if the stream has a retention limit (age, bytes or records), so that its records can be trimmed.
    #[must_use]
    pub fn has_retention(&self) -> bool {
        self.max_age.is_some() || self.max_bytes.is_some() || self.max_records.is_some()
    }

    /// Returns true if appends to the stream must be checked against a size limit.
    #[must_use]
    pub fn limits_appends(&self) -> bool {
        self.max_record_bytes.is_some() || self.max_batch_bytes.is_some()
    }
}

/// Size limit of a stream that an append exceeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamLimit {
    /// The append has a record above the limit [`StreamConfig::max_record_bytes`].
    RecordBytes,
    /// The append as a whole is above the limit [`StreamConfig::max_batch_bytes`].
    BatchBytes,
}

impl StreamLimit {
    /// Name of the limit in configurations of streams.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::RecordBytes => "max_record_bytes",
            Self::BatchBytes => "max_batch_bytes",
        }
    }
}
