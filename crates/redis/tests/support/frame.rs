//! Replies as received; two are equal if their bytes are.

use std::{
    fmt,
    io::{self, BufRead, Read as _},
};

/// A reply with its first byte.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Frame {
    /// Simple strings, errors, integers, nulls, and other lines.
    Line(u8, Vec<u8>),
    /// Bulk and verbatim strings.
    Bulk(u8, Option<Vec<u8>>),
    /// Arrays, sets, pushes, and maps; a map has twice as many items as announced.
    Many(u8, Option<Vec<Frame>>),
}

impl Frame {
    /// Reads one reply.
    pub fn read(input: &mut impl BufRead) -> io::Result<Self> {
        let mut line = Vec::new();
        input.read_until(b'\n', &mut line)?;
        let [kind, text @ .., b'\r', b'\n'] = &line[..] else {
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, format!("no reply: {}", line.escape_ascii())));
        };
        let len = || {
            let text = std::str::from_utf8(text).map_err(io::Error::other)?;
            text.parse::<i64>().map_err(io::Error::other)
        };
        Ok(match kind {
            b'$' | b'=' => match usize::try_from(len()?) {
                Err(_) => Self::Bulk(*kind, None),
                Ok(len) => {
                    let mut bytes = vec![0; len + 2];
                    input.read_exact(&mut bytes)?;
                    assert_eq!(bytes.split_off(len), b"\r\n", "a string ends with a line break");
                    Self::Bulk(*kind, Some(bytes))
                }
            },
            b'*' | b'~' | b'>' | b'%' => match usize::try_from(len()?) {
                Err(_) => Self::Many(*kind, None),
                Ok(len) => {
                    let len = if *kind == b'%' { 2 * len } else { len };
                    Self::Many(*kind, Some((0..len).map(|_| Self::read(input)).collect::<io::Result<_>>()?))
                }
            },
            b'+' | b'-' | b':' | b'_' | b',' | b'#' | b'(' => Self::Line(*kind, text.to_vec()),
            other => return Err(io::Error::other(format!("no reply begins with {other}"))),
        })
    }

    /// Parses bytes that are exactly one reply.
    pub fn parse(mut bytes: &[u8]) -> Self {
        let frame = Self::read(&mut bytes).unwrap_or_else(|error| panic!("{error}"));
        assert!(bytes.read(&mut [0]).unwrap() == 0, "bytes after {frame:?}: {}", bytes.escape_ascii());
        frame
    }

    pub fn is_error(&self) -> bool {
        matches!(self, Self::Line(b'-', _))
    }

    pub fn integer(&self) -> Option<i64> {
        match self {
            Self::Line(b':', text) => std::str::from_utf8(text).ok()?.parse().ok(),
            _ => None,
        }
    }

    pub fn bulk(&self) -> Option<&[u8]> {
        match self {
            Self::Bulk(_, Some(bytes)) => Some(bytes),
            _ => None,
        }
    }

    /// Returns the items of an aggregate; empty for other replies.
    pub fn items(&self) -> &[Frame] {
        match self {
            Self::Many(_, Some(items)) => items,
            _ => &[],
        }
    }

    /// Returns the same reply with its items sorted, in groups of `by`.
    pub fn sorted(&self, by: usize) -> Self {
        let Self::Many(kind, Some(items)) = self else { return self.clone() };
        let mut groups: Vec<_> = items.chunks(by).collect();
        groups.sort();
        Self::Many(*kind, Some(groups.concat()))
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, to: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Line(kind, text) => write!(to, "{}{}", char::from(*kind), text.escape_ascii()),
            Self::Bulk(kind, None) => write!(to, "{}-1", char::from(*kind)),
            Self::Bulk(kind, Some(bytes)) => write!(to, "{}\"{}\"", char::from(*kind), bytes.escape_ascii()),
            Self::Many(kind, None) => write!(to, "{}-1", char::from(*kind)),
            Self::Many(kind, Some(items)) => {
                write!(to, "{}", char::from(*kind))?;
                to.debug_list().entries(items).finish()
            }
        }
    }
}
