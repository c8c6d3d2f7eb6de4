//! Settlements: acks and nacks of the records that an attempt has delivered.
//!
//! They are decoded by hand, as views that are checked once: an ack is on the path of every record consumed.
//!
//! Owns: the encoding of settlements, both as commands and as writes of a commit, their limits, and the part of their
//! price (in [steps](crate::steps)) that follows from their bytes alone. Does not own: their effect (`groups` of the
//! state).
//!
//! Invariants: decoding accepts only settlements within [`MAX_SETTLED_RANGES`], whose ranges have at least one offset
//! and end below 2^64.

use std::time::Duration;

use crate::{
    codec::{EncodeError, Encoding, Field, Malformed, Reader, Structure, conversions, put_checked, put_u32},
    command::{error::CommandError, groups::config::MAX_ACK_DEADLINE},
    ids::{Attempt, GroupId, Offset},
    limits::{MAX_NACK_REASON_BYTES, MAX_SETTLED_RANGES},
    steps::{SETTLED_ATTEMPT, SETTLED_RANGE},
};

/// First bytes of the encoded ack and nack commands, which identify the kind of command.
pub(super) const SETTLE: [u8; 2] = [52, 53];

/// Encoded delay of a nack that represents [`Redelivery::Uncounted`].
const UNCOUNTED: u64 = u64::MAX - 1;

conversions! {
    /// Encoding of the reason of a nack.
    Reason: &'a str as &'a str, "reason" {
        put |reason| reason,
        take |reason| (reason.len() <= MAX_NACK_REASON_BYTES).then_some(reason)
    }

    /// Encoding of the time of redelivery after a nack: a delay in microseconds, [`UNCOUNTED`] for an immediate
    /// redelivery that does not count, or `u64::MAX` for "never".
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

    /// Returns the offset after the range's last one (the exclusive end).
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
    /// Immediately. The delivery that the nack ends does not count towards the maximum number of deliveries, because
    /// the member has not processed the record.
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

/// Size of the encoded settlements in bytes.
pub(crate) fn settlements_len(settlements: &[Settlement]) -> usize {
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

/// Returns a time span in microseconds; `u64::MAX - 1` for a span that does not fit into 64 bits.
pub(super) fn micros(span: Duration) -> u64 {
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

    /// Iterates over the attempts, each with the ranges of offsets to settle. If an attempt has no ranges, all its
    /// records are settled.
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

    /// Returns the number of ranges that the iterator has not returned yet.
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
    /// Id of the group whose records are acked or nacked.
    pub group: GroupId,
    /// Kind of the settlement: ack or nack.
    pub kind: SettlementKind<'a>,
    /// Records to settle, by attempt.
    pub settlements: Settlements<'a>,
}

impl<'a> Settle<'a> {
    /// Returns the price of checking and settling the records, in [steps](crate::steps). Leaves out two parts. If a
    /// commit contains this ack or nack, the price of the commit's write is charged separately. So is the
    /// [rewriting](crate::steps::SETTLED_RUN) of stored ranges of records, because only the state knows the number of
    /// these ranges.
    #[must_use]
    pub fn steps(&self) -> u64 {
        let of_attempt = |(_, runs): (Attempt, Runs<'_>)| SETTLED_ATTEMPT + SETTLED_RANGE * runs.range_count() as u64;
        self.settlements.iter().map(of_attempt).sum()
    }

    /// Appends an encoded ack or nack of a group's records. `kinds` are the first bytes of an encoded ack and of an
    /// encoded nack. On error `out` is unchanged.
    pub(crate) fn encode(
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

    pub(crate) fn decode_ack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let group = GroupId(reader.u32("group id")?);
        Ok(Self { group, kind: SettlementKind::Ack, settlements: Settlements::decode(reader)? })
    }

    pub(crate) fn decode_nack(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
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
