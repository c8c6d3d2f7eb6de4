//! The interface through which the recipes use a database.

use std::time::Duration;

use thalweg_types::{LeaseId, Revision};

/// Key of a contender and the revision of its write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Key of the contender.
    pub key: Vec<u8>,
    /// Revision of the write, which is the contender's position: the lowest is first.
    pub revision: Revision,
}

/// Result of entering the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The key was written at this revision.
    At(Revision),
    /// The lease ended before the write.
    LeaseEnded,
    /// The key exists already.
    Taken,
}

/// The key or keys that a watch observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// A single key.
    Key(&'a [u8]),
    /// All keys with this prefix.
    Prefix(&'a [u8]),
}

/// Result of waiting on a watch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The timeout has passed without a change.
    Nothing,
    /// These keys have changed, in this order: written, deleted or expired.
    Keys(Vec<Vec<u8>>),
    /// The watch has ended and may have missed changes. Read the keys and create another watch.
    Unknown,
}

/// A watch that reports changes since its creation.
pub trait Watching {
    /// Waits for changes, at most for `timeout`. Can return [`Noticed::Nothing`] earlier.
    fn wait(&mut self, timeout: Duration) -> Noticed;
}

/// The operations of a keyspace that the recipes need. Clones are handles to the same keyspace.
///
/// Every read must return the current state, never an older one, because contenders decide by it who holds.
pub trait Coordinator: Clone {
    /// Error of a failed operation.
    type Error: std::error::Error;
    /// Type of the watches.
    type Watch: Watching;

    /// Maximum wait before a waiter reads the awaited key again. The end of a lease hides its keys before
    /// they are removed, and watches report only the removal. Each check costs one [`get`](Self::get).
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    /// Returns true if a retry may succeed a moment later.
    fn is_transient(error: &Self::Error) -> bool;

    /// Monotonic time that runs at the same speed as the time of leases. A holder uses it to compute how long
    /// its lease certainly lives.
    fn now(&self) -> Duration;

    /// Grants a lease that lives for `ttl`.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, Self::Error>;

    /// Extends a lease by another TTL. Returns `false` if it has ended.
    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Self::Error>;

    /// Ends a lease and deletes its keys. Succeeds if it has ended already.
    fn revoke(&self, lease: LeaseId) -> Result<(), Self::Error>;

    /// Writes a key attached to the lease, if the key does not exist.
    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<Entered, Self::Error>;

    /// Returns a key's revision and value, or `None` if it does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Self::Error>;

    /// Lists up to `limit` keys with a prefix, in any order, as of one point in time.
    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Self::Error>;

    /// Creates a watch. It reports every change made after this call returns.
    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Self::Error>;
}
