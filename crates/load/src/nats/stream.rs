//! A run's JetStream stream and its consumer, over one connection.
//!
//! Owns: creating them, and the requests to them. The position of a record is its sequence number in the stream. These
//! numbers rise without gaps. But each record is published on its own, so other records may lie between the records of
//! an append.

use std::collections::BTreeMap;

use async_nats::{
    Client, Message, StatusCode, Subject, Subscriber,
    jetstream::{
        self, Context,
        consumer::{AckPolicy, PullConsumer, pull},
        stream::{Config, PersistenceMode, StorageType},
    },
};
use bytes::Bytes;
use futures_util::{StreamExt as _, future::join_all};

use super::{
    frames::{Record, Reply},
    names::Names,
    server::ConnectedClient,
};
use crate::feeds::FeedParts;

/// Maximum number of unacknowledged records, so that many connections can fetch at the same time.
const MAX_ACK_PENDING: i64 = 100_000;
/// Maximum number of fetches at the same time, equal to the maximum number of connections of a scenario.
const MAX_WAITING: i64 = 20_000;
/// Maximum number of records of one direct get. A read of more records consists of several direct gets.
const MAX_PAGE: u32 = 1000;
/// Status of the message that ends the records of a direct get.
const END_OF_PAGE: u16 = 204;

/// Medium on which the server stores a stream's records.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum StreamStorage {
    /// The server stores the records in files.
    #[default]
    File,
    /// The server stores the records in its memory.
    Memory,
}

/// Creates the stream and, if the benchmark run uses a group, its consumer. Returns the durability of the stream in
/// words.
pub(super) async fn create(
    client: Client,
    names: &Names,
    storage: StreamStorage,
    parts: FeedParts,
) -> Result<String, String> {
    if !client.is_server_compatible(2, 11, 0) {
        let version = client.server_info().version;
        return Err(format!("reads of many records need NATS 2.11 or later, and this is {version}"));
    }
    let config = Config {
        name: names.stream.clone(),
        subjects: vec![names.records.to_string()],
        storage: match storage {
            StreamStorage::File => StorageType::File,
            StreamStorage::Memory => StorageType::Memory,
        },
        num_replicas: 1,
        allow_direct: true,
        ..Config::default()
    };
    let created = jetstream::new(client).create_stream(config).await;
    let stream = created.map_err(|error| format!("creating the stream: {error}"))?;
    if parts.group {
        let config = pull::Config {
            durable_name: Some(names.stream.clone()),
            ack_policy: AckPolicy::Explicit,
            max_ack_pending: MAX_ACK_PENDING,
            max_waiting: MAX_WAITING,
            ..pull::Config::default()
        };
        let created = stream.create_consumer(config).await;
        created.map_err(|error| format!("creating the consumer: {error}"))?;
    }
    Ok(durability(&stream.cached_info().config))
}

/// Describes the durability of a stream's records at the time of their acknowledgement, as far as clients can see it.
fn durability(config: &Config) -> String {
    match (config.storage, config.persist_mode) {
        (StorageType::Memory, _) => "none: JetStream in memory".to_owned(),
        (StorageType::File, Some(PersistenceMode::Async)) => {
            "none at the ack: JetStream in files with persist_mode async".to_owned()
        }
        (StorageType::File, _) => "JetStream in files, synced as the server's sync_interval says".to_owned(),
    }
}

/// Deletes the stream with its consumer.
pub(super) async fn delete(client: Client, names: &Names) -> Result<(), String> {
    let deleted = jetstream::new(client).delete_stream(&names.stream).await;
    deleted.map(|_| ()).map_err(|error| error.to_string())
}

/// Requests of one connection to the stream and its consumer.
pub(super) struct StreamSession {
    client: Client,
    context: Context,
    /// Subject to which the records of the stream are published.
    records: Subject,
    /// Subject to which direct gets are sent.
    direct: Subject,
    /// Subject to which the server sends the records of direct gets.
    inbox: Subject,
    /// Subscription to `inbox`, which receives the records of direct gets.
    page: Subscriber,
    consumer: Option<PullConsumer>,
    /// For each fetch that is not acknowledged yet, by its number: the subjects to which the acks of its records are
    /// sent.
    fetched: BTreeMap<u64, Vec<Subject>>,
    fetches: u64,
}

impl StreamSession {
    /// Prepares a connection for requests to the stream.
    pub(super) async fn open(connected: &ConnectedClient, names: &Names, parts: FeedParts) -> Result<Self, String> {
        let client = connected.client.clone();
        let (context, inbox) = (jetstream::new(client.clone()), Subject::from(client.new_inbox()));
        let page = client.subscribe(inbox.clone()).await.map_err(|error| error.to_string())?;
        let consumer = match parts.group {
            true => {
                let found = context.get_consumer_from_stream(&names.stream, &names.stream).await;
                Some(found.map_err(|error| format!("finding the consumer: {error}"))?)
            }
            false => None,
        };
        let direct = Subject::from(format!("$JS.API.DIRECT.GET.{}", names.stream));
        let records = names.records.clone();
        Ok(Self { client, context, records, direct, inbox, page, consumer, fetched: BTreeMap::new(), fetches: 0 })
    }

    /// Appends records and waits for the acks of all of them. Returns their positions.
    pub(super) async fn append(&mut self, texts: Vec<Bytes>) -> Result<Reply, String> {
        let mut acks = Vec::with_capacity(texts.len());
        for text in texts {
            let sent = self.context.publish(self.records.clone(), text).await;
            acks.push(sent.map_err(|error| error.to_string())?);
        }
        let mut records = Vec::with_capacity(acks.len());
        for ack in acks {
            let ack = ack.await.map_err(|error| error.to_string())?;
            records.push(Record { position: ack.sequence, deliveries: 1, payload: Bytes::new() });
        }
        Ok(Reply { number: records.len() as u64, records })
    }

    /// Reads at most `limit` records after the position `from`.
    pub(super) async fn read(&mut self, from: u64, limit: u32) -> Result<Reply, String> {
        let (mut records, mut from, mut left) = (Vec::new(), from, limit);
        while left > 0 {
            let (found, next) = self.read_page(from, left.min(MAX_PAGE)).await?;
            left = left.saturating_sub(u32::try_from(found.len()).unwrap_or(u32::MAX));
            records.extend(found);
            match next {
                Some(next) => from = next,
                None => break,
            }
        }
        Ok(Reply { number: records.len() as u64, records })
    }

    /// Reads at most `limit` records after the position `from`. The server also limits the bytes of a reply, so it may
    /// return fewer. If the stream has further records, also returns the position of the last record that was read.
    async fn read_page(&mut self, from: u64, limit: u32) -> Result<(Vec<Record>, Option<u64>), String> {
        let wanted = format!("{{\"seq\":{},\"batch\":{limit}}}", from.saturating_add(1));
        let sent = self.client.publish_with_reply(self.direct.clone(), self.inbox.clone(), wanted.into()).await;
        sent.map_err(|error| error.to_string())?;
        let mut records: Vec<Record> = Vec::new();
        loop {
            let Some(message) = self.page.next().await else { return Err("the subscription has ended".to_owned()) };
            match message.status {
                None | Some(StatusCode::OK) => {
                    let position = number_of(&message, "Nats-Sequence");
                    let position = position.ok_or_else(|| "a record without a sequence number".to_owned())?;
                    records.push(Record { position, deliveries: 1, payload: message.payload });
                }
                Some(status) if status.as_u16() == END_OF_PAGE => {
                    let last = records.last().map(|record| record.position);
                    let has_more = number_of(&message, "Nats-Num-Pending").is_some_and(|pending| pending > 0);
                    return Ok((records, last.filter(|_| has_more)));
                }
                // The stream has no record after `from`.
                Some(StatusCode::NOT_FOUND) => return Ok((records, None)),
                Some(status) => {
                    return Err(format!("status {status}: {}", message.description.unwrap_or_default()));
                }
            }
        }
    }

    /// Fetches at most `limit` records that the consumer can deliver now.
    pub(super) async fn fetch(&mut self, limit: u32) -> Result<Reply, String> {
        let consumer = self.consumer.as_ref().ok_or_else(|| "the run has no consumer".to_owned())?;
        let batch = consumer.fetch().max_messages(limit as usize).messages().await;
        let mut batch = batch.map_err(|error| error.to_string())?;
        let (mut records, mut acks) = (Vec::new(), Vec::new());
        while let Some(message) = batch.next().await {
            let message = message.map_err(|error| error.to_string())?;
            let info = message.info().map_err(|error| error.to_string())?;
            let (position, deliveries) = (info.stream_sequence, u64::try_from(info.delivered).unwrap_or(1));
            let Message { reply, payload, .. } = message.message;
            acks.push(reply.ok_or_else(|| "a record without a subject for its ack".to_owned())?);
            records.push(Record { position, deliveries, payload });
        }
        if records.is_empty() {
            return Ok(Reply::default());
        }
        self.fetches += 1;
        self.fetched.insert(self.fetches, acks);
        Ok(Reply { number: self.fetches, records })
    }

    /// Acknowledges the records of a fetch, and waits until the server has confirmed each ack. Returns the number of
    /// confirmed acks.
    pub(super) async fn ack(&mut self, fetch: u64) -> Result<Reply, String> {
        let subjects = self.fetched.remove(&fetch).unwrap_or_default();
        let acks = subjects.into_iter().map(|subject| self.client.request(subject, Bytes::from_static(b"+ACK")));
        let confirmed = join_all(acks).await.iter().filter(|ack| ack.is_ok()).count();
        Ok(Reply { number: confirmed as u64, records: Vec::new() })
    }
}

/// Parses the number in a header of a message; `None` if there is no such number.
fn number_of(message: &Message, header: &str) -> Option<u64> {
    message.headers.as_ref()?.get_last(header)?.as_str().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_durability_of_a_stream_is_named() {
        let of = |storage, persist_mode| durability(&Config { storage, persist_mode, ..Config::default() });
        assert_eq!(of(StorageType::Memory, None), "none: JetStream in memory");
        assert!(of(StorageType::File, None).starts_with("JetStream in files, synced"));
        assert!(of(StorageType::File, Some(PersistenceMode::Default)).starts_with("JetStream in files, synced"));
        assert!(of(StorageType::File, Some(PersistenceMode::Async)).starts_with("none at the ack"));
    }
}
