//! Keyspaces: the handle with its operations put, get, delete and scan.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{
    expiry::Expiry,
    history::HistoryError,
    keyspaces::{KeyspaceRow, ReadView, ScanRange as StoredRange, Stored, StoredValue},
};
pub use thalweg_types::info::Keyspace as KeyspaceInfo;
use thalweg_types::{
    Durability, KeyspaceId, Revision, SpaceTime, budget,
    command::{CommitBuilder, Expect, KeyspaceConfig, Outcome, encode_create_keyspace, encode_delete, encode_put},
    steps::read_bytes,
};

use crate::{
    ack::{Ack, unexpected},
    cursor::{ScanCursor, ScanPoint},
    database::Database,
    error::{ReadError, WriteError, holds, refusal},
    scan_range::{Order, ScanRange},
    watch::{Watch, WatchError, WatchKeys},
};

/// Number of pairs that [`KeyspaceIter`] reads ahead.
const PAGE_ITEMS: usize = 256;
/// Number of bytes after which [`KeyspaceIter`] stops reading ahead.
const PAGE_BYTES: usize = 1024 * 1024;

/// The value of a key, with its revision and expiry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Value of the key.
    pub value: Bytes,
    /// Revision of the command that wrote the value.
    pub revision: Revision,
    /// Deadline and lease of the value; see [`Database::remaining`].
    pub expiry: Expiry,
}

/// Metadata of a key's value, without the value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// Revision of the command that wrote the value.
    pub revision: Revision,
    /// Length of the value in bytes.
    pub value_bytes: u64,
    /// Deadline and lease of the value; see [`Database::remaining`].
    pub expiry: Expiry,
}

/// Describes a keyspace by its row in the state.
pub(crate) fn described(id: KeyspaceId, row: &KeyspaceRow) -> KeyspaceInfo {
    KeyspaceInfo { id, created: row.created, config: row.config, name: row.name.to_string() }
}

/// A pair of a scan, borrowed for the duration of the callback.
#[derive(Clone, Copy, Debug)]
pub struct ScanItem<'a> {
    /// Key of the pair.
    pub key: &'a [u8],
    /// Value of the pair; empty if the scan omits values.
    pub value: &'a [u8],
    /// Revision of the command that wrote the value.
    pub revision: Revision,
    /// Deadline and lease of the value.
    pub expiry: Expiry,
}

/// Handle of a keyspace. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Keyspace {
    db: Database,
    id: KeyspaceId,
}

impl Database {
    /// Returns the keyspace with this name, and creates it if it is missing.
    pub fn keyspace(&self, name: &str) -> Result<Keyspace, WriteError> {
        if let Some(found) = self.find_keyspace(name) {
            return Ok(found);
        }
        let outcome = self.inner.propose(self.level.max(Durability::Os), Purpose::Data, |out| {
            encode_create_keyspace(out, name, &KeyspaceConfig::default())
        })?;
        self.created_keyspace(outcome)
    }

    pub(crate) fn created_keyspace(&self, committed: Committed) -> Result<Keyspace, WriteError> {
        match committed.outcome.map(refusal).transpose()? {
            Some(Outcome::Keyspace { id, .. }) => Ok(Keyspace::new(self.clone(), id)),
            other => Err(unexpected(other.as_ref())),
        }
    }

    /// Returns the keyspace with this name; `None` if there is none.
    #[must_use]
    pub fn find_keyspace(&self, name: &str) -> Option<Keyspace> {
        self.inner.open.machine.keyspace_id(name).map(|id| Keyspace::new(self.clone(), id))
    }

    /// Returns the names, ids and settings of all keyspaces.
    #[must_use]
    pub fn keyspaces(&self) -> Vec<KeyspaceInfo> {
        let all = self.inner.open.machine.keyspaces();
        all.into_iter().map(|(id, row)| described(id, &row)).collect()
    }
}

impl Keyspace {
    pub(crate) fn new(db: Database, id: KeyspaceId) -> Self {
        Self { db, id }
    }

    pub(crate) fn database(&self) -> &Database {
        &self.db
    }

    /// Id of the keyspace, by which commits refer to it.
    #[must_use]
    pub fn id(&self) -> KeyspaceId {
        self.id
    }

    /// Name of the keyspace; empty if it no longer exists.
    #[must_use]
    pub fn name(&self) -> String {
        self.db.inner.open.machine.keyspace_name(self.id).map(|name| name.to_string()).unwrap_or_default()
    }

    /// Returns a handle of the same keyspace whose writes use the durability `level` by default.
    #[must_use]
    pub fn with_durability(&self, level: Durability) -> Self {
        Self { db: self.db.with_durability(level), id: self.id }
    }

    /// Sets a key.
    pub fn put(&self, key: &[u8], value: &[u8]) -> Result<Ack, WriteError> {
        let encode = |out: &mut Vec<u8>| encode_put(out, self.id, key, value);
        self.db.inner.propose_for_ack(self.db.durability(), Purpose::Data, encode)
    }

    /// Sets a key if the condition `expect` holds.
    pub fn put_if(&self, key: &[u8], value: &[u8], expect: Expect<'_>) -> Result<Ack, WriteError> {
        let mut commit = CommitBuilder::new();
        commit.expect(self.id, key, expect)?.put(self.id, key, value)?;
        self.db.commit(&commit)
    }

    /// Removes a key. Succeeds also if the key has no value.
    pub fn delete(&self, key: &[u8]) -> Result<Ack, WriteError> {
        let encode = |out: &mut Vec<u8>| encode_delete(out, self.id, key);
        self.db.inner.propose_for_ack(self.db.durability(), Purpose::Reclaim, encode)
    }

    /// Removes a key if the condition `expect` holds.
    pub fn delete_if(&self, key: &[u8], expect: Expect<'_>) -> Result<Ack, WriteError> {
        let mut commit = CommitBuilder::new();
        commit.expect(self.id, key, expect)?.delete(self.id, key)?;
        self.db.commit(&commit)
    }

    /// Returns the newest value of a key; `None` if the key has no value.
    pub fn get(&self, key: &[u8]) -> Result<Option<Entry>, ReadError> {
        let inner = &self.db.inner;
        loop {
            let (revision, value, expiry) = match inner.open.machine.get(self.id, key) {
                Ok(Some(Stored { revision, value, expiry })) => (revision, value, expiry),
                Ok(None) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            let value = match value {
                StoredValue::Inline(value) => value,
                StoredValue::Collection(collection) => return Err(holds(&collection)),
                StoredValue::Blob(blob) => match inner.resolve(self.id, key, revision, blob) {
                    // The value was overwritten between the lookup and the read: look up the present one.
                    Err(ReadError::ViewExpired) => continue,
                    read => read?,
                },
            };
            return Ok(Some(Entry { value, revision, expiry }));
        }
    }

    /// Returns a key's metadata without reading a value that stays in the log.
    pub fn head(&self, key: &[u8]) -> Result<Option<Head>, ReadError> {
        let stored = self.db.inner.open.machine.get(self.id, key)?;
        let Some(stored) = stored else { return Ok(None) };
        if let StoredValue::Collection(collection) = &stored.value {
            return Err(holds(collection));
        }
        let value_bytes = stored.value.as_ref().value_len() as u64;
        Ok(Some(Head { revision: stored.revision, expiry: stored.expiry, value_bytes }))
    }

    /// Watches keys: the watch delivers every change from the revision `from` on (`None` for the next revision), in
    /// order and without gaps. Past changes are read from the log, as far back as it is kept for history.
    pub fn watch(&self, keys: &WatchKeys, from: Option<Revision>) -> Result<Watch, WatchError> {
        Watch::new(&self.db, self.id, keys, from)
    }

    /// Visits the pairs of a range in order, from one consistent view, until `visit` breaks. Keys that refer to a
    /// Redis hash or stream have no bytes and are skipped.
    pub fn scan(
        &self,
        range: &ScanRange,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        self.scan_snapshot(&self.db.inner.open.machine.read_view(), &range.stored(), visit)
    }

    pub(crate) fn scan_snapshot(
        &self,
        snapshot: &ReadView,
        range: &StoredRange<'_>,
        visit: &mut dyn FnMut(ScanItem<'_>) -> ControlFlow<()>,
    ) -> Result<(), ReadError> {
        let mut failure = None;
        snapshot.scan(self.id, range, |item| self.visit_item(&item, &mut failure, visit))?;
        failure.map_or(Ok(()), Err)
    }

    /// Iterates over the pairs of a range, as owned copies from one consistent view. The iterator holds about 1 MiB of
    /// pairs, and keeps the view's data alive until it is dropped.
    #[must_use]
    pub fn iter(&self, range: ScanRange) -> KeyspaceIter {
        let snapshot = self.db.inner.open.machine.read_view();
        KeyspaceIter::new(self, snapshot, range.clone(), range, None)
    }

    /// Iterates like [`iter`](Self::iter), but over the contents that the keyspace had at a revision; see
    /// [`get_at`](Self::get_at).
    pub fn iter_at(&self, range: ScanRange, revision: Revision) -> Result<KeyspaceIter, ReadError> {
        let snapshot = self.db.inner.open.machine.read_view();
        let at = ScanPoint { revision, time: SpaceTime(0) };
        snapshot.past(self.id, at.revision, at.time)?;
        Ok(KeyspaceIter::new(self, snapshot, range.clone(), range, Some(at)))
    }

    /// Continues a scan after the position in a [cursor](KeyspaceIter::cursor), which a scan of the same range
    /// returned. In a keyspace with history the continued scan shows the revision with which the scan began, or
    /// returns [`Compacted`](ReadError::Compacted) if this revision is no longer kept. Without history it shows the
    /// present contents.
    pub fn resume(&self, range: ScanRange, cursor: &ScanCursor) -> Result<KeyspaceIter, ReadError> {
        let rest = cursor.remaining_range(self.id, &range)?;
        let snapshot = self.db.inner.open.machine.read_view();
        if let Some(at) = cursor.at {
            snapshot.past(self.id, at.revision, at.time)?;
        }
        Ok(KeyspaceIter::new(self, snapshot, range, rest, cursor.at))
    }
}

/// Iterator over the pairs of a keyspace; see [`Keyspace::iter`].
#[derive(Clone, Debug)]
pub struct KeyspaceIter {
    keyspace: Keyspace,
    snapshot: ReadView,
    /// Range that the caller requested.
    whole: ScanRange,
    /// Part of the range that is still to be read; one of its bounds moves with each page.
    range: ScanRange,
    /// Past revision that the iterator shows; `None` for the newest revision of the view.
    at: Option<ScanPoint>,
    left: u64,
    page: std::vec::IntoIter<(Bytes, Entry)>,
    failed: bool,
}

impl KeyspaceIter {
    fn new(keyspace: &Keyspace, snapshot: ReadView, whole: ScanRange, range: ScanRange, at: Option<ScanPoint>) -> Self {
        let left = range.limit.unwrap_or(u64::MAX);
        let page = Vec::new().into_iter();
        Self { keyspace: keyspace.clone(), snapshot, whole, range, at, left, page, failed: false }
    }

    /// Revision of the keyspace that the iterator shows.
    #[must_use]
    pub fn revision(&self) -> Revision {
        self.at.map_or(self.snapshot.applied().revision, |at| at.revision)
    }

    /// Returns a cursor with which a later scan continues after the key `last`.
    pub fn cursor(&self, last: &[u8]) -> Result<ScanCursor, ReadError> {
        let at = match (self.at, self.snapshot.history_floor(self.keyspace.id)) {
            (Some(at), _) => Some(at),
            (None, Ok(_)) => Some(ScanPoint { revision: self.snapshot.applied().revision, time: self.snapshot.time() }),
            (None, Err(HistoryError::NoHistory)) => None,
            (None, Err(error)) => return Err(error.into()),
        };
        Ok(ScanCursor::new(self.keyspace.id, &self.whole, at, last))
    }

    /// Returns the next pairs: at most `max_items` pairs with slightly more than `max_bytes` bytes at most; empty at
    /// the end of the range.
    pub fn next_page(&mut self, max_items: usize, max_bytes: usize) -> Result<Vec<(Bytes, Entry)>, ReadError> {
        let mut pairs = Vec::new();
        let mut bytes = 0;
        let items = max_items.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        let range = StoredRange { limit: items, ..self.range.stored() };
        let visit = &mut |item: ScanItem<'_>| {
            bytes += item.key.len() + item.value.len();
            budget::charge(read_bytes(item.key.len() + item.value.len()))?;
            let value = Bytes::copy_from_slice(item.value);
            let entry = Entry { value, revision: item.revision, expiry: item.expiry };
            pairs.push((Bytes::copy_from_slice(item.key), entry));
            if bytes >= max_bytes { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match self.at {
            Some(at) => self.keyspace.scan_past(&self.snapshot, at, &range, visit)?,
            None => self.keyspace.scan_snapshot(&self.snapshot, &range, visit)?,
        }
        self.left -= pairs.len() as u64;
        match pairs.last() {
            Some((last, _)) => self.move_past(last),
            None => self.left = 0,
        }
        Ok(pairs)
    }

    fn move_past(&mut self, last: &[u8]) {
        let bound = Bound::Excluded(last.to_vec());
        match self.range.order {
            Order::Ascending => self.range.start = bound,
            Order::Descending => self.range.end = bound,
        }
    }
}

impl Iterator for KeyspaceIter {
    type Item = Result<(Bytes, Entry), ReadError>;

    fn next(&mut self) -> Option<Self::Item> {
        if let Some(pair) = self.page.next() {
            return Some(Ok(pair));
        }
        if self.failed || self.left == 0 {
            return None;
        }
        match self.next_page(PAGE_ITEMS, PAGE_BYTES) {
            Ok(page) => {
                self.page = page.into_iter();
                self.page.next().map(Ok)
            }
            Err(error) => {
                self.failed = true;
                Some(Err(error))
            }
        }
    }
}
