//! Intervals of keys that watches observe, and an index that finds the intervals that contain a key.
//!
//! Owns: `KeyInterval`, and `IntervalIndex` with its searches by key and by prefix. Does not own: the watches whose
//! numbers the index holds, or the time at which the index is rebuilt (`hub`).
//!
//! Invariants: the nodes of the index ascend strictly by start and end; the highest end of a node is the maximum over
//! its subtree.

use std::{cmp::Ordering, ops::Bound};

use thalweg_types::key_order::after_prefix;

/// Half-open interval of keys, from `start` up to and excluding `end`. If `end` is `None`, the interval has no upper
/// bound.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct KeyInterval {
    start: Vec<u8>,
    end: Option<Vec<u8>>,
}

impl KeyInterval {
    pub(crate) fn of_key(key: &[u8]) -> Self {
        Self { start: key.to_vec(), end: Some(successor(key)) }
    }

    pub(crate) fn of_prefix(prefix: &[u8]) -> Self {
        Self { start: prefix.to_vec(), end: after_prefix(prefix) }
    }

    pub(crate) fn of_bounds(start: Bound<&[u8]>, end: Bound<&[u8]>) -> Self {
        let start = match start {
            Bound::Included(key) => key.to_vec(),
            Bound::Excluded(key) => successor(key),
            Bound::Unbounded => Vec::new(),
        };
        let end = match end {
            Bound::Included(key) => Some(successor(key)),
            Bound::Excluded(key) => Some(key.to_vec()),
            Bound::Unbounded => None,
        };
        Self { start, end }
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && self.is_before_end(key)
    }

    /// Returns true if the interval can contain a key with this prefix.
    pub(crate) fn meets_prefix(&self, prefix: &[u8]) -> bool {
        self.contains(prefix) || (self.start.starts_with(prefix) && self.is_before_end(&self.start))
    }

    fn is_before_end(&self, key: &[u8]) -> bool {
        self.end.as_deref().is_none_or(|end| key < end)
    }

    /// Compares two intervals by their start, and then by their end.
    fn order(&self, other: &Self) -> Ordering {
        let ends = || match (&self.end, &other.end) {
            (Some(end), Some(other)) => end.cmp(other),
            (end, other) => other.is_some().cmp(&end.is_some()),
        };
        self.start.cmp(&other.start).then_with(ends)
    }
}

/// Returns the lowest possible key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, b"\0"].concat()
}

/// Index over numbered intervals of keys. A search takes `O(log n)` for each interval found. The intervals are sorted
/// by their start and form a balanced tree in place. Each node stores the highest end in its subtree. Equal intervals
/// share a node, so that a number can join or leave them without a rebuild of the tree.
#[derive(Debug, Default)]
pub(crate) struct IntervalIndex {
    /// Nodes of the tree, sorted by the start and the end of their interval. The root of the subtree `from..to` is the
    /// node in the middle.
    nodes: Vec<Node>,
}

#[derive(Debug)]
struct Node {
    interval: KeyInterval,
    /// Numbers of the intervals that are equal to `interval`.
    numbers: Vec<u64>,
    /// Highest end of the intervals in this node and all nodes beneath it; `None` for no upper bound.
    highest_end: Option<Vec<u8>>,
}

impl IntervalIndex {
    pub(crate) fn new(intervals: impl IntoIterator<Item = (KeyInterval, u64)>) -> Self {
        let mut intervals: Vec<_> = intervals.into_iter().collect();
        intervals.sort_by(|(a, _), (b, _)| a.order(b));
        let mut nodes: Vec<Node> = Vec::new();
        for (interval, number) in intervals {
            match nodes.last_mut() {
                Some(last) if last.interval == interval => last.numbers.push(number),
                _ => nodes.push(Node { interval, numbers: vec![number], highest_end: None }),
            }
        }
        set_highest_ends(&mut nodes);
        Self { nodes }
    }

    /// Adds the number of a watch to an interval of keys. Returns false if the index does not contain this interval;
    /// the caller must then rebuild the index.
    pub(crate) fn join(&mut self, interval: &KeyInterval, number: u64) -> bool {
        let node = self.node(interval);
        if let Some(node) = &node {
            debug_assert!(!node.numbers.contains(&number));
        }
        node.map(|node| node.numbers.push(number)).is_some()
    }

    /// Removes the number of a watch from an interval. Returns false if no other watch has this interval; the caller
    /// should then rebuild the index.
    pub(crate) fn leave(&mut self, interval: &KeyInterval, number: u64) -> bool {
        let Some(node) = self.node(interval) else { return false };
        if let Some(at) = node.numbers.iter().position(|here| *here == number) {
            node.numbers.swap_remove(at);
        }
        !node.numbers.is_empty()
    }

    fn node(&mut self, interval: &KeyInterval) -> Option<&mut Node> {
        let at = self.nodes.binary_search_by(|node| node.interval.order(interval)).ok()?;
        self.nodes.get_mut(at)
    }

    /// Calls `found` with the number of every interval that contains this key.
    pub(crate) fn containing(&self, key: &[u8], found: &mut dyn FnMut(u64)) {
        search(&self.nodes, key, &|start| start <= key, found);
    }

    /// Calls `found` with the number of every interval that can contain a key with this prefix.
    pub(crate) fn meeting_prefix(&self, prefix: &[u8], found: &mut dyn FnMut(u64)) {
        search(&self.nodes, prefix, &|start| start <= prefix || start.starts_with(prefix), &mut |number| found(number));
    }
}

fn set_highest_ends(nodes: &mut [Node]) {
    let middle = nodes.len() / 2;
    let (left, rest) = nodes.split_at_mut(middle);
    let Some((node, right)) = rest.split_first_mut() else { return };
    node.highest_end.clone_from(&node.interval.end);
    for side in [left, right] {
        set_highest_ends(side);
        if let Some(root) = side.get(side.len() / 2) {
            let higher = match (&root.highest_end, &node.highest_end) {
                (None, _) => true,
                (Some(_), None) => false,
                (Some(beneath), Some(here)) => beneath > here,
            };
            if higher {
                node.highest_end.clone_from(&root.highest_end);
            }
        }
    }
}

/// Calls `found` with the numbers of intervals in a subtree that end above `lowest` and whose start satisfies `begins`.
/// The function `begins` is true for all starts up to some key, and false above it.
fn search(nodes: &[Node], lowest: &[u8], begins: &dyn Fn(&[u8]) -> bool, found: &mut dyn FnMut(u64)) {
    let middle = nodes.len() / 2;
    let Some(node) = nodes.get(middle) else { return };
    if node.highest_end.as_deref().is_some_and(|end| end <= lowest) {
        return;
    }
    search(&nodes[..middle], lowest, begins, found);
    if !begins(&node.interval.start) {
        return;
    }
    if node.interval.is_before_end(lowest.max(&node.interval.start)) {
        node.numbers.iter().for_each(|number| found(*number));
    }
    search(&nodes[middle + 1..], lowest, begins, found);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Random number generator SplitMix64, for the test.
    fn next(state: &mut u64) -> u64 {
        *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = *state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn key(state: &mut u64) -> Vec<u8> {
        let bytes = [0, 1, b'a', 0xfe, 0xff];
        (0..next(state) % 4).map(|_| bytes[(next(state) % 5) as usize]).collect()
    }

    fn interval(state: &mut u64) -> KeyInterval {
        let (low, high) = (key(state), key(state));
        match next(state) % 4 {
            0 => KeyInterval::of_key(&low),
            1 => KeyInterval::of_prefix(&low),
            2 => KeyInterval::of_bounds(Bound::Included(&low), Bound::Excluded(&high)),
            _ => KeyInterval::of_bounds(Bound::Excluded(&low), Bound::Unbounded),
        }
    }

    #[test]
    fn an_index_finds_what_looking_at_each_would_find() {
        for seed in 0..200 {
            let mut state = seed;
            let count = next(&mut state) % 30;
            let intervals: Vec<_> = (0..count).map(|number| (interval(&mut state), number)).collect();
            let index = IntervalIndex::new(intervals.clone());
            for _ in 0..50 {
                let wanted = key(&mut state);
                let linear = |wants: &dyn Fn(&KeyInterval) -> bool| -> Vec<u64> {
                    intervals.iter().filter(|(interval, _)| wants(interval)).map(|(_, number)| *number).collect()
                };
                let mut found = Vec::new();
                index.containing(&wanted, &mut |number| found.push(number));
                found.sort_unstable();
                assert_eq!(found, linear(&|interval| interval.contains(&wanted)), "seed {seed}, key {wanted:?}");
                found.clear();
                index.meeting_prefix(&wanted, &mut |number| found.push(number));
                found.sort_unstable();
                assert_eq!(found, linear(&|interval| interval.meets_prefix(&wanted)), "seed {seed}, prefix {wanted:?}");
            }
        }
    }

    #[test]
    fn numbers_join_and_leave_equal_intervals() {
        for seed in 0..50 {
            let mut state = seed;
            // There are few keys, so that many intervals are equal.
            let mut intervals: Vec<_> = (0..20).map(|number| (interval(&mut state), number)).collect();
            let mut index = IntervalIndex::new(intervals.clone());
            for number in 20..120 {
                let new = interval(&mut state);
                let is_known = intervals.iter().any(|(known, _)| *known == new);
                assert_eq!(index.join(&new, number), is_known, "seed {seed}");
                intervals.push((new, number));
                let (gone, number) = intervals.swap_remove((next(&mut state) % intervals.len() as u64) as usize);
                let stays = index.leave(&gone, number);
                if !is_known || !stays {
                    index = IntervalIndex::new(intervals.clone());
                }
                let wanted = key(&mut state);
                let mut found = Vec::new();
                index.containing(&wanted, &mut |number| found.push(number));
                found.sort_unstable();
                let mut linear: Vec<_> =
                    intervals.iter().filter(|(known, _)| known.contains(&wanted)).map(|(_, number)| *number).collect();
                linear.sort_unstable();
                assert_eq!(found, linear, "seed {seed}, key {wanted:?}");
            }
        }
    }

    #[test]
    fn intervals_are_what_they_are_made_of() {
        let all = [b"".as_slice(), b"a", b"a\0", b"ab", b"b", b"\xff", b"\xff\xff", b"\xffa"];
        for key in all {
            for other in all {
                assert_eq!(KeyInterval::of_key(key).contains(other), key == other);
                assert_eq!(KeyInterval::of_prefix(key).contains(other), other.starts_with(key));
                let meets = key.starts_with(other) || other.starts_with(key);
                assert_eq!(KeyInterval::of_prefix(key).meets_prefix(other), meets, "{key:?} {other:?}");
                assert_eq!(KeyInterval::of_key(key).meets_prefix(other), key.starts_with(other), "{key:?} {other:?}");
            }
        }
        let empty = KeyInterval::of_bounds(Bound::Included(b"b"), Bound::Excluded(b"a"));
        assert!(all.iter().all(|key| !empty.contains(key) && !empty.meets_prefix(key)));
    }
}
