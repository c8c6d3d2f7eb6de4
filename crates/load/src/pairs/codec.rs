//! Protocols of operations on keys: the encoding of operations as requests, and the decoding of replies.
//!
//! Owns: the bytes of requests and replies over HTTP and RESP. Does not own: those of the native protocol
//! ([`super::native`]) and of templates ([`super::templates`]), or the judgement of answers.

use std::{borrow::Cow, io::Write as _, net::SocketAddr};

use thalweg_redis::wire::reply_parser::{Token, token};
use thalweg_types::Durability;

use super::rows::{self, RowCheck, shown};
use crate::{
    Address, BenchError, Connection,
    data::key,
    resp::client::{Client, Greeting},
    server::{Body, Incomplete, parse},
};

/// Header of a reply with the durability level that a write has reached.
const LEVEL_HEADER: &[u8] = b"thalweg-durability:";

/// Protocol of operations on keys. Replies arrive in the order of a connection's requests.
pub trait Codec: Clone + Sync {
    /// Maximum number of unanswered requests on a connection.
    const PIPELINE: usize = 16;

    /// Opens a connection that is ready for requests; its socket is non-blocking.
    fn connect(&self) -> Result<Connection, BenchError>;

    /// Appends the request that sets a key's value to the concatenation of the two slices in `value`.
    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>);

    /// Appends the request that reads a key's value.
    fn get(&self, index: u64, out: &mut Vec<u8>);

    /// Appends the request that removes a key from a cache. Only caches get such requests.
    fn delete(&self, index: u64, out: &mut Vec<u8>);

    /// Appends the request that reads at most `rows` keys with the indices `first..end`, in order. Only protocols with
    /// scans get such requests.
    fn scan(&self, first: u64, end: u64, rows: u32, out: &mut Vec<u8>);

    /// Calls `check` with the key and the value of each row in the reply to a scan, in order. Returns the number of
    /// rows. If the rows are wrong, returns a description of the fault.
    fn rows(&self, content: &[u8], check: &mut RowCheck<'_>) -> Result<u64, String> {
        rows::check(content, check)
    }

    /// Returns true if this content of a reply acknowledges a write.
    #[inline]
    fn is_stored(&self, content: &Content<'_>) -> bool {
        *content == Content::Stored
    }

    /// Returns the durability level that a reply to a put names; `None` if it names none.
    fn level(&self, _reply: &[u8]) -> Option<String> {
        None
    }

    /// Consumes bytes at the start of `bytes` that answer no request, such as a ping, and appends the answer to `out`.
    /// Returns the number of consumed bytes, or `None` if the message is incomplete.
    #[inline]
    fn aside(&self, _bytes: &[u8], _out: &mut Vec<u8>) -> Option<usize> {
        Some(0)
    }

    /// Decodes the reply at the start of `bytes`, which is not empty. Returns `None` if the reply is incomplete, and an
    /// error if the bytes are not a reply.
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String>;
}

/// A complete reply of the server, decoded.
#[derive(Debug)]
pub struct Answer<'a> {
    /// Length of the reply in bytes.
    pub bytes: usize,
    /// True if the server closes the connection after it has sent this reply.
    pub closes: bool,
    /// Content of the reply.
    pub content: Content<'a>,
}

/// Content of a decoded reply.
#[derive(Debug, PartialEq, Eq)]
pub enum Content<'a> {
    /// The write was acknowledged. HTTP acknowledges a delete in the same way.
    Stored,
    /// The delete was acknowledged.
    Deleted,
    /// The value of a key, or the text of a scan's rows.
    Value(Cow<'a, [u8]>),
    /// A reply with a value that cannot be checked, because the user's template of replies does not say where the value
    /// is.
    Unchecked,
    /// The key has no value.
    Missing,
    /// The server refused the request, with this message.
    Refused(String),
}

/// Encodes requests to the key-value API, or to a cache, over HTTP, and decodes the replies.
#[derive(Clone, Debug)]
pub struct HttpCodec {
    address: SocketAddr,
    /// Path of the keyspace or of the cache's keys, such as `/v1/kv/scenario`.
    path: String,
    /// Part of each request after the path: the end of the request line, and the headers.
    headers: String,
    /// Header line with the durability level of the writes; empty to use the server's default.
    level: String,
}

impl HttpCodec {
    /// Creates the codec for a keyspace. `host` is the value of the `Host` header.
    pub fn new(address: SocketAddr, host: &str, keyspace: &str) -> Self {
        Self::at(address, host, format!("/v1/kv/{keyspace}"))
    }

    /// Creates the codec for a cache that is reached over HTTP. `name` is the name of the cache.
    pub fn cache(address: SocketAddr, host: &str, name: &str) -> Self {
        Self::at(address, host, format!("/v1/caches/{name}/keys"))
    }

    fn at(address: SocketAddr, host: &str, path: String) -> Self {
        let headers = format!(" HTTP/1.1\r\nHost: {host}\r\n");
        Self { address, path, headers, level: String::new() }
    }

    /// Makes each write request this durability level. With `None` writes state no level.
    #[must_use]
    pub fn with_level(self, level: Option<Durability>) -> Self {
        Self { level: level.map_or_else(String::new, |level| format!("Thalweg-Durability: {level}\r\n")), ..self }
    }

    fn begin(&self, method: &[u8], out: &mut Vec<u8>) {
        out.extend_from_slice(method);
        out.extend_from_slice(self.path.as_bytes());
    }

    /// Appends a request without a body for a key.
    #[inline]
    fn without_body(&self, method: &[u8], index: u64, out: &mut Vec<u8>) {
        self.begin(method, out);
        out.push(b'/');
        out.extend_from_slice(&key(index));
        out.extend_from_slice(self.headers.as_bytes());
        out.extend_from_slice(b"\r\n");
    }
}

impl Codec for HttpCodec {
    fn connect(&self) -> Result<Connection, BenchError> {
        connect_http(self.address)
    }

    #[inline]
    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        let len = value[0].len() + value[1].len();
        self.begin(b"PUT ", out);
        out.push(b'/');
        out.extend_from_slice(&key(index));
        out.extend_from_slice(self.headers.as_bytes());
        out.extend_from_slice(self.level.as_bytes());
        append(out, format_args!("Content-Length: {len}\r\n\r\n"));
        value.iter().for_each(|part| out.extend_from_slice(part));
    }

    #[inline]
    fn get(&self, index: u64, out: &mut Vec<u8>) {
        self.without_body(b"GET ", index, out);
    }

    fn delete(&self, index: u64, out: &mut Vec<u8>) {
        self.without_body(b"DELETE ", index, out);
    }

    fn scan(&self, first: u64, end: u64, rows: u32, out: &mut Vec<u8>) {
        self.begin(b"GET ", out);
        out.extend_from_slice(b"?start=");
        out.extend_from_slice(&key(first));
        out.extend_from_slice(b"&end=");
        out.extend_from_slice(&key(end));
        append(out, format_args!("&limit={rows}"));
        out.extend_from_slice(self.headers.as_bytes());
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        decode_http(bytes)
    }

    fn level(&self, reply: &[u8]) -> Option<String> {
        http_level(reply)
    }
}

/// Encodes commands to a server that speaks RESP, and decodes the replies.
#[derive(Clone, Debug)]
pub struct RespCodec {
    /// Address and login with which connections begin.
    pub greeting: Greeting,
}

impl Codec for RespCodec {
    fn connect(&self) -> Result<Connection, BenchError> {
        Client::open(&self.greeting)?.into_connection()
    }

    #[inline]
    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        let len = value[0].len() + value[1].len();
        out.extend_from_slice(b"*3\r\n$3\r\nSET\r\n$14\r\n");
        out.extend_from_slice(&key(index));
        append(out, format_args!("\r\n${len}\r\n"));
        value.iter().for_each(|part| out.extend_from_slice(part));
        out.extend_from_slice(b"\r\n");
    }

    #[inline]
    fn get(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$3\r\nGET\r\n$14\r\n");
        out.extend_from_slice(&key(index));
        out.extend_from_slice(b"\r\n");
    }

    fn delete(&self, index: u64, out: &mut Vec<u8>) {
        out.extend_from_slice(b"*2\r\n$3\r\nDEL\r\n$14\r\n");
        out.extend_from_slice(&key(index));
        out.extend_from_slice(b"\r\n");
    }

    fn scan(&self, _: u64, _: u64, _: u32, _: &mut Vec<u8>) {
        unreachable!("the suite refuses scans over RESP, which has no scan in the order of keys");
    }

    #[inline]
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let Some((token, len)) = token(bytes).map_err(|error| error.to_string())? else { return Ok(None) };
        let content = match token {
            Token::Simple(b"OK") => Content::Stored,
            Token::Bulk(value) => Content::Value(Cow::Borrowed(value)),
            Token::Null => Content::Missing,
            Token::Integer(0 | 1) => Content::Deleted,
            Token::Error(message) => Content::Refused(shown(message)),
            other => return Err(format!("{other:?} answers none of GET, SET and DEL")),
        };
        Ok(Some(Answer { bytes: len, closes: false, content }))
    }
}

/// Decodes the reply of Thalweg's HTTP API at the start of `bytes`.
#[inline]
pub fn decode_http(bytes: &[u8]) -> Result<Option<Answer<'_>>, String> {
    let reply = match parse(bytes, Body::Expected) {
        Ok(reply) => reply,
        Err(Incomplete::NeedMore) => return Ok(None),
        Err(Incomplete::Malformed(what)) => return Err(format!("the reply is not HTTP: {what}")),
    };
    let content = match reply.status {
        201 | 204 => Content::Stored,
        200 => Content::Value(reply.body_bytes(bytes)),
        404 => Content::Missing,
        status => Content::Refused(format!("status {status}: {}", shown(&reply.body_bytes(bytes)))),
    };
    Ok(Some(Answer { bytes: reply.total_bytes, closes: reply.closes, content }))
}

/// Returns the durability level in the header of a reply; `None` if there is no such header.
pub fn http_level(reply: &[u8]) -> Option<String> {
    let mut lines = reply.split(|byte| *byte == b'\n').take_while(|line| line.len() > 1);
    let value = lines.find_map(|line| {
        let (name, value) = line.split_at_checked(LEVEL_HEADER.len())?;
        name.eq_ignore_ascii_case(LEVEL_HEADER).then_some(value)
    })?;
    Some(String::from_utf8_lossy(value).trim().to_owned())
}

/// Opens a connection to an HTTP server; its socket is non-blocking.
pub(super) fn connect_http(address: SocketAddr) -> Result<Connection, BenchError> {
    let connection = Connection::open(&Address::Tcp(address))
        .and_then(|connection| connection.socket().set_nonblocking(true).map(|()| connection));
    connection.map_err(BenchError::target(address))
}

pub(super) fn append(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes all bytes");
}

#[cfg(test)]
mod tests {
    use super::*;

    fn http() -> HttpCodec {
        HttpCodec::new(SocketAddr::from(([127, 0, 0, 1], 1)), "h:1", "ks")
    }

    fn resp() -> RespCodec {
        let address = Address::Tcp(SocketAddr::from(([127, 0, 0, 1], 1)));
        RespCodec { greeting: Greeting { address, password: None, database: 0, is_resp3: false } }
    }

    fn text(encode: impl FnOnce(&mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn operations_become_requests() {
        let codec = http();
        assert_eq!(text(|out| codec.get(7, out)), "GET /v1/kv/ks/key_0000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let put = |codec: HttpCodec| text(|out| codec.put(7, [b"ab", b"c"], out));
        let head = "PUT /v1/kv/ks/key_0000000007 HTTP/1.1\r\nHost: h:1\r\n";
        assert_eq!(put(codec.clone()), format!("{head}Content-Length: 3\r\n\r\nabc"));
        let level = "Thalweg-Durability: os\r\n";
        assert_eq!(put(codec.with_level(Some(Durability::Os))), format!("{head}{level}Content-Length: 3\r\n\r\nabc"));
        assert_eq!(
            text(|out| http().scan(7, 20, 5, out)),
            "GET /v1/kv/ks?start=key_0000000007&end=key_0000000020&limit=5 HTTP/1.1\r\nHost: h:1\r\n\r\n"
        );
        let cache = HttpCodec::cache(SocketAddr::from(([127, 0, 0, 1], 1)), "h:1", "c");
        let delete = "DELETE /v1/caches/c/keys/key_0000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n";
        assert_eq!(text(|out| cache.delete(7, out)), delete);
        assert_eq!(text(|out| resp().delete(7, out)), "*2\r\n$3\r\nDEL\r\n$14\r\nkey_0000000007\r\n");
        assert_eq!(text(|out| resp().get(7, out)), "*2\r\n$3\r\nGET\r\n$14\r\nkey_0000000007\r\n");
        assert_eq!(
            text(|out| resp().put(7, [b"ab", b"c"], out)),
            "*3\r\n$3\r\nSET\r\n$14\r\nkey_0000000007\r\n$3\r\nabc\r\n"
        );
    }

    #[test]
    fn the_level_of_a_write_is_in_a_header() {
        let head = b"HTTP/1.1 200 OK\r\nThalweg-durability: os\r\nA: b\r\n\r\n";
        assert_eq!(http().level(head).as_deref(), Some("os"));
        assert_eq!(http().level(b"HTTP/1.1 200 OK\r\n\r\nThalweg-Durability: os\r\n"), None, "in the body");
    }

    #[test]
    fn replies_become_answers() {
        fn content<'a>(codec: &impl Codec, bytes: &'a [u8]) -> Content<'a> {
            assert!((1..bytes.len()).all(|len| codec.decode(&bytes[..len]).unwrap().is_none()), "a part is incomplete");
            let answer = codec.decode(bytes).unwrap().unwrap();
            assert_eq!(answer.bytes, bytes.len());
            answer.content
        }
        let value = || Content::Value(Cow::Borrowed(&b"abc"[..]));
        assert_eq!(content(&http(), b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"), value());
        assert_eq!(content(&http(), b"HTTP/1.1 204 No Content\r\n\r\n"), Content::Stored);
        assert_eq!(content(&http(), b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n"), Content::Missing);
        let refused = content(&http(), b"HTTP/1.1 503 Busy\r\nContent-Length: 5\r\n\r\nlater");
        assert_eq!(refused, Content::Refused("status 503: later".to_owned()));
        assert_eq!(content(&resp(), b"$3\r\nabc\r\n"), value());
        assert_eq!(content(&resp(), b"+OK\r\n"), Content::Stored);
        assert_eq!(content(&resp(), b"$-1\r\n"), Content::Missing);
        assert_eq!(content(&resp(), b"-ERR no\r\n"), Content::Refused("ERR no".to_owned()));
        assert!(http().decode(b"SSH-2.0\r\n\r\n").is_err());
        assert_eq!(content(&resp(), b":1\r\n"), Content::Deleted);
        assert!(resp().decode(b":2\r\n").is_err(), "one key is deleted at most");
    }
}
