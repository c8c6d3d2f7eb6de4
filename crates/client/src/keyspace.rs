//! Keyspaces: get, put, delete, scan, versions, counters.
//!
//! Owns: [`Keyspace`]. Does not own commits over several keys or keyspaces: see
//! [`Client::commit`](crate::Client::commit).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
pub use thalweg_types::info::{Keyspace as KeyspaceInfo, KeyspaceCounts};
use thalweg_types::{
    Durability, KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{
        CommandError, CommitBuilder, Deadline, Expect, KeyspaceConfig, OperationResult, TransactionBuilder,
        encode_configure_keyspace, encode_create_keyspace, encode_delete, encode_drop_keyspace, encode_put,
        encode_put_until,
    },
};
use thalweg_wire::{self as wire, Count, List, Order, RemainingBytes, SharedFrame, Values, VersionState};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::{Error, ProtocolError},
    named::NamedObject,
    names::Name,
    request::reply_of,
    write::{committed, done, transacted},
};

/// A keyspace identified by its name. Cheap to clone. The handle requests the keyspace's id at the first use.
#[derive(Clone, Debug)]
pub struct Keyspace(pub(crate) Arc<NamedObject>);

/// A key's value, as a read returns it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// Value of the key. The value is not copied: it keeps the whole read buffer of the reply in memory. Copy small
    /// values that live long.
    pub value: Bytes,
    /// Revision at which the value was written.
    pub revision: Revision,
    /// Remaining time to live of the key; `None` if it has no deadline.
    pub remaining: Option<Duration>,
    /// Lease to which the key is attached; the key is removed when the lease ends.
    pub lease: Option<LeaseId>,
    /// Length of the value in bytes, also if the request did not ask for the value itself.
    pub value_bytes: u64,
    /// Durability level that all data in the reply with this value has reached.
    pub durability: Durability,
}

/// Options of a put.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put<'a> {
    /// Condition that the key must meet before the put.
    pub expect: Option<Expect<'a>>,
    /// New deadline of the key, at which the key expires.
    pub deadline: Deadline,
    /// Lease to which the put attaches the key; the key is removed when the lease ends.
    pub lease: Option<LeaseId>,
}

/// Range and options of a scan.
#[derive(Clone, Debug)]
pub struct ScanRange {
    /// Prefix that all keys returned by the scan have.
    pub prefix: Vec<u8>,
    /// Lowest key to return, whatever the direction of the scan; `None` for no lower bound.
    pub start: Option<Vec<u8>>,
    /// Exclusive upper bound of the keys to return, whatever the direction of the scan; `None` for no upper
    /// bound.
    pub end: Option<Vec<u8>>,
    /// Direction of the scan.
    pub order: Order,
    /// Choice to return the values of the keys, or only the keys.
    pub values: Values,
    /// Revision at which to read the keyspace; 0 reads the present state.
    pub revision: Revision,
    /// Maximum number of key-value pairs on a page; 0 selects the server's default.
    pub page: u32,
}

impl Default for ScanRange {
    fn default() -> Self {
        Self {
            prefix: Vec::new(),
            start: None,
            end: None,
            order: Order::Ascending,
            values: Values::Include,
            revision: Revision(0),
            page: 0,
        }
    }
}

/// A key and its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pair {
    /// Key of the pair.
    pub key: Bytes,
    /// Value of the key; empty if the scan did not request values.
    pub value: Bytes,
    /// Revision at which the value of the pair was written.
    pub revision: Revision,
}

/// Pages of a scan of a keyspace. All pages show the keyspace at the same revision. The server holds no state
/// between pages.
#[derive(Debug)]
pub struct Scan {
    keyspace: Keyspace,
    range: ScanRange,
    cursor: Bytes,
    begun: bool,
}

/// A version of a key: the value that the key had for some time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// State of the version: the key had a value, or had none.
    pub state: VersionState,
    /// Revision at which the version was written.
    pub revision: Revision,
    /// Revision that ended the version: from this revision on, the version is no longer current. 0 if the
    /// version is current.
    pub until: Revision,
    /// Timestamp of the commit with the revision `until`, by the cluster's own clock (space time); 0 if the version is
    /// current.
    pub until_time: SpaceTime,
    /// Value that the key had in this version.
    pub value: Bytes,
}

/// A page of the versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// Revision from which on all versions of the key are kept. Older versions may be missing.
    pub oldest: Revision,
    /// Revision to pass as `before` to get the next page; `None` if there are no older versions.
    pub next: Option<Revision>,
    /// Versions of the key on this page, newest first.
    pub versions: Vec<Version>,
}

impl Client {
    /// Returns a handle of the keyspace with this name. The keyspace need not exist.
    #[must_use]
    pub fn keyspace(&self, name: impl Into<String>) -> Keyspace {
        Keyspace(Arc::new(NamedObject::new(self.clone(), Name::Keyspace(name.into()))))
    }

    /// Returns a page of at most `limit` keyspaces, ordered by id and beginning after the keyspace `after`.
    /// The flag is true if more keyspaces follow.
    pub async fn keyspaces(&self, after: KeyspaceId, limit: u32) -> Result<(Vec<KeyspaceInfo>, bool), Error> {
        let read = |frame: &SharedFrame| {
            let wire::KeyspaceList { more, keyspaces } = reply_of(frame)?;
            Ok((keyspaces.iter().collect(), more))
        };
        self.request(RequestOptions::READ, wire::ListKeyspaces { after, limit }, read).await
    }
}

pub(crate) fn remaining(micros: u64) -> Option<Duration> {
    (micros != u64::MAX).then(|| Duration::from_micros(micros))
}

fn lease(id: LeaseId) -> Option<LeaseId> {
    (id.0 != 0).then_some(id)
}

impl Keyspace {
    /// Name of the keyspace.
    #[must_use]
    pub fn name(&self) -> &str {
        self.0.name.text()
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Returns the id of the keyspace. A commit names the keyspace by this id.
    pub async fn id(&self) -> Result<KeyspaceId, Error> {
        self.0.id().await.map(KeyspaceId)
    }

    /// Creates the keyspace unless it exists. Returns true if this call created it.
    pub async fn create_if_missing(&self, config: &KeyspaceConfig) -> Result<bool, Error> {
        self.0.create(|out| encode_create_keyspace(out, self.name(), config)).await
    }

    /// Returns the description of the keyspace, and the number and size of its keys if `count` asks for them.
    pub async fn describe(&self, count: Count) -> Result<(KeyspaceInfo, Option<KeyspaceCounts>), Error> {
        let read = |frame: &SharedFrame| {
            let wire::KeyspaceFound { keyspace, counts } = reply_of(frame)?;
            Ok((keyspace, counts))
        };
        self.client().request(RequestOptions::READ, wire::FindKeyspace { count, name: self.name() }, read).await
    }

    /// Replaces the settings of the keyspace.
    pub async fn configure(&self, config: &KeyspaceConfig) -> Result<Revision, Error> {
        let encode = |out: &mut Vec<u8>, id| encode_configure_keyspace(out, KeyspaceId(id), config);
        self.0.write(RetrySafety::IfNoEffect, encode, done).await
    }

    /// Drops the keyspace with all its keys.
    pub async fn drop_keyspace(&self) -> Result<Revision, Error> {
        let encode = |out: &mut Vec<u8>, id| {
            encode_drop_keyspace(out, KeyspaceId(id));
            Ok(())
        };
        self.0.remove(encode, done).await
    }

    /// Reads the value of a key; `None` if the key has none.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, Error> {
        self.get_at(key, Revision(0), Values::Include).await
    }

    /// Reads a key as it was at a revision; 0 reads the present state. `values` selects a read with or without the
    /// value.
    pub async fn get_at(&self, key: &[u8], revision: Revision, values: Values) -> Result<Option<Value>, Error> {
        let get = |id| wire::Get { keyspace: KeyspaceId(id), revision, values, key: RemainingBytes(key) };
        self.0.request(RequestOptions::READ, get, read_value).await
    }

    /// Reads the values of several keys. The result has the order of the keys. The keys are read one after
    /// the other, so the result may not show the keyspace at one point in time.
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, Error> {
        let (revision, values) = (Revision(0), Values::Include);
        let get = |id| wire::MultiGet { keyspace: KeyspaceId(id), revision, values, keys: List::Items(keys) };
        self.0.request(RequestOptions::READ, get, read_entries).await
    }

    /// Sets a key and returns the revision of the write, which is 0 at durability level `none`.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Revision, Error> {
        self.set(|out, keyspace| encode_put(out, keyspace, key, value)).await
    }

    /// Sets a key with a condition, a deadline or a lease. If the key does not meet the condition, returns
    /// the error `condition_failed` with the key's `revision` in its details.
    pub async fn put_with(&self, key: &[u8], value: &[u8], how: Put<'_>) -> Result<Revision, Error> {
        if how.expect.is_none() && how.lease.is_none() && how.deadline != Deadline::Keep {
            return self.set(|out, keyspace| encode_put_until(out, keyspace, key, value, how.deadline, None)).await;
        }
        let put = |keyspace| {
            let mut commit = CommitBuilder::new();
            if let Some(expect) = how.expect {
                commit.expect(keyspace, key, expect)?;
            }
            commit.put_until(keyspace, key, value, how.deadline, how.lease)?;
            Ok(commit)
        };
        self.commit(put).await
    }

    /// Sends a command that sets or removes a key. Carrying out the command twice leaves the same state, unless another
    /// client writes in between.
    async fn set(
        &self,
        encode: impl Fn(&mut Vec<u8>, KeyspaceId) -> Result<(), CommandError>,
    ) -> Result<Revision, Error> {
        let encode = |out: &mut Vec<u8>, id| encode(out, KeyspaceId(id));
        let repeats = self.0.client.options().repeat_puts;
        let retry_safety = if repeats { RetrySafety::Harmless } else { RetrySafety::IfNoEffect };
        Ok(self.0.write(retry_safety, encode, committed).await?.revision)
    }

    /// Carries out the commit that `build` makes with the keyspace's id.
    async fn commit(
        &self,
        build: impl Fn(KeyspaceId) -> Result<CommitBuilder, CommandError>,
    ) -> Result<Revision, Error> {
        let encode = |out: &mut Vec<u8>, id| {
            build(KeyspaceId(id))?.encode(out);
            Ok(())
        };
        Ok(self.0.write(RetrySafety::IfNoEffect, encode, committed).await?.revision)
    }

    /// Removes a key. Succeeds also if the key has no value.
    pub async fn delete(&self, key: &[u8]) -> Result<Revision, Error> {
        self.set(|out, keyspace| encode_delete(out, keyspace, key)).await
    }

    /// Removes a key if it meets the condition `expect`; otherwise returns the error `condition_failed`.
    pub async fn delete_if(&self, key: &[u8], expect: Expect<'_>) -> Result<Revision, Error> {
        let delete = |keyspace| {
            let mut commit = CommitBuilder::new();
            commit.expect(keyspace, key, expect)?.delete(keyspace, key)?;
            Ok(commit)
        };
        self.commit(delete).await
    }

    /// Changes the deadline of a key. Returns true if the key exists.
    pub async fn touch(&self, key: &[u8], deadline: Deadline) -> Result<bool, Error> {
        let result =
            self.operate(|keyspace, transaction| transaction.then().touch(keyspace, key, deadline).map(|_| ()));
        match result.await? {
            OperationResult::Touched { existed } => Ok(existed),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds `delta` to a counter, which is a value in decimal digits, and returns the counter's new value. A missing
    /// key counts as 0.
    pub async fn add(&self, key: &[u8], delta: i64) -> Result<i64, Error> {
        let result = self.operate(|keyspace, transaction| transaction.then().add(keyspace, key, delta).map(|_| ()));
        match result.await? {
            OperationResult::Added { value } => Ok(value),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes all keys with a prefix. The empty prefix clears the keyspace.
    pub async fn delete_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        let result =
            self.operate(|keyspace, transaction| transaction.then().delete_prefix(keyspace, prefix).map(|_| ()));
        result.await.map(|_| ())
    }

    async fn operate(
        &self,
        add: impl Fn(KeyspaceId, &mut TransactionBuilder) -> Result<(), CommandError>,
    ) -> Result<OperationResult, Error> {
        let encode = |out: &mut Vec<u8>, id| {
            let mut transaction = TransactionBuilder::new();
            add(KeyspaceId(id), &mut transaction)?;
            transaction.encode(out)
        };
        let mut done = self.0.write(RetrySafety::IfNoEffect, encode, transacted).await?;
        done.results.pop().ok_or(Error::Protocol(ProtocolError::WrongReply { kind: wire::Kind::Transacted as u16 }))
    }

    /// Returns a scan of a range, which reads page by page.
    #[must_use]
    pub fn scan(&self, range: ScanRange) -> Scan {
        Scan { keyspace: self.clone(), range, cursor: Bytes::new(), begun: false }
    }

    /// Returns at most `limit` versions of a key written before a revision (0 for all versions), newest
    /// first.
    pub async fn versions(&self, key: &[u8], before: Revision, limit: u32) -> Result<Versions, Error> {
        let versions = |id| wire::Versions { keyspace: KeyspaceId(id), before, limit, key: RemainingBytes(key) };
        self.0.request(RequestOptions::READ, versions, read_versions).await
    }
}

fn unexpected(_: &OperationResult) -> Error {
    Error::Protocol(ProtocolError::WrongReply { kind: wire::Kind::Transacted as u16 })
}

fn read_value(frame: &SharedFrame) -> Result<Option<Value>, Error> {
    let wire::Value { durability, revision, remaining: micros, lease: id, value_bytes, value } = reply_of(frame)?;
    Ok((revision != Revision(0)).then(|| Value {
        value: frame.share(value.0),
        revision,
        remaining: remaining(micros),
        lease: lease(id),
        value_bytes,
        durability,
    }))
}

fn read_entries(frame: &SharedFrame) -> Result<Vec<Option<Value>>, Error> {
    let wire::Entries { durability, entries } = reply_of(frame)?;
    let value = |entry: wire::Entry<'_>| {
        (entry.revision != Revision(0)).then(|| Value {
            value: frame.share(entry.value),
            revision: entry.revision,
            remaining: remaining(entry.remaining),
            lease: lease(entry.lease),
            value_bytes: entry.value_bytes,
            durability,
        })
    };
    Ok(entries.iter().map(value).collect())
}

fn read_versions(frame: &SharedFrame) -> Result<Versions, Error> {
    let wire::VersionList { oldest, next, versions, .. } = reply_of(frame)?;
    let version = |version: wire::Version<'_>| Version {
        state: version.state,
        revision: version.revision,
        until: version.until,
        until_time: version.until_time,
        value: frame.share(version.value),
    };
    let next = (next != Revision(0)).then_some(next);
    Ok(Versions { oldest, next, versions: versions.iter().map(version).collect() })
}

impl Scan {
    /// Reads the next page of the scan; `None` after the last one.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Pair>>, Error> {
        if self.begun && self.cursor.is_empty() {
            return Ok(None);
        }
        let (range, cursor) = (&self.range, &self.cursor);
        let scan = |id| wire::Scan {
            keyspace: KeyspaceId(id),
            revision: range.revision,
            limit: range.page,
            max_bytes: 0,
            order: range.order,
            values: range.values,
            prefix: &range.prefix,
            start: range.start.as_deref(),
            end: range.end.as_deref(),
            cursor,
        };
        let (pairs, cursor) = self.keyspace.0.request(RequestOptions::READ, scan, read_pairs).await?;
        self.cursor = cursor;
        self.begun = true;
        Ok(Some(pairs))
    }

    /// Reads the scan's remaining key-value pairs, up to `limit`.
    pub async fn collect(&mut self, limit: usize) -> Result<Vec<Pair>, Error> {
        let mut all = Vec::new();
        while all.len() < limit
            && let Some(page) = self.next_page().await?
        {
            all.extend(page);
        }
        all.truncate(limit);
        Ok(all)
    }
}

fn read_pairs(frame: &SharedFrame) -> Result<(Vec<Pair>, Bytes), Error> {
    let wire::Pairs { cursor, pairs, .. } = reply_of(frame)?;
    let pair = |pair: wire::Pair<'_>| Pair {
        key: frame.share(pair.key),
        value: frame.share(pair.value),
        revision: pair.revision,
    };
    Ok((pairs.iter().map(pair).collect(), Bytes::copy_from_slice(cursor)))
}
