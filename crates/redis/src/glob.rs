//! Glob patterns of KEYS, SCAN and PSUBSCRIBE: `*`, `?`, `[a-z]`, `[^a]`, `\x`; matched against bytes.
//!
//! Owns: matching as in Redis, including corner cases: an empty text matches only the empty pattern, an unclosed class
//! ends with the pattern, and ranges compare bytes as signed. Each element of a pattern except `*` matches one byte, so
//! backtracking to the last `*` is sufficient. A match costs at most pattern length × text length comparisons. Commands
//! count these comparisons as work (`Matcher`). So a hostile pattern is rejected instead of blocking other clients.

use std::convert::Infallible;

use thalweg_types::{limits::MAX_REDIS_PATTERN_BYTES, steps::comparisons};

use crate::{
    errors::CommandEnd,
    store::{Read, StoreError},
};

/// Returns an error for a pattern longer than [`MAX_REDIS_PATTERN_BYTES`], because matching it could take too long.
pub(crate) fn check(pattern: &[u8]) -> Result<(), CommandEnd> {
    if pattern.len() > MAX_REDIS_PATTERN_BYTES {
        return Err(CommandEnd::error(format!("ERR patterns are at most {MAX_REDIS_PATTERN_BYTES} bytes long")));
    }
    Ok(())
}

/// Number of comparisons after which a match charges them to the command as work. So a command that has used up its
/// budget ends in the middle of a match, however long the pattern and the text are.
const SLICE: u64 = 1024;

/// Returns true if the text matches the pattern.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    compare::<Infallible>(pattern, text, |_| Ok(())).unwrap_or_else(|never| match never {})
}

/// Returns true if the text matches the pattern. Adds the number of comparisons to `compared`.
#[must_use]
pub fn matches_counting(pattern: &[u8], text: &[u8], compared: &mut u64) -> bool {
    let count = |taken| {
        *compared += taken;
        Ok(())
    };
    compare::<Infallible>(pattern, text, count).unwrap_or_else(|never| match never {})
}

/// A pattern that a command compares with many names. Counts the comparisons as work of the command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Matcher<'a> {
    pattern: &'a [u8],
    comparisons: u64,
}

impl<'a> Matcher<'a> {
    pub(crate) fn new(pattern: &'a [u8]) -> Self {
        Self { pattern, comparisons: 0 }
    }

    /// Returns true if the text matches the pattern. Counts the comparisons as work. Returns an error once the command
    /// has done all the work that it may do.
    pub(crate) fn matches(&mut self, read: &(impl Read + ?Sized), text: &[u8]) -> Result<bool, StoreError> {
        compare(self.pattern, text, |taken| {
            let before = comparisons(self.comparisons);
            self.comparisons += taken;
            read.work(comparisons(self.comparisons) - before)
        })
    }
}

/// Matches a text with a pattern. Calls `charge` about every [`SLICE`] comparisons and at the end, with the number of
/// comparisons since the last call. Returns an error of `charge`. Each comparison compares one element of the pattern
/// with one byte.
fn compare<E>(pattern: &[u8], text: &[u8], mut charge: impl FnMut(u64) -> Result<(), E>) -> Result<bool, E> {
    // Comparisons that are not charged yet.
    let mut taken: u64 = 1;
    if text.is_empty() || pattern.is_empty() {
        charge(taken)?;
        return Ok(text.is_empty() && pattern.is_empty());
    }
    let (mut rest, mut at) = (pattern, 0);
    // The pattern after the last star, and the position in the text at which this rest was tried last.
    let mut star: Option<(&[u8], usize)> = None;
    let found = loop {
        if taken >= SLICE {
            charge(std::mem::take(&mut taken))?;
        }
        if let [b'*', after @ ..] = rest {
            if after.is_empty() {
                break true;
            }
            star = Some((after, at));
            rest = after;
            taken += 1;
            continue;
        }
        let matched = match text.get(at) {
            None if rest.is_empty() => break true,
            None => None,
            Some(&byte) => {
                let (is_match, after) = one(rest, byte);
                // A class counts with its length.
                taken += 1.max((rest.len() - after.len()) as u64);
                is_match.then_some(after)
            }
        };
        if let Some(after) = matched {
            (rest, at) = (after, at + 1);
            continue;
        }
        let Some((after, tried)) = star else { break false };
        // Only a shorter text remains for later positions, so earlier stars need not be tried again.
        if tried + 1 >= text.len() {
            break false;
        }
        star = Some((after, tried + 1));
        (rest, at) = (after, tried + 1);
    };
    charge(taken)?;
    Ok(found)
}

/// Matches the first element of a pattern (a byte, `?`, a class or an escape, but not `*`) against a byte. Returns true
/// if the element matches. Also returns the pattern after the element.
fn one(pattern: &[u8], byte: u8) -> (bool, &[u8]) {
    match pattern {
        [b'?', after @ ..] => (true, after),
        [b'[', class @ ..] => in_class(class, byte),
        [b'\\', escaped, after @ ..] => (*escaped == byte, after),
        [literal, after @ ..] => (*literal == byte, after),
        [] => (false, pattern),
    }
}

/// Returns true if a byte is in a class such as `[a-z]`. Also returns the pattern after the class.
fn in_class(class: &[u8], byte: u8) -> (bool, &[u8]) {
    let (negated, mut rest) = match class {
        [b'^', rest @ ..] => (true, rest),
        rest => (false, rest),
    };
    let mut found = false;
    loop {
        rest = match rest {
            [b'\\', escaped, after @ ..] => {
                found |= *escaped == byte;
                after
            }
            [b']', after @ ..] => return (found != negated, after),
            [] => return (found != negated, rest),
            [first, b'-', last, after @ ..] => {
                let (first, last, byte) = (*first as i8, *last as i8, byte as i8);
                found |= (first.min(last)..=first.max(last)).contains(&byte);
                after
            }
            [literal, after @ ..] => {
                found |= *literal == byte;
                after
            }
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reference implementation of glob matching for tests. For each `*`, it tries every length of text.
    fn reference(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', after @ ..] => (0..=text.len()).any(|taken| reference(after, &text[taken..])),
            _ => text.first().is_some_and(|byte| {
                let (is_match, after) = one(pattern, *byte);
                is_match && reference(after, &text[1..])
            }),
        }
    }

    #[test]
    fn patterns_match_as_by_definition() {
        let mut seed = 1_u64;
        let mut random = |bound: usize| {
            seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (seed >> 33) as usize % bound
        };
        for _ in 0..200_000 {
            let pattern: Vec<u8> = (0..random(9)).map(|_| b"**??ab[]^-\\"[random(11)]).collect();
            let text: Vec<u8> = (0..1 + random(6)).map(|_| b"aab-]\\"[random(6)]).collect();
            assert_eq!(matches(&pattern, &text), reference(&pattern, &text), "{pattern:?} {text:?}");
        }
    }

    #[test]
    fn corners_are_those_of_redis() {
        assert!(matches(b"", b"") && !matches(b"*", b"") && !matches(b"", b"a"));
        assert!(matches(b"[^", b"a") && !matches(b"[", b"["));
        assert!(matches(b"[a", b"a") && matches(b"[z-a]", b"m") && matches(b"[\\]]", b"]"));
        assert!(matches(b"\\*", b"*") && !matches(b"\\*", b"a") && matches(b"a\\", b"a\\"));
        assert!(matches(b"[\x80-\x7f]", b"a"), "bytes above 127 are below the others");
    }

    /// Returns the result of a match, its number of comparisons, and the largest number of comparisons between two
    /// calls of `charge`. The match ends with an error after `max` comparisons.
    fn counted(pattern: &[u8], text: &[u8], max: u64) -> (Result<bool, ()>, u64, u64) {
        let (mut taken, mut largest) = (0, 0);
        let found = compare(pattern, text, |more| {
            (taken, largest) = (taken + more, more.max(largest));
            if taken > max { Err(()) } else { Ok(()) }
        });
        (found, taken, largest)
    }

    #[test]
    fn comparisons_are_counted() {
        let steps = |pattern: &[u8], text: &[u8]| counted(pattern, text, u64::MAX).1;
        assert!(steps(b"user:*", b"user:1") < 10);
        let class = [&b"["[..], &[b'x'; 1000], b"]"].concat();
        assert!(steps(&class, b"a") > 1000, "a class costs its length");
        let pattern = [b"a*".repeat(2_000), b"c".to_vec()].concat();
        let text = [b"a".repeat(30_000), b"b".to_vec()].concat();
        let (found, taken, _) = counted(&pattern, &text, u64::MAX);
        assert!(found == Ok(false) && taken < 100_000, "one star is tried again: {taken}");
    }

    #[test]
    fn a_match_ends_soon_after_the_budget_of_its_command_is_spent() {
        let hostile = [&b"*"[..], &b"a".repeat(4_000), b"b"].concat();
        let text = b"a".repeat(32_000);
        let (found, taken, largest) = counted(&hostile, &text, 100_000);
        assert!(found.is_err() && largest <= SLICE, "{largest}");
        assert!((100_000..100_000 + 2 * SLICE).contains(&taken), "{taken}");
        // Patterns with classes have the same bound. A class is charged with its whole length in one step.
        let classes = [&b"*["[..], &[b'x'; 3_000], b"]"].concat();
        let (found, taken, largest) = counted(&classes, &text, 100_000);
        assert!(found.is_err() && largest <= SLICE + 4_096 && taken < 110_000, "{taken} {largest}");
    }
}
