//! Snapshots of the state, as consensus needs them: read in chunks by the leader, received in chunks by a follower.
//!
//! Owns: the traits, and the handle that openraft passes on. Does not own: the content of chunks (`engine`), or how
//! they travel (the network).
//!
//! The leader's state is a snapshot at any time, so nothing is built in advance: openraft's snapshot is only a
//! position, and the view is opened when the network begins to send. The follower's network writes the chunks to a
//! [`SnapshotWriter`] and hands it to consensus, which lets it take effect if the sender still leads.

use std::{fmt, io, rc::Rc};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use thalweg_replica::Membership;
use thalweg_state::membership::LogId;
use thalweg_types::Index;

/// Position of a snapshot in its space's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotPosition {
    /// Last entry whose effects the snapshot contains.
    pub last: LogId,
    /// Membership of the space at that entry, and the entry that contained it.
    pub membership: (LogId, Membership),
}

/// Builds and installs snapshots of one node's state. The methods run on the consensus thread; those that block for
/// long do their work elsewhere and return a future.
pub trait Snapshots: fmt::Debug + 'static {
    /// Opens a snapshot for reading: of the present state, or one whose transfer was interrupted, if it contains the
    /// entry `least`. openraft assumes that a follower with the snapshot has the entries up to `least`, and counts them
    /// for the majority.
    fn open(&self, least: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>>;
    /// Begins to receive a snapshot, or continues one that an earlier call has begun to receive and that has the same
    /// `id`.
    fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>>;
}

/// Identifies one snapshot of one node, so that a transfer that was interrupted continues.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotId {
    /// Position of the snapshot.
    pub position: SnapshotPosition,
    /// Random number of this snapshot.
    pub nonce: u64,
}

/// A snapshot that is read in chunks.
pub trait SnapshotReader: fmt::Debug {
    /// Identity and position of the snapshot.
    fn id(&self) -> &SnapshotId;
    /// Returns the chunk with this number, counted from 0; `None` after the last one. Chunks are read in order. The
    /// first one that is read can have any number.
    fn chunk(&mut self, number: u64) -> LocalBoxFuture<'_, io::Result<Option<Bytes>>>;
}

/// A snapshot that is received in chunks.
pub trait SnapshotWriter: fmt::Debug {
    /// Identity and position of the snapshot.
    fn id(&self) -> &SnapshotId;
    /// Number of the next chunk, which is above 0 if a transfer continues.
    fn next(&self) -> u64;
    /// Writes the next chunk next to the live state.
    fn write(&mut self, chunk: Bytes) -> LocalBoxFuture<'_, io::Result<()>>;
    /// Checks that the snapshot is complete, and makes it durable next to the live state. Every step that can fail for
    /// lack of room belongs here: the sender gets the error, and sends a snapshot again later.
    fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>>;
    /// Replaces the live state with the prepared one. A crash at any moment leaves the old state or the new one.
    /// Afterwards the state's applied position is that of the snapshot. Consensus repeats an attempt that has changed
    /// nothing. An error ends the consensus of this node, because openraft's bookkeeping is then ahead of the state.
    fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>>;
}

/// Result of one attempt to replace the live state.
#[derive(Debug)]
pub enum Switch {
    /// The live state is that of the snapshot.
    Done,
    /// The attempt has failed and has changed nothing.
    Failed(io::Error),
}

/// The handle of a snapshot that openraft passes on.
#[derive(Clone)]
pub enum SnapshotHandle {
    /// A snapshot to send: the network opens it with [`Snapshots::open`], and sends its position in place of
    /// openraft's, which can be older and must not be newer.
    Send(Option<Rc<dyn Snapshots>>),
    /// A snapshot that has been received.
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
