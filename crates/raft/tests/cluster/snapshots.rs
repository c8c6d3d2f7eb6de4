//! A node that lacks purged entries gets the state of another one.
//!
//! The snapshots of these tests contain rows only, without bytes in the log, and are installed in memory.

use std::{cell::Cell, collections::BTreeSet, io, rc::Rc, sync::Arc};

use bytes::Bytes;
use futures_util::future::LocalBoxFuture;
use thalweg_disk::SimDisk;
use thalweg_log::Log;
use thalweg_raft::{SnapshotId, SnapshotPosition, SnapshotReader, SnapshotWriter, Snapshots, Switch};
use thalweg_replica::{Member, Membership, NodeInfo, ProposeError};
use thalweg_state::{
    machine::{Machine, MachineOptions},
    membership::{AppliedMembership, LogId},
    portable::{self, Row},
};
use thalweg_store::{
    Applied, Backend, BarrierFailed, Direction, LogBarrier, WriteBatch,
    memory::{MemoryBackend, MemoryOptions},
};
use thalweg_types::{Action, Classified, Index, NodeId};

use crate::{
    commands::{put, run},
    node::Cluster,
};

thread_local! {
    /// Number of attempts to switch to a snapshot's state that will fail on this thread.
    static FAILING_SWITCHES: Cell<u32> = const { Cell::new(0) };
}

#[derive(Debug)]
struct NoBarrier;

impl LogBarrier for NoBarrier {
    fn sync_through(&self, _: thalweg_types::Lsn) -> Result<(), BarrierFailed> {
        Ok(())
    }
}

/// Snapshots of a node's state.
#[derive(Debug)]
pub struct Copies {
    machine: Arc<Machine>,
    log: Log,
}

impl Copies {
    pub fn of(member: &Member) -> Rc<dyn Snapshots> {
        Rc::new(Self { machine: Arc::clone(member.machine()), log: member.log().clone() })
    }
}

type Rows = Vec<(Vec<u8>, Vec<u8>)>;

#[derive(Debug)]
struct Reader {
    id: SnapshotId,
    applied: Applied,
    rows: Rows,
}

#[derive(Debug)]
struct Writer {
    id: SnapshotId,
    machine: Arc<Machine>,
    log: Log,
    chunks: Vec<Bytes>,
}

impl Snapshots for Copies {
    fn open(&self, _: Index) -> LocalBoxFuture<'_, io::Result<Box<dyn SnapshotReader>>> {
        let applied = self.machine.applied();
        let stored = self.machine.membership().unwrap().unwrap();
        let membership = (stored.id, Membership::decode(&stored.payload).unwrap());
        let last = LogId { term: applied.term, index: applied.index };
        let id = SnapshotId { position: SnapshotPosition { last, membership }, nonce: 1 };
        let mut rows = Rows::new();
        let everything = (std::ops::Bound::Unbounded, std::ops::Bound::Unbounded);
        let view = self.machine.backend().view();
        view.scan(everything.0, everything.1, Direction::Forward, &mut |key, value| {
            if !matches!(portable::sort(key, value), Ok(Row::Local)) {
                rows.push((key.to_vec(), value.to_vec()));
            }
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
        Box::pin(async move { Ok(Box::new(Reader { id, applied, rows }) as Box<dyn SnapshotReader>) })
    }

    fn receive<'a>(&'a self, id: &'a SnapshotId) -> LocalBoxFuture<'a, io::Result<Box<dyn SnapshotWriter>>> {
        let (machine, log) = (Arc::clone(&self.machine), self.log.clone());
        let writer = Writer { id: id.clone(), machine, log, chunks: Vec::new() };
        Box::pin(async move { Ok(Box::new(writer) as Box<dyn SnapshotWriter>) })
    }
}

impl SnapshotReader for Reader {
    fn id(&self) -> &SnapshotId {
        &self.id
    }

    /// Chunk 0 is the position; each later chunk is the key or the value of a row.
    fn chunk(&mut self, number: u64) -> LocalBoxFuture<'_, io::Result<Option<Bytes>>> {
        let found = match number.checked_sub(1) {
            None => {
                let Applied { term, index, revision, time, running_hash, .. } = self.applied;
                let fields = [term.0, index.0, revision.0, time.0, running_hash];
                Some(fields.iter().flat_map(|field| field.to_le_bytes()).collect())
            }
            Some(number) => self
                .rows
                .get(number as usize / 2)
                .map(|(key, value)| Bytes::from(if number % 2 == 0 { key.clone() } else { value.clone() })),
        };
        Box::pin(async move { Ok(found) })
    }
}

impl SnapshotWriter for Writer {
    fn id(&self) -> &SnapshotId {
        &self.id
    }

    fn next(&self) -> u64 {
        self.chunks.len() as u64
    }

    fn write(&mut self, chunk: Bytes) -> LocalBoxFuture<'_, io::Result<()>> {
        self.chunks.push(chunk);
        Box::pin(async { Ok(()) })
    }

    fn prepare(&mut self) -> LocalBoxFuture<'_, io::Result<()>> {
        Box::pin(async { Ok(()) })
    }

    fn install(&mut self) -> LocalBoxFuture<'_, io::Result<Switch>> {
        if let Some(left) = FAILING_SWITCHES.get().checked_sub(1) {
            FAILING_SWITCHES.set(left);
            return Box::pin(async { Ok(Switch::Failed(io::Error::other("the rename failed"))) });
        }
        let fields: Vec<u64> =
            self.chunks[0].chunks(8).map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())).collect();
        let [term, index, revision, time, running_hash] = fields[..] else { panic!("{fields:?}") };
        let applied = Applied {
            lsn: self.log.end(),
            term: thalweg_types::Term(term),
            index: Index(index),
            revision: thalweg_types::Revision(revision),
            time: thalweg_types::SpaceTime(time),
            running_hash,
        };
        let disk = Arc::new(SimDisk::new(99));
        let backend = MemoryBackend::open(disk, MemoryOptions::default(), Arc::new(NoBarrier)).unwrap();
        let mut batch = WriteBatch::new();
        for row in self.chunks[1..].chunks(2) {
            batch.put(&[&row[0]], &[&row[1]]);
        }
        let (id, membership) = &self.id.position.membership;
        let membership = AppliedMembership { id: *id, payload: membership.encode().into(), removed: BTreeSet::new() };
        let vote = self.machine.vote().unwrap();
        portable::follow(&mut batch, &applied, &membership, vote.as_deref());
        backend.apply(&batch, applied).unwrap();
        let other = Machine::open(Arc::new(backend), MachineOptions::default()).unwrap();
        drop(self.machine.begin_replacement().finish(other).unwrap());
        Box::pin(async { Ok(Switch::Done) })
    }
}

#[test]
fn a_new_member_gets_the_state_and_the_entries_after_it() {
    run(async {
        let cluster = Cluster::founded(3).await;
        for number in 0..50 {
            cluster.write(&put(&format!("{number}"), &[1; 20])).await;
        }
        let leader = cluster.leader().await;
        for node in cluster.nodes() {
            node.machine.backend().flush().unwrap();
            node.consensus.purge_through(Index(40));
        }
        let purged = || {
            let all = cluster.nodes().iter().all(|node| node.consensus.reader().purged().is_some());
            all.then_some(())
        };
        cluster.wait("the purge", purged).await;
        leader.consensus.add_learner(NodeId(4), NodeInfo::at("node4:1")).await.unwrap();
        let learner = cluster.start(4).await;
        cluster.wait_equal(leader.machine.applied().index).await;
        let is_purged = || {
            let purged = learner.consensus.reader().purged();
            purged.is_some_and(|purged| purged.index >= Index(40)).then_some(())
        };
        cluster.wait("the purge of the learner", is_purged).await;
        assert_eq!(learner.get("3"), Some(vec![1; 20]));
        cluster.wait("the learner's answer", || caught_up(&leader, 4)).await;
        leader.consensus.promote(NodeId(4)).await.unwrap();
        cluster.write(&put("more", b"v")).await;
        // A new leader's blank entry carries the time of the entry before it, which some nodes have in a snapshot.
        cluster.lose_power(leader.id, 8).await;
        cluster.write(&put("after", b"v")).await;
        cluster.wait_equal(Index(55)).await;
        assert_eq!(learner.get("after"), Some(b"v".to_vec()));
    });
}

/// Isolates a follower until the others have purged entries that it lacks, and heals the network.
async fn purge_beside(cluster: &Cluster) -> crate::node::Node {
    cluster.write(&put("before", b"v")).await;
    let follower = cluster.follower().await;
    // It keeps entries that no other node has any more.
    cluster.network.isolate(follower.id);
    for number in 0..30 {
        cluster.write_except(&[follower.id], &put(&format!("{number}"), b"v")).await;
    }
    let others: Vec<_> = cluster.nodes().into_iter().filter(|node| node.id != follower.id).collect();
    for node in &others {
        node.machine.backend().flush().unwrap();
        node.consensus.purge_through(Index(20));
    }
    let purged = || others.iter().all(|node| node.consensus.reader().purged().is_some()).then_some(());
    cluster.wait("the purge", purged).await;
    cluster.network.heal();
    follower
}

#[test]
fn a_node_that_was_away_while_entries_were_purged_gets_the_state() {
    run(async {
        let cluster = Cluster::founded(3).await;
        // An attempt that changes nothing is repeated.
        FAILING_SWITCHES.set(2);
        let follower = purge_beside(&cluster).await;
        cluster.wait_equal(Index(30)).await;
        assert_eq!((FAILING_SWITCHES.get(), follower.get("29")), (0, Some(b"v".to_vec())));
        cluster.write(&put("after", b"v")).await;
        cluster.wait_equal(Index(31)).await;
    });
}

#[test]
fn a_node_that_cannot_switch_to_a_snapshot_says_so_and_recovers_with_a_restart() {
    run(async {
        let cluster = Cluster::founded(3).await;
        FAILING_SWITCHES.set(u32::MAX);
        let follower = purge_beside(&cluster).await;
        let ended = cluster.wait("the end of consensus", || follower.member.failure()).await;
        assert!(ended.contains("the rename failed") && ended.contains("restart the node"), "{ended}");
        let error = follower.propose(put("refused", b"v")).await.unwrap_err();
        assert!(matches!(&error, ProposeError::State(reason) if *reason == ended), "{error}");
        assert_eq!((error.code(), error.action()), ("state_failed", Action::Stop));
        assert_eq!(follower.get("29"), None, "the former state is still there");
        cluster.write_except(&[follower.id], &put("30", b"v")).await;
        FAILING_SWITCHES.set(0);
        cluster.lose_power(follower.id, 7).await;
        let follower = cluster.start(follower.id).await;
        cluster.wait_equal(Index(31)).await;
        assert_eq!(follower.get("30"), Some(b"v".to_vec()));
    });
}

fn caught_up(leader: &crate::node::Node, node: u64) -> Option<()> {
    let status = leader.consensus.status();
    let learner = &status.members[&NodeId(node)];
    (learner.matched == status.last.map(|last| last.index) && learner.last_answer.is_some()).then_some(())
}
