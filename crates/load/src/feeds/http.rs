//! Operations on streams, consumer groups and subjects over HTTP.
//!
//! Owns: the bytes of requests, and the parsing of replies and of a subscription's lines. Does not own: the check of
//! the records in a reply ([`super::Feed`]).

use std::{borrow::Cow, io::Write as _, net::SocketAddr, time::Duration};

use serde::Deserialize;
use thalweg_types::Durability;

use super::{
    protocol::{Arrived, FeedContent, FeedParts, FeedProtocol, FeedRecord, Subscription, Texts},
    steps::{FeedSizes, FeedStep},
};
use crate::{
    Address, BenchError, Connection,
    pairs::{Answer, decode_http, http_level},
    server::Client,
};

/// Configuration of the run's consumer group. It permits the server's maximum number of unacknowledged records, so that
/// many connections can fetch at the same time.
const GROUP_CONFIG: &[u8] = b"{\"max_pending\":100000}";
/// Header of a request whose body is JSON.
const JSON: &str = "Content-Type: application/json\r\n";
/// Longest wait for a reply to a request that is not part of the load.
const PATIENCE: Duration = Duration::from_secs(10);
/// Maximum length in bytes of a line of a subscription. Each line is one message.
const MAX_LINE_BYTES: usize = 8 << 20;

/// Encodes the requests to the stream, consumer group and subject of a run over HTTP, and decodes the replies.
#[derive(Clone, Debug)]
pub struct HttpFeed {
    address: SocketAddr,
    name: String,
    host: String,
    level: String,
}

impl HttpFeed {
    /// Creates the stream and the group called `name` on the server. `host` is the value of the `Host` header. `level`
    /// is the durability level that writes request; with `None` the server uses its default.
    pub fn create(
        address: SocketAddr,
        host: &str,
        name: String,
        level: Option<Durability>,
        parts: FeedParts,
    ) -> Result<Self, BenchError> {
        let feed = Self::new(address, host, name, level);
        if parts.stream {
            feed.put(&feed.stream(), b"{}")?;
        }
        if parts.group {
            feed.put(&feed.group(), GROUP_CONFIG)?;
        }
        Ok(feed)
    }

    pub(super) fn new(address: SocketAddr, host: &str, name: String, level: Option<Durability>) -> Self {
        let level = level.map_or_else(String::new, |level| format!("Thalweg-Durability: {level}\r\n"));
        Self { address, name, host: host.to_owned(), level }
    }

    fn put(&self, path: &str, config: &[u8]) -> Result<(), BenchError> {
        let fail = BenchError::target(&self.host);
        let client = Client::connect(self.address, PATIENCE);
        let answered = client.and_then(|mut client| client.request("PUT", path, JSON, config));
        let (status, body) = answered.map_err(|error| fail(error.to_string()))?;
        if status == 201 {
            return Ok(());
        }
        let body = String::from_utf8_lossy(&body).into_owned();
        Err(fail(format!("creating {path}: status {status}: {body}")))
    }

    /// Returns the path of the benchmark run's stream on the server.
    fn stream(&self) -> String {
        format!("/v1/streams/{}", self.name)
    }

    /// Returns the path of the benchmark run's consumer group on the server.
    fn group(&self) -> String {
        format!("/v1/streams/{0}/groups/{0}", self.name)
    }

    /// Encodes an append request. `put` writes its body, which consists of lines with a total length of `len` bytes.
    #[inline]
    fn append(&self, len: usize, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
        let Self { name, host, level, .. } = self;
        write(
            out,
            format_args!(
                "POST /v1/streams/{name}/records HTTP/1.1\r\nHost: {host}\r\n{level}Content-Type: application/x-ndjson\r\n\
                 Content-Length: {len}\r\n\r\n"
            ),
        );
        put(out);
    }

    /// Encodes a read of at most `records` records and about `bytes` bytes.
    fn read_request(&self, from: u64, records: u32, bytes: usize, out: &mut Vec<u8>) {
        let Self { name, host, .. } = self;
        write(
            out,
            format_args!(
                "GET /v1/streams/{name}/records?from={from}&limit={records}&max_bytes={bytes} HTTP/1.1\r\nHost: {host}\r\n\
                 Accept: application/octet-stream\r\n\r\n"
            ),
        );
    }

    /// Encodes a fetch of at most `records` records of the group.
    fn fetch(&self, records: u32, out: &mut Vec<u8>) {
        self.post(&self.group(), "/fetch", &format!("{{\"member\":\"bench\",\"max_records\":{records}}}"), out);
    }

    /// Encodes an ack of all records that one fetch delivered. `attempt` is the number that the server gave to this
    /// delivery in its reply to the fetch.
    fn ack(&self, attempt: u64, out: &mut Vec<u8>) {
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

    /// Encodes a publish request. `put` writes its body, which consists of lines with a total length of `len` bytes.
    #[inline]
    fn publish(&self, len: usize, out: &mut Vec<u8>, put: impl FnOnce(&mut Vec<u8>)) {
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
}

impl FeedProtocol for HttpFeed {
    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let len = (texts.text_bytes() + 1) * texts.count() as usize;
        match step {
            FeedStep::Append(_) => self.append(len, out, |out| texts.lines(out)),
            FeedStep::Read { from, .. } => {
                let bytes = (sizes.record_bytes + 64) * sizes.read_records as usize;
                self.read_request(from, sizes.read_records, bytes, out);
            }
            FeedStep::Fetch => self.fetch(sizes.fetch_records, out),
            FeedStep::Ack { attempt, .. } => self.ack(attempt, out),
            FeedStep::Publish(_) => self.publish(len, out, |out| texts.lines(out)),
        }
    }

    fn decode<'a>(&self, _: FeedStep, _: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        decode_http(bytes)
    }

    fn read(&self, step: FeedStep, body: &[u8], each: &mut dyn FnMut(FeedRecord<'_>)) -> Result<FeedContent, String> {
        Ok(match step {
            FeedStep::Append(_) => {
                let Appended { count, first, last } = json(body)?;
                if last.checked_sub(first).and_then(|more| more.checked_add(1)) != Some(count) {
                    return Err(format!("an append got offsets {first} to {last}, {count} records"));
                }
                FeedContent::Appended { first, count }
            }
            FeedStep::Read { .. } => {
                records(body, |position, payload| each(FeedRecord { position, deliveries: 1, payload }))?;
                FeedContent::Records
            }
            FeedStep::Fetch => {
                let fetched: Fetched<'_> = json(body)?;
                for message in &fetched.messages {
                    let payload = message.payload.as_ref().map(|text| text.as_bytes());
                    each(FeedRecord { position: message.offset, deliveries: message.deliveries, payload });
                }
                FeedContent::Fetched { attempt: fetched.attempt }
            }
            FeedStep::Ack { .. } => FeedContent::Settled(json::<AckReply>(body)?.settled),
            FeedStep::Publish(_) => {
                let Published { messages, missed } = json(body)?;
                FeedContent::Published { messages: Some(messages), missed }
            }
        })
    }

    fn level(&self, reply: &[u8]) -> Option<String> {
        http_level(reply)
    }

    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError> {
        let Self { name, host, .. } = self;
        let fail = |error: std::io::Error| BenchError::target(host)(format!("subscribing: {error}"));
        let mut connection = Connection::open(&Address::Tcp(self.address)).map_err(fail)?;
        write(
            connection.out(),
            format_args!("GET /v1/subjects/{name} HTTP/1.1\r\nHost: {host}\r\nAccept: application/x-ndjson\r\n\r\n"),
        );
        connection.send().map_err(fail)?;
        connection.socket().set_nonblocking(true).map_err(fail)?;
        Ok(Box::new(HttpSubscription { connection, has_head: false, text: Vec::new() }))
    }

    fn remove(&self) {
        let client = Client::connect(self.address, PATIENCE);
        let _ = client.and_then(|mut client| client.request("DELETE", &self.stream(), "", b""));
    }
}

/// A subscription. Its messages are lines in the chunks of one HTTP reply.
struct HttpSubscription {
    connection: Connection,
    has_head: bool,
    /// Text of the received chunks that is not consumed yet. Its last line may be incomplete.
    text: Vec<u8>,
}

impl Subscription for HttpSubscription {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String> {
        self.take_chunks()?;
        let end = self.text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: SubjectLine<'_> = json(line)?;
            each(match (line.gap, &line.payload) {
                (Some(gap), _) => Arrived::Gap(gap),
                (None, Some(payload)) => Arrived::Message(Some(payload.as_bytes())),
                (None, None) if line.subscribed => Arrived::Accepted,
                (None, None) => return Err(format!("a line is neither a message nor a gap: {line:?}")),
            });
        }
        self.text.drain(..end);
        if self.text.len() > MAX_LINE_BYTES { Err("a line is too long".to_owned()) } else { Ok(()) }
    }
}

impl HttpSubscription {
    /// Moves the content of all complete HTTP chunks from the connection's input to `text`.
    fn take_chunks(&mut self) -> Result<(), String> {
        let (mut at, input) = (0, self.connection.input());
        if !self.has_head {
            let Some(end) = input.windows(4).position(|bytes| bytes == b"\r\n\r\n") else { return Ok(()) };
            if !input.starts_with(b"HTTP/1.1 200 ") {
                return Err(format!("it was answered with {:?}", String::from_utf8_lossy(&input[..end.min(200)])));
            }
            (at, self.has_head) = (end + 4, true);
        }
        loop {
            let (head, len) = match httparse::parse_chunk_size(&input[at..]) {
                Ok(httparse::Status::Complete(found)) => found,
                Ok(httparse::Status::Partial) => break,
                Err(_) => return Err("the reply is not HTTP".to_owned()),
            };
            if len == 0 || len > MAX_LINE_BYTES as u64 {
                return Err("the server ended the subscription".to_owned());
            }
            let (start, end) = (at + head, at + head + len as usize);
            if input.len() < end + 2 {
                break;
            }
            self.text.extend_from_slice(&input[start..end]);
            at = end + 2;
        }
        self.connection.consume(at);
        Ok(())
    }
}

fn write(out: &mut Vec<u8>, text: std::fmt::Arguments<'_>) {
    out.write_fmt(text).expect("a vector takes all bytes");
}

/// Reply to an append, decoded from JSON.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Appended {
    /// Number of appended records.
    count: u64,
    /// Offset of the first appended record.
    first: u64,
    /// Offset of the last appended record.
    last: u64,
}

/// Reply to a fetch, decoded from JSON.
#[derive(Debug, Deserialize)]
struct Fetched<'a> {
    /// Number of this delivery, by which an ack refers to all records in the reply; `None` if no records were
    /// delivered.
    attempt: Option<u64>,
    /// Records that the group delivered in this reply.
    #[serde(default, borrow)]
    messages: Vec<Delivered<'a>>,
}

/// A record that a group delivers.
#[derive(Debug, Deserialize)]
struct Delivered<'a> {
    /// Offset of the record.
    offset: u64,
    /// Number of times that the record was delivered, including this delivery.
    deliveries: u64,
    /// Content of the record; `None` if it is not text.
    #[serde(borrow)]
    payload: Option<Cow<'a, str>>,
}

/// Reply to an ack, decoded from JSON.
#[derive(Clone, Copy, Debug, Deserialize)]
struct AckReply {
    /// Number of records whose ack the server accepted.
    settled: u64,
}

/// Reply to a publish, decoded from JSON.
#[derive(Clone, Copy, Debug, Deserialize)]
struct Published {
    /// Number of published messages.
    messages: u64,
    /// Number of subscriptions that missed the messages because their queues were full.
    missed: u64,
}

/// A line that the server sends to a subscriber, decoded from JSON.
#[derive(Debug, Default, Deserialize)]
struct SubjectLine<'a> {
    /// True in the line with which the server confirms the subscription.
    #[serde(default)]
    subscribed: bool,
    /// Number of messages that the server dropped at this point of the subscription; `None` in lines that report no
    /// dropped messages.
    gap: Option<u64>,
    /// Content of the message in this line; `None` if the line is no message.
    #[serde(default, borrow)]
    payload: Option<Cow<'a, str>>,
}

/// Parses the body of a reply as JSON.
fn json<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, String> {
    serde_json::from_slice(body).map_err(|error| {
        let shown = String::from_utf8_lossy(&body[..body.len().min(200)]);
        format!("{error}: {shown:?}")
    })
}

/// Calls `each` with the offset and the payload of each record of a read in the binary form. The payload is `None` if
/// the record has a key, has headers or has no payload.
fn records(mut body: &[u8], mut each: impl FnMut(u64, Option<&[u8]>)) -> Result<(), String> {
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

    fn text(level: Option<Durability>, encode: impl FnOnce(&HttpFeed, &mut Vec<u8>)) -> String {
        let mut out = Vec::new();
        encode(&HttpFeed::new(([127, 0, 0, 1], 1).into(), "h:1", "f".to_owned(), level), &mut out);
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
        let read = text(None, |requests, out| requests.read_request(7, 5, 100, out));
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
