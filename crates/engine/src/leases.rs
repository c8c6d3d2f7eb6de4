//! Leases: a key attached to a lease lives only as long as the lease is kept alive.
//!
//! A lease ends when it is revoked, or when it is not kept alive for its TTL (time to live). Its keys are hidden
//! immediately; their rows are removed gradually. When a node that was down opens again, it ends the leases whose time
//! has passed.

use std::time::Duration;

use thalweg_log::Purpose;
use thalweg_replica::Committed;
use thalweg_state::expiry::AttachedKey;
pub use thalweg_types::info::LeaseInfo;
use thalweg_types::{
    Durability, LeaseId, SpaceTime,
    command::{CommandError, Outcome, encode_grant_lease, encode_keep_lease, encode_revoke_lease},
};

use crate::{
    ack::{Ack, unexpected},
    database::Database,
    error::{ReadError, WriteError, refusal},
};

/// A lease that was granted or kept alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaseGrant {
    /// Id of the lease that was granted or kept alive.
    pub id: LeaseId,
    /// Time from each keep-alive of the lease to its deadline.
    pub ttl: Duration,
    /// Time, by the database's own clock (space time), at which the lease ends unless it is kept alive before.
    pub deadline: SpaceTime,
    /// Durability level that the command to grant or keep the lease reached.
    pub durability: Durability,
}

/// A key that is attached to a lease.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LeaseKey {
    /// Name of the keyspace to which the key belongs.
    pub keyspace: String,
    /// Key, without its keyspace, as the user gave it.
    pub key: Vec<u8>,
}

/// Handle of a database's leases. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Leases {
    db: Database,
}

impl Database {
    /// Returns a handle of the database's leases.
    #[must_use]
    pub fn leases(&self) -> Leases {
        Leases { db: self.clone() }
    }

    /// Returns the number of leases, including ended ones whose keys are not all removed yet. Costs nothing.
    #[must_use]
    pub fn lease_count(&self) -> usize {
        self.inner.open.machine.lease_count()
    }
}

impl Leases {
    /// Grants a lease whose id the database chooses.
    pub fn grant(&self, ttl: Duration) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| encode_grant_lease(out, None, ttl))
    }

    /// Grants a lease with the given id. If a lease with this id exists, returns [`WriteError::LeaseExists`].
    pub fn grant_as(&self, id: LeaseId, ttl: Duration) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| encode_grant_lease(out, Some(id), ttl))
    }

    /// Keeps a lease alive: moves its deadline to a full TTL from now. If the lease has ended, returns
    /// [`WriteError::NoSuchLease`], and the lease's holder must assume that all keys attached to the lease are gone.
    pub fn keep_alive(&self, id: LeaseId) -> Result<LeaseGrant, WriteError> {
        self.ask(|out| {
            encode_keep_lease(out, id);
            Ok(())
        })
    }

    fn ask(&self, encode: impl FnOnce(&mut Vec<u8>) -> Result<(), CommandError>) -> Result<LeaseGrant, WriteError> {
        granted(self.db.inner.propose(level(&self.db), Purpose::Reclaim, encode)?)
    }

    /// Ends a lease. Its keys are gone as soon as this command is applied.
    pub fn revoke(&self, id: LeaseId) -> Result<Ack, WriteError> {
        self.db.inner.propose_for_ack(level(&self.db), Purpose::Reclaim, |out| {
            encode_revoke_lease(out, id);
            Ok::<_, CommandError>(())
        })
    }

    /// Returns a lease; `None` if it does not exist or has ended.
    pub fn get(&self, id: LeaseId) -> Result<Option<LeaseInfo>, ReadError> {
        Ok(self.db.inner.open.machine.read_view().lease(id)?)
    }

    /// Returns at most `limit` leases that have not ended, ordered by id and beginning after the id `after`.
    pub fn list(&self, after: Option<LeaseId>, limit: usize) -> Result<Vec<LeaseInfo>, ReadError> {
        Ok(self.db.inner.open.machine.read_view().leases(after, limit)?)
    }

    /// Returns at most `limit` keys attached to a lease, ordered by keyspace and key; `None` if the lease does not
    /// exist. The list is exact, unlike the number in [`LeaseInfo::keys`].
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

/// Returns the durability level for a command about leases: at least `os`, because a lease with an unknown id or
/// deadline is useless.
fn level(db: &Database) -> Durability {
    db.durability().max(Durability::Os)
}

pub(crate) fn granted(committed: Committed) -> Result<LeaseGrant, WriteError> {
    let durability = committed.durability;
    match committed.outcome.map(refusal).transpose()? {
        Some(Outcome::Lease { id, ttl, deadline }) => Ok(LeaseGrant { id, ttl, deadline, durability }),
        other => Err(unexpected(other.as_ref())),
    }
}
