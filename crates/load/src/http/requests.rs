//! The bytes of HTTP requests.
//!
//! Owns: the encoding of an operation on a key in each of the server's APIs, and the check of replies. All parts of a
//! request that do not depend on the key are built once, so making a request copies a few pieces.

use thalweg_types::Durability;

use crate::{
    data::{self, KEY_BYTES, Values},
    server::Reply,
};

/// API of the server that the requests use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Api {
    /// Key-value API: `/v1/kv/{keyspace}/{key}`.
    Kv {
        /// Name of the keyspace.
        keyspace: String,
    },
    /// Entity API: `/v0/entity?id={key}`.
    Entity,
    /// A route that reads the request, stores nothing, and replies. The generator sends a POST: with the value for each
    /// put, and with an empty body for each get.
    Echo {
        /// Path of the route on the server.
        path: String,
    },
}

/// Operation that a request performs on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operation {
    /// Stores a key's value.
    Put,
    /// Fetches a key's value.
    Get,
}

/// Result of comparing a reply with the expected one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Judgement {
    /// The reply is right.
    Right,
    /// The key has no value. This is right only if the benchmark never stored the key.
    Missing,
    /// The operation cannot have this status code.
    BadStatus,
    /// The status code is right, but the body is wrong.
    WrongBytes,
}

/// Builds requests and checks replies. All workers share one instance.
#[derive(Clone, Debug)]
pub struct Requests {
    api: Api,
    values: Values,
    put: Template,
    get: Template,
}

#[derive(Clone, Debug)]
struct Template {
    before_key: Vec<u8>,
    after_key: Vec<u8>,
    takes_key: bool,
}

impl Requests {
    /// Creates the requests to `host`. If `durability` is `None`, requests state no durability level, and the server
    /// uses its default.
    pub fn new(api: Api, host: &str, durability: Option<Durability>, values: Values) -> Self {
        let level = durability.map_or_else(String::new, |level| format!("Thalweg-Durability: {level}\r\n"));
        let put_tail = format!("Host: {host}\r\n{level}Content-Length: {}\r\n\r\n", values.len());
        let get_tail = match &api {
            Api::Echo { .. } => format!("Host: {host}\r\nContent-Length: 0\r\n\r\n"),
            _ => format!("Host: {host}\r\n\r\n"),
        };
        let (path, takes_key) = match &api {
            Api::Kv { keyspace } => (format!("/v1/kv/{keyspace}/"), true),
            Api::Entity => ("/v0/entity?id=".to_owned(), true),
            Api::Echo { path } => (path.clone(), false),
        };
        let [put_method, get_method] = if takes_key { ["PUT", "GET"] } else { ["POST", "POST"] };
        let template = |method: &str, tail: &str| Template {
            before_key: format!("{method} {path}").into_bytes(),
            after_key: format!(" HTTP/1.1\r\n{tail}").into_bytes(),
            takes_key,
        };
        let (put, get) = (template(put_method, &put_tail), template(get_method, &get_tail));
        Self { api, values, put, get }
    }

    /// Adds a header line to each get, such as the consistency level of reads.
    #[must_use]
    pub fn with_get_header(mut self, name: &str, value: &str) -> Self {
        let end = self.get.after_key.len() - b"\r\n".len();
        self.get.after_key.splice(end..end, format!("{name}: {value}\r\n").into_bytes());
        self
    }

    /// Appends the bytes of one request to `out`.
    #[inline]
    pub fn write(&self, operation: Operation, index: u64, out: &mut Vec<u8>) {
        let template = match operation {
            Operation::Put => &self.put,
            Operation::Get => &self.get,
        };
        out.extend_from_slice(&template.before_key);
        if template.takes_key {
            let mut key = [0; KEY_BYTES];
            data::write_key(index, &mut key);
            out.extend_from_slice(&key);
        }
        out.extend_from_slice(&template.after_key);
        if operation == Operation::Put {
            out.extend_from_slice(self.values.of(index));
        }
    }

    /// Compares a reply with the expected one. `buffer` holds the bytes from which `reply` was parsed.
    pub fn judge(&self, operation: Operation, index: u64, reply: &Reply, buffer: &[u8]) -> Judgement {
        match (operation, reply.status) {
            (Operation::Put, 200 | 201 | 204) => Judgement::Right,
            (Operation::Get, 200) if matches!(self.api, Api::Echo { .. }) => Judgement::Right,
            (Operation::Get, 200) if &*reply.body_bytes(buffer) == self.values.of(index) => Judgement::Right,
            (Operation::Get, 200) => Judgement::WrongBytes,
            (Operation::Get, 404) => Judgement::Missing,
            _ => Judgement::BadStatus,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::server::{Body, parse};

    fn text(requests: &Requests, operation: Operation) -> String {
        let mut out = Vec::new();
        requests.write(operation, 7, &mut out);
        out.iter().map(|&byte| if byte.is_ascii() { char::from(byte) } else { '?' }).collect()
    }

    #[test]
    fn each_api_has_its_requests() {
        let new = |api| Requests::new(api, "h:1", Some(Durability::Disk), Values::new(3, 1));
        let kv = new(Api::Kv { keyspace: "bench".into() });
        let put = text(&kv, Operation::Put);
        let head = "PUT /v1/kv/bench/key_0000000007 HTTP/1.1\r\nHost: h:1\r\nThalweg-Durability: disk\r\nContent-Length: 3\r\n\r\n";
        assert!(put.starts_with(head) && put.len() == head.len() + 3, "{put}");
        assert_eq!(text(&kv, Operation::Get), "GET /v1/kv/bench/key_0000000007 HTTP/1.1\r\nHost: h:1\r\n\r\n");
        let stale = kv.with_get_header("Thalweg-Read", "stale");
        assert!(text(&stale, Operation::Get).ends_with("Host: h:1\r\nThalweg-Read: stale\r\n\r\n"));
        assert!(text(&new(Api::Entity), Operation::Get).starts_with("GET /v0/entity?id=key_0000000007 HTTP/1.1\r\n"));
        let echo = new(Api::Echo { path: "/e".into() });
        assert!(text(&echo, Operation::Put).starts_with("POST /e HTTP/1.1\r\n"));
        assert_eq!(text(&echo, Operation::Get), "POST /e HTTP/1.1\r\nHost: h:1\r\nContent-Length: 0\r\n\r\n");
    }

    #[test]
    fn a_value_is_right_only_byte_for_byte() {
        let requests = Requests::new(Api::Entity, "h", None, Values::new(3, 1));
        let answer = |status: &str, body: &[u8]| {
            let mut bytes = format!("HTTP/1.1 {status} X\r\nContent-Length: {}\r\n\r\n", body.len()).into_bytes();
            bytes.extend_from_slice(body);
            let reply = parse(&bytes, Body::Expected).unwrap();
            requests.judge(Operation::Get, 5, &reply, &bytes)
        };
        let value = Values::new(3, 1).of(5).to_vec();
        assert_eq!(answer("200", &value), Judgement::Right);
        assert_eq!(answer("200", &value[..2]), Judgement::WrongBytes);
        assert_eq!(answer("404", b""), Judgement::Missing);
        assert_eq!(answer("503", b""), Judgement::BadStatus);
    }
}
