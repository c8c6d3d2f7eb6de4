//! A cluster of scripted servers: the client finds the leader, follows it, and finds a new one.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use thalweg_client::{Action, Classified, Client, Effect, Endpoint, Error, Options, ReadFrom, ReadLevel, Watched};
use thalweg_types::{Durability, KeyspaceId, LeaseId, NodeId, Revision};
use thalweg_wire::{
    ChangeKind, Changes, ClientFrame, ClusterMember, Committed, Detail, Failed, Fields, Frame, Keyspace, KeyspaceFound,
    Level, List, MemberHealth, MemberRole, Members, RemainingBytes, Route, Value, Watching,
};
use tokio::{net::TcpStream, sync::watch, task::JoinSet};

use crate::{
    cached::Cached,
    peer::{Peer, Server, connected, quick},
};

/// Shared state of the scripted nodes.
#[derive(Clone, Copy, Debug)]
struct Leads {
    leader: u64,
    term: u64,
}

/// Behaviour of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Manner {
    Answers,
    /// The node accepts requests and does not answer.
    Frozen,
    /// The node knows no leader, like a node without a majority.
    CutOff,
}

pub struct Node {
    id: u64,
    server: Server,
    writes: AtomicUsize,
    /// Time that each reply about the members takes.
    far: Duration,
    /// Address for clients that others name; `None` for the real one.
    named: Option<String>,
    manner: watch::Sender<Manner>,
    levels: Mutex<Vec<Option<ReadLevel>>>,
    pub cached: Cached,
}

pub struct Cluster {
    nodes: Vec<Arc<Node>>,
    /// Number of the first nodes that are members.
    members: AtomicUsize,
    leads: watch::Sender<Leads>,
    serving: Mutex<Vec<JoinSet<()>>>,
}

impl Cluster {
    pub async fn new(count: u64) -> Arc<Self> {
        Self::with(count, |_| ()).await
    }

    async fn with(count: u64, change: impl Fn(&mut Node)) -> Arc<Self> {
        let mut nodes = Vec::new();
        for id in 1..=count {
            let mut server = Server::new().await;
            (server.node, server.is_clustered, server.run) = (id, true, id);
            let mut node = Node {
                id,
                server,
                writes: AtomicUsize::new(0),
                far: Duration::ZERO,
                named: None,
                manner: watch::Sender::new(Manner::Answers),
                levels: Mutex::default(),
                cached: Cached::default(),
            };
            change(&mut node);
            nodes.push(Arc::new(node));
        }
        let leads = watch::Sender::new(Leads { leader: 1, term: 1 });
        let members = AtomicUsize::new(nodes.len());
        let cluster = Arc::new(Self { nodes, members, leads, serving: Mutex::default() });
        for node in &cluster.nodes {
            let mut serving = JoinSet::new();
            serving.spawn(cluster.clone().accept(node.clone()));
            cluster.serving.lock().unwrap().push(serving);
        }
        cluster
    }

    pub fn endpoint(&self, node: u64) -> Endpoint {
        self.node(node).server.endpoint()
    }

    pub fn node(&self, node: u64) -> &Arc<Node> {
        &self.nodes[usize::try_from(node).unwrap() - 1]
    }

    /// Makes a node the leader of the next term.
    fn elect(&self, leader: u64) {
        self.leads.send_modify(|leads| *leads = Leads { leader, term: leads.term + 1 });
    }

    /// Makes the first nodes the members.
    pub fn set_members(&self, count: usize) {
        self.members.store(count, Ordering::Relaxed);
    }

    /// Ends all connections of a node. It accepts no further ones.
    pub async fn kill(&self, node: u64) {
        let mut serving = std::mem::take(&mut self.serving.lock().unwrap()[usize::try_from(node).unwrap() - 1]);
        serving.shutdown().await;
    }

    fn address(&self, node: u64) -> String {
        let node = self.node(node);
        node.named.clone().unwrap_or_else(|| node.server.endpoint().address().to_owned())
    }

    async fn accept(self: Arc<Self>, node: Arc<Node>) {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = node.server.listener.accept().await.unwrap();
            connections.spawn(self.clone().serve(node.clone(), stream));
        }
    }

    async fn serve(self: Arc<Self>, node: Arc<Node>, stream: TcpStream) {
        let Some(mut peer) = node.server.greet(stream).await else { return };
        let mut manner = node.manner.subscribe();
        while let Some(frame) = peer.next().await {
            let _ = manner.wait_for(|manner| *manner != Manner::Frozen).await;
            let cut_off = *manner.borrow() == Manner::CutOff;
            let envelope = ClientFrame::decode(frame.raw()).unwrap();
            let Leads { leader, term } = *self.leads.borrow();
            let id = envelope.id;
            match &envelope.frame {
                ClientFrame::ReadMembers(_) => {
                    tokio::time::sleep(node.far).await;
                    let addresses: Vec<_> = self.nodes.iter().map(|node| self.address(node.id)).collect();
                    let count = self.members.load(Ordering::Relaxed);
                    let members = addresses.iter().zip(&self.nodes).take(count).map(|(address, node)| ClusterMember {
                        node: NodeId(node.id),
                        role: MemberRole::Voter,
                        health: MemberHealth::Alive,
                        name: String::new(),
                        zone: String::new(),
                        address: address.clone(),
                    });
                    let members: Vec<_> = members.collect();
                    let leader = NodeId(if cut_off { 0 } else { leader });
                    let term = if cut_off { 1 } else { term };
                    peer.send(id, &Members { node: NodeId(node.id), leader, term, members: List::Items(&members) })
                        .await;
                }
                ClientFrame::Write(_) if cut_off => peer.fail_with(id, "no_leader", None, &[]).await,
                ClientFrame::Write(_) if node.id != leader && envelope.fields.route == Some(Route::Redirect) => {
                    let details = [Detail { name: "leader", value: leader }, Detail { name: "term", value: term }];
                    peer.fail_with(id, "not_leader", Some(&self.address(leader)), &details).await;
                }
                ClientFrame::Write(_) => {
                    node.writes.fetch_add(1, Ordering::Relaxed);
                    let (durability, revision) = (Durability::Disk, Revision(term));
                    peer.send(id, &Committed { durability, duplicate: false, revision, appends: List::default() })
                        .await;
                }
                ClientFrame::FindKeyspace(_) => {
                    let (id_, created, config) = (KeyspaceId(5), thalweg_types::SpaceTime(0), Default::default());
                    let keyspace = Keyspace { id: id_, created, config, name: "k".into() };
                    peer.send(id, &KeyspaceFound { keyspace, counts: None }).await;
                }
                ClientFrame::Get(_) => {
                    node.levels.lock().unwrap().push(envelope.fields.read);
                    let value = Value {
                        durability: Durability::Disk,
                        revision: Revision(node.id),
                        remaining: u64::MAX,
                        lease: LeaseId(0),
                        value_bytes: 1,
                        value: RemainingBytes(b"v"),
                    };
                    peer.send(id, &value).await;
                }
                ClientFrame::Watch(watch) => {
                    node.levels.lock().unwrap().push(envelope.fields.read);
                    let next = Revision(watch.from.0.max(10));
                    peer.send(id, &Watching { next }).await;
                    // One change a node: the next node continues after it.
                    let change = [thalweg_wire::Change {
                        kind: ChangeKind::Put,
                        revision: next,
                        time: thalweg_types::SpaceTime(0),
                        key: b"k",
                        value: b"v",
                    }];
                    let (durability, changes) = (Durability::Disk, List::Items(&change));
                    let changes = Changes { durability, next: Revision(next.0 + 1), changes };
                    peer.send(id, &changes).await;
                }
                ClientFrame::Ping(ping) => peer.send(0, &thalweg_wire::Pong { token: ping.token }).await,
                ClientFrame::Goodbye(_) => return,
                ClientFrame::Pong(_) | ClientFrame::Cancel(_) | ClientFrame::Credit(_) => {}
                frame => node.cached.answer(&mut peer, id, frame).await,
            }
        }
    }
}

impl Peer {
    async fn fail_with(&mut self, id: u32, code: &'static str, leader: Option<&str>, details: &[Detail<'_>]) {
        let failed = Failed {
            class: Action::Retry,
            effect: Effect::Nothing,
            shown: Level(None),
            code,
            message: code,
            details: List::Items(details),
        };
        let mut out = Vec::new();
        failed.encode_with(&mut out, id, &Fields { leader, ..Fields::default() }).unwrap();
        self.bytes(&out).await;
    }
}

/// An address at which no program listens. The system gives its port to no other test.
const NOWHERE: &str = "127.0.0.1:1";

/// Options with a refresh that is long enough not to help: the test's requests must find the leader by themselves.
fn unrefreshed() -> Options {
    let timeout = Some(Duration::from_secs(60));
    Options { refresh: Duration::from_secs(600), timeout, repeat_puts: true, ..quick() }
}

async fn put(client: &Client) -> u64 {
    client.keyspace("k").put(b"a", b"b").await.unwrap().0
}

#[tokio::test]
async fn a_client_of_a_follower_connects_to_the_leader() {
    let cluster = Cluster::new(3).await;
    cluster.elect(3);
    let client = Client::connect([cluster.endpoint(2)], unrefreshed()).await.unwrap();
    assert_eq!(client.server().unwrap().node, 3, "the leader, which no seed names");
    assert_eq!(put(&client).await, 2);
    let told = client.members().await.unwrap();
    assert_eq!((told.node, told.leader, told.term, told.members.len()), (3, Some(3), 2, 3));
    client.close().await;
}

#[tokio::test]
async fn a_seed_that_is_down_does_not_matter() {
    let cluster = Cluster::new(3).await;
    let nobody = Endpoint::tcp(NOWHERE.to_owned());
    let client = Client::connect(vec![nobody.clone(), cluster.endpoint(2)], unrefreshed()).await.unwrap();
    assert_eq!(client.server().unwrap().node, 1);
    assert!(Client::connect(nobody, unrefreshed()).await.is_err());
}

#[tokio::test]
async fn a_redirect_is_followed_and_remembered() {
    let cluster = Cluster::new(3).await;
    let client = Client::connect(cluster.endpoint(1), unrefreshed()).await.unwrap();
    assert_eq!(put(&client).await, 1);
    cluster.elect(2);
    assert_eq!(put(&client).await, 2, "the write of the second term");
    assert_eq!(client.server().unwrap().node, 2);
    for _ in 0..5 {
        assert_eq!(put(&client).await, 2);
    }
    let writes: Vec<_> = cluster.nodes.iter().map(|node| node.writes.load(Ordering::Relaxed)).collect();
    assert_eq!(writes, [1, 6, 0]);
}

#[tokio::test]
async fn a_new_leader_is_found_when_the_old_one_dies() {
    let cluster = Cluster::new(3).await;
    let client = Client::connect(cluster.endpoint(1), unrefreshed()).await.unwrap();
    assert_eq!(put(&client).await, 1);
    cluster.kill(1).await;
    cluster.elect(3);
    assert_eq!(put(&client).await, 2);
    assert_eq!(client.server().unwrap().node, 3);
}

#[tokio::test]
async fn a_leader_that_freezes_is_left() {
    let cluster = Cluster::new(3).await;
    let options = Options { refresh: Duration::from_millis(100), ..unrefreshed() };
    let client = Client::connect(cluster.endpoint(1), options).await.unwrap();
    assert_eq!(put(&client).await, 1);
    cluster.node(1).manner.send_replace(Manner::Frozen);
    let writing = tokio::spawn({
        let client = client.clone();
        // A put without a condition may be sent twice.
        async move { put(&client).await }
    });
    cluster.elect(2);
    assert_eq!(writing.await.unwrap(), 2);
    assert_eq!(client.server().unwrap().node, 2);
}

#[tokio::test]
async fn a_leader_that_was_cut_off_is_left() {
    let cluster = Cluster::new(3).await;
    let client = Client::connect(cluster.endpoint(1), unrefreshed()).await.unwrap();
    cluster.node(1).manner.send_replace(Manner::CutOff);
    cluster.elect(2);
    assert_eq!(put(&client).await, 2);
    assert_eq!(client.server().unwrap().node, 2);
}

#[tokio::test]
async fn a_leader_out_of_reach_is_used_through_another_member() {
    let cluster = Cluster::with(2, |node| {
        if node.id == 1 {
            node.named = Some(NOWHERE.to_owned());
        }
    })
    .await;
    let client = Client::connect(cluster.endpoint(2), unrefreshed()).await.unwrap();
    assert_eq!(put(&client).await, 1);
    assert_eq!(client.server().unwrap().node, 2);
    assert_eq!(cluster.node(2).writes.load(Ordering::Relaxed), 1, "it passes the write on");
}

#[tokio::test]
async fn reads_state_their_level_and_free_ones_go_to_the_nearest_member() {
    // The times are distances, not waits for an event.
    let cluster = Cluster::with(3, |node| node.far = Duration::from_millis(if node.id == 3 { 0 } else { 100 })).await;
    let options = Options { reads: ReadFrom::Nearest, ..unrefreshed() };
    let client = Client::connect(cluster.endpoint(1), options).await.unwrap();
    let at = |level: ReadLevel| {
        let client = client.read_level(level);
        async move { client.keyspace("k").get(b"a").await.unwrap().unwrap().revision.0 }
    };
    // Until the measurement is done, the leader answers. A measurement while the machine stands still may find another
    // member nearer. The client measures again after half a minute.
    let nearest = async {
        while at(ReadLevel::Stale).await != 3 {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(300), nearest).await.expect("the nearest member answers");
    assert_eq!(at(ReadLevel::AtLeast(Revision(9))).await, 3);
    assert_eq!(at(ReadLevel::Lease).await, 1);
    assert_eq!(at(ReadLevel::Linearizable).await, 1);
    assert_eq!(client.keyspace("k").get(b"a").await.unwrap().unwrap().revision.0, 1);
    let levels =
        |node: u64| cluster.node(node).levels.lock().unwrap().iter().rev().take(3).copied().collect::<Vec<_>>();
    assert_eq!(levels(1), [None, Some(ReadLevel::Linearizable), Some(ReadLevel::Lease)]);
    assert_eq!(levels(3)[0], Some(ReadLevel::AtLeast(Revision(9))));
    assert_eq!(put(&client).await, 1);
    // When the nearest member is gone, the others answer.
    cluster.kill(3).await;
    let answered = at(ReadLevel::Stale).await;
    assert!(answered != 3, "{answered}");
}

#[tokio::test]
async fn a_watch_continues_on_the_next_leader() {
    let cluster = Cluster::new(3).await;
    let client = Client::connect(cluster.endpoint(1), unrefreshed()).await.unwrap();
    let stale = client.read_level(ReadLevel::Stale);
    let mut watch = stale.keyspace("k").watch(Watched::Prefix(Vec::new()), Revision(0)).await.unwrap();
    let revision = |changes: Option<thalweg_client::Changes>| changes.unwrap().changes[0].revision.0;
    assert_eq!(revision(watch.next().await.unwrap()), 10);
    cluster.elect(2);
    assert_eq!(put(&client).await, 2);
    assert_eq!(revision(watch.next().await.unwrap()), 11);
    cluster.kill(2).await;
    cluster.elect(3);
    assert_eq!(put(&client).await, 3);
    assert_eq!(revision(watch.next().await.unwrap()), 12);
    let levels = |node: u64| cluster.node(node).levels.lock().unwrap().clone();
    assert_eq!(levels(1), [Some(ReadLevel::Stale)]);
    assert_eq!(levels(2), [Some(ReadLevel::Linearizable)], "the new node must have all that the old one had");
    assert_eq!(levels(3), [Some(ReadLevel::Linearizable)]);
}

#[tokio::test]
async fn a_write_that_may_have_happened_is_not_repeated() {
    let (_server, client, mut peer) = connected().await;
    let writing = tokio::spawn({
        let client = client.clone();
        async move {
            let mut commit = thalweg_types::command::CommitBuilder::new();
            commit.put(KeyspaceId(5), b"a", b"1").unwrap();
            client.commit(&commit).await
        }
    });
    peer.request(|envelope| assert!(envelope.fields.route.is_none(), "the server is in no cluster")).await;
    drop(peer);
    let error = writing.await.unwrap().unwrap_err();
    assert!(matches!(&error, Error::OutcomeUnknown { cause } if matches!(**cause, Error::Lost { .. })), "{error}");
    assert_eq!(
        (error.code_text(), error.effect(), error.action()),
        ("outcome_unknown", Effect::Unknown, Action::Retry)
    );
}
