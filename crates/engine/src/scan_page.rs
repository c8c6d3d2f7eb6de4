//! A page of key-value pairs that an iterator has read ahead.
//!
//! Owns: [`PageBuilder`], which copies the pairs of a scan, and [`Page`], which hands them out. The keys and the short
//! values of a page share one buffer, so a page costs two allocations instead of two for each pair. Does not own: the
//! scan, or how many pairs a page has.
//!
//! Invariant: a pair that a caller keeps also keeps the buffer of its page in memory. The buffer holds the page's keys,
//! and its values of at most [`MAX_SHARED_BYTES`]. Each longer value has memory of its own.

use bytes::Bytes;
use thalweg_state::expiry::Expiry;
use thalweg_types::Revision;

/// Maximum length in bytes of a value that is stored in the shared buffer of its page.
const MAX_SHARED_BYTES: usize = 1024;
/// Value length that marks, in a [`Row`], a long value, which is stored outside the shared buffer of the page.
const LONG: u32 = u32::MAX;

/// A key-value pair of a page. The bytes of its key and value follow those of the previous pair in the page's buffer.
#[derive(Clone, Copy, Debug)]
struct Row {
    key_len: u32,
    value_len: u32,
    revision: Revision,
    expiry: Expiry,
}

/// Key-value pairs of a scan, while they are being copied into a page.
#[derive(Debug)]
pub(crate) struct PageBuilder {
    bytes: Vec<u8>,
    rows: Vec<Row>,
    long: Vec<Bytes>,
}

impl PageBuilder {
    /// Begins a page with memory for `pairs` key-value pairs of `pair_bytes` bytes.
    pub(crate) fn with_room(pairs: usize, pair_bytes: usize) -> Self {
        let bytes = Vec::with_capacity(pairs.saturating_mul(pair_bytes.min(MAX_SHARED_BYTES)));
        Self { bytes, rows: Vec::with_capacity(pairs), long: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, key: &[u8], value: &[u8], revision: Revision, expiry: Expiry) {
        self.bytes.extend_from_slice(key);
        let value_len = if value.len() <= MAX_SHARED_BYTES {
            self.bytes.extend_from_slice(value);
            value.len() as u32
        } else {
            self.long.push(Bytes::copy_from_slice(value));
            LONG
        };
        self.rows.push(Row { key_len: key.len() as u32, value_len, revision, expiry });
    }

    /// Number of key-value pairs in the page so far.
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Number of bytes in the page's shared buffer so far.
    pub(crate) fn shared_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// Key of the last key-value pair in the page; `None` if the page is empty.
    pub(crate) fn last_key(&self) -> Option<&[u8]> {
        let last = self.rows.last()?;
        let value_len = if last.value_len == LONG { 0 } else { last.value_len as usize };
        let end = self.bytes.len() - value_len;
        Some(&self.bytes[end - last.key_len as usize..end])
    }

    pub(crate) fn finish(self) -> Page {
        let (rows, long) = (self.rows.into_iter(), self.long.into_iter());
        Page { bytes: self.bytes.into(), at: 0, rows, long, lent: Bytes::new() }
    }
}

/// Key-value pairs that a scan has read ahead; see the [module](self).
#[derive(Clone, Debug, Default)]
pub(crate) struct Page {
    bytes: Bytes,
    /// Position in `bytes` of the next key-value pair.
    at: usize,
    rows: std::vec::IntoIter<Row>,
    /// Long values of the remaining pairs, which are stored outside the shared buffer.
    long: std::vec::IntoIter<Bytes>,
    /// The long value that [`lend`](Self::lend) returned last, kept alive for the caller.
    lent: Bytes,
}

impl Page {
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.rows.len() == 0
    }

    /// Returns the next key-value pair, borrowed until the next call. Unlike [`next`](Iterator::next), it does not
    /// change the reference count of the page's buffer.
    #[inline]
    pub(crate) fn lend(&mut self) -> Option<LentPair<'_>> {
        let Row { key_len, value_len, revision, expiry } = self.rows.next()?;
        let key_at = self.at;
        let value_at = key_at + key_len as usize;
        let value = match value_len {
            LONG => {
                self.at = value_at;
                self.lent = self.long.next().unwrap_or_default();
                &self.lent[..]
            }
            len => {
                self.at = value_at + len as usize;
                &self.bytes[value_at..self.at]
            }
        };
        Some((&self.bytes[key_at..value_at], value, revision, expiry))
    }

    #[inline]
    fn take_bytes(&mut self, len: usize) -> Bytes {
        let from = self.at;
        self.at += len;
        self.bytes.slice(from..self.at)
    }
}

/// Key, value, revision, and expiry (deadline and lease) of a key-value pair.
pub(crate) type OwnedPair = (Bytes, Bytes, Revision, Expiry);
/// Pair like [`OwnedPair`], borrowed from the page.
pub(crate) type LentPair<'a> = (&'a [u8], &'a [u8], Revision, Expiry);

impl Iterator for Page {
    type Item = OwnedPair;

    #[inline]
    fn next(&mut self) -> Option<OwnedPair> {
        let Row { key_len, value_len, revision, expiry } = self.rows.next()?;
        let key = self.take_bytes(key_len as usize);
        let value = match value_len {
            LONG => self.long.next().unwrap_or_default(),
            len => self.take_bytes(len as usize),
        };
        Some((key, value, revision, expiry))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.rows.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_of_all_lengths_come_back_in_order_and_long_values_share_no_buffer() {
        let mut builder = PageBuilder::with_room(3, 10);
        assert_eq!(builder.last_key(), None);
        let lengths = [0, 1, MAX_SHARED_BYTES, MAX_SHARED_BYTES + 1, 7, 100_000, 0];
        let pair = |number: usize| (vec![number as u8; 1 + number * 3], vec![!number as u8; lengths[number]]);
        for number in 0..lengths.len() {
            let (key, value) = pair(number);
            builder.push(&key, &value, Revision(number as u64), Expiry::NEVER);
            assert_eq!((builder.last_key(), builder.len()), (Some(&key[..]), number + 1));
        }
        let keys: usize = (0..lengths.len()).map(|number| 1 + number * 3).sum();
        assert_eq!(builder.shared_bytes(), keys + 1 + MAX_SHARED_BYTES + 7);
        let page = builder.finish();
        assert_eq!(page.size_hint(), (lengths.len(), Some(lengths.len())));
        let mut lending = page.clone();
        for number in 0..lengths.len() {
            assert!(!lending.is_empty());
            let (key, value, revision, expiry) = lending.lend().unwrap();
            assert_eq!((key.to_vec(), value.to_vec()), pair(number));
            assert_eq!((revision, expiry), (Revision(number as u64), Expiry::NEVER));
            // `next` and `lend` each continue where the other one stopped.
            if number == 2 {
                let mut owned = lending.clone();
                assert_eq!(owned.next().unwrap().1.to_vec(), pair(3).1);
                assert_eq!(owned.lend().unwrap().1.to_vec(), pair(4).1);
            }
        }
        assert!(lending.is_empty() && lending.lend().is_none());
        for page in [page.clone(), page] {
            for (number, (key, value, revision, expiry)) in page.enumerate() {
                assert_eq!((key.to_vec(), value.to_vec()), pair(number));
                assert_eq!((revision, expiry), (Revision(number as u64), Expiry::NEVER));
            }
        }
    }
}
