//! Protocol of operations on a stream, a group and a subject: encoding of requests, and decoding of replies.

use std::{fmt, ops::Range};

use super::{
    appends::Positions,
    steps::{FeedSizes, FeedStep},
    texts::NumberedTexts,
};
use crate::{BenchError, Connection, pairs::Answer};

/// Protocol of operations on one stream, one group and one subject. They exist only for the benchmark run.
pub trait FeedProtocol: fmt::Debug + Send + Sync {
    /// Returns the kind of position that the server gives to each record of the stream: offset or id.
    fn positions(&self) -> Positions {
        Positions::Offsets
    }

    /// Appends the bytes of a request. `texts` are the records of an append, or the messages of a publish.
    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>);

    /// Decodes the reply to a request at the start of `bytes`, which is not empty. [`read`](Self::read) then reads its
    /// content. Returns `None` if the reply is incomplete, and an error if the bytes are not a reply.
    fn decode<'a>(&self, step: FeedStep, sizes: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String>;

    /// Reads the content of a reply, and calls `each` with each record in it. The bytes come from the network: if they
    /// are malformed, the error describes the fault.
    fn read(&self, step: FeedStep, content: &[u8], each: &mut dyn FnMut(FeedRecord<'_>))
    -> Result<FeedContent, String>;

    /// Returns the durability level that a reply to an append names; `None` if it names none.
    fn level(&self, _reply: &[u8]) -> Option<String> {
        None
    }

    /// Returns the number of the publisher that sent the publish with the given number. `None` if the server delivers
    /// all messages to every subscriber in one order. With a number, only the messages of each publisher must arrive in
    /// order.
    fn publisher(&self, _publish: u64) -> Option<u64> {
        None
    }

    /// Opens a connection and sends the request for a subscription to the subject.
    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError>;

    /// Deletes the stream with its group. If that fails, they stay on the server, where they do no harm.
    fn remove(&self);
}

/// States which of the two, a stream and a consumer group, must be created on the server before a benchmark run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedParts {
    /// True if the benchmark run uses the stream.
    pub stream: bool,
    /// True if the benchmark run uses the group, and therefore also the stream.
    pub group: bool,
}

/// A record in the reply to a request, such as a read or a fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedRecord<'a> {
    /// Position of the record in the stream: its offset or its id.
    pub position: u64,
    /// Number of times that a consumer group delivered the record, including this delivery; 1 if the record comes from
    /// a read.
    pub deliveries: u64,
    /// Content of the record. `None` if the record does not look like one that the run wrote, or if it belongs to a
    /// reply to an append.
    pub payload: Option<&'a [u8]>,
}

/// Content of a reply, apart from its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedContent {
    /// Records were appended at consecutive offsets.
    Appended {
        /// Offset of the first appended record.
        first: u64,
        /// Number of appended records.
        count: u64,
    },
    /// The reply has only records: those that a read returned, or the ids of the records that were appended.
    Records,
    /// A consumer group delivered the records of the reply.
    Fetched {
        /// Number of the delivery. The client acknowledges the delivered records by this number. `None` if no records
        /// were delivered.
        attempt: Option<u64>,
    },
    /// This number of records was acknowledged.
    Settled(u64),
    /// Messages were published.
    Published {
        /// Number of published messages; `None` if the reply states no number and covers all messages of the request.
        messages: Option<u64>,
        /// Number of subscriptions that missed the messages because their queues were full.
        missed: u64,
    },
}

/// Texts of the records of an append, or of the messages of a publish.
#[derive(Clone, Debug)]
pub struct Texts<'a> {
    pub(super) texts: &'a NumberedTexts,
    pub(super) numbers: Range<u64>,
}

impl Texts<'_> {
    /// Returns the number of texts.
    pub fn count(&self) -> u64 {
        self.numbers.end - self.numbers.start
    }

    /// Returns the length of each text in bytes.
    pub fn text_bytes(&self) -> usize {
        self.texts.text_bytes()
    }

    /// Calls `each` with each text.
    pub fn each(&self, mut each: impl FnMut(&[u8])) {
        let mut text = Vec::with_capacity(self.text_bytes());
        for number in self.numbers.clone() {
            text.clear();
            self.texts.put(number, &mut text);
            each(&text);
        }
    }

    /// Appends each text, followed by a line feed.
    pub fn lines(&self, out: &mut Vec<u8>) {
        for number in self.numbers.clone() {
            self.texts.put(number, out);
            out.push(b'\n');
        }
    }
}

/// A subscription to a subject, on a connection of its own.
pub trait Subscription: Send {
    /// Returns the connection of the subscription.
    fn connection(&mut self) -> &mut Connection;

    /// Consumes the bytes that have arrived on the connection, and calls `each` with each event in them. Appends
    /// answers to the outgoing bytes of the connection.
    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String>;
}

/// An event that a subscription received from the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    /// The server has accepted the subscription.
    Accepted,
    /// A message with its content; `None` if the content does not look like that of a message that the benchmark run
    /// published.
    Message(Option<&'a [u8]>),
    /// The server dropped this number of messages at this point.
    Gap(u64),
}
