//! Transactions: the conditions of a transaction choose one of its lists of operations. The list is applied completely
//! or not at all.
//!
//! Owns: the choice, the operations and their results. Does not own: rollback (`machine/savepoint`), scans
//! (`transaction_scan`).
//!
//! The operations are applied in order, and each sees the changes of the earlier ones. If one is rejected, all are
//! rolled back. Appends, acks and nacks are only checked at their position in the list, and applied at the end, when
//! nothing can be rejected any more. This is possible because no operation reads streams or groups. Pairs and values
//! that operations read are returned as bytes, wherever they are stored, so an outcome is the same on every node.

use thalweg_types::{
    KeyspaceId, LogPosition, Revision,
    codec::Malformed,
    command::{
        AppendedAt, Deadline, FailedCondition, OperationError, OperationResult, Outcome, ReadValue, Transacted,
        Transaction, Write,
    },
    counter::parse_counter,
    limits::{MAX_CONDITION_ROWS, MAX_TRANSACTION_PREFIX_DELETES, MAX_TRANSACTION_RESULT_BYTES},
    steps::{GET, OPERATION, WRITE, read_bytes, written_bytes},
};

use crate::{
    apply::{
        commit::{self, check_condition},
        transaction_scan,
    },
    blobs::within,
    expiry::{
        leases::check_attachable,
        writes::{end_of_put, plan_touch, put_ending, store_touched},
    },
    groups::commands as consumers,
    keyspaces::{
        live::{live_head, live_key, replaced},
        values::Stored,
        writes::{check_key, delete_counted, put_counted},
    },
    machine::applying::Applying,
    refused::Refused,
    streams::append::{append, check_append},
};

/// Runs a transaction. Its bytes begin at position `at` in the log.
pub(crate) fn apply(
    applying: &mut Applying<'_>,
    transaction: &Transaction<'_>,
    at: LogPosition,
) -> Result<Outcome, Refused> {
    let [then, otherwise] = transaction.branches()?;
    let failed = check_conditions(applying, transaction)?;
    applying.check_budget()?;
    let operations = if failed.is_none() { then } else { otherwise };
    commit::begin_checks(applying);
    applying.record_changes();
    let savepoint = applying.savepoint();
    let mut run = OperationRun::new(applying.applied.revision.next(), at);
    for (number, operation) in operations.clone().enumerate() {
        let done = operation
            .map_err(Refused::from)
            .and_then(|operation| run.add(applying, number as u32, &operation))
            // The budget is checked after the operation, when its cost is known: a rejection rolls back all operations.
            .and_then(|()| applying.check_budget());
        if let Err(refused) = done {
            applying.roll_back(savepoint);
            return Err(refused);
        }
    }
    applying.keep(savepoint);
    applying.applier.staged.meter().end_budget();
    if run.writes {
        let revision = applying.use_revision();
        debug_assert_eq!(revision, run.revision);
        for (number, operation) in operations.enumerate() {
            run.finish(applying, number, &operation?);
        }
    }
    let revision = applying.applied.revision;
    Ok(Outcome::Transacted(Box::new(Transacted { failed, revision, wrote: run.writes, results: run.results })))
}

/// Returns the first condition of the transaction that does not hold; `None` if all hold. All conditions are
/// validated, including those after the failed one.
fn check_conditions(
    applying: &Applying<'_>,
    transaction: &Transaction<'_>,
) -> Result<Option<FailedCondition>, Refused> {
    let (mut failed, mut rows) = (None, MAX_CONDITION_ROWS);
    for (number, condition) in transaction.conditions().enumerate() {
        match check_condition(applying, number as u32, &condition?, &mut rows) {
            Ok(()) => {}
            Err(Refused::Outcome(Outcome::ConditionFailed { condition, actual })) => {
                failed = failed.or(Some(FailedCondition { condition, actual }));
            }
            Err(refused) => return Err(refused),
        }
    }
    Ok(failed)
}

/// State of a transaction while its list of operations is applied.
struct OperationRun {
    /// Revision that the transaction uses if one of its operations writes.
    revision: Revision,
    writes: bool,
    results: Vec<OperationResult>,
    /// Number of deletes by prefix that the transaction has made so far.
    emptied: usize,
    /// Position in the log at which the transaction's encoding begins.
    at: LogPosition,
    /// Bytes that are left for the results of the transaction's reads.
    room: usize,
}

impl OperationRun {
    fn new(revision: Revision, at: LogPosition) -> Self {
        Self { revision, writes: false, results: Vec::new(), emptied: 0, at, room: MAX_TRANSACTION_RESULT_BYTES }
    }

    /// Applies one operation of the transaction. Appends and settlements (acks and nacks) are only checked here.
    fn add(&mut self, applying: &mut Applying<'_>, number: u32, operation: &Write<'_>) -> Result<(), Refused> {
        let failed = |error| Refused::Outcome(Outcome::OperationFailed { operation: number, error });
        let revision = self.revision;
        applying.charge(OPERATION);
        let result = match *operation {
            Write::Put { keyspace, key, value, value_at } => {
                check_key(applying, keyspace, key)?;
                applying.charge(read_bytes(value.len()));
                let at = within(self.at, value_at);
                if applying.has_default_ttl(keyspace) {
                    let expiry = end_of_put(applying, keyspace, key, Deadline::Default, None)?;
                    put_ending(applying, (keyspace, key), value, revision, expiry, Some(at))?;
                } else {
                    put_counted(applying, keyspace, key, value, revision, at)?;
                }
                self.writes = true;
                OperationResult::Put
            }
            Write::PutUntil { keyspace, key, value, value_at, deadline, lease } => {
                check_key(applying, keyspace, key)?;
                lease.map_or(Ok(()), |id| check_attachable(applying, id, keyspace, key))?;
                applying.charge(read_bytes(value.len()));
                let at = within(self.at, value_at);
                let expiry = end_of_put(applying, keyspace, key, deadline, lease)?;
                put_ending(applying, (keyspace, key), value, revision, expiry, Some(at))?;
                self.writes = true;
                OperationResult::Put
            }
            Write::Touch { keyspace, key, deadline } => {
                check_key(applying, keyspace, key)?;
                let planned = plan_touch(applying, keyspace, key, deadline)?;
                let existed = planned.is_some();
                if let Some(Some(touched)) = planned {
                    // The row is rewritten with its value.
                    let bytes = replaced(applying, keyspace, key)?.map_or(0, |before| before.held.value_bytes);
                    applying.charge(read_bytes(bytes) + written_bytes(bytes));
                    applying.check_budget()?;
                    store_touched(applying, keyspace, key, &touched, revision)?;
                    self.writes = true;
                }
                OperationResult::Touched { existed }
            }
            Write::Delete { keyspace, key } => {
                check_key(applying, keyspace, key)?;
                let existed = live_head(applying, keyspace, key)?.is_some();
                delete_counted(applying, keyspace, key, revision)?;
                self.writes = true;
                OperationResult::Deleted { existed }
            }
            Write::Add { keyspace, key, delta } => {
                check_key(applying, keyspace, key)?;
                // The price is that of reading the value, which may be of any length.
                let bytes = replaced(applying, keyspace, key)?.map_or(0, |before| before.held.value_bytes);
                applying.charge(read_bytes(bytes));
                applying.check_budget()?;
                let live = counter(applying, keyspace, key, bytes)?.map_err(failed)?;
                let value = sum(applying, live.as_ref(), delta)?.map_err(failed)?;
                let expiry = match &live {
                    Some(live) => Some(live.expiry),
                    None => end_of_put(applying, keyspace, key, Deadline::Default, None)?,
                };
                put_ending(applying, (keyspace, key), value.to_string().as_bytes(), revision, expiry, None)?;
                self.writes = true;
                OperationResult::Added { value }
            }
            Write::Append { stream, count, batch, .. } => {
                applying.charge(4 * WRITE + read_bytes(batch.len()));
                let first = next_offset(applying, operation)?;
                self.writes = true;
                OperationResult::Appended(AppendedAt { stream, first, count })
            }
            Write::Settle(ref settle) => {
                applying.charge(WRITE + settle.steps());
                consumers::check_settle(applying, settle)?;
                self.writes = true;
                // A placeholder until the settlement is applied. Two settlements never contain the same record.
                OperationResult::Settled { records: 0 }
            }
            Write::DeletePrefix { keyspace, prefix } => {
                check_key(applying, keyspace, prefix)?;
                self.delete_prefix(applying, keyspace, prefix)?
            }
            Write::Get { keyspace, key } => {
                check_key(applying, keyspace, key)?;
                let live = live_key(applying, keyspace, key)?;
                check_holds_bytes(live.as_ref()).map_err(failed)?;
                let bytes = live.as_ref().map_or(0, Stored::value_len);
                applying.charge(GET + read_bytes(bytes));
                applying.check_budget()?;
                let too_large = OperationError::ResultTooLarge { limit: MAX_TRANSACTION_RESULT_BYTES };
                self.room = self.room.checked_sub(bytes).ok_or(failed(too_large))?;
                let got = match live {
                    Some(live) => Some(ReadValue { revision: live.revision, value: applying.bytes_of(&live)? }),
                    None => None,
                };
                OperationResult::Got(got)
            }
            Write::Scan { keyspace, ref scan } => {
                let mut keys = [Some(scan.prefix), scan.start, scan.end].into_iter().flatten();
                keys.try_for_each(|key| check_key(applying, keyspace, key))?;
                let before = applying.steps_used();
                let page = transaction_scan::page(applying, keyspace, scan, &mut self.room)?;
                applying.note_searched_since(before);
                OperationResult::Scanned(page.map_err(failed)?)
            }
        };
        self.results.push(result);
        Ok(())
    }

    fn delete_prefix(
        &mut self,
        applying: &mut Applying<'_>,
        keyspace: KeyspaceId,
        prefix: &[u8],
    ) -> Result<OperationResult, Refused> {
        if self.emptied >= MAX_TRANSACTION_PREFIX_DELETES {
            let limit = MAX_TRANSACTION_PREFIX_DELETES;
            return Err(Refused::Outcome(Outcome::TooMany { what: "deletes by prefix in a transaction", limit }));
        }
        self.emptied += 1;
        self.writes = true;
        Ok(OperationResult::PrefixDeleted { keys: applying.empty_prefix(keyspace, prefix, self.revision)? })
    }

    /// Applies an append or a settlement (ack or nack) that was only checked before. All other operations are applied.
    fn finish(&mut self, applying: &mut Applying<'_>, number: usize, operation: &Write<'_>) {
        match *operation {
            Write::Append { stream, count, batch, batch_at, .. } => {
                append(applying, stream, count, batch, within(self.at, batch_at));
            }
            Write::Settle(ref settle) => {
                let settled = consumers::perform_settle(applying, settle);
                let records = settled.expect("checked: the group exists").count();
                self.results[number] = OperationResult::Settled { records };
            }
            _ => {}
        }
    }
}

pub(crate) fn check_holds_bytes(live: Option<&Stored>) -> Result<(), OperationError> {
    live.and_then(Stored::collection).map_or(Ok(()), |_| Err(OperationError::HoldsCollection))
}

/// Returns the value of the counter at a key. `bytes` is the length of the value in the key's row. A value that is too
/// long for a number is rejected unread: the operations of one log entry could otherwise read a large value often.
fn counter(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    bytes: usize,
) -> Result<Result<Option<Stored>, OperationError>, Refused> {
    /// Length in bytes of the longest counter value, -2^63.
    const MAX_DIGITS: usize = 20;
    if bytes <= MAX_DIGITS {
        let live = live_key(applying, keyspace, key)?;
        return Ok(check_holds_bytes(live.as_ref()).map(|()| live));
    }
    Ok(match live_head(applying, keyspace, key)? {
        None => Ok(None),
        Some(head) if head.held.collection.is_some() => Err(OperationError::HoldsCollection),
        Some(_) => Err(OperationError::NotANumber),
    })
}

/// Adds `delta` to a counter's current value, and returns the new value. A missing key counts as 0.
fn sum(applying: &Applying<'_>, live: Option<&Stored>, delta: i64) -> Result<Result<i64, OperationError>, Refused> {
    let value = live.map_or(Ok(Some(0)), |live| applying.bytes_of(live).map(|bytes| parse_counter(&bytes)))?;
    let Some(value) = value else { return Ok(Err(OperationError::NotANumber)) };
    Ok(value.checked_add(delta).ok_or(OperationError::Overflow { value, delta }))
}

/// Checks an append of the transaction, and returns the offset that its first record will get.
fn next_offset(applying: &mut Applying<'_>, append: &Write<'_>) -> Result<thalweg_types::Offset, Refused> {
    let Write::Append { stream, count, producer, .. } = *append else { unreachable!("an append") };
    if producer.is_some() {
        return Err(Malformed { at: 0, expected: "commit, for a producer's append" }.into());
    }
    check_append(applying, append)?;
    let next = applying.applier.pending.next_offsets[&stream];
    Ok(thalweg_types::Offset(next.0 - u64::from(count)))
}
