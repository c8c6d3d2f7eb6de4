//! Positions of a Raft group's entries in the node's log.
//!
//! Owns: the range of indexes that the log contains, the LSN of some of its entries (*anchors*), the first index of
//! each term, and the number of bytes of entries before each anchor. Does not own: the entries.
//!
//! Memory: 24 bytes for each anchor, and 16 bytes for each term. A new anchor is set after [`ANCHOR_RECORDS`] records
//! of the node's log, after [`ANCHOR_BYTES`], and in each new segment. So a small entry takes 3/32 byte of memory, and
//! a GiB of large entries takes 384 KiB. A read starts at the last anchor at or before its first entry.
//!
//! Invariants: `first <= next`; anchors and terms ascend; if there are entries, the first anchor and the first term
//! begin at or before `first`.

use std::collections::VecDeque;

use thalweg_state::membership::LogId;
use thalweg_types::{Index, LogPosition, Lsn, Term};

/// Number of records of the node's log after which a new anchor (an entry with its position) is stored in memory.
const ANCHOR_RECORDS: u64 = 256;
/// Number of bytes of the node's log after which a new anchor (an entry with its position) is stored in memory.
const ANCHOR_BYTES: u32 = 64 * 1024;

#[derive(Clone, Copy, Debug)]
struct Anchor {
    index: Index,
    lsn: Lsn,
    /// Payload bytes of the entries before this anchor, counted since the log was opened.
    bytes_before: u64,
}

#[derive(Debug, Default)]
pub(crate) struct SparseIndex {
    /// Index of the first entry that the replicated log contains.
    first: Index,
    /// Index that the next appended entry gets: one above the last entry.
    next: Index,
    anchors: VecDeque<Anchor>,
    /// Payload bytes of all entries up to the last one, counted since the log was opened.
    bytes: u64,
    /// First known entry index of each term, in ascending order.
    terms: VecDeque<(Index, Term)>,
    /// Position of the newest anchor's entry; `None` if the next entry must become an anchor.
    newest_at: Option<LogPosition>,
}

impl SparseIndex {
    pub(crate) fn first(&self) -> Index {
        self.first
    }

    pub(crate) fn next(&self) -> Index {
        self.next
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.first == self.next
    }

    /// Sets the index that the first entry of an empty log gets. Must be called before any entry is added.
    pub(crate) fn begin_at(&mut self, first: Index) {
        debug_assert!(self.is_empty());
        (self.first, self.next) = (first, first);
    }

    /// Adds the position of the entry with index [`next`](Self::next). Its payload has `len` bytes.
    pub(crate) fn push(&mut self, term: Term, lsn: Lsn, at: LogPosition, len: usize) {
        let index = self.next;
        let is_near = self.anchors.back().zip(self.newest_at).is_some_and(|(anchor, anchor_at)| {
            lsn.0 - anchor.lsn.0 < ANCHOR_RECORDS
                && at.generation == anchor_at.generation
                && at.offset - anchor_at.offset < ANCHOR_BYTES
        });
        if !is_near {
            self.anchors.push_back(Anchor { index, lsn, bytes_before: self.bytes });
            self.newest_at = Some(at);
        }
        if self.terms.back().is_none_or(|(_, last)| *last != term) {
            self.terms.push_back((index, term));
        }
        self.bytes += len as u64;
        self.next = index.next();
    }

    /// Removes the positions of the entries from index `from` on, which the log has truncated.
    pub(crate) fn truncate(&mut self, from: Index) {
        if from >= self.next {
            return;
        }
        self.bytes -= self.bytes_from(from);
        self.next = from.max(self.first);
        while self.anchors.pop_back_if(|anchor| anchor.index >= from).is_some() {}
        while self.terms.pop_back_if(|(first, _)| *first >= from).is_some() {}
        // The node's log has void entries between the newest anchor and the next entry, so the next entry becomes an
        // anchor.
        self.newest_at = None;
    }

    /// Removes the positions of the entries up to `index`, inclusive, which the log has purged.
    pub(crate) fn purge(&mut self, index: Index) {
        if index < self.first {
            return;
        }
        self.first = index.next();
        if self.next <= self.first {
            self.next = self.first;
            self.anchors.clear();
            self.terms.clear();
            self.newest_at = None;
            return;
        }
        let first = self.first;
        while self.anchors.get(1).is_some_and(|second| second.index <= first) {
            self.anchors.pop_front();
        }
        while self.terms.get(1).is_some_and(|(second, _)| *second <= first) {
            self.terms.pop_front();
        }
    }

    /// Returns the LSN of the last anchor (an entry with its position) at or before an entry; `None` if there is none.
    pub(crate) fn seek(&self, index: Index) -> Option<Lsn> {
        let after = self.anchors.partition_point(|anchor| anchor.index <= index);
        Some(self.anchors.get(after.checked_sub(1)?)?.lsn)
    }

    /// Returns the payload bytes of the entries from `index` on. Between two anchors all entries count as equally
    /// large.
    pub(crate) fn bytes_from(&self, index: Index) -> u64 {
        let index = index.max(self.first);
        if index >= self.next {
            return 0;
        }
        let after = self.anchors.partition_point(|anchor| anchor.index <= index);
        let Some(anchor) = after.checked_sub(1).and_then(|at| self.anchors.get(at)) else { return 0 };
        let (next, bytes) =
            self.anchors.get(after).map_or((self.next, self.bytes), |next| (next.index, next.bytes_before));
        let (entries, share) = (next.0 - anchor.index.0, next.0 - index.0);
        let between = u128::from(bytes - anchor.bytes_before) * u128::from(share) / u128::from(entries);
        // A part of the bytes is at most their sum, which fits in a u64.
        self.bytes - bytes + between as u64
    }

    /// Returns the term of the entry at `index`; `None` if the log does not contain the entry.
    pub(crate) fn term(&self, index: Index) -> Option<Term> {
        if index < self.first || index >= self.next {
            return None;
        }
        let after = self.terms.partition_point(|(first, _)| *first <= index);
        Some(self.terms.get(after.checked_sub(1)?)?.1)
    }

    /// Returns the term and index of the last entry.
    pub(crate) fn last(&self) -> Option<LogId> {
        let index = Index(self.next.0.checked_sub(1)?);
        self.term(index).map(|term| LogId { term, index })
    }

    /// Returns the term and index of the last entry of each term, if this index is at least `from` and below `to`.
    /// Leaves out the newest term, which has not ended.
    pub(crate) fn term_ends(&self, from: Index, to: Index) -> impl Iterator<Item = LogId> {
        let neighbours = self.terms.iter().zip(self.terms.iter().skip(1));
        let ends = neighbours.map(|((_, term), (next, _))| LogId { term: *term, index: Index(next.0 - 1) });
        ends.filter(move |id| from <= id.index && id.index < to)
    }

    /// Returns the memory in bytes that this table of positions takes.
    pub(crate) fn bytes(&self) -> usize {
        self.anchors.capacity() * size_of::<Anchor>() + self.terms.capacity() * size_of::<(Index, Term)>()
    }
}

#[cfg(test)]
mod tests {
    use thalweg_types::Generation;

    use super::*;

    fn at(generation: u64, offset: u32) -> LogPosition {
        LogPosition { generation: Generation(generation), offset }
    }

    fn filled(entries: u64) -> SparseIndex {
        let mut index = SparseIndex::default();
        for number in 0..entries {
            index.push(Term(number / 1000), Lsn(10 + number), at(1, 100 * number as u32), 60);
        }
        index
    }

    #[test]
    fn small_entries_share_anchors() {
        let index = filled(100_000);
        assert_eq!(index.seek(Index(255)), Some(Lsn(10)));
        assert_eq!(index.seek(Index(256)), Some(Lsn(266)));
        assert_eq!(index.seek(Index(99_999)), Some(Lsn(10 + 99_840)));
        assert_eq!(index.last(), Some(LogId { term: Term(99), index: Index(99_999) }));
        assert!(index.bytes() < 100_000 / 4, "{}", index.bytes());
        assert_eq!(index.bytes_from(Index(99_000)), 60_000);
    }

    #[test]
    fn large_entries_and_new_segments_have_anchors_of_their_own() {
        let mut index = SparseIndex::default();
        index.push(Term(1), Lsn(1), at(1, 0), ANCHOR_BYTES as usize);
        index.push(Term(1), Lsn(2), at(1, ANCHOR_BYTES), 1);
        index.push(Term(1), Lsn(3), at(1, ANCHOR_BYTES + 1), 1);
        index.push(Term(1), Lsn(4), at(2, 0), 7);
        let found: Vec<_> = (0..4).map(|entry| index.seek(Index(entry)).unwrap().0).collect();
        assert_eq!(found, [1, 2, 2, 4]);
        let bytes: Vec<_> = (0..5).map(|entry| index.bytes_from(Index(entry))).collect();
        assert_eq!(bytes, [u64::from(ANCHOR_BYTES) + 9, 9, 8, 7, 0]);
    }

    #[test]
    fn an_entry_after_a_truncation_is_an_anchor() {
        let mut index = filled(100);
        index.truncate(Index(50));
        assert_eq!((index.next(), index.term(Index(50))), (Index(50), None));
        index.push(Term(7), Lsn(900), at(1, 20_000), 5);
        assert_eq!((index.bytes_from(Index(0)), index.bytes_from(Index(50))), (50 * 60 + 5, 5));
        assert_eq!(index.seek(Index(49)), Some(Lsn(10)));
        assert_eq!(index.seek(Index(50)), Some(Lsn(900)));
        assert_eq!(index.term(Index(50)), Some(Term(7)));
        index.truncate(Index(0));
        assert!(index.is_empty() && index.last().is_none() && index.seek(Index(0)).is_none());
    }

    #[test]
    fn a_purge_keeps_the_anchor_and_the_term_of_the_first_entry() {
        let mut index = filled(3000);
        index.purge(Index(1500));
        assert_eq!((index.first(), index.next()), (Index(1501), Index(3000)));
        assert_eq!(index.seek(Index(1501)), Some(Lsn(10 + 1280)));
        assert_eq!((index.bytes_from(Index(0)), index.bytes_from(Index(2990))), (1499 * 60, 600));
        assert_eq!((index.term(Index(1500)), index.term(Index(1501))), (None, Some(Term(1))));
        let ends: Vec<_> = index.term_ends(Index(1501), Index(2999)).map(|id| (id.term.0, id.index.0)).collect();
        assert_eq!(ends, [(1, 1999)]);
        index.purge(Index(5000));
        assert_eq!((index.first(), index.next(), index.last()), (Index(5001), Index(5001), None));
    }
}
