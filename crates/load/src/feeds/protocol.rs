//! Protocol of operations on a stream, a group and a subject: how they become requests, and what replies contain.

use std::{fmt, ops::Range};

use super::{
    appends::Positions,
    steps::{FeedSizes, FeedStep},
    texts::NumberedTexts,
};
use crate::{BenchError, Connection, pairs::Answer};

/// Protocol of operations on one stream, one group and one subject, which exist for the run only.
pub trait FeedProtocol: fmt::Debug + Send + Sync {
    /// Returns the kind of the positions of the stream's records.
    fn positions(&self) -> Positions {
        Positions::Offsets
    }

    /// Appends the bytes of a request. `texts` are the records of an append, or the messages of a publish.
    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>);

    /// Decodes the reply to a request at the start of `bytes`, which is not empty; [`read`](Self::read) takes its
    /// content. Returns `None` if the reply is incomplete, and an error if the bytes are no reply.
    fn decode<'a>(&self, step: FeedStep, sizes: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String>;

    /// Reads the content of a reply, and calls `each` with each record in it. The bytes come from the network: if they
    /// are malformed, the error describes the fault.
    fn read(&self, step: FeedStep, content: &[u8], each: &mut dyn FnMut(FeedRecord<'_>))
    -> Result<FeedContent, String>;

    /// Returns the durability level that the bytes of a reply to an append name, if they do.
    fn level(&self, _reply: &[u8]) -> Option<String> {
        None
    }

    /// Returns the publisher of a publish, if the server keeps the order of each publisher's messages only. `None` if
    /// all messages have one order, which every subscriber sees.
    fn publisher(&self, _publish: u64) -> Option<u64> {
        None
    }

    /// Opens a subscription to the subject, whose request is sent.
    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError>;

    /// Deletes the stream with its group. If that fails, they stay on the server, which does no harm.
    fn remove(&self);
}

/// Stream and group of a run that are created before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedParts {
    /// The run uses the stream.
    pub stream: bool,
    /// The run uses the group, and so the stream.
    pub group: bool,
}

/// A record in a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FeedRecord<'a> {
    /// Offset or id of the record.
    pub position: u64,
    /// Number of times that a group delivered the record, including this delivery; 1 in a read.
    pub deliveries: u64,
    /// Content of the record; `None` if it has another form than the run's records, or in the reply to an append.
    pub payload: Option<&'a [u8]>,
}

/// Content of a reply besides its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FeedContent {
    /// Records were appended at consecutive offsets.
    Appended {
        /// Offset of the first record.
        first: u64,
        /// Number of records.
        count: u64,
    },
    /// The records are all of the reply: those that were read, or the ids of those that were appended.
    Records,
    /// A group delivered the records.
    Fetched {
        /// Attempt with which the records are acknowledged; `None` if there are no records.
        attempt: Option<u64>,
    },
    /// This number of records was acknowledged.
    Settled(u64),
    /// Messages were published.
    Published {
        /// Number of messages; `None` if the reply is one to all messages of the request.
        messages: Option<u64>,
        /// Number of subscriptions without room for them.
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

    /// Appends each text and a line feed.
    pub fn lines(&self, out: &mut Vec<u8>) {
        for number in self.numbers.clone() {
            self.texts.put(number, out);
            out.push(b'\n');
        }
    }
}

/// A subscription to a subject, on a connection of its own.
pub trait Subscription: Send {
    /// Returns the connection.
    fn connection(&mut self) -> &mut Connection;

    /// Consumes what has arrived on the connection, and appends answers to its outgoing bytes.
    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String>;
}

/// Message or end of a subscription, as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arrived<'a> {
    /// The server has accepted the subscription.
    Accepted,
    /// A message, or `None` for one without a content of the run's form.
    Message(Option<&'a [u8]>),
    /// This number of messages was dropped at this point.
    Gap(u64),
}
