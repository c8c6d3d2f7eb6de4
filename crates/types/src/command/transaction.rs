//! Transactions: conditions that choose between two lists of operations.
//!
//! ```text
//! transaction := 8 | conditions u32 | then u32 | else u32 | condition* | operation* | operation*
//! operation   := write | read              see the writes of a commit
//! ```
//! Unlike a commit, whose writes are blind once its conditions hold, a transaction's operations may read:
//! its own earlier writes as well as everything before it. All that it changes shares one revision.

use crate::{
    command::{
        AppendedAt, CommandError, TRANSACTION,
        commit::{self, Condition, Expect, Writes, decode_condition, encode_condition},
        operations::Operations,
    },
    ids::{KeyspaceId, Revision},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES},
    record::{Malformed, Reader},
};

use bytes::Bytes;

/// Builds a transaction.
#[derive(Clone, Debug, Default)]
pub struct TransactionBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    then: Operations,
    otherwise: Operations,
}

impl TransactionBuilder {
    /// Without conditions and operations: without conditions, `then` is what happens.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn expect(&mut self, keyspace: KeyspaceId, key: &[u8], expect: Expect<'_>) -> Result<&mut Self, CommandError> {
        commit::check_key(key)?;
        let full = self.condition_count as usize >= MAX_COMMIT_WRITES;
        if full || self.conditions.len() + key.len() + expect.value_len() + 32 > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge);
        }
        self.condition_count += 1;
        encode_condition(&mut self.conditions, keyspace, key, expect);
        Ok(self)
    }

    /// What happens if all conditions hold.
    pub fn then(&mut self) -> &mut Operations {
        &mut self.then
    }

    /// What happens if one does not.
    pub fn otherwise(&mut self) -> &mut Operations {
        &mut self.otherwise
    }

    /// Whether some operation brings new data; one that only deletes is let through on a full disk.
    #[must_use]
    pub fn brings_data(&self) -> bool {
        self.then.brings_data() || self.otherwise.brings_data()
    }

    /// Appends the encoded command.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let bytes = self.conditions.len() + self.then.bytes().len() + self.otherwise.bytes().len();
        let count = self.condition_count as usize + (self.then.count() + self.otherwise.count()) as usize;
        if bytes + 32 > MAX_COMMAND_BYTES || count > MAX_COMMIT_WRITES {
            return Err(CommandError::CommitTooLarge);
        }
        out.push(TRANSACTION);
        for count in [self.condition_count, self.then.count(), self.otherwise.count()] {
            out.extend_from_slice(&count.to_le_bytes());
        }
        out.extend_from_slice(&self.conditions);
        out.extend_from_slice(self.then.bytes());
        out.extend_from_slice(self.otherwise.bytes());
        Ok(())
    }
}

/// A transaction's inside.
#[derive(Clone, Debug)]
pub struct Transaction<'a> {
    bytes: &'a [u8],
    conditions_at: usize,
    conditions: u32,
    then: u32,
    otherwise: u32,
}

impl<'a> Transaction<'a> {
    pub(super) fn decode_head(bytes: &'a [u8], reader: &mut Reader<'_>) -> Result<Self, Malformed> {
        let conditions = reader.u32("condition count")?;
        let then = reader.u32("operation count")?;
        let otherwise = reader.u32("operation count")?;
        Ok(Self { bytes, conditions_at: reader.position(), conditions, then, otherwise })
    }

    /// The conditions in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| decode_condition(&mut reader))
    }

    /// Both lists, what happens if the conditions hold first. Everything in them decodes.
    pub fn branches(&self) -> Result<[Writes<'a>; 2], Malformed> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        for _ in 0..self.conditions {
            decode_condition(&mut reader)?;
        }
        let then = Writes::inner(reader, self.then);
        let mut check = then.clone();
        check.by_ref().try_for_each(|operation| operation.map(|_| ()))?;
        let otherwise = Writes::last(check.into_reader(), self.otherwise)?;
        otherwise.clone().try_for_each(|operation| operation.map(|_| ()))?;
        Ok([then, otherwise])
    }
}

/// What came of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transacted {
    /// The first condition that did not hold, and its key's revision; `None` if all held.
    pub failed: Option<FailedCondition>,
    /// The space's revision afterwards: the transaction's own if it wrote.
    pub revision: Revision,
    /// Whether it wrote. One that did not uses no revision.
    pub wrote: bool,
    /// One for each operation of the list that was carried out.
    pub results: Vec<OperationResult>,
}

/// A condition that did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCondition {
    /// Which, from 0.
    pub condition: u32,
    /// The key's revision; `None` if it has no value.
    pub actual: Option<Revision>,
}

/// What came of an operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The key has the value, at the transaction's revision.
    Put,
    /// The key has no value.
    Deleted {
        /// Whether it had one.
        existed: bool,
    },
    /// The records are appended.
    Appended(AppendedAt),
    /// The counter has been added to.
    Added {
        /// What it is now.
        value: i64,
    },
    /// The key ends at another time, if there is one.
    Touched {
        /// Whether there was one.
        existed: bool,
    },
    /// No key has the prefix.
    PrefixDeleted {
        /// How many had; `None` if they were too many to be counted at once.
        keys: Option<u64>,
    },
    /// Records of a consumer group are acked or given back.
    Settled {
        /// How many.
        records: u32,
    },
    /// The key as the operations before left it; `None` if it has no value.
    Got(Option<Got>),
    /// Pairs as the operations before left them.
    Scanned(ScanPage),
}

/// A key that a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// When it was written.
    pub revision: Revision,
    /// The value.
    pub value: Bytes,
}

/// A page of pairs that a transaction read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// In the order asked for.
    pub items: Vec<ScannedItem>,
    /// The last key looked at, if the page ended before the range did: go on after it.
    pub after: Option<Bytes>,
}

/// A pair that a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedItem {
    /// The key.
    pub key: Bytes,
    /// When it was written.
    pub revision: Revision,
    /// The value; `None` if only keys were asked for.
    pub value: Option<Bytes>,
}

/// Why an operation could not be carried out; then nothing of its transaction happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The counter's key has a value that is no number.
    #[error("the value is not a whole number in decimal digits between -2^63 and 2^63-1")]
    NotANumber,
    /// The key holds a hash or a stream of Redis clients.
    #[error("the key holds a hash or a stream: read it with a Redis client")]
    HoldsCollection,
    /// The sum is beyond 64 bits.
    #[error("the sum {value} + {delta} is beyond 64 bits")]
    Overflow {
        /// What the counter is.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
    /// The reads of the transaction find more than a reply may hold.
    #[error("the transaction's reads come to more than {limit} bytes: read less at a time")]
    ResultTooLarge {
        /// Most bytes.
        limit: usize,
    },
}
