//! The interface of a store behind memtables.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use crate::backend::{Applied, BackendError, BackendStats, Change, Direction};

/// Pairs on the first page of a scan. Each later page has four times as many, up to the maximum.
const FIRST_PAGE_PAIRS: usize = 16;
const MAX_PAGE_PAIRS: usize = 256;
/// Bytes at which a page is full; a larger pair fills a page alone.
const MAX_PAGE_BYTES: usize = 64 * 1024;

/// An ordered map on disk that accepts changes in durable transactions.
///
/// Two threads never call `persist` and `tidy` at the same time; any thread may call every other method at any
/// time.
pub trait Store: Send + Sync + 'static {
    /// The store's name in the configuration.
    const NAME: &'static str;

    /// Returns the position of the last transaction. Called once, when the store was opened.
    fn applied(&self) -> Result<Option<Applied>, BackendError>;

    /// Makes the changes and `applied` durable in one transaction, all or nothing, before it returns. The last
    /// change of a key wins. Returns the bytes of the changes' keys and values.
    fn persist(&self, changes: &mut dyn Iterator<Item = Change<'_>>, applied: Applied) -> Result<u64, BackendError>;

    /// Returns a view of the persisted pairs, which stay as they are while the view exists.
    fn view(&self) -> Result<Arc<dyn StoreView>, BackendError>;

    /// Does maintenance when the view of the transaction before the last one is no longer the newest. Returns true
    /// if a new view would retain less old data than the newest one.
    fn tidy(&self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Adds the store's statistics: bytes on disk, bytes cached, keys.
    fn add_stats(&self, stats: &mut BackendStats);
}

/// A consistent, immutable view of a [`Store`].
pub trait StoreView: Send + Sync {
    /// Returns the value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;

    /// Adds pairs within the bounds to an empty page, in order, until the page is full or no pairs are left. Runs
    /// no code of the caller, so it may hold locks.
    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError>;
}

/// Pairs that a cursor has read ahead.
#[derive(Debug)]
pub struct Page {
    bytes: Vec<u8>,
    pairs: Vec<Pair>,
    max_pairs: usize,
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    key_at: usize,
    value_at: usize,
    end: usize,
}

impl Page {
    pub(super) fn new() -> Self {
        Self { bytes: Vec::new(), pairs: Vec::new(), max_pairs: FIRST_PAGE_PAIRS }
    }

    /// Empties the page and enlarges it for the next read.
    pub(super) fn turn(&mut self) {
        self.bytes.clear();
        self.pairs.clear();
        self.max_pairs = (self.max_pairs * 4).min(MAX_PAGE_PAIRS);
    }

    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(value);
        self.pairs.push(Pair { key_at, value_at, end: self.bytes.len() });
    }

    /// Returns true if the page accepts no more pairs.
    pub fn is_full(&self) -> bool {
        self.pairs.len() >= self.max_pairs || self.bytes.len() >= MAX_PAGE_BYTES
    }

    pub(super) fn len(&self) -> usize {
        self.pairs.len()
    }

    pub(super) fn key(&self, number: usize) -> &[u8] {
        let pair = self.pairs[number];
        &self.bytes[pair.key_at..pair.value_at]
    }

    pub(super) fn value(&self, number: usize) -> &[u8] {
        let pair = self.pairs[number];
        &self.bytes[pair.value_at..pair.end]
    }
}
