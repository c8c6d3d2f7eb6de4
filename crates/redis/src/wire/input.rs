//! Parser of requests from received bytes.
//!
//! Owns: the receive buffer, the boundaries of requests, the limits of announced sizes.
//!
//! Invariants: memory for announced bytes is not allocated before they arrive. The capacity of the buffer is at most
//! twice the received bytes, plus [`READ_BYTES`]. The memory for positions of arguments has a bound of the same form.
//! The parser keeps its progress, so each byte is parsed once, in whatever pieces the bytes arrive. After a
//! [`ProtocolError`] the start of the next request is unknown, and every later call returns the same error.

use std::borrow::Cow;

use bytes::{Buf, BytesMut};
use thalweg_types::{classified, limits::MAX_COMMAND_BYTES};

use super::{
    ahead::FollowingRequests,
    inline,
    request::{FEW, Part, Request},
};
use crate::number::parse_integer;

/// Free capacity in bytes that [`Input::buffer`] provides for a read from a socket when the buffer is nearly full.
pub const READ_BYTES: usize = 64 * 1024;
/// Maximum length in bytes of a line: an inline command, or the line with a number of arguments or a length.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Maximum number of arguments of a request.
const MAX_ARGUMENTS: i64 = 1024 * 1024;
/// Maximum bytes of a request. The same limit applies to a command in the log.
const MAX_REQUEST_BYTES: usize = MAX_COMMAND_BYTES;
/// Maximum number of arguments of a request that redis-server 7.0 accepts by default. A client that has not
/// authenticated has lower limits here. If its request exceeds them, but not this limit of Redis, it gets the error
/// that it must authenticate first.
const REDIS_MAX_ARGUMENTS: i64 = i32::MAX as i64;
const REDIS_MAX_BULK_BYTES: i64 = 512 * 1024 * 1024;
/// Number of argument positions for which the parser keeps memory between requests.
const IDLE_PARTS: usize = 1024;

/// Authentication state of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// Authenticated, or no authentication is needed: the normal limits apply.
    Known,
    /// Not authenticated: at most ten arguments of 16 KiB, which is sufficient to authenticate.
    Unknown,
}

impl Trust {
    /// Checks that a client in this authentication state may send a request with this number of arguments.
    fn check_arguments(self, number: i64) -> Result<(), ProtocolError> {
        match self {
            Self::Known if number > MAX_ARGUMENTS => Err(ProtocolError::BadCount),
            Self::Unknown if number > REDIS_MAX_ARGUMENTS => Err(ProtocolError::BadCount),
            Self::Unknown if number > 10 => Err(ProtocolError::UnknownCount),
            _ => Ok(()),
        }
    }

    /// Checks that a client in this authentication state may send an argument of this many bytes.
    #[inline]
    fn check_bulk(self, number: i64) -> Result<(), ProtocolError> {
        match self {
            Self::Known if !(0..=MAX_REQUEST_BYTES as i64).contains(&number) => Err(ProtocolError::BadLength),
            Self::Unknown if !(0..=REDIS_MAX_BULK_BYTES).contains(&number) => Err(ProtocolError::BadLength),
            Self::Unknown if number > 16 * 1024 => Err(ProtocolError::UnknownLength),
            _ => Ok(()),
        }
    }
}

/// Error returned for malformed requests. The client receives the error, and then the connection is closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// An inline command does not end within 64 KiB.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote of an inline command is not closed, or not followed by white space.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// The line with the number of arguments does not end within 64 KiB.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// The number of arguments is malformed or too large.
    #[error("Protocol error: invalid multibulk length")]
    BadCount,
    /// The number of arguments exceeds the limit for a client that has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnknownCount,
    /// The line with the length of an argument does not end within 64 KiB.
    #[error("Protocol error: too big bulk count string")]
    LengthTooLong,
    /// An argument does not begin with `$`.
    #[error("Protocol error: expected '$', got '{}'", *got as char)]
    NotBulk {
        /// First byte of the malformed argument.
        got: u8,
    },
    /// The length of an argument is malformed or too large.
    #[error("Protocol error: invalid bulk length")]
    BadLength,
    /// The length of an argument exceeds the limit for a client that has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnknownLength,
    /// The arguments of a request are together longer than the maximum size of a request.
    #[error("Protocol error: too big request: at most {MAX_REQUEST_BYTES} bytes, send less at a time")]
    TooBig,
}

impl ProtocolError {
    /// Returns the error text for the client, without `ERR`. It is bytes and not a string, because it can contain a
    /// byte that the client sent.
    #[must_use]
    pub fn text(&self) -> Cow<'static, [u8]> {
        match self {
            Self::NotBulk { got } => {
                let mut text = b"Protocol error: expected '$', got ' '".to_vec();
                let at = text.len() - 2;
                text[at] = if matches!(got, b'\r' | b'\n') { b' ' } else { *got };
                text.into()
            }
            other => other.to_string().into_bytes().into(),
        }
    }
}

classified!(ProtocolError {
    Self::TooBig => "request_too_large", Fix;
    _ => "malformed_request", Fix;
});

/// Result of parsing a line that announces the number of arguments, or the length of one.
enum Line {
    /// The line has not arrived completely.
    Partial,
    /// The line contains no number in a form that Redis accepts.
    NoNumber,
    /// The line is complete: its number, and the position in the buffer after its end.
    Number { number: i64, end: usize },
}

/// Parser of one connection: receives bytes and returns requests. See the module's documentation.
#[derive(Debug, Default)]
pub struct Input {
    pub(super) buffer: BytesMut,
    /// Position of the current request in the buffer. The bytes before this position were already returned.
    start: usize,
    /// Position up to which the current request was parsed. Invariant: `start <= at <= buffer.len()`.
    at: usize,
    /// Number of arguments of the current request that have not arrived completely.
    missing: usize,
    /// Length in bytes of the argument that is arriving; `None` if its length has not arrived yet.
    bulk: Option<usize>,
    parts: Vec<Part>,
    /// True if [`Input::unread`] has put back the request from `start` to `at`. The next call then returns it again.
    again: bool,
    /// True if the receive buffer has grown beyond twice [`READ_BYTES`]. An idle parser then drops it instead of
    /// reusing it.
    is_large: bool,
    failed: Option<ProtocolError>,
}

impl Input {
    /// Creates a parser that allocates memory only when bytes arrive.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the buffer for reading from a socket, with free capacity after its content. The caller must
    /// only append.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.start > 0 {
            self.buffer.advance(self.start);
            self.at -= self.start;
            self.start = 0;
        }
        let have = self.buffer.len();
        if self.buffer.capacity() - have < READ_BYTES / 4 {
            // Adds at most the size of the content, and only if the current request needs it.
            let wanted = self.wanted_bytes().saturating_sub(have);
            let more = wanted.min(have).max(READ_BYTES);
            self.is_large |= have + more > 2 * READ_BYTES;
            self.buffer.reserve(more);
        }
        &mut self.buffer
    }

    /// Appends received bytes by copying them.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer().extend_from_slice(bytes);
    }

    /// Number of received bytes that do not belong to a returned request.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Returns true if [`Input::unread`] has put back a request that was not returned again yet.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.again
    }

    /// Minimum size in bytes of the current request, as far as the lengths of its arguments are known.
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        self.at - self.start + self.bulk.map_or(0, |len| len + 2)
    }

    /// Returns the buffer as [`buffer`](Self::buffer) does. If the parser has no buffer, it first takes a spare
    /// one, which the caller may have kept from [`release`](Self::release).
    pub fn buffer_or(&mut self, spare: impl FnOnce() -> BytesMut) -> &mut BytesMut {
        if self.buffer.capacity() == 0 {
            self.buffer = spare();
        }
        self.buffer()
    }

    /// Returns the buffer if it contains no bytes of a request, so that an idle connection holds no memory. Drops a
    /// buffer that has become large.
    pub fn release(&mut self) -> Option<BytesMut> {
        if self.pending_bytes() > 0 || self.failed.is_some() {
            return None;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        let parts = Some(std::mem::take(&mut self.parts)).filter(|parts| parts.capacity() <= FEW);
        let became_large = self.is_large;
        *self = Self { parts: parts.unwrap_or_default(), ..Self::default() };
        (!became_large).then_some(buffer)
    }

    /// Returns the next request, or `None` if the request is not complete yet. Skips requests without arguments.
    #[inline]
    pub fn next(&mut self, trust: Trust) -> Result<Option<Request<'_>>, ProtocolError> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let there = if self.again { Ok(true) } else { self.advance(trust) };
        match there {
            Ok(false) => Ok(None),
            Ok(true) => {
                self.again = false;
                let begin = std::mem::replace(&mut self.start, self.at);
                let behind = self.buffer.len() - self.at;
                Ok(Some(Request::new(&self.buffer[begin..self.at], &self.parts, behind)))
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Puts back the last returned request, which had `bytes` bytes: the next call of [`Input::next`] returns it
    /// again. No bytes may have been received in between.
    pub fn unread(&mut self, bytes: usize) {
        debug_assert!(!self.again && bytes <= self.start && self.start == self.at);
        self.start -= bytes;
        self.again = true;
    }

    /// Returns the arguments of requests that have arrived behind the last returned one, without taking these requests.
    /// Contains only short and complete requests that are arrays, up to the first request of another form.
    #[must_use]
    pub fn ahead(&self) -> FollowingRequests<'_> {
        let is_between = !self.again && self.failed.is_none() && self.start == self.at;
        FollowingRequests(if is_between { &self.buffer[self.start..] } else { &[] })
    }

    /// Parses the received bytes. Returns true if there is a complete request, from `start` to `at`.
    fn advance(&mut self, trust: Trust) -> Result<bool, ProtocolError> {
        loop {
            if self.at > self.start {
                // A partly parsed request is always an array.
                return self.arguments(trust);
            }
            self.parts.clear();
            if self.parts.capacity() > IDLE_PARTS {
                self.parts.shrink_to(IDLE_PARTS);
            }
            match self.buffer.get(self.at) {
                None => return Ok(false),
                Some(b'*') => match self.count(trust)? {
                    None => return Ok(false),
                    Some(0) => self.start = self.at,
                    Some(count) => self.missing = count,
                },
                Some(_) => {
                    if !self.inline()? {
                        return Ok(false);
                    }
                    if !self.parts.is_empty() {
                        return Ok(true);
                    }
                    self.start = self.at;
                }
            }
        }
    }

    /// Parses the number of arguments of a request; `None` if the line with the number is incomplete.
    fn count(&mut self, trust: Trust) -> Result<Option<usize>, ProtocolError> {
        match self.line() {
            Line::Partial if self.buffer.len() - self.at > MAX_LINE_BYTES => Err(ProtocolError::CountTooLong),
            Line::Partial => Ok(None),
            Line::NoNumber => Err(ProtocolError::BadCount),
            Line::Number { number, end } => {
                trust.check_arguments(number)?;
                self.at = end;
                Ok(Some(usize::try_from(number).unwrap_or(0)))
            }
        }
    }

    /// Parses the arguments of a request. Returns true if all arguments are complete.
    fn arguments(&mut self, trust: Trust) -> Result<bool, ProtocolError> {
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.length(trust)? {
                    None => return Ok(false),
                    Some(len) => len,
                },
            };
            // Redis does not check the two bytes after the argument, so this code does not either.
            let end = self.at + len + 2;
            if end > self.buffer.len() {
                self.bulk = Some(len);
                return Ok(false);
            }
            self.parts.push(Part::new(self.at - self.start, len));
            (self.at, self.bulk) = (end, None);
            self.missing -= 1;
        }
        Ok(true)
    }

    /// Parses the length of the next argument in bytes; `None` if the line with the length is incomplete.
    #[inline]
    fn length(&mut self, trust: Trust) -> Result<Option<usize>, ProtocolError> {
        match self.line() {
            Line::Partial if self.buffer.len() - self.at > MAX_LINE_BYTES => Err(ProtocolError::LengthTooLong),
            Line::Partial => Ok(None),
            _ if self.buffer[self.at] != b'$' => Err(ProtocolError::NotBulk { got: self.buffer[self.at] }),
            Line::NoNumber => Err(ProtocolError::BadLength),
            Line::Number { number, end } => {
                trust.check_bulk(number)?;
                let len = usize::try_from(number).map_err(|_| ProtocolError::BadLength)?;
                if end - self.start + len + 2 > MAX_REQUEST_BYTES {
                    return Err(ProtocolError::TooBig);
                }
                self.at = end;
                Ok(Some(len))
            }
        }
    }

    /// Parses the number in the line at the position `at`, after the line's first byte. Like Redis, searches for
    /// the carriage return and assumes that a newline follows.
    #[inline]
    fn line(&self) -> Line {
        let digit = |byte: u8| i64::from(byte - b'0');
        // Nearly all numbers have up to three digits.
        let (number, len) = match self.buffer[self.at..] {
            [_, a @ b'0'..=b'9', b'\r', _, ..] => (digit(a), 4),
            [_, a @ b'1'..=b'9', b @ b'0'..=b'9', b'\r', _, ..] => (10 * digit(a) + digit(b), 5),
            [_, a @ b'1'..=b'9', b @ b'0'..=b'9', c @ b'0'..=b'9', b'\r', _, ..] => {
                (100 * digit(a) + 10 * digit(b) + digit(c), 6)
            }
            _ => return self.long_line(),
        };
        Line::Number { number, end: self.at + len }
    }

    fn long_line(&self) -> Line {
        let rest = &self.buffer[self.at..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\r').filter(|len| len + 1 < rest.len()) else {
            return Line::Partial;
        };
        let end = self.at + len + 2;
        match rest.get(1..len).and_then(parse_integer) {
            Some(number) => Line::Number { number, end },
            None => Line::NoNumber,
        }
    }

    /// Parses an inline command: the line at the position `at`. Returns true if the line is complete; its words are
    /// then in `parts`.
    fn inline(&mut self) -> Result<bool, ProtocolError> {
        let rest = &mut self.buffer[self.at..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\n') else {
            let too_big = rest.len() > MAX_LINE_BYTES;
            return if too_big { Err(ProtocolError::InlineTooBig) } else { Ok(false) };
        };
        let words = &mut rest[..len];
        let words = match words {
            [line @ .., b'\r'] => line,
            line => line,
        };
        inline::split(words, 0, &mut self.parts).map_err(|_| ProtocolError::UnbalancedQuotes)?;
        self.at += len + 1;
        Ok(true)
    }
}
