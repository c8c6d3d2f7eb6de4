//! Streams: create, append, read, tail.
//!
//! Owns: [`Stream`] and [`Tail`]. Does not own appending in the background: see
//! [`StreamPublisher`](crate::StreamPublisher).

use std::{sync::Arc, time::Duration};

use thalweg_types::{
    Offset, SpaceTime, StreamId,
    command::{
        AppendTerms, ExpectedOffset, StreamConfig, encode_append_with, encode_configure_stream, encode_create_stream,
        encode_delete_stream, encode_open_producer, encode_trim_stream,
    },
    record::{Record, RecordBatch},
};
use thalweg_wire::{self as wire, Fields, Frame, Permit, Position, SharedFrame};

use crate::{
    client::{Client, How, Repeat},
    error::{Error, Invalid, ProtocolError},
    mailbox::Item,
    named::{Named, with_id},
    names::Name,
    options::Window,
    records::{Cursor, OwnedRecord, Records},
    request::reply_of,
    subscription::{Event, Feed, Source},
    write::{Appended, appended_to, created, done, fits},
};

const MISSING: &str = "no_such_stream";

/// A stream identified by its name. Cheap to clone. The handle requests the stream's id at the first use.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Named>);

/// Description of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Id of the stream.
    pub id: StreamId,
    /// Name of the stream.
    pub name: String,
    /// Offset of the oldest record that the stream keeps.
    pub start: Offset,
    /// Offset that the stream's next record will get.
    pub next: Offset,
    /// Number of bytes of the encoded records that the stream keeps.
    pub bytes: u64,
    /// Space time of the last append to the stream; 0 if there was none.
    pub last_time: SpaceTime,
    /// Configuration of the stream.
    pub config: StreamConfig,
}

/// A producer that a stream remembers in order to detect repeated appends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerInfo {
    /// Id of the producer.
    pub id: String,
    /// Epoch of the producer, which grows each time a client opens the producer.
    pub epoch: u32,
    /// Sequence number that the producer's next append in this epoch must have.
    pub next_sequence: u64,
    /// Space time at which the producer last appended or was opened.
    pub last_time: SpaceTime,
}

impl Client {
    /// Returns a handle of the stream with this name, which need not exist.
    #[must_use]
    pub fn stream(&self, name: impl Into<String>) -> Stream {
        Stream(Arc::new(Named::new(self.clone(), Name::Stream(name.into()))))
    }

    /// Returns a page of at most `limit` streams, ordered by id and beginning after the stream `after`. The
    /// flag is true if more streams follow.
    pub async fn streams(&self, after: StreamId, limit: u32) -> Result<(Vec<StreamInfo>, bool), Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::ListStreams { after, limit }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::StreamList { more, streams } = reply_of(frame)?;
            Ok((streams.iter().map(info).collect(), more))
        };
        self.call(How::READ, encode, read).await
    }
}

fn info(stream: wire::Stream<'_>) -> StreamInfo {
    let wire::Stream { id, start, next, bytes, last_time, config, name } = stream;
    StreamInfo { id, name: name.to_owned(), start, next, bytes, last_time, config }
}

impl Stream {
    /// Name of the stream.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0.name {
            Name::Stream(name) => name,
            _ => unreachable!("a stream handle is created with the name of a stream"),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Id of the stream, which commits use.
    pub async fn id(&self) -> Result<StreamId, Error> {
        if let Some(id) = self.0.known() {
            return Ok(StreamId(id));
        }
        let id = self.describe().await?.id;
        self.0.learn(id.0);
        Ok(id)
    }

    /// Creates the stream unless it exists. Returns true if this call created it.
    pub async fn create_if_missing(&self, config: &StreamConfig) -> Result<bool, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>| encode_create_stream(out, name, config);
        let (id, is_new) = self.client().write(Repeat::Harmless, encode, created).await?;
        self.0.learn(id);
        Ok(is_new)
    }

    /// Returns the description of the stream.
    pub async fn describe(&self) -> Result<StreamInfo, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::FindStream { name }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| Ok(info(reply_of::<wire::StreamFound<'_>>(frame)?.stream));
        self.client().call(How::READ, encode, read).await
    }

    /// Replaces the configuration of the stream.
    pub async fn configure(&self, config: &StreamConfig) -> Result<(), Error> {
        self.command(|id, out: &mut Vec<u8>| encode_configure_stream(out, id, config)).await
    }

    /// Removes all records of the stream before an offset.
    pub async fn trim(&self, before: Offset) -> Result<(), Error> {
        self.command(|id, out: &mut Vec<u8>| encode_trim_stream(out, id, before)).await
    }

    /// Deletes the stream and all its records.
    pub async fn delete(&self) -> Result<(), Error> {
        let id = self.id().await?;
        let deleted = self.command(|id, out: &mut Vec<u8>| encode_delete_stream(out, id)).await;
        self.0.forget(id.0);
        deleted
    }

    async fn command(&self, encode: impl Fn(StreamId, &mut Vec<u8>)) -> Result<(), Error> {
        with_id!(self, MISSING, id => async {
            let mut command = Vec::new();
            encode(id, &mut command);
            let put = |out: &mut Vec<u8>| {
                out.extend_from_slice(&command);
                Ok(())
            };
            self.client().write(Repeat::IfNothing, put, done).await.map(|_| ())
        })
    }

    /// Appends one record.
    pub async fn append(&self, record: &Record<'_>) -> Result<Appended, Error> {
        let mut batch = RecordBatch::new();
        batch.push(record)?;
        self.append_batch(&batch, ExpectedOffset::Any).await
    }

    /// Appends records, all or none. Fails with `offset_conflict` unless the stream's next offset is the
    /// expected one. The client does not retry an append whose effect is unknown, because the records could
    /// be appended twice; appends of a producer can be retried.
    pub async fn append_batch(&self, batch: &RecordBatch, expected: ExpectedOffset) -> Result<Appended, Error> {
        self.append_with(batch, &expected.into()).await
    }

    /// Appends records under given terms, such as a producer and its sequence number. The client retries
    /// appends of a producer even if their effect is unknown, because the server detects repetitions.
    pub async fn append_with(&self, batch: &RecordBatch, terms: &AppendTerms<'_>) -> Result<Appended, Error> {
        if batch.is_empty() {
            return Err(Invalid::NoRecords.into());
        }
        let repeat = if terms.producer.is_some() { Repeat::Harmless } else { Repeat::IfNothing };
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>| encode_append_with(out, stream, terms, batch);
            let read = |frame: &SharedFrame| {
                let appended = appended_to(stream, frame)?;
                let count = if appended.count == 0 { batch.count() } else { appended.count };
                Ok(Appended { count, ..appended })
            };
            self.client().write(repeat, encode, read).await
        })
    }

    /// Opens a producer and returns its new epoch, which is higher than all its earlier ones. The server
    /// rejects appends of clients that use an earlier epoch.
    pub async fn open_producer(&self, producer: &str) -> Result<u32, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>| encode_open_producer(out, stream, producer);
            let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerOpened>(frame)?.epoch);
            self.client().write(Repeat::Harmless, encode, read).await
        })
    }

    /// Returns the producers that the stream remembers, or only the one with the given id.
    pub async fn producers(&self, producer: Option<&str>) -> Result<Vec<ProducerInfo>, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                let producer = producer.unwrap_or_default();
                fits(wire::ListProducers { stream, producer }.encode_with(out, id, fields))
            };
            let read = |frame: &SharedFrame| {
                let producer = |found: wire::Producer<'_>| ProducerInfo {
                    id: found.id.to_owned(),
                    epoch: found.epoch,
                    next_sequence: found.next_sequence,
                    last_time: found.last_time,
                };
                Ok(reply_of::<wire::ProducerList<'_>>(frame)?.producers.iter().map(producer).collect())
            };
            self.client().call(How::READ, encode, read).await
        })
    }

    /// Reads at most `max_records` records and about `max_bytes` bytes, beginning at a position; 0 selects
    /// the server's default for either maximum. At the end of the stream the result is empty.
    pub async fn read(&self, from: Position, max_records: u32, max_bytes: u32) -> Result<Records, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                let from = from.clone();
                fits(wire::Read { stream, from, max_records, max_bytes }.encode_with(out, id, fields))
            };
            let records = |frame: &SharedFrame| {
                let wire::Records { durability, next, high_watermark, runs } = reply_of(frame)?;
                Records::new(frame, std::iter::once((0, runs)), durability, next, high_watermark)
            };
            self.client().call(How::READ, encode, records).await
        })
    }

    /// Returns the offset of the first record that was appended at `time` or later.
    pub async fn find_offset(&self, time: SpaceTime) -> Result<Offset, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                fits(wire::FindOffset { stream, time }.encode_with(out, id, fields))
            };
            let read = |frame: &SharedFrame| Ok(reply_of::<wire::OffsetFound>(frame)?.offset);
            self.client().call(How::READ, encode, read).await
        })
    }

    /// Subscribes to the stream's records from a position on: first the existing ones, then new ones, without
    /// gaps or duplicates. The subscription resumes after a lost connection.
    pub async fn tail(&self, from: Position) -> Result<Tail, Error> {
        self.tail_with(from, self.client().options().window).await
    }

    /// Subscribes to the stream's records like [`tail`](Self::tail), with a window of its own instead of the
    /// client's default.
    pub async fn tail_with(&self, from: Position, window: Window) -> Result<Tail, Error> {
        Ok(Tail {
            feed: with_id!(self, MISSING, stream => async {
                let source = TailSource { stream, from: from.clone() };
                Feed::begin(self.client(), window, source).await
            })?,
            cursor: Cursor::default(),
        })
    }
}

#[derive(Debug)]
struct TailSource {
    stream: StreamId,
    from: Position,
}

impl Source for TailSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, permit: Permit) -> Result<(), Invalid> {
        fits(wire::Tail { stream: self.stream, from: self.from.clone(), permit }.encode(out, id))
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Tailing { next, .. } = reply_of(frame)?;
        self.from = Position::Offset { offset: next };
        Ok(())
    }
}

/// Records of a stream as they arrive. The tail resumes after a lost connection. The tail returns only errors
/// for which a retry does not help, such as `trimmed`.
#[derive(Debug)]
pub struct Tail {
    feed: Feed<TailSource>,
    cursor: Cursor,
}

impl Tail {
    /// Waits for the next records of the stream, which arrived together; `None` if the tail has ended. Cancel
    /// safe.
    pub async fn next_batch(&mut self) -> Result<Option<Records>, Error> {
        loop {
            let Some(event) = self.feed.next().await? else { return Ok(None) };
            let frame = match event {
                Event::Resumed => continue,
                Event::Item(Item::Frame(frame, _)) => frame,
                Event::Item(_) => return Err(Error::Protocol(ProtocolError::WrongReply { kind: 0 })),
            };
            let wire::Tailed { durability, next, high_watermark, runs } = reply_of(&frame)?;
            let records = Records::new(&frame, std::iter::once((0, runs)), durability, next, high_watermark)?;
            self.feed.source.from = Position::Offset { offset: next };
            if !records.is_empty() {
                return Ok(Some(records));
            }
        }
    }

    /// Waits for the next record; `None` if the tail has ended. Cancel safe. Do not mix calls of `next` with
    /// calls of [`next_batch`](Self::next_batch), which skips the remaining records of the current batch.
    pub async fn next(&mut self) -> Result<Option<OwnedRecord>, Error> {
        loop {
            if let Some(record) = self.cursor.next() {
                return Ok(Some(record));
            }
            match self.next_batch().await? {
                Some(records) => self.cursor = Cursor::new(records),
                None => return Ok(None),
            }
        }
    }

    /// Waits at most `patience` for the next record of the stream; `None` if none has arrived or the tail has
    /// ended.
    pub async fn next_within(&mut self, patience: Duration) -> Result<Option<OwnedRecord>, Error> {
        tokio::time::timeout(patience, self.next()).await.unwrap_or(Ok(None))
    }

    /// Position at which a later tail must begin to continue after the last batch that this tail has
    /// returned.
    #[must_use]
    pub fn position(&self) -> Position {
        self.feed.source.from.clone()
    }
}
