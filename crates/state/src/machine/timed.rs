//! Writes that give a key an end: puts with a deadline or a lease, and touches.
//!
//! Owns how such a write becomes rows: the value with its expiry, the row by time, the attachment; and the
//! removal of those of the value before. Does not own plain puts, which read nothing and so leave such rows
//! stale, nor the removal of what has ended (see `expire`).

use thalweg_types::{KeyspaceId, LeaseId, LogPosition, Revision, SpaceTime, command::Deadline};

use crate::{
    expiry::{Expiry, deadline_prefix},
    history::KeyChange,
    keys,
    keyspaces::{StoredRef, decode_value, encode_value},
    liveness::BlobKind,
    machine::{
        MachineError,
        commit::blob_at,
        entry::Applying,
        leases::deadline_after,
        live::{LiveKey, LiveValue, count_change, live_key},
        overlay::Overlay,
    },
    versions::Ending,
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
pub(crate) fn put_until<'a>(
    applying: &mut Applying<'_>,
    put: &PutUntil<'a>,
    revision: Revision,
    at: LogPosition,
    overlay: &mut Overlay<'a>,
) -> Result<(), MachineError> {
    let PutUntil { keyspace, key, value, deadline, lease } = *put;
    let expiry = end_of_put(applying, overlay, keyspace, key, deadline, lease)?;
    let counts = applying.counts_exactly(keyspace);
    if counts {
        let change = count_change(applying, overlay, keyspace, key, expiry.map(|_| value.len()))?;
        applying.count(keyspace, change);
    }
    let keeps = applying.keeps_history(keyspace);
    if keeps {
        let ending = if expiry.is_some() { Ending::Overwritten } else { Ending::Expired };
        applying.supersede(overlay, keyspace, key, revision, ending)?;
    }
    store_put(applying, (keyspace, key), value, revision, expiry, Some(at))?;
    if counts || keeps || overlay.is_wanted() {
        let value = LiveValue::Written(value, at);
        overlay.set(keyspace, key, expiry.map(|expiry| LiveKey { revision, value, expiry }));
    }
    Ok(())
}

/// When a value that is put will end; `None`: it has ended already.
pub(crate) fn end_of_put(
    applying: &Applying<'_>,
    overlay: &Overlay<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
    lease: Option<LeaseId>,
) -> Result<Option<Expiry>, MachineError> {
    let live = if deadline.reads() { live_key(applying, overlay, keyspace, key)? } else { None };
    let expiry = match live {
        Some(live) => Expiry { lease: lease.or(live.expiry.lease), ..live.expiry },
        None => Expiry { deadline: resolve(applying, keyspace, deadline), lease },
    };
    Ok((!has_passed(applying, &expiry)).then_some(expiry))
}

/// Stores a value that may end, or removes the key if it has ended already. `at` is where the value's bytes lie
/// in the log; what lies nowhere there is short. Looks after rows, not after counts and the overlay.
pub(crate) fn store_put(
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
pub(crate) fn touch<'a>(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &'a [u8],
    deadline: Deadline,
    revision: Revision,
    overlay: &mut Overlay<'a>,
) -> Result<(), MachineError> {
    let Some(Some(touched)) = plan_touch(applying, overlay, keyspace, key, deadline)? else { return Ok(()) };
    let (counts, keeps) = (applying.counts_exactly(keyspace), applying.keeps_history(keyspace));
    if touched.ends_now() {
        if counts {
            let change = count_change(applying, overlay, keyspace, key, None)?;
            applying.count(keyspace, change);
        }
        applying.supersede(overlay, keyspace, key, revision, Ending::Expired)?;
    }
    if keeps || overlay.is_wanted() || (counts && touched.ends_now()) {
        overlay.set(keyspace, key, touched.after());
    }
    store_touched(applying, keyspace, key, &touched)
}

/// What a touch changes.
#[derive(Debug)]
pub(crate) struct Touched<'a> {
    /// The key before it.
    live: LiveKey<'a>,
    /// When it ends with it; `None`: it has ended already.
    expiry: Option<Expiry>,
}

impl<'a> Touched<'a> {
    /// The key after it.
    pub(crate) fn after(&self) -> Option<LiveKey<'a>> {
        self.expiry.map(|expiry| LiveKey { expiry, ..self.live.clone() })
    }

    /// Whether the key is gone with it.
    pub(crate) fn ends_now(&self) -> bool {
        self.expiry.is_none()
    }
}

/// What a touch will change. `None`: there is no such key; within: nothing.
pub(crate) fn plan_touch<'a>(
    applying: &Applying<'_>,
    overlay: &Overlay<'a>,
    keyspace: KeyspaceId,
    key: &[u8],
    deadline: Deadline,
) -> Result<Option<Option<Touched<'a>>>, MachineError> {
    let Some(live) = live_key(applying, overlay, keyspace, key)? else { return Ok(None) };
    if deadline == Deadline::Keep {
        return Ok(Some(None));
    }
    let expiry = Expiry { deadline: resolve(applying, keyspace, deadline), ..live.expiry };
    let expiry = (!has_passed(applying, &expiry)).then_some(expiry);
    Ok(Some(Some(Touched { live, expiry })))
}

/// Does it. Looks after rows, not after counts and the overlay.
pub(crate) fn store_touched(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    touched: &Touched<'_>,
) -> Result<(), MachineError> {
    let Touched { live, expiry } = touched;
    let Some(expiry) = expiry else {
        applying.changed(&KeyChange::Expire { keyspace, key }, None);
        return remove(applying, keyspace, key);
    };
    replace_rows(applying, keyspace, key, expiry)?;
    let number;
    let stored = match &live.value {
        LiveValue::Number(value) => {
            number = value.to_string();
            StoredRef::Inline(number.as_bytes())
        }
        LiveValue::Stored(value) => value.as_ref(),
        LiveValue::Written(bytes, _) if bytes.len() <= applying.machine.options.inline_value_bytes => {
            StoredRef::Inline(bytes)
        }
        LiveValue::Written(bytes, at) => StoredRef::Blob(blob_at(*at, bytes)),
    };
    write_value(applying, keyspace, key, live.revision, expiry, stored);
    Ok(())
}

/// The deadline that is meant, in space time.
fn resolve(applying: &Applying<'_>, keyspace: KeyspaceId, deadline: Deadline) -> Option<SpaceTime> {
    let time = applying.applied.time;
    match deadline {
        Deadline::Default | Deadline::Keep => applying.default_ttl(keyspace).map(|ttl| deadline_after(time, ttl)),
        Deadline::Never => None,
        Deadline::After(ttl) => Some(deadline_after(time, ttl)),
        Deadline::At(at) => Some(at.min(deadline_after(at, std::time::Duration::ZERO))),
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
    applying.applier.batch.delete(&[&keys::data_prefix(keyspace), key]);
    Ok(())
}

/// Writes the rows of what a value will end by, and removes those of the value that the backend holds. It may
/// be behind: an earlier command of the entry may have written the key. Then rows of that are left stale, or
/// one is removed that is stale already; none is removed that this value needs, because they are written after.
fn replace_rows(
    applying: &mut Applying<'_>,
    keyspace: KeyspaceId,
    key: &[u8],
    expiry: &Expiry,
) -> Result<(), MachineError> {
    let before = keys::with_data_key(keyspace, key, |full| {
        let Some(value) = applying.machine.backend.get(full)? else { return Ok(Expiry::NEVER) };
        Ok::<_, MachineError>(decode_value(full, &value)?.expiry)
    })?;
    if let Some(old) = before.deadline.filter(|_| before.deadline != expiry.deadline) {
        applying.applier.batch.delete(&[&deadline_prefix(old, keyspace), key]);
    }
    if let Some(old) = before.lease.filter(|_| before.lease != expiry.lease) {
        applying.detach(old, keyspace, key)?;
    }
    if let Some(deadline) = expiry.deadline {
        applying.applier.batch.put(&[&deadline_prefix(deadline, keyspace), key], &[]);
        applying.machine.note_deadline();
    }
    match expiry.lease {
        Some(lease) => applying.attach(lease, keyspace, key),
        None => Ok(()),
    }
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
    applying.applier.batch.put(&[&keys::data_prefix(keyspace), key], &[&encode_value(revision, expiry, value)]);
}
