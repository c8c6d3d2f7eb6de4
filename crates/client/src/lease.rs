//! Leases: keys attached to a lease are removed when no client keeps the lease alive.

use std::time::Duration;

use bytes::Bytes;
pub use thalweg_types::info::LeaseInfo;
use thalweg_types::{
    LeaseId,
    command::{encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};
use thalweg_wire::{self as wire, SharedFrame};

use crate::{
    client::{Client, RequestOptions, RetrySafety},
    error::Error,
    request::reply_of,
    write::committed,
};

/// A handle of a lease. Dropping it has no effect: the lease lives until its deadline or until it is revoked.
#[derive(Clone, Debug)]
pub struct Lease {
    client: Client,
    id: LeaseId,
}

impl Client {
    /// Grants a lease. The server chooses the id unless one is given.
    pub async fn grant_lease(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Lease, Error> {
        let encode = |out: &mut Vec<u8>| encode_grant_lease(out, id, ttl);
        let granted = |frame: &SharedFrame| Ok(reply_of::<wire::Granted>(frame)?.lease);
        let id = self.write(RetrySafety::IfNoEffect, encode, granted).await?;
        Ok(self.lease(id))
    }

    /// Returns a handle of a lease that was granted before.
    #[must_use]
    pub fn lease(&self, id: LeaseId) -> Lease {
        Lease { client: self.clone(), id }
    }

    /// Returns a page of at most `limit` leases, ordered by id and beginning after the lease `after`. The
    /// flag is true if more leases may follow.
    pub async fn leases(&self, after: LeaseId, limit: u32) -> Result<(Vec<LeaseInfo>, bool), Error> {
        let read = |frame: &SharedFrame| {
            let wire::LeaseList { more, leases, .. } = reply_of(frame)?;
            Ok((leases.iter().map(LeaseInfo::from).collect(), more))
        };
        self.request(RequestOptions::READ, wire::ListLeases { after, limit }, read).await
    }
}

impl Lease {
    /// Id of the lease. Puts attach keys to the lease by this id.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Keeps the lease alive for another TTL (time to live) from now on, and returns the TTL.
    pub async fn keep_alive(&self) -> Result<Duration, Error> {
        let encode = |out: &mut Vec<u8>| {
            encode_keep_lease(out, self.id);
            Ok(())
        };
        let granted = |frame: &SharedFrame| Ok(Duration::from_micros(reply_of::<wire::Granted>(frame)?.ttl));
        self.client.write(RetrySafety::Harmless, encode, granted).await
    }

    /// Ends the lease and removes the keys that are attached to it.
    pub async fn revoke(&self) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>| {
            encode_revoke_lease(out, self.id);
            Ok(())
        };
        self.client.write(RetrySafety::IfNoEffect, encode, committed).await.map(drop)
    }

    /// Returns the description of the lease, and at most `limit` of its keys with the names of their keyspaces.
    pub async fn describe(&self, limit: u32) -> Result<(LeaseInfo, Vec<(String, Bytes)>), Error> {
        let read = |frame: &SharedFrame| {
            let wire::LeaseFound { lease, keys, .. } = reply_of(frame)?;
            let key = |key: wire::LeaseKey<'_>| (key.keyspace.to_owned(), frame.share(key.key));
            Ok((LeaseInfo::from(lease), keys.iter().map(key).collect()))
        };
        self.client.request(RequestOptions::READ, wire::FindLease { lease: self.id, limit }, read).await
    }
}
