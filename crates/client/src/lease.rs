//! Leases: what keys hang on that are to go when nobody keeps them alive.

use std::time::Duration;

use bytes::Bytes;
use thalweg_types::{
    LeaseId, SpaceTime,
    command::{encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};
use thalweg_wire::{self as wire, Fields, Frame, SharedFrame};

use crate::{
    client::{Client, How, Repeat},
    error::Error,
    request::reply_of,
    write::{committed, fits},
};

/// A lease. Dropping it does nothing: it lives until its time is up or it is revoked.
#[derive(Clone, Debug)]
pub struct Lease {
    client: Client,
    id: LeaseId,
}

/// What there is to know about a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without being kept alive.
    pub ttl: Duration,
    /// When it ends unless it is kept alive.
    pub deadline: SpaceTime,
    /// How long that is from now.
    pub remaining: Duration,
    /// About how many keys hang on it.
    pub keys: u32,
}

impl Client {
    /// Grants a lease; the server chooses its id unless one is given.
    pub async fn grant_lease(&self, ttl: Duration, id: Option<LeaseId>) -> Result<Lease, Error> {
        let encode = |out: &mut Vec<u8>| encode_grant_lease(out, id, ttl);
        let granted = |frame: &SharedFrame| Ok(reply_of::<wire::Granted>(frame)?.lease);
        let id = self.write(Repeat::IfNothing, encode, granted).await?;
        Ok(self.lease(id))
    }

    /// A lease that was granted before.
    #[must_use]
    pub fn lease(&self, id: LeaseId) -> Lease {
        Lease { client: self.clone(), id }
    }

    /// Leases by id, those after `after`; and whether there may be more.
    pub async fn leases(&self, after: LeaseId, limit: u32) -> Result<(Vec<LeaseInfo>, bool), Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::ListLeases { after, limit }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::LeaseList { more, leases, .. } = reply_of(frame)?;
            Ok((leases.iter().map(info).collect(), more))
        };
        self.call(How::READ, encode, read).await
    }
}

fn info(lease: wire::Lease) -> LeaseInfo {
    LeaseInfo {
        id: lease.id,
        ttl: Duration::from_micros(lease.ttl),
        deadline: lease.deadline,
        remaining: Duration::from_micros(lease.remaining),
        keys: lease.keys,
    }
}

impl Lease {
    /// Its id, which puts name.
    #[must_use]
    pub fn id(&self) -> LeaseId {
        self.id
    }

    /// Lets it live for another TTL from now on; gives that.
    pub async fn keep_alive(&self) -> Result<Duration, Error> {
        let encode = |out: &mut Vec<u8>| {
            encode_keep_lease(out, self.id);
            Ok(())
        };
        let granted = |frame: &SharedFrame| Ok(Duration::from_micros(reply_of::<wire::Granted>(frame)?.ttl));
        self.client.write(Repeat::Harmless, encode, granted).await
    }

    /// Ends it, and with it its keys.
    pub async fn revoke(&self) -> Result<(), Error> {
        let encode = |out: &mut Vec<u8>| {
            encode_revoke_lease(out, self.id);
            Ok(())
        };
        self.client.write(Repeat::IfNothing, encode, committed).await.map(|_| ())
    }

    /// What there is to know about it, and at most `limit` of its keys, each with its keyspace's name.
    pub async fn describe(&self, limit: u32) -> Result<(LeaseInfo, Vec<(String, Bytes)>), Error> {
        let encode = |out: &mut Vec<u8>, id: u32, fields: &Fields<'_>| {
            fits(wire::FindLease { lease: self.id, limit }.encode_with(out, id, fields))
        };
        let read = |frame: &SharedFrame| {
            let wire::LeaseFound { lease, keys, .. } = reply_of(frame)?;
            let key = |key: wire::LeaseKey<'_>| (key.keyspace.to_owned(), frame.share(key.key));
            Ok((info(lease), keys.iter().map(key).collect()))
        };
        self.client.call(How::READ, encode, read).await
    }
}
