//! Reads of keys and of parts (fields, entries) by the Redis commands of an entry: the backend's rows merged with the
//! entry's changes so far.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, KeyInfo, KeyValue, Kind, Read, StoreError, Value,
    store::{Visit, VisitKeys},
};
use thalweg_store::{Direction, View};
use thalweg_types::{limits::MAX_REDIS_READ_BYTES, steps::READ};

use crate::{
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::{
        row_head::{LARGE_ROW_BYTES, RowHead},
        values::{Decoded, StoredValue, decode_value},
    },
    redis::{
        errors::{failed, refused},
        part_rows::{name_of, parts_range},
        store::{RedisStore, TOO_MUCH_READ},
        view::deadline_of,
    },
};

impl RedisStore<'_, '_, '_> {
    /// Returns a key's properties and its stored value, if the key exists. The value of a string is left out if it is
    /// longer than `max_bytes`.
    fn short(&self, key: &[u8], max_bytes: usize) -> Result<Option<(KeyInfo, Option<StoredValue>)>, StoreError> {
        self.check_steps()?;
        let found = keys::with_data_key(self.keyspace, key, |full| {
            let known = self.applying.known_row_head(full);
            if let Some(head) = known.filter(|head| head.kind == Kind::String && head.held.value_bytes > max_bytes) {
                self.applying.charge(READ);
                return Ok(Some((head, None)));
            }
            let mut found = Ok(None);
            self.applying.look(full, &mut |row| {
                found = decode_value(full, row).and_then(|Decoded { revision, value, expiry }| {
                    if row.len() >= LARGE_ROW_BYTES {
                        self.applying.note_large_row(full, row)?;
                    }
                    let is_short = value.collection().is_some() || value.value_len() <= max_bytes;
                    Ok(Some((RowHead::of(revision, value, expiry), is_short.then(|| value.to_owned()))))
                });
            })?;
            found
        });
        let Some((head, value)) = found.map_err(failed)? else { return Ok(None) };
        let is_shown = self.shows(key, head.revision, &head.expiry).map_err(failed)?;
        Ok(is_shown.then(|| (head.info(), value)))
    }
}

impl Read for RedisStore<'_, '_, '_> {
    fn now(&self) -> u64 {
        self.now
    }

    fn seed(&self) -> u64 {
        let asked = self.seeds.get() + 1;
        self.seeds.set(asked);
        crate::redis::view::mix(asked)
    }

    fn has_collections(&self) -> bool {
        self.counts && !self.keeps
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.live_head(key)?.map(|head| head.info()))
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        let Some(live) = self.live(key)? else { return Ok(None) };
        let (deadline, version) = (live.expiry.deadline.map(deadline_of), live.revision.0);
        let value = match live.value {
            StoredValue::Collection(collection) => Value::Collection(collection),
            _ => Value::String(self.applying.bytes_of(&live).map_err(failed)?),
        };
        Ok(Some(KeyValue { value, deadline, version }))
    }

    fn get_collection(&self, key: &[u8]) -> Result<Option<Option<KeyValue>>, StoreError> {
        let Some((KeyInfo { deadline, version, len, .. }, value)) = self.short(key, 0)? else { return Ok(None) };
        // A string's bytes are charged although they are not read, because the prices belong to version 1 of the state
        // machine.
        self.note_read(len)?;
        let Some(StoredValue::Collection(collection)) = value else { return Ok(Some(None)) };
        Ok(Some(Some(KeyValue { value: Value::Collection(collection), deadline, version })))
    }

    fn get_short(&self, key: &[u8], max_bytes: usize) -> Result<Option<Option<KeyValue>>, StoreError> {
        let Some((info, value)) = self.short(key, max_bytes)? else { return Ok(None) };
        let KeyInfo { deadline, version, len, .. } = info;
        let Some(value) = value else { return Ok(Some(None)) };
        self.note_read(len)?;
        let value = match value {
            StoredValue::Collection(collection) => Value::Collection(collection),
            StoredValue::Inline(bytes) => Value::String(bytes),
            StoredValue::Blob(blob) => Value::String(self.applying.read_blob(&blob).map_err(failed)?),
        };
        Ok(Some(Some(KeyValue { value, deadline, version })))
    }

    fn len(&self) -> Result<u64, StoreError> {
        if self.counts {
            return Ok(self.applying.counts_of(self.keyspace).keys);
        }
        let mut keys = 0;
        self.keys(None, &mut |_, _| {
            keys += 1;
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    fn work(&self, steps: u64) -> Result<(), StoreError> {
        self.search(steps)
    }

    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        let lower = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = KeyRange::of_keyspace(self.keyspace, b"", lower, Bound::Unbounded);
        if range.is_empty() {
            return Ok(());
        }
        let mut failure = None;
        let scanned = self.applying.view().scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
            let key = full.get(DATA_PREFIX_LEN..).unwrap_or_default();
            let mut show = || {
                let Decoded { revision, value, expiry } = decode_value(full, row)?;
                if !self.shows(key, revision, &expiry)? {
                    return Ok(ControlFlow::Continue(()));
                }
                Ok(visit(key, &RowHead::of(revision, value, expiry).info()))
            };
            show().unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        });
        scanned.map_err(|error| failed(error.into()))?;
        failure.map_or(Ok(()), |error| Err(failed(error)))?;
        self.check_steps()
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        self.check_steps()?;
        let key = [&keys::part_prefix(self.keyspace, id), name].concat();
        let found = self.applying.get(&key).map_err(failed)?;
        self.note_read(found.as_ref().map_or(0, Bytes::len))?;
        Ok(found)
    }

    fn has_part(&self, id: CollectionId, name: &[u8]) -> Result<bool, StoreError> {
        self.check_steps()?;
        let key = [&keys::part_prefix(self.keyspace, id), name].concat();
        self.applying.has_row(&key).map_err(failed)
    }

    fn parts(
        &self,
        id: CollectionId,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        descending: bool,
        visit: &mut Visit<'_>,
    ) -> Result<(), StoreError> {
        let range = parts_range(self.keyspace, id, (lower, upper));
        if range.is_empty() {
            return Ok(());
        }
        let direction = if descending { Direction::Reverse } else { Direction::Forward };
        let mut read_bytes = 0;
        let scanned = self.applying.view().scan(range.lower(), range.upper(), direction, &mut |full, value| {
            let name = name_of(full);
            if self.read_bytes.get() + read_bytes + name.len() + value.len() > MAX_REDIS_READ_BYTES {
                read_bytes = usize::MAX;
                return ControlFlow::Break(());
            }
            read_bytes += name.len() + value.len();
            visit(name, value)
        });
        scanned.map_err(|error| failed(error.into()))?;
        self.check_steps()?;
        if read_bytes == usize::MAX {
            return Err(refused(TOO_MUCH_READ));
        }
        self.read_bytes.set(self.read_bytes.get() + read_bytes);
        Ok(())
    }
}
