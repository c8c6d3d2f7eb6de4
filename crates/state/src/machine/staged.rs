//! The state's map as changed so far by the log record being applied: the changes of its batch over the backend's rows.
//!
//! Owns: the batch, and lookups of earlier changes in it. Every read of a command goes through this file
//! (`Applying::get`, `Applying::look`, `Applying::view`), so a command sees the changes of all earlier commands, of its
//! own entry or of previous ones. Does not own: the tables that the machine keeps in memory (heads, counts, clears,
//! consumer groups), which are changed in place.
//!
//! Each read, write and scan is charged here (`meter`), and nowhere else, so no command can avoid it. A scan of a
//! command that has used up its steps ends early, because the command is rejected anyway.
//!
//! An entry of blind writes reads nothing, so it never pays for an index of its changes. The first read that finds
//! changes in the batch builds this index, which is maintained from then on. The first scan builds the ordered set of
//! changed keys.
//!
//! Invariants:
//! * If the index exists, it contains the last change of every key that the batch changes.
//! * A rollback restores the batch, and the results of reads in it, to the content at the savepoint.

use std::{
    collections::BTreeSet,
    hash::BuildHasher,
    ops::{Bound, ControlFlow},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use foldhash::quality::RandomState;
use hashbrown::{HashTable, hash_table::Entry};
use thalweg_store::{
    Applied, BackendError, Change, Direction, View, Visit, WriteBatch, bounds_are_empty, deleted_rows_passed,
};
use thalweg_types::{
    meter::Meter,
    steps::{MAX_PASSED_BYTES, READ, ROW, SCAN, WRITE, read_bytes, written_bytes},
};

use crate::{
    keys::{TAG_DATA, TAG_INDEX, TAG_LIVENESS, TAG_MARK, TAG_MEMBERSHIP, TAG_VERDICT, TAG_VERSIONS},
    keyspaces::{row_head::LargeRows, values::value_len_of_row},
    machine::gaps::{Gaps, Span},
};

/// The row changes of the log record being applied.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    batch: WriteBatch,
    index: OnceLock<Index>,
    /// Ordered set of the row keys that the batch changes, and possibly of keys whose changes were rolled back.
    order: OnceLock<BTreeSet<Box<[u8]>>>,
    /// An index of an earlier log record, kept to reuse its allocations.
    spare: Mutex<Index>,
    meter: Meter,
    /// Number of changes in the batch when the current command began.
    command_from: u32,
    /// Ranges of the backend that scans of this log record have found to have no rows.
    gaps: Mutex<Gaps>,
    large_rows: LargeRows,
}

/// Undo data of an overwrite in place: the bytes that the overwrite has replaced in a change of the batch.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Overwritten {
    /// Number, within the batch, of the change that was overwritten.
    pub(crate) number: u32,
    before: Box<[u8]>,
}

/// Hash index over the changes of a batch. Finds the last change of a row key.
#[derive(Debug, Default)]
struct Index {
    hasher: RandomState,
    /// Number of each key's last change, by the hash of the key.
    last: HashTable<u32>,
    /// For each change of the batch, the number of the previous change of the same key; [`NONE`] if there is none.
    before: Vec<u32>,
    /// First bytes of the changed row keys, as a bit set. A scan of rows with another first byte skips the batch.
    tags: u32,
}

/// Value of an entry of `before` for a change whose key has no earlier change.
const NONE: u32 = u32::MAX;

/// Maximum number of changes for which the hash index of a batch keeps its memory between log records.
const IDLE_CHANGES: usize = 64 * 1024;

/// Minimum number of deleted rows that a scan has passed in a range before it notes the range as one without rows.
const MIN_GAP_ROWS: u64 = 64;

/// Returns true if rows whose keys begin with this byte differ between nodes. Reading such rows is not charged as work,
/// because all nodes must charge equally.
#[inline]
fn is_local(tag: Option<u8>) -> bool {
    matches!(tag, Some(TAG_INDEX | TAG_LIVENESS | TAG_MEMBERSHIP | TAG_VERDICT | TAG_MARK))
}

/// Returns the bytes with which a scan is charged for a row. They are the same on every node.
#[inline]
fn passed_bytes(key: &[u8], row: &[u8]) -> usize {
    key.len()
        + match key.first() {
            Some(&TAG_DATA) => value_len_of_row(row).min(MAX_PASSED_BYTES),
            // Versions contain values, and nodes store long values in different forms.
            Some(&TAG_VERSIONS) => 0,
            _ => row.len(),
        }
}

fn key_of(batch: &WriteBatch, number: u32) -> &[u8] {
    match batch.change(number) {
        Some(Change::Put(key, _) | Change::Delete(key)) => key,
        None => &[],
    }
}

fn tag_bit(key: &[u8]) -> u32 {
    key.first().map_or(0, |tag| 1 << (tag & 31))
}

impl Index {
    fn add(&mut self, batch: &WriteBatch, number: u32) {
        let Self { hasher, last, before, tags } = self;
        let key = key_of(batch, number);
        *tags |= tag_bit(key);
        let same = |other: &u32| key_of(batch, *other) == key;
        match last.entry(hasher.hash_one(key), same, |other| hasher.hash_one(key_of(batch, *other))) {
            Entry::Occupied(mut found) => before.push(std::mem::replace(found.get_mut(), number)),
            Entry::Vacant(vacant) => {
                vacant.insert(number);
                before.push(NONE);
            }
        }
    }

    fn find(&self, batch: &WriteBatch, key: &[u8]) -> Option<u32> {
        self.last.find(self.hasher.hash_one(key), |number| key_of(batch, *number) == key).copied()
    }

    /// Removes the newest change of the batch from the index.
    fn remove_last(&mut self, batch: &WriteBatch) {
        let Some(before) = self.before.pop() else { return };
        let number = self.before.len() as u32;
        let hash = self.hasher.hash_one(key_of(batch, number));
        let Ok(mut found) = self.last.find_entry(hash, |other| *other == number) else { return };
        match before {
            NONE => drop(found.remove()),
            before => *found.get_mut() = before,
        }
    }

    fn clear(&mut self) {
        if self.before.capacity() > IDLE_CHANGES {
            *self = Self::default();
        }
        self.last.clear();
        self.before.clear();
        self.tags = 0;
    }
}

impl Staged {
    /// Returns a view of the rows of `below` with the staged changes applied over them.
    pub(crate) fn over(&self, below: Arc<dyn View>) -> StagedView<'_> {
        StagedView { staged: self, below }
    }

    /// Sets a row. Key and value are given as pieces, which are concatenated.
    #[inline]
    pub(crate) fn put(&mut self, key: &[&[u8]], value: &[&[u8]]) {
        let tag = key.first().and_then(|piece| piece.first()).copied();
        if !is_local(tag) {
            // The bytes of values are charged where commands compute them.
            let bytes = match tag {
                Some(TAG_DATA | TAG_VERSIONS) => 0,
                _ => value.iter().map(|piece| piece.len()).sum(),
            };
            self.meter.charge(WRITE + written_bytes(bytes));
        }
        self.batch.put(key, value);
        self.note();
    }

    /// Removes a row. Its key is given as pieces, which are concatenated.
    #[inline]
    pub(crate) fn delete(&mut self, key: &[&[u8]]) {
        if !is_local(key.first().and_then(|piece| piece.first()).copied()) {
            self.meter.charge(WRITE);
        }
        self.batch.delete(key);
        self.note();
    }

    #[inline]
    fn note(&mut self) {
        if let Some(index) = self.index.get_mut() {
            let number = self.batch.len() as u32 - 1;
            index.add(&self.batch, number);
            if let Some(order) = self.order.get_mut() {
                let key = key_of(&self.batch, number);
                if !order.contains(key) {
                    order.insert(key.into());
                }
            }
        }
    }

    /// Overwrites the value that the key's last change puts, if the new value has the same length and form. Returns
    /// `None` otherwise. Used by commands that add to one Redis stream and so change its row repeatedly. The decision
    /// is the same on every node, wherever a node stores the key's value.
    pub(crate) fn put_in_place(&mut self, key: &[u8], value: &[u8]) -> Option<Overwritten> {
        let (number, before) = self.last_put(key)?;
        if before.len() != value.len() || before.first() != value.first() {
            return None;
        }
        self.overwrite(number, value)
    }

    /// Overwrites the first bytes of the value that the key's last change puts. `make` returns the new first bytes,
    /// given the value's first byte, or `None` for no change.
    pub(crate) fn put_beginning(
        &mut self,
        key: &[u8],
        make: impl FnOnce(u8) -> Option<Vec<u8>>,
    ) -> Option<Overwritten> {
        let (number, before) = self.last_put(key)?;
        let beginning = make(*before.first()?)?;
        self.overwrite(number, &beginning)
    }

    fn last_put(&self, key: &[u8]) -> Option<(u32, &[u8])> {
        let number = self.index()?.find(&self.batch, key)?;
        Some((number, self.value(number)?))
    }

    fn overwrite(&mut self, number: u32, beginning: &[u8]) -> Option<Overwritten> {
        let before = self.batch.overwrite(number, beginning)?;
        // The same price as of the put that is needed if the earlier change is in another entry.
        self.meter.charge(WRITE);
        Some(Overwritten { number, before })
    }

    /// Restores the bytes that an overwrite in place has replaced.
    pub(crate) fn restore(&mut self, overwritten: &Overwritten) {
        self.batch.overwrite(overwritten.number, &overwritten.before);
    }

    /// Returns the key's last change: `None` if the log record did not change the key, `Some(None)` if it removed the
    /// key.
    #[inline]
    pub(crate) fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        let number = self.index()?.find(&self.batch, key)?;
        Some(self.value(number))
    }

    fn value(&self, number: u32) -> Option<&[u8]> {
        match self.batch.change(number) {
            Some(Change::Put(_, value)) => Some(value),
            Some(Change::Delete(_)) | None => None,
        }
    }

    /// Iterates in order over those keys within the bounds that the log record changed, with their new values; `None`
    /// for removed keys. The third item is true if the current command has made the change.
    pub(crate) fn changes_within(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], Option<&[u8]>, bool)> {
        let index = self.index().filter(|index| index.may_overlap(lower, upper) && !bounds_are_empty(lower, upper));
        index.into_iter().flat_map(move |index| {
            let order = self.order.get_or_init(|| index.last.iter().map(|n| key_of(&self.batch, *n).into()).collect());
            order.range::<[u8], _>((lower, upper)).filter_map(|key| {
                let number = index.find(&self.batch, key)?;
                Some((&**key, self.value(number), number >= self.command_from))
            })
        })
    }

    /// Returns the index of the changes in the batch, and builds it first if necessary; `None` while the batch is
    /// empty.
    #[inline]
    fn index(&self) -> Option<&Index> {
        if self.batch.is_empty() {
            return None;
        }
        Some(self.index.get_or_init(|| {
            let mut index = std::mem::take(&mut *self.spare.lock().unwrap_or_else(PoisonError::into_inner));
            (0..self.batch.len() as u32).for_each(|number| index.add(&self.batch, number));
            index
        }))
    }

    /// Returns the number of changes in the batch. A savepoint stores this number.
    pub(crate) fn len(&self) -> usize {
        self.batch.len()
    }

    /// Removes all changes of the batch after the first `len` changes.
    pub(crate) fn truncate(&mut self, len: usize) {
        if let Some(index) = self.index.get_mut() {
            while index.before.len() > len {
                index.remove_last(&self.batch);
            }
        }
        self.batch.truncate(len);
    }

    /// Returns the batch, to which the caller adds rows that no command reads before the batch is applied. These
    /// changes bypass the index.
    pub(crate) fn batch(&mut self) -> &mut WriteBatch {
        &mut self.batch
    }

    #[inline]
    pub(crate) fn meter(&self) -> &Meter {
        &self.meter
    }

    /// Begins a command. From now on, its changes can be distinguished from those of earlier commands of the entry.
    #[inline]
    pub(crate) fn begin_command(&mut self) {
        self.command_from = self.batch.len() as u32;
    }

    /// Returns the rows of 16 KiB or more that this log record has read from the backend.
    #[inline]
    pub(crate) fn large_rows(&self) -> &LargeRows {
        &self.large_rows
    }

    fn gaps(&self) -> MutexGuard<'_, Gaps> {
        self.gaps.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes all changes of the previous log record, and keeps the allocations.
    pub(crate) fn clear(&mut self) {
        self.batch.clear();
        self.command_from = 0;
        self.meter.end_budget();
        self.gaps.get_mut().unwrap_or_else(PoisonError::into_inner).clear();
        self.order.take();
        self.large_rows = LargeRows::default();
        if let Some(mut index) = self.index.take() {
            index.clear();
            *self.spare.get_mut().unwrap_or_else(PoisonError::into_inner) = index;
        }
    }
}

impl Index {
    /// Returns true if the batch may change a key within the bounds. Rows of one kind share their first byte, so
    /// bounds with the same first byte are within one kind.
    fn may_overlap(&self, lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> bool {
        let first = |bound| match bound {
            Bound::Included(key) | Bound::Excluded(key) => <[u8]>::first(key).copied(),
            Bound::Unbounded => None,
        };
        match (lower, first(lower), upper, first(upper)) {
            (Bound::Included(key) | Bound::Excluded(key), Some(low), _, Some(high)) if low == high => {
                self.tags & tag_bit(key) != 0
            }
            // All rows of a kind are below the next first byte.
            (Bound::Included(key), Some(low), Bound::Excluded([_]), Some(high)) if high == low + 1 => {
                self.tags & tag_bit(key) != 0
            }
            _ => true,
        }
    }
}

/// A view of the state's rows as the commands so far have left them.
pub(crate) struct StagedView<'s> {
    staged: &'s Staged,
    below: Arc<dyn View>,
}

impl View for StagedView<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Bytes>, BackendError> {
        self.staged.meter.charge(READ);
        match self.staged.get(key) {
            Some(value) => Ok(value.map(Bytes::copy_from_slice)),
            None => self.below.get(key),
        }
    }

    fn scan(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        let meter = &self.staged.meter;
        let tag = match lower {
            Bound::Included(key) | Bound::Excluded(key) => key.first().copied(),
            Bound::Unbounded => None,
        };
        meter.charge(if is_local(tag) { 0 } else { SCAN });
        if meter.is_spent() {
            return Ok(());
        }
        let mut charged = |key: &[u8], row: &[u8]| {
            if !is_local(key.first().copied()) {
                meter.charge(ROW + read_bytes(passed_bytes(key, row)));
            }
            if meter.is_spent() { ControlFlow::Break(()) } else { visit(key, row) }
        };
        let own = self.staged.changes_within(lower, upper);
        match direction {
            Direction::Forward => self.merge(own, lower, upper, direction, &mut charged),
            Direction::Reverse => self.merge(own.rev(), lower, upper, direction, &mut charged),
        }
    }

    fn applied(&self) -> Applied {
        self.below.applied()
    }
}

impl StagedView<'_> {
    fn merge<'s>(
        &self,
        own: impl Iterator<Item = (&'s [u8], Option<&'s [u8]>, bool)>,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        let mut own = own.peekable();
        if own.peek().is_none() {
            return self.scan_below(lower, upper, direction, visit);
        }
        let meter = &self.staged.meter;
        let mut show = |key: &[u8], value: Option<&[u8]>, is_own: bool| match value {
            Some(value) => visit(key, value),
            None => {
                // Rows that the command itself has removed are the same on every node and in every entry. Rows that
                // earlier commands of the entry have removed cost nothing.
                meter.charge(if is_own { ROW } else { 0 });
                if meter.is_spent() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            }
        };
        let comes_before = |own: &[u8], key: &[u8]| match direction {
            Direction::Forward => own < key,
            Direction::Reverse => own > key,
        };
        let mut ended = false;
        self.scan_below(lower, upper, direction, &mut |key, row| {
            let mut step = || {
                while let Some((own, value, is_own)) = own.next_if(|(own, ..)| comes_before(own, key)) {
                    show(own, value, is_own)?;
                }
                match own.next_if(|(own, ..)| *own == key) {
                    Some((_, value, is_own)) => show(key, value, is_own),
                    None => show(key, Some(row), false),
                }
            };
            let flow = step();
            ended = flow.is_break();
            flow
        })?;
        while !ended && let Some((own, value, is_own)) = own.next() {
            ended = show(own, value, is_own).is_break();
        }
        Ok(())
    }

    /// Visits the rows of the backend within the bounds. Leaves out ranges that earlier scans have found to have no
    /// rows, and remembers such ranges if passing them was expensive.
    fn scan_below(
        &self,
        lower: Bound<&[u8]>,
        upper: Bound<&[u8]>,
        direction: Direction,
        visit: &mut Visit<'_>,
    ) -> Result<(), BackendError> {
        let mut parts = self.staged.gaps().without(Span::of(lower, upper));
        if direction == Direction::Reverse {
            parts.reverse();
        }
        for part in parts {
            let (mut found, mut ended) = (Vec::new(), false);
            // The row that was visited last, once there is one.
            let (mut last, mut has_last) = (Vec::new(), false);
            let mut passed = deleted_rows_passed();
            let (from, to) = part.bounds();
            let mut gap_before = |next: Option<&[u8]>, last: Option<&[u8]>| {
                let next = next.map(Bound::Excluded);
                let last = last.map(Bound::Excluded);
                found.push(match direction {
                    Direction::Forward => Span::of(last.unwrap_or(from), next.unwrap_or(to)),
                    Direction::Reverse => Span::of(next.unwrap_or(from), last.unwrap_or(to)),
                });
            };
            self.below.scan(from, to, direction, &mut |key, row| {
                if deleted_rows_passed() - passed >= MIN_GAP_ROWS {
                    gap_before(Some(key), has_last.then_some(&last[..]));
                }
                last.clear();
                last.extend_from_slice(key);
                has_last = true;
                let flow = visit(key, row);
                // The visitor may have read other rows and so changed the count.
                passed = deleted_rows_passed();
                ended = flow.is_break();
                flow
            })?;
            if !ended && deleted_rows_passed() - passed >= MIN_GAP_ROWS {
                gap_before(None, has_last.then_some(&last[..]));
            }
            if !found.is_empty() {
                let mut gaps = self.staged.gaps();
                found.into_iter().for_each(|gap| gaps.add(gap));
            }
            if ended {
                return Ok(());
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn put(staged: &mut Staged, key: &[u8], value: &[u8]) {
        staged.put(&[key], &[value]);
    }

    fn pairs(staged: &Staged) -> Vec<(Vec<u8>, Option<Vec<u8>>)> {
        let all = staged.changes_within(Bound::Unbounded, Bound::Unbounded);
        all.map(|(key, value, _)| (key.to_vec(), value.map(<[u8]>::to_vec))).collect()
    }

    #[test]
    fn the_last_change_of_a_key_counts_and_a_rollback_brings_back_the_one_before() {
        let mut staged = Staged::default();
        assert_eq!(staged.get(b"\x10a"), None);
        put(&mut staged, b"\x10a", b"1");
        put(&mut staged, b"\x10b", b"2");
        assert_eq!(staged.get(b"\x10a"), Some(Some(b"1".as_slice())));
        let savepoint = staged.len();
        put(&mut staged, b"\x10a", b"3");
        staged.delete(&[b"\x10", b"b"]);
        put(&mut staged, b"\x10c", b"4");
        assert_eq!((staged.get(b"\x10a"), staged.get(b"\x10b")), (Some(Some(b"3".as_slice())), Some(None)));
        assert_eq!(pairs(&staged).len(), 3);
        staged.truncate(savepoint);
        assert_eq!((staged.get(b"\x10a"), staged.get(b"\x10c")), (Some(Some(b"1".as_slice())), None));
        let expected = [(b"\x10a".to_vec(), Some(b"1".to_vec())), (b"\x10b".to_vec(), Some(b"2".to_vec()))];
        assert_eq!(pairs(&staged), expected);
        staged.clear();
        assert_eq!((staged.get(b"\x10a"), pairs(&staged).len()), (None, 0));
    }

    #[test]
    fn a_put_in_place_needs_a_put_of_the_same_length_and_can_be_restored() {
        let mut staged = Staged::default();
        put(&mut staged, b"\x10a", b"12");
        assert_eq!(staged.put_in_place(b"\x10a", b"123"), None);
        assert_eq!(staged.put_in_place(b"\x10a", b"22"), None, "another form");
        assert_eq!(staged.put_in_place(b"\x10b", b"12"), None);
        let before = staged.put_in_place(b"\x10a", b"14").unwrap();
        assert_eq!((staged.get(b"\x10a"), &*before.before), (Some(Some(b"14".as_slice())), b"12".as_slice()));
        staged.restore(&before);
        assert_eq!(staged.get(b"\x10a"), Some(Some(b"12".as_slice())));
        staged.delete(&[b"\x10a"]);
        assert_eq!(staged.put_in_place(b"\x10a", b"14"), None);
        put(&mut staged, b"\x10a", b"1234");
        assert_eq!(staged.put_beginning(b"\x10a", |_| None), None);
        assert_eq!(staged.put_beginning(b"\x10a", |_| Some(b"12345".to_vec())), None, "longer than the value");
        let before = staged.put_beginning(b"\x10a", |first| Some(vec![first, b'x'])).unwrap();
        assert_eq!((staged.get(b"\x10a"), before.number), (Some(Some(b"1x34".as_slice())), 2));
        staged.restore(&before);
        assert_eq!(staged.get(b"\x10a"), Some(Some(b"1234".as_slice())));
    }

    /// Compares random changes, rollbacks and reads with a map.
    #[test]
    fn random_changes_and_rollbacks_agree_with_a_map() {
        for seed in 0..200_u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 33) % below
            };
            let (mut staged, mut model, mut saved) = (Staged::default(), BTreeMap::new(), Vec::new());
            for step in 0..60 {
                let key = vec![0x10 + random(2) as u8, random(6) as u8];
                match random(6) {
                    0 | 1 => {
                        put(&mut staged, &key, &[step]);
                        model.insert(key, Some(vec![step]));
                    }
                    2 => {
                        staged.delete(&[&key]);
                        model.insert(key, None);
                    }
                    3 => saved.push((staged.len(), model.clone())),
                    4 => {
                        if let Some((len, before)) = saved.pop() {
                            staged.truncate(len);
                            model = before;
                        }
                    }
                    _ => {
                        let expected = model.get(&key).map(Option::as_deref);
                        assert_eq!(staged.get(&key), expected, "seed {seed}, step {step}");
                    }
                }
            }
            let expected: Vec<_> = model.into_iter().collect();
            assert_eq!(pairs(&staged), expected, "seed {seed}");
        }
    }
}
