//! Redis commands that only read, over a view of the state.
//!
//! Owns: [`RedisView`], and the conversion of deadlines between space time and Redis's milliseconds. Does not own:
//! the effect of commands (`thalweg-redis`), commands that write (`apply`), or the bytes of values that stayed in
//! the log; the caller supplies a function that reads them.

use std::{
    cell::Cell,
    fmt,
    ops::{Bound, ControlFlow},
};

use bytes::Bytes;
use thalweg_redis::{
    CollectionId, KeyInfo, KeyValue, Kind, Read, StoreError, Value,
    store::{Visit, VisitKeys},
};
use thalweg_store::Direction;
use thalweg_types::{
    BlobRef, KeyspaceId, Revision, SpaceTime,
    budget::{self, BudgetSpent},
    limits::{MAX_REDIS_READ_BYTES, MAX_REDIS_VIEW_COMPARISONS},
    reply::Reply,
    steps::{READ, ROW, SCAN, comparisons, read_bytes},
};

use crate::{
    keys::part_prefix,
    keyspaces::{
        counts::Counts,
        read_view::{Collections, ReadView, ScanRange},
        row_head::RowHead,
        values::{Stored, StoredValue},
    },
    redis::{
        errors::failed,
        part_rows::{name_of, parts_range},
    },
};

/// Converts a deadline in microseconds since 1970 to Redis's milliseconds, rounded up.
pub(crate) fn deadline_of(deadline: SpaceTime) -> u64 {
    deadline.0.div_ceil(1000)
}

/// Converts a deadline from Redis's milliseconds since 1970 to microseconds since 1970.
pub(crate) fn micros_of(deadline: u64) -> SpaceTime {
    // One below the number that represents no deadline.
    SpaceTime(deadline.saturating_mul(1000).min(u64::MAX - 1))
}

/// Mixes the bits of a number into a pseudo-random number. Callers pass a different number each time.
pub(crate) fn mix(number: u64) -> u64 {
    let mut mixed = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    mixed ^ (mixed >> 31)
}

/// Function that reads a value stored in the log, given the value's key and revision and the position that the row
/// contained.
pub type Resolve<'v> = dyn Fn(&[u8], Revision, BlobRef) -> Result<Bytes, StoreError> + 'v;

/// Function that requests the rows and values of keys from the disk.
pub type ReadAhead<'v> = dyn Fn(&[&[u8]]) + 'v;

/// The keys of one keyspace in a view of the state, for Redis commands that only read. The bytes read through one
/// `RedisView` are bounded; a read beyond the bound is rejected.
pub struct RedisView<'v> {
    snapshot: &'v ReadView,
    keyspace: KeyspaceId,
    /// True if the keyspace keeps exact counts of its keys.
    counts: bool,
    keeps: bool,
    resolve: &'v Resolve<'v>,
    read_ahead: Option<&'v ReadAhead<'v>>,
    /// Clock with the time that log entries get. Used only if no key has a deadline; else the view has its own time.
    clock: &'v dyn Fn() -> SpaceTime,
    read_bytes: Cell<usize>,
    /// Steps of work so far that read no data.
    steps: Cell<u64>,
    seed: Cell<u64>,
}

impl fmt::Debug for RedisView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RedisView").field("keyspace", &self.keyspace).finish_non_exhaustive()
    }
}

impl<'v> RedisView<'v> {
    /// Creates a view of a keyspace for Redis commands. The two flags are true if the keyspace keeps exact counts, and
    /// if it keeps a history. `clock` returns the time that a new log entry would get.
    #[must_use]
    pub fn new(
        snapshot: &'v ReadView,
        keyspace: KeyspaceId,
        (counts, keeps): (bool, bool),
        seed: u64,
        resolve: &'v Resolve<'v>,
        clock: &'v dyn Fn() -> SpaceTime,
    ) -> Self {
        let (read_bytes, steps, seed) = (Cell::new(0), Cell::new(0), Cell::new(seed));
        Self { snapshot, keyspace, counts, keeps, resolve, read_ahead: None, clock, read_bytes, steps, seed }
    }

    /// Sets the function that a command which reads several keys calls first.
    #[must_use]
    pub fn with_read_ahead(self, read_ahead: &'v ReadAhead<'v>) -> Self {
        Self { read_ahead: Some(read_ahead), ..self }
    }

    fn stored(&self, key: &[u8]) -> Result<Option<Stored>, StoreError> {
        charge(READ)?;
        self.snapshot.get(self.keyspace, key).map_err(failed)
    }

    fn head(&self, key: &[u8]) -> Result<Option<RowHead>, StoreError> {
        charge(READ)?;
        self.snapshot.head(self.keyspace, key).map_err(failed)
    }

    fn note_read(&self, bytes: usize) -> Result<(), StoreError> {
        let bytes = self.read_bytes.get().saturating_add(bytes);
        if bytes > MAX_REDIS_READ_BYTES {
            return Err(StoreError::Refused(Reply::error(
                "ERR the replies of these commands would be too large together: send fewer of them at a time",
            )));
        }
        self.read_bytes.set(bytes);
        Ok(())
    }
}

/// Charges work to the budget of the thread's read. Returns an error, which ends the command, if the budget is spent.
#[inline]
fn charge(steps: u64) -> Result<(), StoreError> {
    if budget::charge(steps).is_break() { Err(StoreError::Failed(Box::new(BudgetSpent::Steps))) } else { Ok(()) }
}

impl Read for RedisView<'_> {
    fn now(&self) -> u64 {
        let applied = self.snapshot.applied().time;
        let time = if self.snapshot.time() > applied { self.snapshot.time() } else { applied.max((self.clock)()) };
        time.0 / 1000
    }

    fn seed(&self) -> u64 {
        let seed = mix(self.seed.get());
        self.seed.set(seed);
        seed
    }

    fn has_collections(&self) -> bool {
        self.counts && !self.keeps
    }

    fn work(&self, steps: u64) -> Result<(), StoreError> {
        charge(steps)?;
        self.steps.set(self.steps.get().saturating_add(steps));
        if self.steps.get() > comparisons(MAX_REDIS_VIEW_COMPARISONS) {
            return Err(StoreError::Refused(Reply::error(
                "ERR too expensive: the commands would block others for too long; use a shorter pattern, or SCAN",
            )));
        }
        Ok(())
    }

    fn read_ahead(&self, keys: &[&[u8]]) {
        if let Some(read_ahead) = self.read_ahead {
            read_ahead(keys);
        }
    }

    fn look(&self, key: &[u8]) -> Result<Option<KeyInfo>, StoreError> {
        Ok(self.head(key)?.map(|head| head.info()))
    }

    fn get_short(&self, key: &[u8], max_bytes: usize) -> Result<Option<Option<KeyValue>>, StoreError> {
        match self.head(key)? {
            None => Ok(None),
            Some(head) if head.kind == Kind::String && head.held.value_bytes > max_bytes => Ok(Some(None)),
            Some(_) => Ok(self.get(key)?.map(Some)),
        }
    }

    fn get(&self, key: &[u8]) -> Result<Option<KeyValue>, StoreError> {
        let Some(Stored { revision, value, expiry }) = self.stored(key)? else { return Ok(None) };
        self.note_read(value.as_ref().value_len())?;
        let value = match value {
            StoredValue::Inline(bytes) => {
                charge(read_bytes(bytes.len()))?;
                Value::String(bytes)
            }
            StoredValue::Blob(blob) => Value::String((self.resolve)(key, revision, blob)?),
            StoredValue::Collection(collection) => Value::Collection(collection),
        };
        Ok(Some(KeyValue { value, deadline: expiry.deadline.map(deadline_of), version: revision.0 }))
    }

    fn get_collection(&self, key: &[u8]) -> Result<Option<Option<KeyValue>>, StoreError> {
        let Some(Stored { revision, value, expiry }) = self.stored(key)? else { return Ok(None) };
        let StoredValue::Collection(collection) = value else { return Ok(Some(None)) };
        self.note_read(collection.meta.len())?;
        let (deadline, value) = (expiry.deadline.map(deadline_of), Value::Collection(collection));
        Ok(Some(Some(KeyValue { value, deadline, version: revision.0 })))
    }

    fn len(&self) -> Result<u64, StoreError> {
        if self.counts {
            return Ok(Counts::in_view(self.snapshot.view(), self.keyspace).map_err(failed)?.keys);
        }
        let mut keys = 0;
        self.keys(None, &mut |_, _| {
            keys += 1;
            ControlFlow::Continue(())
        })?;
        Ok(keys)
    }

    fn keys(&self, after: Option<&[u8]>, visit: &mut VisitKeys<'_>) -> Result<(), StoreError> {
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let range = ScanRange { start, collections: Collections::Visit, ..ScanRange::default() };
        let each = |item: crate::keyspaces::read_view::Item<'_>| match item.value {
            Some(value) => visit(item.key, &RowHead::of(item.revision, value, item.expiry).info()),
            None => ControlFlow::Continue(()),
        };
        self.snapshot.scan(self.keyspace, &range, each).map_err(failed)?;
        charge(0)
    }

    fn has_part(&self, id: CollectionId, name: &[u8]) -> Result<bool, StoreError> {
        Ok(self.part_short(id, name, 0)?.is_some())
    }

    fn part(&self, id: CollectionId, name: &[u8]) -> Result<Option<Bytes>, StoreError> {
        Ok(self.part_short(id, name, usize::MAX)?.flatten())
    }

    fn part_short(&self, id: CollectionId, name: &[u8], max_bytes: usize) -> Result<Option<Option<Bytes>>, StoreError> {
        charge(READ)?;
        let key = [&part_prefix(self.keyspace, id), name].concat();
        let mut found = Ok(None);
        let shown = self.snapshot.view().look(&key, &mut |value| {
            let copied = || -> Result<Bytes, StoreError> {
                // Charged before the copy, so that a thread that serves many clients does not make it for one of them.
                charge(read_bytes(value.len()))?;
                self.note_read(value.len())?;
                Ok(Bytes::copy_from_slice(value))
            };
            let is_short = value.len() <= max_bytes;
            found = is_short.then(copied).transpose().map(Some);
        });
        shown.map_err(|error| failed(error.into()))?;
        found
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
        let room = MAX_REDIS_READ_BYTES - self.read_bytes.get();
        let mut bytes = 0_usize;
        charge(SCAN)?;
        let scanned = self.snapshot.view().scan(range.lower(), range.upper(), direction, &mut |full, value| {
            budget::charge(ROW + read_bytes(full.len() + value.len()))?;
            let name = name_of(full);
            bytes += name.len() + value.len();
            if bytes > room { ControlFlow::Break(()) } else { visit(name, value) }
        });
        scanned.map_err(|error| failed(error.into()))?;
        charge(0)?;
        self.note_read(bytes)
    }
}
