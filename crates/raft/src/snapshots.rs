//! Snapshots of the state for consensus: the leader reads them in chunks, and a follower receives them in chunks.
//!
//! Owns: the traits for reading and receiving snapshots, and the handle of a snapshot that openraft passes on. Does not
//! own: the content of chunks (`engine`), or their transport (the network).
//!
//! A snapshot can be read from the leader's state at any time, so none is built in advance. openraft's snapshot is only
//! a position; a view of the state is opened when the network begins to send. The follower's network writes the chunks
//! to a [`SnapshotWriter`] and then hands the writer to consensus. Consensus installs the snapshot if the sender still
//! leads.

use std::{fmt, io, rc::Rc};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use thalweg_replica::Membership;
use thalweg_state::membership::LogId;
use thalweg_types::Index;

/// Position of a snapshot in the replicated log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// Last entry whose effects the snapshot contains.
    pub last: LogId,
    /// Membership (voters and learners) as of the snapshot's last entry, with the id of the entry that contains the
    /// membership.
    pub membership: (LogId, Membership),
}

/// Builds and installs snapshots of one node's state. The methods are called on the consensus thread; long work runs on
/// other threads, and the returned future waits for it.
pub trait Snapshots: fmt::Debug + 'static {
    /// Opens a snapshot for reading: of the present state, or an earlier one whose transfer was interrupted and that
    /// contains the entry `least`. A snapshot must contain this entry, because openraft counts a follower with the
    /// snapshot as having the entries up to `least`.
    fn open(&self, least: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>>;
    /// Begins to receive the snapshot `id`. If an earlier call began to receive a snapshot with the same `id`,
    /// continues it.
    fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>>;
}

/// Identity of one snapshot of one node. An interrupted transfer continues if the identities are equal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// Position of the snapshot in the replicated log.
    pub position: SnapshotPosition,
    /// Random number that distinguishes snapshots with equal positions.
    pub nonce: u64,
}

/// A snapshot that is read in chunks.
pub trait SnapshotReader: fmt::Debug {
    /// Identity and position of the snapshot.
    fn id(&self) -> &SnapshotId;
    /// Returns the chunk with this number, counted from 0; `None` after the last one. The caller reads chunks in order,
    /// and may begin with any number.
    fn chunk(&mut self, number: u64) -> LocalBoxFuture<'_, io::Result<Option<Bytes>>>;
}

/// A snapshot that is received in chunks.
pub trait SnapshotWriter: fmt::Debug {
    /// Identity and position of the snapshot.
    fn id(&self) -> &SnapshotId;
    /// Returns the number of the next chunk; above 0 if the transfer continues an earlier one.
    fn next(&self) -> u64;
    /// Writes the next chunk to disk, beside the live state.
    fn write(&mut self, chunk: Bytes) -> LocalBoxFuture<'_, io::Result<()>>;
    /// Checks that the snapshot is complete, and makes it durable beside the live state. Every step that needs disk
    /// space belongs here: if it fails, the sender gets the error and sends a snapshot again later.
    fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>>;
    /// Replaces the live state with the prepared snapshot. A crash at any moment leaves the old state or the new one.
    /// Afterwards the state's applied position is that of the snapshot. Consensus repeats an attempt that returns
    /// [`Switch::Failed`]. An error ends consensus on this node, because openraft then counts entries as applied that
    /// the state lacks.
    fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>>;
}

/// Result of one attempt to replace the live state with that of a snapshot.
#[derive(Debug)]
pub enum Switch {
    /// The live state is now that of the snapshot.
    Done,
    /// The attempt has failed, and the live state is unchanged.
    Failed(io::Error),
}

/// Handle of a snapshot that openraft passes from one of its callers to another.
#[derive(Clone)]
pub enum SnapshotHandle {
    /// A snapshot to send. The network opens it with [`Snapshots::open`] and sends the position of the opened snapshot.
    /// This position may be later than the one that openraft knows, but not earlier.
    Send(Option<Rc<dyn Snapshots>>),
    /// A snapshot that has been received completely.
    Received(Rc<std::cell::RefCell<Option<Box<dyn SnapshotWriter>>>>),
}

impl SnapshotHandle {
    /// Creates the handle of a snapshot that has been received completely.
    #[must_use]
    pub fn received(writer: Box<dyn SnapshotWriter>) -> Self {
        Self::Received(Rc::new(std::cell::RefCell::new(Some(writer))))
    }
}

impl fmt::Debug for SnapshotHandle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Send(_) => "SnapshotHandle::Send",
            Self::Received(_) => "SnapshotHandle::Received",
        })
    }
}
