//! Views that are read one page at a time.
//!
//! Owns: [`Page`], the cursor that reads one page of a [`PagedView`] after the other, and the verification of all
//! pairs. To read a page, the view searches again from the last key of the previous page. So no lock or cursor of the
//! store is held while the caller processes a pair, and the caller may read the store again.

use std::ops::{Bound, ControlFlow};

use bytes::Bytes;

use super::{checked::checksum, contents::Contents, cursor::NoCursor, owned_source::OwnedSource, store::StoreView};
use crate::{
    backend::{BackendError, Direction, VerifiedRows},
    cursor::Cursor,
    merge::Source,
    span::{OwnedSpan, Span},
};

/// Number of pairs on the first page of a scan. Each later page has four times as many pairs as the previous one, up to
/// a maximum.
const FIRST_PAGE_PAIRS: usize = 16;
const MAX_PAGE_PAIRS: usize = 256;
/// Size in bytes at which a page is full. A larger pair fills a page alone.
const MAX_PAGE_BYTES: usize = 64 * 1024;

/// A consistent, immutable view of a store, which scans read one page at a time.
pub trait PagedView: Send + Sync + 'static {
    /// Returns the value of a key; `None` if the key does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError>;

    /// Adds pairs within the bounds to an empty page, in order, until the page is full or the range has no more pairs.
    /// The function calls no code of the scan's caller, so it may hold locks.
    fn page(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        page: &mut Page,
    ) -> Result<(), BackendError>;

    /// Returns the summary of the view's pairs; `None` if the database has none yet.
    fn contents(&self) -> Result<Option<Contents>, BackendError>;
}

impl<V: PagedView> StoreView for V {
    type Cursor<'a> = PageCursor<'a, V>;
    type OwnedCursor = NoCursor;

    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        PagedView::get(self, key)
    }

    fn verify(&self, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
        verify(self, step)
    }

    fn run_count(&self) -> usize {
        1
    }

    fn add_sources<'a>(
        &'a self,
        span: Span<'a>,
        sources: &mut Vec<Source<'a, Self::Cursor<'a>>>,
    ) -> Result<(), BackendError> {
        sources.extend(PageCursor::open(self, span)?.map(|cursor| Source::Run(Box::new(cursor))));
        Ok(())
    }

    /// Returns false, because this kind of store has no cursors that own their data: a page may refer to values in the
    /// store's memory that must stay on one thread.
    fn add_owned_sources(&self, _: &OwnedSpan, _: &mut Vec<OwnedSource<NoCursor>>) -> Result<bool, BackendError> {
        Ok(false)
    }
}

/// A value that stays in the memory of the store, so that a page need not copy it.
pub(super) type SharedValue = Box<dyn AsRef<[u8]>>;

/// A page: pairs of key and value that a cursor has read ahead.
pub struct Page {
    /// Bytes of the keys on the page, and of the values that were copied to it, one after the other.
    bytes: Vec<u8>,
    /// Values of pairs on the page that stay in the store's memory and are not copied.
    shared: Vec<SharedValue>,
    shared_bytes: usize,
    pairs: Vec<Pair>,
    max_pairs: usize,
}

#[derive(Clone, Copy)]
struct Pair {
    key_at: usize,
    value_at: usize,
    end: usize,
    /// Index in `Page::shared` of the pair's value; `None` if the value was copied to the page.
    shared: Option<usize>,
}

impl Page {
    fn new() -> Self {
        let (bytes, shared, pairs) = (Vec::new(), Vec::new(), Vec::new());
        Self { bytes, shared, shared_bytes: 0, pairs, max_pairs: FIRST_PAGE_PAIRS }
    }

    /// Empties the page before the next read, and raises the number of pairs that the page may hold.
    fn reset(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        self.shared_bytes = 0;
        self.pairs.clear();
        self.max_pairs = (self.max_pairs * 4).min(MAX_PAGE_PAIRS);
    }

    /// Adds a pair to the page, and copies its value.
    pub fn push(&mut self, key: &[u8], value: &[u8]) {
        self.push_pair(key, value, None);
    }

    /// Adds a pair to the page without copying its value.
    pub fn push_shared(&mut self, key: &[u8], value: SharedValue) {
        self.push_pair(key, &[], Some(self.shared.len()));
        self.shared_bytes += (*value).as_ref().len();
        self.shared.push(value);
    }

    fn push_pair(&mut self, key: &[u8], copied: &[u8], shared: Option<usize>) {
        let key_at = self.bytes.len();
        self.bytes.extend_from_slice(key);
        let value_at = self.bytes.len();
        self.bytes.extend_from_slice(copied);
        self.pairs.push(Pair { key_at, value_at, end: self.bytes.len(), shared });
    }

    /// Returns true if the page is full, so that no more pairs may be added.
    pub fn is_full(&self) -> bool {
        self.pairs.len() >= self.max_pairs || self.bytes.len() + self.shared_bytes >= MAX_PAGE_BYTES
    }

    /// Iterates over the pairs of key and value on the page.
    fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        (0..self.len()).map(|number| (self.key(number), self.value(number)))
    }

    fn len(&self) -> usize {
        self.pairs.len()
    }

    fn key(&self, number: usize) -> &[u8] {
        let pair = self.pairs[number];
        &self.bytes[pair.key_at..pair.value_at]
    }

    fn value(&self, number: usize) -> &[u8] {
        let pair = self.pairs[number];
        match pair.shared {
            Some(shared) => (*self.shared[shared]).as_ref(),
            None => &self.bytes[pair.value_at..pair.end],
        }
    }
}

/// A position in a paged view. The cursor is positioned on a pair until [`advance`](Cursor::advance) returns false.
pub struct PageCursor<'a, V> {
    view: &'a V,
    span: Span<'a>,
    page: Page,
    at: usize,
}

impl<'a, V: PagedView> PageCursor<'a, V> {
    /// Opens a cursor on the first pair within the span; returns `None` if the span contains no pair.
    fn open(view: &'a V, span: Span<'a>) -> Result<Option<Self>, BackendError> {
        let mut page = Page::new();
        view.page(span.lower, span.upper, span.direction, &mut page)?;
        Ok((page.len() > 0).then_some(Self { view, span, page, at: 0 }))
    }

    fn next_page(&mut self) -> Result<bool, BackendError> {
        if !self.page.is_full() {
            return Ok(false);
        }
        let last = self.page.key(self.page.len() - 1).to_vec();
        let past = Bound::Excluded(last.as_slice());
        let (lower, upper) = match self.span.direction {
            Direction::Forward => (past, self.span.upper),
            Direction::Reverse => (self.span.lower, past),
        };
        self.page.reset();
        self.at = 0;
        self.view.page(lower, upper, self.span.direction, &mut self.page)?;
        Ok(self.page.len() > 0)
    }
}

impl<V: PagedView> Cursor for PageCursor<'_, V> {
    fn key(&self) -> &[u8] {
        self.page.key(self.at)
    }

    fn value(&self) -> Option<&[u8]> {
        Some(self.page.value(self.at))
    }

    fn advance(&mut self) -> Result<bool, BackendError> {
        self.at += 1;
        Ok(self.at < self.page.len() || self.next_page()?)
    }
}

/// Reads all pairs of a view, first by scan and then each by its key, and compares them with the view's summary. Calls
/// `step` after each page with the number of bytes on the page; if `step` returns `Break`, the verification ends early.
fn verify<V: PagedView>(view: &V, step: &mut dyn FnMut(u64) -> ControlFlow<()>) -> Result<VerifiedRows, BackendError> {
    let corrupt = |message: String| BackendError::corrupt("the state's database", message);
    let (mut found, mut verified) = (Contents::default(), VerifiedRows::default());
    let (mut page, mut last) = (Page::new(), None::<Vec<u8>>);
    loop {
        let lower = last.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
        view.page(lower, Bound::Unbounded, Direction::Forward, &mut page)?;
        let bytes_before = verified.bytes;
        for (key, value) in page.iter() {
            if last.as_deref().is_some_and(|last| last >= key) {
                return Err(corrupt(format!("keys are out of order at {}", shown(key))));
            }
            // A search takes another path through the tree than a scan. A damaged inner page can mislead only the
            // search.
            if PagedView::get(view, key)?.as_deref() != Some(value) {
                return Err(corrupt(format!("a search does not find the key {}", shown(key))));
            }
            found.add(key, &[&checksum(key, value)[..], value].concat());
            verified.rows += 1;
            verified.bytes += (key.len() + value.len()) as u64;
            last = Some(key.to_vec());
        }
        let goes_on = step(verified.bytes - bytes_before).is_continue();
        if !page.is_full() {
            break;
        }
        if !goes_on {
            return Ok(verified);
        }
        page.reset();
    }
    verified.is_complete = true;
    match view.contents()? {
        Some(expected) if expected != found => Err(corrupt(format!(
            "it has {} rows of {} bytes, and its summary counts {} rows of {} bytes",
            found.pairs, found.bytes, expected.pairs, expected.bytes
        ))),
        _ => Ok(verified),
    }
}

fn shown(key: &[u8]) -> String {
    format!("that begins with {:02x?}", &key[..key.len().min(16)])
}
