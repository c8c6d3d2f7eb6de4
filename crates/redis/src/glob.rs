//! Glob patterns of KEYS, SCAN and PSUBSCRIBE: `*`, `?`, `[a-z]`, `[^a]`, `\x`; matched against bytes.
//!
//! Owns matching as in Redis, including corner cases: an empty text matches only the empty pattern, an
//! unclosed class ends with the pattern, and ranges compare bytes as signed. Each part of a pattern except
//! `*` consumes one byte, so backtracking to the last `*` is sufficient. A match costs at most pattern × text
//! steps, for any pattern.

use thalweg_types::limits::MAX_REDIS_PATTERN_BYTES;

use crate::errors::CommandEnd;

/// Returns an error for a pattern longer than [`MAX_REDIS_PATTERN_BYTES`], because matching it could take too long.
pub(crate) fn check(pattern: &[u8]) -> Result<(), CommandEnd> {
    if pattern.len() > MAX_REDIS_PATTERN_BYTES {
        return Err(CommandEnd::error(format!("ERR patterns are at most {MAX_REDIS_PATTERN_BYTES} bytes long")));
    }
    Ok(())
}

/// Returns true if the text matches the pattern.
#[must_use]
pub fn matches(pattern: &[u8], text: &[u8]) -> bool {
    if text.is_empty() || pattern.is_empty() {
        return text.is_empty() && pattern.is_empty();
    }
    let (mut rest, mut at) = (pattern, 0);
    // The pattern after the last star, and the position in the text at which it was tried last.
    let mut star: Option<(&[u8], usize)> = None;
    loop {
        if let [b'*', after @ ..] = rest {
            if after.is_empty() {
                return true;
            }
            star = Some((after, at));
            rest = after;
            continue;
        }
        match (text.get(at), one(rest, text.get(at).copied())) {
            (None, _) if rest.is_empty() => return true,
            (Some(_), Some(after)) => (rest, at) = (after, at + 1),
            _ => {
                let Some((after, tried)) = star else { return false };
                // The remaining text becomes shorter from here on, so earlier stars need not be tried again.
                if tried + 1 >= text.len() {
                    return false;
                }
                star = Some((after, tried + 1));
                (rest, at) = (after, tried + 1);
            }
        }
    }
}

/// Matches the first element of a pattern (a byte, `?`, a class or an escape, but not `*`) against a byte. Returns
/// the pattern after that element, or `None` if the element does not match.
fn one(pattern: &[u8], byte: Option<u8>) -> Option<&[u8]> {
    let byte = byte?;
    match pattern {
        [b'?', after @ ..] => Some(after),
        [b'[', class @ ..] => {
            let (within, after) = in_class(class, byte);
            within.then_some(after)
        }
        [b'\\', escaped, after @ ..] => (*escaped == byte).then_some(after),
        [literal, after @ ..] => (*literal == byte).then_some(after),
        [] => None,
    }
}

/// Returns true if a byte is in a class such as `[a-z]`, and the pattern after the class.
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

    /// Reference implementation of glob matching for tests: tries every length of text for each `*`.
    fn reference(pattern: &[u8], text: &[u8]) -> bool {
        match pattern {
            [] => text.is_empty(),
            [b'*', after @ ..] => (0..=text.len()).any(|taken| reference(after, &text[taken..])),
            _ => one(pattern, text.first().copied()).is_some_and(|after| reference(after, &text[1..])),
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

    #[test]
    fn no_pattern_takes_long() {
        let pattern = b"a*".repeat(5_000);
        let text = [b"a".repeat(5_000), b"b".to_vec()].concat();
        let pattern = [pattern, b"c".to_vec()].concat();
        assert!(!matches(&pattern, &text), "at most 10,001 × 5,001 steps");
    }
}
