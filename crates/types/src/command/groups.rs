//! Consumer groups: their configuration, their commands, and the outcomes of these.
//!
//! An *attempt* is one delivery of some records to one member. Attempts of a group have rising numbers that are never
//! reused. A settlement (ack or nack) names its attempt, so it cannot be mistaken for one of another delivery of the
//! same records, of a deleted group with the same name, or from before a restore.
//!
//! ```text
//! command     := 48 | stream u32 | start u64 | config | name                          create
//!              | 49 | group u32 | config                                              configure
//!              | 50 | group u32                                                       delete
//!              | 51 | group u32 | max u32 | window u64 | keys u32 | key u64* | text   fetch, for this member
//!              | 52 | group u32 | settlements                                         ack
//!              | 53 | group u32 | delay u64 | text | settlements                      nack, for this reason
//!              | 54 | group u32 | by u64 | count u32 | attempt u64*                   extend
//!              | 55 | group u32 | offset u64                                          seek
//! write       := 48 | group u32 | settlements                                         ack, in a commit
//!              | 49 | group u32 | delay u64 | text | settlements                      nack, in a commit
//! settlements := count u32 | (attempt u64 | ranges u32 | (first u64 | count u32)*)*   no ranges: all records
//! config      := order u8 | deadline u64 | max_deliveries u32 | max_pending u32 | dead letters' stream text
//! text        := len u16 | UTF-8
//! ```
//! All integers are little-endian; times are in microseconds. `start` and the seek's `offset` are `u64::MAX` for the
//! end of the stream. `max_deliveries` is 0 for no limit. `delay` is `u64::MAX` for "never deliver again", and
//! `u64::MAX - 1` for "deliver again immediately, without counting this delivery". `keys` are hashes of the keys of
//! the records from `window` on, 0 for records without a key. Only fetches of groups in order per key carry them,
//! because the state machine cannot read records.

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    command::{CommandError, check_name, encode_name},
    ids::{Attempt, GroupId, Offset, StreamId},
    limits::{
        MAX_FETCH_KEYS, MAX_FETCH_RECORDS, MAX_GROUP_PENDING, MAX_MEMBER_NAME_BYTES, MAX_NACK_REASON_BYTES,
        MAX_SETTLED_RANGES,
    },
    record::{Malformed, Reader, put_u32},
};

pub(super) const FIRST_KIND: u8 = 48;
pub(super) const LAST_KIND: u8 = 63;
const CREATE: u8 = 48;
const CONFIGURE: u8 = 49;
const DELETE: u8 = 50;
const FETCH: u8 = 51;
const ACK: u8 = 52;
const NACK: u8 = 53;
const EXTEND: u8 = 54;
const SEEK: u8 = 55;

/// Kind of a commit's write that acks.
pub(super) const WRITE_ACK: u8 = 48;
/// Kind of a commit's write that nacks.
pub(super) const WRITE_NACK: u8 = 49;

/// Order in which a group delivers records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GroupOrder {
    /// Members compete: any two records may be in flight at the same time.
    #[default]
    Competing,
    /// Two records with the same key are never in flight at the same time. They are delivered and redelivered in the
    /// order of the stream. Records without a key compete.
    PerKey,
}

/// Configuration of a group's deliveries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GroupConfig {
    /// Delivery order. It is fixed when the group is created.
    pub order: GroupOrder,
    /// Time after its delivery, in space time, at which an attempt lapses unless it is extended.
    pub ack_deadline: Duration,
    /// Number of deliveries after which a record that is not acked becomes a dead letter. `None` means no limit.
    pub max_deliveries: Option<u32>,
    /// Maximum number of records that wait for an ack. At this bound the group delivers no new records until some are
    /// acked.
    pub max_pending: u32,
    /// Stream for dead letters, created with the first of them. `None` means that dead letters are dropped and
    /// counted.
    pub dead_letters: Option<String>,
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
    /// Checks the limits that the encoding does not enforce.
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

    /// Appends the encoded configuration.
    pub fn encode(&self, out: &mut Vec<u8>) {
        out.push(match self.order {
            GroupOrder::Competing => 0,
            GroupOrder::PerKey => 1,
        });
        out.extend_from_slice(&micros(self.ack_deadline).to_le_bytes());
        out.extend_from_slice(&self.max_deliveries.unwrap_or(0).to_le_bytes());
        out.extend_from_slice(&self.max_pending.to_le_bytes());
        encode_name(out, self.dead_letters.as_deref().unwrap_or_default());
    }

    /// Decodes a configuration and checks it.
    pub fn decode(reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let at = reader.position();
        let order = match reader.u8("group order")? {
            0 => GroupOrder::Competing,
            1 => GroupOrder::PerKey,
            _ => return Err(Malformed { at, expected: "known group order" }),
        };
        let ack_deadline = Duration::from_micros(reader.u64("ack deadline")?);
        let max_deliveries = Some(reader.u32("max deliveries")?).filter(|&max| max > 0);
        let max_pending = reader.u32("max pending")?;
        let dead_letters = decode_text(reader, usize::from(u16::MAX), "dead letters' stream")?;
        let dead_letters = (!dead_letters.is_empty()).then(|| dead_letters.to_owned());
        let config = Self { order, ack_deadline, max_deliveries, max_pending, dead_letters };
        config.check().map_err(|_| Malformed { at, expected: "group configuration within limits" })?;
        Ok(config)
    }
}

/// Encoded delay that represents [`Again::Uncounted`].
const UNCOUNTED: u64 = u64::MAX - 1;

/// Longest ack deadline, and longest delay of a nack. Longer values are shortened to it.
pub const MAX_ACK_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

/// Consecutive offsets: `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetRun {
    /// First offset.
    pub first: Offset,
    /// Number of offsets, at least 1.
    pub count: u32,
}

impl OffsetRun {
    /// Creates a run of a single offset.
    #[must_use]
    pub const fn one(offset: Offset) -> Self {
        Self { first: offset, count: 1 }
    }

    /// Exclusive end: the offset after the last.
    #[must_use]
    pub const fn end(&self) -> Offset {
        self.first.plus(self.count as u64)
    }
}

/// Records of one attempt that an ack or nack settles.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Attempt that delivered the records.
    pub attempt: Attempt,
    /// Offsets of the records; empty for all records of the attempt that are not settled yet.
    pub runs: Vec<OffsetRun>,
}

impl Settlement {
    /// Settles all records of an attempt that are not settled yet.
    #[must_use]
    pub const fn all(attempt: Attempt) -> Self {
        Self { attempt, runs: Vec::new() }
    }

    /// Settles one record of an attempt.
    #[must_use]
    pub fn one(attempt: Attempt, offset: Offset) -> Self {
        Self { attempt, runs: vec![OffsetRun::one(offset)] }
    }
}

/// Time at which nacked records are delivered again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// After this delay, which is at most [`MAX_ACK_DEADLINE`].
    After(Duration),
    /// Never: the records become dead letters immediately.
    Never,
    /// Immediately, and this delivery does not count, because the member has not processed the record.
    Uncounted,
}

impl Again {
    fn micros(self) -> u64 {
        match self {
            Self::After(delay) => micros(delay.min(MAX_ACK_DEADLINE)),
            Self::Never => u64::MAX,
            Self::Uncounted => UNCOUNTED,
        }
    }
}

/// Appends the command that creates a group of a stream. An existing group with that name is left unchanged.
pub fn encode_create_group(
    out: &mut Vec<u8>,
    stream: StreamId,
    name: &str,
    start: Option<Offset>,
    config: &GroupConfig,
) -> Result<(), CommandError> {
    check_name(name)?;
    config.check()?;
    out.push(CREATE);
    out.extend_from_slice(&stream.0.to_le_bytes());
    out.extend_from_slice(&start.map_or(u64::MAX, Offset::get).to_le_bytes());
    config.encode(out);
    encode_name(out, name);
    Ok(())
}

/// Appends the command that replaces a group's configuration. The delivery order cannot change.
pub fn encode_configure_group(out: &mut Vec<u8>, group: GroupId, config: &GroupConfig) -> Result<(), CommandError> {
    config.check()?;
    out.push(CONFIGURE);
    out.extend_from_slice(&group.0.to_le_bytes());
    config.encode(out);
    Ok(())
}

/// Appends the command that deletes a group. Its id is never used again.
pub fn encode_delete_group(out: &mut Vec<u8>, group: GroupId) {
    out.push(DELETE);
    out.extend_from_slice(&group.0.to_le_bytes());
}

/// Appends the command that delivers up to `max` records to a member. `keys` are the [`key_hash`]es of the records
/// from `window` on for groups in order per key, and empty for other groups.
pub fn encode_fetch(
    out: &mut Vec<u8>,
    group: GroupId,
    max: u32,
    window: Offset,
    keys: &[u64],
    member: &str,
) -> Result<(), CommandError> {
    check_member(member)?;
    out.push(FETCH);
    out.extend_from_slice(&group.0.to_le_bytes());
    out.extend_from_slice(&max.clamp(1, MAX_FETCH_RECORDS).to_le_bytes());
    out.extend_from_slice(&window.0.to_le_bytes());
    let keys = &keys[..keys.len().min(MAX_FETCH_KEYS)];
    put_u32(out, keys.len());
    keys.iter().for_each(|key| out.extend_from_slice(&key.to_le_bytes()));
    encode_name(out, member);
    Ok(())
}

/// Appends the command that acks the records of the settlements that are not settled yet.
pub fn encode_ack(out: &mut Vec<u8>, group: GroupId, settlements: &[Settlement]) -> Result<(), CommandError> {
    out.push(ACK);
    encode_ack_rest(out, group, settlements)
}

/// Appends the command that returns the records of the settlements that are not settled yet to the group.
pub fn encode_nack(
    out: &mut Vec<u8>,
    group: GroupId,
    again: Again,
    reason: &str,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    out.push(NACK);
    encode_nack_rest(out, group, again, reason, settlements)
}

/// Appends the command that moves the deadlines of attempts to `by` after the time of the command.
pub fn encode_extend(
    out: &mut Vec<u8>,
    group: GroupId,
    by: Duration,
    attempts: &[Attempt],
) -> Result<(), CommandError> {
    if attempts.len() > MAX_SETTLED_RANGES {
        return Err(CommandError::TooManyRanges);
    }
    out.push(EXTEND);
    out.extend_from_slice(&group.0.to_le_bytes());
    out.extend_from_slice(&micros(by.min(MAX_ACK_DEADLINE)).to_le_bytes());
    put_u32(out, attempts.len());
    attempts.iter().for_each(|attempt| out.extend_from_slice(&attempt.0.to_le_bytes()));
    Ok(())
}

/// Appends the command that moves a group's cursor (`None` for the end of the stream) and drops all pending records.
pub fn encode_seek(out: &mut Vec<u8>, group: GroupId, offset: Option<Offset>) {
    out.push(SEEK);
    out.extend_from_slice(&group.0.to_le_bytes());
    out.extend_from_slice(&offset.map_or(u64::MAX, Offset::get).to_le_bytes());
}

pub(super) fn encode_ack_rest(
    out: &mut Vec<u8>,
    group: GroupId,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    check_settlements(settlements)?;
    out.extend_from_slice(&group.0.to_le_bytes());
    encode_settlements(out, settlements);
    Ok(())
}

pub(super) fn encode_nack_rest(
    out: &mut Vec<u8>,
    group: GroupId,
    again: Again,
    reason: &str,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    check_settlements(settlements)?;
    out.extend_from_slice(&group.0.to_le_bytes());
    out.extend_from_slice(&again.micros().to_le_bytes());
    encode_name(out, shortened(reason, MAX_NACK_REASON_BYTES));
    encode_settlements(out, settlements);
    Ok(())
}

fn encode_settlements(out: &mut Vec<u8>, settlements: &[Settlement]) {
    put_u32(out, settlements.len());
    for Settlement { attempt, runs } in settlements {
        out.extend_from_slice(&attempt.0.to_le_bytes());
        put_u32(out, runs.len());
        for run in runs {
            out.extend_from_slice(&run.first.0.to_le_bytes());
            out.extend_from_slice(&run.count.to_le_bytes());
        }
    }
}

/// Bytes of the encoded settlements.
pub(super) fn settlements_len(settlements: &[Settlement]) -> usize {
    4 + settlements.iter().map(|settlement| 12 + settlement.runs.len() * 12).sum::<usize>()
}

fn check_settlements(settlements: &[Settlement]) -> Result<(), CommandError> {
    let ranges: usize = settlements.iter().map(|settlement| settlement.runs.len().max(1)).sum();
    if ranges > MAX_SETTLED_RANGES {
        return Err(CommandError::TooManyRanges);
    }
    let past = |run: &OffsetRun| run.count == 0 || run.first.0.checked_add(u64::from(run.count)).is_none();
    if settlements.iter().flat_map(|settlement| &settlement.runs).any(past) {
        return Err(CommandError::BadGroup { what: "a range must have at least one offset and end below 2^64" });
    }
    Ok(())
}

/// Checks a member's name.
pub fn check_member(name: &str) -> Result<(), CommandError> {
    if name.len() > MAX_MEMBER_NAME_BYTES {
        return Err(CommandError::BadGroup { what: "a member's name must have at most 255 bytes" });
    }
    Ok(())
}

/// Hash of a record's key, used to deliver records with the same key in order: FNV-1a (Fowler, Noll, Vo) with 64 bits,
/// never 0. The state stores it, so the function must not change. Different keys with the same hash merely wait for
/// each other.
#[must_use]
pub fn key_hash(key: &[u8]) -> u64 {
    let hash = key
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash: u64, &byte| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3));
    hash.max(1)
}

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX - 1)
}

/// Returns the longest prefix of at most `max_bytes` bytes that is valid UTF-8.
fn shortened(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

fn decode_text<'a>(reader: &mut Reader<'a>, max_bytes: usize, expected: &'static str) -> Result<&'a str, Malformed> {
    let len = usize::from(reader.u16(expected)?);
    let at = reader.position();
    let text = std::str::from_utf8(reader.take(len, expected)?).ok().filter(|text| text.len() <= max_bytes);
    text.ok_or(Malformed { at, expected })
}

/// Encoded settlements that were checked when they were decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settlements<'a> {
    bytes: &'a [u8],
    count: u32,
}

impl<'a> Settlements<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let count = reader.u32("settlement count")?;
        let mut ahead = reader.clone();
        let begin = ahead.position();
        let mut ranges = 0;
        for _ in 0..count {
            ahead.u64("attempt")?;
            let runs = ahead.u32("range count")?;
            ranges += (runs as usize).max(1);
            if ranges > MAX_SETTLED_RANGES {
                return Err(Malformed { at: ahead.position(), expected: "ranges within the limit" });
            }
            for _ in 0..runs {
                let at = ahead.position();
                let first = ahead.u64("first offset")?;
                let run = ahead.u32("offset count")?;
                if run == 0 || first.checked_add(u64::from(run)).is_none() {
                    return Err(Malformed { at, expected: "range of at least one offset" });
                }
            }
        }
        let bytes = reader.take(ahead.position() - begin, "settlements")?;
        Ok(Self { bytes, count })
    }

    /// Iterates over the attempts with their ranges. An attempt without ranges means all its records.
    pub fn iter(&self) -> impl Iterator<Item = (Attempt, Runs<'a>)> + use<'a> {
        let mut reader = Reader::at(self.bytes, 0);
        (0..self.count).map_while(move |_| {
            let attempt = Attempt(reader.u64("attempt").ok()?);
            let count = reader.u32("range count").ok()? as usize;
            Some((attempt, Runs { bytes: reader.take(count * 12, "ranges").ok()? }))
        })
    }
}

/// Iterator over the ranges of a settlement.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
}

impl Runs<'_> {
    /// Returns true if the settlement is about all records of its attempt.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.bytes.is_empty()
    }
}

impl Iterator for Runs<'_> {
    type Item = OffsetRun;

    fn next(&mut self) -> Option<OffsetRun> {
        let (run, rest) = self.bytes.split_first_chunk::<12>()?;
        self.bytes = rest;
        let mut reader = Reader::at(run, 0);
        Some(OffsetRun { first: Offset(reader.u64("first").ok()?), count: reader.u32("count").ok()? })
    }
}

/// Effect of a settlement on its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum How<'a> {
    /// The records are done.
    Ack,
    /// The records return to the group.
    Nack {
        /// Time at which the records are delivered again.
        again: Again,
        /// Reason, which is stored in the dead letter if the record becomes one.
        reason: &'a str,
    },
}

/// A batch of acks or nacks for one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle<'a> {
    /// Id of the group.
    pub group: GroupId,
    /// Ack or nack.
    pub how: How<'a>,
    /// Records to settle.
    pub settlements: Settlements<'a>,
}

impl<'a> Settle<'a> {
    pub(super) fn decode_ack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let group = GroupId(reader.u32("group id")?);
        Ok(Self { group, how: How::Ack, settlements: Settlements::decode(reader)? })
    }

    pub(super) fn decode_nack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let group = GroupId(reader.u32("group id")?);
        let again = match reader.u64("delay")? {
            u64::MAX => Again::Never,
            UNCOUNTED => Again::Uncounted,
            delay => Again::After(Duration::from_micros(delay).min(MAX_ACK_DEADLINE)),
        };
        let reason = decode_text(reader, MAX_NACK_REASON_BYTES, "reason")?;
        Ok(Self { group, how: How::Nack { again, reason }, settlements: Settlements::decode(reader)? })
    }
}

/// A decoded command about a group.
#[derive(Clone, Debug)]
pub enum GroupCommand<'a> {
    /// Creates a group unless its stream has one with that name.
    Create {
        /// Id of the stream.
        stream: StreamId,
        /// Offset at which the group begins; `None` for the end of the stream.
        start: Option<Offset>,
        /// Configuration of the group.
        config: GroupConfig,
        /// Name of the group.
        name: &'a str,
    },
    /// Replaces a group's configuration.
    Configure {
        /// Id of the group.
        group: GroupId,
        /// New configuration.
        config: GroupConfig,
    },
    /// Deletes a group.
    Delete {
        /// Id of the group.
        group: GroupId,
    },
    /// Delivers records to a member.
    Fetch(Fetch<'a>),
    /// Acks or nacks records.
    Settle(Settle<'a>),
    /// Moves the deadlines of attempts.
    Extend {
        /// Id of the group.
        group: GroupId,
        /// New distance of the deadlines from the entry's time.
        by: Duration,
        /// Encoded attempts, see [`attempts`](Self::attempts).
        attempts: &'a [u8],
    },
    /// Moves the group's cursor and drops all pending records.
    Seek {
        /// Id of the group.
        group: GroupId,
        /// New cursor; `None` for the end of the stream.
        offset: Option<Offset>,
    },
}

/// A request to deliver records to a member.
#[derive(Clone, Copy, Debug)]
pub struct Fetch<'a> {
    /// Id of the group.
    pub group: GroupId,
    /// Maximum number of records.
    pub max: u32,
    /// Offset of the record that the first key hash belongs to.
    pub window: Offset,
    /// Name of the member.
    pub member: &'a str,
    keys: &'a [u8],
}

impl Fetch<'_> {
    /// Returns the key hash of the record at `offset`, if the fetch carries it; 0 for a record without a key.
    #[must_use]
    pub fn key_at(&self, offset: Offset) -> Option<u64> {
        let at = usize::try_from(offset.0.checked_sub(self.window.0)?).ok()?.checked_mul(8)?;
        let bytes = self.keys.get(at..)?.first_chunk()?;
        Some(u64::from_le_bytes(*bytes))
    }
}

impl<'a> GroupCommand<'a> {
    /// Iterates over the encoded attempts of an extension.
    pub fn attempts(bytes: &'a [u8]) -> impl Iterator<Item = Attempt> + use<'a> {
        bytes.as_chunks::<8>().0.iter().map(|bytes| Attempt(u64::from_le_bytes(*bytes)))
    }

    pub(super) fn decode(kind: u8, reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        match kind {
            CREATE => {
                let stream = StreamId(reader.u32("stream id")?);
                let start = offset_or_end(reader)?;
                let config = GroupConfig::decode(reader)?;
                Ok(Self::Create { stream, start, config, name: super::decode_name(reader)? })
            }
            CONFIGURE => {
                Ok(Self::Configure { group: GroupId(reader.u32("group id")?), config: GroupConfig::decode(reader)? })
            }
            DELETE => Ok(Self::Delete { group: GroupId(reader.u32("group id")?) }),
            FETCH => Ok(Self::Fetch(decode_fetch(reader)?)),
            ACK => Ok(Self::Settle(Settle::decode_ack(reader)?)),
            NACK => Ok(Self::Settle(Settle::decode_nack(reader)?)),
            EXTEND => {
                let group = GroupId(reader.u32("group id")?);
                let by = Duration::from_micros(reader.u64("extension")?).min(MAX_ACK_DEADLINE);
                let at = reader.position();
                let count = reader.u32("attempt count")? as usize;
                if count > MAX_SETTLED_RANGES {
                    return Err(Malformed { at, expected: "attempts within the limit" });
                }
                Ok(Self::Extend { group, by, attempts: reader.take(count * 8, "attempts")? })
            }
            SEEK => Ok(Self::Seek { group: GroupId(reader.u32("group id")?), offset: offset_or_end(reader)? }),
            _ => Err(Malformed { at: 0, expected: "known command kind" }),
        }
    }
}

fn decode_fetch<'a>(reader: &mut Reader<'a>) -> Result<Fetch<'a>, Malformed> {
    let group = GroupId(reader.u32("group id")?);
    let at = reader.position();
    let max = reader.u32("record count")?;
    let window = Offset(reader.u64("window")?);
    let keys = reader.u32("key count")? as usize;
    if max == 0 || max > MAX_FETCH_RECORDS || keys > MAX_FETCH_KEYS {
        return Err(Malformed { at, expected: "records and keys within the limits" });
    }
    let keys = reader.take(keys * 8, "key hashes")?;
    Ok(Fetch { group, max, window, keys, member: decode_text(reader, MAX_MEMBER_NAME_BYTES, "member's name")? })
}

fn offset_or_end(reader: &mut Reader<'_>) -> Result<Option<Offset>, Malformed> {
    Ok(Some(Offset(reader.u64("offset")?)).filter(|offset| *offset != Offset::MAX))
}

/// Outcome of a command about a group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// The group exists now.
    Created {
        /// Id of the group.
        id: GroupId,
        /// True if this command created the group.
        created: bool,
    },
    /// The group was configured or deleted.
    Done,
    /// The fetch delivered records, or there were none to deliver.
    Fetched(Box<Fetched>),
    /// Records were acked or nacked.
    Settled {
        /// Number of records settled.
        settled: u32,
        /// Records that had lapsed or been settled before. The command did not change them.
        lapsed: Vec<Lapsed>,
    },
    /// Deadlines were moved.
    Extended {
        /// New deadline.
        deadline: SpaceTime,
        /// Attempts that hold no records any more, or had lapsed.
        lapsed: Vec<Attempt>,
    },
    /// The cursor was moved.
    Sought {
        /// New cursor.
        cursor: Offset,
    },
    /// The command named a group that does not exist.
    NoSuchGroup(GroupId),
    /// A commit named a lapsed attempt, or records that the attempt does not hold. Nothing happened.
    AttemptLapsed {
        /// Id of the group.
        group: GroupId,
        /// Attempt that the commit named.
        attempt: Attempt,
    },
    /// The group's dead letters would go to its own stream, or its order would change. Nothing happened.
    BadConfig {
        /// Description of the error.
        what: &'static str,
    },
}

/// Records of an attempt that could not be settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// Attempt that the settlement named.
    pub attempt: Attempt,
    /// Offsets of the records; `None` for the attempt as a whole.
    pub run: Option<OffsetRun>,
}

/// Outcome of a fetch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Attempt that settles the records. It has no meaning if nothing was delivered.
    pub attempt: Attempt,
    /// Deadline of the attempt, in space time.
    pub deadline: SpaceTime,
    /// Delivered records in order of their offsets; empty if there were none to deliver.
    pub deliveries: Vec<Delivered>,
    /// Cursor of the group after the fetch.
    pub cursor: Offset,
    /// True if the group has dead letters that must be moved to their stream.
    pub dead: bool,
}

/// Consecutive records that have been delivered equally often.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delivered {
    /// Offsets of the records.
    pub run: OffsetRun,
    /// Number of deliveries, including this one.
    pub deliveries: u32,
}

#[cfg(test)]
mod tests;
