//! What earlier writes of the entry being applied made of keys, for the commands after them that read.
//!
//! An entry of blind commands keeps nothing here: it reads nothing and allocates nothing. A transaction
//! sets what it is about to write while it is planned, between [`Overlay::try_out`] and
//! [`Overlay::keep`] or [`Overlay::undo`].
//! Invariant: while it is wanted, the overlay and the backend together say what the map will be.

use std::{
    borrow::Cow,
    cell::OnceCell,
    collections::{BTreeMap, BTreeSet, HashMap},
    ops::Bound,
};

use foldhash::quality::RandomState;
use thalweg_types::{
    KeyspaceId,
    command::{Command, Commands},
    record::Malformed,
};

use crate::machine::live::LiveKey;

/// A key, and what the overlay said of it.
type Before<'a> = (KeyspaceId, Cow<'a, [u8]>, Option<Option<LiveKey<'a>>>);

/// Keys of a keyspace, found by their hash, which nobody can see: whoever goes through them goes by their order. That is
/// made when it is first asked for, and kept from then on: most entries have no use for it.
#[derive(Debug, Default)]
struct Keys<'a> {
    rows: HashMap<Cow<'a, [u8]>, Option<LiveKey<'a>>, RandomState>,
    order: OnceCell<BTreeSet<Cow<'a, [u8]>>>,
}

impl<'a> Keys<'a> {
    #[inline]
    fn insert(&mut self, key: Cow<'a, [u8]>, written: Option<LiveKey<'a>>) -> Option<Option<LiveKey<'a>>> {
        if let Some(order) = self.order.get_mut() {
            order.insert(key.clone());
        }
        self.rows.insert(key, written)
    }

    fn remove(&mut self, key: &[u8]) {
        if let Some(order) = self.order.get_mut() {
            order.remove(key);
        }
        self.rows.remove(key);
    }

    fn range(
        &self,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
    ) -> impl DoubleEndedIterator<Item = (&[u8], Option<&LiveKey<'a>>)> {
        let order = self.order.get_or_init(|| self.rows.keys().cloned().collect());
        let row = |key: &[u8]| self.rows.get(key).and_then(Option::as_ref);
        order.range::<[u8], _>(bounds).map(move |key| (&**key, row(key)))
    }
}

/// The keys that the entry wrote; `None` where it deleted.
#[derive(Debug)]
pub(crate) struct Overlay<'a> {
    keys: BTreeMap<KeyspaceId, Keys<'a>>,
    /// Prefixes that the entry deleted without looking at their rows: those in the backend are hidden.
    clears: Vec<(KeyspaceId, &'a [u8])>,
    /// What a planned transaction has set so far, with what was there before.
    tried: Option<Tried<'a>>,
    /// The allocation of the last one.
    spare: Vec<Before<'a>>,
    /// The last command that reads keys: what those after it write need not be remembered.
    last_reader: usize,
    /// The command being run.
    number: usize,
    /// Whether it reads what it has written itself.
    own: bool,
}

#[derive(Debug)]
struct Tried<'a> {
    before: Vec<Before<'a>>,
    clears: usize,
}

impl<'a> Overlay<'a> {
    pub(crate) fn for_entry(payload: &[u8]) -> Self {
        let reads = |framed: &Result<(usize, &[u8]), Malformed>| {
            framed.as_ref().is_ok_and(|(_, bytes)| Command::reads_keys(bytes))
        };
        let readers = Commands::new(payload).enumerate().filter(|(_, framed)| reads(framed));
        let last_reader = readers.last().map_or(0, |(number, _)| number);
        Self {
            keys: BTreeMap::new(),
            clears: Vec::new(),
            tried: None,
            spare: Vec::new(),
            last_reader,
            number: 0,
            own: false,
        }
    }

    /// Goes on to a command.
    #[inline]
    pub(crate) fn begin(&mut self, number: usize) {
        self.number = number;
        self.own = false;
    }

    /// Says that later writes of the current command read what earlier ones have written.
    pub(crate) fn want_own(&mut self) {
        self.own = true;
    }

    /// Whether what the current command writes can matter to a later one, or to itself.
    #[inline]
    pub(crate) fn is_wanted(&self) -> bool {
        self.number < self.last_reader || self.own
    }

    #[inline]
    pub(crate) fn set(&mut self, keyspace: KeyspaceId, key: impl Into<Cow<'a, [u8]>>, written: Option<LiveKey<'a>>) {
        let key = key.into();
        let keys = self.keys.entry(keyspace).or_default();
        match &mut self.tried {
            Some(tried) => {
                let before = keys.insert(key.clone(), written);
                tried.before.push((keyspace, key, before));
            }
            None => drop(keys.insert(key, written)),
        }
    }

    /// What the entry made of a key; `None` if it did not touch it.
    #[inline]
    pub(crate) fn get(&self, keyspace: KeyspaceId, key: &[u8]) -> Option<&Option<LiveKey<'a>>> {
        self.keys.get(&keyspace)?.rows.get(key)
    }

    /// The keys from `lower` up to, and without, `upper` that the entry touched, in order.
    pub(crate) fn range(
        &self,
        keyspace: KeyspaceId,
        lower: &[u8],
        upper: Option<&[u8]>,
    ) -> impl DoubleEndedIterator<Item = (&[u8], Option<&LiveKey<'a>>)> {
        let is_empty = upper.is_some_and(|upper| upper <= lower);
        let keys = self.keys.get(&keyspace).filter(|_| !is_empty);
        let bounds = (Bound::Included(lower), upper.map_or(Bound::Unbounded, Bound::Excluded));
        keys.into_iter().flat_map(move |keys| keys.range(bounds))
    }

    /// The keys with a prefix that have a value by this entry.
    pub(crate) fn written_under(&self, keyspace: KeyspaceId, prefix: &[u8]) -> Vec<Vec<u8>> {
        let upper = crate::keys::after_prefix(prefix);
        let range = self.range(keyspace, prefix, upper.as_deref());
        range.filter(|(_, live)| live.is_some()).map(|(key, _)| key.to_vec()).collect()
    }

    /// Hides the backend's rows with a prefix.
    pub(crate) fn clear(&mut self, keyspace: KeyspaceId, prefix: &'a [u8]) {
        if !self.clears.contains(&(keyspace, prefix)) {
            self.clears.push((keyspace, prefix));
        }
    }

    /// Whether the backend's row of a key is hidden.
    pub(crate) fn is_cleared(&self, keyspace: KeyspaceId, key: &[u8]) -> bool {
        self.clears.iter().any(|(cleared, prefix)| *cleared == keyspace && key.starts_with(prefix))
    }

    /// Whether all of the backend's rows of a keyspace are hidden.
    pub(crate) fn is_emptied(&self, keyspace: KeyspaceId) -> bool {
        self.clears.iter().any(|(cleared, prefix)| *cleared == keyspace && prefix.is_empty())
    }

    /// From here on changes can be taken back.
    pub(crate) fn try_out(&mut self) {
        self.tried = Some(Tried { before: std::mem::take(&mut self.spare), clears: self.clears.len() });
    }

    /// The changes since [`try_out`](Self::try_out) stay.
    pub(crate) fn keep(&mut self) {
        if let Some(tried) = self.tried.take() {
            self.spare = tried.before;
            self.spare.clear();
        }
    }

    /// Takes back the changes since [`try_out`](Self::try_out).
    pub(crate) fn undo(&mut self) {
        let Some(tried) = self.tried.take() else { return };
        self.clears.truncate(tried.clears);
        for (keyspace, key, before) in tried.before.into_iter().rev() {
            let keys = self.keys.entry(keyspace).or_default();
            match before {
                Some(before) => drop(keys.insert(key, before)),
                None => keys.remove(&key),
            }
        }
    }
}
