//! Streams: create, append, read, tail.
//!
//! Owns: [`Stream`] and [`Tail`]. Does not own appending in the background: see
//! [`StreamPublisher`](crate::StreamPublisher).

use std::{sync::Arc, time::Duration};

pub use thalweg_types::info::{Producer as ProducerInfo, Stream as StreamInfo};
use thalweg_types::{
    Offset, SpaceTime, StreamId,
    command::{
        AppendConditions, ExpectedOffset, StreamConfig, encode_append_with, encode_configure_stream,
        encode_create_stream, encode_delete_stream, encode_open_producer, encode_trim_stream,
    },
    record::{Record, RecordBatch},
};
use thalweg_wire::{self as wire, Fields, Frame as _, Permit, Position, SharedFrame};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::{Error, Invalid},
    named::NamedObject,
    names::Name,
    options::Window,
    records::{Cursor, OwnedRecord, Records},
    request::reply_of,
    subscription::{Feed, Source},
    write::{Appended, appended, done},
};

/// A stream identified by its name. Cheap to clone. The handle requests the stream's id at the first use.
#[derive(Clone, Debug)]
pub struct Stream(Arc<NamedObject>);

impl Client {
    /// Returns a handle of the stream with this name. The stream need not exist.
    #[must_use]
    pub fn stream(&self, name: impl Into<String>) -> Stream {
        Stream(Arc::new(NamedObject::new(self.clone(), Name::Stream(name.into()))))
    }

    /// Returns a page of at most `limit` streams, ordered by id and beginning after the stream `after`. The
    /// flag is true if more streams follow.
    pub async fn streams(&self, after: StreamId, limit: u32) -> Result<(Vec<StreamInfo>, bool), Error> {
        let read = |frame: &SharedFrame| {
            let wire::StreamList { more, streams } = reply_of(frame)?;
            Ok((streams.iter().collect(), more))
        };
        self.request(RequestOptions::READ, wire::ListStreams { after, limit }, read).await
    }
}

impl Stream {
    /// Name of the stream.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.text()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    pub(crate) fn object(&self) -> &NamedObject {
        &self.0
    }

    /// Returns the id of the stream. A commit names the stream by this id.
    pub async fn id(&self) -> Result<StreamId, Error> {
        self.0.id().await.map(StreamId)
    }

    /// Creates the stream unless it exists. Returns true if this call created it.
    pub async fn create_if_missing(&self, config: &StreamConfig) -> Result<bool, Error> {
        self.0.create(|out| encode_create_stream(out, self.name(), config)).await
    }

    /// Returns the description of the stream: its configuration, offsets and size.
    pub async fn describe(&self) -> Result<StreamInfo, Error> {
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::StreamFound>(frame)?.stream);
        self.client().request(RequestOptions::READ, wire::FindStream { name: self.name() }, read).await
    }

    /// Replaces the configuration of the stream.
    pub async fn configure(&self, config: &StreamConfig) -> Result<(), Error> {
        self.command(|out, stream| encode_configure_stream(out, stream, config)).await
    }

    /// Removes all records of the stream before an offset.
    pub async fn trim(&self, before: Offset) -> Result<(), Error> {
        self.command(|out, stream| encode_trim_stream(out, stream, before)).await
    }

    /// Deletes the stream and all its records.
    pub async fn delete(&self) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode_delete_stream(out, StreamId(id));
            Ok(())
        };
        self.0.remove(encode, done).await.map(drop)
    }

    async fn command(&self, encode: impl Fn(&mut Vec<u8>, StreamId)) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode(out, StreamId(id));
            Ok(())
        };
        self.0.write(RetrySafety::IfNoEffect, encode, done).await.map(drop)
    }

    /// Appends one record to the stream.
    pub async fn append(&self, record: &Record<'_>) -> Result<Appended, Error> {
        let mut batch = RecordBatch::new();
        batch.push(record)?;
        self.append_batch(&batch, ExpectedOffset::Any).await
    }

    /// Appends all records, or none. Fails with `offset_conflict` unless the stream's next offset is the expected one.
    /// The client does not retry an append whose effect is unknown, because the records could be appended twice. To
    /// have appends retried, use a producer ([`append_with`](Self::append_with)).
    pub async fn append_batch(&self, batch: &RecordBatch, expected: ExpectedOffset) -> Result<Appended, Error> {
        self.append_with(batch, &expected.into()).await
    }

    /// Appends records under given conditions, such as a producer and its sequence number. The client retries
    /// appends of a producer even if their effect is unknown, because the server detects repetitions.
    pub async fn append_with(&self, batch: &RecordBatch, conditions: &AppendConditions<'_>) -> Result<Appended, Error> {
        if batch.is_empty() {
            return Err(Invalid::NoRecords.into());
        }
        let repeat = if conditions.producer.is_some() { RetrySafety::Harmless } else { RetrySafety::IfNoEffect };
        let encode = |out: &mut Vec<u8>, id| encode_append_with(out, StreamId(id), conditions, batch);
        let appended = self.0.write(repeat, encode, appended).await?;
        let count = if appended.count == 0 { batch.count() } else { appended.count };
        Ok(Appended { count, ..appended })
    }

    /// Opens a producer and returns its new epoch, which is higher than all its earlier ones. From then on, the server
    /// rejects appends with an earlier epoch of this producer.
    pub async fn open_producer(&self, producer: &str) -> Result<u32, Error> {
        let encode = |out: &mut Vec<u8>, id| encode_open_producer(out, StreamId(id), producer);
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerOpened>(frame)?.epoch);
        self.0.write(RetrySafety::Harmless, encode, read).await
    }

    /// Returns the producers that the stream remembers, or only the one with the given id.
    pub async fn producers(&self, producer: Option<&str>) -> Result<Vec<ProducerInfo>, Error> {
        let list = |id| wire::ListProducers { stream: StreamId(id), producer: producer.unwrap_or_default() };
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerList<'_>>(frame)?.producers.iter().collect());
        self.0.request(RequestOptions::READ, list, read).await
    }

    /// Reads at most `max_records` records and about `max_bytes` bytes, beginning at a position. For either maximum, 0
    /// selects the server's default. At the end of the stream the result is empty.
    pub async fn read(&self, from: Position, max_records: u32, max_bytes: u32) -> Result<Records, Error> {
        let read = |id| wire::Read { stream: StreamId(id), from: from.clone(), max_records, max_bytes };
        let records = |frame: &SharedFrame| {
            let wire::Records { durability, next, high_watermark, runs } = reply_of(frame)?;
            Records::new(frame, std::iter::once((0, runs)), durability, next, high_watermark)
        };
        self.0.request(RequestOptions::READ, read, records).await
    }

    /// Returns the offset of the first record that was appended at `time` or later.
    pub async fn find_offset(&self, time: SpaceTime) -> Result<Offset, Error> {
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::OffsetFound>(frame)?.offset);
        self.0.request(RequestOptions::READ, |id| wire::FindOffset { stream: StreamId(id), time }, read).await
    }

    /// Subscribes to the stream's records from a position on: first the existing ones, then new ones, without
    /// gaps or duplicates. The subscription resumes after a lost connection.
    pub async fn tail(&self, from: Position) -> Result<Tail, Error> {
        self.tail_with(from, self.client().options().window).await
    }

    /// Subscribes to the stream's records like [`tail`](Self::tail), with a window of its own instead of the
    /// client's default.
    pub async fn tail_with(&self, from: Position, window: Window) -> Result<Tail, Error> {
        let source = |id| TailSource { stream: StreamId(id), from: from.clone() };
        let feed =
            self.0.with_id(|known| Feed::begin(self.client(), window, Some(known.data), source(known.id))).await?;
        Ok(Tail { feed, cursor: Cursor::default() })
    }
}

#[derive(Debug)]
struct TailSource {
    stream: StreamId,
    from: Position,
}

impl Source for TailSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, fields: &Fields<'_>, permit: Permit) -> Result<(), Invalid> {
        Ok(wire::Tail { stream: self.stream, from: self.from.clone(), permit }.encode_with(out, id, fields)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Tailing { next, .. } = reply_of(frame)?;
        self.from = Position::Offset { offset: next };
        Ok(())
    }
}

/// Receives the records of a stream as they arrive. The tail resumes after a lost connection. It returns only errors
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
        while let Some((frame, _)) = self.feed.next_frame().await? {
            let wire::Tailed { durability, next, high_watermark, runs } = reply_of(&frame)?;
            let records = Records::new(&frame, std::iter::once((0, runs)), durability, next, high_watermark)?;
            self.feed.source.from = Position::Offset { offset: next };
            if !records.is_empty() {
                return Ok(Some(records));
            }
        }
        Ok(None)
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
