//! Transactions: conditions choose a list of operations, which is carried out whole or not at all.
//!
//! In two steps. The operations are *planned* in order: everything is checked and read, results are
//! gathered, and what they will write is tried out in the overlay, so that each sees those before it. Only
//! if all succeed are they *performed*, which cannot fail any more.
//!
//! A read sees the transaction's own earlier writes, and later ones not: operations happen in their order,
//! as they stand in the list. Pairs and values read come out as bytes, wherever they are stored, so an
//! outcome is the same on every node.

use std::collections::{BTreeMap, VecDeque};

use thalweg_types::{
    KeyspaceId, LogPosition, Revision,
    command::{
        AppendedAt, Deadline, FailedCondition, Got, OperationError, OperationResult, Outcome, Transacted, Transaction,
        Write,
    },
    limits::{MAX_CONDITION_ROWS, MAX_PENDING_CLEARS, MAX_TRANSACTION_PREFIX_DELETES, MAX_TRANSACTION_RESULT_BYTES},
    record::Malformed,
};

use crate::{
    counts::CountChange,
    expiry::Expiry,
    machine::{
        MachineError,
        clearing::{Emptying, plan_emptying},
        commit::{self, check_append, check_condition, check_key},
        consumers,
        entry::{Applying, Refused},
        leases::check_attachable,
        live::{LiveKey, LiveValue, count_change, live_key},
        overlay::Overlay,
        timed::{Touched, end_of_put, plan_touch, store_put, store_touched},
        transaction_scan,
        versions::Superseded,
    },
    versions::Ending,
};

/// Runs a transaction whose bytes begin at `at` in the log.
pub(crate) fn apply<'a>(
    applying: &mut Applying<'_>,
    transaction: &Transaction<'a>,
    at: LogPosition,
    overlay: &mut Overlay<'a>,
) -> Result<Outcome, Refused> {
    let [then, otherwise] = transaction.branches()?;
    let failed = check_conditions(applying, transaction, overlay)?;
    let operations = if failed.is_none() { then } else { otherwise };
    commit::begin_checks(applying);
    overlay.try_out();
    let mut plan = Plan::new(applying.applied.revision.next(), at);
    for (number, operation) in operations.clone().enumerate() {
        if let Err(refused) = plan.add(applying, overlay, number as u32, &operation?) {
            overlay.undo();
            return Err(refused);
        }
    }
    overlay.keep();
    if plan.writes {
        let revision = applying.use_revision();
        debug_assert_eq!(revision, plan.revision);
        applying.tell_changes();
        for superseded in std::mem::take(&mut plan.superseded) {
            applying.keep_version(superseded)?;
        }
        for (number, operation) in operations.enumerate() {
            perform(applying, &operation?, &mut plan, number, at)?;
        }
        for (keyspace, change) in plan.counted {
            applying.count(keyspace, change);
        }
    }
    let revision = applying.applied.revision;
    Ok(Outcome::Transacted(Box::new(Transacted { failed, revision, wrote: plan.writes, results: plan.results })))
}

/// The first condition that does not hold. All are checked to make sense, also those behind it.
fn check_conditions(
    applying: &Applying<'_>,
    transaction: &Transaction<'_>,
    overlay: &Overlay<'_>,
) -> Result<Option<FailedCondition>, Refused> {
    let (mut failed, mut rows) = (None, MAX_CONDITION_ROWS);
    for (number, condition) in transaction.conditions().enumerate() {
        match check_condition(applying, number as u32, &condition?, overlay, &mut rows) {
            Ok(()) => {}
            Err(Refused::Outcome(Outcome::ConditionFailed { condition, actual })) => {
                failed = failed.or(Some(FailedCondition { condition, actual }));
            }
            Err(refused) => return Err(refused),
        }
    }
    Ok(failed)
}

/// What a list of operations will do.
struct Plan<'a> {
    /// The transaction's, if it writes.
    revision: Revision,
    writes: bool,
    results: Vec<OperationResult>,
    /// Of each delete by prefix: how, and the keys that the entry wrote before.
    emptied: VecDeque<(Emptying, Vec<Vec<u8>>)>,
    counted: Vec<(KeyspaceId, CountChange)>,
    /// Values that become versions.
    superseded: Vec<Superseded>,
    /// Of puts that may end, by their number: when, or that they have ended already.
    ends: BTreeMap<usize, Option<Expiry>>,
    /// What touches change, by their number.
    touched: BTreeMap<usize, Touched<'a>>,
    /// Where the transaction begins in the log.
    at: LogPosition,
    /// Bytes that reads may still come to.
    room: usize,
}

impl<'a> Plan<'a> {
    fn new(revision: Revision, at: LogPosition) -> Self {
        Self {
            revision,
            writes: false,
            results: Vec::new(),
            emptied: VecDeque::new(),
            counted: Vec::new(),
            superseded: Vec::new(),
            ends: BTreeMap::new(),
            touched: BTreeMap::new(),
            at,
            room: MAX_TRANSACTION_RESULT_BYTES,
        }
    }

    fn add(
        &mut self,
        applying: &mut Applying<'_>,
        overlay: &mut Overlay<'a>,
        number: u32,
        operation: &Write<'a>,
    ) -> Result<(), Refused> {
        let failed = |error| Refused::Outcome(Outcome::OperationFailed { operation: number, error });
        let result = match *operation {
            Write::Put { keyspace, key, value, value_at } => {
                check_key(applying, keyspace, key)?;
                let value = LiveValue::Written(value, commit::within(self.at, value_at));
                if applying.has_default_ttl(keyspace) {
                    let expiry = end_of_put(applying, overlay, keyspace, key, Deadline::Default, None)?;
                    self.set_until(applying, overlay, number, (keyspace, key), value, expiry)?;
                } else {
                    self.set(applying, overlay, keyspace, key, Some((value, Expiry::NEVER)))?;
                }
                OperationResult::Put
            }
            Write::PutUntil { keyspace, key, value, value_at, deadline, lease } => {
                check_key(applying, keyspace, key)?;
                lease.map_or(Ok(()), |id| check_attachable(applying, id))?;
                let value = LiveValue::Written(value, commit::within(self.at, value_at));
                let expiry = end_of_put(applying, overlay, keyspace, key, deadline, lease)?;
                self.set_until(applying, overlay, number, (keyspace, key), value, expiry)?;
                OperationResult::Put
            }
            Write::Touch { keyspace, key, deadline } => {
                check_key(applying, keyspace, key)?;
                let planned = plan_touch(applying, overlay, keyspace, key, deadline)?;
                let existed = planned.is_some();
                if let Some(Some(touched)) = planned {
                    if touched.ends_now() {
                        self.end(applying, overlay, keyspace, key)?;
                    }
                    overlay.set(keyspace, key, touched.after());
                    self.touched.insert(number as usize, touched);
                    self.writes = true;
                }
                OperationResult::Touched { existed }
            }
            Write::Delete { keyspace, key } => {
                check_key(applying, keyspace, key)?;
                let existed = live_key(applying, overlay, keyspace, key)?.is_some();
                self.set(applying, overlay, keyspace, key, None)?;
                OperationResult::Deleted { existed }
            }
            Write::Add { keyspace, key, delta } => {
                check_key(applying, keyspace, key)?;
                let live = live_key(applying, overlay, keyspace, key)?;
                check_holds_bytes(live.as_ref()).map_err(failed)?;
                let value = sum(applying, live.as_ref(), delta)?.map_err(failed)?;
                let expiry = match &live {
                    Some(live) => Some(live.expiry),
                    None => end_of_put(applying, overlay, keyspace, key, Deadline::Default, None)?,
                };
                self.set_until(applying, overlay, number, (keyspace, key), LiveValue::Number(value), expiry)?;
                OperationResult::Added { value }
            }
            Write::Append { stream, count, .. } => {
                let first = next_offset(applying, operation)?;
                self.writes = true;
                OperationResult::Appended(AppendedAt { stream, first, count })
            }
            Write::Settle(ref settle) => {
                consumers::check_settle(applying, settle)?;
                self.writes = true;
                // Counted when it is performed: two of them never have the same record.
                OperationResult::Settled { records: 0 }
            }
            Write::DeletePrefix { keyspace, prefix } => {
                check_key(applying, keyspace, prefix)?;
                self.delete_prefix(applying, overlay, keyspace, prefix)?
            }
            Write::Get { keyspace, key } => {
                check_key(applying, keyspace, key)?;
                let live = live_key(applying, overlay, keyspace, key)?;
                check_holds_bytes(live.as_ref()).map_err(failed)?;
                let bytes = live.as_ref().map_or(0, LiveKey::value_len);
                let too_large = OperationError::ResultTooLarge { limit: MAX_TRANSACTION_RESULT_BYTES };
                self.room = self.room.checked_sub(bytes).ok_or(failed(too_large))?;
                let got = match live {
                    Some(live) => Some(Got { revision: live.revision, value: live.bytes(applying)? }),
                    None => None,
                };
                OperationResult::Got(got)
            }
            Write::Scan { keyspace, ref scan } => {
                check_key(applying, keyspace, scan.prefix)?;
                let page = transaction_scan::page(applying, overlay, keyspace, scan, &mut self.room)?;
                OperationResult::Scanned(page.map_err(failed)?)
            }
        };
        self.results.push(result);
        Ok(())
    }

    /// Tries out a put that may end, and remembers when; `None`: it has ended already.
    fn set_until(
        &mut self,
        applying: &Applying<'_>,
        overlay: &mut Overlay<'a>,
        number: u32,
        (keyspace, key): (KeyspaceId, &'a [u8]),
        value: LiveValue<'a>,
        expiry: Option<Expiry>,
    ) -> Result<(), Refused> {
        self.set(applying, overlay, keyspace, key, expiry.map(|expiry| (value, expiry)))?;
        self.ends.insert(number as usize, expiry);
        Ok(())
    }

    /// Looks after counts and history for a key whose time is up with this.
    fn end(
        &mut self,
        applying: &Applying<'_>,
        overlay: &Overlay<'_>,
        keyspace: KeyspaceId,
        key: &[u8],
    ) -> Result<(), Refused> {
        if applying.counts_exactly(keyspace) {
            self.counted.push((keyspace, count_change(applying, overlay, keyspace, key, None)?));
        }
        self.superseded.extend(applying.superseded(overlay, keyspace, key, self.revision, Ending::Expired)?);
        Ok(())
    }

    /// Tries out what a write will leave.
    fn set(
        &mut self,
        applying: &Applying<'_>,
        overlay: &mut Overlay<'a>,
        keyspace: KeyspaceId,
        key: &'a [u8],
        value: Option<(LiveValue<'a>, Expiry)>,
    ) -> Result<(), Refused> {
        let live = value.map(|(value, expiry)| LiveKey { revision: self.revision, value, expiry });
        if applying.counts_exactly(keyspace) {
            let after = live.as_ref().map(LiveKey::value_len);
            self.counted.push((keyspace, count_change(applying, overlay, keyspace, key, after)?));
        }
        let ending = if live.is_some() { Ending::Overwritten } else { Ending::Deleted };
        self.superseded.extend(applying.superseded(overlay, keyspace, key, self.revision, ending)?);
        overlay.set(keyspace, key, live);
        self.writes = true;
        Ok(())
    }

    /// What makes nothing of a keyspace's counts, as the transaction's operations so far left them.
    fn emptying_of(&self, applying: &Applying<'_>, keyspace: KeyspaceId) -> CountChange {
        let mut counts = applying.counts_of(keyspace);
        let own = self.counted.iter().filter(|(counted, _)| *counted == keyspace);
        own.for_each(|(_, change)| counts.change(*change));
        CountChange::of_emptying(counts)
    }

    fn delete_prefix(
        &mut self,
        applying: &Applying<'_>,
        overlay: &mut Overlay<'a>,
        keyspace: KeyspaceId,
        prefix: &'a [u8],
    ) -> Result<OperationResult, Refused> {
        if self.emptied.len() >= MAX_TRANSACTION_PREFIX_DELETES {
            let limit = MAX_TRANSACTION_PREFIX_DELETES;
            return Err(Refused::Outcome(Outcome::TooMany { what: "deletes by prefix in a transaction", limit }));
        }
        let mut emptying = plan_emptying(applying, overlay, keyspace, prefix)?;
        let written = overlay.written_under(keyspace, prefix);
        let counts = applying.counts_exactly(keyspace);
        let keys = match &mut emptying {
            Emptying::Later => {
                let others = self.emptied.iter().filter(|(how, _)| matches!(how, Emptying::Later)).count();
                if !applying.has_room_for_clear(keyspace, prefix, others) {
                    let what = "deleted prefixes wait to be swept";
                    return Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_PENDING_CLEARS }));
                }
                overlay.clear(keyspace, prefix);
                None
            }
            Emptying::Now(rows) => {
                let sight = applying.sight(keyspace);
                let shown = rows
                    .iter()
                    .filter(|row| !overlay.is_cleared(keyspace, &row.key) && sight.shows(&row.key, row.revision));
                let keys = shown.count() + written.len();
                for row in rows {
                    if counts {
                        let is_counted = applying.counts_row(overlay, keyspace, row.revision);
                        self.counted.push((keyspace, row.count_change(is_counted)));
                    }
                    let superseded =
                        applying.superseded(overlay, keyspace, &row.key, self.revision, Ending::Deleted)?;
                    row.is_kept = superseded.is_some();
                    self.superseded.extend(superseded);
                    overlay.set(keyspace, row.key.clone(), None);
                }
                Some(keys as u64)
            }
        };
        let leaves_nothing = counts && prefix.is_empty() && matches!(emptying, Emptying::Later);
        if leaves_nothing {
            self.counted.push((keyspace, self.emptying_of(applying, keyspace)));
        }
        for key in &written {
            if leaves_nothing {
                let held = overlay.get(keyspace, key).and_then(|live| live.as_ref()?.collection());
                self.counted.push((keyspace, CountChange { trash: held, ..CountChange::default() }));
            } else if counts {
                self.counted.push((keyspace, count_change(applying, overlay, keyspace, key, None)?));
            }
            self.superseded.extend(applying.superseded(overlay, keyspace, key, self.revision, Ending::Deleted)?);
            overlay.set(keyspace, key.clone(), None);
        }
        self.emptied.push_back((emptying, written));
        self.writes = true;
        Ok(OperationResult::PrefixDeleted { keys })
    }
}

fn check_holds_bytes(live: Option<&LiveKey<'_>>) -> Result<(), OperationError> {
    match live.and_then(LiveKey::collection) {
        Some(_) => Err(OperationError::HoldsCollection),
        None => Ok(()),
    }
}

/// What a counter will be.
fn sum(
    applying: &Applying<'_>,
    live: Option<&LiveKey<'_>>,
    delta: i64,
) -> Result<Result<i64, OperationError>, Refused> {
    /// The longest is -2^63.
    const MAX_DIGITS: usize = 20;
    let value = match live {
        None => Some(0),
        Some(live) if live.value_len() > MAX_DIGITS => None,
        Some(live) => number(&live.bytes(applying)?),
    };
    let Some(value) = value else { return Ok(Err(OperationError::NotANumber)) };
    Ok(value.checked_add(delta).ok_or(OperationError::Overflow { value, delta }))
}

/// A counter's value: as it would be written, so without a plus sign, leading zeros or spaces.
fn number(bytes: &[u8]) -> Option<i64> {
    let number: i64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (number.to_string().as_bytes() == bytes).then_some(number)
}

/// Checks an append, and says which offset its first record will get.
fn next_offset(applying: &mut Applying<'_>, append: &Write<'_>) -> Result<thalweg_types::Offset, Refused> {
    let Write::Append { stream, count, producer, .. } = *append else { unreachable!("an append") };
    if producer.is_some() {
        return Err(Malformed { at: 0, expected: "commit, for a producer's append" }.into());
    }
    check_append(applying, append)?;
    let next = applying.applier.pending.next_offsets[&stream];
    Ok(thalweg_types::Offset(next.0 - u64::from(count)))
}

/// Does a planned operation.
fn perform(
    applying: &mut Applying<'_>,
    operation: &Write<'_>,
    plan: &mut Plan<'_>,
    number: usize,
    at: LogPosition,
) -> Result<(), MachineError> {
    let revision = plan.revision;
    if let Some(expiry) = plan.ends.remove(&number) {
        return match *operation {
            Write::Put { keyspace, key, value, value_at } | Write::PutUntil { keyspace, key, value, value_at, .. } => {
                let at = Some(commit::within(at, value_at));
                store_put(applying, (keyspace, key), value, revision, expiry, at)
            }
            Write::Add { keyspace, key, .. } => {
                let OperationResult::Added { value } = plan.results[number] else { unreachable!("planned as an add") };
                store_put(applying, (keyspace, key), value.to_string().as_bytes(), revision, expiry, None)
            }
            _ => unreachable!("only puts and adds end"),
        };
    }
    match *operation {
        Write::Put { keyspace, key, value, value_at } => {
            commit::put(applying, keyspace, key, value, revision, commit::within(at, value_at));
        }
        Write::Delete { keyspace, key } => commit::delete(applying, keyspace, key),
        Write::Append { stream, count, batch, batch_at, .. } => {
            commit::append(applying, stream, count, batch, commit::within(at, batch_at));
        }
        Write::DeletePrefix { keyspace, prefix } => {
            let (emptying, written) = plan.emptied.pop_front().expect("planned");
            applying.empty(keyspace, prefix, &emptying, &written, revision);
        }
        Write::Touch { keyspace, key, .. } => {
            if let Some(touched) = plan.touched.remove(&number) {
                store_touched(applying, keyspace, key, &touched)?;
            }
        }
        Write::Add { .. } | Write::PutUntil { .. } => unreachable!("planned with an end"),
        Write::Settle(settle) => {
            let (records, _) = consumers::perform_settle(applying, &settle).expect("planned: the group exists");
            plan.results[number] = OperationResult::Settled { records };
        }
        Write::Get { .. } | Write::Scan { .. } => {}
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_they_would_be_written() {
        for (text, value) in
            [("0", 0), ("-1", -1), ("9223372036854775807", i64::MAX), ("-9223372036854775808", i64::MIN)]
        {
            assert_eq!(number(text.as_bytes()), Some(value));
        }
        for bad in ["", "+1", "01", "-0", " 1", "1 ", "1.0", "9223372036854775808", "one"] {
            assert_eq!(number(bad.as_bytes()), None, "{bad:?}");
        }
        assert_eq!(number(b"\xff"), None);
    }
}
