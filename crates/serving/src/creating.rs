//! Permission of clients to create keyspaces, streams, leases and consumer groups, within the limits for each client
//! address and the memory for stored objects.
//!
//! Owns: the lookup of objects that exist in the database, and the messages of rejections. Does not own: the shares
//! (`created`), and the count of the memory (`objects`).
//!
//! A request reserves its share before it proposes the command. If the command has created something, the share is kept
//! until the object is gone; otherwise the outcome of the command releases it. A client that disconnects before the
//! outcome is charged too ([`finishing`](crate::finishing)).

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use thalweg_engine::{AsyncDatabase, Database, Keyspace, Stream, WriteError};
use thalweg_types::{GroupId, LeaseId, StreamId, command::StreamConfig};

use crate::{
    admission::{Account, Reservation, Resource},
    app::App,
    created::{end_of, locked},
    error::ApiError,
    finishing::Finishing,
    limits::{GROUP_BYTES, LEASE_BYTES, STREAM_BYTES},
    objects::{CreatePermit, ObjectRoom, no_object_room},
};

impl App {
    /// Reserves one of the keyspaces that clients may create, and charges it to the client's address. Returns an error
    /// if the address already holds the part of the limit that one address may use.
    pub fn may_create_keyspace(&self, account: &Arc<Account>) -> Result<Reservation, ApiError> {
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Keyspaces));
        let exists = |name: &String| db.find_keyspace(name).map(|_| Instant::now());
        let taken = locked(&self.created.keyspaces).take(bound, account, 1, db.keyspace_count(), exists);
        taken.ok_or_else(|| {
            ApiError::overloaded("the clients of this address have created their share of keyspaces: drop some")
        })
    }

    /// Creates a keyspace through `db` for the client of `account`, or returns the existing one.
    pub async fn create_keyspace(
        &self,
        db: &AsyncDatabase,
        account: &Arc<Account>,
        name: &str,
    ) -> Result<Keyspace, ApiError> {
        let held = self.may_create_keyspace(account)?;
        let (creating, created, name) = (db.keyspace(name), Arc::clone(&self.created), name.to_owned());
        let settled = Finishing::new(async move {
            let keyspace = creating.await?;
            locked(&created.keyspaces).insert(name, held, Instant::now());
            Ok::<_, WriteError>(keyspace)
        });
        Ok(settled.await?)
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

    /// Counts the memory of stored objects again if the last count is old. Meant for the metrics of this memory.
    pub fn refresh_object_count(&self) {
        self.objects.refresh(self.db.blocking());
    }

    /// Reserves memory for an object of `bytes` that the client of `account` creates.
    fn object_room(&self, account: &Arc<Account>, bytes: u64) -> Result<ObjectRoom, ApiError> {
        self.objects.room(self.db.blocking(), account, bytes).ok_or_else(no_object_room)
    }

    /// Creates a stream through `db` for the client of `account`, or returns the existing one. The returned flag is
    /// true if the stream was created. Returns an error if the address already holds as many streams as one address
    /// may, or if there is no memory for a stream.
    pub async fn create_stream(
        &self,
        db: &AsyncDatabase,
        account: &Arc<Account>,
        name: &str,
        config: &StreamConfig,
    ) -> Result<(Stream, bool), ApiError> {
        let permit = self.may_create_stream(account)?;
        let (creating, created) = (db.create_stream(name, config), Arc::clone(&self.created));
        let settled = Finishing::new(async move {
            let CreatePermit { share, _room } = permit;
            let (stream, is_new) = creating.await?;
            if is_new {
                locked(&created.streams).insert(stream.id(), share, Instant::now());
            }
            Ok::<_, WriteError>((stream, is_new))
        });
        Ok(settled.await?)
    }

    /// Reserves one of the streams that the limits permit, and memory for it. Charges both to the client's address.
    /// Returns an error if the address already holds as many streams as one address may, or there is no memory.
    pub fn may_create_stream(&self, account: &Arc<Account>) -> Result<CreatePermit, ApiError> {
        let room = self.object_room(account, STREAM_BYTES)?;
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Streams));
        let exists = |id: &StreamId| db.has_stream(*id).then(Instant::now);
        let taken = locked(&self.created.streams).take(bound, account, 1, db.stream_count(), exists);
        let share = taken.ok_or_else(|| {
            ApiError::overloaded("the clients of this address have created their share of streams: delete some")
        })?;
        Ok(CreatePermit { share, _room: room })
    }

    /// Keeps the reservation of a stream that a client has created, until the stream is deleted.
    pub fn created_stream(&self, id: StreamId, permit: CreatePermit) {
        locked(&self.created.streams).insert(id, permit.share, Instant::now());
    }

    /// Releases the reservation of a stream that a client has deleted.
    pub fn deleted_stream(&self, id: StreamId) {
        locked(&self.created.streams).remove(&id);
    }

    /// Reserves one of the leases that the limits permit, and memory for it. Charges both to the client's address.
    /// Returns an error if the address already holds as many leases as one address may, or there is no memory.
    pub fn may_grant_lease(&self, account: &Arc<Account>) -> Result<CreatePermit, ApiError> {
        let room = self.object_room(account, LEASE_BYTES)?;
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Leases));
        let taken = locked(&self.created.leases).take(bound, account, 1, db.lease_count(), |id| lease_end(db, *id));
        let share = taken.ok_or_else(|| {
            ApiError::overloaded(
                "the clients of this address hold their share of leases: revoke some, or retry when some have expired",
            )
        })?;
        Ok(CreatePermit { share, _room: room })
    }

    /// Keeps the reservation of a lease that was granted for `ttl`, until the lease ends.
    pub fn granted_lease(&self, id: LeaseId, ttl: Duration, permit: CreatePermit) {
        locked(&self.created.leases).insert(id, permit.share, end_of(ttl));
    }

    /// Releases the reservation of a lease that a client has revoked.
    pub fn revoked_lease(&self, id: LeaseId) {
        locked(&self.created.leases).remove(&id);
    }

    /// Reserves one of the consumer groups that the limits permit, and memory for it. Charges both to the client's
    /// address. Returns an error if the address already holds as many groups as one address may, or there is no memory.
    pub fn may_create_group(&self, account: &Arc<Account>) -> Result<CreatePermit, ApiError> {
        let room = self.object_room(account, GROUP_BYTES)?;
        let (db, bound) = (self.db.blocking(), (&self.admission, Resource::Groups));
        // If the lookup fails, the group counts as existing.
        let exists = |id: &GroupId| db.group_by_id(*id).map_or(Some(()), |found| found.map(|_| ()));
        let exists = |id: &GroupId| exists(id).map(|()| Instant::now());
        let taken = locked(&self.created.groups).take(bound, account, 1, db.group_count().unwrap_or(0), exists);
        let share = taken.ok_or_else(|| {
            ApiError::overloaded("the clients of this address have created their share of consumer groups: delete some")
        })?;
        Ok(CreatePermit { share, _room: room })
    }

    /// Keeps the reservation of a consumer group that a client has created, until the group is deleted.
    pub fn created_group(&self, id: GroupId, permit: CreatePermit) {
        locked(&self.created.groups).insert(id, permit.share, Instant::now());
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
        // If the lookup fails, the lease counts as existing for another second.
        Err(_) => Some(end_of(Duration::from_secs(1))),
    }
}

#[cfg(test)]
mod tests {
    use std::{future::poll_fn, net::Ipv4Addr, task::Poll};

    use thalweg_engine::Options;
    use tokio::sync::watch;

    use super::*;
    use crate::{admission::AddressKey, config::Config};

    #[tokio::test]
    async fn what_a_client_creates_counts_for_its_address_although_it_disconnects() {
        let dir = tempfile::tempdir().unwrap();
        let database = Database::open(dir.path(), Options::default()).unwrap();
        let (_stop, stopping) = watch::channel(false);
        let app = App::new(Config::default(), &database, stopping);
        let account = app.admission.account(AddressKey::of(Ipv4Addr::LOCALHOST.into()));
        let config = StreamConfig::default();
        let mut stream = Box::pin(app.create_stream(&app.db, &account, "s", &config));
        let mut keyspace = Box::pin(app.create_keyspace(&app.db, &account, "k"));
        // This poll proposes the commands. The database may even have committed them by now.
        drop(poll_fn(|cx| Poll::Ready(stream.as_mut().poll(cx))).await);
        drop(poll_fn(|cx| Poll::Ready(keyspace.as_mut().poll(cx))).await);
        drop((stream, keyspace));
        let begun = Instant::now();
        while database.find_stream("s").is_none()
            || database.find_keyspace("k").is_none()
            || account.held(Resource::ObjectBytes) > 0
        {
            assert!(begun.elapsed() < Duration::from_secs(60));
            tokio::task::yield_now().await;
        }
        let held = [Resource::Streams, Resource::Keyspaces].map(|resource| account.held_of_address(resource));
        assert_eq!(held, [1, 1]);
        app.deleted_stream(database.find_stream("s").unwrap().id());
        assert_eq!(account.held_of_address(Resource::Streams), 0, "as if it had waited");
    }
}
