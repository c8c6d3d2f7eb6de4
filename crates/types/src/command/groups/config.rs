//! Configuration of a consumer group.
//!
//! Owns: the settings, their encoding, and the checks that need no state. Does not own: the commands that set them
//! (`commands`).

use std::time::Duration;

use crate::{
    codec::{Field, Malformed, Micros, Reader, choices, conversions, put_checked, structure},
    command::{checks::check_name, error::CommandError},
    limits::MAX_GROUP_PENDING,
};

/// Longest time for which a member may hold records without an ack, and longest delay of a nack. Longer values are
/// shortened to this limit.
pub const MAX_ACK_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

conversions! {
    /// Encoding of a limit that may be missing: 0 means no limit.
    LimitOrZero: Option<u32> as u32 {
        put |limit| limit.unwrap_or(0),
        take |limit| Some(Some(limit).filter(|limit| *limit > 0))
    }

    /// Encoding of a name that may be missing: an empty text means no name.
    NameOrEmpty: Option<String> as &str {
        put |name| name.as_deref().unwrap_or_default(),
        take |name| Some((!name.is_empty()).then(|| name.to_owned()))
    }
}

choices! {
    /// Order in which a consumer group delivers records to its members.
    #[derive(Default)]
    GroupOrder as "group order" {
        /// Members compete for records: any two records may be in flight (delivered and not acked yet) at the same
        /// time.
        #[default]
        Competing = 0 "competing",
        /// Two records with the same key are never in flight at the same time. They are delivered and redelivered in
        /// the order of the stream. Records without a key are delivered in any order.
        PerKey = 1 "per key",
    }
}

structure! {
    /// Configuration of how a consumer group delivers records.
    GroupConfig as "group config" checked "group configuration within limits" {
        /// Order of deliveries. The order is fixed when the group is created.
        order: GroupOrder,
        /// Time that a member has to ack delivered records, by the clock that all replicas share (space time). The
        /// member can extend it. When the time is over, the group delivers the unacked records again.
        ack_deadline: Duration as Micros,
        /// Number of deliveries after which a record without an ack becomes a dead letter. `None` means no limit.
        max_deliveries: Option<u32> as LimitOrZero,
        /// Maximum number of pending records. A record is pending if it is delivered and not acked, waits for
        /// redelivery, is held back behind a record of its key, or is a dead letter that was not moved yet. At this
        /// limit the group delivers no new records until members ack some, or dead letters are moved to their stream.
        max_pending: u32,
        /// Name of the stream for dead letters. The server creates this stream with the first dead letter. `None` means
        /// that the group drops dead letters and only counts them.
        dead_letters: Option<String> as NameOrEmpty,
    }
}

impl Default for GroupConfig {
    fn default() -> Self {
        Self {
            order: GroupOrder::Competing,
            ack_deadline: Duration::from_secs(30),
            max_deliveries: None,
            max_pending: 20_000,
            dead_letters: None,
        }
    }
}

impl GroupConfig {
    /// Checks the limits of the configuration that the encoding does not enforce.
    pub fn check(&self) -> Result<(), CommandError> {
        let bad = |what| Err(CommandError::BadGroup { what });
        if self.ack_deadline < Duration::from_millis(1) || self.ack_deadline > MAX_ACK_DEADLINE {
            return bad("the ack deadline must be between 1 millisecond and 1 day");
        }
        if self.max_deliveries == Some(0) {
            return bad("max_deliveries must be at least 1");
        }
        if self.max_pending == 0 || self.max_pending > MAX_GROUP_PENDING {
            return bad("max_pending must be at least 1 and at most the limit");
        }
        self.dead_letters.as_deref().map_or(Ok(()), check_name)
    }

    /// Appends the encoded group configuration to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        put_checked(out, self);
    }

    /// Decodes a group configuration and checks its limits.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        Self::take(reader, "group configuration")
    }
}
