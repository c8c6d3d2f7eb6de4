//! Request ids (*names*) of the client requests whose commands are in recent entries. Members write them to their debug
//! logs when they apply the entries.
//!
//! Owns: the names that the leader keeps in memory, and the bound of this memory. Does not own: how names are made, how
//! they reach other members, or the log lines (`cluster`).
//!
//! An entry does not contain the names: the state must be a function of its entries, and every replica would store
//! them. So the leader keeps the names in memory. It numbers them in the order in which it received them. It keeps none
//! unless a member has asked for them.
//!
//! Invariants: a kept name belongs to a committed entry; the leader drops the oldest names beyond
//! [`MAX_ENTRY_NAME_BYTES`].

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
};

use thalweg_types::{Index, limits::MAX_ENTRY_NAME_BYTES};

/// Memory in bytes that the names (request ids) of one entry take in addition to their text.
const ENTRY_BYTES: usize = 64;

/// Names (request ids) of the client requests whose commands are in recent entries. The names of each entry have a
/// number. See the module's documentation.
#[derive(Debug, Default)]
pub struct EntryNames {
    is_wanted: Cell<bool>,
    kept: RefCell<KeptNames>,
}

#[derive(Debug, Default)]
struct KeptNames {
    names: VecDeque<(Index, String)>,
    /// Number of entries whose names (request ids) are no longer kept; these were the oldest ones.
    dropped: u64,
    bytes: usize,
}

impl KeptNames {
    fn drop_first(&mut self) {
        if let Some((_, names)) = self.names.pop_front() {
            self.bytes -= ENTRY_BYTES + names.len();
            self.dropped += 1;
        }
    }
}

impl EntryNames {
    /// Begins to keep the names (request ids) of client requests if `is_wanted` is true. If it is false, drops the kept
    /// names and keeps no more.
    pub fn want(&self, is_wanted: bool) {
        self.is_wanted.set(is_wanted);
        if !is_wanted {
            let mut kept = self.kept.borrow_mut();
            while !kept.names.is_empty() {
                kept.drop_first();
            }
        }
    }

    /// Keeps the names (request ids) of the client requests whose commands are in a committed entry, if a member has
    /// asked for names. An empty text is not kept.
    pub fn note(&self, index: Index, names: impl FnOnce() -> String) {
        if !self.is_wanted.get() {
            return;
        }
        let names = names();
        if names.is_empty() {
            return;
        }
        let mut kept = self.kept.borrow_mut();
        kept.bytes += ENTRY_BYTES + names.len();
        kept.names.push_back((index, names));
        while kept.bytes > MAX_ENTRY_NAME_BYTES {
            kept.drop_first();
        }
    }

    /// Returns the names (request ids) with numbers above `after`, each with the index of its entry, and the number of
    /// the first returned name. Numbers begin at 1. If `after` is a number that this process has not assigned yet, an
    /// earlier process has assigned it; then the function returns all names.
    #[must_use]
    pub fn after(&self, after: u64) -> (u64, Vec<(Index, String)>) {
        let kept = self.kept.borrow();
        let last = kept.dropped + kept.names.len() as u64;
        let skipped = if after > last { 0 } else { after.saturating_sub(kept.dropped) };
        let names = kept.names.iter().skip(skipped as usize).cloned().collect();
        (kept.dropped + skipped + 1, names)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indexes(names: &EntryNames, after: u64) -> (u64, Vec<u64>) {
        let (first, names) = names.after(after);
        (first, names.into_iter().map(|(index, _)| index.0).collect())
    }

    #[test]
    fn names_are_kept_only_while_they_are_wanted() {
        let names = EntryNames::default();
        names.note(Index(1), || unreachable!("nobody wants names"));
        assert_eq!(indexes(&names, 0), (1, vec![]));
        names.want(true);
        names.note(Index(2), String::new);
        names.note(Index(3), || "a".to_owned());
        names.note(Index(4), || "b, c".to_owned());
        assert_eq!(names.after(0), (1, vec![(Index(3), "a".to_owned()), (Index(4), "b, c".to_owned())]));
        assert_eq!(indexes(&names, 1), (2, vec![4]));
        assert_eq!(indexes(&names, 2), (3, vec![]));
        assert_eq!(indexes(&names, 9), (1, vec![3, 4]), "a number of an earlier run");
        names.want(false);
        assert_eq!(indexes(&names, 2), (3, vec![]), "the numbers continue");
        names.want(true);
        names.note(Index(5), || "d".to_owned());
        assert_eq!(indexes(&names, 2), (3, vec![5]));
    }

    #[test]
    fn the_oldest_names_are_dropped_beyond_the_bound() {
        let names = EntryNames::default();
        names.want(true);
        let text = "n".repeat(1000);
        let count = 2 * MAX_ENTRY_NAME_BYTES as u64 / 1000;
        for index in 1..=count {
            names.note(Index(index), || text.clone());
        }
        let (first, kept) = indexes(&names, 1);
        assert!(first > 2 && kept.len() * (1000 + ENTRY_BYTES) <= MAX_ENTRY_NAME_BYTES, "{first}");
        assert_eq!((kept[0], kept[kept.len() - 1]), (first, count));
    }
}
