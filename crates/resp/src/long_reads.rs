//! Reads that take longer than a serving thread may spend on one client, or that wait for the disk.
//!
//! Owns: the transfer of such a read to the [readers](thalweg_serving::readers), and its reply. Does not own: the
//! decision that a read is long or cold. Each read first runs on the serving thread with a small
//! [budget](thalweg_types::budget). If the read spends it, the readers run it again from the beginning, over a newer
//! view, with the bounds of any Redis command. The session handles no further command until the reply is there, so
//! replies stay in the order of commands.
//!
//! Long lists of channels, the comparison of many watched keys, and writes of many keys of a cache go the same way.
//!
//! Limits: a session has at most one read with the readers, beside those for pipelined commands behind it
//! (`read_ahead`). Each long read counts as a scan (`max_scans`). Beyond its share, a client gets the error `BUSY`. A
//! read that only waits for the disk does not count.

use std::{
    sync::Arc,
    task::{Context, Poll},
};

use thalweg_redis::{
    Command, Read, Reply, StoreError, errors::NO_REPLY_ROOM, run_read, streams::block::Blocked, wire::Writer,
};
use thalweg_serving::{
    admission::Resource,
    limits::COUNTED_REPLY_BYTES,
    readers::{PendingRead, ReaderError},
};
use thalweg_transport::Outbox;
use thalweg_types::{
    budget::{self, Budget, BudgetSpent},
    limits::{MAX_REDIS_REPLY_BYTES, MAX_VALUE_BYTES},
    steps::SHORT_READ,
};

use super::{
    burst::Slot,
    cache::CacheDatabase,
    commands::Commands,
    database::{Database, Watched},
    failure::Failure,
    introspection::keyspaces,
    long_read::{LongRead, LongReadKind, LongReply},
    out::ReplyTarget,
    queued::Watch,
    reply_room::within_reply_room,
    session::{CommandProgress, Session},
    transaction::{are_unchanged_elsewhere, read_all},
    wait::Wait,
};

/// Number of keys of a cache that one part of a long write changes, while other writes of Redis clients wait.
const PART_KEYS: usize = 1_000;
/// Error reply to a write in a cache that cannot be executed in parts.
const TOO_LONG_FOR_CACHE: &str = "ERR too expensive: a cache takes at most 1000 pairs in this command";
/// Error reply to a long read beyond the client's share.
const TOO_MANY: &str = "BUSY too many long reads at a time: retry later";

impl Session {
    /// Passes a command to the threads for long reads, because it has `spent` the budget of a read on this thread.
    /// `wait` begins if the command is a blocking read that finds nothing.
    pub(super) fn read_again(
        &mut self,
        spent: BudgetSpent,
        command: &'static Command,
        arguments: &[&[u8]],
        is_scan: bool,
        wait: Option<Box<Wait>>,
        out: &mut Outbox,
    ) -> CommandProgress {
        let arguments: Vec<Box<[u8]>> = arguments.iter().map(|argument| Box::from(*argument)).collect();
        let number = command.number_of(&slices(&arguments));
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        let (account, muted) = (Arc::clone(&self.account), self.muted);
        self.run_again(spent, number, wait, out, move || {
            let arguments = slices(&arguments);
            let reply = resp.databases.list[database].database.read(|read| match muted {
                true => run_read(read, command, &arguments),
                false => within_reply_room(read, &account, |read| run_read(read, command, &arguments)),
            })?;
            if matches!(&reply, Reply::Error(text) if text == NO_REPLY_ROOM) {
                // Counts the rejection, like that of a reply that was read.
                let _ = account.may_hold_reply(MAX_REDIS_REPLY_BYTES as u64);
            }
            Ok(if is_scan { resp.cursors.translate(reply, account.address()) } else { reply })
        })
    }

    /// Passes a write of many keys of a cache to the threads for long reads, which make it in parts. So neither this
    /// thread nor the others, whose clients write to the same cache, wait for all of it.
    pub(super) fn write_long(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let each = match command.name {
            "del" | "unlink" => 1,
            "mset" if !arguments.len().is_multiple_of(2) => 2,
            _ => return self.fail(TOO_LONG_FOR_CACHE, out),
        };
        let mut commands = Commands::default();
        commands.push(command, arguments.iter().copied());
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        self.run_again(BudgetSpent::Steps, command.number_of(arguments), None, out, move || {
            let mut reply = Ok(Reply::Null);
            commands.each(|command, arguments| {
                if let Database::Immediate(cache) = &resp.databases.list[database].database {
                    reply = write_parts(cache, command, arguments, each * PART_KEYS).map_err(Failure::from);
                }
            });
            reply
        })
    }

    /// Passes work with one reply to the threads for long reads. `wait` begins if the command is a blocking read that
    /// finds nothing.
    pub(super) fn run_again(
        &mut self,
        spent: BudgetSpent,
        number: usize,
        wait: Option<Box<Wait>>,
        out: &mut Outbox,
        mut work: impl FnMut() -> Result<Reply, Failure> + Send + 'static,
    ) -> CommandProgress {
        let protocol = self.protocol;
        let reply = self.give(spent, MAX_VALUE_BYTES, move || {
            Ok(match work()? {
                reply @ (Reply::Ok | Reply::Simple(_) | Reply::Error(_) | Reply::Integer(_) | Reply::Bulk(_)) => {
                    LongReply::Reply(reply)
                }
                reply @ (Reply::Null | Reply::NullArray) => LongReply::Reply(reply),
                reply => {
                    let mut bytes = Vec::with_capacity(reply.content_bytes());
                    Writer::new(ReplyTarget::Buffer(&mut bytes), protocol).reply(&reply);
                    LongReply::Encoded(bytes.into())
                }
            })
        });
        self.begin_long(reply, |reply| LongReadKind::Command { number, wait, reply }, out)
    }

    /// Passes the last section of `INFO`, the numbers of keys, to the threads that may wait for the disk. `text` is the
    /// reply before that section's lines.
    pub(super) fn info_again(
        &mut self,
        spent: BudgetSpent,
        number: usize,
        text: String,
        out: &mut Outbox,
    ) -> CommandProgress {
        let (resp, protocol) = (Arc::clone(&self.resp), self.protocol);
        let reply = self.give(spent, 0, move || {
            // Each count has a bound on its steps, so the whole is short, however often it waits for the disk.
            let counts = keyspaces(&resp.databases, Budget::waiting(SHORT_READ)).unwrap_or_default();
            let mut bytes = Vec::with_capacity(text.len() + counts.len() + 32);
            Writer::new(ReplyTarget::Buffer(&mut bytes), protocol).verbatim(&[&*text, &*counts].concat());
            Ok(LongReply::Encoded(bytes.into()))
        });
        self.begin_long(reply, |reply| LongReadKind::Command { number, wait: None, reply }, out)
    }

    /// Passes a transaction that only reads to the threads for long reads.
    pub(super) fn read_transaction_again(
        &mut self,
        spent: BudgetSpent,
        keys: Commands,
        slots: Vec<Slot>,
        watched: Vec<Watched>,
        out: &mut Outbox,
    ) -> CommandProgress {
        let (resp, database, account) = (Arc::clone(&self.resp), self.database, Arc::clone(&self.account));
        let outcome = self.give(spent, MAX_VALUE_BYTES, move || {
            let read_all = |read: &dyn Read| within_reply_room(read, &account, |read| read_all(read, &keys, &watched));
            resp.databases.list[database].database.read(read_all)
        });
        self.begin_long(outcome, |outcome| LongReadKind::Transaction { slots, outcome }, out)
    }

    /// Passes the beginning of a command with the option `BLOCK` to the threads for long reads: it looks up the last id
    /// of each stream for which the client has sent `$`.
    pub(super) fn begin_blocking_again(
        &mut self,
        spent: BudgetSpent,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let arguments: Arc<[Box<[u8]>]> = arguments.iter().map(|argument| Box::from(*argument)).collect();
        let (resp, database, given) = (Arc::clone(&self.resp), self.database, Arc::clone(&arguments));
        // A key may have a value of another kind, which is read before the command is rejected.
        let blocked = self.give(spent, MAX_VALUE_BYTES, move || {
            let arguments = slices(&given);
            resp.databases.list[database].database.read(|read| Blocked::begin(read, &arguments))
        });
        self.begin_long(blocked, |blocked| LongReadKind::Blocking { command, arguments, blocked }, out)
    }

    /// Passes a `WATCH` of many or cold keys to the threads for long reads.
    pub(super) fn watch_again(&mut self, spent: BudgetSpent, keys: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        let keys: Vec<Box<[u8]>> = keys.iter().map(|key| Box::from(*key)).collect();
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        let watched = self.give(spent, 0, move || {
            let keys = slices(&keys);
            resp.databases.list[database].database.read(|read| Watch::all(read, database, &keys))
        });
        self.begin_long(watched, |watched| LongReadKind::Watch { watched }, out)
    }

    /// Passes the comparison of watched keys of other databases to the threads for long reads. `EXEC` continues after
    /// it.
    pub(super) fn compare_again(
        &mut self,
        spent: BudgetSpent,
        watched: Vec<Watch>,
        out: &mut Outbox,
    ) -> CommandProgress {
        let resp = Arc::clone(&self.resp);
        let compare = move || are_unchanged_elsewhere(&resp.databases, watched.iter());
        let unchanged = self.give(spent, 0, compare);
        if unchanged.is_none() {
            self.end_transaction();
        }
        self.begin_long(unchanged, |unchanged| LongReadKind::Exec { unchanged }, out)
    }

    /// Passes a read to the threads for long reads. Returns `None` if it is a long read and the client already has as
    /// many as it may.
    pub(super) fn give<T: Send + 'static>(
        &self,
        spent: BudgetSpent,
        bytes: usize,
        mut read: impl FnMut() -> Result<T, Failure> + Send + 'static,
    ) -> Option<PendingRead<Result<T, Failure>>> {
        let mut held = None;
        if spent == BudgetSpent::Steps {
            held = Some(self.account.take(Resource::Scans, 1)?);
        }
        let account = Arc::clone(&self.account);
        Some(self.resp.app.readers.run_again(spent, &self.account, bytes, move || {
            // A cold read has a budget. Without one, it continues as a long read.
            if held.is_none() && !budget::is_bounded() {
                let Some(slot) = account.take(Resource::Scans, 1) else { return Err(Failure(TOO_MANY.into())) };
                held = Some(slot);
            }
            read()
        }))
    }

    /// Waits for a read that the readers have accepted. If they have refused it, replies with an error.
    fn begin_long<T>(
        &mut self,
        read: Option<PendingRead<T>>,
        kind: impl FnOnce(PendingRead<T>) -> LongReadKind,
        out: &mut Outbox,
    ) -> CommandProgress {
        let Some(read) = read else { return self.fail(TOO_MANY, out) };
        self.reading = Some(Box::new(LongRead { kind: kind(read), muted: self.muted }));
        CommandProgress::Done
    }

    /// Continues the session's long read. Returns true if the read has ended and the client has its reply.
    pub(super) fn poll_long_read(&mut self, cx: &mut Context<'_>, out: &mut Outbox) -> bool {
        let Some(reading) = &mut self.reading else { return false };
        self.muted = reading.muted;
        match &mut reading.kind {
            LongReadKind::Command { number, wait, reply } => {
                let Poll::Ready(reply) = poll(reply, cx) else { return false };
                let (number, wait) = (*number, wait.take());
                self.reading = None;
                self.answer_long(number, wait, reply, out);
            }
            LongReadKind::Transaction { slots, outcome } => {
                let Poll::Ready(outcome) = poll(outcome, cx) else { return false };
                let slots = std::mem::take(slots);
                self.reading = None;
                self.write_slots(slots, Vec::new(), outcome, out);
            }
            LongReadKind::Exec { unchanged } => {
                let Poll::Ready(unchanged) = poll(unchanged, cx) else { return false };
                self.reading = None;
                self.exec_unless_changed(unchanged, out);
                // Nothing else has joined its burst, and nothing may join a burst with watched keys.
                self.send_burst();
            }
            LongReadKind::Blocking { command, arguments, blocked } => {
                let Poll::Ready(blocked) = poll(blocked, cx) else { return false };
                let (command, arguments) = (*command, Arc::clone(arguments));
                self.reading = None;
                self.continue_blocking(command, &slices(&arguments), blocked, out);
            }
            LongReadKind::Watch { watched } => {
                let Poll::Ready(watched) = poll(watched, cx) else { return false };
                self.reading = None;
                self.watching(watched, out);
            }
        }
        true
    }

    fn answer_long(
        &mut self,
        number: usize,
        wait: Option<Box<Wait>>,
        reply: Result<LongReply, Failure>,
        out: &mut Outbox,
    ) {
        let errors = self.tally.errors;
        match (reply, wait) {
            (Ok(LongReply::Reply(Reply::NullArray)), Some(wait)) => self.begin_waiting(wait, out),
            (Ok(LongReply::Reply(reply)), _) if self.has_room_for(&reply) => self.answer(&reply, out),
            (Ok(LongReply::Encoded(_)), _) if self.muted => {}
            (Ok(LongReply::Encoded(bytes)), _)
                if bytes.len() < COUNTED_REPLY_BYTES || self.replies_held().grow(bytes.len() as u64) =>
            {
                out.share(bytes);
            }
            (Ok(_), _) => self.error(NO_REPLY_ROOM, out),
            (Err(failure), _) => {
                self.log_failure(&failure);
                self.error(&failure.0, out);
            }
        }
        if self.tally.errors != errors {
            self.resp.metrics.statistics.failed(number);
        }
    }
}

/// Executes a write of many keys of a cache in parts of `each` arguments. Returns the sum of their replies, or the last
/// one if they are no numbers.
fn write_parts(
    cache: &CacheDatabase,
    command: &'static Command,
    arguments: &[&[u8]],
    each: usize,
) -> Result<Reply, StoreError> {
    let mut done = Reply::Ok;
    for part in arguments[1..].chunks(each) {
        let part = [&arguments[..1], part].concat();
        done = match (cache.write(|store| thalweg_redis::run(store, command, &part))?, done) {
            (Reply::Integer(count), Reply::Integer(before)) => Reply::Integer(before + count),
            (error @ Reply::Error(_), _) => return Ok(error),
            (reply, _) => reply,
        };
    }
    Ok(done)
}

pub(super) fn slices(arguments: &[Box<[u8]>]) -> Vec<&[u8]> {
    arguments.iter().map(|argument| &**argument).collect()
}

/// Polls a read that the readers perform. If they cannot, the result is their error.
pub(super) fn poll<T>(read: &mut PendingRead<Result<T, Failure>>, cx: &mut Context<'_>) -> Poll<Result<T, Failure>> {
    std::pin::Pin::new(read).poll(cx).map(|read| read.unwrap_or_else(|error: ReaderError| Err(Failure::of(&error))))
}
