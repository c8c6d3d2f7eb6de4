//! Transactions: commands with conditions that choose which one of two lists of operations is carried out.
//!
//! Owns: the builder, the encoding of whole transactions, their decoded form, and their results. Does not own: the
//! lists of operations (`operations`), the encoding of an operation (`write`), or the execution (the state machine).
//!
//! The writes of a commit do not return data of the state. In contrast, the operations of a transaction can read the
//! state and return the data that they read, including the transaction's own earlier writes. All changes of a
//! transaction share one revision.

use bytes::Bytes;

use crate::{
    codec::{Malformed, Reader, by_hand, put_checked},
    command::{
        append::AppendedAt,
        checks::check_key,
        condition::{Condition, Expect},
        error::CommandError,
        operations::Operations,
        write::{Write, Writes},
    },
    ids::{KeyspaceId, Revision},
    limits::{MAX_COMMAND_BYTES, MAX_COMMIT_WRITES, MAX_TRANSACTION_SCANS},
};

/// First byte of an encoded transaction, which identifies the kind of command.
pub(super) const TRANSACTION: u8 = 8;

by_hand! {
    Transaction as "transaction": "condition_count u32, then_count u32, else_count u32, \
        conditions condition_count × condition, then then_count × operation, else else_count × operation"
}

/// Builder of a transaction: conditions, and the two lists of operations between which they choose.
#[derive(Clone, Debug, Default)]
pub struct TransactionBuilder {
    conditions: Vec<u8>,
    condition_count: u32,
    then: Operations,
    otherwise: Operations,
}

impl TransactionBuilder {
    /// Creates a transaction without conditions and operations. As long as it has no conditions, it carries out the
    /// list [`then`](Self::then).
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a condition on a key to the transaction.
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

    /// Returns the list of operations that are carried out if all conditions hold.
    pub fn then(&mut self) -> &mut Operations {
        &mut self.then
    }

    /// Returns the list of operations that are carried out if a condition does not hold.
    pub fn otherwise(&mut self) -> &mut Operations {
        &mut self.otherwise
    }

    /// Returns true if one of the operations adds data. While the disk is full, the server accepts only transactions
    /// that add no data.
    #[must_use]
    pub fn brings_data(&self) -> bool {
        self.then.brings_data() || self.otherwise.brings_data()
    }

    /// Iterates over the prefixes that the operations of both lists delete: their keyspaces and lengths in bytes.
    pub fn deleted_prefixes(&self) -> impl Iterator<Item = (KeyspaceId, usize)> {
        self.then.deleted_prefixes().iter().chain(self.otherwise.deleted_prefixes()).copied()
    }

    /// Returns true if neither of the transaction's two lists of operations contains a write.
    #[must_use]
    pub fn only_reads(&self) -> bool {
        self.then.only_reads() && self.otherwise.only_reads()
    }

    /// Appends the encoded transaction to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), CommandError> {
        let bytes = self.conditions.len() + self.then.bytes().len() + self.otherwise.bytes().len();
        let count = self.condition_count as usize + (self.then.count() + self.otherwise.count()) as usize;
        if bytes + 32 > MAX_COMMAND_BYTES || count > MAX_COMMIT_WRITES {
            return Err(CommandError::CommitTooLarge);
        }
        if (self.then.scans() + self.otherwise.scans()) as usize > MAX_TRANSACTION_SCANS {
            return Err(CommandError::TooManyScans);
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

/// A decoded transaction: conditions and two lists of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transaction<'a> {
    bytes: &'a [u8],
    conditions_at: usize,
    conditions: u32,
    then: u32,
    otherwise: u32,
}

impl<'a> Transaction<'a> {
    /// Returns true if the bytes begin like an encoded transaction. The rest of the bytes need not decode.
    #[must_use]
    pub fn is_one(command: &[u8]) -> bool {
        command.first() == Some(&TRANSACTION)
    }

    fn decode(reader: &mut Reader<'a>) -> Result<Self, Malformed> {
        let conditions = reader.u32("condition count")?;
        let then = reader.u32("operation count")?;
        let otherwise = reader.u32("operation count")?;
        Ok(Self { bytes: reader.whole(), conditions_at: reader.position(), conditions, then, otherwise })
    }

    /// Iterates over the conditions of the transaction in order.
    pub fn conditions(&self) -> impl Iterator<Item = Result<Condition<'a>, Malformed>> + use<'a> {
        let mut reader = Reader::at(self.bytes, self.conditions_at);
        (0..self.conditions).map(move |_| Condition::decode(&mut reader))
    }

    /// Returns true if no operation of either list writes.
    ///
    /// # Errors
    /// An operation or a condition does not decode.
    pub fn only_reads(&self) -> Result<bool, Malformed> {
        let [then, otherwise] = self.branches()?;
        let mut operations = then.chain(otherwise);
        Ok(operations.all(|operation| matches!(operation, Ok(Write::Get { .. } | Write::Scan { .. }))))
    }

    /// Returns both lists of operations: first the list for the case that all conditions hold, then the other one. All
    /// operations in the returned lists are known to decode.
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

/// Outcome of a transaction that has carried out one of its two lists of operations.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transacted {
    /// First condition that did not hold, with the present revision of its key; `None` if all conditions held.
    pub failed: Option<FailedCondition>,
    /// Revision of the state after the transaction: the transaction's own revision if it changed something.
    pub revision: Revision,
    /// True if the transaction changed something. A transaction that changed nothing uses no revision.
    pub wrote: bool,
    /// Results of the operations that were carried out, in the order of the operations.
    pub results: Vec<OperationResult>,
}

/// A condition of a transaction that did not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailedCondition {
    /// Index of the failed condition in the transaction, from 0.
    pub condition: u32,
    /// Present revision of the condition's key; `None` if the key has no value.
    pub actual: Option<Revision>,
}

/// Result of one operation of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OperationResult {
    /// The put set the value, at the transaction's revision.
    Put,
    /// The delete left the key without a value.
    Deleted {
        /// True if the key had a value before the delete.
        existed: bool,
    },
    /// The records were appended at this position of their stream.
    Appended(AppendedAt),
    /// The counter was changed by the addition.
    Added {
        /// Value of the counter after the addition.
        value: i64,
    },
    /// The key's deadline was changed, if the key has a value.
    Touched {
        /// True if the key whose deadline was to be changed has a value.
        existed: bool,
    },
    /// All keys with the prefix were deleted.
    PrefixDeleted {
        /// Number of deleted keys; `None` if there were too many to count within the command.
        keys: Option<u64>,
    },
    /// Records of a consumer group were acked or nacked.
    Settled {
        /// Number of records acked or nacked.
        records: u32,
    },
    /// Value of the key that the operation has read; `None` if the key has no value. The value includes the changes of
    /// the transaction's earlier operations.
    Got(Option<ReadValue>),
    /// Page of pairs of key and value that the operation has read. The pairs include the changes of the transaction's
    /// earlier operations.
    Scanned(ScanPage),
}

/// Revision and value of a key that a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadValue {
    /// Revision at which the value was written.
    pub revision: Revision,
    /// Value of the key that the transaction read.
    pub value: Bytes,
}

/// A page of pairs of key and value that a scan in a transaction read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanPage {
    /// Pairs of key and value, in the requested order.
    pub items: Vec<ScannedItem>,
    /// Last key of the page, if the page ended before the range did; the next scan must continue after this key. `None`
    /// if the page contains the end of the range.
    pub after: Option<Bytes>,
}

/// A pair of key and value that a scan in a transaction read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScannedItem {
    /// Key of the scanned pair.
    pub key: Bytes,
    /// Revision at which the value was written.
    pub revision: Revision,
    /// Value of the pair; `None` if only keys were requested.
    pub value: Option<Bytes>,
}

/// Reason why an operation of a transaction could not be carried out. The whole transaction then changes nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OperationError {
    /// The value at the counter's key is not a number.
    #[error("the value is not a whole number in decimal digits between -2^63 and 2^63-1")]
    NotANumber,
    /// The key holds a Redis hash or a Redis stream, which Redis commands created, and not a plain value.
    #[error("the key holds a hash or a stream: read it with a Redis client")]
    HoldsCollection,
    /// The sum does not fit into 64 bits.
    #[error("the sum {value} + {delta} does not fit into 64 bits")]
    Overflow {
        /// Present value of the counter, to which the operation tried to add.
        value: i64,
        /// Amount that the operation tried to add.
        delta: i64,
    },
    /// The reads of the transaction would return more bytes than a reply may have.
    #[error("the transaction reads more than {limit} bytes: read less in one transaction")]
    ResultTooLarge {
        /// Maximum number of bytes that the reads of a transaction may return.
        limit: usize,
    },
}
