//! Objects that handles identify by name and requests by id: keyspaces, streams and groups.
//!
//! Owns: the lookup of an id at the first use, the requests that carry it, and a second lookup if the server no longer
//! has that id. Does not own caches, whose ids end with a run of the server.

use std::sync::atomic::{AtomicU64, Ordering};

use thalweg_types::{StreamId, command::CommandError};
use thalweg_wire::{self as wire, Count, Frame, SharedFrame};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::Error,
    names::Name,
    request::reply_of,
    write::created,
};

const UNKNOWN: u64 = u64::MAX;

/// Name of an object on the server, with the object's id once it is known. All clones of a handle share this
/// value.
#[derive(Debug)]
pub(crate) struct NamedObject {
    pub client: Client,
    pub name: Name,
    id: AtomicU64,
}

impl NamedObject {
    pub(crate) fn new(client: Client, name: Name) -> Self {
        Self { client, name, id: AtomicU64::new(UNKNOWN) }
    }

    /// Returns the id, and requests it from the server if it is unknown.
    pub(crate) async fn id(&self) -> Result<u32, Error> {
        if let Some(id) = self.cached_id() {
            return Ok(id);
        }
        let id = self.look_up().await?;
        self.store_id(id);
        Ok(id)
    }

    /// Returns the id if it has been looked up.
    fn cached_id(&self) -> Option<u32> {
        if let Ok(id) = u32::try_from(self.id.load(Ordering::Relaxed)) {
            return Some(id);
        }
        let id = self.client.names().get(&self.name)?;
        self.id.store(id.into(), Ordering::Relaxed);
        Some(id)
    }

    async fn look_up(&self) -> Result<u32, Error> {
        let client = &self.client;
        match &self.name {
            Name::Keyspace(name) => {
                let read = |frame: &SharedFrame| Ok(reply_of::<wire::KeyspaceFound>(frame)?.keyspace.id.0);
                client.request(RequestOptions::READ, wire::FindKeyspace { count: Count::Skip, name }, read).await
            }
            Name::Stream(name) => {
                let read = |frame: &SharedFrame| Ok(reply_of::<wire::StreamFound>(frame)?.stream.id.0);
                client.request(RequestOptions::READ, wire::FindStream { name }, read).await
            }
            Name::Group(stream, name) => {
                let read = |frame: &SharedFrame| Ok(reply_of::<wire::GroupFound>(frame)?.group.id.0);
                client.request(RequestOptions::READ, wire::FindGroup { stream: StreamId(*stream), name }, read).await
            }
            Name::Cache(..) => unreachable!("a cache looks up its own id"),
        }
    }

    pub(crate) fn store_id(&self, id: u32) {
        self.id.store(id.into(), Ordering::Relaxed);
        self.client.names().put(self.name.clone(), id);
    }

    pub(crate) fn forget(&self, id: u32) {
        let _ = self.id.compare_exchange(id.into(), UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
        self.client.names().forget(&self.name, id);
    }

    /// Calls `ask` with the object's id. If the server no longer has that id, looks up the object's name
    /// again and retries once.
    pub(crate) async fn with_id<A, R>(&self, ask: impl Fn(u32) -> A) -> Result<R, Error>
    where
        A: Future<Output = Result<R, Error>>,
    {
        let id = self.id().await?;
        match ask(id).await {
            Err(error) if error.is(self.name.missing()) => {
                self.forget(id);
                ask(self.id().await?).await
            }
            answer => answer,
        }
    }

    /// Sends the request that `frame` makes from the object's id; `read` decodes the reply.
    pub(crate) async fn request<'f, F: Frame<'f>, R>(
        &self,
        how: RequestOptions,
        frame: impl Fn(u32) -> F,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.with_id(|id| self.client.request(how, frame(id), &read)).await
    }

    /// Sends the command that `encode` writes from the object's id; `read` decodes the reply.
    pub(crate) async fn write<R>(
        &self,
        repeat: RetrySafety,
        encode: impl Fn(&mut Vec<u8>, u32) -> Result<(), CommandError>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let encode = &encode;
        self.with_id(|id| self.client.write(repeat, move |out: &mut Vec<u8>| encode(out, id), &read)).await
    }

    /// Sends a command that creates the object unless it exists. Returns true if the command created it.
    pub(crate) async fn create(
        &self,
        encode: impl Fn(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<bool, Error> {
        let (id, is_new) = self.client.write(RetrySafety::Harmless, encode, created).await?;
        self.store_id(id);
        Ok(is_new)
    }
}
