//! Expiry of keys: puts with a deadline or a lease, touches (changes of a deadline), and the time that a key has left.
//!
//! All deadlines are times of the database's own clock ([`SpaceTime`]), so stepping the wall clock while the database
//! is open does not change them. A key past its deadline is never shown, even before its row is removed.

use std::time::Duration;

use thalweg_log::Purpose;
use thalweg_state::expiry::Expiry;
use thalweg_types::{
    LeaseId, Revision, SpaceTime,
    command::{CommitBuilder, Deadline, Expect, encode_put_until},
};

use crate::{
    ack::{Ack, check_outcome_known},
    database::Database,
    error::{ReadError, WriteError},
    keyspace::Keyspace,
};

/// Deadline, lease and condition of a put. The default is a plain put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions<'a> {
    /// Deadline of the value. By default it follows from the keyspace's default TTL (time to live).
    pub deadline: Deadline,
    /// Lease that the key is attached to, so that the value lives at most as long as the lease; `None` for no lease.
    pub lease: Option<LeaseId>,
    /// Condition that the key must meet before the put; `None` for an unconditional put.
    pub expect: Option<Expect<'a>>,
}

impl PutOptions<'_> {
    /// Creates options for a value that lives for `ttl` from now on.
    #[must_use]
    pub fn lasting(ttl: Duration) -> Self {
        Self { deadline: Deadline::After(ttl), ..Self::default() }
    }

    /// Creates options for a value that lives as long as a lease.
    #[must_use]
    pub fn with_lease(lease: LeaseId) -> Self {
        Self { lease: Some(lease), ..Self::default() }
    }

    /// Returns true if the options are those of a plain put: no deadline, lease or condition.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// Builds the commit of a put with these options.
    pub fn commit(&self, keyspace: &Keyspace, key: &[u8], value: &[u8]) -> Result<CommitBuilder, WriteError> {
        let mut commit = CommitBuilder::new();
        if let Some(expect) = self.expect {
            commit.expect(keyspace.id(), key, expect)?;
        }
        if self.deadline == Deadline::Default && self.lease.is_none() {
            commit.put(keyspace.id(), key, value)?;
        } else {
            commit.put_until(keyspace.id(), key, value, self.deadline, self.lease)?;
        }
        Ok(commit)
    }
}

/// Deadline, lease and remaining time of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// Revision of the command that wrote the key.
    pub revision: Revision,
    /// Deadline of the key itself, by the database's own clock (space time); `None` if the key has none.
    pub deadline: Option<SpaceTime>,
    /// Lease that the key is attached to; `None` if it is attached to none.
    pub lease: Option<LeaseId>,
    /// Time until the deadline or the end of the lease, whichever is earlier; `None` if the key has neither.
    pub remaining: Option<Duration>,
}

impl Keyspace {
    /// Sets a key with a deadline, a lease or a condition.
    pub fn put_with(&self, key: &[u8], value: &[u8], options: &PutOptions<'_>) -> Result<Ack, WriteError> {
        if options.is_plain() {
            return self.put(key, value);
        }
        let db = self.database();
        if options.expect.is_some() {
            return db.commit(&options.commit(self, key, value)?);
        }
        check_outcome_known(options.lease.is_some(), db.durability())?;
        let PutOptions { deadline, lease, .. } = *options;
        let encode = |out: &mut Vec<u8>| encode_put_until(out, self.id(), key, value, deadline, lease);
        db.inner.propose_for_ack(db.durability(), Purpose::Data, encode)
    }

    /// Sets a key that lives for `ttl` from now on.
    pub fn put_for(&self, key: &[u8], value: &[u8], ttl: Duration) -> Result<Ack, WriteError> {
        self.put_with(key, value, &PutOptions::lasting(ttl))
    }

    /// Changes a key's deadline without rewriting its value. The key's revision and lease stay. Returns `None` if the
    /// key does not exist. [`Deadline::Never`] removes the deadline.
    pub fn touch(&self, key: &[u8], deadline: Deadline) -> Result<Option<Ack>, WriteError> {
        self.touch_if(key, deadline, Expect::Present)
    }

    /// Changes a key's deadline like [`touch`](Self::touch), but only if the condition `expect` holds.
    pub fn touch_if(&self, key: &[u8], deadline: Deadline, expect: Expect<'_>) -> Result<Option<Ack>, WriteError> {
        let commit = touch_if(self, key, deadline, expect)?;
        absent_is_none(self.database().commit(&commit))
    }

    /// Returns the deadline, lease and remaining time of a key; `None` if the key does not exist.
    pub fn lifetime(&self, key: &[u8]) -> Result<Option<Lifetime>, ReadError> {
        let snapshot = self.database().inner.open.machine.read_view();
        let Some(stored) = snapshot.get(self.id(), key)? else { return Ok(None) };
        let Expiry { deadline, lease } = stored.expiry;
        let remaining = snapshot.end_of(&stored.expiry)?.map(|end| between(snapshot.time(), end));
        Ok(Some(Lifetime { revision: stored.revision, deadline, lease, remaining }))
    }
}

impl Database {
    /// Returns the time until a value with this expiry expires; `None` if it never expires, and zero if it has expired.
    pub fn remaining(&self, expiry: &Expiry) -> Result<Option<Duration>, ReadError> {
        if *expiry == Expiry::NEVER {
            return Ok(None);
        }
        let snapshot = self.inner.open.machine.read_view();
        Ok(snapshot.end_of(expiry)?.map(|end| between(snapshot.time(), end)))
    }

    /// Current time of the database's own clock (space time), with which deadlines are compared.
    #[must_use]
    pub fn space_time(&self) -> SpaceTime {
        self.inner.open.replica.now()
    }
}

/// Builds a commit that changes a key's deadline. The commit fails if the key does not exist or does not meet
/// `expect`.
pub(crate) fn touch_if(
    keyspace: &Keyspace,
    key: &[u8],
    deadline: Deadline,
    expect: Expect<'_>,
) -> Result<CommitBuilder, WriteError> {
    let mut commit = CommitBuilder::new();
    commit.expect(keyspace.id(), key, Expect::Present)?;
    if expect != Expect::Present {
        commit.expect(keyspace.id(), key, expect)?;
    }
    commit.touch(keyspace.id(), key, deadline)?;
    Ok(commit)
}

/// Converts the result of a touch (a change of a key's deadline): returns the ack, or `None` if the key did not exist.
pub(crate) fn absent_is_none(answer: Result<Ack, WriteError>) -> Result<Option<Ack>, WriteError> {
    match answer {
        Err(WriteError::ConditionFailed { actual: None, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// Returns the time from `now` to `end`; zero if `end` has passed.
fn between(now: SpaceTime, end: SpaceTime) -> Duration {
    Duration::from_micros(end.0.saturating_sub(now.0))
}
