//! Writes that give a key a deadline or attach it to a lease: puts and touches.
//!
//! Owns: the rows of such a write (the value with its expiry, the index row of the deadline, the attachment to the
//! lease), and the removal of the previous value's index rows. Does not own: plain puts, which read nothing and so
//! leave such rows stale, or the removal of ended keys (see `expire`).

use thalweg_types::{KeyspaceId, LeaseId, LogPosition, Revision, SpaceTime, command::Deadline, steps::READ};

use crate::{
    blobs::blob_at,
    changes::key_change::KeyChange,
    error::MachineError,
    expiry::{
        leases::deadline_after,
        rows::{Expiry, deadline_prefix},
    },
    history::rows::VersionEnd,
    keys,
    keyspaces::{
        live::live_head,
        values::{StoredRef, encode_head, encode_value},
        writes::note_replaced,
    },
    machine::applying::Applying,
    segments::liveness::BlobKind,
};

/// A put of a value with a deadline or a lease.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutUntil<'a> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) deadline: Deadline,
    /// Lease to which the key is attached; the caller has checked that it has not ended.
    pub(crate) lease: Option<LeaseId>,
}

/// Puts a value with a deadline or lease, whose bytes are at position `at` in the log. A value whose deadline has
/// already passed is deleted instead.
pub(crate) fn put_until(
    applying: &mut Applying<'_>,
    put: &PutUntil<'_>,
    revision: Revision,
    at: LogPosition,
) -> Result<(), MachineError> {
    let PutUntil { keyspace, key, value, deadline, lease } = *put;
    let expiry = end_of_put(applying, keyspace, key, deadline, lease)?;
    put_ending(applying, (keyspace, key), value, revision, expiry, Some(at))
}

/// Puts a value with an expiry and updates exact counts and history. If `expiry` is `None`, because the deadline has
/// already passed, removes the key instead. `at` is the position of the value's bytes in the log; `None` is permitted
/// only for values short enough to be stored inline.
pub(crate) fn put_ending(
    applying: &mut Applying<'_>,
    (keyspace, key): (KeyspaceId, &[u8]),
    value: &[u8],
    revision: Revision,
    expiry: Option<Expiry>,
    at: Option<LogPosition>,
) -> Result<(), MachineError> {
    let ending = if expiry.is_some() { VersionEnd::Overwritten } else { VersionEnd::Expired };
    note_replaced(applying, keyspace, key, expiry.map(|_| value.len()), revision, ending)?;
    store_put(applying, (keyspace, key), value, revision, expiry, at)
}

/// Computes the deadline and lease of a value that is put; returns `None` if the deadline has already passed.
pub(crate) fn end_of_put(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
    lease: Option<LeaseId>,
) -> Result<Option<Expiry>, MachineError> {
    let live = if deadline.reads() { live_head(applying, keyspace, key)? } else { None };
    let expiry = match live {
        Some(live) => Expiry { lease: lease.or(live.expiry.lease), ..live.expiry },
        None => Expiry { deadline: resolve(applying, keyspace, deadline), lease },
    };
    Ok((!has_passed(applying, &expiry)).then_some(expiry))
}

/// Writes the rows of a put with an expiry, like [`put_ending`] but without updating exact counts and history.
fn store_put(
    applying: &mut Applying<'_>,
    (keyspace, key): (KeyspaceId, &[u8]),
    value: &[u8],
    revision: Revision,
    expiry: Option<Expiry>,
    at: Option<LogPosition>,
) -> Result<(), MachineError> {
    let Some(expiry) = expiry else {
        applying.changed(&KeyChange::Delete { keyspace, key }, None);
        return remove(applying, keyspace, key);
    };
    applying.changed(&KeyChange::Put { keyspace, key, value }, at);
    replace_rows(applying, keyspace, key, &expiry)?;
    let stored = match at {
        Some(at) if value.len() > applying.machine.options.inline_value_bytes => {
            let blob = blob_at(at, value);
            applying.raise(BlobKind::Value, &blob);
            StoredRef::Blob(blob)
        }
        _ => StoredRef::Inline(value),
    };
    write_value(applying, keyspace, key, revision, &expiry, stored);
    Ok(())
}

/// Changes the deadline of a key. The key's value, revision and lease do not change. A missing key is not created.
pub(crate) fn touch(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
    revision: Revision,
) -> Result<(), MachineError> {
    match plan_touch(applying, keyspace, key, deadline)? {
        Some(Some(touched)) => store_touched(applying, keyspace, key, &touched, revision),
        _ => Ok(()),
    }
}

/// Effect of a touch (a change of a key's deadline): a new deadline, or the end of the key.
#[derive(Debug)]
pub(crate) struct TouchEffect {
    /// Revision of the key, which does not change.
    revision: Revision,
    /// New deadline and lease of the key; `None` if the new deadline has already passed, so that the key ends.
    expiry: Option<Expiry>,
}

/// Computes the effect of a touch (a change of a key's deadline). The outer `None` means that the key does not exist,
/// the inner `None` that nothing changes.
pub(crate) fn plan_touch(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
) -> Result<Option<Option<TouchEffect>>, MachineError> {
    let Some(live) = live_head(applying, keyspace, key)? else { return Ok(None) };
    if deadline == Deadline::Keep {
        return Ok(Some(None));
    }
    let expiry = Expiry { deadline: resolve(applying, keyspace, deadline), ..live.expiry };
    let expiry = (!has_passed(applying, &expiry)).then_some(expiry);
    Ok(Some(Some(TouchEffect { revision: live.revision, expiry })))
}

/// Applies a touch that [`plan_touch`] has computed: rewrites or removes the key.
pub(crate) fn store_touched(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    touched: &TouchEffect,
    revision: Revision,
) -> Result<(), MachineError> {
    let Some(expiry) = &touched.expiry else {
        note_replaced(applying, keyspace, key, None, revision, VersionEnd::Expired)?;
        applying.changed(&KeyChange::Expire { keyspace, key }, None);
        return remove(applying, keyspace, key);
    };
    replace_rows(applying, keyspace, key, expiry)?;
    rewrite_value(applying, keyspace, key, touched.revision, expiry, None)
}

/// Converts a command's deadline, which can be relative or a default, to an absolute time; `None` for no deadline.
fn resolve(applying: &Applying<'_>, keyspace: KeyspaceId, deadline: Deadline) -> Option<SpaceTime> {
    let time = applying.applied.time;
    match deadline {
        Deadline::Default | Deadline::Keep => applying.default_ttl(keyspace).map(|ttl| deadline_after(time, ttl)),
        Deadline::Never => None,
        Deadline::After(ttl) => Some(deadline_after(time, ttl)),
        // Larger numbers represent no deadline.
        Deadline::At(at) => Some(at.min(SpaceTime(u64::MAX - 1))),
    }
}

/// Makes the log entry's verdict row store the commit's changes if a write's deadline has already passed: the commit's
/// bytes do not show that such a put deletes its key. Called before the commit's first change.
pub(crate) fn record_if_expired(applying: &mut Applying<'_>, deadline: Deadline) {
    if matches!(deadline, Deadline::At(at) if at <= applying.applied.time) {
        applying.record_changes();
    }
}

fn has_passed(applying: &Applying<'_>, expiry: &Expiry) -> bool {
    expiry.deadline.is_some_and(|deadline| deadline <= applying.applied.time)
}

fn remove(applying: &mut Applying<'_>, keyspace: KeyspaceId, key: &[u8]) -> Result<(), MachineError> {
    replace_rows(applying, keyspace, key, &Expiry::NEVER)?;
    applying.applier.staged.delete(&[&keys::data_prefix(keyspace), key]);
    Ok(())
}

/// Writes the index rows of a key's new deadline and lease, and deletes those of its replaced value, which it looks up.
fn replace_rows(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    expiry: &Expiry,
) -> Result<(), MachineError> {
    let before = keys::with_data_key(keyspace, key, |full| applying.row_head(full))?;
    let before = before.map_or(Expiry::NEVER, |before| before.expiry);
    replace_ends(applying, keyspace, key, &before, expiry)
}

/// Writes the index rows of a key's new deadline and lease (`after`), and deletes those of its old ones (`before`).
pub(crate) fn replace_ends(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    before: &Expiry,
    after: &Expiry,
) -> Result<(), MachineError> {
    if before == after {
        return Ok(());
    }
    if before.deadline != after.deadline {
        if let Some(old) = before.deadline {
            applying.applier.staged.delete(&[&deadline_prefix(old, keyspace), key]);
        }
        if let Some(new) = after.deadline {
            applying.applier.staged.put(&[&deadline_prefix(new, keyspace), key], &[]);
            applying.machine.note_deadline();
        }
    }
    if before.lease != after.lease {
        if let Some(old) = before.lease {
            applying.detach(old, keyspace, key)?;
        }
        if let Some(new) = after.lease {
            applying.attach(new, keyspace, key)?;
        }
    }
    Ok(())
}

/// Writes the row of a key's value with a revision, a deadline and a lease.
pub(crate) fn write_value(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
    expiry: &Expiry,
    value: StoredRef<'_>,
) {
    let prefix = keys::data_prefix(keyspace);
    // The bytes of a long value are not copied an additional time.
    let (head, bytes) = match value {
        StoredRef::Inline(bytes) => (encode_value(revision, expiry, StoredRef::Inline(b"")), bytes),
        value => (encode_value(revision, expiry, value), &b""[..]),
    };
    applying.applier.staged.put(&[&prefix, key], &[&head, bytes]);
}

/// Writes a key's row again with another revision or expiry but the same value. A caller that has the value at hand
/// passes it; otherwise it is read.
///
/// If the current entry has already written this row in the same form, only the first bytes of the row (revision and
/// expiry) are overwritten in the batch, so that repeated touches do not fill the batch with copies of the value. The
/// form of a row depends on its expiry in the same way on every node, so all nodes make the same number of changes.
pub(crate) fn rewrite_value(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
    expiry: &Expiry,
    value: Option<StoredRef<'_>>,
) -> Result<(), MachineError> {
    let full = [&keys::data_prefix(keyspace), key].concat();
    let overwritten = applying.applier.staged.put_beginning(&full, |form| encode_head(form, revision, expiry));
    if let Some(overwritten) = overwritten {
        // Charges the same price as the code below, so that the price does not depend on which entry wrote the row
        // before.
        applying.charge(if value.is_none() { READ } else { 0 });
        applying.note_overwritten(overwritten);
    } else if let Some(value) = value {
        write_value(applying, keyspace, key, revision, expiry, value);
    } else if let Some(stored) = applying.row_of(keyspace, key)? {
        write_value(applying, keyspace, key, revision, expiry, stored.value.as_ref());
    }
    Ok(())
}
