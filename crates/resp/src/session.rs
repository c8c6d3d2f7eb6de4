//! A client's session: its state, the handling of its received commands, and its pending work.
//!
//! Owns: the selected database, the transaction and watched keys, the burst, the blocking read, and the order in which
//! a session continues its work. Does not own the socket ([`connection`](super::connection)), the choice of a command's
//! handler (`dispatch`), the commits of bursts (`proposing`), the memory and the order of replies (`replies`), nor
//! single commands about the connection (the modules beside this one).
//!
//! Invariants:
//! * Replies are in the order of commands. An immediate reply is held until the earlier replies, which wait for the
//!   log, are written.
//! * The session handles no further command while a barrier, a burst or a long read is pending, or while work is done
//!   in slices. The same holds while the client is blocked in a read, waits to authenticate, or waits for a turn.
//! * A command that cannot run yet ([`CommandProgress::Again`]) has had no effect.

use std::{
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use thalweg_redis::{
    Reply,
    wire::{Input, Protocol, Trust},
};
use thalweg_serving::{
    admission::{Account, Reservation},
    bulk::Slice,
    cluster::ConnectionBarrier,
    deleting::DeleteShare,
    limits::OUTBOX_BYTES,
    served_socket::ServedSocket,
    threads::ThreadLoad,
};
use thalweg_transport::Outbox;
use tokio::time::Sleep;

use super::{
    Resp,
    burst::{Burst, PendingBurst},
    client::{Client, Registered},
    database::Database,
    failure::Failure,
    long_read::LongRead,
    lookahead::Lookahead,
    metrics::Tally,
    ongoing::Ongoing,
    pubsub::{Publishing, Subscriber},
    queued::{Transaction, Watch},
    wait::Wait,
};

/// Progress of a client's command after an attempt to run it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandProgress {
    /// The command is done, or its reply will follow when the burst completes. (A burst is a list of the client's
    /// commands that are committed together.)
    Done,
    /// The command must wait until the client's earlier commands are committed. The command has had no effect.
    Again,
    /// The command has joined the burst (the client's commands that are committed together). The burst must be proposed
    /// before any further command joins.
    Send,
    /// The command is done, and the connection ends when its reply is sent.
    End,
}

/// Choice of the replies that the client does not want, as set by `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// No reply is suppressed: the client wants all replies.
    No,
    /// The client wants no replies until it sends `CLIENT REPLY ON`.
    Off,
    /// The client wants no reply to the next command.
    Next,
}

/// State of a client's session: its database, transaction, pending commands and subscriptions.
#[derive(Debug)]
pub(crate) struct Session {
    /// State of the Redis protocol that all sessions share.
    pub resp: Arc<Resp>,
    pub(super) registered: Registered,
    /// Account of the connection. It counts what the connection holds of the server's limited resources.
    pub account: Arc<Account>,
    /// Counter of the connections that the session's thread serves.
    pub(super) load: ThreadLoad,
    /// RESP version that the client uses.
    pub protocol: Protocol,
    /// Index of the database that the client has selected, in the list of databases.
    pub database: usize,
    /// State of the client's authentication: authenticated, or not yet. Clients that need no password count as
    /// authenticated.
    pub trust: Trust,
    /// Timer that ends when the client's waiting attempt to authenticate may be checked; `None` if no attempt waits.
    pub(super) auth_wait: Option<Pin<Box<Sleep>>>,
    /// Number of wrong passwords that the client has sent since it last authenticated successfully.
    pub(super) own_auth_failures: u32,
    pub(super) transaction: Option<Transaction>,
    pub(super) watched: Vec<Watch>,
    pub(super) reply_mode: ReplyMode,
    /// True if the client wants no reply to the current command.
    pub(super) muted: bool,
    pub(super) burst: Burst,
    pub(super) pending: Option<PendingBurst>,
    /// Read barrier of the connection: it confirms for the received commands that this node's state is recent enough
    /// for reads. Unused on a node without a cluster.
    pub(super) barrier: ConnectionBarrier,
    /// Number of received bytes that are not handled yet, including the current command.
    pub(super) unhandled: usize,
    /// Read that reader threads perform for the session; `None` if there is none. The session never has more than one
    /// of these three: a pending burst (commands that are committed together), a long read, a blocking read.
    pub(super) reading: Option<Box<LongRead>>,
    /// Reads that were begun in advance for pipelined commands after the current one.
    pub(super) lookahead: Lookahead,
    /// True if further requests of the client had arrived after the current one.
    pub(super) is_pipelined: bool,
    /// Blocking read in which the client waits; `None` if the client does not wait.
    pub(super) blocked: Option<Box<Wait>>,
    /// Wait of a blocking `XREADGROUP` that was proposed as a command. The wait begins if the command finds no entry.
    pub(super) may_block: Option<Box<Wait>>,
    /// True once the client has disconnected or the server stops. No blocking read begins after that.
    is_blocking_forbidden: bool,
    /// Channel and pattern subscriptions of the client.
    pub(super) subscriber: Subscriber,
    /// Messages that the client publishes and that are being gathered.
    pub(super) publishing: Publishing,
    /// True if the session takes no more commands, because the connection is about to end.
    pub is_ending: bool,
    pub(super) scratch: Vec<u8>,
    /// Long work that is done in slices of about a millisecond; `None` if there is none.
    pub(super) ongoing: Option<Box<Ongoing>>,
    /// Time of finished slices of long work that the socket has not counted yet. After too much counted time, the
    /// client waits for other clients of its thread.
    pub(super) worked: Duration,
    /// True while a command of a transaction is being executed.
    pub(super) is_executing: bool,
    /// Memory reservation for large replies that the client has not read.
    pub(super) replies: Option<Reservation>,
    /// Number of requests that the session has handled, including the current one.
    pub(super) requests: u64,
    pub(super) tally: Tally,
}

/// Id of a request in log lines, such as `7-1234`. The first number is the id of the client, as in `CLIENT LIST`. The
/// second number counts the requests of the connection, from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RequestId {
    client: u64,
    request: u64,
}

impl std::fmt::Display for RequestId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}-{}", self.client, self.request)
    }
}

impl Session {
    /// Creates the session of a new client, which has selected database 0.
    pub(crate) fn new(resp: &Arc<Resp>, account: Arc<Account>, registered: Registered, load: ThreadLoad) -> Self {
        Self {
            trust: resp.first_trust(),
            resp: Arc::clone(resp),
            registered,
            account,
            load,
            auth_wait: None,
            own_auth_failures: 0,
            protocol: Protocol::Resp2,
            database: 0,
            transaction: None,
            watched: Vec::new(),
            reply_mode: ReplyMode::No,
            muted: false,
            burst: Burst::default(),
            pending: None,
            barrier: ConnectionBarrier::default(),
            unhandled: 0,
            reading: None,
            lookahead: Lookahead::default(),
            is_pipelined: false,
            blocked: None,
            may_block: None,
            is_blocking_forbidden: false,
            subscriber: Subscriber::default(),
            publishing: Publishing::default(),
            is_ending: false,
            scratch: Vec::new(),
            ongoing: None,
            worked: Duration::ZERO,
            is_executing: false,
            replies: None,
            requests: 0,
            tally: Tally::default(),
        }
    }

    /// Returns the data about the client that other connections can read.
    pub(crate) fn client(&self) -> &Client {
        &self.registered.client
    }

    /// Returns true if the session may handle the next command of the client. If the client's commands take long or
    /// cause many deliveries, the session first waits for a turn on its thread.
    pub(crate) fn listens(&self) -> bool {
        !self.is_busy() && self.auth_wait.is_none() && !self.is_ending && !self.publishing.caused.need_turn()
    }

    /// Returns true if the session still owes the client a reply. Such a reply waits for a commit, a read barrier, a
    /// long read or a blocking read, or is only partly written.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_under_way() || self.blocked.is_some() || self.ongoing.is_some()
    }

    /// Returns true if commands of the session are not completed, because they were proposed to the log, were passed to
    /// reader threads, or wait for a barrier.
    pub(crate) fn is_under_way(&self) -> bool {
        self.pending.is_some() || self.reading.is_some() || self.barrier.is_pending()
    }

    /// Returns true if the session may have work after all replies are sent. Such work is messages to deliver, the next
    /// slice of ongoing work, or the release of memory that large replies have reserved.
    pub(crate) fn has_work(&self) -> bool {
        self.subscriber.is_subscribed() || self.ongoing.is_some() || self.replies.is_some()
    }

    /// Ends the client's blocking read, or its waiting attempt to authenticate, without a reply, because the client has
    /// probably gone. Also prevents new blocking reads. A blocking read that is pending in the log still replies with
    /// what it finds.
    pub(crate) fn stop_waiting(&mut self) {
        self.auth_wait = None;
        self.is_blocking_forbidden = true;
        self.set_blocked(None);
    }

    /// Returns the database that the client has selected.
    pub(crate) fn store(&self) -> &Database {
        &self.resp.databases.list[self.database].database
    }

    /// Records that this many bytes were received from the client.
    #[inline]
    pub(crate) fn received(&mut self, bytes: usize) {
        self.barrier.received(bytes);
    }

    /// Handles the client's received commands until one must wait, the outbox is full, or the time of a [`Slice`] that
    /// begins at `socket.now` is over. Returns true if there was progress.
    pub(crate) fn run_received(&mut self, input: &mut Input, socket: &mut ServedSocket, out: &mut Outbox) -> bool {
        if !self.listens() || input.pending_bytes() == 0 {
            return self.send_gathered(out);
        }
        let mut slice = Slice::begin(socket.now);
        let moved = self.run_for(&mut slice, input, out) | self.send_gathered(out);
        if let Some(time) = slice.work() {
            socket.worked(time);
            self.publishing.caused.add_time(time);
        }
        // An interrupted thread can use up its time without handling a command. If this counted as no progress, nothing
        // would request the turn that the session needs, and received bytes would wait for the next tick.
        moved | self.publishing.caused.need_turn()
    }

    /// Returns true while the client's commands only join a burst (commands that are committed together), which takes
    /// little time. The session must not pause in the middle of a burst, because its commands take effect together.
    fn gathers_burst(&self) -> bool {
        !self.burst.is_empty() && matches!(self.store(), Database::Batched(_))
    }

    fn run_for(&mut self, slice: &mut Slice, input: &mut Input, out: &mut Outbox) -> bool {
        let mut moved = false;
        while self.listens() && out.len() < OUTBOX_BYTES && (slice.has_time() || self.gathers_burst()) {
            let flow = match input.next(self.trust) {
                Ok(None) => break,
                Ok(Some(request)) => {
                    let bytes = request.wire_bytes();
                    self.unhandled = bytes + request.bytes_behind();
                    self.is_pipelined = request.bytes_behind() > 0;
                    let flow = self.command(&request, out);
                    if flow == CommandProgress::Again {
                        input.unread(bytes);
                    } else {
                        self.lookahead.pass();
                        self.read_ahead(input);
                    }
                    flow
                }
                Err(error) => {
                    // The replies to earlier publishes are written first.
                    self.flush_published(out);
                    let mut text = b"ERR ".to_vec();
                    text.extend_from_slice(&error.text());
                    self.count_error("ERR");
                    self.muted = self.reply_mode == ReplyMode::Off;
                    self.write_reply(out, |writer| writer.error(&text));
                    CommandProgress::End
                }
            };
            moved = true;
            match flow {
                CommandProgress::Done => {}
                CommandProgress::Again | CommandProgress::Send => self.send_burst(),
                CommandProgress::End => self.is_ending = true,
            }
        }
        moved
    }

    /// Publishes the client's gathered messages, and proposes its gathered commands to their database. Returns true if
    /// there were commands.
    fn send_gathered(&mut self, out: &mut Outbox) -> bool {
        self.flush_published(out);
        let is_gathered = self.pending.is_none() && !self.burst.is_empty();
        if is_gathered {
            self.send_burst();
        }
        is_gathered
    }

    /// Continues the session's pending work: messages to deliver, proposed commands, the long read, the blocking read,
    /// and long work in slices. Returns true if there was progress.
    pub(crate) fn settle(&mut self, cx: &mut Context<'_>, socket: &mut ServedSocket, out: &mut Outbox) -> bool {
        if let Some(held) = &mut self.replies {
            held.shrink_to(out.len() as u64);
            if out.is_empty() {
                self.replies = None;
            }
        }
        let mut moved = false;
        self.report_work(socket);
        if let Some(wait) = &mut self.auth_wait
            && wait.as_mut().poll(cx).is_ready()
        {
            (self.auth_wait, moved) = (None, true);
        }
        if self.publishing.caused.need_turn() && socket.may_deliver(cx) {
            self.publishing.caused.had_turn();
            moved = true;
        }
        if !self.is_replying() && !self.subscriber.must_wait(&self.registered.client) && self.subscriber.has_messages()
        {
            if socket.may_deliver(cx) {
                moved |= self.deliver(out);
                self.report_work(socket);
            } else {
                self.subscriber.keep_turn();
            }
        }
        loop {
            if let Some(pending) = &mut self.pending {
                let Poll::Ready(outcome) = pending.commands.as_mut().poll(cx) else { return moved };
                let deletes = std::mem::take(&mut pending.deletes);
                self.pending = None;
                if outcome.is_ok() {
                    deletes.into_iter().for_each(DeleteShare::settle_emptied);
                }
                self.settled(outcome, out);
            } else if self.barrier.is_pending() {
                if self.barrier.poll(cx).is_pending() {
                    return moved;
                }
            } else if self.reading.is_some() {
                if !self.poll_long_read(cx, out) {
                    return moved;
                }
            } else if self.blocked.is_some() {
                if !self.poll_blocked(cx, out) {
                    return moved;
                }
            } else if self.ongoing.is_some() {
                if self.publishing.caused.need_turn() {
                    if !socket.may_deliver(cx) {
                        return moved;
                    }
                    self.publishing.caused.had_turn();
                }
                if !self.go_on(out) {
                    return moved;
                }
                self.report_work(socket);
            } else {
                return moved;
            }
            moved = true;
        }
    }

    /// Passes the time of finished slices of long work to the socket, which counts it. After too much counted time, the
    /// client waits for other clients of its thread.
    fn report_work(&mut self, socket: &mut ServedSocket) {
        if !self.worked.is_zero() {
            socket.worked(std::mem::take(&mut self.worked));
        }
    }

    /// Returns the id of the current request in log lines.
    pub(crate) fn request_id(&self) -> RequestId {
        RequestId { client: self.client().id, request: self.requests }
    }

    /// Writes a failure of the server to the log output. Errors that a client has caused are not logged.
    #[cold]
    pub(super) fn log_failure(&self, failure: &Failure) {
        if failure.is_of_server() {
            tracing::warn!(peer = %self.client().peer, request_id = %self.request_id(), "{}", failure.0);
        }
    }

    /// Blocks the client in a read that found no entry. If blocking is forbidden by now, the client gets the same reply
    /// as after a timeout.
    pub(super) fn begin_waiting(&mut self, wait: Box<Wait>, out: &mut Outbox) {
        if self.is_blocking_forbidden {
            self.muted = wait.muted;
            self.answer(&Reply::NullArray, out);
        } else {
            self.set_blocked(Some(wait));
        }
    }

    pub(super) fn set_blocked(&mut self, wait: Option<Box<Wait>>) {
        self.client().set_blocked(wait.is_some());
        self.blocked = wait;
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.end_subscriptions();
    }
}

/// Returns the error for a command to which the database gave no reply. This does not happen, because a database
/// replies to each command.
pub(super) fn missing_reply() -> Reply {
    Reply::error("ERR the database returned no reply: it is unknown whether the command took effect")
}
