//! Encoding of replies in RESP2 and RESP3.
//!
//! Owns: the bytes of each kind of reply in both versions, and the trait `Out`. With it, a destination may keep
//! references to large values. Does not own: the choice of a reply (`Reply`, made by the commands), or the socket.

use bytes::Bytes;

use crate::{
    Reply,
    number::{MAX_DIGITS, put_digits},
};

/// Protocol version of a connection. Requests have the same form in both versions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// RESP2, with which all connections begin.
    #[default]
    Resp2,
    /// Version after `HELLO 3`. Its replies distinguish maps, sets, pushes and nulls.
    Resp3,
}

impl Protocol {
    /// Number of the protocol version: 2 or 3.
    #[must_use]
    pub const fn number(self) -> i64 {
        match self {
            Self::Resp2 => 2,
            Self::Resp3 => 3,
        }
    }
}

/// Destination to which a [`Writer`] appends encoded replies.
pub trait Out {
    /// Buffer to which the writer appends encoded bytes.
    fn buffer(&mut self) -> &mut Vec<u8>;
    /// Appends reference-counted bytes. An implementation can keep a reference to long bytes instead of copying them.
    fn share(&mut self, bytes: &Bytes) {
        self.buffer().extend_from_slice(bytes);
    }
}

impl Out for Vec<u8> {
    fn buffer(&mut self) -> &mut Vec<u8> {
        self
    }
}

impl<O: Out + ?Sized> Out for &mut O {
    fn buffer(&mut self) -> &mut Vec<u8> {
        (**self).buffer()
    }

    fn share(&mut self, bytes: &Bytes) {
        (**self).share(bytes);
    }
}

/// Encoder of replies. The caller announces the number of elements of an array, map or set, and then writes each
/// element.
#[derive(Debug)]
pub struct Writer<O> {
    out: O,
    protocol: Protocol,
}

impl<O: Out> Writer<O> {
    /// Creates a writer that appends encoded replies to `out`.
    pub fn new(out: O, protocol: Protocol) -> Self {
        Self { out, protocol }
    }

    /// Returns the protocol version in which the writer encodes.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Writes a reply of any kind.
    pub fn reply(&mut self, reply: &Reply) {
        match reply {
            Reply::Ok => self.ok(),
            Reply::Simple(text) => self.simple(text),
            Reply::Error(text) => self.error(text.as_bytes()),
            Reply::Integer(number) => self.integer(*number),
            Reply::Bulk(bytes) => self.shared(bytes),
            Reply::Null => self.null(),
            Reply::NullArray => self.null_array(),
            Reply::Array(items) => {
                self.array(items.len());
                self.replies(items);
            }
            Reply::Set(items) => {
                self.set(items.len());
                self.replies(items);
            }
            Reply::Push(items) => {
                self.push(items.len());
                self.replies(items);
            }
            Reply::Map(pairs) => {
                self.map(pairs.len());
                self.pairs(pairs, false);
            }
            Reply::Pairs(pairs) if self.protocol == Protocol::Resp3 => {
                self.map(pairs.len());
                self.pairs(pairs, false);
            }
            Reply::FlatPairs(pairs) if self.protocol == Protocol::Resp2 => {
                self.array(2 * pairs.len());
                self.pairs(pairs, false);
            }
            Reply::Pairs(pairs) | Reply::FlatPairs(pairs) => {
                self.array(pairs.len());
                self.pairs(pairs, true);
            }
        }
    }

    fn replies(&mut self, items: &[Reply]) {
        items.iter().for_each(|item| self.reply(item));
    }

    /// Writes keys and values in turn. If `nested` is true, writes each pair as an array instead.
    fn pairs(&mut self, pairs: &[(Reply, Reply)], nested: bool) {
        for (key, value) in pairs {
            if nested {
                self.array(2);
            }
            self.reply(key);
            self.reply(value);
        }
    }

    /// Writes the reply `+OK`.
    #[inline]
    pub fn ok(&mut self) {
        self.raw(b"+OK\r\n");
    }

    /// Writes a simple string: text without line breaks.
    pub fn simple(&mut self, text: &str) {
        let out = self.out.buffer();
        out.push(b'+');
        out.extend_from_slice(text.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    /// Writes an error reply: `text` begins with the error code. Line breaks in the text become spaces.
    pub fn error(&mut self, text: &[u8]) {
        let out = self.out.buffer();
        out.push(b'-');
        let at = out.len();
        out.extend_from_slice(text);
        for byte in &mut out[at..] {
            if matches!(byte, b'\r' | b'\n') {
                *byte = b' ';
            }
        }
        out.extend_from_slice(b"\r\n");
    }

    /// Writes an integer.
    #[inline]
    pub fn integer(&mut self, number: i64) {
        let out = self.out.buffer();
        out.push(b':');
        if number < 0 {
            out.push(b'-');
        }
        decimal(out, number.unsigned_abs());
        out.extend_from_slice(b"\r\n");
    }

    /// Writes a bulk string by copying the bytes.
    #[inline]
    pub fn bulk(&mut self, bytes: &[u8]) {
        self.announce(b'$', bytes.len());
        let out = self.out.buffer();
        out.extend_from_slice(bytes);
        out.extend_from_slice(b"\r\n");
    }

    /// Writes a bulk string. The destination can keep a reference to the bytes instead of copying them.
    #[inline]
    pub fn shared(&mut self, bytes: &Bytes) {
        self.announce(b'$', bytes.len());
        self.out.share(bytes);
        self.raw(b"\r\n");
    }

    /// Writes text for people to read: a verbatim string in RESP3, and a bulk string in RESP2.
    pub fn verbatim(&mut self, text: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(text.as_bytes()),
            Protocol::Resp3 => {
                self.announce(b'=', text.len() + 4);
                self.raw(b"txt:");
                self.raw(text.as_bytes());
                self.raw(b"\r\n");
            }
        }
    }

    /// Writes a null value.
    #[inline]
    pub fn null(&mut self) {
        self.raw(match self.protocol {
            Protocol::Resp2 => b"$-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Writes a null array.
    pub fn null_array(&mut self) {
        self.raw(match self.protocol {
            Protocol::Resp2 => b"*-1\r\n",
            Protocol::Resp3 => b"_\r\n",
        });
    }

    /// Begins an array of `len` values.
    pub fn array(&mut self, len: usize) {
        self.announce(b'*', len);
    }

    /// Begins a map of `pairs` pairs. In RESP2 this is an array of twice that length.
    pub fn map(&mut self, pairs: usize) {
        match self.protocol {
            Protocol::Resp2 => self.announce(b'*', pairs * 2),
            Protocol::Resp3 => self.announce(b'%', pairs),
        }
    }

    /// Begins a set of `len` values.
    pub fn set(&mut self, len: usize) {
        self.announce(if self.protocol == Protocol::Resp2 { b'*' } else { b'~' }, len);
    }

    /// Begins a push message of `len` values, which is not a reply to a request.
    pub fn push(&mut self, len: usize) {
        self.announce(if self.protocol == Protocol::Resp2 { b'*' } else { b'>' }, len);
    }

    #[inline]
    fn raw(&mut self, bytes: &[u8]) {
        self.out.buffer().extend_from_slice(bytes);
    }

    #[inline]
    fn announce(&mut self, kind: u8, len: usize) {
        let out = self.out.buffer();
        out.push(kind);
        decimal(out, len as u64);
        out.extend_from_slice(b"\r\n");
    }
}

/// Appends a number in decimal.
#[inline]
fn decimal(out: &mut Vec<u8>, number: u64) {
    if number < 10 {
        out.push(b'0' + number as u8);
        return;
    }
    let mut digits = [0; MAX_DIGITS];
    let begin = put_digits(&mut digits, number);
    out.extend_from_slice(&digits[begin..]);
}
