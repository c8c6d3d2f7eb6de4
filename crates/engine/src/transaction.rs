//! Transactions: conditions that choose between two lists of operations, and counters and deletes by
//! prefix, which are transactions of one operation.

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_types::{
    Durability, Revision,
    command::{OperationResult, Outcome, Transacted, TransactionBuilder},
};

use crate::{
    async_database::AsyncDatabase,
    database::{Database, check_outcome_known, unexpected},
    error::{WriteError, refusal},
    keyspace::Keyspace,
};

/// What an acknowledged transaction says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionAck {
    /// The level that was reached.
    pub durability: Durability,
    /// Which list was carried out, and what came of it.
    pub outcome: Transacted,
}

impl TransactionAck {
    /// Whether all conditions held.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.outcome.failed.is_none()
    }
}

/// What came of adding to a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// What the counter is now.
    pub value: i64,
    /// Of the write.
    pub revision: Revision,
    /// The level that was reached.
    pub durability: Durability,
}

/// What came of a delete by prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixDeleted {
    /// How many keys there were; `None` if they were too many to be counted at once.
    pub keys: Option<u64>,
    /// Of the delete.
    pub revision: Revision,
    /// The level that was reached.
    pub durability: Durability,
}

fn purpose(transaction: &TransactionBuilder) -> Purpose {
    if transaction.brings_data() { Purpose::Data } else { Purpose::Reclaim }
}

fn transacted(committed: Committed) -> Result<TransactionAck, WriteError> {
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Transacted(outcome)) => {
            Ok(TransactionAck { durability: committed.durability, outcome: *outcome })
        }
        other => Err(unexpected(other.as_ref())),
    }
}

fn added(ack: &TransactionAck) -> Result<Added, WriteError> {
    match ack.outcome.results[..] {
        [OperationResult::Added { value }] => {
            Ok(Added { value, revision: ack.outcome.revision, durability: ack.durability })
        }
        _ => Err(unexpected(None)),
    }
}

fn prefix_deleted(ack: &TransactionAck) -> Result<PrefixDeleted, WriteError> {
    match ack.outcome.results[..] {
        [OperationResult::PrefixDeleted { keys }] => {
            Ok(PrefixDeleted { keys, revision: ack.outcome.revision, durability: ack.durability })
        }
        _ => Err(unexpected(None)),
    }
}

impl Database {
    /// Carries out a transaction at the handle's level. At `none` its outcome would be unknown: refused.
    pub fn transact(&self, transaction: &TransactionBuilder) -> Result<TransactionAck, WriteError> {
        check_outcome_known(true, self.durability())?;
        let committed = self.inner.propose(self.durability(), purpose(transaction), |out| transaction.encode(out))?;
        transacted(committed)
    }
}

impl AsyncDatabase {
    /// Carries out a transaction; resolves when `level` is reached. At `none` its outcome would be unknown:
    /// refused.
    pub fn transact(
        &self,
        transaction: &TransactionBuilder,
        level: Durability,
    ) -> impl Future<Output = Result<TransactionAck, WriteError>> + Send + use<> {
        let known = check_outcome_known(true, level);
        let proposed = known.and_then(|()| self.propose(level, purpose(transaction), |out| transaction.encode(out)));
        async move { transacted(proposed?.await?) }
    }
}

impl Keyspace {
    /// Adds to a counter, and says what it is then. A counter is a value in decimal digits; a key without a
    /// value counts as 0.
    pub fn add(&self, key: &[u8], delta: i64) -> Result<Added, WriteError> {
        let mut transaction = TransactionBuilder::new();
        transaction.then().add(self.id(), key, delta)?;
        added(&self.database().transact(&transaction)?)
    }

    /// Deletes all keys with a prefix, at once and whatever their number: many are hidden by one small write
    /// and removed in the background. The empty prefix clears the keyspace.
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<PrefixDeleted, WriteError> {
        let mut transaction = TransactionBuilder::new();
        transaction.then().delete_prefix(self.id(), prefix)?;
        prefix_deleted(&self.database().transact(&transaction)?)
    }
}
