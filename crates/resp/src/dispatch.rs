//! Choice of the handler for each command of a client.
//!
//! Owns: the checks before a command runs (arguments, authentication, subscriptions, the read barrier in a cluster),
//! and the choice of the way in which a command on keys runs: immediately, on the threads for long reads, or in the
//! burst (the client's commands that are committed together). Does not own the commands themselves, nor the commits of
//! bursts (`proposing`).

use std::time::Instant;

use thalweg_redis::{
    Command, Read, Reply, Run,
    errors::NO_REPLY_ROOM,
    table::full_names,
    wire::{Request, Trust},
};
use thalweg_serving::{
    cluster::{Cluster, Gate},
    limits::{DEFAULT_WAIT, OUTBOX_BYTES},
};
use thalweg_transport::Outbox;
use thalweg_types::budget::Budget;

use super::{
    bounds::MAX_CACHE_ARGUMENTS,
    cursors::{INVALID_CURSOR, cursor_argument},
    database::Database,
    failure::Failure,
    queued::Watch,
    session::{CommandProgress, ReplyMode, Session},
};

impl Session {
    pub(super) fn command(&mut self, request: &Request<'_>, out: &mut Outbox) -> CommandProgress {
        if self.burst.held.len() >= OUTBOX_BYTES {
            // The burst is committed first, and its replies are sent, before more replies are held.
            return CommandProgress::Again;
        }
        let was = self.reply_mode;
        self.muted = was != ReplyMode::No;
        self.requests += 1;
        let flow = request.with(|arguments| self.dispatch(arguments, out));
        if flow == CommandProgress::Again {
            // The session will pass this request to this function again, so it must not count twice.
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
            // Messages that arrived before the command must be sent before its reply.
            self.deliver(out);
        }
        if self.publishing.is_gathering() && !is_publish(arguments[0]) {
            self.flush_published(out);
        }
        let command = match thalweg_redis::admit(arguments) {
            Ok(command) => command,
            Err(reply) => {
                // The publishes before a malformed PUBLISH are answered first.
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

    /// Returns true if a command reads a keyspace directly from this node's state, and not as part of a command in the
    /// log.
    fn reads_state(&self, command: &Command) -> bool {
        let is_batched = |database: usize| matches!(self.resp.databases.list[database].database, Database::Batched(_));
        match (&self.transaction, command.name) {
            (Some(transaction), "exec") => {
                // `EXEC` compares watched keys of other databases with this node's state, before the transaction runs.
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

    /// Makes a command that reads a keyspace wait, on a node of a cluster, until it is confirmed that this node's state
    /// is recent enough (the read barrier). Returns `None` if the command may run now. A read after a write in the same
    /// burst needs no barrier, because it runs in the log.
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

    /// Replies with an error to an unknown command, or to a command with a wrong number of arguments. Within a
    /// transaction, this error makes `EXEC` discard the transaction.
    fn not_admitted(&mut self, arguments: &[&[u8]], reply: &Reply, out: &mut Outbox) -> CommandProgress {
        // A web page can make a browser send an HTTP request to this port. Nothing after such a request line may be
        // executed, so the connection ends.
        if [&b"post"[..], b"host:"].iter().any(|name| arguments[0].eq_ignore_ascii_case(name)) {
            let (peer, request_id) = (self.client().peer, self.request_id());
            tracing::warn!(%peer, %request_id, "closing a connection that sent an HTTP request to the Redis port");
            return CommandProgress::End;
        }
        if let Some(command) = thalweg_redis::find(arguments[0]) {
            // As in Redis, a command with an unknown subcommand counts as an unknown command, and unknown commands have
            // no counter.
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

    /// Replies to the current command with an error that has this text. Within a transaction, this error makes `EXEC`
    /// discard the transaction.
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
                // On this thread, several reads would wait for the disk one after the other. Other threads wait for all
                // of them together. This applies to pipelined reads and to reads of several keys.
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

    /// Returns the limit on the work of a read on this thread. If the thread has only one client, its reads may wait
    /// for the disk here: this is faster than passing them to another thread, and delays no other client.
    #[inline]
    pub(super) fn budget(&self) -> Budget {
        if self.load.is_single() { Budget::ALONE } else { Budget::RESIDENT }
    }
}

/// Returns true for the commands that publish a message. Such messages may be gathered into batches.
fn is_publish(name: &[u8]) -> bool {
    name.eq_ignore_ascii_case(b"publish") || name.eq_ignore_ascii_case(b"spublish")
}

/// Returns true for commands such as `EXEC` and `DISCARD`, which run immediately within a transaction instead of being
/// queued until `EXEC`.
fn ends_queueing(name: &str) -> bool {
    matches!(name, "exec" | "discard" | "multi" | "watch" | "quit" | "reset")
}
