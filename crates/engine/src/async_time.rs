//! Leases and deadlines of keys for callers that must not block: futures for any runtime.
//!
//! As with the other writes of [`AsyncDatabase`], a request is queued when its method is called. For reads (listing
//! leases, the lifetime of a key) use [`AsyncDatabase::blocking`]: they mostly read memory.

use std::{future::Future, time::Duration};

use thalweg_log::Purpose;
use thalweg_types::{
    Durability, LeaseId,
    command::{CommandError, Deadline, Expect, encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};

use crate::{
    ack::{Ack, ack},
    async_database::AsyncDatabase,
    error::WriteError,
    expiry::{PutOptions, absent_is_none, touch_if},
    keyspace::Keyspace,
    leases::{LeaseGrant, granted},
};

impl AsyncDatabase {
    /// Sets a key with the deadline, lease or condition in `options`.
    pub fn put_with(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        value: &[u8],
        options: &PutOptions<'_>,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = options.commit(keyspace, key, value).map(|commit| self.commit(&commit, level));
        async move { proposed?.await }
    }

    /// Changes a key's deadline if the condition `expect` holds. The key's value, revision and lease stay. The future
    /// resolves to `None` if the key does not exist.
    pub fn touch(
        &self,
        keyspace: &Keyspace,
        key: &[u8],
        deadline: Deadline,
        expect: Expect<'_>,
        level: Durability,
    ) -> impl Future<Output = Result<Option<Ack>, WriteError>> + Send + use<> {
        let proposed = touch_if(keyspace, key, deadline, expect).map(|commit| self.commit(&commit, level));
        async move { absent_is_none(proposed?.await) }
    }

    /// Grants a lease. If `id` is `None`, the database chooses an id. A lease whose id is unknown is useless, so all
    /// lease requests treat the level `none` as `os`.
    pub fn grant_lease(
        &self,
        id: Option<LeaseId>,
        ttl: Duration,
        level: Durability,
    ) -> impl Future<Output = Result<LeaseGrant, WriteError>> + Send + use<> {
        let proposed =
            self.propose(level.max(Durability::Os), Purpose::Reclaim, |out| encode_grant_lease(out, id, ttl));
        async move { granted(proposed?.await?) }
    }

    /// Keeps a lease alive: moves its deadline to a full TTL from now. Returns [`WriteError::NoSuchLease`] if the
    /// lease has ended.
    pub fn keep_lease(
        &self,
        id: LeaseId,
        level: Durability,
    ) -> impl Future<Output = Result<LeaseGrant, WriteError>> + Send + use<> {
        let proposed = self.propose(level.max(Durability::Os), Purpose::Reclaim, |out| {
            encode_keep_lease(out, id);
            Ok::<_, CommandError>(())
        });
        async move { granted(proposed?.await?) }
    }

    /// Ends a lease. Its keys are gone as soon as this command is applied.
    pub fn revoke_lease(
        &self,
        id: LeaseId,
        level: Durability,
    ) -> impl Future<Output = Result<Ack, WriteError>> + Send + use<> {
        let proposed = self.propose(level.max(Durability::Os), Purpose::Reclaim, |out| {
            encode_revoke_lease(out, id);
            Ok::<_, CommandError>(())
        });
        async move { ack(proposed?.await?) }
    }
}
