//! A cluster in memory, for tests of the protocols: the test determines its members and its barriers.

use std::{
    collections::BTreeMap,
    future::ready,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
    time::Instant,
};

use thalweg_broker::{Broker, Budget, NodeBatch, NodeLink, NodeStats};
use thalweg_server::cluster::{
    AdminToken, Cluster, ClusterError, ClusterFuture, ClusterHandle, ClusterReport, Credentials, DigestComparison,
    ElapsedMillis, Event, EventLog, JoinRequest, Lag, LinkTraffic, MemberDigest, MemberHealth, MemberReport,
    MemberRole, MemberVersion, NodeAddresses, Removal, Triggers,
};
use thalweg_types::{Index, NodeId, ReadLevel, Revision, Term};
use tokio::sync::watch;

use super::PATIENCE;

/// Behaviour of read barriers, for which reads at all levels but `stale` wait.
#[derive(Clone, Debug)]
pub enum Barriers {
    /// Barriers end immediately.
    Open,
    /// Barriers end when the test opens them, or with an error at their deadline.
    Closed,
    /// Barriers fail with this error.
    Failing(ClusterError),
}

/// A cluster that the test controls.
#[derive(Debug)]
pub struct FakeCluster {
    report: Mutex<ClusterReport>,
    events: Arc<EventLog>,
    barriers: watch::Sender<Barriers>,
    /// Number of barriers that have begun.
    begun: watch::Sender<u64>,
    broker: OnceLock<Broker>,
    /// Versions of the state machine that members do or do not state; the others know version 1.
    versions: Mutex<BTreeMap<NodeId, Result<u16, String>>>,
    /// Names of the calls that stop the node, in order.
    pub stopped: Mutex<Vec<&'static str>>,
}

/// Id of the node that serves.
pub const OWN: NodeId = NodeId(1);

pub fn member(node: u64, role: MemberRole, health: MemberHealth) -> MemberReport {
    MemberReport {
        node: NodeId(node),
        name: format!("n{node}"),
        address: format!("127.0.0.1:{node}"),
        serves: NodeAddresses { http: Some(format!("127.0.0.1:{}", 7000 + node)), ..NodeAddresses::default() },
        zone: "z".to_owned(),
        version: "0.1.0".to_owned(),
        role,
        health,
        heard: Some(ElapsedMillis(80)),
        log_index: Some(Index(40)),
        applied_index: Some(Index(39)),
        lag: Some(Lag { entries: 2, bytes: 200 }),
        behind: None,
        is_full: false,
        clock_ahead_millis: Some(0),
    }
}

impl FakeCluster {
    /// Creates a cluster of two voters and a learner, of which this node leads. Returns the admin token as well.
    pub fn new() -> (Arc<Self>, Cluster, AdminToken) {
        let (credentials, admin) = Credentials::random().unwrap();
        let members = vec![
            member(1, MemberRole::Voter, MemberHealth::Alive),
            member(2, MemberRole::Voter, MemberHealth::Alive),
            member(3, MemberRole::Learner, MemberHealth::Suspect),
        ];
        let report = ClusterReport {
            cluster: credentials.cluster,
            node: OWN,
            leader: Some(OWN),
            term: Term(5),
            commit_index: Index(41),
            applied_index: Index(41),
            applied_revision: Revision(7),
            is_changing: false,
            time_behind: None,
            undecided_after: None,
            triggers: Triggers { lag_entries: 10, lag_bytes: 1000, stale_after: ElapsedMillis(5000) },
            members,
        };
        let fake = Arc::new(Self {
            report: Mutex::new(report),
            events: Arc::default(),
            barriers: watch::Sender::new(Barriers::Open),
            begun: watch::Sender::new(0),
            broker: OnceLock::new(),
            versions: Mutex::default(),
            stopped: Mutex::default(),
        });
        let cluster =
            Cluster { handle: fake.clone(), credentials: Arc::new(credentials), stop_requested: Arc::default() };
        (fake, cluster, admin)
    }

    /// Changes the knowledge of the node.
    pub fn change(&self, change: impl FnOnce(&mut ClusterReport)) {
        change(&mut self.lock());
    }

    /// Sets the highest version of the state machine that a member states, or why it states none.
    pub fn set_version(&self, node: u64, known: Result<u16, String>) {
        self.versions.lock().unwrap().insert(NodeId(node), known);
    }

    /// Adds an event.
    pub fn push(&self, unix_micros: u64, event: Event) {
        self.events.push(unix_micros, event);
    }

    /// Number of the run to which the events belong.
    pub fn run(&self) -> u64 {
        self.events.run()
    }

    /// Broker of the server.
    pub fn broker(&self) -> &Broker {
        self.broker.get().expect("the server has passed it on")
    }

    /// Opens the link to another node that has announced these patterns.
    pub fn other_node(&self, patterns: &[&str]) -> NodeLink {
        let link = self.broker().open_node(Arc::new(|| {}), 1 << 20);
        let filters = patterns.iter().map(|pattern| (pattern.as_bytes(), &b""[..], 1));
        link.announced(true, (0, 1), filters).unwrap();
        link
    }

    /// Sets the behaviour of pending and later barriers.
    pub fn set(&self, barriers: Barriers) {
        self.barriers.send_replace(barriers);
    }

    /// Number of barriers that have begun.
    pub fn begun(&self) -> u64 {
        *self.begun.borrow()
    }

    /// Waits until this number of barriers have begun.
    pub async fn until_begun(&self, count: u64) {
        let mut begun = self.begun.subscribe();
        let waited = tokio::time::timeout(PATIENCE, begun.wait_for(|begun| *begun >= count)).await;
        waited.expect("a barrier begins in time").unwrap();
    }

    fn lock(&self) -> MutexGuard<'_, ClusterReport> {
        self.report.lock().unwrap()
    }

    fn note(&self, call: &'static str) {
        self.stopped.lock().unwrap().push(call);
    }
}

/// Takes the batches that wait for another node.
pub fn taken(link: &NodeLink) -> Vec<NodeBatch> {
    let mut out = Vec::new();
    let _ = link.take(&mut out, Budget::UNLIMITED);
    out
}

fn done<T: Send + 'static>(outcome: Result<T, ClusterError>) -> ClusterFuture<T> {
    Box::pin(ready(outcome))
}

impl ClusterHandle for FakeCluster {
    fn leads(&self) -> bool {
        self.lock().leader == Some(OWN)
    }

    fn try_read(&self, level: ReadLevel) -> Option<Revision> {
        let applied = self.lock().applied_revision;
        match level {
            ReadLevel::Stale => Some(applied),
            ReadLevel::AtLeast(revision) => (applied >= revision).then_some(applied),
            ReadLevel::Linearizable | ReadLevel::Lease => None,
        }
    }

    fn read(&self, level: ReadLevel, deadline: Instant) -> ClusterFuture<Revision> {
        self.begun.send_modify(|begun| *begun += 1);
        let (mut barriers, applied) = (self.barriers.subscribe(), self.lock().applied_revision);
        Box::pin(async move {
            let opened = barriers.wait_for(|barriers| !matches!(barriers, Barriers::Closed));
            match tokio::time::timeout_at(deadline.into(), opened).await {
                Err(_) => Err(match level {
                    ReadLevel::AtLeast(wanted) => ClusterError::RevisionNotReached { wanted, applied },
                    _ => ClusterError::ReadTimeout,
                }),
                Ok(Err(_)) => Err(ClusterError::Stopping),
                Ok(Ok(barriers)) => match &*barriers {
                    Barriers::Failing(error) => Err(error.clone()),
                    _ => Ok(applied),
                },
            }
        })
    }

    fn announce(&self, serves: NodeAddresses) {
        self.lock().members.iter_mut().filter(|member| member.node == OWN).for_each(|own| own.serves = serves.clone());
    }

    fn carry_subjects(&self, broker: &Broker) {
        self.broker.set(broker.clone()).expect("a server has one broker");
    }

    fn subject_stats(&self) -> Vec<(NodeId, NodeStats)> {
        vec![(NodeId(2), NodeStats { filters: 3, queued_bytes: 4, sent: 5, lost: 6, received: 7 })]
    }

    fn link_traffic(&self) -> Vec<LinkTraffic> {
        vec![LinkTraffic { node: NodeId(2), channel: "control", sent_bytes: 60, received_bytes: 70 }]
    }

    fn report(&self) -> ClusterReport {
        self.lock().clone()
    }

    fn join(&self, request: JoinRequest, _: Instant) -> ClusterFuture<NodeId> {
        let mut report = self.lock();
        if let Some(known) = report.members.iter().find(|member| member.node == request.node) {
            return done(Err(ClusterError::AlreadyMember(known.name.clone())));
        }
        let JoinRequest { node, name, address, .. } = request;
        report.members.push(MemberReport {
            name,
            address,
            ..member(node.0, MemberRole::Learner, MemberHealth::Suspect)
        });
        self.events.push(1, Event::Joined(node));
        done(Ok(node))
    }

    fn promote(&self, node: NodeId, _: Instant) -> ClusterFuture<()> {
        let mut report = self.lock();
        let member = report.members.iter_mut().find(|member| member.node == node).unwrap();
        if std::mem::replace(&mut member.role, MemberRole::Voter) == MemberRole::Voter {
            return done(Err(ClusterError::AlreadyMember(member.name.clone())));
        }
        self.events.push(2, Event::Promoted(node));
        done(Ok(()))
    }

    fn remove(&self, node: NodeId, removal: Removal, _: Instant) -> ClusterFuture<()> {
        let mut report = self.lock();
        if report.members.iter().all(|member| member.node != node) {
            let was_removed = self.events.after(0).1.iter().any(|event| event.event == Event::Removed(node));
            let id = node.to_string();
            return done(Err(if was_removed {
                ClusterError::AlreadyRemoved(id)
            } else {
                ClusterError::NoSuchMember(id)
            }));
        }
        let left: Vec<_> = report.voters().filter(|voter| voter.node != node).collect();
        let alive = left.iter().filter(|voter| voter.health == MemberHealth::Alive).count();
        let voters = left.len();
        if removal == Removal::Safe && 2 * alive <= voters {
            return done(Err(ClusterError::QuorumAtRisk { alive, voters }));
        }
        let name = report.name_of(node).unwrap_or_default().to_owned();
        report.members.retain(|member| member.node != node);
        self.events.push_removed(3, node, &name);
        done(Ok(()))
    }

    fn transfer(&self, to: Option<NodeId>, _: Instant) -> ClusterFuture<NodeId> {
        let mut report = self.lock();
        let to = to.or_else(|| report.voters().map(|voter| voter.node).find(|node| *node != OWN)).unwrap();
        if !report.voters().any(|voter| voter.node == to) {
            return done(Err(ClusterError::NotVoter(report.find(&to.to_string()).unwrap().name.clone())));
        }
        report.leader = Some(to);
        self.events.push(4, Event::Leader { leader: Some(to), term: Term(6) });
        done(Ok(to))
    }

    fn digest(&self, _: Instant) -> ClusterFuture<DigestComparison> {
        let digest = |member: &MemberReport| MemberDigest {
            node: member.node,
            digest: match member.health {
                MemberHealth::Alive => Ok("ab".repeat(16)),
                health => Err(health.name().to_owned()),
            },
        };
        done(Ok(DigestComparison { index: Index(42), members: self.lock().members.iter().map(digest).collect() }))
    }

    fn known_versions(&self, _: Instant) -> ClusterFuture<Vec<MemberVersion>> {
        let stated = self.versions.lock().unwrap().clone();
        let version = |member: &MemberReport| {
            let known = stated.get(&member.node).cloned().unwrap_or(Ok(1));
            MemberVersion { node: member.node, known }
        };
        done(Ok(self.lock().members.iter().map(version).collect()))
    }

    fn events(&self) -> &Arc<EventLog> {
        &self.events
    }

    fn hand_over(&self, _: Instant) -> ClusterFuture<()> {
        self.note("hand over");
        self.lock().leader = Some(NodeId(2));
        done(Ok(()))
    }

    fn stop(&self) -> ClusterFuture<()> {
        self.note("stop");
        done(Ok(()))
    }
}
