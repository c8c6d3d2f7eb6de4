//! A minimal HTTP/1.1 response parser: status line, headers, a body by length or in chunks.
//!
//! Owns: finding where a response ends in a connection's buffer.
//! Bytes come from outside: whatever they are, the answer is `Malformed`, never a panic, and a
//! response above [`MAX_RESPONSE_BYTES`] is refused.

use std::{borrow::Cow, ops::Range};

/// Longest response that is accepted, head and body together.
pub const MAX_RESPONSE_BYTES: usize = 64 << 20;
const MAX_HEADERS: usize = 100;

/// A complete response at the start of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code.
    pub status: u16,
    /// Where the body lies in the buffer, chunk heads included if it came in chunks.
    pub body: Range<usize>,
    /// Whether it came in chunks.
    pub chunked: bool,
    /// Bytes of the whole response.
    pub total_bytes: usize,
    /// The server will close the connection.
    pub closes: bool,
}

impl Reply {
    /// The body's bytes; `buffer` is what was parsed.
    #[must_use]
    pub fn body_bytes<'a>(&self, buffer: &'a [u8]) -> Cow<'a, [u8]> {
        let bytes = &buffer[self.body.clone()];
        if self.chunked { Cow::Owned(without_chunks(bytes)) } else { Cow::Borrowed(bytes) }
    }
}

/// The chunks' contents in one piece; `bytes` has been found complete by [`parse`].
fn without_chunks(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Ok((start, len)) = chunk_at(bytes, at) {
        let Some(chunk) = bytes.get(start..start + len).filter(|chunk| !chunk.is_empty()) else { break };
        out.extend_from_slice(chunk);
        at = start + len + 2;
    }
    out
}

/// Why there is no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// Read more.
    NeedMore,
    /// This will never be a response.
    Malformed(&'static str),
}

/// Whether the response to a request can have a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// As its headers say.
    Expected,
    /// Never: it answers a HEAD.
    Never,
}

/// Parses the response at the start of `buffer`.
pub fn parse(buffer: &[u8], body: Body) -> Result<Reply, Incomplete> {
    let Some(head_len) = head_end(buffer) else {
        return Err(if buffer.len() > 64 << 10 {
            Incomplete::Malformed("head too long")
        } else {
            Incomplete::NeedMore
        });
    };
    let head = Head::parse(&buffer[..head_len])?;
    if body == Body::Never || matches!(head.status, 100..=199 | 204 | 304) {
        return Ok(head.reply(head_len..head_len, head_len));
    }
    if head.chunked {
        return chunked_end(buffer, head_len).map(|end| head.reply(head_len..end, end));
    }
    let len = head.content_length.ok_or(Incomplete::Malformed("neither length nor chunks"))?;
    let end = head_len.checked_add(len).filter(|end| *end <= MAX_RESPONSE_BYTES);
    let end = end.ok_or(Incomplete::Malformed("body too long"))?;
    if buffer.len() < end {
        return Err(Incomplete::NeedMore);
    }
    Ok(head.reply(head_len..end, end))
}

fn head_end(buffer: &[u8]) -> Option<usize> {
    buffer.windows(4).position(|window| window == b"\r\n\r\n").map(|at| at + 4)
}

struct Head {
    status: u16,
    content_length: Option<usize>,
    chunked: bool,
    closes: bool,
}

impl Head {
    fn parse(bytes: &[u8]) -> Result<Self, Incomplete> {
        let status = status_of(bytes).ok_or(Incomplete::Malformed("status line"))?;
        let mut head = Self { status, content_length: None, chunked: false, closes: bytes.starts_with(b"HTTP/1.0") };
        let mut rest = bytes;
        let mut lines = 0;
        while let Some(at) = rest.iter().position(|&byte| byte == b'\n') {
            rest = &rest[at + 1..];
            lines += 1;
            if lines > MAX_HEADERS {
                return Err(Incomplete::Malformed("too many headers"));
            }
            head.take_line(rest)?;
        }
        Ok(head)
    }

    fn take_line(&mut self, line: &[u8]) -> Result<(), Incomplete> {
        if let Some(value) = value_of(line, b"content-length:") {
            let len = std::str::from_utf8(value).ok().and_then(|text| text.trim().parse().ok());
            self.content_length = Some(len.ok_or(Incomplete::Malformed("content-length"))?);
        } else if let Some(value) = value_of(line, b"transfer-encoding:") {
            self.chunked = value.to_ascii_lowercase().ends_with(b"chunked");
        } else if let Some(value) = value_of(line, b"connection:") {
            self.closes = value.eq_ignore_ascii_case(b"close");
        }
        Ok(())
    }

    fn reply(&self, body: Range<usize>, total_bytes: usize) -> Reply {
        Reply { status: self.status, chunked: self.chunked && !body.is_empty(), body, total_bytes, closes: self.closes }
    }
}

fn status_of(head: &[u8]) -> Option<u16> {
    if !head.starts_with(b"HTTP/1.") || head.get(8) != Some(&b' ') {
        return None;
    }
    let digits = head.get(9..12)?;
    if !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |status, digit| status * 10 + u16::from(digit - b'0')))
}

/// The trimmed value of the header line at the start of `line`, if it has that name.
fn value_of<'a>(line: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    let (head, rest) = (line.get(..name.len())?, &line[name.len()..]);
    if !head.eq_ignore_ascii_case(name) {
        return None;
    }
    let end = rest.iter().position(|&byte| byte == b'\r' || byte == b'\n').unwrap_or(rest.len());
    Some(rest[..end].trim_ascii())
}

/// Where a chunked body that begins at `at` ends, trailers included.
fn chunked_end(buffer: &[u8], mut at: usize) -> Result<usize, Incomplete> {
    loop {
        let (start, len) = chunk_at(buffer, at)?;
        if len == 0 {
            return trailers_end(buffer, start);
        }
        at = start + len + 2;
        if buffer.len() < at {
            return Err(Incomplete::NeedMore);
        }
        if &buffer[at - 2..at] != b"\r\n" {
            return Err(Incomplete::Malformed("chunk end"));
        }
    }
}

/// Where the content of the chunk at `at` begins, and its length.
fn chunk_at(buffer: &[u8], at: usize) -> Result<(usize, usize), Incomplete> {
    let line_len = line_len(buffer, at)?;
    let line = &buffer[at..at + line_len];
    let size = line.split(|&byte| byte == b';').next().unwrap_or_default().trim_ascii();
    let len = std::str::from_utf8(size).ok().and_then(|text| usize::from_str_radix(text, 16).ok());
    let len = len.filter(|len| *len <= MAX_RESPONSE_BYTES).ok_or(Incomplete::Malformed("chunk size"))?;
    Ok((at + line_len + 2, len))
}

fn trailers_end(buffer: &[u8], mut at: usize) -> Result<usize, Incomplete> {
    loop {
        let len = line_len(buffer, at)?;
        at += len + 2;
        if len == 0 {
            return Ok(at);
        }
    }
}

fn line_len(buffer: &[u8], at: usize) -> Result<usize, Incomplete> {
    let rest = buffer.get(at..).ok_or(Incomplete::NeedMore)?;
    match rest.windows(2).take(8 << 10).position(|pair| pair == b"\r\n") {
        Some(len) => Ok(len),
        None if rest.len() > 8 << 10 => Err(Incomplete::Malformed("line too long")),
        None => Err(Incomplete::NeedMore),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: x\r\nContent-Length:  5 \r\n\r\nhelloREST";
    const CHUNKS: &[u8] =
        b"HTTP/1.1 404 Not Found\r\nTransfer-Encoding: chunked\r\n\r\n5;x=1\r\nhello\r\na\r\n0123456789\r\n0\r\nT: 1\r\n\r\n";

    #[test]
    fn a_body_by_length_is_found_in_the_buffer() {
        let reply = parse(LENGTH, Body::Expected).unwrap();
        assert_eq!(reply.status, 200);
        assert_eq!(&*reply.body_bytes(LENGTH), b"hello");
        assert_eq!(&LENGTH[reply.total_bytes..], b"REST");
        assert!(!reply.closes);
    }

    #[test]
    fn a_body_in_chunks_ends_after_its_trailers() {
        let reply = parse(CHUNKS, Body::Expected).unwrap();
        assert_eq!((reply.status, reply.chunked, reply.total_bytes), (404, true, CHUNKS.len()));
        assert_eq!(&*reply.body_bytes(CHUNKS), b"hello0123456789");
    }

    #[test]
    fn some_statuses_and_requests_have_no_body() {
        let none = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
        let reply = parse(none, Body::Expected).unwrap();
        assert!(reply.closes && reply.total_bytes == none.len());
        let head = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n";
        assert_eq!(parse(head, Body::Never).unwrap().total_bytes, head.len());
    }

    #[test]
    fn every_prefix_needs_more_and_garbage_is_malformed() {
        let full = parse(LENGTH, Body::Expected).unwrap().total_bytes;
        for cut in 0..full {
            assert_eq!(parse(&LENGTH[..cut], Body::Expected), Err(Incomplete::NeedMore), "{cut}");
        }
        for cut in 0..CHUNKS.len() {
            assert_eq!(parse(&CHUNKS[..cut], Body::Expected), Err(Incomplete::NeedMore), "{cut}");
        }
        for garbage in [
            &b"SSH-2.0\r\n\r\n"[..],
            b"HTTP/1.1 2x0 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999\r\n\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
            b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        ] {
            assert!(matches!(parse(garbage, Body::Expected), Err(Incomplete::Malformed(_))));
        }
    }

    #[test]
    fn flipped_bytes_never_panic() {
        for at in 0..CHUNKS.len() {
            for bit in 0..8 {
                let mut bytes = CHUNKS.to_vec();
                bytes[at] ^= 1 << bit;
                let _ = parse(&bytes, Body::Expected);
            }
        }
    }
}
