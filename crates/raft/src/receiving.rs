//! The snapshot that a node is receiving.
//!
//! Owns: the choice between the senders of snapshots, and the end of a snapshot whose sender is silent. Does not own:
//! the content of chunks ([`SnapshotWriter`]), or how they travel (the network).
//!
//! A database allows one install at a time, and an install in progress keeps segments of the log from being freed. A
//! leader that fails in the middle of a transfer must not block its successor. So a snapshot from a leader of an equal
//! or later term replaces the unfinished one. If no other snapshot begins, the unfinished one is dropped after its
//! sender has been silent for a while.

use std::{cell::RefCell, io};

use thalweg_types::NodeId;

use crate::{
    snapshots::{SnapshotId, SnapshotWriter, Snapshots},
    types::RaftVote,
};

/// A snapshot that one sender has begun to transfer, with the chunks that have arrived.
#[derive(Debug)]
pub struct Reception {
    /// Writer to which this node passes the chunks of the snapshot.
    pub writer: Box<dyn SnapshotWriter>,
    from: NodeId,
    vote: RaftVote,
    /// Number of calls of [`Receiving::tick`] since the last chunk of the snapshot arrived.
    idle_ticks: u32,
}

/// Reply to a sender that asks to begin a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The sender must continue with the chunk of this number.
    Next(u64),
    /// A newer leader with this vote already sends a snapshot, so the request is refused.
    Higher(RaftVote),
}

/// The snapshot that a node is receiving from a leader, if there is one.
#[derive(Debug)]
pub struct Receiving {
    /// Snapshot that is being received; `None` if there is none, and while a chunk is being written.
    current: RefCell<Option<Reception>>,
    max_idle_ticks: u32,
}

impl Receiving {
    /// Creates the state of a node that receives no snapshot. It drops a snapshot after more than `max_idle_ticks`
    /// calls of [`tick`](Self::tick) without a chunk.
    #[must_use]
    pub fn new(max_idle_ticks: u32) -> Self {
        Self { current: RefCell::default(), max_idle_ticks }
    }

    /// Begins or continues a snapshot from a leader with the given vote. Drops any other snapshot; if a newer leader
    /// sends that one, refuses the request instead.
    pub async fn begin(
        &self,
        snapshots: &dyn Snapshots,
        (from, vote): (NodeId, RaftVote),
        id: &SnapshotId,
    ) -> io::Result<Begun> {
        let newer = self.current.borrow().as_ref().map(|current| current.vote).filter(|newer| *newer > vote);
        if let Some(newer) = newer {
            return Ok(Begun::Higher(newer));
        }
        // The writer of another snapshot is dropped first, because a node receives one snapshot at a time.
        let before = self.current.borrow_mut().take();
        let is_same = |before: &Reception| before.from == from && before.writer.id().nonce == id.nonce;
        let writer = match before.filter(is_same) {
            Some(before) => before.writer,
            None => snapshots.receive(id).await?,
        };
        let next = writer.next();
        self.put_back(Reception { writer, from, vote, idle_ticks: 0 });
        Ok(Begun::Next(next))
    }

    /// Removes and returns the snapshot that node `from` is transferring with number `nonce`, so that the caller can
    /// write its next chunk or install it. Returns `None` if this node no longer receives it.
    pub fn take(&self, from: NodeId, nonce: u64) -> Option<Reception> {
        let is_this = |current: &mut Reception| current.from == from && current.writer.id().nonce == nonce;
        self.current.borrow_mut().take_if(is_this)
    }

    /// Puts a snapshot back after a chunk was written. Drops it if a newer leader has begun another one in the
    /// meantime.
    pub fn put_back(&self, reception: Reception) {
        let mut current = self.current.borrow_mut();
        let is_outdated = current.as_ref().is_some_and(|current| current.vote > reception.vote);
        if !is_outdated {
            *current = Some(Reception { idle_ticks: 0, ..reception });
        }
    }

    /// Called periodically. Drops the snapshot if its sender has sent no chunk for too many calls; returns the sender
    /// in this case.
    pub fn tick(&self) -> Option<NodeId> {
        let mut current = self.current.borrow_mut();
        current.as_mut()?.idle_ticks += 1;
        current.take_if(|current| current.idle_ticks > self.max_idle_ticks).map(|ended| ended.from)
    }
}

#[cfg(test)]
mod tests {
    use std::{
        collections::{BTreeMap, BTreeSet},
        rc::Rc,
    };

    use bytes::Bytes;
    use futures_util::{FutureExt, future::LocalBoxFuture};
    use thalweg_replica::{Membership, NodeInfo, Vote};
    use thalweg_state::membership::LogId;
    use thalweg_types::{Index, Term};

    use super::*;
    use crate::snapshots::{SnapshotPosition, SnapshotReader, Switch};

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const MAX_IDLE_TICKS: u32 = 3;

    /// Snapshots of a node that, like a database, allows only one install in progress.
    #[derive(Debug, Default)]
    struct OneInstall(Rc<()>);

    #[derive(Debug)]
    struct Writer {
        id: SnapshotId,
        next: u64,
        _install: Rc<()>,
    }

    impl Snapshots for OneInstall {
        fn open(&self, _: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>> {
            async { Err(io::Error::other("this node sends no snapshots")) }.boxed_local()
        }

        fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>> {
            async move {
                if Rc::strong_count(&self.0) > 1 {
                    return Err(io::Error::other("another install is in progress"));
                }
                let writer = Writer { id: id.clone(), next: 0, _install: Rc::clone(&self.0) };
                Ok(Box::new(writer) as Box<dyn SnapshotWriter>)
            }
            .boxed_local()
        }
    }

    impl SnapshotWriter for Writer {
        fn id(&self) -> &SnapshotId {
            &self.id
        }

        fn next(&self) -> u64 {
            self.next
        }

        fn write(&mut self, _: Bytes) -> LocalBoxFuture<'_, io::Result<()>> {
            self.next += 1;
            async { Ok(()) }.boxed_local()
        }

        fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>> {
            async { Ok(()) }.boxed_local()
        }

        fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>> {
            async { Ok(Switch::Done) }.boxed_local()
        }
    }

    fn id(nonce: u64) -> SnapshotId {
        let members = BTreeMap::from([(A, NodeInfo::at("n1:1"))]);
        let membership = Membership::new(vec![BTreeSet::from([A])], members).unwrap();
        let last = LogId { term: Term(1), index: Index(9) };
        SnapshotId { position: SnapshotPosition { last, membership: (last, membership) }, nonce }
    }

    fn committed(term: u64, leader: NodeId) -> RaftVote {
        crate::convert::raft_vote(Vote { term: Term(term), node: leader, committed: true })
    }

    struct Node {
        receiving: Receiving,
        snapshots: OneInstall,
    }

    impl Node {
        fn new() -> Self {
            Self { receiving: Receiving::new(MAX_IDLE_TICKS), snapshots: OneInstall::default() }
        }

        fn begin(&self, from: NodeId, term: u64, nonce: u64) -> io::Result<Begun> {
            let (leader, id) = ((from, committed(term, from)), id(nonce));
            self.receiving.begin(&self.snapshots, leader, &id).now_or_never().unwrap()
        }

        fn write_chunk(&self, from: NodeId, nonce: u64) {
            let mut reception = self.receiving.take(from, nonce).unwrap();
            reception.writer.write(Bytes::new()).now_or_never().unwrap().unwrap();
            self.receiving.put_back(reception);
        }
    }

    #[test]
    fn a_new_leader_takes_the_place_of_one_that_failed_between_two_chunks() {
        let node = Node::new();
        assert_eq!(node.begin(A, 1, 11).unwrap(), Begun::Next(0));
        node.write_chunk(A, 11);
        assert_eq!(node.begin(B, 2, 22).unwrap(), Begun::Next(0));
        node.write_chunk(B, 22);
        assert!(node.receiving.take(A, 11).is_none());
        // A request of the former leader that arrives late changes nothing.
        let Begun::Higher(vote) = node.begin(A, 1, 11).unwrap() else { panic!("the former leader takes over") };
        assert_eq!(vote, committed(2, B));
        assert_eq!(node.begin(B, 2, 22).unwrap(), Begun::Next(1));
    }

    #[test]
    fn a_new_leader_waits_for_a_chunk_that_is_being_written() {
        let node = Node::new();
        node.begin(A, 1, 11).unwrap();
        let writing = node.receiving.take(A, 11).unwrap();
        node.begin(B, 2, 22).unwrap_err();
        node.receiving.put_back(writing);
        assert_eq!(node.begin(B, 2, 22).unwrap(), Begun::Next(0));
    }

    #[test]
    fn a_transfer_that_was_interrupted_continues_and_another_one_begins_anew() {
        let node = Node::new();
        node.begin(A, 1, 11).unwrap();
        node.write_chunk(A, 11);
        // The same sender was elected again, so it continues its snapshot.
        assert_eq!(node.begin(A, 3, 11).unwrap(), Begun::Next(1));
        assert!(node.receiving.take(A, 12).is_none());
        assert_eq!(node.begin(A, 3, 12).unwrap(), Begun::Next(0));
    }

    #[test]
    fn a_snapshot_ends_with_the_silence_of_its_sender() {
        let node = Node::new();
        node.begin(A, 1, 11).unwrap();
        for _ in 0..2 {
            assert!((0..MAX_IDLE_TICKS).all(|_| node.receiving.tick().is_none()));
            node.write_chunk(A, 11);
        }
        assert!((0..MAX_IDLE_TICKS).all(|_| node.receiving.tick().is_none()));
        assert_eq!(node.receiving.tick(), Some(A));
        assert_eq!(Rc::strong_count(&node.snapshots.0), 1, "the install has ended");
        assert_eq!(node.receiving.tick(), None);
    }
}
