//! Operations on streams, consumer groups and subjects over the native protocol, over TCP. Operations on streams and
//! groups can also be calls in this process.
//!
//! Owns: the bytes of requests and replies, and a subscription with its credit. Does not own: connections and the
//! frames around replies ([`NativePlace`]), or the check of the records in a reply ([`super::Feed`]).

use std::borrow::Cow;

use thalweg_types::{
    Attempt, Durability, GroupId, Offset, StreamId,
    codec::Level,
    command::{
        CommandError, StreamConfig, encode_append, encode_create_stream, encode_delete_stream,
        groups::{GroupConfig, Settlement, encode_ack, encode_create_group},
    },
    record::RecordBatch,
};
use thalweg_wire::{
    Batch, BatchWriter, Checksum, Committed, Deliver, Delivery, Dropped, Fetch, Frame as _, Kind, List, Messages,
    Permit, Policy, Position, Publish, Published, Read, ReceiveCredit, RecordRun, Records, RemainingBytes, ServerFrame,
    Settled, ShortBytes, Subscribe, Write, put_write,
};

use super::{
    protocol::{Arrived, FeedContent, FeedParts, FeedProtocol, FeedRecord, Subscription, Texts},
    steps::{FeedSizes, FeedStep},
};
use crate::{
    BenchError, Connection,
    native::{ID, NativePlace, answer_ping, body, frame, refusal, unexpected},
    pairs::{Answer, Content, shown},
};

/// Name under which the load generator fetches as a member of the consumer group.
const MEMBER: &str = "bench";
/// Maximum number of records that the consumer group may have delivered and not acknowledged. It is high, so that many
/// connections can fetch at the same time.
const MAX_PENDING: u32 = 100_000;
/// Credit of a subscription: messages and bytes that the server may send before the subscriber has consumed the
/// previous ones.
const WINDOW: Permit = Permit { messages: 100_000, bytes: 16 << 20 };

/// Encodes the requests to the stream, consumer group and subject of a run over the native protocol, and decodes the
/// replies.
#[derive(Clone, Debug)]
pub struct NativeFeed {
    place: NativePlace,
    stream: StreamId,
    group: GroupId,
    subject: String,
    level: Level,
}

impl NativeFeed {
    /// Creates the stream and the group called `name` on the server. Writes request the durability `level`; with `None`
    /// the server uses its default.
    pub fn create(
        place: &NativePlace,
        name: String,
        level: Option<Durability>,
        parts: FeedParts,
    ) -> Result<Self, BenchError> {
        let create = |what, encode: &dyn Fn(&mut Vec<u8>) -> Result<(), CommandError>| {
            let mut command = Vec::new();
            encode(&mut command).map_err(BenchError::target(place))?;
            let write = Write { level: Level(None), command: RemainingBytes(&command) };
            place.ask(what, &write, |frame| match frame {
                ServerFrame::Created(created) => Some(created.id),
                _ => None,
            })
        };
        let (mut stream, mut group) = (StreamId(0), GroupId(0));
        if parts.stream {
            let config = StreamConfig::default();
            stream = StreamId(create("creating the stream", &|out| encode_create_stream(out, &name, &config))?);
        }
        if parts.group {
            let (start, config) =
                (Some(Offset::ZERO), GroupConfig { max_pending: MAX_PENDING, ..GroupConfig::default() });
            group =
                GroupId(create("creating the group", &|out| encode_create_group(out, stream, &name, start, &config))?);
        }
        Ok(Self { place: place.clone(), stream, group, subject: name, level: Level(level) })
    }

    fn write(&self, out: &mut Vec<u8>, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) {
        put_write(out, ID, self.level, encode).expect("records are within the limits of commands");
    }

    fn append(&self, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let mut batch = RecordBatch::new();
        texts.each(|text| batch.push_payload(text).expect("records are within the limits of batches"));
        self.write(out, |out| {
            encode_append(out, self.stream, None, &batch);
            Ok(())
        });
    }
}

impl FeedProtocol for NativeFeed {
    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let bytes = |records: u32| u32::try_from((sizes.record_bytes + 64) * records as usize).unwrap_or(u32::MAX);
        let encoded = match step {
            FeedStep::Append(_) => return self.append(texts, out),
            FeedStep::Ack { attempt, .. } => {
                let all = [Settlement::all(Attempt(attempt))];
                return self.write(out, |out| encode_ack(out, self.group, &all));
            }
            FeedStep::Read { from, .. } => {
                let (stream, from) = (self.stream, Position::Offset { offset: Offset(from) });
                let (max_records, max_bytes) = (sizes.read_records, bytes(sizes.read_records));
                Read { stream, from, max_records, max_bytes }.encode(out, ID)
            }
            FeedStep::Fetch => {
                let (max_records, max_bytes) = (sizes.fetch_records, bytes(sizes.fetch_records));
                let (group, level) = (self.group, self.level);
                Fetch { group, max_records, max_bytes, wait: 0, level, member: MEMBER }.encode(out, ID)
            }
            FeedStep::Publish(_) => {
                let mut batch = BatchWriter::new(self.subject.as_bytes(), b"").expect("a name is a subject");
                texts.each(|text| batch.push_payload(text).expect("messages are within the limits of batches"));
                let batch = batch.into_shared(Checksum::Without).expect("a publish has messages");
                Publish { batches: List::Items(&[&batch.bytes[..]]) }.encode(out, ID)
            }
        };
        encoded.expect("requests are within the limits of frames");
    }

    fn decode<'a>(&self, step: FeedStep, _: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let Some((frame, bytes)) = frame(bytes)? else { return Ok(None) };
        let expected = match step {
            FeedStep::Append(_) => Kind::Committed,
            FeedStep::Read { .. } => Kind::Records,
            FeedStep::Fetch => Kind::Delivery,
            FeedStep::Ack { .. } => Kind::Settled,
            FeedStep::Publish(_) => Kind::Published,
        };
        let content = match refusal(frame) {
            Some(message) if frame.header.id == ID => Content::Refused(shown(message.as_bytes())),
            _ if frame.header.id == ID && frame.header.kind == expected as u16 => {
                Content::Value(Cow::Borrowed(body(&frame)))
            }
            _ => return Err(unexpected(frame).to_string()),
        };
        Ok(Some(Answer { bytes, closes: false, content }))
    }

    fn read(
        &self,
        step: FeedStep,
        content: &[u8],
        each: &mut dyn FnMut(FeedRecord<'_>),
    ) -> Result<FeedContent, String> {
        let wrong = |error: thalweg_wire::DecodeError| error.to_string();
        Ok(match step {
            FeedStep::Append(_) => {
                let committed = Committed::decode_body(content).map_err(wrong)?;
                let mut appends = committed.appends.iter().filter(|append| append.stream == self.stream);
                match (appends.next(), committed.duplicate) {
                    (Some(append), false) => {
                        FeedContent::Appended { first: append.first.get(), count: u64::from(append.count) }
                    }
                    _ => return Err(format!("an append was answered with {committed:?}")),
                }
            }
            FeedStep::Read { .. } => {
                let page = Records::decode_body(content).map_err(wrong)?;
                page.runs.iter().try_for_each(|run| read_run(&run, 1, each))?;
                FeedContent::Records
            }
            FeedStep::Fetch => {
                let delivery = Delivery::decode_body(content).map_err(wrong)?;
                for part in delivery.parts.iter() {
                    let deliveries = u64::from(part.deliveries);
                    part.runs.iter().try_for_each(|run| read_run(&run, deliveries, each))?;
                }
                FeedContent::Fetched { attempt: Some(delivery.attempt.0).filter(|attempt| *attempt > 0) }
            }
            FeedStep::Ack { .. } => {
                FeedContent::Settled(u64::from(Settled::decode_body(content).map_err(wrong)?.settled))
            }
            FeedStep::Publish(_) => {
                let Published { missed, .. } = Published::decode_body(content).map_err(wrong)?;
                FeedContent::Published { messages: None, missed }
            }
        })
    }

    fn level(&self, reply: &[u8]) -> Option<String> {
        let (frame, _) = frame(reply).ok()??;
        Some(Committed::decode_body(body(&frame)).ok()?.durability.to_string())
    }

    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError> {
        let fail = BenchError::target(&self.place);
        let (mut connection, credit) = (self.place.connect()?, ReceiveCredit::new(&WINDOW));
        let subscribe = Subscribe {
            policy: Policy::DropNew,
            queue_messages: 0,
            queue_bytes: 0,
            permit: credit.permit(),
            pattern: ShortBytes(self.subject.as_bytes()),
            queue: ShortBytes(b""),
        };
        subscribe.encode(connection.out(), ID).map_err(|error| fail(error.to_string()))?;
        connection.send().map_err(|error| fail(format!("subscribing: {error}")))?;
        Ok(Box::new(NativeSubscription { connection, credit }))
    }

    fn remove(&self) {
        let mut command = Vec::new();
        encode_delete_stream(&mut command, self.stream);
        let write = Write { level: Level(None), command: RemainingBytes(&command) };
        let _ = self.place.ask("deleting the stream", &write, |_| Some(()));
    }
}

/// Calls `each` with each record of a record run, a sequence of records with consecutive offsets in a reply.
/// `deliveries` is the number of times that each of these records was delivered.
fn read_run(run: &RecordRun<'_>, deliveries: u64, each: &mut dyn FnMut(FeedRecord<'_>)) -> Result<(), String> {
    let mut position = run.first.get();
    for record in Messages::new(run.records) {
        let record = record.map_err(|error| error.to_string())?;
        each(FeedRecord { position, deliveries, payload: record.key.is_none().then_some(record.payload) });
        position = position.saturating_add(1);
    }
    let count = position - run.first.get();
    if count == u64::from(run.count) { Ok(()) } else { Err(format!("a run of {} has {count} records", run.count)) }
}

/// A subscription to a subject over the native protocol, and its credit: the number of messages and bytes that the
/// server may still send.
struct NativeSubscription {
    connection: Connection,
    credit: ReceiveCredit,
}

impl Subscription for NativeSubscription {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String> {
        let (mut at, mut out) = (0, Vec::new());
        let (input, credit) = (self.connection.input(), &mut self.credit);
        while let Some((frame, len)) = frame(&input[at..])? {
            at += len;
            let kind = frame.header.kind;
            if kind == Kind::Deliver as u16 {
                let deliver = Deliver::decode_body(body(&frame)).map_err(|error| error.to_string())?;
                let batch = Batch::decode(deliver.batch.0).map_err(|error| error.to_string())?;
                for message in batch.messages() {
                    each(Arrived::Message(message.ok().map(|message| message.payload)));
                }
                let (messages, bytes) = (u64::from(batch.count()), deliver.batch.0.len() as u64);
                credit.received(messages, bytes).map_err(|error| error.to_string())?;
                if let Some(more) = credit.consumed(messages, bytes) {
                    more.encode(&mut out, ID).map_err(|error| error.to_string())?;
                }
            } else if kind == Kind::Dropped as u16 {
                let dropped = Dropped::decode_body(body(&frame)).map_err(|error| error.to_string())?;
                each(Arrived::Gap(dropped.messages));
            } else if kind == Kind::Subscribed as u16 {
                each(Arrived::Accepted);
            } else if !answer_ping(frame, &mut out) {
                return Err(unexpected(frame).to_string());
            }
        }
        self.connection.consume(at);
        self.connection.out().extend_from_slice(&out);
        Ok(())
    }
}
