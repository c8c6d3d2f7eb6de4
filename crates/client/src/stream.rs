//! Streams: create, append, read, tail.
//!
//! Owns: [`Stream`] and [`Tail`]. Does not own appending in the background: [`StreamPublisher`](crate::StreamPublisher).

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

/// A stream by its name. Cheap to clone; asks for its id at the first use.
#[derive(Clone, Debug)]
pub struct Stream(Arc<Named>);

/// What there is to know about a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamInfo {
    /// Its id.
    pub id: StreamId,
    /// Its name.
    pub name: String,
    /// Oldest offset kept.
    pub start: Offset,
    /// Next to assign.
    pub next: Offset,
    /// Encoded bytes of what is kept.
    pub bytes: u64,
    /// When the last record was appended; 0: never.
    pub last_time: SpaceTime,
    /// What it keeps.
    pub config: StreamConfig,
}

/// A producer that a stream knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducerInfo {
    /// Its id.
    pub id: String,
    /// Its epoch.
    pub epoch: u32,
    /// What comes next in it.
    pub next_sequence: u64,
    /// When it last appended or was opened.
    pub last_time: SpaceTime,
}

impl Client {
    /// The stream of that name, whether there is one or not.
    #[must_use]
    pub fn stream(&self, name: impl Into<String>) -> Stream {
        Stream(Arc::new(Named::new(self.clone(), Name::Stream(name.into()))))
    }

    /// Streams by id, those after `after`; and whether there may be more.
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
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0.name {
            Name::Stream(name) => name,
            _ => unreachable!("a stream is made with its name"),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Its id, by which commits name it.
    pub async fn id(&self) -> Result<StreamId, Error> {
        if let Some(id) = self.0.known() {
            return Ok(StreamId(id));
        }
        let id = self.describe().await?.id;
        self.0.learn(id.0);
        Ok(id)
    }

    /// Creates it unless it exists; says whether it did.
    pub async fn create_if_missing(&self, config: &StreamConfig) -> Result<bool, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>| encode_create_stream(out, name, config);
        let (id, is_new) = self.client().write(Repeat::Harmless, encode, created).await?;
        self.0.learn(id);
        Ok(is_new)
    }

    /// What there is to know about it.
    pub async fn describe(&self) -> Result<StreamInfo, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::FindStream { name }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| Ok(info(reply_of::<wire::StreamFound<'_>>(frame)?.stream));
        self.client().call(How::READ, encode, read).await
    }

    /// Replaces its configuration.
    pub async fn configure(&self, config: &StreamConfig) -> Result<(), Error> {
        self.command(|id, out: &mut Vec<u8>| encode_configure_stream(out, id, config)).await
    }

    /// Forgets all records before an offset.
    pub async fn trim(&self, before: Offset) -> Result<(), Error> {
        self.command(|id, out: &mut Vec<u8>| encode_trim_stream(out, id, before)).await
    }

    /// Deletes it with everything in it.
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

    /// Appends records, all or none, if the stream's next offset is as expected (else: `wrong_offset`). Not repeated if
    /// it is unknown whether it happened: for that there are producers.
    pub async fn append_batch(&self, batch: &RecordBatch, expected: ExpectedOffset) -> Result<Appended, Error> {
        self.append_with(batch, &expected.into()).await
    }

    /// Appends records under any terms. Those of a producer are repeated if it is unknown whether it happened, since the
    /// server knows them.
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

    /// Opens a producer: gives it an epoch above all it ever had, which fences those who use it under a lower one.
    pub async fn open_producer(&self, producer: &str) -> Result<u32, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>| encode_open_producer(out, stream, producer);
            let read = |frame: &SharedFrame| Ok(reply_of::<wire::ProducerOpened>(frame)?.epoch);
            self.client().write(Repeat::Harmless, encode, read).await
        })
    }

    /// Producers that it knows, or only the one of that name.
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

    /// Reads records from a position on: at most so many, and about so many bytes (0: as the server likes). At the end there are none.
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

    /// The first offset whose record is not older than a time.
    pub async fn find_offset(&self, time: SpaceTime) -> Result<Offset, Error> {
        with_id!(self, MISSING, stream => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                fits(wire::FindOffset { stream, time }.encode_with(out, id, fields))
            };
            let read = |frame: &SharedFrame| Ok(reply_of::<wire::OffsetFound>(frame)?.offset);
            self.client().call(How::READ, encode, read).await
        })
    }

    /// What there is from a position on, and then what comes, without gap or duplicate, over lost connections too.
    pub async fn tail(&self, from: Position) -> Result<Tail, Error> {
        self.tail_with(from, self.client().options().window).await
    }

    /// The same with a window of its own.
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

/// A stream's records as they come. After a lost connection it goes on where it was; errors are those that begin again
/// does not help against, such as `trimmed`.
#[derive(Debug)]
pub struct Tail {
    feed: Feed<TailSource>,
    cursor: Cursor,
}

impl Tail {
    /// The next records, as they came together; `None`: it has ended. Cancel safe.
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

    /// The next record; `None`: it has ended. Cancel safe. Not to be mixed with [`next_batch`](Self::next_batch), which
    /// does not give what is left of the batch that this one is in.
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

    /// The next record, unless none comes within `patience`.
    pub async fn next_within(&mut self, patience: Duration) -> Result<Option<OwnedRecord>, Error> {
        tokio::time::timeout(patience, self.next()).await.unwrap_or(Ok(None))
    }

    /// From here a later tail goes on after the last batch that this one has given.
    #[must_use]
    pub fn position(&self) -> Position {
        self.feed.source.from.clone()
    }
}
