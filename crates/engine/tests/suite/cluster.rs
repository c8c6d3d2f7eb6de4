//! Members of a group without consensus: one node leads all the time, and the test decides which entries reach which
//! nodes.

use std::{
    future::Future,
    io::IoSlice,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use thalweg_disk::SimDisk;
use thalweg_engine::{
    BackendKind, Database, MemberIdentity, MemberParts, Options, SteppedOptions,
    types::{Clock, ClusterId, Durability, Index, Lsn, ManualClock, NodeId, SpaceId, SpaceTime, Term},
};
use thalweg_log::{Draft, LogRecord, Purpose, RecordKind};
use thalweg_replica::{Leadership, NodeInfo};

use crate::common::{clock, small};

/// Term in which the founder of a group leads.
pub const TERM: Term = Term(1);

/// A member in stepped mode, on a simulated disk.
pub struct Node {
    pub db: Database,
    pub parts: MemberParts,
    pub disk: SimDisk,
}

impl Node {
    pub fn open(disk: &SimDisk, clock: &Arc<ManualClock>, seed: u64, options: &Options, how: MemberIdentity) -> Self {
        let clock: Arc<dyn Clock> = clock.clone();
        let stepped = SteppedOptions { disk: Arc::new(disk.clone()), clock, seed, os_dir: None };
        let db = Database::open_stepped(&stepped, options.clone(), Some(how)).unwrap();
        let parts = db.member_parts().expect("a member");
        Self { db, parts, disk: disk.clone() }
    }

    /// Appends records to the node's log, and makes them durable.
    pub fn append(&self, kind: RecordKind, (term, index): (Term, Index), time: SpaceTime, payload: &[u8]) -> Lsn {
        let draft = Draft { space: SpaceId::ZERO, kind, term, index, time, payload: &[IoSlice::new(payload)] };
        self.parts.log.append(&[draft], Durability::Disk, Purpose::Data).unwrap().first
    }

    pub fn receive(&self, record: &LogRecord) -> LogRecord {
        let id = (record.term, record.index);
        let lsn = self.append(record.kind, id, record.time, &record.payload);
        self.parts.member.clock().received(record.time);
        self.record(lsn)
    }

    pub fn record(&self, lsn: Lsn) -> LogRecord {
        self.parts.log.records_from(lsn).unwrap().next().unwrap().unwrap()
    }

    /// Returns the entries of the node's log, from an index on.
    pub fn entries(&self, from: Index) -> Vec<LogRecord> {
        let records = self.parts.log.records_from(self.parts.log.start()).unwrap().map(Result::unwrap);
        records.filter(|record| record.kind.has_index() && record.index >= from).collect()
    }

    /// Applies all entries of the node's log.
    pub fn apply_all(&self) {
        for record in self.entries(self.parts.machine.applied().index) {
            self.parts.member.apply(record.index, Some(&record), true, &mut Vec::new()).unwrap();
        }
    }

    pub fn applied(&self) -> Index {
        self.parts.machine.applied().index
    }
}

/// A group whose first node leads.
pub struct Group {
    pub nodes: Vec<Node>,
    pub clock: Arc<ManualClock>,
    pub cluster: ClusterId,
}

impl Group {
    /// Founds a group of nodes with the memory backend.
    pub fn founded(nodes: u64, options: &Options) -> Self {
        let clock = clock();
        let leader = Node::open(&SimDisk::new(1), &clock, 1, options, MemberIdentity::Found);
        let cluster = leader.db.report().cluster.expect("founded");
        let mut group = Self { nodes: vec![leader], clock, cluster };
        for seed in 2..=nodes {
            group.join(seed, options);
        }
        group.lead();
        group
    }

    fn join(&mut self, seed: u64, options: &Options) {
        let identity = MemberIdentity::Join { cluster: self.cluster };
        let node = Node::open(&SimDisk::new(seed), &self.clock, seed, options, identity);
        for record in self.nodes[0].entries(Index::ZERO) {
            let received = node.receive(&record);
            node.parts.member.apply(received.index, Some(&received), true, &mut Vec::new()).unwrap();
        }
        self.nodes.push(node);
    }

    /// Tells all nodes who leads.
    pub fn lead(&self) {
        let leader = (NodeId(1), NodeInfo { address: "first:1".to_owned(), ..NodeInfo::default() });
        for (number, node) in self.nodes.iter().enumerate() {
            node.parts.member.set_leadership(match number {
                0 => Leadership::Leader { term: TERM },
                _ => Leadership::Follower { leader: Some(leader.clone()), term: TERM },
            });
        }
    }

    pub fn leader(&self) -> &Node {
        &self.nodes[0]
    }

    /// Makes entries of the leader's queued commands, and commits them on all nodes. Returns the number of entries.
    pub fn commit(&self) -> usize {
        let (leader, mut entries) = (self.leader(), 0);
        while let Some(batch) = leader.parts.member.take_batch() {
            let record = self.write(batch.payload());
            let mut outcomes = Vec::new();
            leader.parts.member.apply(record.index, Some(&record), true, &mut outcomes).unwrap();
            for node in &self.nodes[1..] {
                let received = node.receive(&record);
                node.parts.member.apply(received.index, Some(&received), true, &mut Vec::new()).unwrap();
            }
            batch.complete(outcomes, None);
            entries += 1;
        }
        entries
    }

    /// Writes an entry to the leader's log only.
    pub fn write(&self, payload: &[u8]) -> LogRecord {
        let leader = self.leader();
        let (next, time) = (leader.applied().next(), leader.parts.member.clock().stamp());
        let lsn = leader.append(RecordKind::Entry, (TERM, next), time, payload);
        leader.record(lsn)
    }

    /// Runs a future to its end, and commits what it proposes.
    pub fn run<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        for _ in 0..10_000 {
            if let Poll::Ready(output) = future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                return output;
            }
            assert!(self.commit() > 0, "the future waits for something else");
        }
        panic!("the future does not end");
    }
}

/// Options of a member with the memory backend that keeps all its log.
pub fn keeping() -> Options {
    Options { history_bytes: 1 << 30, history_age: std::time::Duration::from_secs(3600), ..small(BackendKind::Memory) }
}
