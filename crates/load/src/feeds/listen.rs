//! Subscribers of a subject over HTTP, on one thread of their own while the load runs.

use std::{
    io::{self, ErrorKind},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use super::{
    deliveries::SubscriberLedger,
    feed::Feed,
    http::{SubjectLine, json},
};
use crate::{
    Address, BenchError, Connection,
    connection::MoreInput,
    poller::{Event, Poller},
};

/// Longest wait for the server to accept the subscriptions.
const SETUP: Duration = Duration::from_secs(10);
/// Time without a message after which the missing messages count as lost.
const QUIET: Duration = Duration::from_secs(2);
/// Bound of a line, which is one message.
const MAX_LINE_BYTES: usize = 8 << 20;
/// Longest wait for events, in nanoseconds, before the thread checks whether it should stop.
const WAIT: u64 = 20_000_000;

/// Running subscribers.
#[derive(Debug)]
pub struct Listening {
    shared: Arc<Shared>,
    thread: JoinHandle<Result<Vec<SubscriberLedger>, String>>,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    /// Number of subscriptions that the server has accepted.
    accepted: AtomicU64,
    /// Number of messages, received or reported as dropped, over all subscribers.
    messages: AtomicU64,
}

/// One subscription.
struct Subscriber {
    connection: Connection,
    has_head: bool,
    /// Text of chunks up to the last line, which is not complete.
    text: Vec<u8>,
    is_accepted: bool,
    ledger: SubscriberLedger,
}

impl Listening {
    /// Opens subscriptions to the feed's subject, and waits until the server has accepted all of them.
    pub fn start(address: SocketAddr, subscribers: usize, feed: &Arc<Feed>) -> Result<Self, BenchError> {
        let fail = |error: io::Error| BenchError::target(address)(format!("subscribing: {error}"));
        let mut opened = Vec::new();
        for _ in 0..subscribers {
            opened.push(Subscriber::open(address, feed).map_err(fail)?);
        }
        let (shared, feed) = (Arc::new(Shared::default()), Arc::clone(feed));
        let thread = std::thread::spawn({
            let shared = Arc::clone(&shared);
            move || listen(opened, &feed, &shared)
        });
        let begun = Instant::now();
        while shared.accepted.load(Ordering::Acquire) < subscribers as u64 {
            if thread.is_finished() || begun.elapsed() > SETUP {
                shared.stop.store(true, Ordering::Release);
                let problem = thread.join().map_or_else(
                    |_| "a panic".to_owned(),
                    |ended| match ended {
                        Err(problem) => problem,
                        Ok(_) => format!("no answer within {SETUP:?}"),
                    },
                );
                return Err(BenchError::target(address)(format!("subscribing: {problem}")));
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(Self { shared, thread })
    }

    /// Waits until each subscriber has received `published` messages, or until no more messages arrive. Returns the
    /// messages that each has received, or the reason why the subscriptions ended.
    pub fn finish(self, published: u64, subscribers: usize) -> Result<Vec<SubscriberLedger>, String> {
        let (mut seen, mut since) = (0, Instant::now());
        while seen < published * subscribers as u64 && since.elapsed() < QUIET && !self.thread.is_finished() {
            let now = self.shared.messages.load(Ordering::Acquire);
            if now > seen {
                (seen, since) = (now, Instant::now());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        self.shared.stop.store(true, Ordering::Release);
        self.thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

fn listen(mut all: Vec<Subscriber>, feed: &Feed, shared: &Shared) -> Result<Vec<SubscriberLedger>, String> {
    let waiting = |error: io::Error| format!("waiting: {error}");
    let poller = Poller::new().map_err(waiting)?;
    for (number, subscriber) in (0..).zip(&all) {
        poller.add(subscriber.connection.socket(), number).map_err(waiting)?;
    }
    let mut events: Vec<Event> = Vec::with_capacity(256);
    while !shared.stop.load(Ordering::Acquire) {
        poller.wait(&mut events, WAIT).map_err(waiting)?;
        for event in events.drain(..) {
            let number = event.data.u64() as usize;
            all[number].receive(feed, shared).map_err(|problem| format!("subscriber {number}: {problem}"))?;
        }
    }
    Ok(all.into_iter().map(|subscriber| subscriber.ledger).collect())
}

impl Subscriber {
    fn open(address: SocketAddr, feed: &Feed) -> io::Result<Self> {
        let mut connection = Connection::open(&Address::Tcp(address))?;
        feed.requests.subscribe(connection.out());
        connection.send()?;
        connection.socket().set_nonblocking(true)?;
        let ledger = SubscriberLedger::new(feed.sizes.messages);
        Ok(Self { connection, has_head: false, text: Vec::new(), is_accepted: false, ledger })
    }

    fn receive(&mut self, feed: &Feed, shared: &Shared) -> Result<(), String> {
        loop {
            let more = match self.connection.receive() {
                Ok(more) => more,
                Err(error) if error.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.to_string()),
            };
            self.take_chunks()?;
            self.take_lines(feed, shared)?;
            if more == MoreInput::No {
                return Ok(());
            }
        }
    }

    /// Moves the content of complete chunks to the text.
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

    fn take_lines(&mut self, feed: &Feed, shared: &Shared) -> Result<(), String> {
        let end = self.text.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        for line in self.text[..end].split(|byte| *byte == b'\n').filter(|line| !line.is_empty()) {
            let line: SubjectLine<'_> = json(line)?;
            let messages = match (line.gap, &line.payload) {
                (Some(gap), _) => {
                    self.ledger.gap(gap);
                    gap
                }
                (None, Some(payload)) => {
                    self.ledger.take(feed.message(payload.as_bytes()));
                    1
                }
                (None, None) if line.subscribed => {
                    shared.accepted.fetch_add(u64::from(!self.is_accepted), Ordering::AcqRel);
                    self.is_accepted = true;
                    0
                }
                (None, None) => return Err(format!("a line is neither a message nor a gap: {line:?}")),
            };
            shared.messages.fetch_add(messages, Ordering::AcqRel);
        }
        self.text.drain(..end);
        if self.text.len() > MAX_LINE_BYTES { Err("a line is too long".to_owned()) } else { Ok(()) }
    }
}
