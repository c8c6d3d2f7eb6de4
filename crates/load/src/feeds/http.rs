//! Requests about streams, groups and subjects over HTTP, and the contents of their replies.
//!
//! Owns: the bytes of requests, and the parsing of reply bodies. The bytes of a body come from the network: if they are
//! malformed, parsing returns a description of the fault. Does not own: whether the records in a reply are right
//! ([`super::Feed`]).

use std::{borrow::Cow, io::Write as _};

use serde::Deserialize;
use thalweg_types::Durability;

/// Names of the stream, the group and the subject of a run, and the headers of its requests.
#[derive(Clone, Debug)]
pub struct FeedRequests {
    name: String,
    host: String,
    level: String,
}

impl FeedRequests {
    /// Creates requests about the stream, the group and the subject called `name`. `host` is the value of the `Host`
    /// header, and `level` the durability level that writes request; without it the server uses its default.
    pub fn new(name: String, host: &str, level: Option<Durability>) -> Self {
        let level = level.map_or_else(String::new, |level| format!("Thalweg-Durability: {level}\r\n"));
        Self { name, host: host.to_owned(), level }
    }

    /// Returns the path of the stream.
    pub fn stream(&self) -> String {
        format!("/v1/streams/{}", self.name)
    }

    /// Returns the path of the group.
    pub fn group(&self) -> String {
        format!("/v1/streams/{0}/groups/{0}", self.name)
    }

    /// Encodes an append request whose body is lines with a total length of `len` bytes; `put` writes the lines.
    #[inline]
    pub fn append(&self, len: usize, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
        let Self { name, host, level } = self;
        write(
            out,
            format_args!(
                "POST /v1/streams/{name}/records HTTP/1.1\r\nHost: {host}\r\n{level}Content-Type: application/x-ndjson\r\n\
                 Content-Length: {len}\r\n\r\n"
            ),
        );
        put(out);
    }

    /// Appends a read of at most `records` records and about `bytes` bytes.
    pub fn read(&self, from: u64, records: u32, bytes: usize, out: &mut Vec<u8>) {
        let Self { name, host, .. } = self;
        write(
            out,
            format_args!(
                "GET /v1/streams/{name}/records?from={from}&limit={records}&max_bytes={bytes} HTTP/1.1\r\nHost: {host}\r\n\
                 Accept: application/octet-stream\r\n\r\n"
            ),
        );
    }

    /// Appends a fetch of at most `records` records of the group.
    pub fn fetch(&self, records: u32, out: &mut Vec<u8>) {
        self.post(&self.group(), "/fetch", &format!("{{\"member\":\"bench\",\"max_records\":{records}}}"), out);
    }

    /// Appends an ack of all records of an attempt.
    pub fn ack(&self, attempt: u64, out: &mut Vec<u8>) {
        self.post(&self.group(), "/ack", &format!("{{\"attempts\":[{{\"attempt\":{attempt}}}]}}"), out);
    }

    fn post(&self, path: &str, verb: &str, body: &str, out: &mut Vec<u8>) {
        let (Self { host, level, .. }, len) = (self, body.len());
        write(
            out,
            format_args!(
                "POST {path}{verb} HTTP/1.1\r\nHost: {host}\r\n{level}Content-Type: application/json\r\n\
                 Content-Length: {len}\r\n\r\n{body}"
            ),
        );
    }

    /// Encodes a publish request whose body is lines with a total length of `len` bytes; `put` writes the lines.
    #[inline]
    pub fn publish(&self, len: usize, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
        let Self { name, host, .. } = self;
        write(
            out,
            format_args!(
                "POST /v1/subjects/{name} HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/x-ndjson\r\n\
                 Content-Length: {len}\r\n\r\n"
            ),
        );
        put(out);
    }

    /// Appends a subscription to the subject.
    pub fn subscribe(&self, out: &mut Vec<u8>) {
        let Self { name, host, .. } = self;
        write(
            out,
            format_args!("GET /v1/subjects/{name} HTTP/1.1\r\nHost: {host}\r\nAccept: application/x-ndjson\r\n\r\n"),
        );
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes all bytes");
}

/// Reply to an append.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Appended {
    /// Number of records.
    pub count: u64,
    /// Offset of the first record.
    pub first: u64,
    /// Offset of the last record.
    pub last: u64,
}

/// Reply to a fetch.
#[derive(Debug, Deserialize)]
pub(super) struct Fetched<'a> {
    /// Number of the attempt; `None` if there were no records.
    pub attempt: Option<u64>,
    /// Delivered records.
    #[serde(default, borrow)]
    pub messages: Vec<Delivered<'a>>,
}

/// A record that a group delivers.
#[derive(Debug, Deserialize)]
pub(super) struct Delivered<'a> {
    /// Offset of the record.
    pub offset: u64,
    /// Number of times that the record was delivered, including this delivery.
    pub deliveries: u64,
    /// Content of the record; `None` if it is not text.
    #[serde(borrow)]
    pub payload: Option<Cow<'a, str>>,
}

/// Reply to an ack.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Settled {
    /// Number of records that the ack has settled.
    pub settled: u64,
}

/// Reply to a publish.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Published {
    /// Number of published messages.
    pub messages: u64,
    /// Number of subscriptions without room for them.
    pub missed: u64,
}

/// A line that a subscriber receives.
#[derive(Debug, Default, Deserialize)]
pub(super) struct SubjectLine<'a> {
    /// True in the line that confirms the subscription.
    #[serde(default)]
    pub subscribed: bool,
    /// Number of messages that were dropped at this point.
    pub gap: Option<u64>,
    /// Content of a message.
    #[serde(default, borrow)]
    pub payload: Option<Cow<'a, str>>,
}

/// Parses a reply in JSON.
pub(super) fn json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
        format!("{error}: {shown:?}")
    })
}

/// Calls `each` with the offset and the payload of each record of a read in the binary form. `None` stands for a record
/// with a key, with headers or without a payload.
pub(super) fn records(mut body: &[u8], mut each: impl FnMut(u64, Option<&[u8]>)) -> Result<(), String> {
    const END: usize = 16;
    let cut = || "the records are cut off".to_owned();
    loop {
        let (len, rest) = body.split_first_chunk::<4>().ok_or_else(cut)?;
        let len = u32::from_le_bytes(*len) as usize;
        if len == 0 {
            return if rest.len() == END { Ok(()) } else { Err("no end of records".to_owned()) };
        }
        let (frame, rest) = rest.split_at_checked(len).ok_or_else(cut)?;
        let (offset, frame) = frame.split_first_chunk::<8>().ok_or_else(cut)?;
        let record = frame.get(8..).ok_or_else(cut)?;
        each(u64::from_le_bytes(*offset), record.strip_prefix(&[0]));
        body = rest;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(level: Option<Durability>, encode: impl FnOnce(&FeedRequests, &mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&FeedRequests::new("f".to_owned(), "h:1", level), &mut out);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn requests_have_their_paths_and_bodies() {
        let append = text(Some(Durability::Os), |requests, out| requests.append(2, out, |out| out.extend(b"1\n")));
        assert_eq!(
            append,
            "POST /v1/streams/f/records HTTP/1.1\r\nHost: h:1\r\nThalweg-Durability: os\r\nContent-Type: \
             application/x-ndjson\r\nContent-Length: 2\r\n\r\n1\n"
        );
        let read = text(None, |requests, out| requests.read(7, 5, 100, out));
        assert!(read.starts_with("GET /v1/streams/f/records?from=7&limit=5&max_bytes=100 HTTP/1.1\r\nHost: h:1\r\n"));
        let fetch = text(None, |requests, out| requests.fetch(5, out));
        assert!(
            fetch.starts_with("POST /v1/streams/f/groups/f/fetch HTTP/1.1\r\nHost: h:1\r\nContent-Type"),
            "{fetch}"
        );
        assert!(fetch.ends_with("Content-Length: 34\r\n\r\n{\"member\":\"bench\",\"max_records\":5}"), "{fetch}");
        let ack = text(Some(Durability::Os), |requests, out| requests.ack(9, out));
        assert!(ack.ends_with("\r\n\r\n{\"attempts\":[{\"attempt\":9}]}") && ack.contains("Durability: os"), "{ack}");
        let publish = text(Some(Durability::Os), |requests, out| requests.publish(0, out, |_| {}));
        assert!(publish.starts_with("POST /v1/subjects/f HTTP") && !publish.contains("Durability"), "{publish}");
    }

    #[test]
    fn binary_records_are_read_whole_or_not_at_all() {
        let mut body = Vec::new();
        for (offset, record) in [(7_u64, &b"\0abc"[..]), (8, b"\0"), (9, b"\x01x")] {
            body.extend((16 + record.len() as u32).to_le_bytes());
            body.extend(offset.to_le_bytes());
            body.extend([1; 8]);
            body.extend(record);
        }
        body.extend([0; 20]);
        let read = |body: &[u8]| {
            let mut seen = Vec::new();
            records(body, |offset, payload| seen.push((offset, payload.map(<[u8]>::to_vec)))).map(|()| seen)
        };
        let expected = vec![(7, Some(b"abc".to_vec())), (8, Some(Vec::new())), (9, None)];
        assert_eq!(read(&body).unwrap(), expected);
        assert!((0..body.len()).all(|len| read(&body[..len]).is_err()));
        assert!(read(&[&body[..], b"x"].concat()).is_err());
        assert!(read(&[3, 0, 0, 0, 1, 2, 3]).is_err(), "a frame without an offset");
    }

    #[test]
    fn replies_in_json_are_parsed_or_described() {
        let fetched: Fetched<'_> =
            json(br#"{"attempt":3,"messages":[{"offset":1,"deliveries":2,"payload":"\"a\""}],"durability":"os"}"#)
                .unwrap();
        assert_eq!((fetched.attempt, fetched.messages[0].payload.as_deref()), (Some(3), Some("\"a\"")));
        assert!(json::<Fetched<'_>>(br#"{"messages":[]}"#).unwrap().attempt.is_none());
        assert!(json::<Appended>(b"no").unwrap_err().contains("\"no\""));
        let line: SubjectLine<'_> = json(br#"{"gap":12}"#).unwrap();
        assert_eq!((line.gap, line.subscribed), (Some(12), false));
    }
}
