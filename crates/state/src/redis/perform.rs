//! Writing of rows for the changes that Redis commands make to keys.

use thalweg_types::{
    LogPosition, Revision,
    command::offset_within,
    limits::{MAX_KEY_BYTES, MAX_VALUE_BYTES},
    reply::Reply,
    steps::{OPERATION, READ, WRITE, read_bytes},
};

use crate::{
    blobs::{blob_at, within},
    changes::key_change::KeyChange,
    error::MachineError,
    expiry::{
        rows::Expiry,
        writes::{replace_ends, rewrite_value, write_value},
    },
    keys::data_prefix,
    keyspaces::{
        counts::CountedValue,
        live::{change_of_row, replaced},
        values::{FORM_INLINE, Stored, StoredRef, encode_value, value_head},
        writes::put,
    },
    redis::store::{NewRow, RedisStore, WatchEffect},
    segments::liveness::BlobKind,
};

/// Maximum steps of work of a `SET` without options, in addition to those for the bytes of its value.
const SET_STEPS: u64 = OPERATION + 8 * READ + 8 * WRITE;

impl<'a> RedisStore<'_, '_, 'a> {
    /// Runs a Redis `SET` without options, the most frequent command. It cannot be rejected, so it needs no savepoint.
    /// Returns `None` for every other command, for a `SET` that would be rejected, and in a keyspace with history.
    #[inline]
    pub(crate) fn set(&mut self, args: &[&'a [u8]]) -> Result<Option<Reply>, MachineError> {
        let &[name, key, value] = args else { return Ok(None) };
        let is_plain =
            name.eq_ignore_ascii_case(b"set") && key.len() <= MAX_KEY_BYTES && value.len() <= MAX_VALUE_BYTES;
        // Near the end of the budget the command may have to be rolled back.
        let is_near_the_end = self.applying.applier.staged.meter().left() < SET_STEPS + read_bytes(value.len());
        if !is_plain || self.keeps || is_near_the_end {
            return Ok(None);
        }
        let Some(offset) = offset_within(self.batch.bytes, value) else { return Ok(None) };
        let (keyspace, at) = (self.keyspace, within(self.at, offset));
        self.applying.charge(OPERATION + read_bytes(value.len()));
        let before = replaced(self.applying, keyspace, key)?;
        self.use_revision();
        if let Some(before) = before.filter(|before| before.expiry != Expiry::NEVER) {
            replace_ends(self.applying, keyspace, key, &before.expiry, &Expiry::NEVER)?;
        }
        put(self.applying, keyspace, key, value, self.revision, at);
        if self.counts {
            let change = change_of_row(key, before.as_ref(), Some(CountedValue::bytes(value.len())));
            self.applying.count(keyspace, change);
        }
        Ok(Some(Reply::Ok))
    }

    /// Writes the row of a key, updates the index rows of its deadline and lease, and reports the change to watches.
    /// `before` is the expiry of the previous row.
    pub(crate) fn put_row(
        &mut self,
        key: &[u8],
        before: Expiry,
        value: &NewRow<'_>,
        revision: Revision,
        expiry: Expiry,
        shows: WatchEffect,
    ) -> Result<(), MachineError> {
        self.writes = true;
        replace_ends(self.applying, self.keyspace, key, &before, &expiry)?;
        match value {
            NewRow::Argument(bytes, at) => self.put_argument(key, bytes, *at, revision, &expiry, shows),
            NewRow::Collection(collection) => {
                self.show(key, b"", None, shows);
                let row = encode_value(revision, &expiry, StoredRef::Collection(collection.into()));
                self.put_in_place(key, &row);
            }
            NewRow::Bytes(bytes) => {
                self.show(key, bytes, None, shows);
                write_value(self.applying, self.keyspace, key, revision, &expiry, StoredRef::Inline(bytes));
            }
        }
        Ok(())
    }

    /// Writes the row of a key again with another deadline.
    pub(crate) fn put_deadline(
        &mut self,
        key: &[u8],
        before: &Stored,
        revision: Revision,
        expiry: &Expiry,
    ) -> Result<(), MachineError> {
        self.writes = true;
        replace_ends(self.applying, self.keyspace, key, &before.expiry, expiry)?;
        rewrite_value(self.applying, self.keyspace, key, revision, expiry, Some(before.value.as_ref()))
    }

    fn put_argument(
        &mut self,
        key: &[u8],
        bytes: &[u8],
        at: LogPosition,
        revision: Revision,
        expiry: &Expiry,
        shows: WatchEffect,
    ) {
        self.show(key, bytes, Some(at), shows);
        if bytes.len() > self.applying.machine.options.inline_value_bytes {
            let blob = blob_at(at, bytes);
            self.applying.raise(BlobKind::Value, &blob);
            write_value(self.applying, self.keyspace, key, revision, expiry, StoredRef::Blob(blob));
        } else if *expiry == Expiry::NEVER {
            let head = value_head(FORM_INLINE, revision);
            self.applying.applier.staged.put(&[&data_prefix(self.keyspace), key], &[&head, bytes]);
        } else {
            write_value(self.applying, self.keyspace, key, revision, expiry, StoredRef::Inline(bytes));
        }
    }

    /// Removes the row of a key. `before` is the deadline and lease in that row, whose index rows are removed too.
    pub(crate) fn delete_row(
        &mut self,
        key: &[u8],
        before: Expiry,
        change: &KeyChange<'_>,
    ) -> Result<(), MachineError> {
        self.writes = true;
        self.applying.changed(change, None);
        replace_ends(self.applying, self.keyspace, key, &before, &Expiry::NEVER)?;
        self.applying.applier.staged.delete(&[&data_prefix(self.keyspace), key]);
        Ok(())
    }

    fn show(&mut self, key: &[u8], value: &[u8], at: Option<LogPosition>, shows: WatchEffect) {
        let keyspace = self.keyspace;
        match shows {
            WatchEffect::Value => self.applying.changed(&KeyChange::Put { keyspace, key, value }, at),
            WatchEffect::Deletion => self.applying.changed(&KeyChange::Delete { keyspace, key }, None),
            WatchEffect::Nothing => {}
        }
    }

    /// Writes the row of a key that refers to a Redis collection. If the current entry has already put that row, the
    /// row is overwritten in the batch, because commands that add to one stream change its row repeatedly.
    fn put_in_place(&mut self, key: &[u8], row: &[u8]) {
        let full = [&data_prefix(self.keyspace), key].concat();
        match self.applying.applier.staged.put_in_place(&full, row) {
            Some(overwritten) => self.applying.note_overwritten(overwritten),
            None => self.applying.applier.staged.put(&[&full], &[row]),
        }
    }
}
