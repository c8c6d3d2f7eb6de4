//! Keys that end: putting with a deadline or a lease, touching, asking how long.
//!
//! All deadlines are in space time (see [`SpaceTime`]): a wall clock that is stepped while the database is open
//! changes none of them. A key past its deadline is never shown, whether its row has been removed yet or not.

use std::time::Duration;

use thalweg_log::Purpose;
use thalweg_state::expiry::Expiry;
use thalweg_types::{
    LeaseId, Revision, SpaceTime,
    command::{CommitBuilder, Deadline, Expect, encode_put_until},
};

use crate::{
    database::{Ack, Database, check_outcome_known},
    error::{ReadError, WriteError},
    keyspace::Keyspace,
};

/// How a put ends, and what it asks before. The default is a plain put.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PutOptions<'a> {
    /// Until when the value is to live.
    pub deadline: Deadline,
    /// And at most as long as this lease.
    pub lease: Option<LeaseId>,
    /// What must hold of the key before.
    pub expect: Option<Expect<'a>>,
}

impl PutOptions<'_> {
    /// Lives for `ttl` from now on.
    #[must_use]
    pub fn lasting(ttl: Duration) -> Self {
        Self { deadline: Deadline::After(ttl), ..Self::default() }
    }

    /// Lives as long as a lease.
    #[must_use]
    pub fn with_lease(lease: LeaseId) -> Self {
        Self { lease: Some(lease), ..Self::default() }
    }

    /// Whether it needs no more than a plain put.
    #[must_use]
    pub fn is_plain(&self) -> bool {
        *self == Self::default()
    }

    /// The commit of such a put.
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

/// How long a key lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lifetime {
    /// The key's revision.
    pub revision: Revision,
    /// The key's own deadline.
    pub deadline: Option<SpaceTime>,
    /// The lease that it hangs on.
    pub lease: Option<LeaseId>,
    /// What is left until the earlier of both; `None`: it does not end by itself.
    pub remaining: Option<Duration>,
}

impl Keyspace {
    /// Sets a key that ends, or only if a condition holds.
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

    /// Gives a key another deadline without writing its value anew; revision and lease stay. `None`: there is
    /// no such key. [`Deadline::Never`] takes the deadline away.
    pub fn touch(&self, key: &[u8], deadline: Deadline) -> Result<Option<Ack>, WriteError> {
        self.touch_if(key, deadline, Expect::Present)
    }

    /// As [`touch`](Self::touch), if `expect` holds as well.
    pub fn touch_if(&self, key: &[u8], deadline: Deadline, expect: Expect<'_>) -> Result<Option<Ack>, WriteError> {
        let commit = touch_if(self, key, deadline, expect)?;
        absent_is_none(self.database().commit(&commit))
    }

    /// How long a key lives; `None`: there is no such key.
    pub fn lifetime(&self, key: &[u8]) -> Result<Option<Lifetime>, ReadError> {
        let snapshot = self.database().inner.open.machine.read_view();
        let Some(stored) = snapshot.get(self.id(), key)? else { return Ok(None) };
        let Expiry { deadline, lease } = stored.expiry;
        let remaining = snapshot.end_of(&stored.expiry)?.map(|end| between(snapshot.time(), end));
        Ok(Some(Lifetime { revision: stored.revision, deadline, lease, remaining }))
    }
}

impl Database {
    /// What is left of what ends so; `None`: it does not end. Zero once it has.
    pub fn remaining(&self, expiry: &Expiry) -> Result<Option<Duration>, ReadError> {
        if *expiry == Expiry::NEVER {
            return Ok(None);
        }
        let snapshot = self.inner.open.machine.read_view();
        Ok(snapshot.end_of(expiry)?.map(|end| between(snapshot.time(), end)))
    }

    /// The space's time: what deadlines are compared with.
    #[must_use]
    pub fn space_time(&self) -> SpaceTime {
        self.inner.open.solo.now()
    }
}

/// The commit of a touch, which fails if there is no such key, or `expect` does not hold of it.
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

/// An ack, or `None` if the key was not there.
pub(crate) fn absent_is_none(answer: Result<Ack, WriteError>) -> Result<Option<Ack>, WriteError> {
    match answer {
        Err(WriteError::ConditionFailed { actual: None, .. }) => Ok(None),
        answer => answer.map(Some),
    }
}

/// From `now` to `end`; zero if that has passed.
pub(crate) fn between(now: SpaceTime, end: SpaceTime) -> Duration {
    Duration::from_micros(end.0.saturating_sub(now.0))
}
