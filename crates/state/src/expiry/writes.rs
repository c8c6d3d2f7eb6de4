//! Writes that give a key an end: puts with a deadline or a lease, and touches.
//!
//! Owns how such a write becomes rows: the value with its expiry, the row by time, the attachment; and the
//! removal of those of the value before. Does not own plain puts, which read nothing and so leave such rows
//! stale, nor the removal of what has ended (see `expire`).

use thalweg_types::{KeyspaceId, LeaseId, LogPosition, Revision, SpaceTime, command::Deadline};

use crate::{
    blobs::blob_at,
    changes::commits::KeyChange,
    error::MachineError,
    expiry::{
        leases::deadline_after,
        rows::{Expiry, deadline_prefix},
    },
    history::rows::Ending,
    keys,
    keyspaces::{
        live::live_head,
        values::{StoredRef, decode_value, encode_value, head_in_form},
        writes::note_replaced,
    },
    machine::applying::Applying,
    segments::liveness::BlobKind,
};

/// A put that ends.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PutUntil<'a> {
    pub(crate) keyspace: KeyspaceId,
    pub(crate) key: &'a [u8],
    pub(crate) value: &'a [u8],
    pub(crate) deadline: Deadline,
    /// Checked to live.
    pub(crate) lease: Option<LeaseId>,
}

/// Puts a value whose bytes lie at `at`. What would end at once is a delete.
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

/// Puts a value that may end, or removes the key if that has ended already, and looks after counts and history. `at` is
/// where the value's bytes lie in the log; what lies nowhere there is short.
pub(crate) fn put_ending(
    applying: &mut Applying<'_>,
    (keyspace, key): (KeyspaceId, &[u8]),
    value: &[u8],
    revision: Revision,
    expiry: Option<Expiry>,
    at: Option<LogPosition>,
) -> Result<(), MachineError> {
    let ending = if expiry.is_some() { Ending::Overwritten } else { Ending::Expired };
    note_replaced(applying, keyspace, key, expiry.map(|_| value.len()), revision, ending)?;
    store_put(applying, (keyspace, key), value, revision, expiry, at)
}

/// When a value that is put will end; `None`: it has ended already.
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

/// As [`put_ending`], without looking after counts and history.
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

/// Gives a key another deadline. Value, revision and lease stay; a key that is not there stays away.
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

/// What a touch changes.
#[derive(Debug)]
pub(crate) struct Touched {
    /// The key's revision, which stays.
    revision: Revision,
    /// When it ends with it; `None`: it has ended already.
    expiry: Option<Expiry>,
}

/// What a touch will change. `None`: there is no such key; within: nothing.
pub(crate) fn plan_touch(
    applying: &Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
) -> Result<Option<Option<Touched>>, MachineError> {
    let Some(live) = live_head(applying, keyspace, key)? else { return Ok(None) };
    if deadline == Deadline::Keep {
        return Ok(Some(None));
    }
    let expiry = Expiry { deadline: resolve(applying, keyspace, deadline), ..live.expiry };
    let expiry = (!has_passed(applying, &expiry)).then_some(expiry);
    Ok(Some(Some(Touched { revision: live.revision, expiry })))
}

/// Does it.
pub(crate) fn store_touched(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    touched: &Touched,
    revision: Revision,
) -> Result<(), MachineError> {
    let Some(expiry) = &touched.expiry else {
        note_replaced(applying, keyspace, key, None, revision, Ending::Expired)?;
        applying.changed(&KeyChange::Expire { keyspace, key }, None);
        return remove(applying, keyspace, key);
    };
    replace_rows(applying, keyspace, key, expiry)?;
    rewrite_value(applying, keyspace, key, touched.revision, expiry, None)
}

/// The deadline that is meant, in space time.
fn resolve(applying: &Applying<'_>, keyspace: KeyspaceId, deadline: Deadline) -> Option<SpaceTime> {
    let time = applying.applied.time;
    match deadline {
        Deadline::Default | Deadline::Keep => applying.default_ttl(keyspace).map(|ttl| deadline_after(time, ttl)),
        Deadline::Never => None,
        Deadline::After(ttl) => Some(deadline_after(time, ttl)),
        // Later ones are no deadlines.
        Deadline::At(at) => Some(at.min(SpaceTime(u64::MAX - 1))),
    }
}

/// Before a commit's first change: if one of its writes names a time that has passed, what it changes is not
/// what its bytes say.
pub(crate) fn tell_if_passed(applying: &mut Applying<'_>, deadline: Deadline) {
    if matches!(deadline, Deadline::At(at) if at <= applying.applied.time) {
        applying.tell_changes();
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

/// Writes the rows of what a value will end by, and removes those of the value before.
fn replace_rows(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    expiry: &Expiry,
) -> Result<(), MachineError> {
    let before = keys::with_data_key(keyspace, key, |full| {
        let mut before = Ok(Expiry::NEVER);
        applying.look(full, &mut |row| before = decode_value(full, row).map(|found| found.expiry))?;
        before
    })?;
    replace_ends(applying, keyspace, key, &before, expiry)
}

/// Writes the rows of what a key will end by, and removes those by which it ended before.
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

/// Writes the row of a value, in the form that its place and its end ask for.
pub(crate) fn write_value(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
    expiry: &Expiry,
    value: StoredRef<'_>,
) {
    applying.applier.staged.put(&[&keys::data_prefix(keyspace), key], &[&encode_value(revision, expiry, value)]);
}

/// As [`write_value`], for a value that the key has already; callers that have it at hand give it. If the same entry wrote
/// the value's row before, in the same form, the row's beginning is overwritten: a value that is touched again and again
/// must not fill the batch with its copies. The form says whether the value ends, on every node alike, so every node has
/// as many changes.
pub(crate) fn rewrite_value(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    revision: Revision,
    expiry: &Expiry,
    value: Option<StoredRef<'_>>,
) -> Result<(), MachineError> {
    let full = [&keys::data_prefix(keyspace), key].concat();
    let overwritten = applying.applier.staged.put_beginning(&full, |form| head_in_form(form, revision, expiry));
    if let Some(overwritten) = overwritten {
        applying.note_overwritten(overwritten);
    } else if let Some(value) = value {
        write_value(applying, keyspace, key, revision, expiry, value);
    } else if let Some(stored) = applying.row_of(keyspace, key)? {
        write_value(applying, keyspace, key, revision, expiry, stored.value.as_ref());
    }
    Ok(())
}
