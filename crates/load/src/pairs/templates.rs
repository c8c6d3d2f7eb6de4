//! Operations on keys over HTTP. The user describes the requests by templates.
//!
//! Owns: the templates, and requests and replies that follow them. Does not own: the parsing of files that contain
//! templates.
//!
//! A template is text in which `{key}` and `{value}` stand for the key and the value of an operation. All other text,
//! also other braces, is sent unchanged.

use std::{borrow::Cow, net::SocketAddr};

use super::{
    codec::{Answer, Codec, Content, append, connect_http, http_level},
    rows::shown,
};
use crate::{
    BenchError, Connection,
    data::key,
    server::{Body, Incomplete, parse},
};

const KEY: &str = "{key}";
const VALUE: &str = "{value}";

/// Text with placeholders for a key and a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Template(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(String),
    Key,
    Value,
}

impl Template {
    /// Creates a template from a text with the placeholders `{key}` and `{value}`.
    pub fn new(text: &str) -> Self {
        let (mut pieces, mut rest) = (Vec::new(), text);
        let places = [(KEY, Piece::Key), (VALUE, Piece::Value)];
        loop {
            let found =
                places.iter().filter_map(|(name, piece)| Some((rest.find(name)?, *name, piece))).min_by_key(|it| it.0);
            let (before, after) = found.map_or((rest, ""), |(at, name, _)| (&rest[..at], &rest[at + name.len()..]));
            if !before.is_empty() {
                pieces.push(Piece::Text(before.to_owned()));
            }
            let Some((_, _, piece)) = found else { return Self(pieces) };
            pieces.push(piece.clone());
            rest = after;
        }
    }

    /// Returns true if the template has a placeholder for the key.
    pub fn has_key(&self) -> bool {
        self.0.contains(&Piece::Key)
    }

    /// Returns the number of the template's placeholders for the value.
    pub fn values(&self) -> usize {
        self.0.iter().filter(|piece| **piece == Piece::Value).count()
    }

    fn put(&self, key: &[u8], value: [&[u8]; 2], out: &mut Vec<u8>) {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.extend_from_slice(text.as_bytes()),
                Piece::Key => out.extend_from_slice(key),
                Piece::Value => value.iter().for_each(|part| out.extend_from_slice(part)),
            }
        }
    }

    fn len(&self, key: &[u8], value: [&[u8]; 2]) -> usize {
        let len = |piece: &Piece| match piece {
            Piece::Text(text) => text.len(),
            Piece::Key => key.len(),
            Piece::Value => value[0].len() + value[1].len(),
        };
        self.0.iter().map(len).sum()
    }

    /// Returns the fixed texts of the template before and after its placeholder for the value.
    fn around_value(&self) -> (&[u8], &[u8]) {
        fn text(piece: Option<&Piece>) -> &[u8] {
            match piece {
                Some(Piece::Text(text)) => text.as_bytes(),
                _ => b"",
            }
        }
        let at = self.0.iter().position(|piece| *piece == Piece::Value).unwrap_or(self.0.len());
        (text(at.checked_sub(1).and_then(|before| self.0.get(before))), text(self.0.get(at + 1)))
    }
}

/// A request with placeholders for a key and a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RequestTemplate {
    /// HTTP method of the request, such as `PUT`.
    pub method: String,
    /// Path and query of the request.
    pub path: Template,
    /// Body of the request. An empty body is not sent.
    pub body: Template,
}

/// Requests to an HTTP server, and the reply to a read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HttpTemplates {
    /// Request that reads a key.
    pub read: RequestTemplate,
    /// Request that sets a key.
    pub write: RequestTemplate,
    /// Body of the reply to a read. It has no placeholder for the key, and at most one for the value. Without one, the
    /// values that are read are not checked.
    pub reply: Template,
    /// Lines of further headers, each with its line end.
    pub headers: String,
}

/// Encodes requests to an HTTP server by templates, and decodes the replies.
#[derive(Clone, Debug)]
pub struct TemplateCodec {
    address: SocketAddr,
    host: String,
    templates: HttpTemplates,
}

impl TemplateCodec {
    /// Creates the requests to a server. `host` is the value of the `Host` header.
    pub fn new(address: SocketAddr, host: &str, templates: HttpTemplates) -> Self {
        Self { address, host: host.to_owned(), templates }
    }

    fn request(&self, request: &RequestTemplate, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        let (key, Self { host, templates, .. }) = (key(index), self);
        append(out, format_args!("{} ", request.method));
        request.path.put(&key, value, out);
        append(out, format_args!(" HTTP/1.1\r\nHost: {host}\r\n{}", templates.headers));
        let len = request.body.len(&key, value);
        if len > 0 {
            append(out, format_args!("Content-Length: {len}\r\n"));
        }
        out.extend_from_slice(b"\r\n");
        request.body.put(&key, value, out);
    }

    /// Returns the content of a reply with status 200 to a read. The content is the value if the body follows the
    /// user's template of replies, and the whole body otherwise. It cannot be checked if the template has no
    /// placeholder for the value.
    fn content<'a>(&self, body: Cow<'a, [u8]>) -> Content<'a> {
        if self.templates.reply.values() == 0 {
            return Content::Unchecked;
        }
        let (before, after) = self.templates.reply.around_value();
        let has_value = body.len() >= before.len() + after.len() && body.starts_with(before) && body.ends_with(after);
        let value = if has_value { before.len()..body.len() - after.len() } else { 0..body.len() };
        Content::Value(match body {
            Cow::Borrowed(body) => Cow::Borrowed(&body[value]),
            Cow::Owned(body) => Cow::Owned(body[value].to_vec()),
        })
    }
}

impl Codec for TemplateCodec {
    /// Maximum number of unanswered requests on a connection. It is one, because an unknown server may not accept a
    /// request before it has answered the previous one.
    const PIPELINE: usize = 1;

    fn connect(&self) -> Result<Connection, BenchError> {
        connect_http(self.address)
    }

    #[inline]
    fn put(&self, index: u64, value: [&[u8]; 2], out: &mut Vec<u8>) {
        self.request(&self.templates.write, index, value, out);
    }

    #[inline]
    fn get(&self, index: u64, out: &mut Vec<u8>) {
        self.request(&self.templates.read, index, [b"", b""], out);
    }

    fn delete(&self, _: u64, _: &mut Vec<u8>) {
        unreachable!("the suite refuses operations on caches by templates");
    }

    fn scan(&self, _: u64, _: u64, _: u32, _: &mut Vec<u8>) {
        unreachable!("the suite refuses scans by templates");
    }

    /// Returns true for any body, because an unknown server may acknowledge a write with any body.
    #[inline]
    fn is_stored(&self, content: &Content<'_>) -> bool {
        matches!(content, Content::Stored | Content::Value(_) | Content::Unchecked)
    }

    fn level(&self, reply: &[u8]) -> Option<String> {
        http_level(reply)
    }

    #[inline]
    fn decode<'a>(&self, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let reply = match parse(bytes, Body::Expected) {
            Ok(reply) => reply,
            Err(Incomplete::NeedMore) => return Ok(None),
            Err(Incomplete::Malformed(what)) => return Err(format!("the reply is not HTTP: {what}")),
        };
        let content = match reply.status {
            200 => self.content(reply.body_bytes(bytes)),
            201 | 202 | 204 => Content::Stored,
            404 => Content::Missing,
            status => Content::Refused(format!("status {status}: {}", shown(&reply.body_bytes(bytes)))),
        };
        Ok(Some(Answer { bytes: reply.total_bytes, closes: reply.closes, content }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn codec(reply: &str) -> TemplateCodec {
        let request = |method: &str, path: &str, body: &str| RequestTemplate {
            method: method.to_owned(),
            path: Template::new(path),
            body: Template::new(body),
        };
        let templates = HttpTemplates {
            read: request("GET", "/items/{key}?full", ""),
            write: request("POST", "/items", "{\"id\":\"{key}\",\"data\":\"{value}\"}"),
            reply: Template::new(reply),
            headers: "X: 1\r\n".to_owned(),
        };
        TemplateCodec::new(SocketAddr::from(([127, 0, 0, 1], 1)), "h:1", templates)
    }

    #[test]
    fn templates_become_requests() {
        let text = |encode: &dyn Fn(&mut Vec<u8>)| {
            let mut out = Vec::new();
            encode(&mut out);
            String::from_utf8(out).unwrap()
        };
        let codec = codec("{value}");
        let read = "GET /items/key_0000000007?full HTTP/1.1\r\nHost: h:1\r\nX: 1\r\n\r\n";
        assert_eq!(text(&|out| codec.get(7, out)), read);
        let body = "{\"id\":\"key_0000000007\",\"data\":\"abc\"}";
        let head = "POST /items HTTP/1.1\r\nHost: h:1\r\nX: 1\r\n";
        let write = format!("{head}Content-Length: {}\r\n\r\n{body}", body.len());
        assert_eq!(text(&|out| codec.put(7, [b"ab", b"c"], out)), write);
        let odd = Template::new("{{key}{key}{}{value");
        assert!(odd.has_key() && odd.values() == 0);
        assert_eq!(odd.len(b"k", [b"", b""]), "{kk{}{value".len());
    }

    #[test]
    fn values_are_found_in_replies() {
        let ok = |body: &str| format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len());
        let content = |reply: &str, text: &str| match codec(reply).decode(text.as_bytes()).unwrap().unwrap().content {
            Content::Value(value) => shown(&value),
            other => format!("{other:?}"),
        };
        let json = "{\"data\":\"{value}\"}";
        assert_eq!(content("{value}", &ok("abc")), "abc");
        assert_eq!(content(json, &ok("{\"data\":\"abc\"}")), "abc");
        let chunks =
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n{\"dat\r\n9\r\na\":\"abc\"}\r\n0\r\n\r\n";
        assert_eq!(content(json, chunks), "abc");
        assert_eq!(content(json, &ok("{\"other\":\"abc\"}")), "{\"other\":\"abc\"}", "as a whole, which is no value");
        assert_eq!(content(json, &ok("{\"data\":\"}")), "{\"data\":\"}", "too short for both ends");
        assert_eq!(content("", &ok("abc")), "Unchecked");
        assert_eq!(content(json, "HTTP/1.1 404 X\r\nContent-Length: 0\r\n\r\n"), "Missing");
        assert_eq!(content(json, "HTTP/1.1 204 X\r\n\r\n"), "Stored");
        assert!(content(json, "HTTP/1.1 500 X\r\nContent-Length: 2\r\n\r\nno").contains("status 500: no"));
        let codec = codec(json);
        assert!(codec.is_stored(&Content::Value(Cow::Borrowed(b"anything"))) && !codec.is_stored(&Content::Missing));
    }
}
