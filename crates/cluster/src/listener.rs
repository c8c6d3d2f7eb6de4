//! Connections from other nodes to this one.
//!
//! Owns: accepting, the limits on connections, and reading requests and writing replies on each connection. Does not
//! own: the meaning of requests ([`Service`]), or the choice between two processes with one id (`runs`).
//!
//! The cost of strangers is limited. At most [`MAX_HALF_OPEN_LINKS`] connections wait for an acceptable hello, each
//! with less than 4 KiB of memory and a time limit. If there are more, the oldest one is closed. A member sends its
//! hello immediately, so its connection is rarely the oldest.
//!
//! An acceptable hello ends with an HMAC (its seal) that was made with the cluster's secret. Afterwards a connection
//! moves to a second list with the same limit, for the TLS session and the proof of the secret. So strangers without
//! such a hello, however many, cannot displace a member during this longer part of its handshake.

use std::{
    cell::{Cell, RefCell},
    collections::VecDeque,
    io,
    rc::Rc,
    time::Duration,
};

use futures_util::{FutureExt, StreamExt, future::LocalBoxFuture, stream::FuturesUnordered};
use thalweg_types::{
    NodeId,
    limits::{LINK_READ_BYTES, MAX_HALF_OPEN_LINKS},
};
use thalweg_wire::peer::{Hello, MAX_BODY_BYTES, PeerRun};
use tokio::{
    io::{BufReader, ReadHalf},
    net::{TcpListener, TcpStream},
    sync::watch,
    task::{AbortHandle, spawn_local},
    time::{Instant, sleep, timeout},
};

use crate::{
    frames::{Frame, Heads, frame_queue, keep_alive, read_headed},
    handshake::{COPY, Credentials, HandshakeError, Names, Peer, Rejection, accept},
    link_counters::ChannelCounter,
    runs::{RunConnection, Runs, Silence},
    secured::Secured,
};

/// Maximum number of established connections: a few for each node of the largest cluster.
const MAX_CONNECTIONS: usize = 8192;
/// Maximum number of requests of one connection that are served concurrently. Further requests wait in the socket.
const MAX_REQUESTS: usize = 256;
/// Minimum time between two log lines about rejected connections.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Maximum time for sending the last replies to a peer that was removed.
const DISMISSAL_LIMIT: Duration = Duration::from_secs(1);
/// Pause after a connection could not be accepted, for example for lack of file descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The part of a node that serves requests of other nodes.
pub(crate) trait Service: 'static {
    /// Decides whether this node accepts connections of node `node`. Returns the peer's description in the membership,
    /// or the reason for the rejection.
    fn admits(&self, node: NodeId) -> Result<Names, Rejection>;

    /// Returns how long a node's connected process may be silent before another process with the node's id may connect
    /// in its place.
    fn silence(&self) -> Silence;

    /// Called when the handshake of a connection has succeeded.
    fn connected(&self, peer: &Peer);

    /// Called after the handshake. If another thread serves the connection's channel, hands the connection over to it
    /// and returns `None`. Otherwise returns the connection.
    fn take_over(&self, _peer: &Peer, stream: Secured<TcpStream>) -> Option<Secured<TcpStream>> {
        Some(stream)
    }

    /// Completes when this node must serve no more requests of the connection's peer.
    fn dismissal(&self, _peer: &Peer) -> LocalBoxFuture<'static, ()> {
        std::future::pending().boxed_local()
    }

    /// Returns the counter of the bytes of a connection.
    fn counter(&self, _peer: &Peer) -> ChannelCounter {
        ChannelCounter::default()
    }

    /// Serves a request, and returns the encoded reply; empty if the frame has no reply. The requests of one connection
    /// are started in order: each future is polled once before the next request is started.
    fn serve(self: Rc<Self>, peer: &Peer, request: Frame) -> LocalBoxFuture<'static, Vec<u8>>;
}

/// Connections whose handshake is not finished, in the order of their arrival. Each has its number and a handle that
/// ends its task.
type HalfOpen = RefCell<VecDeque<(u64, AbortHandle)>>;

/// Adds a connection to a list of unfinished handshakes. If the list is full, closes the oldest connection in it.
fn begin(half_open: &HalfOpen, number: u64, task: AbortHandle) {
    let mut half_open = half_open.borrow_mut();
    half_open.push_back((number, task));
    if half_open.len() > MAX_HALF_OPEN_LINKS
        && let Some((_, oldest)) = half_open.pop_front()
    {
        oldest.abort();
    }
}

fn end(half_open: &HalfOpen, number: u64) -> Option<AbortHandle> {
    let mut half_open = half_open.borrow_mut();
    let at = half_open.iter().position(|(other, _)| *other == number)?;
    half_open.remove(at).map(|(_, task)| task)
}

struct Shared<S> {
    credentials: Rc<Credentials>,
    service: Rc<S>,
    /// Connections that have sent no hello yet, the oldest first.
    half_open: HalfOpen,
    /// Connections with an accepted hello whose peers have not proved yet that they know the cluster's secret.
    greeted: HalfOpen,
    connections: Cell<usize>,
    runs: Runs,
    /// Time of the last logged rejection, and the number of rejections since then that were not logged.
    reported: Cell<(Option<Instant>, u64)>,
    stop: watch::Receiver<bool>,
}

/// Accepts connections until `stop` is true or its sender is dropped. Runs on the consensus thread.
pub(crate) async fn serve<S: Service>(
    listener: TcpListener,
    credentials: Rc<Credentials>,
    service: Rc<S>,
    mut stop: watch::Receiver<bool>,
) {
    let shared = Rc::new(Shared {
        credentials,
        service,
        half_open: RefCell::default(),
        greeted: RefCell::default(),
        connections: Cell::new(0),
        runs: Runs::default(),
        reported: Cell::default(),
        stop: stop.clone(),
    });
    let mut number = 0;
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stop.wait_for(|stop| *stop) => return,
        };
        match accepted {
            Ok((stream, from)) => {
                number += 1;
                let connection = Rc::clone(&shared);
                let task = spawn_local(async move {
                    if let Err(error) = connection.run(number, stream).await {
                        tracing::debug!(%from, %error, "a connection from a node has ended");
                    }
                });
                begin(&shared.half_open, number, task.abort_handle());
            }
            Err(error) => {
                tracing::warn!(%error, "cannot accept a connection from a node");
                sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

impl<S: Service> Shared<S> {
    /// Logs a rejection. To keep strangers from filling the log, writes at most one line a second, with the number of
    /// rejections that were not logged.
    fn report(&self, error: &HandshakeError) {
        let (last, others) = self.reported.get();
        if last.is_some_and(|last| last.elapsed() < REPORT_INTERVAL) {
            self.reported.set((last, others + 1));
            return;
        }
        self.reported.set((Some(Instant::now()), 0));
        tracing::warn!(%error, others, "rejected a connection from a node");
    }

    /// Called with the peer's hello. If the hello is accepted, moves the connection to the list of connections that
    /// must prove the secret, which have more time.
    fn greet(&self, number: u64, hello: &Hello<'_>) -> Result<Names, Rejection> {
        let admitted = self.service.admits(hello.node);
        if admitted.is_ok() && self.is_copy(hello.node, hello.run()) {
            return Err(Rejection::Copy);
        }
        if matches!(admitted, Ok(_) | Err(Rejection::Removed))
            && let Some(task) = end(&self.half_open, number)
        {
            begin(&self.greeted, number, task);
        }
        admitted
    }

    /// Returns true if the node is connected by another process than `run`, and that process still counts as alive.
    fn is_copy(&self, node: NodeId, run: Option<PeerRun>) -> bool {
        run.is_some_and(|run| self.runs.has_other(node, run, self.service.silence(), Instant::now()))
    }

    async fn run(self: Rc<Self>, number: u64, stream: TcpStream) -> Result<(), HandshakeError> {
        stream.set_nodelay(true)?;
        keep_alive(&stream)?;
        let accepted = accept(stream, &self.credentials, |hello| self.greet(number, hello)).await;
        end(&self.half_open, number);
        end(&self.greeted, number);
        let (peer, stream) = accepted.inspect_err(|error| {
            if matches!(error, HandshakeError::Refused { .. } | HandshakeError::Tls(_)) {
                self.report(error);
            }
        })?;
        if self.connections.get() >= MAX_CONNECTIONS {
            return Err(HandshakeError::Refused { code: "overloaded", reason: "too many connections".to_owned() });
        }
        // Two processes may have sent their hellos before either was registered. The second one is rejected here. When
        // it dials again, it gets the reason.
        if self.is_copy(peer.node, peer.run) {
            return Err(HandshakeError::Refused { code: COPY, reason: "another process has its id".to_owned() });
        }
        self.service.connected(&peer);
        let Some(stream) = self.service.take_over(&peer, stream) else { return Ok(()) };
        self.connections.set(self.connections.get() + 1);
        let run = peer.run.map(|run| self.runs.begin(peer.node, run, Instant::now()));
        let served = self.serve(&peer, run.as_ref(), stream).await;
        self.connections.set(self.connections.get() - 1);
        Ok(served?)
    }

    async fn serve(&self, peer: &Peer, run: Option<&RunConnection>, stream: Secured<TcpStream>) -> io::Result<()> {
        let (reading, writing) = tokio::io::split(stream);
        let mut reading = BufReader::with_capacity(LINK_READ_BYTES, reading);
        let (counter, heads) = (self.service.counter(peer), Heads::of(peer.version));
        let (replies, writer) = frame_queue(writing, heads, counter.clone());
        // This task also runs the writer, so waiting for room in the queue would never end.
        let answer = |reply: Vec<u8>| {
            let is_queued = reply.is_empty() || replies.try_send(reply).is_ok();
            if is_queued { Ok(()) } else { Err(io::Error::other("the node does not read its replies")) }
        };
        let mut writer = std::pin::pin!(writer);
        let mut stop = self.stop.clone();
        let mut running = FuturesUnordered::new();
        let mut has_ended = false;
        let mut dismissed = self.service.dismissal(peer).fuse();
        // The future that reads the next frame is kept across iterations: dropping it would lose a frame that is read
        // in part.
        let mut next = Box::pin(read_next(&mut reading, heads));
        loop {
            tokio::select! {
                biased;
                written = &mut writer => return written,
                Some(reply) = running.next(), if !running.is_empty() => answer(reply)?,
                request = &mut next, if !has_ended && running.len() < MAX_REQUESTS => {
                    drop(next);
                    let request = request?;
                    next = Box::pin(read_next(&mut reading, heads));
                    match request {
                        Some(request) => {
                            counter.received(request.wire_bytes);
                            if run.is_some_and(|run| !run.heard(Instant::now())) {
                                return Err(io::Error::other("another process with the node's id has replaced it"));
                            }
                            let mut serving = Rc::clone(&self.service).serve(peer, request);
                            // Polled once here, so that requests reach consensus in their order.
                            match futures_util::poll!(&mut serving) {
                                std::task::Poll::Ready(reply) => answer(reply)?,
                                std::task::Poll::Pending => running.push(serving),
                            }
                        }
                        None => {
                            has_ended = true;
                            if let Some(run) = run {
                                run.end();
                            }
                        }
                    }
                }
                () = &mut dismissed => break,
                _ = stop.wait_for(|stop| *stop) => return Ok(()),
            }
            if has_ended && running.is_empty() {
                return Ok(());
            }
        }
        // The peer still gets the replies to its last requests. One of these requests may have asked for its removal.
        let finishing = async move {
            while let Some(reply) = running.next().await {
                if !reply.is_empty() && replies.try_send(reply).is_err() {
                    break;
                }
            }
            drop(replies);
            writer.await
        };
        timeout(DISMISSAL_LIMIT, finishing).await.unwrap_or(Ok(()))
    }
}

async fn read_next(reading: &mut BufReader<ReadHalf<Secured<TcpStream>>>, heads: Heads) -> io::Result<Option<Frame>> {
    read_headed(reading, heads, MAX_BODY_BYTES).await
}

#[cfg(test)]
mod tests;
