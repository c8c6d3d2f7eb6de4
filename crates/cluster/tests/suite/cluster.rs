//! A small cluster for tests.

use std::{
    net::{SocketAddr, TcpListener},
    ops::Range,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicU16, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use tempfile::TempDir;
use thalweg_cluster::{Node, NodeOptions, Secret};
use thalweg_disk::SimDisk;
use thalweg_engine::{BackendKind, Database, MemberIdentity, Options};
use thalweg_raft::ConsensusOptions;
use thalweg_serving::cluster::{ClusterHandle, ClusterReport, JoinRequest, MemberRole};
use thalweg_types::{ClusterId, Lsn, NodeId, SystemClock, limits::MIN_MEMBER_SEGMENT_BYTES};

/// Longest time for which a test waits. It catches hangs; a busy machine takes a few seconds at most.
const PATIENCE: Duration = Duration::from_secs(60);

/// A node with its database.
pub struct TestNode {
    pub db: Database,
    pub node: Node,
    pub path: PathBuf,
    pub options: NodeOptions,
}

/// A cluster, and the directory of its nodes.
pub struct TestCluster {
    pub dir: TempDir,
    pub id: ClusterId,
    pub nodes: Vec<TestNode>,
    pub digest_every: Duration,
}

pub fn wait_until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "not after {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

pub fn database_options() -> Options {
    Options {
        segment_bytes: MIN_MEMBER_SEGMENT_BYTES,
        spare_segments: 2,
        reserve_bytes: 0,
        history_bytes: 1 << 20,
        ..Options::default()
    }
}

/// Returns an address of the loopback at which nothing listens. Its port is below those from which the system chooses
/// for outgoing connections (from 32768 on), so that no connection takes it before a node listens there, again or for
/// the first time.
pub fn free_address() -> SocketAddr {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    const PORTS: Range<u16> = 10_000..32_000;
    let count = PORTS.end - PORTS.start;
    let first = u16::try_from(std::process::id() % u32::from(count)).expect("below the end");
    let ports = PORTS.map(|_| PORTS.start + (first + TAKEN.fetch_add(1, Relaxed) % 10_000) % count);
    let mut addresses = ports.map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
    addresses.find(|address| TcpListener::bind(address).is_ok()).expect("a free port")
}

pub fn node_options(name: &str) -> NodeOptions {
    let options = NodeOptions::new(free_address(), Secret::new(&[7; 32]));
    // With the default times a busy machine elects leaders again and again.
    let consensus = ConsensusOptions {
        min_election: Duration::from_millis(1_000),
        max_election: Duration::from_millis(1_500),
        ..ConsensusOptions::DEFAULTS
    };
    NodeOptions { name: name.to_owned(), compare_every: Duration::from_millis(200), consensus, ..options }
}

impl TestNode {
    pub fn start(path: PathBuf, identity: MemberIdentity, options: NodeOptions, id: Option<ClusterId>) -> Self {
        // A thread that serves a request of another node may keep a stopped node's database for a moment.
        let began = Instant::now();
        let db = loop {
            match Database::open_member(&path, database_options(), identity) {
                Err(thalweg_engine::OpenError::Locked { .. }) if began.elapsed() < PATIENCE => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                opened => break opened.unwrap(),
            }
        };
        Self::with(db, path, options, id)
    }

    fn with(db: Database, path: PathBuf, options: NodeOptions, id: Option<ClusterId>) -> Self {
        let cluster = id.or(db.report().cluster).unwrap();
        let node = Node::start(&db, cluster, options.clone()).unwrap();
        // The next run of this node has the address that the others know.
        let options = NodeOptions { listen: node.address(), ..options };
        Self { db, node, path, options }
    }

    pub fn id(&self) -> NodeId {
        self.node.report().node
    }

    pub fn report(&self) -> ClusterReport {
        self.node.report()
    }

    pub fn stop(self) -> (PathBuf, NodeOptions) {
        self.node.shut_down();
        self.db.close().unwrap();
        (self.path, self.options)
    }
}

impl TestCluster {
    /// Starts a cluster of `count` voters.
    pub fn start(count: usize) -> Self {
        Self::start_with_digests(count, NodeOptions::DEFAULT_DIGEST_EVERY)
    }

    /// Starts a cluster whose leader requests digests of all rows at this interval.
    pub fn start_with_digests(count: usize, digest_every: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let options = NodeOptions { digest_every, ..node_options("n1") };
        let first = TestNode::start(dir.path().join("n1"), MemberIdentity::Found, options, None);
        let id = first.db.report().cluster.unwrap();
        let mut cluster = Self { dir, id, nodes: vec![first], digest_every };
        for number in 2..=count {
            cluster.add(&format!("n{number}"));
        }
        cluster.wait_for_voters(count);
        cluster
    }

    /// Adds a new node.
    pub fn add(&mut self, name: &str) {
        let (identity, options) = (MemberIdentity::Join { cluster: self.id }, self.joining(name));
        self.nodes.push(TestNode::start(self.dir.path().join(name), identity, options, Some(self.id)));
    }

    /// Adds a new node on a simulated disk, which stays in memory.
    pub fn add_on(&mut self, disk: &SimDisk, name: &str) {
        let identity = MemberIdentity::Join { cluster: self.id };
        let options = Options { backend: Some(BackendKind::Memory), ..database_options() };
        let clock = Arc::new(SystemClock::default());
        let db = Database::open_member_on(Arc::new(disk.clone()), clock, 1_000, options, identity).unwrap();
        self.nodes.push(TestNode::with(db, self.dir.path().join(name), self.joining(name), Some(self.id)));
    }

    fn joining(&self, name: &str) -> NodeOptions {
        let join = self.nodes.iter().map(|node| node.node.address().to_string()).collect();
        NodeOptions { join, digest_every: self.digest_every, ..node_options(name) }
    }

    /// Waits until a node has freed the beginning of its log.
    pub fn free_log(&self, at: usize) {
        let db = &self.nodes[at].db;
        let log = db.member_parts().unwrap().log;
        wait_until("the beginning of the log is freed", || {
            db.flush().unwrap();
            db.maintain().unwrap();
            log.start() > Lsn(100)
        });
    }

    /// Adds a new node that stays a learner.
    pub fn add_learner(&mut self, name: &str) -> NodeId {
        let path = self.dir.path().join(name);
        let identity = MemberIdentity::Join { cluster: self.id };
        let db = Database::open_member(&path, database_options(), identity).unwrap();
        let id = db.member_parts().unwrap().member.node();
        db.close().unwrap();
        drop(db);
        let request =
            JoinRequest { node: id, name: name.to_owned(), address: "127.0.0.1:1".to_owned(), stays_learner: true };
        crate::nodes::wait(self.nodes[0].node.join(request, crate::nodes::soon())).unwrap();
        self.add(name);
        id
    }

    /// Starts a node again that was stopped.
    pub fn restart(&mut self, path: PathBuf, options: NodeOptions) {
        self.nodes.push(TestNode::start(path, MemberIdentity::Existing, options, Some(self.id)));
    }

    pub fn wait_for_voters(&self, count: usize) {
        wait_until("all nodes vote and know their leader", || {
            self.nodes.iter().all(|node| {
                let report = node.report();
                let voters = report.members.iter().filter(|member| member.role == MemberRole::Voter).count();
                voters == count && report.leader.is_some()
            })
        });
    }

    /// Returns the place of the leader.
    pub fn leader(&self) -> usize {
        let mut found = None;
        wait_until("a node leads", || {
            found = self.nodes.iter().position(|node| node.node.leads());
            found.is_some()
        });
        found.unwrap()
    }

    /// Returns the place of a node that does not lead.
    pub fn follower(&self) -> usize {
        let leader = self.leader();
        (0..self.nodes.len()).find(|at| *at != leader).unwrap()
    }

    /// Waits until all nodes have applied the same entries, and checks that their states are equal.
    pub fn check_equal(&self) {
        let applied = |node: &TestNode| {
            let applied = node.db.member_parts().unwrap().machine.applied();
            (applied.index, applied.running_hash)
        };
        wait_until("all nodes have applied the same entries", || {
            let last = self.nodes.iter().map(|node| applied(node).0).max();
            self.nodes.iter().all(|node| Some(applied(node).0) == last)
        });
        let all: Vec<_> = self.nodes.iter().map(applied).collect();
        assert!(all.iter().all(|one| one == &all[0]), "{all:?}");
    }
}
