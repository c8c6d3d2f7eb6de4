//! Permission of clients to create keyspaces, leases and consumer groups, within their shares.
//!
//! Owns: the question to the database what exists, and the messages of refusals. Does not own: the shares (`created`).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_engine::Database;
use thalweg_types::{GroupId, LeaseId};

use crate::{
    admission::{Account, Reservation, Resource},
    app::App,
    created::{end_of, locked},
    error::ApiError,
};

impl App {
    /// Reserves one of the keyspaces that clients may create, and charges it to the client's address. Returns an error
    /// if the address already holds its share.
    pub fn may_create_keyspace(&self, account: &Arc<Account>) -> Result<Reservation, ApiError> {
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Keyspaces));
        let exists = |name: &String| db.find_keyspace(name).map(|_| Instant::now());
        let taken = locked(&self.created.keyspaces).take(bound, account, 1, db.keyspace_count(), exists);
        taken.ok_or_else(|| {
            ApiError::overloaded("the clients of this address have created their share of keyspaces: drop some")
        })
    }

    /// Keeps the reservation `held` of a keyspace that a client has created, until the keyspace is dropped.
    pub fn created_keyspace(&self, name: &str, held: Reservation) {
        locked(&self.created.keyspaces).insert(name.to_owned(), held, Instant::now());
    }

    /// Releases the reservation of a keyspace that a client has dropped, unless another client has created it again.
    pub fn dropped_keyspace(&self, name: &str) {
        let mut created = locked(&self.created.keyspaces);
        if self.db.blocking().find_keyspace(name).is_none() {
            created.remove(&name.to_owned());
        }
    }

    /// Reserves one of the leases that there may be, and charges it to the client's address. Returns an error if the
    /// address already holds its share.
    pub fn may_grant_lease(&self, account: &Arc<Account>) -> Result<Reservation, ApiError> {
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Leases));
        let taken = locked(&self.created.leases).take(bound, account, 1, db.lease_count(), |id| lease_end(db, *id));
        taken.ok_or_else(|| {
            ApiError::overloaded(
                "the clients of this address hold their share of leases: revoke some, or retry when some have expired",
            )
        })
    }

    /// Keeps the reservation `held` of a lease that was granted for `ttl`, until the lease ends.
    pub fn granted_lease(&self, id: LeaseId, ttl: Duration, held: Reservation) {
        locked(&self.created.leases).insert(id, held, end_of(ttl));
    }

    /// Releases the reservation of a lease that a client has revoked.
    pub fn revoked_lease(&self, id: LeaseId) {
        locked(&self.created.leases).remove(&id);
    }

    /// Reserves one of the consumer groups that there may be, and charges it to the client's address. Returns an error
    /// if the address already holds its share.
    pub fn may_create_group(&self, account: &Arc<Account>) -> Result<Reservation, ApiError> {
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Groups));
        // An error says nothing about the group.
        let exists = |id: &GroupId| db.group_by_id(*id).map_or(Some(()), |found| found.map(|_| ()));
        let exists = |id: &GroupId| exists(id).map(|()| Instant::now());
        let taken = locked(&self.created.groups).take(bound, account, 1, db.group_count().unwrap_or(0), exists);
        taken.ok_or_else(|| {
            ApiError::overloaded("the clients of this address have created their share of consumer groups: delete some")
        })
    }

    /// Keeps the reservation `held` of a consumer group that a client has created, until the group is deleted.
    pub fn created_group(&self, id: GroupId, held: Reservation) {
        locked(&self.created.groups).insert(id, held, Instant::now());
    }

    /// Releases the reservation of a consumer group that a client has deleted.
    pub fn deleted_group(&self, id: GroupId) {
        locked(&self.created.groups).remove(&id);
    }
}

/// Returns the time at which a lease ends unless it is renewed; `None` if it has ended.
fn lease_end(db: &Database, id: LeaseId) -> Option<Instant> {
    match db.leases().get(id) {
        Ok(found) => found.map(|lease| end_of(lease.remaining)),
        // An error says nothing about the lease.
        Err(_) => Some(end_of(Duration::from_secs(1))),
    }
}
