//! The connection of a command to a node: to a server, or to a directory that this process opens.
//!
//! Commands reach both through the HTTP API. For a directory, the router of the API runs in this process
//! ([`directory`]). So each request is written only once, and behaves in the same way for both.
//!
//! Owns: the requests of commands, with their paths, headers and bodies, and the interpretation of replies and
//! failures. Does not own: command-line options and output (`commands`), and the behaviour of the API (`thalweg_http`).
//!
//! ```text
//! kv  keyspaces  streams  groups  leases  caches  subjects  watch  snapshot  node  cluster   requests by subject
//!          │             coordination │         record │        events │
//!          └──────────────────────────┴── Session ─────┴───────────────┘
//!                                           http                                     one exchange, its failures
//!                                         directory                                  the API over an open directory
//! ```

mod caches;
mod cluster;
mod coordination;
mod directory;
mod events;
mod groups;
mod http;
mod keyspaces;
mod kv;
mod leases;
mod node;
mod record;
mod refusal;
mod snapshot;
mod streams;
mod subjects;
mod watch;

use std::time::Duration;

use serde::de::DeserializeOwned;
use serde_json::Value;
use thalweg_types::Durability;

use self::{
    directory::Directory,
    http::{Http, Reply, RequestBuilder},
};
use crate::{
    args::{ServerArgs, TargetArgs},
    failure::Failure,
};

pub(crate) use self::{
    caches::Entry,
    cluster::EventsFrom,
    coordination::{Coordination, of_recipe},
    directory::Access,
    groups::{GroupCall, PushRequest},
    kv::{Expected, Pair, PutTerms, ScanQuery, Written},
    record::{Record, StreamRecord},
    snapshot::{PartialFile, SnapshotRequest},
    streams::{Appended, ProducerReply, StreamReply},
    subjects::{Message, Published, SubscribeQuery, SubscriptionEvent},
    watch::{Change, WatchKeys, WatchQuery},
};

/// Connection of one command to a node. The command makes its requests through it.
pub(crate) struct Session {
    http: Http,
    /// Durability level that the user requests; `None` for the node's default.
    durability: Option<Durability>,
    /// Time for which the command waits for a reply.
    timeout: Duration,
}

impl Session {
    /// Opens the directory, or prepares the connection to the server, which the options of the command name.
    pub(crate) fn open(place: &TargetArgs, access: Access) -> Result<Self, Failure> {
        let http = match &place.data {
            Some(data) => Http::directory(Directory::open(data, access, place.durability)?),
            None => Http::server(&place.url(), place.timeout)?,
        };
        Ok(Self { http, durability: place.durability, timeout: place.timeout })
    }

    /// Opens a node, calls `work`, and closes the node. If both `work` and the closing fail, returns the failure of
    /// `work`.
    pub(crate) fn with<T>(
        place: &TargetArgs,
        access: Access,
        work: impl FnOnce(&Self) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let session = Self::open(place, access)?;
        let done = work(&session);
        let closed = session.close();
        let done = done?;
        closed?;
        Ok(done)
    }

    /// Prepares the connection to a server, for requests that a directory cannot serve.
    pub(crate) fn of_server(place: &ServerArgs) -> Result<Self, Failure> {
        Ok(Self { http: Http::server(&place.url(), place.timeout)?, durability: None, timeout: place.timeout })
    }

    /// Closes the node. If it is a directory, flushes its state, so that it opens fast the next time.
    pub(crate) fn close(&self) -> Result<(), Failure> {
        self.http.opened_directory().map_or(Ok(()), Directory::close)
    }

    /// Sends a write with the durability level that the user requests.
    fn write(&self, ask: RequestBuilder<'_>) -> Result<Reply, Failure> {
        self.http.ask(match self.durability {
            Some(level) => ask.header("thalweg-durability", level.name()),
            None => ask,
        })
    }

    /// Sends a write, and returns the JSON of its reply.
    fn write_json<T: DeserializeOwned>(&self, ask: RequestBuilder<'_>) -> Result<T, Failure> {
        self.http.parse(&self.write(ask)?.body)
    }

    /// Returns all items of a list that the node returns in pages. `path` must include a query; the cursor of each
    /// further page is added to this query.
    fn list(&self, path: &str, field: &str) -> Result<Vec<Value>, Failure> {
        let (mut items, mut cursor) = (Vec::new(), String::new());
        loop {
            let mut page: Value = self.http.json(RequestBuilder::get(format!("{path}{cursor}")))?;
            match page[field].take() {
                Value::Array(listed) => items.extend(listed),
                _ => return Err(self.http.unexpected_reply(&format!("the reply has no list of {field}"))),
            }
            cursor = match &page["cursor"] {
                Value::Null => return Ok(items),
                Value::String(next) => format!("&cursor={next}"),
                next => format!("&cursor={next}"),
            };
        }
    }
}
