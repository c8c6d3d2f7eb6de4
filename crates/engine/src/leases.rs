//! Leases: keys attached to one live only as long as it is kept alive.
//!
//! A lease ends when it is revoked or not kept alive for its TTL of space time. With it, at once, its keys are
//! hidden; their rows are removed by and by. A node that was down meanwhile ends those whose time has passed
//! when it opens again.

use std::time::Duration;

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::expiry::{AttachedKey, LeaseInfo as StoredLease};
use thalweg_types::{
    Durability, LeaseId, SpaceTime,
    command::{CommandError, Outcome, encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};

use crate::{
    database::{Ack, Database, unexpected},
    error::{ReadError, WriteError, refusal},
    expiry::between,
};

/// A lease that was granted or kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without being kept alive.
    pub ttl: Duration,
    /// When it ends unless it is kept alive before.
    pub deadline: SpaceTime,
    /// The level that was reached.
    pub durability: Durability,
}

/// A lease as it is now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseInfo {
    /// Its id.
    pub id: LeaseId,
    /// How long it lives without being kept alive.
    pub ttl: Duration,
    /// When it ends unless it is kept alive before.
    pub deadline: SpaceTime,
    /// What is left of it.
    pub remaining: Duration,
    /// About how many keys are attached: those that have been overwritten or deleted since count until they
    /// are come across. [`Leases::keys`] is exact.
    pub keys: u32,
}

/// A key attached to a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseKey {
    /// The keyspace's name.
    pub keyspace: String,
    /// The key.
    pub key: Vec<u8>,
}

/// The leases of a space; cheap to clone.
#[derive(Clone, Debug)]
pub struct Leases {
    db: Database,
}

impl Database {
    /// The leases of the space.
    #[must_use]
    pub fn leases(&self) -> Leases {
        Leases { db: self.clone() }
    }
}

impl Leases {
    /// Grants a lease whose id the space chooses.
    pub fn grant(&self, ttl: Duration) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| encode_grant_lease(out, None, ttl))
    }

    /// Grants a lease of this id. One that exists is [`WriteError::LeaseExists`].
    pub fn grant_as(&self, id: LeaseId, ttl: Duration) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| encode_grant_lease(out, Some(id), ttl))
    }

    /// Lets a lease live for another TTL from now on. After its end it is [`WriteError::NoSuchLease`]: whoever
    /// held it must take it that all that hung on it is gone.
    pub fn keep_alive(&self, id: LeaseId) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| {
            encode_keep_lease(out, id);
            Ok(())
        })
    }

    fn ask(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Result<LeaseGrant, WriteError> {
        granted(self.db.inner.propose(level(&self.db), Purpose::Reclaim, encode)?)
    }

    /// Ends a lease: its keys are gone with this.
    pub fn revoke(&self, id: LeaseId) -> Result<Ack, WriteError> {
        self.db.inner.propose_for_ack(level(&self.db), Purpose::Reclaim, |out| {
            encode_revoke_lease(out, id);
            Ok::<_, CommandError>(())
        })
    }

    /// A lease that has not ended.
    pub fn get(&self, id: LeaseId) -> Result<Option<LeaseInfo>, ReadError> {
        let snapshot = self.db.inner.open.machine.read_view();
        let found = snapshot.lease(id)?;
        Ok(found.map(|lease| info(StoredLease { id, lease }, snapshot.time())))
    }

    /// The leases that have not ended, by id, from the one after `after` on: at most `limit`.
    pub fn list(&self, after: Option<LeaseId>, limit: usize) -> Result<Vec<LeaseInfo>, ReadError> {
        let snapshot = self.db.inner.open.machine.read_view();
        let leases = snapshot.leases(after, limit)?;
        Ok(leases.into_iter().map(|lease| info(lease, snapshot.time())).collect())
    }

    /// The keys attached to a lease, by keyspace and key: at most `limit`; `None` if there is no such lease.
    pub fn keys(&self, id: LeaseId, limit: usize) -> Result<Option<Vec<LeaseKey>>, ReadError> {
        let machine = &self.db.inner.open.machine;
        let snapshot = machine.read_view();
        if snapshot.lease(id)?.is_none() {
            return Ok(None);
        }
        let keys = snapshot.lease_keys(id, None, limit)?;
        let named = |AttachedKey { keyspace, key }| {
            Some(LeaseKey { keyspace: machine.keyspace_name(keyspace)?.to_string(), key })
        };
        Ok(Some(keys.into_iter().filter_map(named).collect()))
    }
}

/// Nobody can use a lease whose id or end is not known: level `none` becomes `os`.
fn level(db: &Database) -> Durability {
    db.durability().max(Durability::Os)
}

fn info(StoredLease { id, lease }: StoredLease, now: SpaceTime) -> LeaseInfo {
    let remaining = between(now, lease.deadline);
    LeaseInfo { id, ttl: lease.ttl, deadline: lease.deadline, remaining, keys: lease.keys }
}

pub(crate) fn granted(committed: Committed) -> Result<LeaseGrant, WriteError> {
    let durability = committed.durability;
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Lease { id, ttl, deadline }) => Ok(LeaseGrant { id, ttl, deadline, durability }),
        other => Err(unexpected(other.as_ref())),
    }
}
