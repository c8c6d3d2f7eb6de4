//! Keyspaces: get, put, delete, scan, versions, counters.
//!
//! Owns: [`Keyspace`]. Does not own commits over several keys or keyspaces: [`Client::commit`](crate::Client::commit).

use std::{sync::Arc, time::Duration};

use bytes::Bytes;
use thalweg_types::{
    Durability, KeyspaceId, LeaseId, Revision, SpaceTime,
    command::{
        CommitBuilder, Deadline, Expect, KeyspaceConfig, OperationResult, TransactionBuilder,
        encode_configure_keyspace, encode_create_keyspace, encode_delete, encode_drop_keyspace, encode_put,
        encode_put_until,
    },
};
use thalweg_wire::{self as wire, Count, Fields, Frame, List, Order, Rest, SharedFrame, Values, VersionState};

use crate::{
    client::{Client, How, Repeat},
    error::{Error, ProtocolError},
    named::{Named, with_id},
    names::Name,
    request::reply_of,
    write::{committed, created, done, fits, transacted},
};

pub(crate) const MISSING: &str = "no_such_keyspace";

/// A keyspace by its name. Cheap to clone; asks for its id at the first use.
#[derive(Clone, Debug)]
pub struct Keyspace(pub(crate) Arc<Named>);

/// A value as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Value {
    /// The value. Without a copy: it keeps the read buffer that the reply came in, so copy what is small and stays long.
    pub value: Bytes,
    /// When it was written.
    pub revision: Revision,
    /// How long it has left to live; `None`: it does not end by itself.
    pub remaining: Option<Duration>,
    /// The lease that it hangs on.
    pub lease: Option<LeaseId>,
    /// Length of the value, also if it was not asked for.
    pub value_bytes: u64,
    /// The level of all that the answer shows.
    pub durability: Durability,
}

/// How a key is put.
#[derive(Clone, Copy, Debug, Default)]
pub struct Put<'a> {
    /// What must hold of the key before.
    pub expect: Option<Expect<'a>>,
    /// Until when it lives.
    pub deadline: Deadline,
    /// The lease that it hangs on.
    pub lease: Option<LeaseId>,
}

/// Which keys a scan is about.
#[derive(Clone, Debug)]
pub struct ScanRange {
    /// Only keys that begin with this.
    pub prefix: Vec<u8>,
    /// The lowest key wanted, whichever the order.
    pub start: Option<Vec<u8>>,
    /// The first key above those wanted, whichever the order.
    pub end: Option<Vec<u8>>,
    /// Which way.
    pub order: Order,
    /// With or without values.
    pub values: Values,
    /// As of then; 0: now.
    pub revision: Revision,
    /// At most so many pairs on a page; 0: as many as the server likes.
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
    /// The key.
    pub key: Bytes,
    /// The value; empty if it was not asked for.
    pub value: Bytes,
    /// When it was written.
    pub revision: Revision,
}

/// Pages of a range, all of one view of the keyspace. Nothing is held on the server between pages.
#[derive(Debug)]
pub struct Scan {
    keyspace: Keyspace,
    range: ScanRange,
    cursor: Bytes,
    begun: bool,
}

/// What a key was for a time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    /// What became of it.
    pub state: VersionState,
    /// Since then.
    pub revision: Revision,
    /// Until then, and without; 0 if it is there.
    pub until: Revision,
    /// When that was; 0 if it is there.
    pub until_time: SpaceTime,
    /// The value.
    pub value: Bytes,
}

/// Versions of a key, newest first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Versions {
    /// From here on all versions of the key are kept.
    pub oldest: Revision,
    /// Ask for those before this next; `None`: there are none.
    pub next: Option<Revision>,
    /// Those asked for.
    pub versions: Vec<Version>,
}

/// What there is to know about a keyspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyspaceInfo {
    /// Its id.
    pub id: KeyspaceId,
    /// Its name.
    pub name: String,
    /// When it was created.
    pub created: SpaceTime,
    /// What it does beyond storing.
    pub config: KeyspaceConfig,
    /// Keys and bytes, and whether these figures are exact; if they were asked for.
    pub counts: Option<(u64, u64, bool)>,
}

impl Client {
    /// The keyspace of that name, whether there is one or not.
    #[must_use]
    pub fn keyspace(&self, name: impl Into<String>) -> Keyspace {
        Keyspace(Arc::new(Named::new(self.clone(), Name::Keyspace(name.into()))))
    }

    /// Keyspaces by id, those after `after`; and whether there may be more.
    pub async fn keyspaces(&self, after: KeyspaceId, limit: u32) -> Result<(Vec<KeyspaceInfo>, bool), Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::ListKeyspaces { after, limit }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::KeyspaceList { more, keyspaces } = reply_of(frame)?;
            Ok((keyspaces.iter().map(|keyspace| info(keyspace, None)).collect(), more))
        };
        self.call(How::READ, encode, read).await
    }
}

fn info(keyspace: wire::Keyspace<'_>, counts: Option<wire::KeyspaceCounts>) -> KeyspaceInfo {
    let wire::Keyspace { id, created, config, name } = keyspace;
    let counts = counts.map(|counts| (counts.keys, counts.bytes, counts.exact));
    KeyspaceInfo { id, name: name.to_owned(), created, config, counts }
}

pub(crate) fn remaining(micros: u64) -> Option<Duration> {
    (micros != u64::MAX).then(|| Duration::from_micros(micros))
}

fn lease(id: LeaseId) -> Option<LeaseId> {
    (id.0 != 0).then_some(id)
}

impl Keyspace {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        match &self.0.name {
            Name::Keyspace(name) => name,
            _ => unreachable!("a keyspace is made with its name"),
        }
    }

    pub(crate) fn client(&self) -> &Client {
        &self.0.client
    }

    /// Its id, by which commits name it.
    pub async fn id(&self) -> Result<KeyspaceId, Error> {
        if let Some(id) = self.0.known() {
            return Ok(KeyspaceId(id));
        }
        let id = self.describe(Count::Skip).await?.id;
        self.0.learn(id.0);
        Ok(id)
    }

    /// Creates it unless it exists; says whether it did.
    pub async fn create_if_missing(&self, config: &KeyspaceConfig) -> Result<bool, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>| encode_create_keyspace(out, name, config);
        let (id, is_new) = self.client().write(Repeat::Harmless, encode, created).await?;
        self.0.learn(id);
        Ok(is_new)
    }

    /// What there is to know about it.
    pub async fn describe(&self, count: Count) -> Result<KeyspaceInfo, Error> {
        let name = self.name();
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::FindKeyspace { count, name }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::KeyspaceFound { keyspace, counts } = reply_of(frame)?;
            Ok(info(keyspace, counts))
        };
        self.client().call(How::READ, encode, read).await
    }

    /// Replaces its configuration.
    pub async fn configure(&self, config: &KeyspaceConfig) -> Result<Revision, Error> {
        with_id!(self, MISSING, id => async {
            let encode = |out: &mut Vec<u8>| encode_configure_keyspace(out, id, config);
            self.client().write(Repeat::IfNothing, encode, done).await
        })
    }

    /// Drops it with everything in it.
    pub async fn drop_keyspace(&self) -> Result<Revision, Error> {
        let id = self.id().await?;
        let encode = |out: &mut Vec<u8>| {
            encode_drop_keyspace(out, id);
            Ok(())
        };
        let dropped = self.client().write(Repeat::IfNothing, encode, done).await;
        self.0.forget(id.0);
        dropped
    }

    /// Reads a key.
    pub async fn get(&self, key: &[u8]) -> Result<Option<Value>, Error> {
        self.get_at(key, Revision(0), Values::Include).await
    }

    /// Reads a key as of a revision (0: now), with or without its value.
    pub async fn get_at(&self, key: &[u8], revision: Revision, values: Values) -> Result<Option<Value>, Error> {
        with_id!(self, MISSING, keyspace => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                fits(wire::Get { keyspace, revision, values, key: Rest(key) }.encode_with(out, id, fields))
            };
            self.client().call(How::READ, encode, read_value).await
        })
    }

    /// Reads keys, each as of the moment when it is read, in their order.
    pub async fn get_many(&self, keys: &[&[u8]]) -> Result<Vec<Option<Value>>, Error> {
        with_id!(self, MISSING, keyspace => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                let (revision, values) = (Revision(0), Values::Include);
                fits(wire::MultiGet { keyspace, revision, values, keys: List::Items(keys) }.encode_with(out, id, fields))
            };
            self.client().call(How::READ, encode, read_entries).await
        })
    }

    /// Sets a key; gives the revision, which at level `none` is 0.
    pub async fn put(&self, key: &[u8], value: &[u8]) -> Result<Revision, Error> {
        with_id!(self, MISSING, keyspace => async {
            let encode = |out: &mut Vec<u8>| encode_put(out, keyspace, key, value);
            Ok(self.client().write(Repeat::Harmless, encode, committed).await?.revision)
        })
    }

    /// Sets a key under conditions, with a deadline or a lease. What does not hold is the error `condition_failed`, with
    /// the key's `revision` in its details.
    pub async fn put_with(&self, key: &[u8], value: &[u8], how: Put<'_>) -> Result<Revision, Error> {
        with_id!(self, MISSING, keyspace => async {
            if how.expect.is_none() && how.lease.is_none() && how.deadline != Deadline::Keep {
                let encode =
                    |out: &mut Vec<u8>| encode_put_until(out, keyspace, key, value, how.deadline, None);
                return Ok(self.client().write(Repeat::Harmless, encode, committed).await?.revision);
            }
            let mut commit = CommitBuilder::new();
            if let Some(expect) = how.expect {
                commit.expect(keyspace, key, expect)?;
            }
            commit.put_until(keyspace, key, value, how.deadline, how.lease)?;
            Ok(self.client().commit(&commit).await?.revision)
        })
    }

    /// Removes a key, whether it has a value or not.
    pub async fn delete(&self, key: &[u8]) -> Result<Revision, Error> {
        with_id!(self, MISSING, keyspace => async {
            let encode = |out: &mut Vec<u8>| encode_delete(out, keyspace, key);
            Ok(self.client().write(Repeat::Harmless, encode, committed).await?.revision)
        })
    }

    /// Removes a key if it is as expected.
    pub async fn delete_if(&self, key: &[u8], expect: Expect<'_>) -> Result<Revision, Error> {
        with_id!(self, MISSING, keyspace => async {
            let mut commit = CommitBuilder::new();
            commit.expect(keyspace, key, expect)?.delete(keyspace, key)?;
            Ok(self.client().commit(&commit).await?.revision)
        })
    }

    /// Gives a key another deadline; says whether there is such a key.
    pub async fn touch(&self, key: &[u8], deadline: Deadline) -> Result<bool, Error> {
        let result =
            self.operate(|keyspace, transaction| transaction.then().touch(keyspace, key, deadline).map(|_| ()));
        match result.await? {
            OperationResult::Touched { existed } => Ok(existed),
            other => Err(unexpected(&other)),
        }
    }

    /// Adds to a counter, a value in decimal digits; what is missing counts as 0. Gives what it is then.
    pub async fn add(&self, key: &[u8], delta: i64) -> Result<i64, Error> {
        let result = self.operate(|keyspace, transaction| transaction.then().add(keyspace, key, delta).map(|_| ()));
        match result.await? {
            OperationResult::Added { value } => Ok(value),
            other => Err(unexpected(&other)),
        }
    }

    /// Removes all keys with a prefix; the empty one clears the keyspace.
    pub async fn delete_prefix(&self, prefix: &[u8]) -> Result<(), Error> {
        let result =
            self.operate(|keyspace, transaction| transaction.then().delete_prefix(keyspace, prefix).map(|_| ()));
        result.await.map(|_| ())
    }

    async fn operate(
        &self,
        add: impl Fn(KeyspaceId, &mut TransactionBuilder) -> Result<(), thalweg_types::command::CommandError>,
    ) -> Result<OperationResult, Error> {
        let mut done = with_id!(self, MISSING, keyspace => async {
            let mut transaction = TransactionBuilder::new();
            add(keyspace, &mut transaction)?;
            let encode = |out: &mut Vec<u8>| transaction.encode(out);
            self.client().write(Repeat::IfNothing, encode, transacted).await
        })?;
        done.results.pop().ok_or(Error::Protocol(ProtocolError::WrongReply { kind: wire::Kind::Transacted as u16 }))
    }

    /// Reads a range, page by page.
    #[must_use]
    pub fn scan(&self, range: ScanRange) -> Scan {
        Scan { keyspace: self.clone(), range, cursor: Bytes::new(), begun: false }
    }

    /// What a key was, newest first, before a revision (0: all).
    pub async fn versions(&self, key: &[u8], before: Revision, limit: u32) -> Result<Versions, Error> {
        with_id!(self, MISSING, keyspace => async {
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
                fits(wire::Versions { keyspace, before, limit, key: Rest(key) }.encode_with(out, id, fields))
            };
            self.client().call(How::READ, encode, read_versions).await
        })
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
    /// The next page, in order; `None` when there are no more.
    pub async fn next_page(&mut self) -> Result<Option<Vec<Pair>>, Error> {
        if self.begun && self.cursor.is_empty() {
            return Ok(None);
        }
        let (range, cursor) = (&self.range, &self.cursor);
        let (pairs, cursor) = with_id!(self.keyspace, MISSING, keyspace => async {
            let scan = wire::Scan {
                keyspace,
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
            let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| fits(scan.encode_with(out, id, fields));
            self.keyspace.client().call(How::READ, encode, read_pairs).await
        })?;
        self.cursor = cursor;
        self.begun = true;
        Ok(Some(pairs))
    }

    /// All that is left, if it is at most `limit` pairs: else the first of them.
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
