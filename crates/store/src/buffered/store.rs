//! What a store behind memtables must do.

use std::{ops::Bound, sync::Arc};

use bytes::Bytes;

use crate::backend::{Applied, BackendError, BackendStats, Change, Direction};

/// Pairs on the first page of a scan; each page after it holds four times as many, up to the bound.
const FIRST_PAGE_PAIRS: usize = 16;
const MAX_PAGE_PAIRS: usize = 256;
/// A page is full when it holds this many bytes, or one pair.
const MAX_PAGE_BYTES: usize = 64 * 1024;

/// An ordered map on disk that takes changes in durable transactions.
///
/// `persist` and `tidy` are never called from two threads at once; all else may be called at any time.
pub trait Store: Send + Sync + 'static {
    /// The name that configuration uses.
    const NAME: &'static str;

    /// What the last transaction said, read when the store was opened.
    fn applied(&self) -> Result<Option<Applied>, BackendError>;

    /// Makes the changes and `applied` durable in one transaction, all or nothing, before it returns. The last
    /// change of a key wins. Says how many bytes of keys and values that were.
    fn persist(&self, changes: &mut dyn Iterator<Item = Change<'_>>, applied: Applied) -> Result<u64, BackendError>;

    /// What is persisted now, for as long as the view is held.
    fn view(&self) -> Result<Arc<dyn StoreView>, BackendError>;

    /// Called when the view before the last transaction is no longer the newest. True if a view made now
    /// would hold less back than the newest one does.
    fn tidy(&self) -> Result<bool, BackendError> {
        Ok(false)
    }

    /// Adds what the store knows: bytes on disk, bytes cached, keys.
    fn add_stats(&self, stats: &mut BackendStats);
}

/// A consistent, immutable view of a [`Store`].
pub trait StoreView: Send + Sync {
    /// The value of a key.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;

    /// Adds pairs within the bounds to an empty page, in order, until it is full or there are none left.
    /// Calls nothing of the caller's, so it may hold locks meanwhile.
    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError>;
}

/// Pairs read ahead.
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

    /// Empties it for the next, larger one.
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

    /// Whether it takes no more.
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
