//! Transactions: conditions that choose between two lists of operations.
//!
//! The writes of a commit are blind once its conditions hold. In contrast, a transaction's operations may read its own
//! earlier writes and everything before it. All its changes share one revision.

use bytes::Bytes;

use crate::{
    codec::{Malformed, Reader, by_hand, put_checked},
    command::{
        append::AppendedAt,
        checks::check_key,
        condition::{Condition, Expect},
        error::CommandError,
        operations::Operations,
        write::Writes,
    },
    ids::{KeyspaceId, Revision},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES},
};

/// Kind of the command.
pub(super) const TRANSACTION: u8 = 8;

by_hand! {
    Transaction as "transaction": "condition_count u32, then_count u32, else_count u32, \
        conditions condition_count × condition, then then_count × operation, else else_count × operation"
}

/// Builder of a transaction.
#[derive(Clone, Debug, Default)]
pub struct TransactionBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    then: Operations,
    otherwise: Operations,
}

impl TransactionBuilder {
    /// Creates a transaction without conditions and operations. Without conditions, `then` is carried out.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition.
    pub fn expect(&mut self, keyspace: KeyspaceId, key: &[u8], expect: Expect<'_>) -> Result<&mut Self, CommandError> {
        check_key(key)?;
        let condition = Condition { keyspace, key, expect };
        let full = self.condition_count as usize >= MAX_COMMIT_WRITES;
        if full || self.conditions.len() + condition.max_bytes() > MAX_COMMAND_BYTES {
            return Err(CommandError::CommitTooLarge);
        }
        self.condition_count += 1;
        condition.encode(&mut self.conditions);
        Ok(self)
    }

    /// Operations that are carried out if all conditions hold.
    pub fn then(&mut self) -> &mut Operations {
        &mut self.then
    }

    /// Operations that are carried out if a condition does not hold.
    pub fn otherwise(&mut self) -> &mut Operations {
        &mut self.otherwise
    }

    /// Returns true if an operation adds data. On a full disk the server accepts only transactions that do not.
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
            put_checked(out, &count);
        }
        out.extend_from_slice(&self.conditions);
        out.extend_from_slice(self.then.bytes());
        out.extend_from_slice(self.otherwise.bytes());
        Ok(())
    }
}

/// The contents of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<'a> {
    bytes: &'a [u8],
    conditions_at: usize,
    conditions: u32,
    then: u32,
    otherwise: u32,
}

impl<'a> Transaction<'a> {
    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let conditions = reader.u32("condition count")?;
        let then = reader.u32("operation count")?;
        let otherwise = reader.u32("operation count")?;
        Ok(Self { bytes: reader.whole(), conditions_at: reader.position(), conditions, then, otherwise })
    }

    /// Iterates over the conditions in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| Condition::decode(&mut reader))
    }

    /// Returns both lists of operations; the first one is for the case that all conditions hold. Everything in them
    /// decodes.
    pub fn branches(&self) -> Result<[Writes<'a>; 2], Malformed> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        for _ in 0..self.conditions {
            Condition::decode(&mut reader)?;
        }
        let then = Writes::inner(reader, self.then);
        let mut check = then.clone();
        check.by_ref().try_for_each(|operation| operation.map(|_| ()))?;
        let otherwise = Writes::last(check.into_reader(), self.otherwise)?;
        otherwise.clone().try_for_each(|operation| operation.map(|_| ()))?;
        Ok([then, otherwise])
    }
}

/// Outcome of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transacted {
    /// First condition that did not hold, with its key's revision; `None` if all held.
    pub failed: Option<FailedCondition>,
    /// Revision of the space afterwards: the transaction's own revision if it wrote.
    pub revision: Revision,
    /// True if the transaction wrote. Otherwise it uses no revision.
    pub wrote: bool,
    /// Results of the operations that were carried out, in order.
    pub results: Vec<OperationResult>,
}

/// A condition that did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCondition {
    /// Index of the condition, from 0.
    pub condition: u32,
    /// Present revision of the key; `None` if it has no value.
    pub actual: Option<Revision>,
}

/// Result of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The put set the value, at the transaction's revision.
    Put,
    /// The delete left the key without a value.
    Deleted {
        /// True if the key had a value.
        existed: bool,
    },
    /// The records were appended.
    Appended(AppendedAt),
    /// The counter was changed.
    Added {
        /// Value of the counter after the addition.
        value: i64,
    },
    /// The key's deadline was changed, if the key exists.
    Touched {
        /// True if the key has a value.
        existed: bool,
    },
    /// All keys with the prefix were deleted.
    PrefixDeleted {
        /// Number of deleted keys; `None` if there were too many to count within the command.
        keys: Option<u64>,
    },
    /// Records of a consumer group were acked or returned to it.
    Settled {
        /// Number of records.
        records: u32,
    },
    /// The value of the key after the operations before this one; `None` if it has no value.
    Got(Option<Got>),
    /// Pairs after the operations before this one.
    Scanned(ScanPage),
}

/// A key that a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Got {
    /// Revision at which the value was written.
    pub revision: Revision,
    /// Value of the key.
    pub value: Bytes,
}

/// A page of pairs that a transaction read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Pairs in the requested order.
    pub items: Vec<ScannedItem>,
    /// Last key read, if the page ended before the range did. The next scan continues after it.
    pub after: Option<Bytes>,
}

/// A pair that a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedItem {
    /// Key of the pair.
    pub key: Bytes,
    /// Revision at which the value was written.
    pub revision: Revision,
    /// Value of the pair; `None` if only keys were requested.
    pub value: Option<Bytes>,
}

/// Reason why an operation could not be carried out. Nothing of its transaction happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The value at the counter's key is not a number.
    #[error("the value is not a whole number in decimal digits between -2^63 and 2^63-1")]
    NotANumber,
    /// The key holds a hash or a stream of Redis clients.
    #[error("the key holds a hash or a stream: read it with a Redis client")]
    HoldsCollection,
    /// The sum does not fit into 64 bits.
    #[error("the sum {value} + {delta} does not fit into 64 bits")]
    Overflow {
        /// Present value of the counter.
        value: i64,
        /// Amount to add.
        delta: i64,
    },
    /// The reads of the transaction return more than a reply may hold.
    #[error("the transaction reads more than {limit} bytes: read less in one transaction")]
    ResultTooLarge {
        /// Maximum number of bytes.
        limit: usize,
    },
}
