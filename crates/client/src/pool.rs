//! Connections of a client: the pool connects, reconnects, and chooses a link (one channel of a connection)
//! for each request.
//!
//! Owns: one supervisor task per connection, which connects, runs the connection's channels, and reconnects when they
//! are lost; and the choice of the link for a request. Does not own requests.
//!
//! A supervisor reconnects without limit, after growing pauses. It gives up if the server has stated that connecting
//! again does not help (a goodbye of class *fix* or *stop*, or no common version); then requests fail immediately with
//! that error.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicUsize, Ordering},
};

use thalweg_transport::{Dialer, Endpoint, Kind};
use thalweg_types::{Action, Classified};
use tokio::{sync::oneshot, task::JoinSet};

use crate::{
    backoff::Backoff,
    channel,
    connect::{Connected, ServerInfo, connect},
    error::{ConnectError, Lost},
    link::Link,
    options::Options,
};

/// All links (channels of connections) of a client, whether connected at present or not.
pub(crate) struct Pool {
    links: Vec<Arc<Link>>,
    next: AtomicUsize,
    supervisors: Mutex<JoinSet<()>>,
    server: Arc<Mutex<Option<ServerInfo>>>,
}

impl Pool {
    /// Opens all connections of the client. Fails if the first attempt of any connection fails.
    pub(crate) async fn connect(endpoint: Endpoint, options: Arc<Options>) -> Result<Self, ConnectError> {
        let channels = if endpoint.kind() == Kind::Quic { options.channels } else { 1 };
        let dialer = Dialer::new().connect_timeout(options.connect_timeout).quic(options.quic);
        let (mut links, mut first) = (Vec::new(), Vec::new());
        let mut supervisors = JoinSet::new();
        let server = Arc::new(Mutex::new(None));
        for _ in 0..options.connections {
            let own: Vec<_> = (0..channels).map(|_| Arc::new(Link::new(options.clone()))).collect();
            links.extend(own.iter().cloned());
            let (told, attempt) = oneshot::channel();
            first.push(attempt);
            let supervisor = Supervisor {
                endpoint: endpoint.clone(),
                dialer: dialer.clone(),
                options: options.clone(),
                links: own,
                server: server.clone(),
            };
            supervisors.spawn(supervisor.run(told));
        }
        let pool = Self { links, next: AtomicUsize::new(0), supervisors: Mutex::new(supervisors), server };
        for attempt in first {
            // A supervisor that ends without an answer belonged to a runtime that is stopping.
            if let Err(error) = attempt.await.unwrap_or(Err(ConnectError::NotYet)) {
                pool.close();
                return Err(error);
            }
        }
        Ok(pool)
    }

    /// Returns the link for the next request: links take turns, and a link without a connection is chosen only if all
    /// are down.
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

    /// Returns a link for a caller that sends all its requests on the same link. Links take turns.
    pub(crate) fn pin(&self) -> Arc<Link> {
        self.next_link().clone()
    }

    /// Returns the facts about the server that its last welcome stated.
    pub(crate) fn server(&self) -> Option<ServerInfo> {
        self.server.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Number of failed requests for which the callers wanted no reply, over all links.
    pub(crate) fn failures_without_id(&self) -> u64 {
        self.links.iter().map(|link| link.failures_without_id()).sum()
    }

    /// Closes all connections of the client and notifies all callers that wait for replies.
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
        // The supervisors end after they have written their goodbyes.
        self.supervisors.get_mut().unwrap_or_else(PoisonError::into_inner).detach_all();
    }
}

struct Supervisor {
    endpoint: Endpoint,
    dialer: Dialer,
    options: Arc<Options>,
    links: Vec<Arc<Link>>,
    server: Arc<Mutex<Option<ServerInfo>>>,
}

impl Supervisor {
    async fn run(self, told: oneshot::Sender<Result<(), ConnectError>>) {
        let mut told = Some(told);
        let mut backoff = Backoff::new(self.options.retries);
        while !self.is_closing() {
            let error = match connect(&self.dialer, &self.endpoint, &self.options).await {
                Ok(connected) => {
                    *self.server.lock().unwrap_or_else(PoisonError::into_inner) = Some(connected.server.clone());
                    if self.begin_and_run(connected, &mut told, &mut backoff).await == Reconnect::No {
                        return;
                    }
                    None
                }
                Err(error) => Some(error),
            };
            if let Some(error) = error {
                let again = error.action() == Action::Retry;
                if let Some(told) = told.take() {
                    let _ = told.send(Err(error));
                    return;
                }
                let error = Arc::new(error);
                self.links.iter().for_each(|link| link.not_connected(error.clone(), again));
                if !again {
                    return;
                }
            }
            self.pause(backoff.next()).await;
        }
    }

    /// Connects, and runs the channels of the connection until one of them is lost, which ends all of them.
    async fn begin_and_run(
        &self,
        connected: Connected,
        told: &mut Option<oneshot::Sender<Result<(), ConnectError>>>,
        backoff: &mut Backoff,
    ) -> Reconnect {
        let Connected { connection, channels, limits: parameters, keep_alive, .. } = connected;
        let mut tasks = JoinSet::new();
        for (link, (channel, decoder)) in self.links.iter().zip(channels) {
            link.set_connected(channel, decoder, parameters.clone());
            tasks.spawn(channel::run(link.clone(), keep_alive));
        }
        if let Some(told) = told.take() {
            let _ = told.send(Ok(()));
        }
        let began = tokio::time::Instant::now();
        let first = tasks.join_next().await.and_then(Result::ok).unwrap_or(Lost::Closed);
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
            return Reconnect::No;
        }
        if let Lost::Goodbye { class: Action::Fix | Action::Stop, .. } = first {
            let why = Arc::new(ConnectError::Lost(first));
            self.links.iter().for_each(|link| link.not_connected(why.clone(), false));
            return Reconnect::No;
        }
        Reconnect::Yes
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

#[derive(Clone, Copy, PartialEq, Eq)]
enum Reconnect {
    Yes,
    No,
}
