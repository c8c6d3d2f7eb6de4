//! A map whose keys are prefixes, which finds all prefixes of a key with one search.
//!
//! Owns: [`PrefixMap`]. Does not own: the meaning of the values. Callers bound the number, the length and the
//! [depth](PrefixMap::depth_with) of the prefixes.
//!
//! # Search
//!
//! ```text
//! prefixes in order    a    ab    abc    abd    b         key    abcx
//! link                 -    a     ab     ab     -
//! ```
//! The search first finds the last prefix in the map that is not above the key, here `abc`. If the map contains another
//! prefix of the key, `abc` begins with it, because all byte strings in order between a prefix of the key and the key
//! begin with that prefix. So the search continues by links. The link of a prefix leads to the longest other prefix in
//! the map with which it begins.
//!
//! Cost: a search makes one comparison for each doubling of the number of prefixes, and follows one link for each
//! prefix that begins with another. The number of different lengths does not matter. The insertion of a new prefix
//! computes all links again. A copy of the map shares the bytes of the prefixes.

use std::{iter, sync::Arc};

#[derive(Clone, Debug)]
struct Entry<V> {
    prefix: Arc<[u8]>,
    value: V,
    /// Position in `entries` of the longest other prefix with which this prefix begins; `None` if there is none.
    outer: Option<u32>,
}

/// A map from prefixes to values.
#[derive(Clone, Debug)]
pub struct PrefixMap<V> {
    /// Entries in the order of their prefixes.
    entries: Vec<Entry<V>>,
}

impl<V> Default for PrefixMap<V> {
    fn default() -> Self {
        Self { entries: Vec::new() }
    }
}

impl<V> PrefixMap<V> {
    /// Returns true if the map has no prefix.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Returns the value of exactly this prefix; `None` if the map does not have it.
    #[must_use]
    pub fn get(&self, prefix: &[u8]) -> Option<&V> {
        self.find(prefix).ok().map(|at| &self.entries[at].value)
    }

    /// Iterates over the prefixes and their values in the order of the prefixes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &V)> {
        self.entries.iter().map(|entry| (&*entry.prefix, &entry.value))
    }

    /// Iterates over the values of all prefixes with which `key` begins, from the longest prefix to the shortest.
    pub fn covering(&self, key: &[u8]) -> impl Iterator<Item = &V> {
        let last = self.entries[..self.entries.partition_point(|entry| *entry.prefix <= *key)].last();
        let outward = iter::successors(last, move |entry| self.entries.get(entry.outer? as usize));
        outward.skip_while(move |entry| !key.starts_with(&entry.prefix)).map(|entry| &entry.value)
    }

    /// Returns the length of the longest chain of prefixes that begin with one another, such as `a`, `ab` and `abc`, if
    /// `prefix` were added to the map. Counts only chains that include `prefix`.
    #[must_use]
    pub fn depth_with(&self, prefix: &[u8]) -> usize {
        let inner = self.entries.iter().map(|entry| &*entry.prefix).filter(|inner| inner.starts_with(prefix));
        let deepest = inner.chain([prefix]).map(|key| self.covering(key).count()).max().unwrap_or(0);
        deepest + usize::from(self.find(prefix).is_err())
    }

    /// Adds a prefix to the map, or replaces the value of a prefix that the map has already.
    pub fn insert(&mut self, prefix: &[u8], value: V) {
        match self.find(prefix) {
            Ok(at) => self.entries[at].value = value,
            Err(at) => {
                // Maps are copied more often than they grow.
                self.entries.reserve_exact(1);
                self.entries.insert(at, Entry { prefix: prefix.into(), value, outer: None });
                self.link_all();
            }
        }
    }

    /// Removes a prefix.
    pub fn remove(&mut self, prefix: &[u8]) {
        let Ok(at) = self.find(prefix) else { return };
        let removed = self.entries.remove(at);
        for entry in &mut self.entries[at..] {
            entry.outer = match entry.outer {
                Some(outer) if outer as usize == at => removed.outer,
                Some(outer) if outer as usize > at => Some(outer - 1),
                outer => outer,
            };
        }
    }

    fn find(&self, prefix: &[u8]) -> Result<usize, usize> {
        self.entries.binary_search_by(|entry| (*entry.prefix).cmp(prefix))
    }

    fn link_all(&mut self) {
        // Positions of the prefixes with which the current prefix begins.
        let mut open: Vec<usize> = Vec::new();
        for at in 0..self.entries.len() {
            let (before, rest) = self.entries.split_at_mut(at);
            while open.last().is_some_and(|&outer| !rest[0].prefix.starts_with(&before[outer].prefix)) {
                open.pop();
            }
            rest[0].outer = open.last().map(|&outer| outer as u32);
            open.push(at);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    fn map(prefixes: &[&str]) -> PrefixMap<usize> {
        let mut map = PrefixMap::default();
        prefixes.iter().enumerate().for_each(|(number, prefix)| map.insert(prefix.as_bytes(), number));
        map
    }

    #[test]
    fn a_key_has_the_values_of_all_its_prefixes_from_the_longest_on() {
        let map = map(&["ab", "", "abd", "abc", "b", "a\u{ff}"]);
        let of = |key: &str| map.covering(key.as_bytes()).copied().collect::<Vec<_>>();
        assert_eq!(
            [of("abcx"), of("abc"), of("abdx"), of("abb"), of("b"), of("c")],
            [vec![3, 0, 1], vec![3, 0, 1], vec![2, 0, 1], vec![0, 1], vec![4, 1], vec![1]]
        );
        assert_eq!(PrefixMap::<()>::default().covering(b"").count(), 0);
    }

    #[test]
    fn random_maps_equal_a_model() {
        let mut state = 7_u64;
        let mut random = |below: u64| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (state >> 33) % below
        };
        let mut bytes = move |max: u64| (0..random(max + 1)).map(|_| b"a\xffb"[random(3) as usize]).collect::<Vec<_>>();
        let (mut map, mut model) = (PrefixMap::default(), BTreeMap::new());
        for round in 0..4_000 {
            let prefix = bytes(6);
            if round % 3 == 0 {
                map.remove(&prefix);
                model.remove(&prefix);
            } else {
                map.insert(&prefix, round);
                model.insert(prefix.clone(), round);
            }
            let key = bytes(9);
            let mut expected: Vec<_> = model.iter().filter(|(prefix, _)| key.starts_with(prefix)).collect();
            expected.sort_by_key(|(prefix, _)| usize::MAX - prefix.len());
            let expected: Vec<_> = expected.into_iter().map(|(_, value)| *value).collect();
            assert_eq!(map.covering(&key).copied().collect::<Vec<_>>(), expected, "{key:?} in {model:?}");
            assert!(map.iter().eq(model.iter().map(|(prefix, value)| (&prefix[..], value))));
            assert_eq!((map.get(&key), map.is_empty()), (model.get(&key), model.is_empty()));
        }
    }

    #[test]
    fn the_depth_counts_prefixes_outside_and_inside() {
        let map = map(&["a", "ab", "abcd", "abcde", "abx", "b"]);
        let depth = |prefix: &str| map.depth_with(prefix.as_bytes());
        assert_eq!([depth("abc"), depth("abcdef"), depth(""), depth("c"), depth("bb")], [5, 5, 5, 1, 2]);
        assert_eq!([depth("ab"), depth("abcde"), depth("b")], [4, 4, 1], "they are in the map");
    }

    /// Tests prefixes of many lengths. None of them begins with another one.
    #[test]
    fn lengths_cost_no_links() {
        let mut map = PrefixMap::default();
        (0..1000).for_each(|len| map.insert(&[&vec![b'a'; len][..], b"0"].concat(), len));
        let key = vec![b'a'; 2000];
        assert_eq!((map.covering(&key).count(), map.depth_with(&key)), (0, 1));
        assert!(map.entries.iter().all(|entry| entry.outer.is_none()));
    }
}
