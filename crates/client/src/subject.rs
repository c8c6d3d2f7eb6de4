//! Subjects: publish, subscribe, ask and answer. Messages are never stored.
//!
//! Owns: single publishes, [`Subscriber`], requests. Does not own publishing in batches: see
//! [`Publisher`](crate::Publisher).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_types::record::Record;
use thalweg_wire::{
    self as wire, Batch, BatchWriter, Checksum, Fields, Frame as _, List, Message, Permit, Policy, RemainingBytes,
    SharedBatch, SharedFrame, ShortBytes, batch::put_publish_prefix,
};

use crate::{
    client::{Client, Clock, RequestOptions, RetrySafety},
    error::{Error, Invalid, ProtocolError},
    link::{Link, WritingThread},
    mailbox::Item,
    options::Window,
    request::reply_of,
    staging::staged_in,
    subscription::{Event, Feed, Source},
    target::Target,
};

/// Result of publishing messages to a subject.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// Number of subscriptions whose queues accepted the message. A queue group counts as one subscription.
    pub delivered: u64,
    /// Number of subscriptions that missed the message because their queues were full. The server reports the loss to
    /// their subscribers.
    pub missed: u64,
}

/// Options of a subscription.
#[derive(Clone, Debug)]
pub struct SubscribeOptions {
    /// Name of the queue group that the subscription joins. Each message goes to one subscription of the group. If the
    /// name is empty, the subscription joins no group and gets every message.
    pub queue: Vec<u8>,
    /// Policy of the server when the subscription's queue on the server is full.
    pub policy: Policy,
    /// Maximum number of messages that wait on the server for this subscription; 0 selects the server's
    /// default.
    pub queue_messages: u64,
    /// Maximum number of bytes of messages that wait on the server for this subscription; 0 selects the
    /// server's default.
    pub queue_bytes: u64,
    /// Numbers of messages and bytes that the server may send before the application has taken them; `None`
    /// selects the client's [`Window`].
    pub window: Option<Window>,
}

impl Default for SubscribeOptions {
    fn default() -> Self {
        Self { queue: Vec::new(), policy: Policy::DropNew, queue_messages: 0, queue_bytes: 0, window: None }
    }
}

/// A batch of messages of one subject, as their publisher encoded them. The batch keeps the whole read buffer
/// alive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageBatch {
    bytes: Bytes,
}

impl MessageBatch {
    /// Checks the encoding of the whole batch, and the checksum if the batch has one.
    fn new(bytes: Bytes) -> Result<Self, Error> {
        let batch = Batch::decode(&bytes)?;
        batch.check()?;
        batch.check_crc()?;
        Ok(Self { bytes })
    }

    fn batch(&self) -> Batch<'_> {
        Batch::decode(&self.bytes).expect("new() has checked the batch")
    }

    /// Number of messages in the batch.
    #[must_use]
    pub fn len(&self) -> usize {
        self.batch().count() as usize
    }

    /// Returns false, because a batch has at least one message. Exists because a type with [`len`](Self::len) should
    /// also have `is_empty`.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Subject of the messages in the batch.
    #[must_use]
    pub fn subject(&self) -> &[u8] {
        self.batch().subject()
    }

    /// Subject to which answers should be published; empty if the publisher wants no answers.
    #[must_use]
    pub fn reply(&self) -> &[u8] {
        self.batch().reply()
    }

    /// Iterates over the messages in order; each borrows the bytes of the batch.
    pub fn iter(&self) -> impl Iterator<Item = Message<'_>> {
        self.batch().messages().map_while(Result::ok)
    }

    /// Returns the encoded batch, which can be published again unchanged.
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

/// A message that shares the bytes of its batch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OwnedMessage {
    /// Subject of the message.
    pub subject: Bytes,
    /// Subject to which an answer should be published; empty if the publisher wants none.
    pub reply: Bytes,
    /// Key of the message.
    pub key: Option<Bytes>,
    /// Headers of the message.
    pub headers: Vec<(String, Bytes)>,
    /// Payload of the message.
    pub payload: Bytes,
}

/// An item that a subscriber receives.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Delivered {
    /// A batch of messages of one subject.
    Messages(MessageBatch),
    /// A gap in the messages: the server dropped this number of messages, because the subscription's queue on the
    /// server was full.
    Dropped(u64),
    /// A gap in the messages: the connection was lost and restored, and messages published in the meantime
    /// were not received.
    Gap,
}

/// Encodes a batch that contains one message.
pub(crate) fn single(subject: &[u8], reply: &[u8], message: &Record<'_>) -> Result<SharedBatch, Error> {
    let mut writer = BatchWriter::with_capacity(subject, reply, message.payload.len() + 64)?;
    writer.push(message)?;
    writer.into_shared(Checksum::Without).ok_or(Error::Invalid(Invalid::NoRecords))
}

fn payload(payload: &[u8]) -> Record<'_> {
    Record { payload, ..Record::default() }
}

impl Client {
    /// Publishes one message, and waits until the message is in the queues of all subscribers.
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

    /// Publishes a batch, and waits until the batch is in the queues of all subscribers.
    pub async fn publish_batch(&self, batch: &SharedBatch) -> Result<Published, Error> {
        let how = RequestOptions { retry_safety: RetrySafety::IfNoEffect, ..RequestOptions::QUICK };
        self.request(how, wire::Publish { batches: List::Items(&[&batch.bytes[..]]) }, published).await
    }

    /// Publishes a batch without waiting for the server's answer. Waits only while too many bytes wait to be written on
    /// the connection. The client counts failures, see [`failed_without_reply`](Self::failed_without_reply).
    pub async fn send_batch(&self, batch: &SharedBatch) -> Result<(), Error> {
        let (pool, clock) = (self.pool(), Clock::new(self.call_timeout()));
        let len = batch.bytes.len();
        let mut put = |out: &mut Vec<u8>| {
            put_publish_prefix(out, 0, len)?;
            Ok(Some(batch.bytes.clone()))
        };
        let stage = |link: &Arc<Link>| link.send(&mut put, WritingThread::Caller).map(|_| ());
        let staging = staged_in(pool, pool.next_link(), stage, |_| None);
        clock.within(wire::Effect::Nothing, staging).await.map(|_| ())
    }

    /// Publishes one message as a request, and waits at most `patience` for one answer.
    pub async fn ask(
        &self,
        subject: impl AsRef<[u8]>,
        message: &[u8],
        patience: Duration,
    ) -> Result<OwnedMessage, Error> {
        self.ask_record(subject, &payload(message), patience).await
    }

    /// Publishes one message with key and headers as a request, and waits for an answer, like
    /// [`ask`](Self::ask).
    pub async fn ask_record(
        &self,
        subject: impl AsRef<[u8]>,
        message: &Record<'_>,
        patience: Duration,
    ) -> Result<OwnedMessage, Error> {
        let batch = single(subject.as_ref(), b"", message)?;
        let read = |frame: &SharedFrame| {
            let wire::Answer { batch } = reply_of(frame)?;
            let batch = MessageBatch::new(frame.share(batch.0))?;
            batch.iter().next().map(|message| batch.owned(&message)).ok_or_else(wrong)
        };
        // Server and client end the wait at about the same time. Usually the client is first, and gets no reply.
        let client = self.timeout(Some(patience));
        let how =
            RequestOptions { retry_safety: RetrySafety::IfNoEffect, target: Target::Connected, ..RequestOptions::READ };
        client.request(how, wire::Ask { batch: RemainingBytes(&batch.bytes) }, read).await
    }

    /// Publishes an answer to the received request `asked`, on the subject that the request names for answers.
    pub async fn answer(&self, asked: &OwnedMessage, message: &[u8]) -> Result<Published, Error> {
        self.publish(&asked.reply, message).await
    }

    /// Subscribes to all subjects that match a pattern. A pattern consists of names joined by dots; `*` stands for any
    /// one name, and `>` at the end for one or more names.
    pub async fn subscribe(&self, pattern: impl AsRef<[u8]>) -> Result<Subscriber, Error> {
        self.subscribe_with(pattern, SubscribeOptions::default()).await
    }

    /// Subscribes to subjects like [`subscribe`](Self::subscribe), with a queue group, bounds on the queue,
    /// and a policy for a full queue.
    pub async fn subscribe_with(
        &self,
        pattern: impl AsRef<[u8]>,
        options: SubscribeOptions,
    ) -> Result<Subscriber, Error> {
        let window = options.window.unwrap_or(self.options().window);
        let bounds = (options.queue_messages, options.queue_bytes);
        let source = SubjectSource { pattern: pattern.as_ref().to_vec(), options, bounds };
        let feed = Feed::begin(self, window, None, source).await?;
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
    /// Bounds of the subscription's queue on the server, as the server reported them: numbers of messages and of bytes.
    bounds: (u64, u64),
}

impl Source for SubjectSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid> {
        let subscribe = wire::Subscribe {
            policy: self.options.policy,
            queue_messages: self.options.queue_messages,
            queue_bytes: self.options.queue_bytes,
            permit,
            pattern: ShortBytes(&self.pattern),
            queue: ShortBytes(&self.options.queue),
        };
        Ok(subscribe.encode_with(out, id, fields)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Subscribed { queue_messages, queue_bytes } = reply_of(frame)?;
        self.bounds = (queue_messages, queue_bytes);
        Ok(())
    }
}

/// Receives the messages of a subscription as they arrive. After a lost connection the subscriber subscribes
/// again and reports a gap.
#[derive(Debug)]
pub struct Subscriber {
    feed: Feed<SubjectSource>,
    batch: Option<MessageBatch>,
    /// Number of bytes of the current batch's messages that [`next`](Self::next) has returned.
    at: usize,
    dropped: u64,
    gaps: u64,
}

impl Subscriber {
    /// Waits for the next item of the subscription; `None` if it has ended. After the error `slow_consumer`
    /// the next call subscribes again. Cancel safe.
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

    /// Waits for the next message; `None` if the subscription has ended. Gaps are only counted, see
    /// [`dropped`](Self::dropped) and [`gaps`](Self::gaps). Cancel safe. Do not mix calls of `next` with
    /// calls of [`next_batch`](Self::next_batch), which skips the remaining messages of the current batch.
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

    /// Number of messages that the server has reported as dropped because this subscription's queue was full.
    #[must_use]
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Number of times that the connection was lost. Messages published in the meantime may have been missed.
    #[must_use]
    pub fn gaps(&self) -> u64 {
        self.gaps
    }

    /// Maximum numbers of messages and of bytes that wait on the server for this subscription.
    #[must_use]
    pub fn bounds(&self) -> (u64, u64) {
        self.feed.source.bounds
    }
}
