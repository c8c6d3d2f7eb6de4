//! Streams: create, append, read, tail.
//!
//! Owns: [`Stream`] and [`Tail`]. Does not own appending in the background: see
//! [`StreamPublisher`](crate::StreamPublisher).

use std::{sync::Arc, time::Duration};

pub use thalweg_types::info::{Producer as ProducerInfo, Stream as StreamInfo};
use thalweg_types::{
    Offset, SpaceTime, StreamId,
    command::{
        AppendTerms, ExpectedOffset, StreamConfig, encode_append_with, encode_configure_stream, encode_create_stream,
        encode_delete_stream, encode_open_producer, encode_trim_stream,
    },
    record::{Record, RecordBatch},
};
use thalweg_wire::{self as wire, Frame as _, Permit, Position, SharedFrame};

use crate::{
    client::{Client, How, Repeat},
    error::{Error, Invalid},
    named::Named,
    names::Name,
    options::Window,
    records::{Cursor, OwnedRecord, Records},
    request::reply_of,
    subscription::{Feed, Source},
    write::{Appended, appended, done},
};

/// A stream identified by its name. Cheap to clone. It requests the stream's id at the first use.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Named>);

impl Client {
    /// Returns a handle of the stream with this name, which need not exist.
    #[must_use]
    pub fn stream(&self, name: impl Into<String>) -> Stream {
        Stream(Arc::new(Named::new(self.clone(), Name::Stream(name.into()))))
    }

    /// Returns a page of streams, ordered by id and beginning after `after`. The flag is true if there are more.
    pub async fn streams(&self, after: StreamId, limit: u32) -> Result<(Vec<StreamInfo>, bool), Error> {
        let read = |frame: &SharedFrame| {
            let wire::StreamList { more, streams } = reply_of(frame)?;
            Ok((streams.iter().collect(), more))
        };
        self.request(How::READ, wire::ListStreams { after, limit }, read).await
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

    /// Id of the stream, which commits use.
    pub async fn id(&self) -> Result<StreamId, Error> {
        self.0.id().await.map(StreamId)
    }

    /// Creates the stream unless it exists. Returns true if this call created it.
    pub async fn create_if_missing(&self, config: &StreamConfig) -> Result<bool, Error> {
        self.0.create(|out| encode_create_stream(out, self.name(), config)).await
    }

    /// Returns the description of the stream.
    pub async fn describe(&self) -> Result<StreamInfo, Error> {
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::StreamFound>(frame)?.stream);
        self.client().request(How::READ, wire::FindStream { name: self.name() }, read).await
    }

    /// Replaces the configuration.
    pub async fn configure(&self, config: &StreamConfig) -> Result<(), Error> {
        self.command(|out, stream| encode_configure_stream(out, stream, config)).await
    }

    /// Removes all records before an offset.
    pub async fn trim(&self, before: Offset) -> Result<(), Error> {
        self.command(|out, stream| encode_trim_stream(out, stream, before)).await
    }

    /// Deletes the stream and everything in it.
    pub async fn delete(&self) -> Result<(), Error> {
        let id = self.id().await?;
        let deleted = self.command(encode_delete_stream).await;
        self.0.forget(id.0);
        deleted
    }

    async fn command(&self, encode: impl Fn(&mut Vec<u8>, StreamId)) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode(out, StreamId(id));
            Ok(())
        };
        self.0.write(Repeat::IfNothing, encode, done).await.map(drop)
    }

    /// Appends one record.
    pub async fn append(&self, record: &Record<'_>) -> Result<Appended, Error> {
        let mut batch = RecordBatch::new();
        batch.push(record)?;
        self.append_batch(&batch, ExpectedOffset::Any).await
    }

    /// Appends records, all or none. Fails with `offset_conflict` unless the stream's next offset is as expected. If
    /// the effect is unknown, the client does not retry; use a producer for that.
    pub async fn append_batch(&self, batch: &RecordBatch, expected: ExpectedOffset) -> Result<Appended, Error> {
        self.append_with(batch, &expected.into()).await
    }

    /// Appends records with any terms. The client retries appends of a producer even if their effect is unknown,
    /// because the server detects repetitions.
    pub async fn append_with(&self, batch: &RecordBatch, terms: &AppendTerms<'_>) -> Result<Appended, Error> {
        if batch.is_empty() {
            return Err(Invalid::NoRecords.into());
        }
        let repeat = if terms.producer.is_some() { Repeat::Harmless } else { Repeat::IfNothing };
        let encode = |out: &mut Vec<u8>, id| encode_append_with(out, StreamId(id), terms, batch);
        let appended = self.0.write(repeat, encode, appended).await?;
        let count = if appended.count == 0 { batch.count() } else { appended.count };
        Ok(Appended { count, ..appended })
    }

    /// Opens a producer and returns its new epoch, which is above all its earlier ones. Clients that use an earlier
    /// epoch are fenced.
    pub async fn open_producer(&self, producer: &str) -> Result<u32, Error> {
        let encode = |out: &mut Vec<u8>, id| encode_open_producer(out, StreamId(id), producer);
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerOpened>(frame)?.epoch);
        self.0.write(Repeat::Harmless, encode, read).await
    }

    /// Returns the producers that the stream remembers, or only the one with the given id.
    pub async fn producers(&self, producer: Option<&str>) -> Result<Vec<ProducerInfo>, Error> {
        let list = |id| wire::ListProducers { stream: StreamId(id), producer: producer.unwrap_or_default() };
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerList<'_>>(frame)?.producers.iter().collect());
        self.0.request(How::READ, list, read).await
    }

    /// Reads at most `max_records` records and about `max_bytes` bytes from a position on (0 selects the server's
    /// defaults). At the end of the stream the result is empty.
    pub async fn read(&self, from: Position, max_records: u32, max_bytes: u32) -> Result<Records, Error> {
        let read = |id| wire::Read { stream: StreamId(id), from: from.clone(), max_records, max_bytes };
        let records = |frame: &SharedFrame| {
            let wire::Records { durability, next, high_watermark, runs } = reply_of(frame)?;
            Records::new(frame, std::iter::once((0, runs)), durability, next, high_watermark)
        };
        self.0.request(How::READ, read, records).await
    }

    /// Returns the first offset whose record is not older than `time`.
    pub async fn find_offset(&self, time: SpaceTime) -> Result<Offset, Error> {
        let read = |frame: &SharedFrame| Ok(reply_of::<wire::OffsetFound>(frame)?.offset);
        self.0.request(How::READ, |id| wire::FindOffset { stream: StreamId(id), time }, read).await
    }

    /// Subscribes to the existing records from a position on and then to new ones, without gaps or duplicates. The
    /// tail resumes after a lost connection.
    pub async fn tail(&self, from: Position) -> Result<Tail, Error> {
        self.tail_with(from, self.client().options().window).await
    }

    /// Like [`tail`](Self::tail), with a window of its own.
    pub async fn tail_with(&self, from: Position, window: Window) -> Result<Tail, Error> {
        let source = |id| TailSource { stream: StreamId(id), from: from.clone() };
        let feed = self.0.with_id(|id| Feed::begin(self.client(), window, source(id))).await?;
        Ok(Tail { feed, cursor: Cursor::default() })
    }
}

#[derive(Debug)]
struct TailSource {
    stream: StreamId,
    from: Position,
}

impl Source for TailSource {
    fn request(&self, out: &mut Vec<u8>, id: u32, permit: Permit) -> Result<(), Invalid> {
        Ok(wire::Tail { stream: self.stream, from: self.from.clone(), permit }.encode(out, id)?)
    }

    fn begun(&mut self, frame: &SharedFrame) -> Result<(), Error> {
        let wire::Tailing { next, .. } = reply_of(frame)?;
        self.from = Position::Offset { offset: next };
        Ok(())
    }
}

/// Records of a stream as they arrive. The tail resumes after a lost connection. It returns only errors that a retry
/// does not help against, such as `trimmed`.
#[derive(Debug)]
pub struct Tail {
    feed: Feed<TailSource>,
    cursor: Cursor,
}

impl Tail {
    /// Waits for the next records that arrived together; `None` if the tail has ended. Cancel safe.
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

    /// Waits for the next record; `None` if the tail has ended. Cancel safe. Do not mix it with
    /// [`next_batch`](Self::next_batch), which skips the remaining records of the current batch.
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

    /// Waits at most `patience` for the next record; `None` if none has arrived or the tail has ended.
    pub async fn next_within(&mut self, patience: Duration) -> Result<Option<OwnedRecord>, Error> {
        tokio::time::timeout(patience, self.next()).await.unwrap_or(Ok(None))
    }

    /// Position from which a later tail continues after the last batch that this one has returned.
    #[must_use]
    pub fn position(&self) -> Position {
        self.feed.source.from.clone()
    }
}
