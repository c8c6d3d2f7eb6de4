//! Keys and parts as the commands of an entry see them: the backend's rows merged with what the entry made of them so far.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, Found, Look, Read, StoreError, Value,
    store::{Visit, VisitKeys},
};

use crate::{
    backend::Direction,
    keys::{self, DATA_PREFIX_LEN, KeyRange},
    keyspaces::{Decoded, StoredValue, decode_value},
    machine::{
        MachineError,
        entry::Applier,
        live::{LiveKey, LiveValue},
        parts::{name_of, parts_range},
        redis::{
            failed, refused,
            store::{RedisStore, TOO_MUCH_READ},
        },
    },
};

impl Read for RedisStore<'_, '_, '_> {
    fn now(&self) -> u64 {
        self.now
    }

    fn seed(&self) -> u64 {
        let asked = self.seeds.get() + 1;
        self.seeds.set(asked);
        crate::redis::mix(self.applying.applied.index.0 ^ asked.rotate_left(40))
    }

    fn has_collections(&self) -> bool {
        self.counts && !self.keeps
    }

    fn look(&self, key: &[u8]) -> Result<Option<Look>, StoreError> {
        Ok(self.live(key)?.as_ref().map(Self::look_of))
    }

    fn get(&self, key: &[u8]) -> Result<Option<Found>, StoreError> {
        let Some(live) = self.live(key)? else { return Ok(None) };
        let Look { deadline, version, len, .. } = Self::look_of(&live);
        self.note_read(len)?;
        let value = match live.value {
            LiveValue::Stored(StoredValue::Collection(collection)) => Value::Collection(collection),
            _ => Value::String(live.bytes(self.applying).map_err(failed)?),
        };
        Ok(Some(Found { value, deadline, version }))
    }

    fn len(&self) -> Result<u64, StoreError> {
        if self.counts {
            let mut counts = self.applying.counts_of(self.keyspace);
            self.counted.iter().for_each(|change| counts.change(*change));
            return Ok(counts.keys);
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
        let own = self.overlay.range(self.keyspace, after.unwrap_or_default(), None);
        let mut own = own.filter(|(key, _)| Some(*key) != after).peekable();
        let (mut ended, mut failure) = (false, None);
        let mut show = |key: &[u8], live: &LiveKey<'_>| -> Result<ControlFlow<()>, MachineError> {
            Ok(if self.shows(key, live)? { visit(key, &Self::look_of(live)) } else { ControlFlow::Continue(()) })
        };
        let view = self.applying.machine.backend.view();
        let scanned = view.scan(range.lower(), range.upper(), Direction::Forward, &mut |full, row| {
            let key = full.get(DATA_PREFIX_LEN..).unwrap_or_default();
            let mut step = || {
                while let Some((own, live)) = own.next_if(|(own, _)| *own < key) {
                    if live.map_or(Ok(ControlFlow::Continue(())), |live| show(own, live))?.is_break() {
                        return Ok(ControlFlow::Break(()));
                    }
                }
                if let Some((own, live)) = own.next_if(|(own, _)| *own == key) {
                    return live.map_or(Ok(ControlFlow::Continue(())), |live| show(own, live));
                }
                let Decoded { revision, value, expiry } = decode_value(full, row)?;
                show(key, &LiveKey { revision, value: LiveValue::Stored(value.to_owned()), expiry })
            };
            let flow = step().unwrap_or_else(|error| {
                failure = Some(error);
                ControlFlow::Break(())
            });
            ended |= flow.is_break();
            flow
        });
        scanned.map_err(|error| failed(error.into()))?;
        if let Some(failure) = failure {
            return Err(failed(failure));
        }
        while !ended && let Some((key, live)) = own.next() {
            if let Some(live) = live {
                ended = show(key, live).map_err(failed)?.is_break();
            }
        }
        Ok(())
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        let Applier { batch, pending, .. } = &*self.applying.applier;
        let found = match pending.parts.get(batch, id, name) {
            Some(written) => written.map(Bytes::copy_from_slice),
            None => {
                let key = [&keys::part_prefix(self.keyspace, id), name].concat();
                self.applying.machine.backend.get(&key).map_err(|error| failed(error.into()))?
            }
        };
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
        let Applier { batch, pending, .. } = &*self.applying.applier;
        let own = pending.parts.range(batch, id, (lower, upper));
        let own: Box<dyn Iterator<Item = _>> = if descending { Box::new(own.rev()) } else { Box::new(own) };
        let mut own = own.peekable();
        let comes_before = |own: &[u8], name: &[u8]| if descending { own > name } else { own < name };
        let (mut ended, mut read_bytes) = (false, 0);
        let mut show = |name: &[u8], value: Option<&[u8]>| match value {
            Some(value) if self.read_bytes.get() + read_bytes + name.len() + value.len() <= self.max_read_bytes => {
                read_bytes += name.len() + value.len();
                visit(name, value)
            }
            Some(_) => {
                read_bytes = usize::MAX;
                ControlFlow::Break(())
            }
            None => ControlFlow::Continue(()),
        };
        let view = self.applying.machine.backend.view();
        let scanned = view.scan(range.lower(), range.upper(), direction, &mut |full, row| {
            let name = name_of(full);
            let mut step = || {
                while let Some((own, value)) = own.next_if(|(own, _)| comes_before(own, name)) {
                    show(own, value)?;
                }
                match own.next_if(|(own, _)| *own == name) {
                    Some((own, value)) => show(own, value),
                    None => show(name, Some(row)),
                }
            };
            let flow = step();
            ended |= flow.is_break();
            flow
        });
        scanned.map_err(|error| failed(error.into()))?;
        while !ended && let Some((name, value)) = own.next() {
            ended = show(name, value).is_break();
        }
        if read_bytes == usize::MAX {
            return Err(refused(TOO_MUCH_READ));
        }
        self.note_read(read_bytes)
    }
}
