//! Table of deleted prefixes whose rows are not removed yet.
//!
//! Deleting a prefix with many keys writes one row here, a clear, which hides every older row under the prefix until
//! sweeps have removed it. A clear of a whole keyspace has the empty prefix.
//!
//! Owns: the clear rows, and the rule by which they hide a key. Does not own: sweeping (`clears/apply.rs`).
//!
//! Invariants:
//! * A row under a cleared prefix is hidden exactly if its revision is below the clear's. So values that a commit
//!   writes after its own delete, at the same revision, are visible.
//! * A reader takes the table together with its view (see `Machine::read_view`). A clear is added to the table
//!   before the batch that contains it is applied, and leaves it after the batch that removes the last hidden row.
//!
//! ```text
//! clear := revision u64 LE | flags u8 | kept | last key swept    at key 06 | keyspace u32 BE | prefix
//! kept  := count u32 LE | (revision u64 LE)*                     if flag bit 1 is set
//! ```
//! Flag bit 0: there is a last key swept.

use std::collections::BTreeMap;

use thalweg_store::View;
use thalweg_types::{
    KeyspaceId, Revision,
    codec::Reader,
    command::Outcome,
    limits::{MAX_NESTED_CLEARS, MAX_PENDING_CLEARS, clear_units},
    prefix_map::PrefixMap,
};

use crate::{
    error::MachineError,
    keys::{self, KeyRange},
    machine::staged::Staged,
};

/// A deleted prefix whose rows are hidden but not all removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Clear {
    /// Revision of the delete. Rows with the prefix and a lower revision are hidden.
    pub(crate) revision: Revision,
    /// Revision of an earlier delete of the same prefix that this clear replaced. Views that are older than the new
    /// delete still use the earlier revision. The field is lost when the node is reopened, so no outcome depends on it.
    pub(crate) earlier: Option<Revision>,
    /// Revisions of earlier deletes of the same prefix that still hide rows, ascending. Empty in keyspaces without
    /// history: only readers of the past need to know since when a row is hidden.
    pub(crate) kept: Vec<Revision>,
    /// Last user key that a sweep (removal of hidden rows) has examined, inclusive; `None` before the first sweep.
    pub(crate) swept: Option<Vec<u8>>,
}

const HAS_SWEPT: u8 = 1;
const HAS_KEPT: u8 = 2;

impl Clear {
    pub(crate) fn write(&self, keyspace: KeyspaceId, prefix: &[u8], staged: &mut Staged) {
        let swept = self.swept.as_deref();
        let mut head = self.revision.0.to_le_bytes().to_vec();
        head.push(if swept.is_some() { HAS_SWEPT } else { 0 } | if self.kept.is_empty() { 0 } else { HAS_KEPT });
        if !self.kept.is_empty() {
            head.extend_from_slice(&(self.kept.len() as u32).to_le_bytes());
            self.kept.iter().for_each(|revision| head.extend_from_slice(&revision.0.to_le_bytes()));
        }
        staged.put(&[&keys::clear_prefix(keyspace), prefix], &[&head, swept.unwrap_or_default()]);
    }

    fn decode(row: &[u8]) -> Option<Self> {
        let mut reader = Reader::at(row, 0);
        let revision = Revision(reader.u64("revision").ok()?);
        let flags = reader.u8("flags").ok().filter(|flags| flags & !(HAS_SWEPT | HAS_KEPT) == 0)?;
        let count = if flags & HAS_KEPT != 0 { reader.u32("count").ok()? } else { 0 };
        let kept = (0..count).map(|_| reader.u64("revision").map(Revision)).collect::<Result<_, _>>().ok()?;
        let swept = (flags & HAS_SWEPT != 0).then(|| reader.rest().to_vec());
        reader.is_empty().then_some(Self { revision, earlier: None, kept, swept })
    }

    /// Returns the revision of the first delete of this prefix after `revision`.
    fn first_after(&self, revision: Revision) -> Option<Revision> {
        let kept = self.kept.get(self.kept.partition_point(|kept| *kept <= revision));
        kept.copied().or(Some(self.revision)).filter(|&clear| revision < clear)
    }

    fn hides(&self, revision: Revision, as_of: Revision) -> bool {
        self.first_after(revision).into_iter().chain(self.earlier).any(|clear| clear <= as_of && revision < clear)
    }
}

/// The clears (deleted prefixes with hidden rows) of one keyspace. At most [`MAX_NESTED_CLEARS`] of them cover a key,
/// or twice as many in a table for readers of two states (`with_newer`).
#[derive(Clone, Debug, Default)]
pub(crate) struct Prefixes(PrefixMap<Clear>);

impl Prefixes {
    /// Returns true if a deleted prefix hides the row with this key and revision from a view whose last revision is
    /// `as_of`.
    pub(crate) fn hides(&self, key: &[u8], revision: Revision, as_of: Revision) -> bool {
        self.0.covering(key).any(|clear| clear.hides(revision, as_of))
    }

    /// Returns the revision of the first delete of a prefix that hides a row with this key and revision.
    pub(crate) fn hidden_since(&self, key: &[u8], revision: Revision) -> Option<Revision> {
        self.0.covering(key).filter_map(|clear| clear.first_after(revision)).min()
    }

    /// Returns the revision of the last delete of all keys in the keyspace; `None` if it has left no rows to remove.
    pub(crate) fn emptied_at(&self) -> Option<Revision> {
        self.0.get(b"").map(|clear| clear.revision)
    }

    /// Returns true if the deletion of a prefix at this revision has hidden rows that are not removed yet.
    pub(crate) fn has_delete_at(&self, revision: Revision) -> bool {
        self.0.iter().any(|(_, clear)| clear.revision == revision || clear.kept.contains(&revision))
    }
}

/// All clears by keyspace. A clear is a deleted prefix with hidden rows that are not all removed yet.
#[derive(Clone, Debug, Default)]
pub(crate) struct ClearTable {
    by_keyspace: BTreeMap<KeyspaceId, Prefixes>,
}

/// Changes that an entry makes to the table of deleted prefixes, by keyspace and prefix; `None` removes a prefix.
pub(crate) type ClearChanges = BTreeMap<(KeyspaceId, Vec<u8>), Option<Clear>>;

impl ClearTable {
    pub(crate) fn load(view: &dyn View) -> Result<Self, MachineError> {
        let mut table = Self::default();
        crate::rows::load_rows(view, &KeyRange::with_prefix(&[keys::TAG_CLEAR]), |key, row| {
            let corrupt = |message| MachineError::corrupt("deleted prefix", key, message);
            let (keyspace, prefix) = keys::clear_of(key).ok_or_else(|| corrupt("key of a wrong length"))?;
            let clear = Clear::decode(row).ok_or_else(|| corrupt("row does not decode"))?;
            table.set(keyspace, prefix, Some(clear));
            Ok(())
        })?;
        Ok(table)
    }

    #[inline]
    pub(crate) fn of(&self, keyspace: KeyspaceId) -> Option<&Prefixes> {
        self.by_keyspace.get(&keyspace)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.by_keyspace.is_empty()
    }

    /// Returns the used part of the table's capacity of [`MAX_PENDING_CLEARS`] units. A clear with a longer prefix uses
    /// more units.
    pub(crate) fn units(&self) -> usize {
        self.iter().map(|(_, prefix, clear)| clear_units(prefix.len()) + clear.kept.len()).sum()
    }

    /// Returns the outcome that rejects the deletion of this prefix because the table is full; `None` if the table has
    /// room for the new clear, which does not replace another one.
    pub(crate) fn refusal(&self, keyspace: KeyspaceId, prefix: &[u8]) -> Option<Outcome> {
        let more = self.get(keyspace, prefix).map_or(clear_units(prefix.len()), |_| 1);
        if self.units() + more > MAX_PENDING_CLEARS {
            return Some(Outcome::TooMany { what: "deleted prefixes wait to be swept", limit: MAX_PENDING_CLEARS });
        }
        let is_deep = self.of(keyspace).is_some_and(|of| of.0.depth_with(prefix) > MAX_NESTED_CLEARS);
        let what = "deleted prefixes that begin with one another wait to be swept";
        is_deep.then_some(Outcome::TooMany { what, limit: MAX_NESTED_CLEARS })
    }

    pub(crate) fn get(&self, keyspace: KeyspaceId, prefix: &[u8]) -> Option<&Clear> {
        self.of(keyspace)?.0.get(prefix)
    }

    /// Iterates over the clears (deleted prefixes with hidden rows) in the order of keyspace and prefix.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (KeyspaceId, &[u8], &Clear)> {
        self.by_keyspace
            .iter()
            .flat_map(|(&keyspace, prefixes)| prefixes.0.iter().map(move |(prefix, clear)| (keyspace, prefix, clear)))
    }

    /// Returns a copy of the table with the deleted prefixes that an entry adds. Prefixes that the entry removes stay.
    pub(crate) fn with_added(&self, changes: &ClearChanges) -> Self {
        let mut table = self.clone();
        let added = changes.iter().filter(|(_, change)| change.is_some());
        added.for_each(|((keyspace, prefix), clear)| table.set(*keyspace, prefix, clear.clone()));
        table
    }

    /// Returns a table for readers of this state and of a newer one, whose table is `newer`. It hides rows from the
    /// views of both.
    pub(crate) fn with_newer(&self, newer: &Self) -> Self {
        let mut table = self.clone();
        for (keyspace, prefix, clear) in newer.iter() {
            let earlier = self.get(keyspace, prefix).map(|before| before.revision).or(clear.earlier);
            table.set(keyspace, prefix, Some(Clear { earlier, ..clear.clone() }));
        }
        table
    }

    /// Adds a deleted prefix with hidden rows to the table; `None` removes it.
    pub(crate) fn set(&mut self, keyspace: KeyspaceId, prefix: &[u8], clear: Option<Clear>) {
        let prefixes = self.by_keyspace.entry(keyspace).or_default();
        match clear {
            Some(clear) => prefixes.0.insert(prefix, clear),
            None => prefixes.0.remove(prefix),
        }
        if prefixes.0.is_empty() {
            self.by_keyspace.remove(&keyspace);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use thalweg_store::Change;

    const KS: KeyspaceId = KeyspaceId(3);

    fn clear(revision: u64, earlier: Option<u64>) -> Clear {
        Clear { revision: Revision(revision), earlier: earlier.map(Revision), kept: Vec::new(), swept: None }
    }

    #[test]
    fn layout_is_pinned() {
        let mut staged = Staged::default();
        let begun = Clear { swept: Some(b"pk".to_vec()), ..clear(0x0102, None) };
        clear(7, None).write(KS, b"", &mut staged);
        begun.write(KS, b"p", &mut staged);
        let changes: Vec<_> = staged.batch().changes().collect();
        assert_eq!(changes[0], Change::Put(b"\x06\0\0\0\x03", b"\x07\0\0\0\0\0\0\0\0"));
        assert_eq!(changes[1], Change::Put(b"\x06\0\0\0\x03p", b"\x02\x01\0\0\0\0\0\0\x01pk"));
        assert_eq!(Clear::decode(b"\x02\x01\0\0\0\0\0\0\x01pk"), Some(begun));
        for bad in [b"".as_slice(), b"\x07\0\0\0\0\0\0\0", b"\x07\0\0\0\0\0\0\0\0x", b"\x07\0\0\0\0\0\0\0\x02"] {
            assert_eq!(Clear::decode(bad), None, "{bad:?}");
        }
        let kept = Clear { kept: vec![Revision(3), Revision(5)], ..clear(7, None) };
        let mut staged = Staged::default();
        kept.write(KS, b"p", &mut staged);
        let bytes = b"\x07\0\0\0\0\0\0\0\x02\x02\0\0\0\x03\0\0\0\0\0\0\0\x05\0\0\0\0\0\0\0";
        assert_eq!(staged.batch().changes().next(), Some(Change::Put(b"\x06\0\0\0\x03p", bytes)));
        assert_eq!(Clear::decode(bytes), Some(kept));
        assert_eq!(Clear::decode(b"\x07\0\0\0\0\0\0\0\x04"), None);
    }

    #[test]
    fn what_is_older_than_the_delete_is_hidden_from_views_that_have_it() {
        let changes = ClearChanges::from([
            ((KS, b"a".to_vec()), Some(clear(5, None))),
            ((KS, b"ab/".to_vec()), Some(clear(9, Some(3)))),
        ]);
        let mut table = ClearTable::default().with_added(&changes);
        let hides = |key: &[u8], revision, as_of| table.of(KS).unwrap().hides(key, Revision(revision), Revision(as_of));
        assert!(hides(b"a", 4, 9) && hides(b"axx", 4, 5) && !hides(b"a", 5, 9));
        assert!(!hides(b"a", 4, 4), "a view of before does not know it");
        assert!(!hides(b"b", 1, 9) && !hides(b"", 1, 9));
        assert!(hides(b"ab/c", 8, 9) && !hides(b"ab/c", 8, 8), "both prefixes count");
        assert!(hides(b"ab/c", 2, 4) && !hides(b"ab/c", 3, 4), "the delete before this one");
        assert!(table.of(KeyspaceId(4)).is_none());
        let since = |key: &[u8], revision| table.of(KS).unwrap().hidden_since(key, Revision(revision)).map(|at| at.0);
        assert_eq!([since(b"ab/c", 2), since(b"ab/c", 4), since(b"ab/c", 8)], [Some(5), Some(5), Some(9)]);
        assert_eq!([since(b"ab/c", 9), since(b"b", 0), since(b"axx", 5)], [None; 3]);
        let gone = ClearChanges::from([((KS, b"a".to_vec()), None), ((KS, b"ab/".to_vec()), None)]);
        assert_eq!(table.with_added(&gone).units(), 2);
        gone.keys().for_each(|(keyspace, prefix)| table.set(*keyspace, prefix, None));
        assert!(table.is_empty());
    }
}
