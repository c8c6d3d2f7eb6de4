//! Transactions that only read, over a view of the state.
//!
//! Owns: the evaluation of such a transaction outside the log: its conditions, and the reads of the list of operations
//! that the conditions choose. The outcome is as if the transaction were the next entry after those in the view. Does
//! not own: transactions that may write (`transaction`), or the pages of scans (`transaction_scan`).
//!
//! The work is bounded by the [budget](thalweg_types::budget) of the calling thread's read, which counts the same kinds
//! of work as the meter of commands. After the budget is spent, the outcome is meaningless.

use bytes::Bytes;
use thalweg_store::Direction;
use thalweg_types::{
    BlobRef, KeyspaceId, Revision, budget,
    codec::Malformed,
    command::{
        Condition, Expect, FailedCondition, OperationError, OperationResult, Outcome, ReadValue, Transacted,
        Transaction, Write,
    },
    limits::{MAX_COMMAND_STEPS, MAX_CONDITION_ROWS, MAX_KEY_BYTES, MAX_TRANSACTION_RESULT_BYTES},
    steps::{GET, OPERATION, READ, SCAN, read_bytes},
};

use crate::{
    apply::{
        commit::is_expected,
        transaction::check_holds_bytes,
        transaction_scan::{RangeReader, Unchanged, check_unchanged, page},
    },
    error::MachineError,
    keys::KeyRange,
    keyspaces::{
        read_view::{ReadView, VisitRow},
        values::{Stored, StoredRef, StoredValue},
    },
    refused::Refused,
};

/// Function that reads a value stored in the log, given the value's keyspace, key and revision, and its position.
pub type ResolveIn<'v> = dyn Fn(KeyspaceId, &[u8], Revision, BlobRef) -> Result<Bytes, MachineError> + 'v;

/// Evaluates a transaction that only reads. `has_keyspace` returns true for the keyspaces that exist, and `resolve`
/// reads values that stay in the log.
///
/// # Errors
/// The state or the log cannot be read.
pub fn read_transaction(
    view: &ReadView,
    has_keyspace: &dyn Fn(KeyspaceId) -> bool,
    resolve: &ResolveIn<'_>,
    transaction: &Transaction<'_>,
) -> Result<Outcome, MachineError> {
    match (Reading { view, has_keyspace, resolve }).run(transaction) {
        Ok(outcome) | Err(Refused::Outcome(outcome)) => Ok(outcome),
        Err(Refused::Failed(error)) => Err(error),
    }
}

/// A transaction that is being evaluated over a view.
struct Reading<'v> {
    view: &'v ReadView,
    has_keyspace: &'v dyn Fn(KeyspaceId) -> bool,
    resolve: &'v ResolveIn<'v>,
}

impl Reading<'_> {
    fn run(&self, transaction: &Transaction<'_>) -> Result<Outcome, Refused> {
        let [then, otherwise] = transaction.branches()?;
        let failed = self.check_conditions(transaction)?;
        let operations = if failed.is_none() { then } else { otherwise };
        let (mut results, mut room) = (Vec::new(), MAX_TRANSACTION_RESULT_BYTES);
        for (number, operation) in operations.enumerate() {
            results.push(self.operation(number as u32, &operation?, &mut room)?);
        }
        let revision = self.view.applied().revision;
        Ok(Outcome::Transacted(Box::new(Transacted { failed, revision, wrote: false, results })))
    }

    /// Returns the first condition of the transaction that does not hold. Validates all conditions.
    fn check_conditions(&self, transaction: &Transaction<'_>) -> Result<Option<FailedCondition>, Refused> {
        let (mut failed, mut rows) = (None, MAX_CONDITION_ROWS);
        for (number, condition) in transaction.conditions().enumerate() {
            if let Err(actual) = self.check_condition(&condition?, &mut rows)? {
                failed = failed.or(Some(FailedCondition { condition: number as u32, actual }));
            }
        }
        Ok(failed)
    }

    /// Checks one condition of the transaction. The inner error says that the condition does not hold, and contains the
    /// present revision of the key.
    fn check_condition(
        &self,
        condition: &Condition<'_>,
        rows: &mut usize,
    ) -> Result<Result<(), Option<Revision>>, Refused> {
        let Condition { keyspace, key, expect } = *condition;
        self.charge(OPERATION);
        self.check_budget()?;
        if expect == Expect::Any {
            return Ok(Ok(()));
        }
        self.check_key(keyspace, key)?;
        if let Expect::Unchanged(range) = expect {
            return match check_unchanged(self, keyspace, key, &range, rows)? {
                Unchanged::Holds => Ok(Ok(())),
                Unchanged::Changed(actual) => Ok(Err(actual)),
                Unchanged::TooLong => {
                    let what = "rows in the ranges that a commit depends on";
                    Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_CONDITION_ROWS }))
                }
            };
        }
        let live = self.live(keyspace, key)?;
        let actual = live.as_ref().map(|live| live.revision);
        let holds = match (expect, &live) {
            (Expect::Value(value), Some(live)) => self.value_is(keyspace, key, live, value)?,
            (Expect::Value(_), None) => false,
            _ => is_expected(expect, actual),
        };
        Ok(if holds { Ok(()) } else { Err(actual) })
    }

    fn operation(&self, number: u32, operation: &Write<'_>, room: &mut usize) -> Result<OperationResult, Refused> {
        let failed = |error| Refused::Outcome(Outcome::OperationFailed { operation: number, error });
        self.charge(OPERATION);
        self.check_budget()?;
        match *operation {
            Write::Get { keyspace, key } => {
                self.check_key(keyspace, key)?;
                let live = self.live(keyspace, key)?;
                check_holds_bytes(live.as_ref()).map_err(failed)?;
                let bytes = live.as_ref().map_or(0, Stored::value_len);
                self.charge(GET);
                let too_large = OperationError::ResultTooLarge { limit: MAX_TRANSACTION_RESULT_BYTES };
                *room = room.checked_sub(bytes).ok_or(failed(too_large))?;
                let got = match live {
                    Some(live) => {
                        let value = self.bytes_of(keyspace, key, live.revision, live.value.as_ref())?;
                        Some(ReadValue { revision: live.revision, value })
                    }
                    None => None,
                };
                Ok(OperationResult::Got(got))
            }
            Write::Scan { keyspace, ref scan } => {
                let mut keys = [Some(scan.prefix), scan.start, scan.end].into_iter().flatten();
                keys.try_for_each(|key| self.check_key(keyspace, key))?;
                Ok(OperationResult::Scanned(page(self, keyspace, scan, room)?.map_err(failed)?))
            }
            _ => Err(Malformed { at: 0, expected: "a transaction that only reads" }.into()),
        }
    }

    fn check_key(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<(), Refused> {
        if !(self.has_keyspace)(keyspace) {
            return Err(Refused::Outcome(Outcome::NoSuchKeyspace(keyspace)));
        }
        if key.len() > MAX_KEY_BYTES {
            return Err(Malformed { at: 0, expected: "key within the limit" }.into());
        }
        Ok(())
    }

    fn live(&self, keyspace: KeyspaceId, key: &[u8]) -> Result<Option<Stored>, MachineError> {
        self.charge(READ);
        self.view.get(keyspace, key)
    }

    fn value_is(&self, keyspace: KeyspaceId, key: &[u8], live: &Stored, bytes: &[u8]) -> Result<bool, Refused> {
        self.charge(2 * read_bytes(bytes.len()));
        self.check_budget()?;
        Ok(match &live.value {
            StoredValue::Inline(value) => value == bytes,
            StoredValue::Collection(_) => false,
            StoredValue::Blob(blob) => {
                blob.len as usize == bytes.len()
                    && blob.crc == crc_fast::crc32_iscsi(bytes)
                    && (self.resolve)(keyspace, key, live.revision, *blob)? == bytes
            }
        })
    }
}

impl RangeReader for Reading<'_> {
    fn charge(&self, steps: u64) {
        // The caller checks after the work if the budget is spent.
        let _ = budget::charge(steps);
    }

    fn check_budget(&self) -> Result<(), Refused> {
        if budget::is_spent() {
            Err(Refused::Outcome(Outcome::TooExpensive { limit: MAX_COMMAND_STEPS }))
        } else {
            Ok(())
        }
    }

    fn bytes_of(
        &self,
        keyspace: KeyspaceId,
        key: &[u8],
        revision: Revision,
        value: StoredRef<'_>,
    ) -> Result<Bytes, MachineError> {
        match value {
            StoredRef::Inline(value) => {
                self.charge(read_bytes(value.len()));
                Ok(Bytes::copy_from_slice(value))
            }
            StoredRef::Collection(collection) => Ok(Bytes::copy_from_slice(collection.meta)),
            StoredRef::Blob(blob) => (self.resolve)(keyspace, key, revision, blob),
        }
    }

    fn rows(
        &self,
        keyspace: KeyspaceId,
        range: &KeyRange,
        direction: Direction,
        visit: &mut VisitRow<'_>,
    ) -> Result<(), MachineError> {
        self.charge(SCAN);
        self.view.scan_rows(keyspace, range, direction, visit)
    }
}
