//! Connections of a client. The pool connects, reconnects, and chooses a link (one channel of a connection) for each
//! request.
//!
//! Owns: one supervisor task per connection, and the choice of the link for a request. A supervisor connects, runs the
//! connection's channels, reconnects when they are lost, and moves the connection to another node of a cluster. Does
//! not own requests, nor the knowledge of the nodes (`directory`).
//!
//! A supervisor reconnects without limit, after growing pauses, to any node that the client knows. It gives up if
//! connecting again cannot help: the server sent a goodbye of class *fix* or *stop*, or shares no protocol version with
//! the client. Requests then fail immediately with that error.
//!
//! In a cluster, a pool has a [`PoolRole`]: its connections lead to the leader, to the nearest member, or to one given
//! member. When another node becomes the leader, or is clearly nearer, a supervisor connects to that node first. It
//! then lets the requests in progress finish for up to [`DRAIN`], and puts the new connection into its links.
//! Publishers stay on their link. Subscriptions resume, as after a lost connection. Connections to one given member
//! never move. Their supervisors try to reconnect even after a goodbye of class *fix* or *stop*.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use thalweg_transport::{Dialer, Endpoint, Kind};
use thalweg_types::{Action, Classified};
use thalweg_wire::{Frame as _, ReadMembers};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinSet,
    time::timeout,
};

use crate::{
    backoff::Backoff,
    channel,
    connect::{Connected, ServerInfo, connect},
    directory::Directory,
    error::{ConnectError, Lost},
    link::{Link, any_server},
    membership::members_of,
    options::Options,
};

/// Longest time for which a connection that moves to another node waits for the replies to its requests.
const DRAIN: Duration = Duration::from_millis(500);

/// Longest time for connecting to one of several nodes. After this time the client tries the next node.
const TRY_LIMIT: Duration = Duration::from_secs(1);

/// Pause after the client has asked all other nodes for the leader and none of them knew it.
const ASK_PAUSE: Duration = Duration::from_millis(50);

/// Time between two measurements of the round trips to all members.
const MEASURE_EVERY: Duration = Duration::from_secs(30);

/// Number of round trips with which the client measures its distance to a member. The shortest of them counts.
const ROUND_TRIPS: u32 = 3;

/// Node of a cluster to which the connections of a pool lead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PoolRole {
    Leader,
    Nearest,
    /// The connections lead to the member with this id.
    Member(u64),
}

/// All links (channels of connections) of a client, including links that have no connection now.
pub(crate) struct Pool {
    links: Vec<Arc<Link>>,
    next: AtomicUsize,
    supervisors: Mutex<JoinSet<()>>,
    server: Arc<Mutex<Option<ServerInfo>>>,
    /// Notifies waiting requests that the pool has a new connection. They wait for a connection, or were sent to the
    /// wrong node.
    moved: Arc<Notify>,
}

impl Pool {
    /// Opens all connections of the pool. Fails if the first attempt of any connection fails.
    pub(crate) async fn connect(directory: &Arc<Directory>, options: Arc<Options>) -> Result<Self, ConnectError> {
        let (pool, first) = Self::begin(directory, PoolRole::Leader, options);
        for attempt in first {
            // A supervisor that ends without an answer ran on a runtime that is stopping.
            if let Err(error) = attempt.await.unwrap_or(Err(ConnectError::NotYet)) {
                pool.close();
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Begins to open all connections of the pool, in the background. Returns one receiver for each connection. If the
    /// connections lead to the leader, the receiver gets the outcome of the first attempt to connect. If this attempt
    /// fails, the client makes no further one. For pools that lead to other nodes the receivers get no outcome, and the
    /// attempts continue.
    pub(crate) fn begin(
        directory: &Arc<Directory>,
        place: PoolRole,
        options: Arc<Options>,
    ) -> (Self, Vec<oneshot::Receiver<Result<(), ConnectError>>>) {
        let is_quic = directory.seeds().first().is_some_and(|seed| seed.kind() == Kind::Quic);
        let channels = if is_quic { options.channels } else { 1 };
        let dialer = Dialer::new().connect_timeout(options.connect_timeout).quic(options.quic);
        let (mut links, mut first) = (Vec::new(), Vec::new());
        let mut supervisors = JoinSet::new();
        let (server, moved) = (Arc::new(Mutex::new(None)), Arc::new(Notify::new()));
        for _ in 0..options.connections {
            let own: Vec<_> = (0..channels).map(|_| Arc::new(Link::new(options.clone()))).collect();
            links.extend(own.iter().cloned());
            let (first_attempt, attempt) = oneshot::channel();
            first.push(attempt);
            let supervisor = Supervisor {
                directory: directory.clone(),
                place,
                dialer: dialer.clone(),
                options: options.clone(),
                links: own,
                server: server.clone(),
                moved: moved.clone(),
            };
            supervisors.spawn(supervisor.run(first_attempt));
        }
        let supervisors = Mutex::new(supervisors);
        (Self { links, next: AtomicUsize::new(0), supervisors, server, moved }, first)
    }

    /// Returns the notifier on which requests wait for a new connection of the pool, for example to another node.
    pub(crate) fn moved(&self) -> &Notify {
        &self.moved
    }

    /// Returns the link for the next request. Links take turns, and the less busy of two neighbours is chosen. A link
    /// without a connection is returned only if no link has one.
    pub(crate) fn next_link(&self) -> &Arc<Link> {
        let [only] = &self.links[..] else { return self.next_connected_link() };
        only
    }

    fn next_connected_link(&self) -> &Arc<Link> {
        let at = self.next.fetch_add(1, Ordering::Relaxed) % self.links.len();
        let (first, second) = (&self.links[at], &self.links[(at + 1) % self.links.len()]);
        let (less, more) = if second.load() < first.load() { (second, first) } else { (first, second) };
        if less.is_connected() {
            return less;
        }
        std::iter::once(more).chain(&self.links).find(|link| link.is_connected()).unwrap_or(less)
    }

    /// Returns true if any link of the pool has a connection.
    pub(crate) fn is_connected(&self) -> bool {
        self.links.iter().any(|link| link.is_connected())
    }

    /// Returns the reason why the pool has no connection; `None` if it has one.
    pub(crate) fn connect_error(&self) -> Option<Arc<ConnectError>> {
        if self.is_connected() {
            return None;
        }
        self.links.iter().find_map(|link| link.connect_error())
    }

    /// Returns a link for a caller that sends all its requests on the same link. Links take turns.
    pub(crate) fn pin(&self) -> Arc<Link> {
        self.next_link().clone()
    }

    /// Returns the facts about the server that its last welcome stated.
    pub(crate) fn server(&self) -> Option<ServerInfo> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of failed requests for which the callers had requested no reply, over all links of the pool.
    pub(crate) fn failures_without_id(&self) -> u64 {
        self.links.iter().map(|link| link.failures_without_id()).sum()
    }

    /// Closes all connections of the pool and notifies all callers that wait for replies.
    pub(crate) fn close(&self) {
        self.links.iter().for_each(|link| link.close());
    }

    /// Waits until all frames that were staged before [`close`](Self::close) are written.
    pub(crate) async fn closed(&self) {
        let mut supervisors = std::mem::take(&mut *self.supervisors.lock().unwrap_or_else(PoisonError::into_inner));
        while supervisors.join_next().await.is_some() {}
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.close();
        // The supervisors run on until they have written their goodbyes, and then end.
        self.supervisors.get_mut().unwrap_or_else(PoisonError::into_inner).detach_all();
    }
}

struct Supervisor {
    directory: Arc<Directory>,
    place: PoolRole,
    dialer: Dialer,
    options: Arc<Options>,
    links: Vec<Arc<Link>>,
    server: Arc<Mutex<Option<ServerInfo>>>,
    moved: Arc<Notify>,
}

/// Reason why a supervisor stops running a connection.
enum End {
    /// The client is closed, or connecting again cannot help. The supervisor makes no further attempt to connect.
    Final,
    /// The connection to the node was lost.
    Lost,
    /// Another node is better for this pool, such as a new leader. The links move to this connection, which leads
    /// there.
    Moved(Box<Connected>),
}

impl Supervisor {
    async fn run(self, first_attempt: oneshot::Sender<Result<(), ConnectError>>) {
        // Only the pool of the leader reports its first attempt and gives up after it. While the nearest member has no
        // connection, reads use the connections to the leader.
        let mut first_attempt = Some(first_attempt).filter(|_| self.place == PoolRole::Leader);
        let mut backoff = Backoff::new(self.options.retries);
        let mut next = None;
        while !self.is_closing() {
            let connected = match next.take() {
                Some(connected) => Ok(connected),
                None => tokio::select! {
                    connected = self.connect_best() => connected,
                    () = self.closing() => return,
                },
            };
            match connected {
                Ok(connected) => match self.begin_and_run(connected, &mut first_attempt, &mut backoff).await {
                    End::Final => return,
                    End::Moved(connected) => {
                        next = Some(*connected);
                        continue;
                    }
                    End::Lost => {}
                },
                Err(error) => {
                    let again = self.tries_again(error.action());
                    if let Some(first_attempt) = first_attempt.take() {
                        let _ = first_attempt.send(Err(error));
                        return;
                    }
                    let error = Arc::new(error);
                    self.links.iter().for_each(|link| link.not_connected(error.clone(), again));
                    if !again {
                        return;
                    }
                }
            }
            self.pause(backoff.next()).await;
        }
    }

    // ---- connecting

    async fn connect_to(&self, endpoint: &Endpoint, limit: Duration) -> Result<Connected, ConnectError> {
        let asks = match self.place {
            PoolRole::Leader => 1,
            PoolRole::Nearest => ROUND_TRIPS,
            // A single member may know less about the cluster than the leader, so it is not asked.
            PoolRole::Member(_) => 0,
        };
        let connected = connect(&self.dialer, endpoint, &self.options, asks, limit).await?;
        if let Some(members) = &connected.members {
            self.directory.learn(members);
        } else if !connected.server.is_clustered {
            self.directory.note_single(connected.server.node);
        }
        self.directory.reached(connected.server.node);
        Ok(connected)
    }

    /// Connects to the best reachable node for this pool: the leader, the nearest member, or one fixed member.
    async fn connect_best(&self) -> Result<Connected, ConnectError> {
        if let PoolRole::Member(node) = self.place {
            return self.connect_to_member(node).await;
        }
        let candidates = self.directory.candidates();
        let limit = if candidates.len() > 1 { self.try_limit() } else { self.options.connect_timeout };
        let mut last = ConnectError::NotYet;
        let mut connected = None;
        for endpoint in &candidates {
            match self.connect_to(endpoint, limit).await {
                Ok(first) => {
                    connected = Some(first);
                    break;
                }
                // Prefer an error of class retry: it says that some node may be reachable later.
                Err(error) if matches!(last, ConnectError::NotYet) || error.action() == Action::Retry => last = error,
                Err(_) => {}
            }
        }
        let connected = connected.ok_or(last)?;
        let (server, round_trip) = (connected.server.clone(), connected.round_trip);
        Ok(match self.better_than(&server, round_trip).await {
            Some(better) => {
                connected.connection.close();
                better
            }
            None => connected,
        })
    }

    async fn connect_to_member(&self, node: u64) -> Result<Connected, ConnectError> {
        let endpoint = self.directory.endpoint_of(node).ok_or(ConnectError::NoAddress)?;
        let connected = self.connect_to(&endpoint, self.try_limit()).await?;
        if connected.server.node == node {
            return Ok(connected);
        }
        connected.connection.close();
        Err(ConnectError::OtherNode { found: connected.server.node })
    }

    /// Returns true if the supervisor connects again after an error with this advice (retry, fix, or stop).
    fn tries_again(&self, action: Action) -> bool {
        action == Action::Retry || matches!(self.place, PoolRole::Member(_))
    }

    fn try_limit(&self) -> Duration {
        self.options.connect_timeout.min(TRY_LIMIT)
    }

    async fn better_than(&self, server: &ServerInfo, round_trip: Duration) -> Option<Connected> {
        match self.place {
            _ if !server.is_clustered => None,
            PoolRole::Leader => self.leader_other_than(server.node).await,
            PoolRole::Nearest => self.nearer_than(server.node, round_trip).await,
            PoolRole::Member(_) => None,
        }
    }

    /// Connects to the leader, if the client knows one that is not `node`.
    async fn leader_other_than(&self, node: u64) -> Option<Connected> {
        let (leader, endpoint) = self.directory.leader().filter(|(leader, _)| *leader != node)?;
        match self.connect_to(&endpoint, self.try_limit()).await {
            Ok(connected) if connected.server.node == leader => Some(connected),
            // The address belongs to another node by now, or the leader states an address that leads elsewhere from
            // this client's network.
            Ok(connected) => {
                connected.connection.close();
                self.directory.cannot_reach(leader);
                None
            }
            Err(_) => {
                self.directory.cannot_reach(leader);
                None
            }
        }
    }

    /// Connects to the member with the shortest round trip; `None` unless that is below 0.7 of the round trip to
    /// `node`.
    async fn nearer_than(&self, node: u64, round_trip: Duration) -> Option<Connected> {
        let mut nearest: Option<Connected> = None;
        for endpoint in self.directory.candidates_but(Some(node)) {
            let Ok(connected) = self.connect_to(&endpoint, self.try_limit()).await else { continue };
            let bound = nearest.as_ref().map_or(round_trip.mul_f64(0.7), |nearest| nearest.round_trip);
            let left = if connected.server.node != node && connected.round_trip < bound {
                nearest.replace(connected)
            } else {
                Some(connected)
            };
            if let Some(left) = left {
                left.connection.close();
            }
        }
        nearest
    }

    // ---- a connection

    /// Puts a connection into the links and runs its channels. Ends when one of the channels is lost, which ends the
    /// others too, or when the links move to another node.
    async fn begin_and_run(
        &self,
        connected: Connected,
        first_attempt: &mut Option<oneshot::Sender<Result<(), ConnectError>>>,
        backoff: &mut Backoff,
    ) -> End {
        let Connected { connection, channels, limits: parameters, keep_alive, server, .. } = connected;
        *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(server.clone());
        let mut tasks = JoinSet::new();
        for (link, (channel, decoder)) in self.links.iter().zip(channels) {
            link.set_connected(channel, decoder, parameters.clone());
            tasks.spawn(channel::run(link.clone(), keep_alive));
        }
        self.moved.notify_waiters();
        if let Some(first_attempt) = first_attempt.take() {
            let _ = first_attempt.send(Ok(()));
        }
        let began = tokio::time::Instant::now();
        let ended = tokio::select! {
            ended = tasks.join_next() => Err(ended.and_then(Result::ok).unwrap_or(Lost::Closed)),
            better = self.better_node(&server) => Ok(better),
        };
        let first = match ended {
            Err(lost) => lost,
            Ok(better) => {
                self.drain(&mut tasks).await;
                connection.close();
                self.links.iter().for_each(|link| link.down(&Lost::Moved));
                backoff.reset();
                if self.is_closing() {
                    better.connection.close();
                    return End::Final;
                }
                return End::Moved(Box::new(better));
            }
        };
        if self.is_closing() {
            while tasks.join_next().await.is_some() {}
        } else {
            tasks.shutdown().await;
        }
        connection.close();
        self.links.iter().for_each(|link| link.down(&first));
        if began.elapsed() > self.options.retries.max {
            backoff.reset(); // the connection worked, so this was not another failed attempt
        }
        if first == Lost::ByClient || self.is_closing() {
            return End::Final;
        }
        if let Lost::Goodbye { class, .. } = first
            && !self.tries_again(class)
        {
            let why = Arc::new(ConnectError::Lost(first));
            self.links.iter().for_each(|link| link.not_connected(why.clone(), false));
            return End::Final;
        }
        End::Lost
    }

    /// Lets the requests in progress finish, for at most [`DRAIN`], and ends the channels.
    async fn drain(&self, tasks: &mut JoinSet<Lost>) {
        let pongs: Vec<_> = self.links.iter().map(|link| link.begin_move()).collect();
        let idle = async {
            for pong in pongs.into_iter().flatten() {
                let _ = pong.await;
            }
            for link in &self.links {
                link.until_idle().await;
            }
        };
        let drained = tokio::select! {
            drained = timeout(DRAIN, idle) => drained.is_ok(),
            _ = tasks.join_next() => false,
        };
        if drained {
            self.links.iter().for_each(|link| link.leave());
            while tasks.join_next().await.is_some() {}
        } else {
            tasks.shutdown().await;
        }
    }

    /// Waits until another node is better for this pool (which leads to the leader, the nearest member, or one fixed
    /// member), and returns a connection to it. Never returns if no other node can be better.
    async fn better_node(&self, server: &ServerInfo) -> Connected {
        if !server.is_clustered {
            return std::future::pending().await;
        }
        match self.place {
            PoolRole::Leader => self.new_leader(server.node).await,
            PoolRole::Nearest => loop {
                tokio::time::sleep(MEASURE_EVERY).await;
                let round_trip = self.round_trip().await;
                if let Some(nearer) = self.nearer_than(server.node, round_trip).await {
                    return nearer;
                }
            },
            PoolRole::Member(_) => std::future::pending().await,
        }
    }

    /// Waits until a node other than `node` leads, and returns a connection to the new leader.
    async fn new_leader(&self, node: u64) -> Connected {
        let mut changes = self.directory.changes();
        let mut is_due = true;
        loop {
            changes.mark_unchanged();
            // After a failure to reach the leader, the client tries again only once per refresh.
            if (is_due || self.directory.redirects())
                && let Some(leader) = self.leader_other_than(node).await
            {
                return leader;
            }
            if self.directory.take_doubt(node) {
                if let Some(leader) = self.leader_by_others(node).await {
                    return leader;
                }
                tokio::time::sleep(ASK_PAUSE).await;
            }
            // The sender of these changes lives as long as this task, so an error here is always the timeout.
            is_due = timeout(self.options.refresh, changes.changed()).await.is_err();
            if is_due {
                self.refresh(node).await;
            }
        }
    }

    /// Asks the nodes other than `node` for the leader. Returns a connection to the leader, unless the leader is
    /// `node`.
    async fn leader_by_others(&self, node: u64) -> Option<Connected> {
        for endpoint in self.directory.candidates_but(Some(node)) {
            let Ok(connected) = self.connect_to(&endpoint, self.try_limit()).await else { continue };
            let is_leader = connected.members.as_ref().is_some_and(|members| {
                members.leader == Some(connected.server.node)
                    && self.directory.leader().is_some_and(|(leader, _)| leader == connected.server.node)
            });
            if is_leader && connected.server.node != node {
                return Some(connected);
            }
            connected.connection.close();
            if self.directory.redirects()
                && let Some(leader) = self.leader_other_than(node).await
            {
                return Some(leader);
            }
        }
        None
    }

    /// Asks the node of this connection for the members. If the node does not answer, or knows no leader, records a
    /// doubt about the node in the directory.
    async fn refresh(&self, node: u64) {
        let Some(link) = self.links.first() else { return };
        let Ok(mut reply) = link.request(&any_server, &mut |out, id| Ok(ReadMembers {}.encode(out, id)?), None) else {
            return;
        };
        match timeout(self.options.refresh, &mut reply).await {
            Ok(Ok(frame)) => {
                if let Ok(members) = members_of(&frame) {
                    self.directory.learn(&members);
                    if members.leader.is_none() {
                        self.directory.doubt(node);
                    }
                }
            }
            Ok(Err(_)) => {}
            Err(_) => {
                link.abandon(&mut reply);
                self.directory.doubt(node);
            }
        }
    }

    /// Measures the round trip to the node of this connection. If the node does not answer, returns the connect
    /// timeout.
    async fn round_trip(&self) -> Duration {
        let Some(link) = self.links.first() else { return Duration::MAX };
        let mut shortest = self.options.connect_timeout;
        for _ in 0..ROUND_TRIPS {
            let began = Instant::now();
            let Ok(pong) = link.ping() else { break };
            if matches!(timeout(self.try_limit(), pong).await, Ok(Ok(()))) {
                shortest = shortest.min(began.elapsed());
            }
        }
        shortest
    }

    /// Waits until the client is closed.
    async fn closing(&self) {
        let Some(link) = self.links.first() else { return };
        loop {
            let mut changed = std::pin::pin!(link.changed.notified());
            changed.as_mut().enable();
            if self.is_closing() {
                return;
            }
            changed.await;
        }
    }

    fn is_closing(&self) -> bool {
        self.links.iter().any(|link| link.is_closing())
    }

    /// Waits for `pause`, or until the client is closed.
    async fn pause(&self, pause: std::time::Duration) {
        let Some(link) = self.links.first() else { return };
        let waited = tokio::time::sleep(pause);
        tokio::pin!(waited);
        loop {
            let changed = link.changed.notified();
            if link.is_closing() {
                return;
            }
            tokio::select! {
                () = &mut waited => return,
                () = changed => {}
            }
        }
    }
}
