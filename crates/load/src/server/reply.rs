//! Responses of HTTP/1.1: finds the end of a response in a connection's buffer, its status, and its body by length or
//! in chunks.
//!
//! Owns: the bounds of a response, and the division of a chunked body. Does not own: the parsing of heads and chunk
//! sizes, which `httparse` does.
//!
//! Invariant: the bytes come from the network. If they are malformed, parsing returns `Malformed` and never panics. A
//! response above [`MAX_RESPONSE_BYTES`] is rejected.

use std::{borrow::Cow, mem::MaybeUninit, ops::Range};

use httparse::{ParserConfig, Response, Status};

use self::Incomplete::NeedMore;

/// Maximum size of a response in bytes, head and body together.
pub(super) const MAX_RESPONSE_BYTES: usize = 64 << 20;
const MAX_HEAD_BYTES: usize = 64 << 10;
const MAX_HEADERS: usize = 100;

/// A complete HTTP response at the start of a buffer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Status code of the response.
    pub status: u16,
    /// Range of the body in the buffer. If the body is chunked, the range includes the chunk heads.
    pub body: Range<usize>,
    /// True if the body was sent in chunks.
    pub chunked: bool,
    /// Size of the whole response in bytes.
    pub total_bytes: usize,
    /// True if the server will close the connection after this response.
    pub closes: bool,
}

impl Reply {
    /// Returns the body's bytes without chunk heads. `buffer` is the buffer from which the response was parsed.
    pub fn body_bytes<'a>(&self, buffer: &'a [u8]) -> Cow<'a, [u8]> {
        let bytes = &buffer[self.body.clone()];
        if self.chunked { Cow::Owned(without_chunks(bytes)) } else { Cow::Borrowed(bytes) }
    }
}

/// Joins the contents of all chunks. `bytes` must be a chunked body that [`parse`] has found complete.
fn without_chunks(bytes: &[u8]) -> Vec<u8> {
    let (mut out, mut at) = (Vec::new(), 0);
    while let Ok((start, len)) = chunk_at(bytes, at) {
        let Some(chunk) = bytes.get(start..start + len).filter(|chunk| !chunk.is_empty()) else { break };
        out.extend_from_slice(chunk);
        at = start + len + 2;
    }
    out
}

/// Reason why a buffer contains no complete response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incomplete {
    /// The response is incomplete: the caller must read more bytes.
    NeedMore,
    /// The bytes are not an HTTP response; the text describes the fault.
    Malformed(&'static str),
}

/// Choice between requests whose response can have a body and those whose response cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Body {
    /// The headers of the response determine if there is a body.
    Expected,
    /// The response has no body, because it answers a HEAD request.
    Never,
}

/// Parses the HTTP response at the start of `buffer`.
pub fn parse(buffer: &[u8], body: Body) -> Result<Reply, Incomplete> {
    let mut headers = [const { MaybeUninit::uninit() }; MAX_HEADERS];
    let mut response = Response::new(&mut []);
    let parsed = ParserConfig::default().parse_response_with_uninit_headers(&mut response, buffer, &mut headers);
    let Status::Complete(head_len) = parsed.map_err(|_| Incomplete::Malformed("head"))? else {
        return Err(if buffer.len() > MAX_HEAD_BYTES { Incomplete::Malformed("head too long") } else { NeedMore });
    };
    let (mut length, mut chunked, mut closes) = (None, false, response.version == Some(0));
    for header in &*response.headers {
        if header.name.eq_ignore_ascii_case("content-length") {
            let digits = std::str::from_utf8(header.value).ok().and_then(|text| text.trim().parse::<usize>().ok());
            length = Some(digits.ok_or(Incomplete::Malformed("content-length"))?);
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            chunked = header.value.to_ascii_lowercase().ends_with(b"chunked");
        } else if header.name.eq_ignore_ascii_case("connection") {
            closes = header.value.eq_ignore_ascii_case(b"close");
        }
    }
    let status = response.code.ok_or(Incomplete::Malformed("status line"))?;
    let end = match length {
        _ if body == Body::Never || matches!(status, 100..=199 | 204 | 304) => head_len,
        _ if chunked => chunked_end(buffer, head_len)?,
        Some(length) => head_len.saturating_add(length),
        None => return Err(Incomplete::Malformed("neither length nor chunks")),
    };
    if end > MAX_RESPONSE_BYTES {
        return Err(Incomplete::Malformed("body too long"));
    }
    if buffer.len() < end {
        return Err(NeedMore);
    }
    Ok(Reply { status, chunked: chunked && end > head_len, body: head_len..end, total_bytes: end, closes })
}

/// Returns the end of the chunked body that begins at position `at`, including trailers.
fn chunked_end(buffer: &[u8], mut at: usize) -> Result<usize, Incomplete> {
    loop {
        let (start, len) = chunk_at(buffer, at)?;
        if len == 0 {
            let mut trailers = [httparse::EMPTY_HEADER; MAX_HEADERS];
            return match httparse::parse_headers(&buffer[start..], &mut trailers) {
                Ok(Status::Complete((len, _))) => Ok(start + len),
                Ok(Status::Partial) => Err(NeedMore),
                Err(_) => Err(Incomplete::Malformed("trailers")),
            };
        }
        at = start + len + 2;
        match buffer.get(at - 2..at) {
            None => return Err(NeedMore),
            Some(b"\r\n") => {}
            Some(_) => return Err(Incomplete::Malformed("chunk end")),
        }
    }
}

/// Returns the position and the length of the content of the chunk at position `at`.
fn chunk_at(buffer: &[u8], at: usize) -> Result<(usize, usize), Incomplete> {
    match httparse::parse_chunk_size(buffer.get(at..).ok_or(NeedMore)?) {
        Ok(Status::Complete((head, len))) if len <= MAX_RESPONSE_BYTES as u64 => Ok((at + head, len as usize)),
        Ok(Status::Partial) => Err(NeedMore),
        Ok(Status::Complete(_)) | Err(_) => Err(Incomplete::Malformed("chunk size")),
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
