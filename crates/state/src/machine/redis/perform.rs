//! What commands changed becomes rows.

use thalweg_types::{
    KeyspaceId, LogPosition,
    command::offset_within,
    limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES},
    reply::Reply,
};

use crate::{
    counts::{CountChange, Held},
    expiry::{Expiry, deadline_prefix},
    history::KeyChange,
    keys::data_prefix,
    keyspaces::{FORM_INLINE, StoredRef, StoredValue, encode_value, value_head},
    liveness::BlobKind,
    machine::{
        MachineError,
        clearing::Emptying,
        commit::{self, blob_at, within},
        entry::Applying,
        live::{LiveKey, LiveValue, replaced},
        redis::store::{Effect, RedisStore, Shows},
        timed::write_value,
    },
};

impl<'a> RedisStore<'_, '_, 'a> {
    /// What the command did stays.
    pub(super) fn keep(&mut self) -> Result<(), MachineError> {
        self.overlay.keep();
        self.applying.applier.pending.parts.keep();
        if !self.effects.is_empty() {
            self.use_revision();
            for superseded in self.superseded.drain(..) {
                self.applying.keep_version(superseded)?;
            }
            let mut effects = std::mem::take(&mut self.effects);
            for effect in effects.drain(..) {
                self.perform(effect)?;
            }
            self.effects = effects;
            for change in self.counted.drain(..) {
                self.applying.count(self.keyspace, change);
            }
        }
        Ok(())
    }

    /// `SET` without options, from beginning to end: what most commands are. Nothing of it can be refused, so nothing is
    /// kept to be taken back. `None`: this is no such command, or one that is refused.
    #[inline]
    pub(super) fn set(&mut self, args: &[&'a [u8]]) -> Result<Option<Reply>, MachineError> {
        let &[name, key, value] = args else { return Ok(None) };
        let is_plain =
            name.eq_ignore_ascii_case(b"set") && key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES;
        if !is_plain || self.keeps {
            return Ok(None);
        }
        let Some(offset) = offset_within(self.batch.bytes, value) else { return Ok(None) };
        let (keyspace, at) = (self.keyspace, within(self.at, offset));
        let before = replaced(self.applying, self.overlay, keyspace, key)?;
        self.use_revision();
        self.last_row = None;
        if let Some(before) = before.filter(|before| before.expiry != Expiry::NEVER) {
            replace_ends(self.applying, keyspace, key, &before.expiry, &Expiry::NEVER)?;
        }
        commit::put(self.applying, keyspace, key, value, self.revision, at);
        if self.counts {
            let counted = before.filter(|before| before.is_counted).map(|before| before.held);
            let change = CountChange::of(key, counted, Some(Held::bytes(value.len())));
            let trash = before.and_then(|before| before.held.collection);
            self.applying.count(keyspace, CountChange { trash, ..change });
        }
        let value = LiveValue::Written(value, at);
        self.overlay.set(keyspace, key, Some(LiveKey { revision: self.revision, value, expiry: Expiry::NEVER }));
        Ok(Some(Reply::Ok))
    }

    fn use_revision(&mut self) {
        if !self.wrote {
            self.wrote = true;
            let revision = self.applying.use_revision();
            debug_assert_eq!(revision, self.revision);
            self.applying.tell_changes();
        }
    }

    fn perform(&mut self, effect: Effect<'a>) -> Result<(), MachineError> {
        let keyspace = self.keyspace;
        let last_row = self.last_row.take();
        match effect {
            Effect::Put { key, live, before, shows } => {
                replace_ends(self.applying, keyspace, key, &before, &live.expiry)?;
                match &live.value {
                    LiveValue::Stored(value @ StoredValue::Collection(_)) if shows == Shows::Nothing => {
                        let row = encode_value(live.revision, &live.expiry, value.as_ref());
                        self.put_collection(key, &row, last_row);
                    }
                    _ => put(self.applying, keyspace, key, &live, shows),
                }
            }
            Effect::Delete { key, before, has_ended } => {
                let change =
                    if has_ended { KeyChange::Expire { keyspace, key } } else { KeyChange::Delete { keyspace, key } };
                self.applying.changed(&change, None);
                replace_ends(self.applying, keyspace, key, &before, &Expiry::NEVER)?;
                self.applying.applier.batch.delete(&[&data_prefix(keyspace), key]);
            }
            Effect::Clear { mut emptying, written } => {
                if let Emptying::Now(rows) = &mut emptying {
                    rows.iter_mut().for_each(|row| row.is_kept = self.keeps);
                }
                self.applying.empty(keyspace, b"", &emptying, &written, self.revision);
            }
        }
        Ok(())
    }

    /// Writes the row of a key that holds a collection: in the place of the one before, if that was the last one written.
    /// Commands that add to one stream change its row again and again.
    fn put_collection(&mut self, key: &'a [u8], row: &[u8], last_row: Option<(&'a [u8], u32)>) {
        let batch = &mut self.applying.applier.batch;
        self.last_row = last_row.filter(|(last, change)| *last == key && batch.put_again(*change, row));
        if self.last_row.is_none() {
            batch.put(&[&data_prefix(self.keyspace), key], &[row]);
            self.last_row = Some((key, batch.len() as u32 - 1));
        }
    }
}

fn put(applying: &mut Applying<'_>, keyspace: KeyspaceId, key: &[u8], live: &LiveKey<'_>, shows: Shows) {
    let (number, at): (_, Option<LogPosition>);
    let value = match &live.value {
        LiveValue::Written(bytes, written_at) => {
            at = Some(*written_at);
            if bytes.len() > applying.machine.options.inline_value_bytes {
                if shows == Shows::Value {
                    applying.changed(&KeyChange::Put { keyspace, key, value: bytes }, at);
                }
                let blob = blob_at(*written_at, bytes);
                applying.raise(BlobKind::Value, &blob);
                return write_value(applying, keyspace, key, live.revision, &live.expiry, StoredRef::Blob(blob));
            }
            StoredRef::Inline(bytes)
        }
        LiveValue::Stored(value) => {
            at = None;
            value.as_ref()
        }
        LiveValue::Number(value) => {
            at = None;
            number = value.to_string();
            StoredRef::Inline(number.as_bytes())
        }
    };
    match (shows, value) {
        (Shows::Value, StoredRef::Inline(value)) => applying.changed(&KeyChange::Put { keyspace, key, value }, at),
        (Shows::Gone, _) => applying.changed(&KeyChange::Delete { keyspace, key }, None),
        _ => {}
    }
    match value {
        StoredRef::Inline(bytes) if live.expiry == Expiry::NEVER => {
            let head = value_head(FORM_INLINE, live.revision);
            applying.applier.batch.put(&[&data_prefix(keyspace), key], &[&head, bytes]);
        }
        value => write_value(applying, keyspace, key, live.revision, &live.expiry, value),
    }
}

/// Writes the rows of what a key will end by, and removes those by which it ended before.
fn replace_ends(
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
            applying.applier.batch.delete(&[&deadline_prefix(old, keyspace), key]);
        }
        if let Some(new) = after.deadline {
            applying.applier.batch.put(&[&deadline_prefix(new, keyspace), key], &[]);
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
