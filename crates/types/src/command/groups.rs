//! Consumer groups: their configuration, the commands about them, and the outcomes of these commands.
//!
//! An *attempt* is one delivery of some records to one member. Attempts of a group have rising numbers that are never
//! reused. A settlement (ack or nack) names its attempt, so a settlement cannot be mistaken for one of another delivery
//! of the same records, of a deleted group with the same name, or from before a restore.
//!
//! Settlements are decoded by hand, as views that are checked once: an ack is on the path of every record consumed.
//!
//! Owns: the encoding of configurations, commands and outcomes, and the checks that need no state. Does not own: the
//! effect of the commands (`groups` of the state), or the frames of the native protocol.
//!
//! Invariants: decoding accepts only settlements within [`MAX_SETTLED_RANGES`], whose ranges have at least one offset
//! and end below 2^64. [`key_hash`] never changes, because the state stores its results.

use std::time::Duration;

use crate::{
    clock::SpaceTime,
    codec::{
        AtMost, EncodeError, Encoding, Field, List, Malformed, Micros, Reader, Structure, choices, conversions,
        put_checked, put_u32, structure, variants,
    },
    command::{
        checks::{Name, check_name},
        error::CommandError,
    },
    ids::{Attempt, GroupId, Offset, StreamId},
    limits::{
        MAX_DEAD_PER_SMALL_FETCH, MAX_FETCH_KEYS, MAX_FETCH_RECORDS, MAX_GROUP_PENDING, MAX_MEMBER_NAME_BYTES,
        MAX_NACK_REASON_BYTES, MAX_SETTLED_RANGES,
    },
    steps::{SETTLED_ATTEMPT, SETTLED_RANGE},
};

/// First bytes of the encoded ack and nack commands, which identify the kind of command.
const SETTLE: [u8; 2] = [52, 53];

/// Encoded delay of a nack that represents [`Redelivery::Uncounted`].
const UNCOUNTED: u64 = u64::MAX - 1;

/// Longest time for which a member may hold records without an ack, and longest delay of a nack. Longer values are
/// shortened to this limit.
pub const MAX_ACK_DEADLINE: Duration = Duration::from_secs(24 * 60 * 60);

conversions! {
    /// Encoding of an offset; `Offset::MAX` means the end of the stream.
    OffsetOrEnd: Option<Offset> as Offset {
        put |offset| offset.unwrap_or(Offset::MAX),
        take |offset| Some(Some(offset).filter(|offset| *offset != Offset::MAX))
    }

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

    /// Encoding of the reason of a nack.
    Reason: &'a str as &'a str, "reason" {
        put |reason| reason,
        take |reason| (reason.len() <= MAX_NACK_REASON_BYTES).then_some(reason)
    }

    /// Encoding of a time span of at most [`MAX_ACK_DEADLINE`], in microseconds. Longer spans are shortened to this
    /// limit.
    AckSpan: Duration as u64, "ack span" {
        put |span| micros(*span),
        take |micros| Some(Duration::from_micros(micros).min(MAX_ACK_DEADLINE))
    }

    /// Encoding of the time of redelivery after a nack: a delay in microseconds, or [`UNCOUNTED`], or `u64::MAX` for
    /// "never".
    AgainMicros: Redelivery as u64, "again" {
        put |again| match *again {
            Redelivery::After(delay) => micros(delay),
            Redelivery::Never => u64::MAX,
            Redelivery::Uncounted => UNCOUNTED,
        },
        take |again| Some(match again {
            u64::MAX => Redelivery::Never,
            UNCOUNTED => Redelivery::Uncounted,
            delay => Redelivery::After(Duration::from_micros(delay).min(MAX_ACK_DEADLINE)),
        })
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
        /// Time after an attempt's delivery, in space time, at which its deadline passes unless the member extends it.
        /// The unacked records of the attempt are then delivered again.
        ack_deadline: Duration as Micros,
        /// Number of deliveries after which a record that is not acked becomes a dead letter. `None` means no limit.
        max_deliveries: Option<u32> as LimitOrZero,
        /// Maximum number of pending records (delivered or held back, and not acked), together with the dead letters
        /// that are not in their stream yet. At this limit the group delivers no new records until members ack some,
        /// or dead letters are moved.
        max_pending: u32,
        /// Name of the stream for dead letters, which the server creates with the first dead letter. `None` means that
        /// dead letters are dropped and counted.
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

/// Range of consecutive record offsets in a stream: `first..first + count`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OffsetRun {
    /// First offset of the range.
    pub first: Offset,
    /// Number of offsets in the range, at least 1.
    pub count: u32,
}

impl OffsetRun {
    /// Creates a range that consists of a single offset.
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

/// Settlement (ack or nack) of records that one attempt delivered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settlement {
    /// Number of the attempt (delivery) that delivered the records.
    pub attempt: Attempt,
    /// Offsets of the records; empty for all records of the attempt that are not settled (acked or nacked) yet.
    pub runs: Vec<OffsetRun>,
}

impl Settlement {
    /// Creates a settlement of all records of an attempt that are not settled (acked or nacked) yet.
    #[must_use]
    pub const fn all(attempt: Attempt) -> Self {
        Self { attempt, runs: Vec::new() }
    }

    /// Creates a settlement of one record of an attempt.
    #[must_use]
    pub fn one(attempt: Attempt, offset: Offset) -> Self {
        Self { attempt, runs: vec![OffsetRun::one(offset)] }
    }
}

/// Time at which a consumer group delivers nacked records again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Redelivery {
    /// After this delay, which counts from the nack and is at most [`MAX_ACK_DEADLINE`].
    After(Duration),
    /// Never: the records become dead letters immediately.
    Never,
    /// Immediately, and without counting the returned delivery towards the maximum, because the member has not
    /// processed the record.
    Uncounted,
}

impl Redelivery {
    fn shortened(self) -> Self {
        match self {
            Self::After(delay) => Self::After(delay.min(MAX_ACK_DEADLINE)),
            other => other,
        }
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

/// Appends the encoded command that acks those records of the settlements that are not settled (acked or nacked) yet.
pub fn encode_ack(out: &mut Vec<u8>, group: GroupId, settlements: &[Settlement]) -> Result<(), CommandError> {
    Settle::encode(out, SETTLE, group, SettlementKind::Ack, settlements)
}

/// Appends the encoded command that nacks those records of the settlements that are not settled yet, which returns them
/// to the group.
pub fn encode_nack(
    out: &mut Vec<u8>,
    group: GroupId,
    again: Redelivery,
    reason: &str,
    settlements: &[Settlement],
) -> Result<(), CommandError> {
    Settle::encode(out, SETTLE, group, SettlementKind::Nack { again, reason }, settlements)
}

/// Appends the encoded command that moves the deadlines of attempts to the time `by` after the command's entry.
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

/// Appends the encoded command that removes at most `max` rows of a deleted consumer group, or about as many runs of
/// records of a group that were trimmed from its stream.
pub fn encode_reclaim_group(out: &mut Vec<u8>, group: GroupId, max: u32) {
    put_checked(out, &GroupCommand::Reclaim { group, max });
}

/// Size of the encoded settlements in bytes.
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

fn micros(span: Duration) -> u64 {
    u64::try_from(span.as_micros()).unwrap_or(u64::MAX - 1)
}

/// Returns the longest prefix of at most `max_bytes` bytes that is valid UTF-8.
fn shortened(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// Encoded settlements (acks or nacks of records by attempt), which were checked when the command was decoded.
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

    /// Iterates over the attempts, each with the ranges of offsets to settle. An attempt without ranges means all
    /// records of the attempt.
    pub fn iter(&self) -> impl Iterator<Item = (Attempt, Runs<'a>)> + use<'a> {
        let mut reader = Reader::at(self.bytes, 0);
        (0..self.count).map_while(move |_| {
            let attempt = Attempt(reader.u64("attempt").ok()?);
            let count = reader.u32("range count").ok()? as usize;
            Some((attempt, Runs { bytes: reader.take(count * 12, "ranges").ok()? }))
        })
    }
}

/// Iterator over the ranges of offsets of one settlement.
#[derive(Clone, Copy, Debug)]
pub struct Runs<'a> {
    bytes: &'a [u8],
}

impl Runs<'_> {
    /// Returns true if the settlement names no ranges, and so applies to all records of its attempt.
    #[must_use]
    pub fn is_all(&self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the number of ranges that are left.
    #[must_use]
    pub fn range_count(&self) -> usize {
        self.bytes.len() / 12
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

/// Effect of a settlement on its records: an ack or a nack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SettlementKind<'a> {
    /// The member has processed the records: they are not delivered again.
    Ack,
    /// The member returns the records to the group, which delivers them again or makes them dead letters.
    Nack {
        /// Time at which the group delivers the records again.
        again: Redelivery,
        /// Reason of the nack, which is stored with each record that becomes a dead letter.
        reason: &'a str,
    },
}

/// A decoded command, or write of a commit, that acks or nacks records of one consumer group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settle<'a> {
    /// Id of the group.
    pub group: GroupId,
    /// Kind of the settlement: ack or nack.
    pub kind: SettlementKind<'a>,
    /// Records to settle, by attempt.
    pub settlements: Settlements<'a>,
}

impl<'a> Settle<'a> {
    /// Returns the price of checking and settling the records, in addition to that of a write and that of the
    /// [runs](crate::steps::SETTLED_RUN) of the attempts, which only the state knows.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let of_attempt = |(_, runs): (Attempt, Runs<'_>)| SETTLED_ATTEMPT + SETTLED_RANGE * runs.range_count() as u64;
        self.settlements.iter().map(of_attempt).sum()
    }

    /// Appends an encoded ack (with the first kind) or nack (with the second kind) of a group's records. On error `out`
    /// is unchanged.
    pub(super) fn encode(
        out: &mut Vec<u8>,
        kinds: [u8; 2],
        group: GroupId,
        kind: SettlementKind<'_>,
        settlements: &[Settlement],
    ) -> Result<(), CommandError> {
        check_settlements(settlements)?;
        Self::put_head(out, kinds, group, kind);
        put_u32(out, settlements.len());
        for Settlement { attempt, runs } in settlements {
            put_checked(out, attempt);
            put_u32(out, runs.len());
            for run in runs {
                put_checked(out, &run.first);
                put_checked(out, &run.count);
            }
        }
        Ok(())
    }

    fn put_head(out: &mut Vec<u8>, [ack, nack]: [u8; 2], group: GroupId, kind: SettlementKind<'_>) {
        match kind {
            SettlementKind::Ack => {
                out.push(ack);
                put_checked(out, &group);
            }
            SettlementKind::Nack { again, reason } => {
                out.push(nack);
                put_checked(out, &group);
                AgainMicros::put(&again.shortened(), out).expect("a number");
                put_checked(out, &shortened(reason, MAX_NACK_REASON_BYTES));
            }
        }
    }

    pub(super) fn decode_ack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let group = GroupId(reader.u32("group id")?);
        Ok(Self { group, kind: SettlementKind::Ack, settlements: Settlements::decode(reader)? })
    }

    pub(super) fn decode_nack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let group = GroupId(reader.u32("group id")?);
        let again = AgainMicros::take(reader, "delay")?;
        let reason = Reason::take(reader, "reason")?;
        Ok(Self { group, kind: SettlementKind::Nack { again, reason }, settlements: Settlements::decode(reader)? })
    }
}

impl<'a> Field<'a> for Settle<'a> {
    fn layout() -> String {
        "settle".to_owned()
    }

    fn put(&self, out: &mut Vec<u8>) -> Result<(), EncodeError> {
        Self::put_head(out, SETTLE, self.group, self.kind);
        put_checked(out, &self.settlements.count);
        out.extend_from_slice(self.settlements.bytes);
        Ok(())
    }

    fn take(reader: &mut Reader<'a>, what: &'static str) -> Result<Self, Malformed> {
        if reader.u8(what)? == SETTLE[0] { Self::decode_ack(reader) } else { Self::decode_nack(reader) }
    }
}

impl Structure for Settle<'_> {
    const NAME: &'static str = "settle";

    fn definition() -> String {
        "52 ack (group u32, settlements [settlement]), \
         53 nack (group u32, again again, reason reason, settlements [settlement])"
            .to_owned()
    }
}

variants! {
    /// A decoded command about a consumer group.
    GroupCommand<'a> as "known command kind" {
        /// Creates a consumer group unless its stream already has a group with that name.
        Create = 48 "create group" {
            /// Id of the stream.
            stream: StreamId,
            /// Offset of the first record that the group delivers; `None` for the end of the stream.
            start: Option<Offset> as OffsetOrEnd,
            /// Configuration of the group.
            config: GroupConfig,
            /// Name of the group.
            name: &'a str as Name,
        },
        /// Replaces a consumer group's configuration.
        Configure = 49 "configure group" {
            /// Id of the group.
            group: GroupId,
            /// New configuration of the group.
            config: GroupConfig,
        },
        /// Deletes a consumer group.
        Delete = 50 "delete group" {
            /// Id of the group.
            group: GroupId,
        },
        /// Delivers records to a member of a consumer group.
        Fetch[fetch: Fetch<'a>] = 51 "fetch",
        /// Moves the deadlines of attempts, so that members can hold the delivered records longer.
        Extend = 54 "extend" {
            /// Id of the group.
            group: GroupId,
            /// Time from the command's entry to the new deadlines.
            by: Duration as AckSpan,
            /// Numbers of the attempts (deliveries) whose deadlines move.
            attempts: List<'a, Attempt> as AtMost<MAX_SETTLED_RANGES>,
        },
        /// Moves the group's cursor (the next record to deliver) and drops all pending records.
        Seek = 55 "seek" {
            /// Id of the group.
            group: GroupId,
            /// New cursor of the group; `None` for the end of the stream.
            offset: Option<Offset> as OffsetOrEnd,
        },
        /// Removes rows of a deleted consumer group, or records of a group that were trimmed from its stream.
        Reclaim = 56 "reclaim group" {
            /// Id of the group.
            group: GroupId,
            /// Maximum number of rows, or of runs of records, to remove.
            max: u32,
        },
    }
    families {
        /// Acks or nacks records that the group delivered.
        Settle(Settle<'a>) = 52 | 53,
    }
}

structure! {
    /// A request to deliver records of a consumer group to one of its members.
    #[derive(Copy)]
    Fetch<'a> as "fetch" {
        /// Id of the group.
        group: GroupId,
        /// Maximum number of records to deliver.
        max: u32 as FetchCount,
        /// Offset of the record to which the first of `keys` belongs.
        window: Offset,
        /// Hashes of the keys of the records from `window` on, 0 for records without a key. Only fetches of groups in
        /// order per key carry them, because the state machine cannot read records.
        keys: List<'a, u64> as AtMost<MAX_FETCH_KEYS>,
        /// Name of the member.
        member: &'a str as MemberName,
    }
}

impl Fetch<'_> {
    /// Returns the maximum number of records that the fetch turns into dead letters.
    #[must_use]
    pub fn max_dead(&self) -> u32 {
        self.max.max(MAX_DEAD_PER_SMALL_FETCH)
    }

    /// Returns the key hash of the record at `offset`, if the fetch carries it; 0 for a record without a key.
    #[must_use]
    pub fn key_at(&self, offset: Offset) -> Option<u64> {
        self.keys.get(usize::try_from(offset.0.checked_sub(self.window.0)?).ok()?)
    }
}

/// Outcome of a command about a consumer group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GroupOutcome {
    /// The group exists now, whether the command created it or not.
    Created {
        /// Id of the group.
        id: GroupId,
        /// True if this command created the group; false if the group already existed.
        created: bool,
    },
    /// The group was configured or deleted, as requested.
    Done,
    /// The fetch delivered records, or there were none to deliver.
    Fetched(Box<Fetched>),
    /// Records were acked or nacked, at least those that their attempts still held.
    Settled {
        /// Number of records acked or nacked.
        settled: u32,
        /// Records that the command could not settle, because their deadline had passed or because they had been
        /// settled before. The command did not change them.
        lapsed: Vec<Lapsed>,
    },
    /// Deadlines of attempts were moved.
    Extended {
        /// New deadline of the extended attempts, in space time.
        deadline: SpaceTime,
        /// Attempts that were not extended, because they hold no records any more or because their deadline had passed.
        lapsed: Vec<Attempt>,
    },
    /// The group's cursor was moved.
    Sought {
        /// New cursor: offset of the next record to deliver.
        cursor: Offset,
    },
    /// The command named a group that does not exist.
    NoSuchGroup(GroupId),
    /// A commit named records that their attempt no longer holds, for example because its deadline has passed. Nothing
    /// was changed.
    AttemptLapsed {
        /// Id of the group.
        group: GroupId,
        /// Number of the attempt (delivery) that the commit named.
        attempt: Attempt,
    },
    /// The new configuration would send the group's dead letters to the group's own stream, or would change the
    /// delivery order. Nothing was changed.
    BadConfig {
        /// Description of the error in the configuration.
        what: &'static str,
    },
}

/// Records of an attempt that could not be settled, because the attempt no longer held them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lapsed {
    /// Number of the attempt (delivery) that the ack or nack named.
    pub attempt: Attempt,
    /// Offsets of the records; `None` if the settlement named the attempt as a whole.
    pub run: Option<OffsetRun>,
}

/// Outcome of a fetch: the delivered records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Attempt number, which the member's ack or nack of these records must name. It has no meaning if nothing was
    /// delivered.
    pub attempt: Attempt,
    /// Deadline of the attempt, in space time.
    pub deadline: SpaceTime,
    /// Delivered records in order of their offsets; empty if there were none to deliver.
    pub deliveries: Vec<DeliveredRun>,
    /// Cursor of the group after the fetch: offset of the next record that was never delivered.
    pub cursor: Offset,
    /// True if the group has dead letters that must be moved to the stream for dead letters.
    pub dead: bool,
}

/// Consecutive records that have been delivered the same number of times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeliveredRun {
    /// Offsets of the delivered records.
    pub run: OffsetRun,
    /// Number of deliveries of each of the records, including this one.
    pub deliveries: u32,
}

#[cfg(test)]
mod tests;
