//! Objects that handles identify by name and requests by id: keyspaces, streams and groups.
//!
//! Owns: the lookup of an id at the first use, the requests that carry the id, and a second lookup if the server no
//! longer has this id or has other data. Does not own caches, because their ids are valid only until the server stops.
//!
//! Invariant: a request with an id is sent only to a server with the data to which the id belongs. The name of a group
//! contains the id of its stream. A handle of a group therefore sends no request at all to a server with other data,
//! not even a lookup of the group's id.

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

/// An id, and the number of the data set in which the id is valid. A data set is all data of a server; a restored
/// server has another one. The client numbers the data sets that it meets (`Directory::data`).
#[derive(Clone, Copy, Debug)]
pub(crate) struct KnownId {
    pub id: u32,
    pub data: u32,
}

/// Name of an object on the server, with the object's id once it is known. All clones of a handle share this
/// value.
#[derive(Debug)]
pub(crate) struct NamedObject {
    pub client: Client,
    pub name: Name,
    /// Number of the server's data set (see `Directory::data`) in which the name is valid, if the name contains the id
    /// of another object; `None` if the name is valid in all data sets.
    name_data: Option<u32>,
    /// Id of the object in the lower 32 bits, and the number of the server's data set (see `Directory::data`) in which
    /// the id is valid in the upper 32 bits; `UNKNOWN` if the id is not known.
    id: AtomicU64,
}

impl NamedObject {
    pub(crate) fn new(client: Client, name: Name) -> Self {
        Self { client, name, name_data: None, id: AtomicU64::new(UNKNOWN) }
    }

    /// Returns an object with a name that contains the id of this object. For example, the name of a group contains the
    /// id of its stream.
    pub(crate) async fn child(&self, name: impl FnOnce(u32) -> Name) -> Result<Self, Error> {
        let KnownId { id, data } = self.known_id().await?;
        Ok(Self { name_data: Some(data), ..Self::new(self.client.clone(), name(id)) })
    }

    /// Returns the options of a request that identifies the object by its name.
    pub(crate) fn by_name(&self, how: RequestOptions) -> RequestOptions {
        RequestOptions { data: self.name_data, ..how }
    }

    /// Returns the id, and requests it from the server if it is unknown.
    pub(crate) async fn id(&self) -> Result<u32, Error> {
        self.known_id().await.map(|known| known.id)
    }

    async fn known_id(&self) -> Result<KnownId, Error> {
        // The number is read before the lookup. If a server with other data answers, the id is stored with the old
        // number, and is never used.
        let data = self.client.directory().data();
        if self.name_data.is_some_and(|named| named != data) {
            return Err(Error::OtherData);
        }
        let id = match self.cached_id(data) {
            Some(id) => id,
            None => {
                let id = self.look_up().await?;
                self.store_id(id, data);
                id
            }
        };
        Ok(KnownId { id, data })
    }

    /// Returns the id if the client has looked it up in the server's data set number `data` (see `Directory::data`);
    /// otherwise `None`.
    fn cached_id(&self, data: u32) -> Option<u32> {
        let stored = self.id.load(Ordering::Relaxed);
        if stored != UNKNOWN && (stored >> 32) as u32 == data {
            return Some(stored as u32);
        }
        let id = self.client.names().get(&self.name, data)?;
        self.id.store(packed(id, data), Ordering::Relaxed);
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
                let how = self.by_name(RequestOptions::READ);
                client.request(how, wire::FindGroup { stream: StreamId(*stream), name }, read).await
            }
            Name::Cache(..) => unreachable!("a cache looks up its own id"),
        }
    }

    fn store_id(&self, id: u32, data: u32) {
        self.id.store(packed(id, data), Ordering::Relaxed);
        self.client.names().put(self.name.clone(), id, data);
    }

    pub(crate) fn forget(&self, id: u32) {
        let stored = self.id.load(Ordering::Relaxed);
        if stored as u32 == id {
            let _ = self.id.compare_exchange(stored, UNKNOWN, Ordering::Relaxed, Ordering::Relaxed);
        }
        self.client.names().forget(&self.name, id);
    }

    /// Calls `ask` with the object's id. If the server no longer has that id, or has other data, looks up the object's
    /// name again and retries once.
    pub(crate) async fn with_id<A, R>(&self, ask: impl Fn(KnownId) -> A) -> Result<R, Error>
    where
        A: Future<Output = Result<R, Error>>,
    {
        let known = self.known_id().await?;
        match ask(known).await {
            Err(error) if error.is(self.name.missing()) || matches!(error, Error::OtherData) => {
                self.forget(known.id);
                ask(self.known_id().await?).await
            }
            answer => answer,
        }
    }

    /// Sends a request that carries the object's id. `frame` makes the request from the id, and `read` decodes the
    /// reply.
    pub(crate) async fn request<'f, F: Frame<'f>, R>(
        &self,
        how: RequestOptions,
        frame: impl Fn(u32) -> F,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        self.with_id(|KnownId { id, data }| {
            let how = RequestOptions { data: Some(data), ..how };
            self.client.request(how, frame(id), &read)
        })
        .await
    }

    /// Sends a write command that carries the object's id. `encode` writes the command, and `read` decodes the reply.
    pub(crate) async fn write<R>(
        &self,
        repeat: RetrySafety,
        encode: impl Fn(&mut Vec<u8>, u32) -> Result<(), CommandError>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let encode = &encode;
        self.with_id(|KnownId { id, data }| {
            let how = RequestOptions { retry_safety: repeat, data: Some(data), ..RequestOptions::WRITE };
            self.client.write_as(how, move |out: &mut Vec<u8>| encode(out, id), &read)
        })
        .await
    }

    /// Sends a command that removes the object, and forgets the object's id. `encode` writes the command from the id.
    /// The client does not repeat the command with another id, because this would remove another object.
    pub(crate) async fn remove<R>(
        &self,
        encode: impl Fn(&mut Vec<u8>, u32) -> Result<(), CommandError>,
        read: impl Fn(&SharedFrame) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let KnownId { id, data } = self.known_id().await?;
        let how = RequestOptions { retry_safety: RetrySafety::IfNoEffect, data: Some(data), ..RequestOptions::WRITE };
        let removed = self.client.write_as(how, |out: &mut Vec<u8>| encode(out, id), read).await;
        self.forget(id);
        removed
    }

    /// Sends a command that creates the object unless it exists. Returns true if the command created it.
    pub(crate) async fn create(
        &self,
        encode: impl Fn(&mut Vec<u8>) -> Result<(), CommandError>,
    ) -> Result<bool, Error> {
        let data = self.client.directory().data();
        let how = self.by_name(RequestOptions { retry_safety: RetrySafety::Harmless, ..RequestOptions::WRITE });
        let (id, is_new) = self.client.write_as(how, encode, created).await?;
        self.store_id(id, data);
        Ok(is_new)
    }
}

fn packed(id: u32, data: u32) -> u64 {
    u64::from(data) << 32 | u64::from(id)
}
