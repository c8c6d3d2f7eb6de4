//! Ranges of keys without rows in the backend, as scans of the current log record have found them.
//!
//! Owns: the ranges, and the split of a scan into smaller ranges without them. A backend that only marks deleted rows
//! must skip these marks in every scan. The backend does not change while a log record is applied, so a command that
//! scans a range of deleted rows repeatedly must skip it only once.
//!
//! The ranges affect only the time that a scan takes, never its result. How many marks there are depends on flushes and
//! compactions of the node, so the steps charged for a scan must not depend on them.

use std::{
    collections::BTreeMap,
    ops::Bound::{self, Excluded, Included, Unbounded},
};

/// Maximum number of ranges without rows that are remembered. A scan of any further range is as slow as before.
const MAX_GAPS: usize = 16 * 1024;

/// A half-open range of keys: the start is included, the end is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Span {
    pub(crate) start: Vec<u8>,
    /// Exclusive end of the range; `None` for the end of the map.
    pub(crate) end: Option<Vec<u8>>,
}

/// Returns the first key after `key`.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Span {
    pub(crate) fn of(lower: Bound<&[u8]>, upper: Bound<&[u8]>) -> Self {
        let start = match lower {
            Included(key) => key.to_vec(),
            Excluded(key) => after(key),
            Unbounded => Vec::new(),
        };
        let end = match upper {
            Included(key) => Some(after(key)),
            Excluded(key) => Some(key.to_vec()),
            Unbounded => None,
        };
        Self { start, end }
    }

    fn is_empty(&self) -> bool {
        self.end.as_ref().is_some_and(|end| *end <= self.start)
    }

    pub(crate) fn bounds(&self) -> (Bound<&[u8]>, Bound<&[u8]>) {
        (Included(&self.start[..]), self.end.as_deref().map_or(Unbounded, Excluded))
    }
}

/// Known ranges of row keys without rows, by their start. The ranges are disjoint, and no two of them touch.
#[derive(Debug, Default)]
pub(crate) struct Gaps(BTreeMap<Vec<u8>, Option<Vec<u8>>>);

impl Gaps {
    #[inline]
    pub(crate) fn clear(&mut self) {
        // Nearly every log record has no ranges. Clearing even an empty map replaces the map and iterates over the old
        // one.
        if !self.0.is_empty() {
            self.0.clear();
        }
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Adds a range of keys without rows, and merges it with the ranges that it touches.
    pub(crate) fn add(&mut self, gap: Span) {
        if gap.is_empty() || self.0.len() >= MAX_GAPS {
            return;
        }
        let Span { mut start, mut end } = gap;
        if let Some((before, until)) = self.0.range::<[u8], _>((Unbounded, Included(&start[..]))).next_back()
            && until.as_ref().is_none_or(|until| *until >= start)
        {
            (start, end) = (before.clone(), later(end, until.clone()));
        }
        loop {
            let upper = end.as_deref().map_or(Unbounded, Included);
            let Some((next, until)) = self.0.range::<[u8], _>((Included(&start[..]), upper)).next() else { break };
            end = later(end, until.clone());
            let next = next.clone();
            self.0.remove(&next);
        }
        self.0.insert(start, end);
    }

    /// Returns the parts of `range` that may have rows, because no known range without rows contains them; ascending.
    pub(crate) fn without(&self, range: Span) -> Vec<Span> {
        if range.is_empty() {
            return Vec::new();
        }
        if self.0.is_empty() {
            return vec![range];
        }
        let (mut parts, mut rest) = (Vec::new(), range);
        let before = self.0.range::<[u8], _>((Unbounded, Excluded(&rest.start[..]))).next_back();
        let first = before.map_or_else(|| rest.start.clone(), |(start, _)| start.clone());
        for (start, until) in self.0.range::<[u8], _>((Included(&first[..]), Unbounded)) {
            if rest.end.as_ref().is_some_and(|end| start >= end) {
                break;
            }
            let part = Span { start: rest.start.clone(), end: Some(start.clone()) };
            if !part.is_empty() {
                parts.push(part);
            }
            let Some(until) = until else { return parts };
            if *until > rest.start {
                rest.start.clone_from(until);
            }
        }
        if !rest.is_empty() {
            parts.push(rest);
        }
        parts
    }
}

/// Returns the later one of two exclusive ends; `None` is the end of the map.
fn later(left: Option<Vec<u8>>, right: Option<Vec<u8>>) -> Option<Vec<u8>> {
    Some(left?.max(right?))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn span(start: u8, end: Option<u8>) -> Span {
        Span { start: vec![start], end: end.map(|end| vec![end]) }
    }

    #[test]
    fn bounds_become_half_open_ranges() {
        assert_eq!(Span::of(Excluded(b"a"), Included(b"b")).bounds(), (Included(&b"a\0"[..]), Excluded(&b"b\0"[..])));
        assert_eq!(Span::of(Unbounded, Unbounded).bounds(), (Included(&b""[..]), Unbounded));
        assert!(Span::of(Included(b"a"), Excluded(b"a")).is_empty());
    }

    /// Compares the table of ranges without rows with a set of single keys.
    #[test]
    fn a_scan_without_the_gaps_covers_all_other_keys() {
        for seed in 0..500_u64 {
            let mut state = seed;
            let mut random = |below: u64| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                ((state >> 33) % below) as u8
            };
            let (mut gaps, mut empty) = (Gaps::default(), BTreeSet::new());
            for _ in 0..12 {
                let (start, len) = (random(30), random(6));
                let end = if random(20) == 0 { None } else { Some(start + len) };
                gaps.add(span(start, end));
                empty.extend(start..end.unwrap_or(40));
            }
            let (start, end) = (random(30), random(40));
            let asked: Vec<u8> = (start..end).collect();
            let parts = gaps.without(span(start, Some(end.max(start))));
            assert!(parts.is_sorted_by_key(|part| part.start.clone()));
            let covered: Vec<u8> = parts.iter().flat_map(|part| part.start[0]..part.end.as_ref().unwrap()[0]).collect();
            let expected: Vec<u8> = asked.into_iter().filter(|key| !empty.contains(key)).collect();
            assert_eq!(covered, expected, "seed {seed}: {gaps:?}");
            assert!(gaps.len() <= 12);
        }
    }
}
