//! Reads of keys and of parts (fields, entries) by the Redis commands of an entry: the backend's rows merged with the
//! entry's changes so far.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, KeyInfo, KeyValue, Read, StoreError, Value,
    store::{Visit, VisitKeys},
};
use thalweg_store::{Direction, View};
use thalweg_types::limits::MAX_REDIS_READ_BYTES;

use crate::{
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::values::{Decoded, Stored, StoredValue, decode_value},
    redis::{
        errors::{failed, refused},
        part_rows::{name_of, parts_range},
        store::{RedisStore, TOO_MUCH_READ},
    },
};

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
        Ok(self.live(key)?.as_ref().map(Self::key_info))
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        let Some(live) = self.live(key)? else { return Ok(None) };
        let KeyInfo { deadline, version, len, .. } = Self::key_info(&live);
        self.note_read(len)?;
        let value = match live.value {
            StoredValue::Collection(collection) => Value::Collection(collection),
            _ => Value::String(self.applying.bytes_of(&live).map_err(failed)?),
        };
        Ok(Some(KeyValue { value, deadline, version }))
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
                Ok(visit(key, &Self::key_info(&Stored { revision, value: value.to_owned(), expiry })))
            };
            show().unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            })
        });
        scanned.map_err(|error| failed(error.into()))?;
        failure.map_or(Ok(()), |error| Err(failed(error)))
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let key = [&keys::part_prefix(self.keyspace, id), name].concat();
        let found = self.applying.get(&key).map_err(failed)?;
        self.note_read(found.as_ref().map_or(0, Bytes::len))?;
        Ok(found)
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
        if read_bytes == usize::MAX {
            return Err(refused(TOO_MUCH_READ));
        }
        self.note_read(read_bytes)
    }
}
