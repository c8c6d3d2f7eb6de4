//! Subjects: publish, subscribe, ask and answer. Nothing is stored.
//!
//! Owns: single publishes, [`Subscriber`], requests. Does not own publishing in batches: [`Publisher`](crate::Publisher).

use std::time::Duration;

use bytes::Bytes;
use thalweg_types::record::Record;
use thalweg_wire::{
    self as wire, Batch, BatchWriter, Checksum, Fields, Frame, List, Message, Permit, Policy, Rest, SharedBatch,
    SharedFrame, Short, batch::put_publish_prefix,
};

use crate::{
    client::{Client, Clock, How, Repeat, until_staged},
    error::{Error, Invalid, ProtocolError},
    link::Writer,
    mailbox::Item,
    options::Window,
    request::reply_of,
    subscription::{Event, Feed, Source},
    write::fits,
};

/// What became of a publish.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Subscriptions that have it in their queue; a queue group counts as one.
    pub delivered: u64,
    /// Subscriptions that had no room and are told that they missed it.
    pub missed: u64,
}

/// How to subscribe.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// Of those with the same queue group one gets each message; empty: this one gets all.
    pub queue: Vec<u8>,
    /// What happens when the server's queue for it is full.
    pub policy: Policy,
    /// Messages that may wait on the server; 0: as it likes.
    pub queue_messages: u64,
    /// Bytes that may wait on the server; 0: as it likes.
    pub queue_bytes: u64,
    /// What may be sent ahead of the application; as the client's options say if `None`.
    pub window: Option<Window>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self { queue: Vec::new(), policy: Policy::DropNew, queue_messages: 0, queue_bytes: 0, window: None }
    }
}

/// Messages of one subject that came together, as their publisher encoded them. Keeps the read buffer that they came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    bytes: Bytes,
}

impl MessageBatch {
    /// Checked through and through: what has a checksum has the right one.
    fn new(bytes: Bytes) -> Result<Self, Error> {
        let batch = Batch::decode(&bytes)?;
        batch.check()?;
        batch.check_crc()?;
        Ok(Self { bytes })
    }

    fn batch(&self) -> Batch<'_> {
        Batch::decode(&self.bytes).expect("checked when it came")
    }

    /// How many.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch().count() as usize
    }

    /// Whether there are none: never, but asked for by custom.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What they are about.
    #[must_use]
    pub fn subject(&self) -> &[u8] {
        self.batch().subject()
    }

    /// Where answers are wanted; empty: nowhere.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        self.batch().reply()
    }

    /// The messages in order, borrowed.
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        self.batch().messages().map_while(Result::ok)
    }

    /// The encoded batch, to be sent on as it is.
    #[must_use]
    pub fn bytes(&self) -> &Bytes {
        &self.bytes
    }

    fn owned(&self, message: &Message<'_>) -> OwnedMessage {
        let (batch, share) = (self.batch(), |part: &[u8]| self.bytes.slice_ref(part));
        OwnedMessage {
            subject: share(batch.subject()),
            reply: share(batch.reply()),
            key: message.key.map(share),
            headers: message.headers.iter().map(|(name, value)| (name.to_owned(), share(value))).collect(),
            payload: share(message.payload),
        }
    }
}

/// A message with shares of the bytes that it came in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedMessage {
    /// What it is about.
    pub subject: Bytes,
    /// Where an answer is wanted; empty: nowhere.
    pub reply: Bytes,
    /// Its key.
    pub key: Option<Bytes>,
    /// Its headers.
    pub headers: Vec<(String, Bytes)>,
    /// Its payload.
    pub payload: Bytes,
}

/// What comes to a subscriber.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// Messages of one subject.
    Messages(MessageBatch),
    /// So many messages are missing here: the queue on the server was full.
    Dropped(u64),
    /// The connection was lost and is there again: what was published meanwhile is missing here.
    Gap,
}

/// A batch of one message.
pub(crate) fn single(subject: &[u8], reply: &[u8], message: &Record<'_>) -> Result<SharedBatch, Error> {
    let mut writer = BatchWriter::with_capacity(subject, reply, message.payload.len() + 64)?;
    writer.push(message)?;
    writer.into_shared(Checksum::Without).ok_or(Error::Invalid(Invalid::NoRecords))
}

fn payload(payload: &[u8]) -> Record<'_> {
    Record { payload, ..Record::default() }
}

impl Client {
    /// Publishes one message, and waits until it is in the queues of all who are subscribed.
    pub async fn publish(&self, subject: impl AsRef<[u8]>, message: &[u8]) -> Result<Published, Error> {
        self.publish_batch(&single(subject.as_ref(), b"", &payload(message))?).await
    }

    /// Publishes one message with key and headers, and with a subject for answers.
    pub async fn publish_record(
        &self,
        subject: impl AsRef<[u8]>,
        reply: impl AsRef<[u8]>,
        message: &Record<'_>,
    ) -> Result<Published, Error> {
        self.publish_batch(&single(subject.as_ref(), reply.as_ref(), message)?).await
    }

    /// Publishes a batch, and waits until it is in the queues of all who are subscribed.
    pub async fn publish_batch(&self, batch: &SharedBatch) -> Result<Published, Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::Publish { batches: List::Items(&[&batch.bytes[..]]) }.encode_with(out, id, fields))
        };
        let how = How { repeat: Repeat::IfNothing, ..How::QUICK };
        self.call(how, encode, published).await
    }

    /// Publishes a batch and does not wait for the server; waits for room if the connection does not take more. What
    /// fails is counted ([`failed_without_reply`](Self::failed_without_reply)).
    pub async fn send_batch(&self, batch: &SharedBatch) -> Result<(), Error> {
        let (link, clock) = (self.pin(), Clock::new(self.call_timeout()));
        let len = batch.bytes.len();
        let mut put = |out: &mut Vec<u8>| {
            put_publish_prefix(out, 0, len)?;
            Ok(Some(batch.bytes.clone()))
        };
        let stage = || link.send(&mut put, Writer::Here).map(|_| ());
        clock.within(wire::Effect::Nothing, until_staged(&link, stage)).await
    }

    /// Publishes one message and waits for one answer, for at most `patience`.
    pub async fn ask(
        &self,
        subject: impl AsRef<[u8]>,
        message: &[u8],
        patience: Duration,
    ) -> Result<OwnedMessage, Error> {
        self.ask_record(subject, &payload(message), patience).await
    }

    /// The same with key and headers.
    pub async fn ask_record(
        &self,
        subject: impl AsRef<[u8]>,
        message: &Record<'_>,
        patience: Duration,
    ) -> Result<OwnedMessage, Error> {
        let batch = single(subject.as_ref(), b"", message)?;
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::Ask { batch: Rest(&batch.bytes) }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::Answer { batch } = reply_of(frame)?;
            let batch = MessageBatch::new(frame.share(batch.0))?;
            batch.iter().next().map(|message| batch.owned(&message)).ok_or_else(wrong)
        };
        // The server ends the wait; the client waits a little longer for it to say so.
        let client = self.timeout(Some(patience));
        let how = How { repeat: Repeat::IfNothing, ..How::READ };
        client.call(how, encode, read).await
    }

    /// Answers a message that was asked.
    pub async fn answer(&self, asked: &OwnedMessage, message: &[u8]) -> Result<Published, Error> {
        self.publish(&asked.reply, message).await
    }

    /// Subscribes to all subjects of a pattern: names joined by dots, `*` for any one name, `>` at the end for one or more.
    pub async fn subscribe(&self, pattern: impl AsRef<[u8]>) -> Result<Subscriber, Error> {
        self.subscribe_with(pattern, SubscribeOptions::default()).await
    }

    /// The same, in a queue group, with bounds and a policy.
    pub async fn subscribe_with(
        &self,
        pattern: impl AsRef<[u8]>,
        options: SubscribeOptions,
    ) -> Result<Subscriber, Error> {
        let window = options.window.unwrap_or(self.options().window);
        let bounds = (options.queue_messages, options.queue_bytes);
        let source = SubjectSource { pattern: pattern.as_ref().to_vec(), options, bounds };
        let feed = Feed::begin(self, window, source).await?;
        Ok(Subscriber { feed, batch: None, at: 0, dropped: 0, gaps: 0 })
    }
}

pub(crate) fn published(frame: &SharedFrame) -> Result<Published, Error> {
    let wire::Published { delivered, missed } = reply_of(frame)?;
    Ok(Published { delivered, missed })
}

fn wrong() -> Error {
    Error::Protocol(ProtocolError::WrongReply { kind: wire::Kind::Answer as u16 })
}

#[derive(Debug)]
struct SubjectSource {
    pattern: Vec<u8>,
    options: SubscribeOptions,
    /// Those that hold.
    bounds: (u64, u64),
}

impl Source for SubjectSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, permit: Permit) -> Result<(), Invalid> {
        let subscribe = wire::Subscribe {
            policy: self.options.policy,
            queue_messages: self.options.queue_messages,
            queue_bytes: self.options.queue_bytes,
            permit,
            pattern: Short(&self.pattern),
            queue: Short(&self.options.queue),
        };
        fits(subscribe.encode(out, id))
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Subscribed { queue_messages, queue_bytes } = reply_of(frame)?;
        self.bounds = (queue_messages, queue_bytes);
        Ok(())
    }
}

/// Messages as they come. After a lost connection it subscribes again and says that there is a gap.
#[derive(Debug)]
pub struct Subscriber {
    feed: Feed<SubjectSource>,
    batch: Option<MessageBatch>,
    /// Bytes of the batch's messages that were given one by one.
    at: usize,
    dropped: u64,
    gaps: u64,
}

impl Subscriber {
    /// What comes next; `None`: it has ended. After `slow_consumer` the next call subscribes again. Cancel safe.
    pub async fn next_batch(&mut self) -> Result<Option<Delivered>, Error> {
        let Some(event) = self.feed.next().await? else { return Ok(None) };
        Ok(Some(match event {
            Event::Resumed => {
                self.gaps += 1;
                Delivered::Gap
            }
            Event::Item(Item::Batch(bytes)) => Delivered::Messages(MessageBatch::new(bytes)?),
            Event::Item(Item::Dropped(messages)) => {
                self.dropped += messages;
                Delivered::Dropped(messages)
            }
            Event::Item(_) => return Err(wrong()),
        }))
    }

    /// The next message; what is missing in between is only counted, see [`dropped`](Self::dropped) and
    /// [`gaps`](Self::gaps). Cancel safe. Not to be mixed with [`next_batch`](Self::next_batch), which does not give what is
    /// left of the batch that this one is in.
    pub async fn next(&mut self) -> Result<Option<OwnedMessage>, Error> {
        loop {
            if let Some(batch) = &self.batch {
                let mut rest = wire::Messages::new(&batch.batch().records()[self.at..]);
                if let Some(Ok(message)) = rest.next() {
                    self.at += rest.position();
                    return Ok(Some(batch.owned(&message)));
                }
                self.batch = None;
            }
            match self.next_batch().await? {
                Some(Delivered::Messages(batch)) => (self.batch, self.at) = (Some(batch), 0),
                Some(Delivered::Dropped(_) | Delivered::Gap) => {}
                None => return Ok(None),
            }
        }
    }

    /// Messages that the server had to drop, of which this subscriber was told.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// How often a connection was lost and what was published meanwhile is missing.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Messages and bytes that may wait on the server.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        self.feed.source.bounds
    }
}
