//! Subjects, to which messages are published, and patterns, to which clients subscribe.
//!
//! Owns: `Subject` and `Pattern`, their validation, and the comparison of a pattern with one subject or another
//! pattern. Does not own: the search among many patterns (`wildcards`).
//!
//! ```text
//!   subject   orders.eu.created        tokens between dots; any bytes but a dot; none empty
//!   pattern   orders.*.created         `*` matches exactly one token
//!             orders.>                 `>`, only at the end, matches one or more
//! ```
//! Subjects are binary-safe. A token is any sequence of bytes without a dot, and is compared byte by byte. The bytes
//! are not decoded, case-folded or normalised, so NUL, spaces and invalid UTF-8 are ordinary bytes. Only a token that
//! is exactly `*` or `>` has a meaning. A subject must not contain such a token. Inside a longer token (`a*b`) the two
//! characters are ordinary bytes. Limits: [`MAX_SUBJECT_BYTES`], [`MAX_SUBJECT_TOKENS`]. Code that prints a subject
//! must escape it, as `Display` does.

use std::{fmt, sync::Arc};

use thalweg_types::{
    classified,
    limits::{MAX_SUBJECT_BYTES, MAX_SUBJECT_TOKENS},
};

/// Error returned for an invalid subject or pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubjectError {
    /// The text is empty. A subject needs at least one token.
    #[error("a subject has at least one token")]
    Empty,
    /// The subject or pattern has more than [`MAX_SUBJECT_BYTES`] bytes.
    #[error("a subject has at most {MAX_SUBJECT_BYTES} bytes, this one has {bytes}")]
    TooLong {
        /// Length of the subject or pattern in bytes.
        bytes: usize,
    },
    /// The subject or pattern has more than [`MAX_SUBJECT_TOKENS`] tokens, which are the parts between dots.
    #[error("a subject has at most {MAX_SUBJECT_TOKENS} tokens, separated by dots; this one has more")]
    TooManyTokens,
    /// The subject or pattern has an empty token: a dot at the start, at the end, or next to another dot.
    #[error("token {token} of the subject is empty: give each dot a token on both sides")]
    EmptyToken {
        /// Index of the empty token in the subject or pattern, from 0.
        token: usize,
    },
    /// A subject has a token `*` or `>`. Only patterns may have these tokens.
    #[error("token {token} is a wildcard: publish to a subject without `*` and `>`, they are for subscriptions")]
    Wildcard {
        /// Index of the wildcard token in the subject, from 0.
        token: usize,
    },
    /// A token `>` is not the last token of the pattern.
    #[error("token {token} is `>`, which matches all remaining tokens: it must be the last token")]
    TailNotLast {
        /// Index of the misplaced token `>` in the pattern, from 0.
        token: usize,
    },
}

classified!(SubjectError {
    Self::Empty => "subject_empty", Fix;
    Self::TooLong { .. } => "subject_too_long", Fix;
    Self::TooManyTokens => "subject_too_many_tokens", Fix;
    Self::EmptyToken { .. } => "subject_empty_token", Fix;
    Self::Wildcard { .. } => "subject_wildcard", Fix;
    Self::TailNotLast { .. } => "pattern_tail_not_last", Fix;
});

/// Splits the bytes of a valid subject or pattern into tokens.
pub(crate) fn tokens(bytes: &[u8]) -> impl Iterator<Item = &[u8]> {
    bytes.split(|byte| *byte == b'.')
}

/// Checks the rules that subjects and patterns have in common.
fn check(
    bytes: &[u8],
    mut each: impl FnMut(usize, &[u8], bool) -> Result<(), SubjectError>,
) -> Result<(), SubjectError> {
    if bytes.is_empty() {
        return Err(SubjectError::Empty);
    }
    if bytes.len() > MAX_SUBJECT_BYTES {
        return Err(SubjectError::TooLong { bytes: bytes.len() });
    }
    let mut split = tokens(bytes).enumerate().peekable();
    while let Some((number, token)) = split.next() {
        if number >= MAX_SUBJECT_TOKENS {
            return Err(SubjectError::TooManyTokens);
        }
        if token.is_empty() {
            return Err(SubjectError::EmptyToken { token: number });
        }
        each(number, token, split.peek().is_none())?;
    }
    Ok(())
}

/// An address to which messages are published. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Subject(Arc<[u8]>);

impl Subject {
    /// Creates a subject from its bytes, which are validated and copied.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid subject: see [`SubjectError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SubjectError> {
        check(bytes, |token, text, _| match text {
            b"*" | b">" => Err(SubjectError::Wildcard { token }),
            _ => Ok(()),
        })?;
        Ok(Self(bytes.into()))
    }

    /// The bytes of the subject.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Tokens of the subject (its parts between dots), in order.
    pub fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        tokens(&self.0)
    }

    pub(crate) fn shared(&self) -> &Arc<[u8]> {
        &self.0
    }
}

impl fmt::Display for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_ascii(), f)
    }
}

impl fmt::Debug for Subject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Subject({self})")
    }
}

/// The set of subjects that a subscription receives: one subject, or all subjects that match wildcards. Cheap to clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Pattern {
    bytes: Arc<[u8]>,
    literal: bool,
}

impl Pattern {
    /// Creates a pattern from its bytes, which are validated and copied.
    ///
    /// # Errors
    /// Returns an error if the bytes are not a valid pattern: see [`SubjectError`].
    pub fn parse(bytes: &[u8]) -> Result<Self, SubjectError> {
        let mut literal = true;
        check(bytes, |token, text, last| {
            literal &= !matches!(text, b"*" | b">");
            if text == b">" && !last { Err(SubjectError::TailNotLast { token }) } else { Ok(()) }
        })?;
        Ok(Self { bytes: bytes.into(), literal })
    }

    /// The bytes of the pattern.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// Tokens of the pattern (its parts between dots), in order.
    pub fn tokens(&self) -> impl Iterator<Item = &[u8]> {
        tokens(&self.bytes)
    }

    /// Returns true if the pattern has no wildcard, and so matches exactly one subject.
    #[must_use]
    pub fn is_literal(&self) -> bool {
        self.literal
    }

    /// Returns true if the pattern matches `subject`. Compares token by token, which suits a single pattern. To find
    /// the matches among many patterns, the broker has an index.
    #[must_use]
    pub fn matches(&self, subject: &Subject) -> bool {
        let mut wanted = self.tokens();
        let mut given = subject.tokens();
        loop {
            match (wanted.next(), given.next()) {
                (Some(b">"), Some(_)) | (None, None) => return true,
                (Some(b"*"), Some(_)) => {}
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return false,
            }
        }
    }

    /// Returns true if this pattern matches every subject that `other` matches.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let mut wanted = self.tokens();
        let mut given = other.tokens();
        loop {
            match (wanted.next(), given.next()) {
                (Some(b">"), Some(_)) | (None, None) => return true,
                (_, Some(b">")) => return false,
                (Some(b"*"), Some(_)) => {}
                (Some(wanted), Some(given)) if wanted == given => {}
                _ => return false,
            }
        }
    }

    pub(crate) fn shared(&self) -> &Arc<[u8]> {
        &self.bytes
    }
}

impl From<Subject> for Pattern {
    fn from(subject: Subject) -> Self {
        Self { bytes: subject.0, literal: true }
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.bytes.escape_ascii(), f)
    }
}

impl fmt::Debug for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pattern({self})")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject(text: &str) -> Subject {
        Subject::parse(text.as_bytes()).unwrap()
    }

    fn matches(pattern: &str, text: &str) -> bool {
        Pattern::parse(pattern.as_bytes()).unwrap().matches(&subject(text))
    }

    #[test]
    fn wildcards_stand_for_tokens() {
        for (pattern, text) in [
            ("a.b", "a.b"),
            ("a.*", "a.b"),
            ("*", "a"),
            ("*.b.*", "a.b.c"),
            (">", "a"),
            (">", "a.b.c"),
            ("a.>", "a.b.c"),
        ] {
            assert!(matches(pattern, text), "{pattern} {text}");
        }
        for (pattern, text) in
            [("a.b", "a"), ("a.b", "a.c"), ("a.*", "a"), ("a.*", "a.b.c"), ("*", "a.b"), ("a.>", "a"), ("a.*.>", "a.b")]
        {
            assert!(!matches(pattern, text), "{pattern} {text}");
        }
    }

    #[test]
    fn bytes_are_bytes() {
        assert!(matches("a*b.c>", "a*b.c>"), "a wildcard is a whole token");
        assert!(!matches("a*b", "axb"));
        let odd = b"\0\xff ./.\r\n";
        assert_eq!(Subject::parse(odd).unwrap().to_string(), "\\x00\\xff ./.\\r\\n");
        assert!(Pattern::parse(odd).unwrap().is_literal());
    }

    #[test]
    fn what_is_wrong_is_said() {
        let error = |text: &[u8]| Subject::parse(text).unwrap_err();
        assert_eq!(error(b""), SubjectError::Empty);
        assert_eq!(error(b".a"), SubjectError::EmptyToken { token: 0 });
        assert_eq!(error(b"a..b"), SubjectError::EmptyToken { token: 1 });
        assert_eq!(error(b"a."), SubjectError::EmptyToken { token: 1 });
        assert_eq!(error(b"a.*"), SubjectError::Wildcard { token: 1 });
        assert_eq!(error(b">"), SubjectError::Wildcard { token: 0 });
        assert_eq!(Pattern::parse(b"a.>.b").unwrap_err(), SubjectError::TailNotLast { token: 1 });
        assert_eq!(error(&[b'a'; MAX_SUBJECT_BYTES + 1]), SubjectError::TooLong { bytes: MAX_SUBJECT_BYTES + 1 });
        assert!(Subject::parse(&[b'a'; MAX_SUBJECT_BYTES]).is_ok());
        let many = vec!["a"; MAX_SUBJECT_TOKENS].join(".");
        assert!(Subject::parse(many.as_bytes()).is_ok());
        assert_eq!(error(format!("{many}.a").as_bytes()), SubjectError::TooManyTokens);
    }
}
