//! A client's session: the execution of its commands and the order of their replies.
//!
//! Owns: the selected database, the transaction and watched keys, the burst, the blocking read. Does not own the
//! socket ([`connection`](super::connection)), nor the replies of single connection commands (the modules beside
//! this one).
//!
//! Invariants:
//! * Replies are in the order of commands. An immediate reply is held behind the replies that wait for the log.
//! * While a barrier, a burst or a long read is pending, work is done in slices, or the client is blocked in a read,
//!   waits to authenticate or waits for a turn, the session handles no further command.
//! * A command that can't run yet ([`CommandProgress::Again`]) has had no effect.

use std::{
    cell::Cell,
    convert::Infallible,
    future::Future as _,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use thalweg_redis::{
    Command, Kind, Read, Reply, Run, StoreError,
    errors::NO_REPLY_ROOM,
    table::full_names,
    wire::{Input, Protocol, Request, Trust, Writer},
};
use thalweg_serving::{
    admission::{Account, Reservation, Resource},
    bulk::Slice,
    cluster::{Cluster, ConnectionBarrier, Gate},
    deleting::DeleteShare,
    fetched::RowFetcher,
    limits::{COUNTED_REPLY_BYTES, DEFAULT_WAIT, OUTBOX_BYTES},
    served_socket::ServedSocket,
    threads::ThreadLoad,
};
use thalweg_transport::Outbox;
use thalweg_types::{budget::Budget, command::ValueUse};
use tokio::time::Sleep;

use super::{
    Resp,
    bounds::MAX_CACHE_ARGUMENTS,
    burst::{Burst, Slot},
    client::{Client, Registered},
    commands::empties,
    cursors::{INVALID_CURSOR, cursor_argument},
    database::{Database, Outcome, PendingOutcome},
    failure::Failure,
    long_read::LongRead,
    lookahead::Lookahead,
    metrics::Tally,
    ongoing::Ongoing,
    out::ReplyTarget,
    pubsub::{Publishing, Subscriber},
    queued::{Transaction, Watch},
    wait::Wait,
};

/// Progress of a client's command after an attempt to run the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommandProgress {
    /// The command is done, or its reply will follow when the burst (the client's commands that are committed
    /// together) completes.
    Done,
    /// The command must wait until the pending burst of commands is committed. The command has had no effect.
    Again,
    /// The command has joined the burst of commands to be committed. The burst must be proposed before any further
    /// command joins.
    Send,
    /// The command is done, and the connection ends when its reply is sent.
    End,
}

/// Replies that the client does not want, as set by `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ReplyMode {
    /// The client wants all replies.
    No,
    /// The client wants no replies until it turns them on.
    Off,
    /// The client wants no reply to the next command.
    Next,
}

/// State of a client's session: its database, transaction, pending commands and subscriptions.
#[derive(Debug)]
pub(crate) struct Session {
    /// State shared by all sessions.
    pub resp: Arc<Resp>,
    pub(super) registered: Registered,
    /// Account of the connection, which holds its shares of the server's resources.
    pub account: Arc<Account>,
    /// Number of connections of the session's thread.
    load: ThreadLoad,
    /// RESP version of the client.
    pub protocol: Protocol,
    /// Index of the selected database.
    pub database: usize,
    /// Authentication state of the client.
    pub trust: Trust,
    /// Timer until the client's attempt to authenticate is checked; `None` if no attempt waits.
    pub(super) auth_wait: Option<Pin<Box<Sleep>>>,
    /// Number of wrong passwords that the client has sent since it last authenticated.
    pub(super) own_auth_failures: u32,
    pub(super) transaction: Option<Transaction>,
    pub(super) watched: Vec<Watch>,
    pub(super) reply_mode: ReplyMode,
    /// True if the client wants no reply to the current command.
    pub(super) muted: bool,
    pub(super) burst: Burst,
    pending: Option<PendingBurst>,
    /// Barrier of the reads among the received commands. Unused on a node without a cluster.
    barrier: ConnectionBarrier,
    /// Number of received bytes from the start of the current command on.
    unhandled: usize,
    /// Read that the readers perform; `None` if there is none. The session has a pending burst, a long read or a
    /// blocking read, but never two of them.
    pub(super) reading: Option<Box<LongRead>>,
    /// Reads for pipelined commands behind the current one.
    pub(super) lookahead: Lookahead,
    /// True if requests of the client had arrived behind the current one.
    is_pipelined: bool,
    /// Blocking read in which the client waits; `None` if the client does not wait.
    pub(super) blocked: Option<Box<Wait>>,
    /// Wait of the blocking `XREADGROUP` that was proposed as a command. The wait begins if the command finds no stream
    /// entry.
    pub(super) may_block: Option<Box<Wait>>,
    /// True once the client has disconnected or the server stops. No blocking read begins after that.
    is_blocking_forbidden: bool,
    /// Channel and pattern subscriptions of the client.
    pub(super) subscriber: Subscriber,
    /// Messages that the client publishes.
    pub(super) publishing: Publishing,
    /// True if the session takes no more commands, because the connection is about to end.
    pub is_ending: bool,
    scratch: Vec<u8>,
    /// Work that is done in slices; `None` if there is none.
    pub(super) ongoing: Option<Box<Ongoing>>,
    /// Time of slices that does not count as work of the connection yet.
    pub(super) worked: Duration,
    /// True while a command of a transaction runs.
    pub(super) is_executing: bool,
    /// Memory reservation for large replies that the client has not read.
    replies: Option<Reservation>,
    /// Number of requests that the session has handled, including the current one.
    requests: u64,
    pub(super) tally: Tally,
}

/// Id of a request in log lines, such as `7-1234`: the id of the client, as in `CLIENT LIST`, and the number of the
/// request on its connection, counted from 1.
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

struct PendingBurst {
    commands: PendingOutcome,
    deletes: Vec<DeleteShare>,
    _held: Reservation,
}

impl std::fmt::Debug for PendingBurst {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("PendingBurst")
    }
}

impl Session {
    /// Creates the session of a new client.
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

    /// Returns true if the session may handle the next command of the client. A client whose commands
    /// take long, or cause many deliveries, first waits for a turn.
    pub(crate) fn listens(&self) -> bool {
        !self.is_busy() && self.auth_wait.is_none() && !self.is_ending && !self.publishing.caused.need_turn()
    }

    /// Returns true if the session still owes the client a reply: one that depends on a commit, a barrier, a long read
    /// or a blocking read, or that is written in slices.
    pub(crate) fn is_busy(&self) -> bool {
        self.is_under_way() || self.blocked.is_some() || self.ongoing.is_some()
    }

    /// Returns true if commands of the session were proposed to the log, given to the readers, or wait for a barrier,
    /// and are not completed yet.
    pub(crate) fn is_under_way(&self) -> bool {
        self.pending.is_some() || self.reading.is_some() || self.barrier.is_pending()
    }

    /// Returns true if there may be work after all replies are sent: messages to deliver, the next slice of ongoing
    /// work, or a memory reservation of large replies to release.
    pub(crate) fn has_work(&self) -> bool {
        self.subscriber.is_subscribed() || self.ongoing.is_some() || self.replies.is_some()
    }

    /// Ends the client's blocking read, or its attempt to authenticate, without a reply, because the client has
    /// probably gone, and prevents new blocking reads. A read that is pending in the log replies with what it finds.
    pub(crate) fn stop_waiting(&mut self) {
        self.auth_wait = None;
        self.is_blocking_forbidden = true;
        self.set_blocked(None);
    }

    /// Returns the database that the client has selected.
    pub(crate) fn store(&self) -> &Database {
        &self.resp.databases.list[self.database].database
    }

    /// Notes that this many bytes of the client were received.
    #[inline]
    pub(crate) fn received(&mut self, bytes: usize) {
        self.barrier.received(bytes);
    }

    // ----- commands

    /// Handles the client's received commands as far as possible, for a [`Slice`] at most from `socket.now`. Returns
    /// true if there was progress.
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
        // A thread that was interrupted can use up its time without a command. Without progress, nothing would ask for
        // the turn that the session then needs, and bytes that have arrived would wait for the next tick.
        moved | self.publishing.caused.need_turn()
    }

    /// Returns true while commands only join a burst, which takes little time. The end of a slice must not split a
    /// burst, because its commands take effect together.
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
                    // Earlier commands are answered first.
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

    /// Publishes the gathered messages, and proposes the burst. Returns true if there was a burst.
    fn send_gathered(&mut self, out: &mut Outbox) -> bool {
        self.flush_published(out);
        let is_gathered = self.pending.is_none() && !self.burst.is_empty();
        if is_gathered {
            self.send_burst();
        }
        is_gathered
    }

    fn command(&mut self, request: &Request<'_>, out: &mut Outbox) -> CommandProgress {
        if self.burst.held.len() >= OUTBOX_BYTES {
            // The burst is committed, and its replies are sent, before more replies are held.
            return CommandProgress::Again;
        }
        let was = self.reply_mode;
        self.muted = was != ReplyMode::No;
        self.requests += 1;
        let flow = request.with(|arguments| self.dispatch(arguments, out));
        if flow == CommandProgress::Again {
            // The request will be passed to this function again.
            self.requests -= 1;
        }
        if flow != CommandProgress::Again && was == ReplyMode::Next && self.reply_mode == ReplyMode::Next {
            self.reply_mode = ReplyMode::No;
        }
        flow
    }

    #[inline]
    fn dispatch(&mut self, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        if self.subscriber.may_deliver() {
            // Messages that arrived before the command are sent before its reply.
            self.deliver(out);
        }
        if self.publishing.is_gathering() && !is_publish(arguments[0]) {
            self.flush_published(out);
        }
        let command = match thalweg_redis::admit(arguments) {
            Ok(command) => command,
            Err(reply) => {
                // A malformed PUBLISH is answered after those before it.
                self.flush_published(out);
                return self.not_admitted(arguments, &reply, out);
            }
        };
        let number = command.number_of(arguments);
        tracing::debug!(command = full_names()[number], request_id = %self.request_id(), "request of a Redis client");
        let errors = self.tally.errors;
        if self.trust == Trust::Unknown && !matches!(command.name, "auth" | "hello" | "quit" | "reset") {
            self.resp.metrics.statistics.rejected(number);
            return self.refuse("NOAUTH Authentication required.", out);
        }
        if self.is_subscriber_only()
            && let Some(flow) = self.refuse_subscriber(command, arguments, out)
        {
            self.resp.metrics.statistics.rejected(number);
            return flow;
        }
        if self.resp.app.cluster.is_some()
            && let Some(flow) = self.wait_for_barrier(command, out)
        {
            return flow;
        }
        if self.transaction.is_some() && !ends_queueing(command.name) {
            let flow = self.queue(command, arguments, out);
            if self.tally.errors != errors {
                self.resp.metrics.statistics.rejected(number);
            }
            return flow;
        }
        let flow = match command.run {
            Run::Session if is_publish(arguments[0]) => self.publish(arguments, out),
            Run::Session => self.session_command(command, arguments, out),
            Run::Read(_) | Run::Write(_) => self.data_command(command, arguments, out),
        };
        if flow != CommandProgress::Again {
            self.tally.command(number);
            if self.tally.errors != errors {
                self.resp.metrics.statistics.failed(number);
            }
        }
        flow
    }

    /// Returns true if a command reads a keyspace from the state of this node.
    fn reads_state(&self, command: &Command) -> bool {
        let is_batched = |database: usize| matches!(self.resp.databases.list[database].database, Database::Batched(_));
        match (&self.transaction, command.name) {
            (Some(transaction), "exec") => {
                // Watched keys of other databases are compared on this node, before the transaction.
                let compares = |watch: &Watch| watch.database != self.database && is_batched(watch.database);
                let writes = |command: &Command| matches!(command.run, Run::Write(_));
                self.watched.iter().any(compares)
                    || is_batched(self.database) && !transaction.commands.list().any(writes)
            }
            (Some(_), _) => false,
            (None, "watch") => is_batched(self.database),
            (None, _) => matches!(command.run, Run::Read(_)) && is_batched(self.database),
        }
    }

    /// Lets a command that reads a keyspace on a node of a cluster wait for its barrier. Returns `None` if the command
    /// may run. A read after a write of the same burst needs no barrier, because it runs in the log.
    #[cold]
    fn wait_for_barrier(&mut self, command: &'static Command, out: &mut Outbox) -> Option<CommandProgress> {
        let Some(Cluster { handle, .. }) = &self.resp.app.cluster else { return None };
        if !self.burst.is_empty() || !self.reads_state(command) {
            return None;
        }
        let level = self.resp.app.config.resp_read_level;
        match self.barrier.check(handle, level, self.unhandled, || Instant::now() + DEFAULT_WAIT) {
            Gate::Open(_) => None,
            Gate::Wait => Some(CommandProgress::Again),
            Gate::Failed(error) => {
                if command.name == "exec" {
                    self.end_transaction();
                }
                let failure = Failure::of(&error);
                self.log_failure(&failure);
                Some(self.fail(&failure.0, out))
            }
        }
    }

    /// Replies with an error to an unknown command, or to one with a wrong number of arguments. Within a
    /// transaction, the error makes `EXEC` discard the transaction.
    fn not_admitted(&mut self, arguments: &[&[u8]], reply: &Reply, out: &mut Outbox) -> CommandProgress {
        // A web page can make a browser send HTTP requests to this port, so nothing after this may be executed.
        if [&b"post"[..], b"host:"].iter().any(|name| arguments[0].eq_ignore_ascii_case(name)) {
            let (peer, request_id) = (self.client().peer, self.request_id());
            tracing::warn!(%peer, %request_id, "closing a connection that sent an HTTP request to the Redis port");
            return CommandProgress::End;
        }
        if let Some(command) = thalweg_redis::find(arguments[0]) {
            // As in Redis, an unknown subcommand is an unknown command, which has no counter.
            let number = command.number_of(arguments);
            let names_no_command = number == command.number_of(&[]) && arguments.len() > 1;
            if command.subcommands.is_empty() || !names_no_command {
                self.resp.metrics.statistics.rejected(number);
            }
        }
        if arguments[0].eq_ignore_ascii_case(b"exec")
            && let Reply::Error(text) = reply
        {
            self.end_transaction();
            let why = text.strip_prefix("ERR ").unwrap_or(text);
            return self.fail(&format!("EXECABORT Transaction discarded because of: {why}"), out);
        }
        if let Some(transaction) = &mut self.transaction {
            transaction.is_refused = true;
        }
        self.answer(reply, out);
        CommandProgress::Done
    }

    /// Replies to the current command with an error. Within a transaction, the error makes `EXEC` discard the
    /// transaction.
    pub(super) fn refuse(&mut self, text: &str, out: &mut Outbox) -> CommandProgress {
        if let Some(transaction) = &mut self.transaction {
            transaction.is_refused = true;
        }
        self.fail(text, out)
    }

    /// Handles a command on keys in the selected database.
    #[inline]
    fn data_command(&mut self, command: &'static Command, arguments: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        if matches!(command.name, "xread" | "xreadgroup")
            && let Some(flow) = self.blocking_command(command, arguments, out)
        {
            return flow;
        }
        let Some(at) = cursor_argument(command.name) else {
            return self.keys_command(command, arguments, false, out);
        };
        let Some(position) = self.resp.cursors.position(arguments[at]) else {
            return self.fail(INVALID_CURSOR, out);
        };
        let mut translated = arguments.to_vec();
        translated[at] = &position;
        self.keys_command(command, &translated, true, out)
    }

    #[inline]
    pub(super) fn keys_command(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        is_scan: bool,
        out: &mut Outbox,
    ) -> CommandProgress {
        let is_read = matches!(command.run, Run::Read(_));
        let reply = match (self.store(), command.run) {
            (Database::Immediate(_), Run::Write(_)) if arguments.len() > MAX_CACHE_ARGUMENTS => {
                return self.write_long(command, arguments, out);
            }
            (Database::Immediate(database), Run::Write(_)) => {
                database.write(|store| thalweg_redis::run(store, command, arguments)).map_err(Failure::from)
            }
            (Database::Batched(_), Run::Write(_)) => return self.join(command, arguments, is_scan, out),
            (Database::Batched(_), _) if !self.burst.is_empty() => {
                return self.join(command, arguments, is_scan, out);
            }
            (Database::Batched(_), _) if command.name == "get" && !self.has_room_for_value(arguments[1]) => {
                self.error(NO_REPLY_ROOM, out);
                return CommandProgress::Done;
            }
            (database, _) => {
                let read = |read: &dyn Read| thalweg_redis::run_read(read, command, arguments);
                // Pipelined reads, and those of several keys, wait for the disk together, and not one after the other on
                // this thread.
                let is_together = self.is_pipelined || command.name == "mget" && arguments.len() > 2;
                let budget = if is_together { Budget::RESIDENT } else { self.budget() };
                match database.read_briefly(budget, read) {
                    Ok(reply) => reply,
                    Err(_) if !self.has_room_for_values(command, arguments) => {
                        self.error(NO_REPLY_ROOM, out);
                        return CommandProgress::Done;
                    }
                    Err(spent) => {
                        self.lookahead.note(spent);
                        return self.read_again(spent, command, arguments, is_scan, None, out);
                    }
                }
            }
        };
        match reply {
            Ok(reply) if is_read && !self.has_room_for(&reply) => {
                self.error(NO_REPLY_ROOM, out);
            }
            Ok(reply) if is_scan => {
                let reply = self.resp.cursors.translate(reply, self.account.address());
                self.answer(&reply, out);
            }
            Ok(reply) => self.answer(&reply, out),
            Err(failure) => {
                self.log_failure(&failure);
                self.error(&failure.0, out);
            }
        }
        CommandProgress::Done
    }

    /// Returns the budget of a read on this thread. A read of the thread's only client may wait for the disk: this is
    /// faster than a transfer to another thread, and delays nobody else.
    #[inline]
    pub(super) fn budget(&self) -> Budget {
        if self.load.is_single() { Budget::ALONE } else { Budget::RESIDENT }
    }

    /// Returns false if replies already use so much memory that a key's value cannot be sent. The value is not read.
    fn has_room_for_value(&self, key: &[u8]) -> bool {
        let len = || match self.store().read_briefly(self.budget(), |read| read.look(key)) {
            Ok(Ok(found)) => Ok::<_, Infallible>(found.map(|info| info.len as u64)),
            // The read of the value reports the failure, or waits for the disk.
            Ok(Err(_)) | Err(_) => Ok(None),
        };
        self.account.has_reply_room(len).unwrap_or_else(|never| match never {})
    }

    /// Returns false if replies already use so much memory that the values of an `MGET` cannot be sent together. The
    /// values are not read. True for other commands, whose replies do not show their size in advance.
    #[cold]
    fn has_room_for_values(&self, command: &Command, arguments: &[&[u8]]) -> bool {
        if ValueUse::of(command.name.as_bytes()) != Some(ValueUse::ReadKeys) {
            return true;
        }
        // Adds the lengths of the values until the budget is spent. The sum is a lower bound of the reply's size.
        let bytes = Cell::new(0);
        let _ = self.store().read_briefly(self.budget(), |read| {
            arguments[1..].iter().try_for_each(|key| {
                let info = read.look(key)?.filter(|info| info.kind == Kind::String);
                bytes.set(bytes.get() + info.map_or(0, |info| info.len as u64));
                Ok::<_, StoreError>(())
            })
        });
        self.account.may_hold_reply(bytes.get())
    }

    /// Reserves memory for a large reply. Returns false if replies already use too much memory; the client then
    /// gets an error instead. Only replies to reads are checked, so the error never hides a change.
    #[inline]
    pub(super) fn has_room_for(&mut self, reply: &Reply) -> bool {
        if matches!(reply, Reply::Bulk(bytes) if bytes.len() < COUNTED_REPLY_BYTES) {
            return true;
        }
        let bytes = reply.content_bytes();
        bytes < COUNTED_REPLY_BYTES || self.muted || self.replies_held().grow(bytes as u64)
    }

    /// Counts a reply of a burst against the memory limit, once the uncounted replies of the burst are large together.
    /// Returns false if there is no room, and the client must get an error instead. Only a reply to a read is rejected,
    /// which hides no change. `uncounted` is the number of bytes of the burst's replies that are not counted yet.
    pub(super) fn count_outcome(&mut self, reply: &Reply, is_read: bool, uncounted: &mut usize) -> bool {
        let bytes = if self.muted { 0 } else { reply.content_bytes() };
        let together = *uncounted + bytes;
        if together < COUNTED_REPLY_BYTES {
            *uncounted = together;
            return true;
        }
        if !is_read {
            self.replies_held().count(together as u64);
        } else if !self.replies_held().grow(together as u64) {
            return false;
        }
        *uncounted = 0;
        true
    }

    /// Returns true if a command must not begin, because it would change data and reply with values, and the largest
    /// value has no room among the replies that wait for clients. Once the command has changed data, its reply must be
    /// sent.
    #[inline]
    pub(super) fn lacks_reply_room(&self, command: &Command, arguments: &[&[u8]]) -> bool {
        matches!(command.run, Run::Write(_))
            && self.account.is_short_of_reply_room()
            && returns_values(command.name, arguments)
    }

    /// Returns true if one more reply of the server itself may be written after those that wait for the client. Such a
    /// reply has at most about 100 KiB, but a transaction can contain thousands of them.
    pub(super) fn has_room_behind(&mut self, out: &Outbox) -> bool {
        out.len() < OUTBOX_BYTES || self.replies_held().grow_to(out.len() as u64)
    }

    pub(super) fn replies_held(&mut self) -> &mut Reservation {
        self.replies.get_or_insert_with(|| self.account.empty(Resource::ReplyBytes))
    }

    /// Adds a command to the burst: the client's commands that are committed together.
    #[inline]
    fn join(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        is_scan: bool,
        out: &mut Outbox,
    ) -> CommandProgress {
        if self.lacks_reply_room(command, arguments) {
            return self.fail(NO_REPLY_ROOM, out);
        }
        let bytes = arguments.iter().map(|argument| 4 + argument.len()).sum();
        if let Some(flow) = self.enter(1, bytes, out) {
            return flow;
        }
        if empties(command)
            && let Some(flow) = self.refuse_emptying(1, out)
        {
            return flow;
        }
        self.push(command, arguments, is_scan);
        CommandProgress::Done
    }

    /// Checks whether commands of this number and size in bytes may join the burst of commands to be committed.
    /// Returns `None` if they may, and otherwise the progress to report for the current command.
    pub(super) fn enter(&mut self, commands: usize, bytes: usize, out: &mut Outbox) -> Option<CommandProgress> {
        if self.burst.is_empty() {
            if !self.account.has_room(Resource::Requests) {
                self.error("BUSY too many requests in flight: retry later", out);
                return Some(CommandProgress::Done);
            }
            self.burst.database = self.database;
        } else if self.burst.database != self.database || !self.burst.has_room(commands, bytes) {
            return Some(CommandProgress::Again);
        }
        None
    }

    /// Appends a command to the burst: the client's commands that are committed together.
    #[inline]
    pub(super) fn push(&mut self, command: &'static Command, arguments: &[&[u8]], is_scan: bool) {
        let is_first = self.burst.commands.is_empty();
        self.resp.waiting.touch(&mut self.burst.touched, is_first, command, arguments);
        self.burst.commands.push(command, arguments.iter().copied());
        let is_read = matches!(command.run, Run::Read(_));
        let command = command.number_of(arguments) as u16;
        self.burst.slots.push(Slot::Outcome { is_scan, is_read, muted: self.muted, command });
    }

    // ----- bursts

    /// Proposes the burst of gathered commands to its database. The reply slots stay until the outcome is known.
    pub(super) fn send_burst(&mut self) {
        if self.burst.is_empty() || self.pending.is_some() {
            return;
        }
        let Database::Batched(database) = &self.resp.databases.list[self.burst.database].database else { return };
        // The burst has the name of its last request.
        let origin = self.resp.app.origin(&self.account, || self.request_id().to_string());
        let fetcher = RowFetcher { readers: &self.resp.app.readers, account: &self.account, budget: self.budget() };
        let commands = database.propose(&origin, fetcher, &self.burst.commands, &self.burst.watched);
        // The pending burst needs only its reply slots.
        self.burst.commands.clear();
        self.burst.watched = Vec::new();
        let deletes = std::mem::take(&mut self.burst.deletes);
        self.pending = Some(PendingBurst { commands, deletes, _held: self.account.count(Resource::Requests) });
    }

    /// Continues the session's pending work: messages, proposed commands, the long read, the blocking read, and work in
    /// slices. Returns true if there was progress.
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

    /// Charges the time of slices to the connection's turn on its thread.
    fn report_work(&mut self, socket: &mut ServedSocket) {
        if !self.worked.is_zero() {
            socket.worked(std::mem::take(&mut self.worked));
        }
    }

    fn settled(&mut self, outcome: Outcome, out: &mut Outbox) {
        match &outcome {
            Ok(_) => self.resp.waiting.changed(self.burst.database, &self.burst.touched),
            Err(failure) => self.log_failure(failure),
        }
        self.burst.touched = super::waiting::TouchedKeys::default();
        if let Some(wait) = self.may_block.take()
            && matches!(outcome.as_ref().map(|replies| replies.as_deref()), Ok(Some([Reply::NullArray])))
        {
            self.burst.slots.clear();
            self.begin_waiting(wait, out);
            return;
        }
        let (slots, held) = (std::mem::take(&mut self.burst.slots), std::mem::take(&mut self.burst.held));
        let Some((mut slots, mut held)) = self.write_slots(slots, held, outcome, out) else { return };
        slots.clear();
        held.clear();
        slots.shrink_to(64);
        held.shrink_to(4096);
        (self.burst.slots, self.burst.held) = (slots, held);
    }

    // ----- replies

    /// Writes the reply to the current command, or a part of the reply. If earlier commands wait for their commit,
    /// the reply is held until their replies are written.
    #[inline]
    pub(super) fn write_reply(&mut self, out: &mut Outbox, write: impl FnOnce(&mut Writer<ReplyTarget<'_>>)) {
        if self.muted {
            self.scratch.clear();
            write(&mut Writer::new(ReplyTarget::Buffer(&mut self.scratch), self.protocol));
            self.scratch.shrink_to(4096);
        } else if self.burst.is_empty() {
            write(&mut Writer::new(ReplyTarget::Outbox(out), self.protocol));
        } else {
            let before = self.burst.held.len();
            write(&mut Writer::new(ReplyTarget::Buffer(&mut self.burst.held), self.protocol));
            self.burst.hold(self.burst.held.len() - before);
        }
    }

    /// Writes the complete reply to the current command.
    #[inline]
    pub(super) fn answer(&mut self, reply: &Reply, out: &mut Outbox) {
        if let Reply::Error(text) = reply {
            self.count_error(text);
        }
        self.write_reply(out, |writer| writer.reply(reply));
    }

    /// Writes an error reply to the current command. The command is then done.
    pub(super) fn fail(&mut self, text: &str, out: &mut Outbox) -> CommandProgress {
        self.error(text, out);
        CommandProgress::Done
    }

    /// Writes an error as the last reply to the client, and ends the session.
    pub(crate) fn end_with_reply(&mut self, why: &str, out: &mut Outbox) {
        self.stop_waiting();
        self.muted = false;
        self.is_ending = true;
        self.error(why, out);
    }

    /// Writes an error reply to the current command.
    pub(super) fn error(&mut self, text: &str, out: &mut Outbox) {
        self.count_error(text);
        self.write_reply(out, |writer| writer.error(text.as_bytes()));
    }

    #[cold]
    fn count_error(&mut self, text: &str) {
        self.tally.errors += 1;
        self.resp.metrics.statistics.error(text);
    }

    // ----- logs

    /// Returns the id of the current request in log lines.
    pub(crate) fn request_id(&self) -> RequestId {
        RequestId { client: self.client().id, request: self.requests }
    }

    /// Writes a failure of the server to the log; errors of clients are not logged.
    #[cold]
    pub(super) fn log_failure(&self, failure: &Failure) {
        if failure.is_of_server() {
            tracing::warn!(peer = %self.client().peer, request_id = %self.request_id(), "{}", failure.0);
        }
    }

    /// Blocks the client in a read that found no entry. If the client must not wait any more, it gets the reply of a
    /// read whose timeout has expired.
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

/// Returns true for the commands that publish a message; their messages may be gathered into batches.
fn is_publish(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"publish") || name.eq_ignore_ascii_case(b"spublish")
}

/// Returns true for commands that may write and reply with values or entries, so that their replies may be large.
#[cold]
fn returns_values(name: &str, arguments: &[&[u8]]) -> bool {
    match name {
        "getdel" | "getset" | "getex" | "xreadgroup" | "xclaim" | "xautoclaim" => true,
        // A zero byte ends an option, as in Redis.
        "set" => arguments.iter().skip(3).any(|argument| {
            argument.split(|byte| *byte == 0).next().is_some_and(|option| option.eq_ignore_ascii_case(b"get"))
        }),
        _ => false,
    }
}

/// Returns true for commands that run immediately within a transaction, instead of being queued until `EXEC`.
fn ends_queueing(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}

/// Returns the error for a command without a reply of the database. This does not happen, since a database replies
/// to each command.
pub(super) fn missing_reply() -> Reply {
    Reply::error("ERR the database returned no reply: it is unknown whether the command took effect")
}
