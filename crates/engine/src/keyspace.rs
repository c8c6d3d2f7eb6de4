//! Keyspaces: the handle with its operations put, get, delete and scan.
//!
//! Owns: the handle [`Keyspace`], and the iterator over a range. Does not own: the rows (`thalweg-state`), conditional
//! writes of several keys (`transaction`), former values (`key_history`), administration (`keyspace_admin`), pages
//! (`scan_page`), or the bytes of a cursor (`cursor`).
//!
//! Invariants: an iterator shows one view, or one revision of the past, from its first pair to its last, and each pair
//! once. After an error it returns no more pairs. It reads at most about [`PAGE_BYTES`] ahead.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;
use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::{
    expiry::Expiry,
    history::HistoryError,
    keyspaces::{KeyspaceRow, RangeCursor, ReadView, ScanRange as StoredRange, Stored, StoredRef, StoredValue},
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
    scan_page::{OwnedPair, Page, PageBuilder},
    scan_range::{Order, ScanRange, Values},
    watch::{Watch, WatchKeys},
    watches::error::WatchError,
};

/// Number of key-value pairs that [`KeyspaceIter`] reads first. Many ranges are shorter, and a caller that stops early
/// has not paid for many unused pairs.
const FIRST_PAGE_ITEMS: usize = 128;
/// Growth factor from each page read ahead to the next page. Large pages save searches: each page begins with one.
const PAGE_GROWTH: usize = 4;
/// Maximum number of key-value pairs that [`KeyspaceIter`] reads ahead.
const MAX_PAGE_ITEMS: usize = 1024;
/// Number of bytes after which [`KeyspaceIter`] stops reading ahead.
const PAGE_BYTES: usize = 256 * 1024;
/// Assumed size in bytes of a key-value pair until a scan has read one.
const LIKELY_PAIR_BYTES: usize = 128;

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

/// Builds the public description of a keyspace from its row in the state.
pub(crate) fn described(id: KeyspaceId, row: &KeyspaceRow) -> KeyspaceInfo {
    KeyspaceInfo { id, created: row.created, config: row.config, name: row.name.to_string() }
}

/// A key-value pair of a scan, borrowed for the duration of the callback.
#[derive(Clone, Copy, Debug)]
pub struct ScanItem<'a> {
    /// Key of the scanned pair.
    pub key: &'a [u8],
    /// Value of the scanned pair; empty if the scan omits values.
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

    /// Returns the names, ids and settings of at most `limit` keyspaces with ids above `after`, in the order of ids.
    #[must_use]
    pub fn keyspaces_after(&self, after: KeyspaceId, limit: usize) -> Vec<KeyspaceInfo> {
        let found = self.inner.open.machine.keyspaces_after(after, limit);
        found.into_iter().map(|(id, row)| described(id, &row)).collect()
    }

    /// Returns the number of keyspaces.
    #[must_use]
    pub fn keyspace_count(&self) -> usize {
        self.inner.open.machine.keyspace_count()
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
                    // The value was overwritten between the lookup and the read, so look up the present value.
                    Err(ReadError::ViewExpired) => continue,
                    read => read?,
                },
            };
            return Ok(Some(Entry { value, revision, expiry }));
        }
    }

    /// Returns a key's metadata. A value that is stored in the log is not read.
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

    /// Iterates over the pairs of a range, as owned copies from one consistent view. The iterator reads ahead, up to
    /// about 256 KiB of pairs, and keeps the view's data alive until it is dropped. Pairs that were read together share
    /// memory, so one pair can keep 256 KiB in memory. Copy the pairs that you keep if you drop most of the others.
    #[must_use]
    pub fn iter(&self, range: ScanRange) -> KeyspaceIter {
        let snapshot = self.db.inner.open.machine.read_view();
        KeyspaceIter::new(self, snapshot, range, None, None)
    }

    /// Iterates like [`iter`](Self::iter), but over the contents of the keyspace at a past revision; see
    /// [`get_at`](Self::get_at).
    pub fn iter_at(&self, range: ScanRange, revision: Revision) -> Result<KeyspaceIter, ReadError> {
        let snapshot = self.db.inner.open.machine.read_view();
        let at = ScanPoint { revision, time: SpaceTime(0) };
        snapshot.past(self.id, at.revision, at.time)?;
        Ok(KeyspaceIter::new(self, snapshot, range, None, Some(at)))
    }

    /// Continues a scan after the position in a [cursor](KeyspaceIter::cursor), which a scan of the same range
    /// returned. In a keyspace with history the continued scan shows the revision with which the scan began, or
    /// returns [`Compacted`](ReadError::Compacted) if this revision is no longer kept. Without history it shows the
    /// present contents.
    pub fn resume(&self, range: ScanRange, cursor: &ScanCursor) -> Result<KeyspaceIter, ReadError> {
        cursor.check_range(self.id, &range)?;
        let snapshot = self.db.inner.open.machine.read_view();
        if let Some(at) = cursor.at {
            snapshot.past(self.id, at.revision, at.time)?;
        }
        Ok(KeyspaceIter::new(self, snapshot, range, Some(cursor.last.clone()), cursor.at))
    }
}

/// Iterator over the key-value pairs of a keyspace; see [`Keyspace::iter`].
#[derive(Clone, Debug)]
pub struct KeyspaceIter {
    keyspace: Keyspace,
    snapshot: ReadView,
    /// Range that the caller has requested from the iterator.
    range: ScanRange,
    /// Last key that was read into a page; the next page or cursor begins after it. `None` at the beginning of the
    /// range.
    last: Option<Vec<u8>>,
    /// Past revision that the iterator shows; `None` for the newest revision of the view.
    at: Option<ScanPoint>,
    /// Number of key-value pairs that the range's limit still permits; 0 also at the end of the range.
    left: u64,
    page: Page,
    /// Number of key-value pairs that the next page reads. The field `pair_bytes` is the expected size of each.
    page_items: usize,
    pair_bytes: usize,
    /// Cursor of the backend that lends pairs to the caller without a copy. It is positioned after `last`.
    cursor: LendingCursor,
    /// Value that the cursor last read from the log.
    lent: Bytes,
    failed: bool,
}

/// State of the backend cursor from which an iterator lends pairs to its caller.
#[derive(Clone, Debug)]
enum LendingCursor {
    /// No cursor is open. The next pair to return is the first one after the page that was read last.
    Closed,
    Open(Box<RangeCursor>),
    /// No cursor can be used, because the backend has none or the iterator shows the past. Pairs are lent from pages.
    Unavailable,
}

impl KeyspaceIter {
    fn new(
        keyspace: &Keyspace,
        snapshot: ReadView,
        range: ScanRange,
        last: Option<Vec<u8>>,
        at: Option<ScanPoint>,
    ) -> Self {
        let left = range.limit.unwrap_or(u64::MAX);
        Self {
            keyspace: keyspace.clone(),
            snapshot,
            range,
            last,
            at,
            left,
            page: Page::default(),
            page_items: FIRST_PAGE_ITEMS,
            pair_bytes: LIKELY_PAIR_BYTES,
            cursor: if at.is_none() { LendingCursor::Closed } else { LendingCursor::Unavailable },
            lent: Bytes::new(),
            failed: false,
        }
    }

    /// Revision at which the iterator shows the keyspace.
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
        Ok(ScanCursor::new(self.keyspace.id, &self.range, at, last))
    }

    /// Returns the next pairs: at most `max_items`, until they have `max_bytes` bytes or slightly more; empty at the
    /// end of the range. Skips pairs that the iterator has already read ahead for [`next`](Iterator::next). The pairs
    /// share memory, as those of the iterator do.
    pub fn next_page(&mut self, max_items: usize, max_bytes: usize) -> Result<Vec<(Bytes, Entry)>, ReadError> {
        Ok(self.read_page(max_items, max_bytes)?.map(entry).collect())
    }

    /// Returns the length in bytes of the next pair's value without reading it; `None` at the end of the range, and for
    /// a scan of the past. The value may have been replaced since the iterator began.
    pub fn next_value_bytes(&self) -> Result<Option<u64>, ReadError> {
        if self.at.is_some() {
            return Ok(None);
        }
        let mut ahead = self.clone();
        ahead.range.values = Values::Omit;
        match ahead.next_page(1, 1)?.first() {
            Some((key, _)) => Ok(self.keyspace.head(key)?.map(|head| head.value_bytes)),
            None => Ok(None),
        }
    }

    /// Returns the next pair, borrowed until the next call; `None` at the end of the range. Returns the same pairs as
    /// [`next`](Iterator::next), but is faster: pairs have no reference counts, and with the LSM backend they are
    /// neither copied nor read ahead.
    ///
    /// ```
    /// # use thalweg_engine::{Database, Keyspace, ReadError, ScanRange};
    /// fn bytes(keyspace: &Keyspace) -> Result<usize, ReadError> {
    ///     let (mut pairs, mut bytes) = (keyspace.iter(ScanRange::default()), 0);
    ///     while let Some(pair) = pairs.next_pair() {
    ///         bytes += pair?.value.len();
    ///     }
    ///     Ok(bytes)
    /// }
    /// ```
    #[inline]
    pub fn next_pair(&mut self) -> Option<Result<ScanItem<'_>, ReadError>> {
        if self.page.is_empty() {
            if self.failed || self.left == 0 {
                return None;
            }
            if let LendingCursor::Closed = self.cursor
                && let Err(error) = self.open_cursor()
            {
                return Some(Err(error));
            }
            if let LendingCursor::Open(_) = self.cursor {
                return self.next_of_cursor();
            }
            if let Err(error) = self.refill()? {
                return Some(Err(error));
            }
        }
        let (key, value, revision, expiry) = self.page.lend()?;
        Some(Ok(ScanItem { key, value, revision, expiry }))
    }

    /// Returns the next pair of the open cursor, borrowed; `None` at the end of the range.
    #[inline]
    fn next_of_cursor(&mut self) -> Option<Result<ScanItem<'_>, ReadError>> {
        let Self { cursor: LendingCursor::Open(cursor), keyspace, left, lent, failed, .. } = self else { return None };
        let item = match cursor.next_item() {
            Ok(Some(item)) => item,
            Ok(None) => {
                if !budget::is_spent() {
                    *left = 0;
                }
                return None;
            }
            Err(error) => {
                *failed = true;
                return Some(Err(error.into()));
            }
        };
        *left -= 1;
        let (key, revision, expiry) = (item.key, item.revision, item.expiry);
        let value = match item.value {
            Some(StoredRef::Inline(value)) => value,
            // Scans skip collections.
            None | Some(StoredRef::Collection(_)) => b"",
            Some(StoredRef::Blob(blob)) => match keyspace.db.inner.resolve(keyspace.id, key, revision, blob) {
                Ok(value) => {
                    *lent = value;
                    lent
                }
                Err(error) => {
                    *failed = true;
                    return Some(Err(error));
                }
            },
        };
        Some(Ok(ScanItem { key, value, revision, expiry }))
    }

    /// Opens the cursor after the last page, if the backend has cursors.
    fn open_cursor(&mut self) -> Result<(), ReadError> {
        let opened = self.snapshot.cursor(self.keyspace.id, &self.range_left());
        self.cursor = match opened {
            Ok(Some(cursor)) => LendingCursor::Open(Box::new(cursor)),
            Ok(None) => LendingCursor::Unavailable,
            Err(error) => {
                self.failed = true;
                return Err(error.into());
            }
        };
        Ok(())
    }

    /// Closes the cursor. The next page begins after the last pair that was lent.
    fn close_cursor(&mut self) {
        if let LendingCursor::Open(cursor) = &self.cursor {
            if let Some(key) = cursor.key() {
                self.last = Some(key.to_vec());
            }
            self.cursor = LendingCursor::Closed;
        }
    }

    /// Returns the part of the range that the iterator has not read yet.
    fn range_left(&self) -> StoredRange<'_> {
        let mut range = self.range.stored();
        if let Some(last) = &self.last {
            match self.range.order {
                Order::Ascending => range.start = Bound::Excluded(last),
                Order::Descending => range.end = Bound::Excluded(last),
            }
        }
        range
    }

    /// Reads the next page of pairs, after the iterator has returned all pairs of the current page. Returns `None` at
    /// the end of the range, and after an error.
    fn refill(&mut self) -> Option<Result<(), ReadError>> {
        if self.failed || self.left == 0 {
            return None;
        }
        Some(match self.read_page(self.page_items, PAGE_BYTES) {
            Ok(page) => {
                self.page_items = (self.page_items * PAGE_GROWTH).min(MAX_PAGE_ITEMS);
                self.page = page;
                Ok(())
            }
            Err(error) => {
                self.failed = true;
                Err(error)
            }
        })
    }

    fn read_page(&mut self, max_items: usize, max_bytes: usize) -> Result<Page, ReadError> {
        let items = max_items.min(usize::try_from(self.left).unwrap_or(usize::MAX));
        if items == 0 {
            return Ok(Page::default());
        }
        self.close_cursor();
        let room = items.min(MAX_PAGE_ITEMS).min(max_bytes / self.pair_bytes + 1);
        let mut pairs = PageBuilder::with_room(room, self.pair_bytes);
        let (mut bytes, mut is_cut) = (0, false);
        let range = StoredRange { limit: items, ..self.range_left() };
        let visit = &mut |item: ScanItem<'_>| {
            let pair_bytes = item.key.len() + item.value.len();
            budget::charge(read_bytes(pair_bytes))?;
            bytes += pair_bytes;
            pairs.push(item.key, item.value, item.revision, item.expiry);
            is_cut = bytes >= max_bytes;
            if is_cut { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        };
        match self.at {
            Some(at) => self.keyspace.scan_past(&self.snapshot, at, &range, visit)?,
            None => self.keyspace.scan_snapshot(&self.snapshot, &range, visit)?,
        }
        // A page that ended early by no limit has reached the end of the range, so a further search is not needed.
        let is_at_end = pairs.len() < items && !is_cut && !budget::is_spent();
        self.left = if is_at_end { 0 } else { self.left - pairs.len() as u64 };
        if self.left > 0
            && let Some(last) = pairs.last_key()
        {
            let position = self.last.get_or_insert_default();
            position.clear();
            position.extend_from_slice(last);
            self.pair_bytes = (pairs.shared_bytes() / pairs.len()).max(1);
        }
        Ok(pairs.finish())
    }
}

#[inline]
fn entry((key, value, revision, expiry): OwnedPair) -> (Bytes, Entry) {
    (key, Entry { value, revision, expiry })
}

impl Iterator for KeyspaceIter {
    type Item = Result<(Bytes, Entry), ReadError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        if let Some(pair) = self.page.next() {
            return Some(Ok(entry(pair)));
        }
        match self.refill()? {
            Ok(()) => self.page.next().map(|pair| Ok(entry(pair))),
            Err(error) => Some(Err(error)),
        }
    }
}
