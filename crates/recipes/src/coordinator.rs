//! What the recipes need of a database.

use std::time::Duration;

use thalweg_types::{LeaseId, Revision};

/// A contender's key and when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contender {
    /// The key.
    pub key: Vec<u8>,
    /// Its place: the lowest is first.
    pub revision: Revision,
}

/// What came of entering.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entered {
    /// The key is there, at this revision.
    At(Revision),
    /// Its lease has ended before.
    LeaseEnded,
    /// There was such a key already.
    Taken,
}

/// What a watch is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Watched<'a> {
    /// A key.
    Key(&'a [u8]),
    /// All keys that begin with this.
    Prefix(&'a [u8]),
}

/// What a watch has seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Noticed {
    /// The time is up, and nothing has changed.
    Nothing,
    /// These keys have changed, in this order: written, deleted or expired.
    Keys(Vec<Vec<u8>>),
    /// More may have changed than the watch can tell: it is at an end, so look, and watch anew.
    Unknown,
}

/// A watch from the moment on at which it was made.
pub trait Watching {
    /// Waits for changes, at most so long. May come back with [`Noticed::Nothing`] earlier.
    fn wait(&mut self, timeout: Duration) -> Noticed;
}

/// The few operations of a keyspace that the recipes are made of. Its clones are handles of the same.
///
/// Whatever it reads must be what is there now, never an older state: who decides by that goes first.
pub trait Coordinator: Clone {
    /// Why an operation failed.
    type Error: std::error::Error;
    /// Its watches.
    type Watch: Watching;

    /// Longest wait without a look at what is waited for: a lease that ends hides its keys before anybody removes
    /// them, and only the removal is told to watches. Each look is one [`get`](Self::get).
    const LOOK_EVERY: Duration = Duration::from_secs(1);

    /// Whether the same may succeed a moment later.
    fn is_transient(error: &Self::Error) -> bool;

    /// Time that never goes back and runs as fast as that in which leases are measured. A holder counts by it how
    /// long its lease lives for certain.
    fn now(&self) -> Duration;

    /// Grants a lease.
    fn grant(&self, ttl: Duration) -> Result<LeaseId, Self::Error>;

    /// Lets a lease live for another TTL; `false` if it has ended.
    fn keep_alive(&self, lease: LeaseId) -> Result<bool, Self::Error>;

    /// Ends a lease and with it its keys; fine if it has ended.
    fn revoke(&self, lease: LeaseId) -> Result<(), Self::Error>;

    /// Writes a key that lives as long as the lease, if there is none of that name.
    fn enter(&self, key: &[u8], value: &[u8], lease: LeaseId) -> Result<Entered, Self::Error>;

    /// A key's revision and value.
    fn get(&self, key: &[u8]) -> Result<Option<(Revision, Vec<u8>)>, Self::Error>;

    /// The keys with a prefix, of one moment, in any order: at most `limit`.
    fn list(&self, prefix: &[u8], limit: usize) -> Result<Vec<Contender>, Self::Error>;

    /// Watches: no change that comes after this call's return is missed.
    fn watch(&self, watched: Watched<'_>) -> Result<Self::Watch, Self::Error>;
}
