//! The interface through which the recipes (locks, semaphores and elections) use a database.

use std::time::Duration;

use thalweg_types::{LeaseId, Revision};

/// Key of a contender (a client that waits for or holds a lock, slot or leadership) and the revision at which
/// the key was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// Key of the contender.
    pub key: Vec<u8>,
    /// Revision at which the contender's key was written. It is the contender's position in the queue: the
    /// contender with the lowest revision is first.
    pub revision: Revision,
}

/// Result of writing a contender's key, by which the contender enters the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EnterResult {
    /// The key was written at this revision, which is the contender's position.
    At(Revision),
    /// The contender's lease ended before the key was written.
    LeaseEnded,
    /// The key exists already, so nothing was written.
    Exists,
}

/// The key or keys that a watch observes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// The watch observes a single key.
    Key(&'a [u8]),
    /// The watch observes all keys with this prefix.
    Prefix(&'a [u8]),
}

/// Result of waiting for a watch to report changes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WatchResult {
    /// The timeout has passed without a change of the watched keys.
    Nothing,
    /// Keys that were written, deleted or have expired, in the order of these changes.
    Keys(Vec<Vec<u8>>),
    /// The watch has ended and may have missed changes. Read the keys and create another watch.
    Unknown,
}

/// A watch that reports changes since its creation.
pub trait KeyWatch {
    /// Waits until watched keys change, at most for `timeout`. Can return [`WatchResult::Nothing`] earlier.
    fn wait(&mut self, timeout: Duration) -> WatchResult;
}

/// The operations of a keyspace that the recipes need. Clones are handles of the same keyspace.
///
/// Every read must return the current state, never an older one, because contenders decide by the returned
/// keys which of them holds the lock.
pub trait Coordinator: Clone {
    /// Error type of this database's operations.
    type Error: std::error::Error;
    /// Type of the watches that this database creates.
    type Watch: KeyWatch;

    /// Maximum time between two reads of the previous contender's key, while a contender waits for the removal of that
    /// key. When a lease ends, its keys disappear from reads at once, but watches report them only when the database
    /// removes them later. Each read costs one [`get`](Self::get).
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    /// Returns true if the operation that failed with this error may succeed when it is repeated a moment
    /// later.
    fn is_transient(error: &Self::Error) -> bool;

    /// Current time of a monotonic clock that runs at the same speed as the database's clock, by which leases end. A
    /// holder uses this time to compute how long its lease certainly lives.
    fn now(&self) -> Duration;

    /// Grants a lease that lives for `ttl`.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, Self::Error>;

    /// Extends a lease by another TTL (time to live). Returns `false` if the lease has ended.
    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Self::Error>;

    /// Ends a lease and deletes the keys attached to it. Succeeds also if the lease has already ended.
    fn revoke(&self, lease: LeaseId) -> Result<(), Self::Error>;

    /// Writes a key and attaches it to the lease, unless the key exists already.
    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<EnterResult, Self::Error>;

    /// Returns a key's revision and value, or `None` if it does not exist.
    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Self::Error>;

    /// Lists up to `limit` keys with a prefix, in any order, as of one point in time.
    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Self::Error>;

    /// Creates a watch of keys. The watch reports every change made after this call returns.
    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Self::Error>;
}
