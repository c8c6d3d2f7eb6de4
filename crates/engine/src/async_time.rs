//! Leases and keys that end, for callers that must not block: futures for any runtime.
//!
//! As with the other writes of [`AsyncDatabase`], a request is queued when its method is called. Asking (which
//! leases there are, how long a key lives) is for [`AsyncDatabase::blocking`]: it reads memory, mostly.

use std::{future::Future, time::Duration};

use thalweg_log::Purpose;
use thalweg_types::{
    Durability, LeaseId,
    command::{CommandError, Deadline, Expect, encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};

use crate::{
    async_database::AsyncDatabase,
    database::{Ack, ack},
    error::WriteError,
    expiry::{PutOptions, absent_is_none, touch_if},
    keyspace::Keyspace,
    leases::{LeaseGrant, granted},
};

impl AsyncDatabase {
    /// Sets a key that ends, or only if a condition holds.
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

    /// Gives a key another deadline if `expect` holds; value, revision and lease stay. `None`: there is no such
    /// key.
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

    /// Grants a lease; without an id the space chooses one. Nobody can use a lease whose id is not known: level
    /// `none` counts as `os`, here and below.
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

    /// Lets a lease live for another TTL from now on; [`WriteError::NoSuchLease`] once it has ended.
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

    /// Ends a lease: its keys are gone with this.
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
