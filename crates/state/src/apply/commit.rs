//! Commits: commands whose conditions and writes are all checked first; then all writes are applied.
//!
//! Owns: these checks, counting the steps of work for the writes, and the check of one condition, which transactions
//! use too. Invariant: nothing is rejected after the first write, so no commit is rolled back.

use thalweg_types::{
    KeyspaceId, LogPosition, Revision,
    codec::Malformed,
    command::{AppendedAt, BlindPut, Commit, Condition, Deadline, Expect, Outcome, Write},
    limits::{MAX_CONDITION_ROWS, MAX_KEY_BYTES},
    steps::{OPERATION, READ, WRITE, read_bytes, written_bytes},
};

use crate::{
    apply::transaction_scan::{Unchanged, check_unchanged},
    blobs::within,
    error::MachineError,
    expiry::{
        leases::check_attachable,
        writes::{PutUntil, put_until, record_if_expired, touch},
    },
    groups::commands as consumers,
    history::keep_versions::{added_price, removed_price},
    keyspaces::{
        catalog::KeyspaceKind,
        live::{live_head, live_key, replaced},
        writes::{check_key, delete_counted, put, put_counted},
    },
    machine::applying::Applying,
    refused::Refused,
    streams::{
        append::{append, check_append},
        producing as producers,
    },
};

/// Runs a commit. Its bytes begin at position `at` in the log.
#[inline]
pub(crate) fn apply(applying: &mut Applying<'_>, commit: &Commit<'_>, at: LogPosition) -> Result<Outcome, Refused> {
    match apply_once(applying, commit, at) {
        Err(Refused::Outcome(refusal)) => {
            applying.applier.staged.meter().end_budget();
            // A rejected commit may be a producer's repetition of one that already succeeded.
            producers::repeated(applying, commit)?.ok_or(Refused::Outcome(refusal))
        }
        applied => applied,
    }
}

#[inline]
fn apply_once(applying: &mut Applying<'_>, commit: &Commit<'_>, at: LogPosition) -> Result<Outcome, Refused> {
    let mut rows = MAX_CONDITION_ROWS;
    for (number, condition) in commit.conditions().enumerate() {
        check_condition(applying, number as u32, &condition?, &mut rows)?;
    }
    applying.check_budget()?;
    let mut writes = commit.writes()?;
    let mut appends = Vec::new();
    if commit.write_count() == 1 {
        // By far the most frequent kind of commit is decoded only once.
        let write = writes.next().expect("one write")?;
        begin_checks(applying);
        check_write(applying, commit, &write)?;
        // One write and the removal of the value that it replaces cost far less than a budget.
        applying.applier.staged.meter().end_budget();
        let revision = applying.use_revision();
        perform(applying, &write, revision, at, &mut appends)?;
        return Ok(Outcome::Committed { revision, appends });
    }
    check_writes(applying, commit, writes.clone())?;
    // All costs of the writes are charged by now, because no write can be rejected any more.
    applying.applier.staged.meter().end_budget();
    let paid = applying.steps_used();
    let revision = applying.use_revision();
    for write in writes {
        let write = write.expect("decoded before, while it was checked");
        perform(applying, &write, revision, at, &mut appends)?;
    }
    applying.applier.staged.meter().set_back(paid);
    Ok(Outcome::Committed { revision, appends })
}

/// Runs a command if it is a single put without conditions to a keyspace without settings; returns `None` otherwise.
/// The effect equals that of [`apply`]. This path is faster, because it skips checks that such a put does not need.
#[inline]
pub(crate) fn apply_blind_put(applying: &mut Applying<'_>, bytes: &[u8], at: LogPosition) -> Option<Revision> {
    let BlindPut { keyspace, key, value, value_at } = BlindPut::decode(bytes)?;
    if !is_plain(applying, keyspace) || key.len() > MAX_KEY_BYTES {
        return None;
    }
    let revision = applying.use_revision();
    put(applying, keyspace, key, value, revision, within(at, value_at));
    Some(revision)
}

/// Applies one write of a commit, which was checked before. `at` is the log position at which the commit begins.
#[inline]
fn perform(
    applying: &mut Applying<'_>,
    write: &Write<'_>,
    revision: Revision,
    at: LogPosition,
    appends: &mut Vec<AppendedAt>,
) -> Result<(), MachineError> {
    match *write {
        Write::Put { keyspace, key, value, value_at } => {
            let at = within(at, value_at);
            if is_plain(applying, keyspace) {
                put(applying, keyspace, key, value, revision, at);
                return Ok(());
            }
            if applying.has_default_ttl(keyspace) {
                let put = PutUntil { keyspace, key, value, deadline: Deadline::Default, lease: None };
                return put_until(applying, &put, revision, at);
            }
            put_counted(applying, keyspace, key, value, revision, at)?;
        }
        Write::PutUntil { keyspace, key, value, value_at, deadline, lease } => {
            let put = PutUntil { keyspace, key, value, deadline, lease };
            put_until(applying, &put, revision, within(at, value_at))?;
        }
        Write::Touch { keyspace, key, deadline } => touch(applying, keyspace, key, deadline, revision)?,
        Write::Delete { keyspace, key } => delete_counted(applying, keyspace, key, revision)?,
        Write::Append { stream, count, batch, batch_at, producer, .. } => {
            let first = append(applying, stream, count, batch, within(at, batch_at));
            let appended = AppendedAt { stream, first, count };
            if let Some(stamp) = producer {
                producers::store_result(applying, stream, stamp, revision, &appended)?;
            }
            appends.push(appended);
        }
        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {
            unreachable!("rejected by the check")
        }
        Write::Settle(settle) => {
            consumers::perform_settle(applying, &settle);
        }
    }
    Ok(())
}

/// Checks one condition of a command. `rows` is the number of rows that the command's conditions on ranges may still
/// examine; the check reduces it.
pub(crate) fn check_condition(
    applying: &Applying<'_>,
    number: u32,
    condition: &Condition<'_>,
    rows: &mut usize,
) -> Result<(), Refused> {
    let Condition { keyspace, key, expect } = *condition;
    applying.charge(OPERATION);
    applying.check_budget()?;
    if expect == Expect::Any {
        return Ok(());
    }
    check_key(applying, keyspace, key)?;
    if let Expect::Unchanged(range) = expect {
        let before = applying.steps_used();
        let unchanged = check_unchanged(applying, keyspace, key, &range, rows)?;
        applying.note_searched_since(before);
        return match unchanged {
            Unchanged::Holds => Ok(()),
            Unchanged::Changed(actual) => Err(Refused::Outcome(Outcome::ConditionFailed { condition: number, actual })),
            Unchanged::TooLong => {
                let what = "rows in the ranges that a commit depends on";
                Err(Refused::Outcome(Outcome::TooMany { what, limit: MAX_CONDITION_ROWS }))
            }
        };
    }
    let (actual, holds) = if let Expect::Value(value) = expect {
        // The stored value is read only if it has the same length.
        applying.charge(2 * read_bytes(value.len()));
        if applying.has_other_length(keyspace, key, value.len()) {
            (live_head(applying, keyspace, key)?.map(|live| live.revision), false)
        } else {
            match live_key(applying, keyspace, key)? {
                Some(live) => (Some(live.revision), applying.value_is(&live, value)?),
                None => (None, false),
            }
        }
    } else {
        let actual = live_head(applying, keyspace, key)?.map(|live| live.revision);
        (actual, is_expected(expect, actual))
    };
    if holds { Ok(()) } else { Err(Refused::Outcome(Outcome::ConditionFailed { condition: number, actual })) }
}

/// Returns true if the condition `expect` holds for a key whose revision is `actual`; `None` means that the key does
/// not exist. Conditions on a value count as true, because the caller checks them.
pub(crate) fn is_expected(expect: Expect<'_>, actual: Option<Revision>) -> bool {
    match expect {
        Expect::Absent => actual.is_none(),
        Expect::Present => actual.is_some(),
        Expect::Revision(revision) => actual == Some(revision),
        Expect::Before(revision) => actual.unwrap_or(Revision::ZERO) < revision,
        Expect::After(revision) => actual.is_some_and(|actual| actual > revision),
        Expect::Value(_) | Expect::Unchanged(_) | Expect::Any => true,
    }
}

/// Clears the tables in which the checks of the previous commit have noted its appends, acks and nacks.
#[inline]
pub(crate) fn begin_checks(applying: &mut Applying<'_>) {
    applying.applier.pending.next_offsets.clear();
    applying.applier.pending.claims.clear();
    applying.applier.pending.producers.clear();
}

fn check_writes<'a>(
    applying: &mut Applying<'_>,
    commit: &Commit<'_>,
    writes: impl Iterator<Item = Result<Write<'a>, Malformed>>,
) -> Result<(), Refused> {
    begin_checks(applying);
    for write in writes {
        let write = write?;
        if let Some(price) = blind_price(applying, &write) {
            applying.charge(price);
        } else {
            check_write(applying, commit, &write)?;
            charge_write(applying, &write)?;
        }
        applying.check_budget()?;
    }
    Ok(())
}

/// Returns the steps of work that a put to a keyspace without settings costs, as [`charge_write`] charges it; `None`
/// for any other write. Such a put needs no check and reads nothing. Most writes of large batches are such puts.
#[inline]
fn blind_price(applying: &Applying<'_>, write: &Write<'_>) -> Option<u64> {
    match *write {
        Write::Put { keyspace, key, value, .. } if key.len() <= MAX_KEY_BYTES && is_plain(applying, keyspace) => {
            Some(OPERATION + read_bytes(value.len()) + WRITE)
        }
        _ => None,
    }
}

/// Returns true if the keyspace exists and has no settings: a put then only writes the row of its key.
#[inline]
fn is_plain(applying: &Applying<'_>, keyspace: KeyspaceId) -> bool {
    applying.applier.kinds.of(keyspace) == KeyspaceKind::Plain
}

/// Charges a commit for the work of one of its writes, before any write is made, because a commit is not rolled back.
#[inline(never)]
fn charge_write(applying: &Applying<'_>, write: &Write<'_>) -> Result<(), MachineError> {
    applying.charge(OPERATION);
    match *write {
        Write::Put { keyspace, key, value, .. } => {
            applying.charge(read_bytes(value.len()));
            let ends = applying.has_default_ttl(keyspace);
            let price = if ends { 4 * READ + 5 * WRITE } else { WRITE };
            charge_key(applying, keyspace, key, price + removed_versions(applying, keyspace))
        }
        Write::Delete { keyspace, key } => charge_key(applying, keyspace, key, WRITE),
        // The charge covers the row of the key, the rows of its old and new deadline, and its attachments to leases.
        Write::PutUntil { keyspace, key, value, .. } => {
            applying.charge(read_bytes(value.len()));
            charge_key(applying, keyspace, key, 4 * READ + 8 * WRITE + removed_versions(applying, keyspace))
        }
        Write::Touch { keyspace, key, .. } => {
            let value_bytes = replaced(applying, keyspace, key)?.map_or(0, |before| before.held.value_bytes);
            applying.charge(read_bytes(value_bytes) + written_bytes(value_bytes));
            charge_key(applying, keyspace, key, 4 * READ + 8 * WRITE + removed_versions(applying, keyspace))
        }
        Write::Append { batch, .. } => {
            applying.charge(4 * WRITE + read_bytes(batch.len()));
            Ok(())
        }
        Write::Settle(ref settle) => {
            applying.charge(WRITE + settle.steps());
            Ok(())
        }
        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => Ok(()),
    }
}

/// Charges a write of a key: `price` steps of work, more if the keyspace has exact counts or keeps the replaced value.
fn charge_key(applying: &Applying<'_>, keyspace: KeyspaceId, key: &[u8], price: u64) -> Result<(), MachineError> {
    applying.charge(price);
    if applying.applier.kinds.of(keyspace) != KeyspaceKind::Configured {
        return Ok(());
    }
    // Pays for exact counts, which are the most frequent settings.
    applying.charge(READ);
    if applying.keeps_history(keyspace) {
        let value_bytes = replaced(applying, keyspace, key)?.map_or(0, |before| before.held.value_bytes);
        applying.charge(added_price(value_bytes));
    }
    Ok(())
}

/// Returns the maximum steps of work that a put spends on removing surplus versions (former values of its key); 0 in a
/// keyspace without history.
fn removed_versions(applying: &Applying<'_>, keyspace: KeyspaceId) -> u64 {
    if applying.keeps_history(keyspace) { removed_price(applying.history_of(keyspace)) } else { 0 }
}

/// Returns true if a write reads: its result depends on the previous value of its key.
fn is_reading(write: &Write<'_>) -> bool {
    match write {
        Write::Touch { .. } => true,
        Write::PutUntil { deadline, .. } => deadline.reads(),
        _ => false,
    }
}

#[inline]
fn check_write(applying: &mut Applying<'_>, commit: &Commit<'_>, write: &Write<'_>) -> Result<(), Refused> {
    match write {
        Write::Put { keyspace, key, .. } | Write::Delete { keyspace, key } => check_key(applying, *keyspace, key),
        Write::PutUntil { keyspace, key, lease, deadline, .. } => {
            check_key(applying, *keyspace, key)?;
            check_declares_reads(commit, write)?;
            record_if_expired(applying, *deadline);
            lease.map_or(Ok(()), |id| check_attachable(applying, id, *keyspace, key))
        }
        Write::Touch { keyspace, key, deadline } => {
            check_key(applying, *keyspace, key)?;
            record_if_expired(applying, *deadline);
            check_declares_reads(commit, write)
        }
        append @ Write::Append { .. } => check_append(applying, append),
        Write::Add { .. } | Write::DeletePrefix { .. } | Write::Get { .. } | Write::Scan { .. } => {
            Err(Malformed { at: 0, expected: "transaction, for an operation that reads" }.into())
        }
        Write::Settle(settle) => consumers::check_settle(applying, settle),
    }
}

/// Rejects a write that reads if its commit has no condition. A commit that reads must declare this by a condition,
/// which can be the one that always holds.
fn check_declares_reads(commit: &Commit<'_>, write: &Write<'_>) -> Result<(), Refused> {
    if is_reading(write) && commit.condition_count() == 0 {
        return Err(Malformed { at: 0, expected: "a condition in a commit that reads" }.into());
    }
    Ok(())
}
