//! Subscriptions of the good client, over Redis and HTTP. Each must get every message that the good client publishes,
//! in order.
//!
//! Owns: the connections of the subscriptions, the text of the messages, and the count of messages that did not arrive.
//! Does not own: publishing, which is one of the good client's requests ([`good`](crate::good)).

use std::{
    io::{ErrorKind, Read},
    net::TcpStream,
    sync::atomic::{AtomicBool, AtomicU32, Ordering},
    time::{Duration, Instant},
};

use crate::{
    HANG, OWN, Server, connect,
    good::{call, exchange, expect},
    redis::encode,
};

/// Channel of Redis clients, and subject over HTTP.
const CHANNEL: &str = "good.messages";
/// Text in front of the number of a message.
const MARK: &[u8] = b"good-message-";
/// Digits of the number of a message.
const DIGITS: usize = 8;
/// Time for which a subscriber waits for bytes before it looks if the publishing is over.
const POLL: Duration = Duration::from_millis(20);

/// Command of a Redis client that publishes the message with this number.
pub(crate) fn publication(number: u32) -> String {
    format!("PUBLISH {CHANNEL} good-message-{number:08}")
}

/// A subscription of the good client.
pub(crate) struct Subscriber {
    name: &'static str,
    stream: TcpStream,
    received: Received,
}

impl Subscriber {
    /// Subscribes over each protocol. Tries again while the server is busy with the end of an earlier attack.
    pub(crate) fn all(server: &Server) -> Vec<Self> {
        [Self::over_redis, Self::over_http].map(|subscribe| patiently(|| subscribe(server))).into()
    }

    fn over_redis(server: &Server) -> Result<Self, String> {
        let mut stream = connect(OWN, server.resp).map_err(|error| error.to_string())?;
        if let Some(password) = server.password {
            call(&mut stream, &format!("AUTH {password}"), "+OK")?;
        }
        let answer = exchange(&mut stream, &encode(&format!("SUBSCRIBE {CHANNEL}")), |answer| {
            answer.ends_with(b":1\r\n") || (answer.starts_with(b"-") && answer.ends_with(b"\r\n"))
        })?;
        expect(&answer, "*3")?;
        Self::new("Redis subscriber", stream)
    }

    fn over_http(server: &Server) -> Result<Self, String> {
        let mut stream = connect(OWN, server.http).map_err(|error| error.to_string())?;
        let request =
            format!("GET /v1/subjects/{CHANNEL} HTTP/1.1\r\nhost: localhost\r\naccept: application/x-ndjson\r\n\r\n");
        let answer = exchange(&mut stream, request.as_bytes(), |answer| {
            let has_head = answer.windows(4).any(|part| part == b"\r\n\r\n");
            has_head && (!answer.starts_with(b"HTTP/1.1 200") || find(answer, b"\"subscribed\"").is_some())
        })?;
        expect(&answer, "HTTP/1.1 200")?;
        Self::new("HTTP subscriber", stream)
    }

    fn new(name: &'static str, stream: TcpStream) -> Result<Self, String> {
        stream.set_read_timeout(Some(POLL)).map_err(|error| error.to_string())?;
        Ok(Self { name, stream, received: Received::default() })
    }

    /// Receives messages until the publishing `is_over` and all that were `published` have arrived. Returns a
    /// description of each gap, and of a disconnect.
    pub(crate) fn receive(&mut self, published: &AtomicU32, is_over: &AtomicBool) -> Vec<String> {
        let (mut page, mut over_since) = (vec![0; 64 * 1024], None);
        loop {
            // The number of published messages is final once the publishing is over.
            if is_over.load(Ordering::Acquire) {
                let since: Instant = *over_since.get_or_insert_with(Instant::now);
                let published = published.load(Ordering::Relaxed);
                if self.received.next >= published {
                    return self.lost();
                }
                if since.elapsed() >= HANG {
                    self.received.skip_to(published);
                    return self.lost();
                }
            }
            match self.stream.read(&mut page) {
                Ok(read @ 1..) => self.received.take(&page[..read]),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted) => {
                }
                ended => {
                    let ended = ended.map_or_else(|error| error.to_string(), |_| "closed".to_owned());
                    let text = format!("disconnected before message {}: {ended}", self.received.next);
                    self.received.lost.push(text);
                    return self.lost();
                }
            }
        }
    }

    fn lost(&mut self) -> Vec<String> {
        let name = self.name;
        self.received.lost.drain(..).map(|lost| format!("{name}: {lost}")).collect()
    }
}

/// Calls `attempt` until it succeeds, for as long as a request may take.
fn patiently<T>(attempt: impl Fn() -> Result<T, String>) -> T {
    let begun = Instant::now();
    loop {
        match attempt() {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < HANG, "{error}"),
        }
        std::thread::sleep(POLL);
    }
}

/// Messages that a subscription has received.
#[derive(Default)]
struct Received {
    /// Last bytes, which may be the beginning of a message.
    rest: Vec<u8>,
    /// Number of the next message.
    next: u32,
    /// Descriptions of the messages that did not arrive.
    lost: Vec<String>,
}

impl Received {
    /// Finds the messages in the bytes that follow those received before.
    fn take(&mut self, bytes: &[u8]) {
        self.rest.extend_from_slice(bytes);
        let mut from = 0;
        while let Some(at) = find(&self.rest[from..], MARK) {
            let begin = from + at + MARK.len();
            let Some(digits) = self.rest.get(begin..begin + DIGITS) else { break };
            let number: u32 = std::str::from_utf8(digits).ok().and_then(|text| text.parse().ok()).expect("a number");
            self.skip_to(number);
            // A message whose publication failed may arrive, and is then published again.
            self.next = self.next.max(number + 1);
            from = begin + DIGITS;
        }
        let may_begin = self.rest.len().saturating_sub(MARK.len() + DIGITS - 1);
        self.rest.drain(..from.max(may_begin));
    }

    /// Notes that the messages before `number` did not arrive, except those that did.
    fn skip_to(&mut self, number: u32) {
        if number > self.next {
            self.lost.push(format!("messages {}..{number} did not arrive", self.next));
            self.next = number;
        }
    }
}

fn find(bytes: &[u8], part: &[u8]) -> Option<usize> {
    bytes.windows(part.len()).position(|window| window == part)
}

#[test]
fn missing_messages_are_found_wherever_the_bytes_are_cut() {
    let bytes: Vec<u8> = [0, 1, 4, 4, 5, 7]
        .iter()
        .flat_map(|number| format!("*3\r\n$7\r\nmessage\r\n{}\r\n", publication(*number)).into_bytes())
        .collect();
    for cut in 0..bytes.len() {
        let mut received = Received::default();
        received.take(&bytes[..cut]);
        received.take(&bytes[cut..]);
        assert_eq!(received.next, 8, "{cut}");
        assert_eq!(received.lost, ["messages 2..4 did not arrive", "messages 6..7 did not arrive"], "{cut}");
        assert!(received.rest.len() < MARK.len() + DIGITS, "{cut}");
    }
}
