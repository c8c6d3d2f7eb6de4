//! Commands about consumer groups.
//!
//! Owns: the commands except settlements (`settlements`), their encoders, and the hash of a record's key. Does not own:
//! the effect of the commands (`groups` of the state), or the frames of the native protocol.
//!
//! Invariant: [`key_hash`] never changes, because the state stores its results.

use std::time::Duration;

use crate::{
    codec::{AtMost, List, conversions, put_checked, structure, variants},
    command::{
        checks::{Name, check_name},
        error::CommandError,
        groups::{
            config::{GroupConfig, MAX_ACK_DEADLINE},
            settlements::{Redelivery, SETTLE, Settle, Settlement, SettlementKind, micros},
        },
    },
    ids::{Attempt, GroupId, Offset, StreamId},
    limits::{MAX_DEAD_PER_SMALL_FETCH, MAX_FETCH_KEYS, MAX_FETCH_RECORDS, MAX_MEMBER_NAME_BYTES, MAX_SETTLED_RANGES},
};

conversions! {
    /// Encoding of an offset; `Offset::MAX` means the end of the stream.
    OffsetOrEnd: Option<Offset> as Offset {
        put |offset| offset.unwrap_or(Offset::MAX),
        take |offset| Some(Some(offset).filter(|offset| *offset != Offset::MAX))
    }

    /// Encoding of the number of records that a fetch requests.
    FetchCount: u32 as u32, "fetch count" {
        put |count| *count,
        take |count| Some(count).filter(|count| (1..=MAX_FETCH_RECORDS).contains(count))
    }

    /// Encoding of the name of a member of a consumer group.
    MemberName: &'a str as &'a str, "member name" {
        put |name| name,
        take |name| check_member(name).is_ok().then_some(name)
    }

    /// Encoding of the time from a command to the new ack deadlines that it sets, in microseconds. It is at most
    /// [`MAX_ACK_DEADLINE`]; longer times are shortened to this limit.
    AckSpan: Duration as u64, "ack span" {
        put |span| micros(*span),
        take |micros| Some(Duration::from_micros(micros).min(MAX_ACK_DEADLINE))
    }
}

variants! {
    /// A decoded command about a consumer group.
    GroupCommand<'a> as "known command kind" {
        /// Creates a consumer group unless its stream already has a group with that name.
        Create = 48 "create group" {
            /// Id of the stream that the new group reads.
            stream: StreamId,
            /// Offset of the first record that the group delivers; `None` for the end of the stream.
            start: Option<Offset> as OffsetOrEnd,
            /// Configuration of the group.
            config: GroupConfig,
            /// Name of the new group.
            name: &'a str as Name,
        },
        /// Replaces a consumer group's configuration.
        Configure = 49 "configure group" {
            /// Id of the group to configure.
            group: GroupId,
            /// New configuration of the group.
            config: GroupConfig,
        },
        /// Deletes a consumer group.
        Delete = 50 "delete group" {
            /// Id of the group to delete.
            group: GroupId,
        },
        /// Delivers records to a member of a consumer group.
        Fetch[fetch: Fetch<'a>] = 51 "fetch",
        /// Moves the ack deadlines of attempts (deliveries of records), so that members have more time to ack the
        /// records.
        Extend = 54 "extend" {
            /// Id of the group whose attempts get later ack deadlines.
            group: GroupId,
            /// Time from the command's log entry to the new ack deadlines.
            by: Duration as AckSpan,
            /// Numbers of the attempts (deliveries) whose ack deadlines move.
            attempts: List<'a, Attempt> as AtMost<MAX_SETTLED_RANGES>,
        },
        /// Moves the group's cursor (the next record to deliver) and drops all pending records.
        Seek = 55 "seek" {
            /// Id of the group whose cursor moves.
            group: GroupId,
            /// New cursor of the group; `None` for the end of the stream.
            offset: Option<Offset> as OffsetOrEnd,
        },
        /// Removes the rows that are left of a deleted consumer group. For a group that exists, removes from the group
        /// the records that were trimmed from its stream.
        Reclaim = 56 "reclaim group" {
            /// Id of the group from which rows or records are removed.
            group: GroupId,
            /// Maximum number of rows to remove. For a group that exists, the approximate number of runs (stored ranges
            /// of consecutive records) to remove.
            max: u32,
        },
    }
    families {
        /// Acks or nacks records that the consumer group has delivered.
        Settle(Settle<'a>) = 52 | 53,
    }
}

structure! {
    /// A request to deliver records of a consumer group to one of its members.
    #[derive(Copy)]
    Fetch<'a> as "fetch" {
        /// Id of the group whose records are delivered.
        group: GroupId,
        /// Maximum number of records to deliver.
        max: u32 as FetchCount,
        /// Offset of the record to which the first key hash in `keys` belongs.
        window: Offset,
        /// Hashes of the keys of consecutive records, from the record at offset `window` on; 0 for a record without a
        /// key. Only a fetch of a group with delivery in order per key carries hashes, because the state machine cannot
        /// read records.
        keys: List<'a, u64> as AtMost<MAX_FETCH_KEYS>,
        /// Name of the member that gets the records.
        member: &'a str as MemberName,
    }
}

impl Fetch<'_> {
    /// Returns the maximum number of records that the fetch turns into dead letters.
    #[must_use]
    pub fn max_dead(&self) -> u32 {
        self.max.max(MAX_DEAD_PER_SMALL_FETCH)
    }

    /// Returns the hash of the key of the record at `offset`, or 0 if the record has no key. Returns `None` if the
    /// fetch does not carry a hash for this offset.
    #[must_use]
    pub fn key_at(&self, offset: Offset) -> Option<u64> {
        self.keys.get(usize::try_from(offset.0.checked_sub(self.window.0)?).ok()?)
    }
}

/// Appends the encoded command that creates a consumer group of a stream. A group that already exists under the name is
/// left unchanged.
pub fn encode_create_group(
    out: &mut Vec<u8>,
    stream: StreamId,
    name: &str,
    start: Option<Offset>,
    config: &GroupConfig,
) -> Result<(), CommandError> {
    check_name(name)?;
    config.check()?;
    put_checked(out, &GroupCommand::Create { stream, start, config: config.clone(), name });
    Ok(())
}

/// Appends the encoded command that replaces a consumer group's configuration. The delivery order cannot change.
pub fn encode_configure_group(out: &mut Vec<u8>, group: GroupId, config: &GroupConfig) -> Result<(), CommandError> {
    config.check()?;
    put_checked(out, &GroupCommand::Configure { group, config: config.clone() });
    Ok(())
}

/// Appends the encoded command that deletes a consumer group. The group's id is never used again.
pub fn encode_delete_group(out: &mut Vec<u8>, group: GroupId) {
    put_checked(out, &GroupCommand::Delete { group });
}

/// Appends the encoded command that delivers up to `max` records to a member. For a group that delivers in order per
/// key, `keys` contains the [`key_hash`]es of the stream's records from offset `window` on; for other groups `keys` is
/// empty.
pub fn encode_fetch(
    out: &mut Vec<u8>,
    group: GroupId,
    max: u32,
    window: Offset,
    keys: &[u64],
    member: &str,
) -> Result<(), CommandError> {
    check_member(member)?;
    let keys = List::Items(&keys[..keys.len().min(MAX_FETCH_KEYS)]);
    let max = max.clamp(1, MAX_FETCH_RECORDS);
    put_checked(out, &GroupCommand::Fetch(Fetch { group, max, window, keys, member }));
    Ok(())
}

/// Appends the encoded command that acks the records of the settlements. Records that are already settled (acked or
/// nacked) do not change.
pub fn encode_ack(out: &mut Vec<u8>, group: GroupId, settlements: &[Settlement]) -> Result<(), CommandError> {
    Settle::encode(out, SETTLE, group, SettlementKind::Ack, settlements)
}

/// Appends the encoded command that nacks the records of the settlements and so returns them to the group. Records that
/// are already settled do not change.
pub fn encode_nack(
    out: &mut Vec<u8>,
    group: GroupId,
    again: Redelivery,
    reason: &str,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    Settle::encode(out, SETTLE, group, SettlementKind::Nack { again, reason }, settlements)
}

/// Appends the encoded command that moves the ack deadlines of attempts (deliveries). The new deadline is the time `by`
/// after the time of the command's log entry.
pub fn encode_extend(
    out: &mut Vec<u8>,
    group: GroupId,
    by: Duration,
    attempts: &[Attempt],
) -> Result<(), CommandError> {
    if attempts.len() > MAX_SETTLED_RANGES {
        return Err(CommandError::TooManyRanges);
    }
    put_checked(out, &GroupCommand::Extend { group, by: by.min(MAX_ACK_DEADLINE), attempts: List::Items(attempts) });
    Ok(())
}

/// Appends the encoded command that moves a group's cursor (`None` for the end of the stream) and drops all pending
/// records of the group.
pub fn encode_seek(out: &mut Vec<u8>, group: GroupId, offset: Option<Offset>) {
    put_checked(out, &GroupCommand::Seek { group, offset });
}

/// Appends the encoded command that cleans up after a consumer group. For a deleted group, the command removes at most
/// `max` rows. For an existing group, it removes records that were trimmed from the stream, about `max` runs
/// (consecutive records that the group stores together).
pub fn encode_reclaim_group(out: &mut Vec<u8>, group: GroupId, max: u32) {
    put_checked(out, &GroupCommand::Reclaim { group, max });
}

/// Checks the length of a member's name.
pub fn check_member(name: &str) -> Result<(), CommandError> {
    if name.len() > MAX_MEMBER_NAME_BYTES {
        return Err(CommandError::BadGroup { what: "a member's name must have at most 255 bytes" });
    }
    Ok(())
}

/// Hash of a record's key, used to deliver records with the same key in order: FNV-1a (Fowler, Noll, Vo) with 64 bits,
/// never 0. The state stores it, so the function must not change. Records of different keys with the same hash are
/// delivered correctly, but wait for each other.
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.max(1)
}
