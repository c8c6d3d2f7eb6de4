//! Encodes the operations of load threads on streams, groups and subjects for the tasks that perform them over NATS,
//! and decodes the replies.
//!
//! Owns: the requests and replies of the operations, and the sockets to the tasks. Does not own: the tasks (`session`,
//! `pushes`), or the check of the records in a reply ([`crate::feeds::Feed`]).

use std::{
    borrow::Cow,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tokio::net::UnixStream;

use super::{
    frames::{
        ACCEPTED, DONE, LENGTH_BYTES, MESSAGE, Operation, REFUSED, Reply, frame, put_frame, put_request, put_text,
    },
    names::Names,
    pushes::Pushes,
    server::{ConnectedClient, NatsServer},
    session::Session,
    stream::{self, StreamSession, StreamStorage},
};
use crate::{
    BenchError, Connection,
    feeds::{
        Arrived, FeedContent, FeedParts, FeedProtocol, FeedRecord, FeedSizes, FeedStep, Numbers, Positions, Reader,
        Subscription, Texts,
    },
    pairs::{Answer, Codec, Content, shown},
};

const NO_KEYS: &str = "the suite refuses operations on keys over NATS";

/// Encodes the requests of a run to its stream, consumer group and subject on a NATS server, opens connections to that
/// server, and decodes the replies. The group is a durable consumer of the stream.
#[derive(Clone, Debug)]
pub struct NatsFeed {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    server: NatsServer,
    names: Names,
    parts: FeedParts,
    /// Durability of the stream's records in words; empty if the benchmark run uses no stream.
    durability: String,
    /// Number of the connection that sent each publish, by the number of the publish.
    publishers: Arc<Numbers>,
    /// Number of connections that were opened so far.
    connections: AtomicU64,
}

impl NatsFeed {
    /// Creates the stream and its consumer, if the benchmark run uses them. Their names begin with `name`.
    pub fn create(
        server: NatsServer,
        name: &str,
        storage: StreamStorage,
        parts: FeedParts,
    ) -> Result<Self, BenchError> {
        let (names, url) = (Names::new(name), server.url());
        let created = server.run({
            let names = names.clone();
            async move {
                let client = ConnectedClient::open(&url).await?.client;
                if parts.stream { stream::create(client, &names, storage, parts).await } else { Ok(String::new()) }
            }
        });
        let durability = created.map_err(BenchError::target(&server.name))?;
        let (publishers, connections) = (Arc::default(), AtomicU64::new(0));
        Ok(Self { shared: Arc::new(Shared { server, names, parts, durability, publishers, connections }) })
    }

    /// Starts a task that performs requests, and opens a connection to it.
    fn open(&self) -> Result<Connection, String> {
        let (own, other) = to_thread()?;
        let Shared { server, names, parts, publishers, connections, .. } = &*self.shared;
        let (url, names, parts, publishers) = (server.url(), names.clone(), *parts, Arc::clone(publishers));
        let publisher = connections.fetch_add(1, Ordering::Relaxed) + 1;
        server.run(async move {
            let client = ConnectedClient::open(&url).await?;
            let stream = if parts.stream { Some(StreamSession::open(&client, &names, parts).await?) } else { None };
            let local = UnixStream::from_std(other).map_err(|error| error.to_string())?;
            tokio::spawn(Session { client, names, publisher, publishers, stream }.serve(local));
            Ok(())
        })?;
        Ok(own)
    }

    /// Starts a task that passes on the messages of the subject, and opens a connection to it.
    fn open_subscription(&self) -> Result<Connection, String> {
        let (own, other) = to_thread()?;
        let (url, names) = (self.shared.server.url(), self.shared.names.clone());
        self.shared.server.run(async move {
            let client = ConnectedClient::open(&url).await?;
            let subscriber = client.client.subscribe(names.messages).await.map_err(|error| error.to_string())?;
            let local = UnixStream::from_std(other).map_err(|error| error.to_string())?;
            tokio::spawn(Pushes { client, subscriber, nobody: names.nobody }.serve(local));
            Ok(())
        })?;
        Ok(own)
    }
}

/// Creates a connection over a pair of sockets. Returns the connection, and the socket of the task at the other end.
/// Both sockets are non-blocking.
fn to_thread() -> Result<(Connection, std::os::unix::net::UnixStream), String> {
    let (own, other) = Connection::to_thread().map_err(|error| error.to_string())?;
    own.socket().set_nonblocking(true).map_err(|error| error.to_string())?;
    Ok((own, other))
}

impl Codec for NatsFeed {
    const PIPELINE: usize = 1;

    fn connect(&self) -> Result<Connection, BenchError> {
        self.open().map_err(BenchError::target(&self.shared.server.name))
    }

    fn put(&self, _: u64, _: [&[u8]; 2], _: &mut Vec<u8>) {
        unreachable!("{NO_KEYS}");
    }

    fn get(&self, _: u64, _: &mut Vec<u8>) {
        unreachable!("{NO_KEYS}");
    }

    fn delete(&self, _: u64, _: &mut Vec<u8>) {
        unreachable!("{NO_KEYS}");
    }

    fn scan(&self, _: u64, _: u64, _: u32, _: &mut Vec<u8>) {
        unreachable!("{NO_KEYS}");
    }

    fn decode<'a>(&self, _: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        unreachable!("{NO_KEYS}");
    }
}

impl FeedProtocol for NatsFeed {
    /// Returns ids as the kind of a record's position. The stream's sequence numbers have no gaps, but the records of
    /// one append need not be adjacent.
    fn positions(&self) -> Positions {
        Positions::Ids
    }

    fn encode(&self, step: FeedStep, sizes: &FeedSizes, texts: &Texts<'_>, out: &mut Vec<u8>) {
        let (operation, number, limit) = match step {
            FeedStep::Publish(number) => (Operation::Publish, number, 0),
            FeedStep::Append(_) => (Operation::Append, 0, 0),
            FeedStep::Read { from, floor, reader: Reader::Whole } => {
                (Operation::Read, from, u32::try_from(floor.saturating_sub(from)).unwrap_or(u32::MAX))
            }
            FeedStep::Read { from, .. } => (Operation::Read, from, sizes.read_records),
            FeedStep::Fetch => (Operation::Fetch, 0, sizes.fetch_records),
            FeedStep::Ack { attempt, .. } => (Operation::Ack, attempt, 0),
        };
        put_frame(out, |out| {
            put_request(out, operation, number, limit);
            texts.each(|text| put_text(out, text));
        });
    }

    fn decode<'a>(&self, _: FeedStep, _: &FeedSizes, bytes: &'a [u8]) -> Result<Option<Answer<'a>>, String> {
        let Some(content) = frame(bytes) else { return Ok(None) };
        let bytes = LENGTH_BYTES + content.len();
        let content = match content.split_first() {
            Some((&DONE, reply)) => Content::Value(Cow::Borrowed(reply)),
            Some((&REFUSED, message)) => Content::Refused(shown(message)),
            _ => return Err("the reply is malformed".to_owned()),
        };
        Ok(Some(Answer { bytes, closes: false, content }))
    }

    fn read(
        &self,
        step: FeedStep,
        content: &[u8],
        each: &mut dyn FnMut(FeedRecord<'_>),
    ) -> Result<FeedContent, String> {
        let Reply { number, records } = Reply::decode(content).ok_or_else(|| "the reply is malformed".to_owned())?;
        let has_payload = !matches!(step, FeedStep::Append(_));
        for record in &records {
            let payload = has_payload.then_some(&record.payload[..]);
            each(FeedRecord { position: record.position, deliveries: record.deliveries, payload });
        }
        Ok(match step {
            FeedStep::Append(_) | FeedStep::Read { .. } => FeedContent::Records,
            FeedStep::Fetch => FeedContent::Fetched { attempt: Some(number).filter(|number| *number > 0) },
            FeedStep::Ack { .. } => FeedContent::Settled(number),
            FeedStep::Publish(_) => FeedContent::Published { messages: Some(number), missed: 0 },
        })
    }

    fn level(&self, _: &[u8]) -> Option<String> {
        Some(self.shared.durability.clone())
    }

    fn publisher(&self, publish: u64) -> Option<u64> {
        Some(self.shared.publishers.get(publish))
    }

    fn subscribe(&self) -> Result<Box<dyn Subscription>, BenchError> {
        let opened = self.open_subscription().map_err(BenchError::target(&self.shared.server.name));
        Ok(Box::new(NatsSubscription { connection: opened? }))
    }

    fn remove(&self) {
        let Shared { server, names, parts, .. } = &*self.shared;
        if parts.stream {
            let (url, names) = (server.url(), names.clone());
            let _ = server.run(async move { stream::delete(ConnectedClient::open(&url).await?.client, &names).await });
        }
    }
}

struct NatsSubscription {
    connection: Connection,
}

impl Subscription for NatsSubscription {
    fn connection(&mut self) -> &mut Connection {
        &mut self.connection
    }

    fn take(&mut self, each: &mut dyn FnMut(Arrived<'_>)) -> Result<(), String> {
        let (mut at, input) = (0, self.connection.input());
        while let Some(content) = frame(&input[at..]) {
            at += LENGTH_BYTES + content.len();
            match content.split_first() {
                Some((&ACCEPTED, _)) => each(Arrived::Accepted),
                Some((&MESSAGE, payload)) => each(Arrived::Message(Some(payload))),
                _ => return Err("the message is malformed".to_owned()),
            }
        }
        self.connection.consume(at);
        Ok(())
    }
}
