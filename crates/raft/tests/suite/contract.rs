//! openraft's own test suite for logs and state machines, on the simulated disk and on a real one.

use std::{cell::RefCell, io, rc::Rc, sync::Arc};

use futures_util::{Stream, StreamExt};
use openraft::{
    EntryPayload, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta, StorageError, StoredMembership,
    storage::{EntryResponder, RaftStateMachine},
    testing::log::{StoreBuilder, Suite},
    vote::leader_id_std::CommittedLeaderId,
};
use thalweg_disk::{Disk, RealDisk, SimDisk};
use thalweg_raft::{Base, RaftLogId, StoreOptions, SyncThread};
use thalweg_replica::NodeInfo;

use crate::common::*;

type Meta = SnapshotMeta<CommittedLeaderId<u64>, u64, NodeInfo>;
type Stored = StoredMembership<CommittedLeaderId<u64>, u64, NodeInfo>;
type Snap = Snapshot<CommittedLeaderId<u64>, u64, NodeInfo, ()>;

/// A state machine in memory, which stores only what openraft requires.
#[derive(Clone, Default)]
struct Toy(Rc<RefCell<ToyState>>);

#[derive(Default)]
struct ToyState {
    applied: Option<RaftLogId>,
    membership: Stored,
    snapshot: Option<Meta>,
}

impl RaftStateMachine<Types> for Toy {
    type SnapshotData = ();
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, Stored)> {
        let state = self.0.borrow();
        Ok((state.applied, state.membership.clone()))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        while let Some(entry) = entries.next().await {
            let (entry, responder) = entry?;
            let mut state = self.0.borrow_mut();
            state.applied = Some(entry.log_id);
            if let EntryPayload::Membership(membership) = entry.payload {
                state.membership = Stored::new(Some(entry.log_id), membership);
            }
            if let Some(responder) = responder {
                responder.send(thalweg_raft::Response::default());
            }
        }
        Ok(())
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(&mut self, meta: &Meta, (): ()) -> io::Result<()> {
        let mut state = self.0.borrow_mut();
        state.applied = meta.last_log_id;
        state.membership = meta.last_membership.clone();
        state.snapshot = Some(meta.clone());
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<Snap>> {
        Ok(self.0.borrow().snapshot.clone().map(|meta| Snapshot { meta, snapshot: () }))
    }
}

impl RaftSnapshotBuilder<Types> for Toy {
    type SnapshotData = ();

    async fn build_snapshot(&mut self) -> io::Result<Snap> {
        let mut state = self.0.borrow_mut();
        let meta = Meta { last_log_id: state.applied, last_membership: state.membership.clone() };
        state.snapshot = Some(meta.clone());
        Ok(Snapshot { meta, snapshot: () })
    }
}

#[derive(Clone, Copy)]
enum On {
    SimDisk,
    RealDisk,
}

struct Builder(On);

impl StoreBuilder<Types, Store, Toy, Option<tempfile::TempDir>> for Builder {
    async fn build(&self) -> Result<(Option<tempfile::TempDir>, Store, Toy), StorageError<Types>> {
        let (dir, disk): (_, Arc<dyn Disk>) = match self.0 {
            On::SimDisk => (None, Arc::new(SimDisk::new(1))),
            On::RealDisk => {
                let dir = tempfile::tempdir().unwrap();
                let disk = Arc::new(RealDisk::open(dir.path()).unwrap());
                (Some(dir), disk)
            }
        };
        let log = open_log(disk).unwrap();
        let queue = Arc::new(Queue::new(log.clone()));
        let driver = Arc::new(SyncThread::start(Arc::clone(&queue)).unwrap());
        let store = Store::open(log, SPACE, &Base::default(), StoreOptions::default(), queue, driver).unwrap();
        Ok((dir, store, Toy::default()))
    }
}

#[test]
fn openraft_accepts_the_log_on_the_simulated_disk() {
    run(Suite::test_all(Builder(On::SimDisk))).unwrap();
}

#[test]
fn openraft_accepts_the_log_on_a_real_disk() {
    run(Suite::test_all(Builder(On::RealDisk))).unwrap();
}
