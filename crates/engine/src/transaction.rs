//! Transactions: conditions that choose between two lists of operations. Counters and deletes by prefix are
//! transactions of one operation.
//!
//! Owns: `Database::transact` with its results, and the answers to transactions that only read; these use one view of
//! the state instead of the log. Does not own: the evaluation of conditions and operations (`thalweg_state::apply`), or
//! transactions that gather their writes (`optimistic`).

use std::cell::RefCell;

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{apply::read_transaction, machine::MachineError};
use thalweg_types::{
    Durability, Revision,
    budget::{Budget, BudgetSpent},
    command::{Command, OperationResult, Outcome, Transacted, Transaction, TransactionBuilder},
    limits::MAX_COMMAND_STEPS,
};

use crate::{
    ack::{check_outcome_known, unexpected},
    async_database::AsyncDatabase,
    database::Database,
    error::{ReadError, WriteError, refusal},
    keyspace::Keyspace,
    redis::VIEWS,
};

/// Acknowledgement of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TransactionAck {
    /// Durability level that the transaction reached.
    pub durability: Durability,
    /// The list of operations that the conditions chose, and the results of its operations.
    pub outcome: Transacted,
}

impl TransactionAck {
    /// Returns true if all conditions held, so that the first list of operations was chosen.
    #[must_use]
    pub fn succeeded(&self) -> bool {
        self.outcome.failed.is_none()
    }
}

/// Result of adding a number to a counter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Added {
    /// Value of the counter after the addition.
    pub value: i64,
    /// Revision of the command that changed the counter.
    pub revision: Revision,
    /// Durability level that the addition reached.
    pub durability: Durability,
}

/// Result of deleting all keys with a prefix.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrefixDeleted {
    /// Number of deleted keys; `None` if there were too many to count them within the command.
    pub keys: Option<u64>,
    /// Revision that the delete used.
    pub revision: Revision,
    /// Durability level that the delete reached.
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
    /// Carries out a transaction at the handle's durability level. Level `none` is rejected, because the outcome would
    /// be unknown. A transaction that only reads is answered from one consistent view, without the log; its ack names
    /// the level that is [visible](Self::visible_durability).
    pub fn transact(&self, transaction: &TransactionBuilder) -> Result<TransactionAck, WriteError> {
        check_outcome_known(true, self.durability())?;
        if transaction.only_reads()
            && let Some(answer) = self.answer(transaction)?
        {
            return Ok(answer);
        }
        let committed = self.inner.propose(self.durability(), purpose(transaction), |out| transaction.encode(out))?;
        transacted(committed)
    }

    /// Answers a transaction that only reads, from one view of the state. Returns `None` if the state cannot be read.
    /// The caller then proposes the transaction to the log, which returns a better error.
    fn answer(&self, transaction: &TransactionBuilder) -> Result<Option<TransactionAck>, WriteError> {
        let mut bytes = Vec::new();
        transaction.encode(&mut bytes)?;
        let Ok(Command::Transaction(decoded)) = Command::decode(&bytes) else { return Ok(None) };
        match self.read_transaction(&decoded, Budget::waiting(MAX_COMMAND_STEPS)) {
            Ok(Ok(answer)) => answer.map(Some),
            Ok(Err(_)) => Ok(None),
            Err(_) => Err(self.transaction_too_expensive()),
        }
    }
}

impl Database {
    /// Answers an encoded transaction that only reads. Uses one consistent view instead of the log, within a budget.
    /// Returns the level that is [visible](Self::visible_durability), and the outcome. The inner error is the one that
    /// the transaction would get from the log.
    ///
    /// # Errors
    /// The work is more than the budget ([`BudgetSpent`]), or the state or the log cannot be read.
    pub fn read_transaction(
        &self,
        transaction: &Transaction<'_>,
        budget: Budget,
    ) -> Result<Result<Result<TransactionAck, WriteError>, ReadError>, BudgetSpent> {
        budget.perform(|| {
            self.inner.read_transaction_ahead(transaction);
            let outcome = self.transaction_outcome(transaction)?;
            // The level is computed after the read, so that it covers everything that was read.
            let durability = self.visible_durability();
            Ok(transacted(Committed { durability, outcome: Some(outcome) }))
        })
    }

    fn transaction_outcome(&self, transaction: &Transaction<'_>) -> Result<Outcome, ReadError> {
        let (inner, failure) = (&self.inner, RefCell::new(None));
        for _ in 0..VIEWS {
            let resolve = |keyspace, key: &[u8], revision, blob| {
                inner.resolve(keyspace, key, revision, blob).map_err(|error| {
                    *failure.borrow_mut() = Some(error);
                    MachineError::Stopped
                })
            };
            let view = inner.open.machine.read_view();
            let has_keyspace = |id| inner.open.machine.keyspace(id).is_some();
            let read = read_transaction(&view, &has_keyspace, &resolve, transaction);
            match (read, failure.take()) {
                (Ok(outcome), _) => return Ok(outcome),
                // A value was freed just before it was read, so try again: a newer view has the key's present value.
                (Err(_), Some(ReadError::ViewExpired)) => {}
                (Err(_), Some(error)) => return Err(error),
                (Err(error), None) => return Err(error.into()),
            }
        }
        Err(ReadError::ViewExpired)
    }

    /// Returns the error for a transaction that only reads, and takes more steps (units of work) than a command may.
    #[must_use]
    pub fn transaction_too_expensive(&self) -> WriteError {
        match refusal(Outcome::TooExpensive { limit: MAX_COMMAND_STEPS }) {
            Err(error) => error,
            Ok(outcome) => unexpected(Some(&outcome)),
        }
    }
}

impl AsyncDatabase {
    /// Carries out a transaction. The future resolves when the transaction has reached `level`. Level `none` is
    /// rejected, because the outcome would be unknown.
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
    /// Adds a number to a counter and returns the counter's new value. A counter is a value in decimal digits; a key
    /// without a value counts as 0.
    pub fn add(&self, key: &[u8], delta: i64) -> Result<Added, WriteError> {
        let mut transaction = TransactionBuilder::new();
        transaction.then().add(self.id(), key, delta)?;
        added(&self.database().transact(&transaction)?)
    }

    /// Deletes all keys with a prefix in one step, whatever their number. If there are many, a small write hides them,
    /// and they are removed in the background. The empty prefix clears the keyspace.
    pub fn delete_prefix(&self, prefix: &[u8]) -> Result<PrefixDeleted, WriteError> {
        let mut transaction = TransactionBuilder::new();
        transaction.then().delete_prefix(self.id(), prefix)?;
        prefix_deleted(&self.database().transact(&transaction)?)
    }
}
