//! From bytes as they come to requests.
//!
//! Owns: the receive buffer, where requests begin and end, what a client may announce.
//!
//! Invariants: what is announced is not allocated before it is there: the buffer has room for at most as much again as
//! has been received, and for [`READ_BYTES`]; so have the places of arguments. A request is looked at once, however its
//! bytes come: what was understood of it is kept. After a [`ProtocolError`] nobody knows where the next request begins,
//! and every later call gives the same error.

use std::borrow::Cow;

use bytes::{Buf, BytesMut};
use thalweg_types::{Action, Classified, limits::MAX_COMMAND_BYTES};

use super::inline;

/// Room that [`Input::buffer`] has at least: what one read from a socket may bring.
pub const READ_BYTES: usize = 64 * 1024;
/// Longest line: an inline command, or what announces arguments.
const MAX_LINE_BYTES: usize = 64 * 1024;
/// Most arguments of a request.
const MAX_ARGUMENTS: i64 = 1024 * 1024;
/// Largest request, as large as a command of the log may be.
const MAX_REQUEST_BYTES: usize = MAX_COMMAND_BYTES;
/// Arguments whose places are kept without asking for memory again.
const IDLE_PARTS: usize = 1024;

/// Whether a client has said who it is, if it must.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trust {
    /// It may announce what fits.
    Known,
    /// It may announce ten arguments of 16 KiB: more than it takes to authenticate.
    Unknown,
}

impl Trust {
    fn max_arguments(self) -> i64 {
        match self {
            Self::Known => MAX_ARGUMENTS,
            Self::Unknown => 10,
        }
    }

    fn max_bulk_bytes(self) -> i64 {
        match self {
            Self::Known => MAX_REQUEST_BYTES as i64,
            Self::Unknown => 16 * 1024,
        }
    }
}

/// What a client sent is no request: the connection ends after it was told.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A line without an end.
    #[error("Protocol error: too big inline request")]
    InlineTooBig,
    /// A quote of an inline command that is not closed, or goes on behind it.
    #[error("Protocol error: unbalanced quotes in request")]
    UnbalancedQuotes,
    /// How many arguments there are, without an end.
    #[error("Protocol error: too big mbulk count string")]
    CountTooLong,
    /// No number of arguments, or too many.
    #[error("Protocol error: invalid multibulk length")]
    BadCount,
    /// More arguments than one may have who has not authenticated.
    #[error("Protocol error: unauthenticated multibulk length")]
    UnknownCount,
    /// How long an argument is, without an end.
    #[error("Protocol error: too big bulk count string")]
    LengthTooLong,
    /// Something else than an argument.
    #[error("Protocol error: expected '$', got '{}'", *got as char)]
    NotBulk {
        /// What it begins with.
        got: u8,
    },
    /// No length of an argument, or too long.
    #[error("Protocol error: invalid bulk length")]
    BadLength,
    /// A longer argument than one may send who has not authenticated.
    #[error("Protocol error: unauthenticated bulk length")]
    UnknownLength,
    /// The arguments together are too long.
    #[error("Protocol error: too big request: at most {MAX_REQUEST_BYTES} bytes, send less at a time")]
    TooBig,
}

impl ProtocolError {
    /// What the client is told, without `ERR`. Bytes, because what it sent may be among them.
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

impl Classified for ProtocolError {
    fn code(&self) -> &'static str {
        match self {
            Self::TooBig => "request_too_large",
            _ => "malformed_request",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// Where an argument is, counted from where its request begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    begin: u32,
    len: u32,
}

impl Part {
    /// # Panics
    /// Not within a request, which is smaller than 4 GiB.
    pub fn new(begin: usize, len: usize) -> Self {
        let fits = "a request is smaller than 4 GiB";
        Self { begin: u32::try_from(begin).expect(fits), len: u32::try_from(len).expect(fits) }
    }

    fn of(self, request: &[u8]) -> &[u8] {
        &request[self.begin as usize..][..self.len as usize]
    }
}

/// A request: its arguments, the name first. There is at least one.
#[derive(Clone, Copy, Debug)]
pub struct Request<'b> {
    bytes: &'b [u8],
    parts: &'b [Part],
}

/// Arguments that [`Request::with`] gives without asking for memory.
const FEW: usize = 16;

impl<'b> Request<'b> {
    /// How many arguments, the name included.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "never empty")]
    pub fn len(&self) -> usize {
        self.parts.len()
    }

    /// The first argument.
    #[must_use]
    pub fn name(&self) -> &'b [u8] {
        self.parts[0].of(self.bytes)
    }

    /// An argument; 0 is the name.
    #[must_use]
    pub fn get(&self, at: usize) -> Option<&'b [u8]> {
        self.parts.get(at).map(|part| part.of(self.bytes))
    }

    /// All arguments.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &'b [u8]> + Clone {
        let bytes = self.bytes;
        self.parts.iter().map(move |part| part.of(bytes))
    }

    /// How many bytes it came in.
    #[must_use]
    pub fn wire_bytes(&self) -> usize {
        self.bytes.len()
    }

    /// All arguments as a slice, which costs an allocation only if they are many.
    pub fn with<R>(&self, act: impl FnOnce(&[&'b [u8]]) -> R) -> R {
        if self.len() <= FEW {
            let mut few: [&[u8]; FEW] = [&[]; FEW];
            for (place, argument) in few.iter_mut().zip(self.iter()) {
                *place = argument;
            }
            act(&few[..self.len()])
        } else {
            act(&self.iter().collect::<Vec<_>>())
        }
    }
}

/// What announces something, or why it does not.
enum Line {
    /// Not all of it is there.
    Partial,
    /// No number that Redis would take.
    NoNumber,
    /// A number, and where the line ends.
    Number { number: i64, end: usize },
}

/// Takes bytes, gives requests. See the module's documentation.
#[derive(Debug, Default)]
pub struct Input {
    pub(super) buffer: BytesMut,
    /// Where the request under way begins; before it is what was given out.
    start: usize,
    /// Up to where it was understood. `start <= at <= buffer.len()`
    at: usize,
    /// Arguments still to come, of a request that is an array.
    missing: usize,
    /// Bytes of the argument whose announcement was read last.
    bulk: Option<usize>,
    parts: Vec<Part>,
    /// The request from `start` to `at` was given and taken back.
    again: bool,
    /// The buffer has been asked to hold more than two reads.
    is_large: bool,
    failed: Option<ProtocolError>,
}

impl Input {
    /// Without memory.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The buffer to read into, with some room behind what is there. What is there must stay.
    pub fn buffer(&mut self) -> &mut BytesMut {
        if self.start > 0 {
            self.buffer.advance(self.start);
            self.at -= self.start;
            self.start = 0;
        }
        let have = self.buffer.len();
        if self.buffer.capacity() - have < READ_BYTES / 4 {
            // As much again as is there already, if the request under way wants it.
            let wanted = self.wanted_bytes().saturating_sub(have);
            let more = wanted.min(have).max(READ_BYTES);
            self.is_large |= have + more > 2 * READ_BYTES;
            self.buffer.reserve(more);
        }
        &mut self.buffer
    }

    /// Takes what has been received, by copying it.
    pub fn feed(&mut self, bytes: &[u8]) {
        self.buffer().extend_from_slice(bytes);
    }

    /// Bytes received that are part of no request yet.
    #[must_use]
    pub fn pending_bytes(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Whether a request was taken back.
    #[must_use]
    pub fn is_unread(&self) -> bool {
        self.again
    }

    /// Bytes of the request under way as far as it was announced: what it will take at least.
    #[must_use]
    pub fn wanted_bytes(&self) -> usize {
        self.at - self.start + self.bulk.map_or(0, |len| len + 2)
    }

    /// As [`buffer`](Self::buffer), with this one if there is none: for those who keep one that [`release`](Self::release)
    /// gave them.
    pub fn buffer_or(&mut self, spare: impl FnOnce() -> BytesMut) -> &mut BytesMut {
        if self.buffer.capacity() == 0 {
            self.buffer = spare();
        }
        self.buffer()
    }

    /// Parts with the buffer, if no part of a request is in it; not with one that became large. For a connection that waits
    /// for its peer.
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

    /// The next request; `None` until all of it is there. Those of no arguments are passed over.
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
                Ok(Some(Request { bytes: &self.buffer[begin..self.at], parts: &self.parts }))
            }
            Err(error) => {
                self.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Takes back the request of `bytes` bytes that was given last: the next call gives it again. Nothing may have been
    /// received meanwhile.
    pub fn unread(&mut self, bytes: usize) {
        debug_assert!(!self.again && bytes <= self.start && self.start == self.at);
        self.start -= bytes;
        self.again = true;
    }

    /// Whether there is a whole request, from `start` to `at`.
    fn advance(&mut self, trust: Trust) -> Result<bool, ProtocolError> {
        loop {
            if self.at > self.start {
                // What was begun is an array.
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

    /// How many arguments follow, if that is there.
    fn count(&mut self, trust: Trust) -> Result<Option<usize>, ProtocolError> {
        match self.line() {
            Line::Partial if self.buffer.len() - self.at > MAX_LINE_BYTES => Err(ProtocolError::CountTooLong),
            Line::Partial => Ok(None),
            Line::NoNumber => Err(ProtocolError::BadCount),
            Line::Number { number, .. } if number > MAX_ARGUMENTS => Err(ProtocolError::BadCount),
            Line::Number { number, .. } if number > trust.max_arguments() => Err(ProtocolError::UnknownCount),
            Line::Number { number, end } => {
                self.at = end;
                Ok(Some(usize::try_from(number).unwrap_or(0)))
            }
        }
    }

    /// Whether all arguments are there.
    fn arguments(&mut self, trust: Trust) -> Result<bool, ProtocolError> {
        while self.missing > 0 {
            let len = match self.bulk {
                Some(len) => len,
                None => match self.length(trust)? {
                    None => return Ok(false),
                    Some(len) => len,
                },
            };
            // What follows the argument is not looked at, as it is not by Redis.
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

    /// How long the next argument is, if that is there.
    #[inline]
    fn length(&mut self, trust: Trust) -> Result<Option<usize>, ProtocolError> {
        match self.line() {
            Line::Partial if self.buffer.len() - self.at > MAX_LINE_BYTES => Err(ProtocolError::LengthTooLong),
            Line::Partial => Ok(None),
            _ if self.buffer[self.at] != b'$' => Err(ProtocolError::NotBulk { got: self.buffer[self.at] }),
            Line::NoNumber => Err(ProtocolError::BadLength),
            Line::Number { number, .. } if !(0..=MAX_REQUEST_BYTES as i64).contains(&number) => {
                Err(ProtocolError::BadLength)
            }
            Line::Number { number, .. } if number > trust.max_bulk_bytes() => Err(ProtocolError::UnknownLength),
            Line::Number { number, end } => {
                let len = usize::try_from(number).map_err(|_| ProtocolError::BadLength)?;
                if end - self.start + len + 2 > MAX_REQUEST_BYTES {
                    return Err(ProtocolError::TooBig);
                }
                self.at = end;
                Ok(Some(len))
            }
        }
    }

    /// The number behind the first byte of the line at `at`. Redis looks for the carriage return, and takes it that a
    /// newline follows.
    #[inline]
    fn line(&self) -> Line {
        let rest = &self.buffer[self.at..];
        let mut number: i64 = 0;
        // Nearly all: a few digits.
        for (at, byte) in rest.iter().enumerate().skip(1).take(9) {
            match byte {
                b'0'..=b'9' => number = number * 10 + i64::from(byte - b'0'),
                b'\r' if at > 1 && (rest[1] != b'0' || at == 2) => {
                    if at + 1 == rest.len() {
                        return Line::Partial;
                    }
                    return Line::Number { number, end: self.at + at + 2 };
                }
                _ => break,
            }
        }
        self.long_line()
    }

    fn long_line(&self) -> Line {
        let rest = &self.buffer[self.at..];
        let Some(len) = rest.iter().position(|byte| *byte == b'\r').filter(|len| len + 1 < rest.len()) else {
            return Line::Partial;
        };
        let end = self.at + len + 2;
        match rest.get(1..len).and_then(number) {
            Some(number) => Line::Number { number, end },
            None => Line::NoNumber,
        }
    }

    /// Whether the line at `at` is there; then its words are in `parts`.
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

/// A number as Redis reads those of its protocol: no plus, no leading zeros, no `-0`.
fn number(text: &[u8]) -> Option<i64> {
    let digits = text.strip_prefix(b"-").unwrap_or(text);
    let plain = match digits {
        [b'0'] => text.len() == 1,
        [b'1'..=b'9', rest @ ..] => rest.iter().all(u8::is_ascii_digit),
        _ => false,
    };
    if !plain {
        return None;
    }
    std::str::from_utf8(text).ok()?.parse().ok()
}
