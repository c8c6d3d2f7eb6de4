//! Reads that take longer than a serving thread may spend on one client, or that wait for the disk.
//!
//! Owns: passing such a read to the [readers](thalweg_serving::readers) (threads for long or cold reads), and its
//! reply. Does not own: the decision that a read is long or cold. Each read first runs on the serving thread with a
//! small [budget](thalweg_types::budget). If the read uses up the budget, a reader thread runs it again from the
//! beginning, over a newer view, with the bounds of any Redis command. The session handles no further command until the
//! reply has arrived, so replies stay in the order of commands.
//!
//! Reader threads also make long lists of channels, compare many watched keys, and execute writes of many keys of a
//! cache.
//!
//! Limits: a session has at most one long read at a time. It may also have reads for pipelined commands (`read_ahead`).
//! Each long read counts as a scan (`max_scans`). A client that exceeds its share gets the error `BUSY`. A read that
//! only waits for the disk does not count as a scan.

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

/// Number of keys of a cache that a long write changes at a time. Other Redis clients can write to the cache only
/// between two such parts of the write.
const PART_KEYS: usize = 1_000;
/// Error reply to a write of many keys of a cache that cannot be executed in parts.
const TOO_LONG_FOR_CACHE: &str = "ERR too expensive: a cache takes at most 1000 pairs in this command";
/// Error reply to a long read if the client already has as many long reads in progress as it may.
const TOO_MANY: &str = "BUSY too many long reads at a time: retry later";

impl Session {
    /// Passes a command to the threads for long reads, because it reached the limit on work on this thread; `spent`
    /// says which limit. If the command is a blocking read and finds nothing, its client then waits as described by
    /// `wait`.
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
                // Counts the rejection in the metrics, like the rejection of a reply that was already read.
                let _ = account.may_hold_reply(MAX_REDIS_REPLY_BYTES as u64);
            }
            Ok(if is_scan { resp.cursors.translate(reply, account.address()) } else { reply })
        })
    }

    /// Passes a write of many keys of a cache to the threads for long reads. They execute the write in parts. So no
    /// serving thread waits for the whole write, neither this thread nor others with clients that write to the same
    /// cache.
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

    /// Passes the function `work`, which returns one reply, to the threads for long reads. If the command is a blocking
    /// read and finds nothing, its client then waits as described by `wait`.
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

    /// Passes the section `Keyspace` of `INFO`, the last section, to the threads that may wait for the disk. `text` is
    /// the reply up to the lines of this section.
    pub(super) fn info_again(
        &mut self,
        spent: BudgetSpent,
        number: usize,
        text: String,
        out: &mut Outbox,
    ) -> CommandProgress {
        let (resp, protocol) = (Arc::clone(&self.resp), self.protocol);
        let reply = self.give(spent, 0, move || {
            // Each count has a limit on its steps. So all counts together are short, even if each of them waits for the
            // disk.
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

    /// Passes the beginning of a command with the option `BLOCK` to the threads for long reads. The beginning looks up
    /// the last id of each stream for which the client has sent `$`.
    pub(super) fn begin_blocking_again(
        &mut self,
        spent: BudgetSpent,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let arguments: Arc<[Box<[u8]>]> = arguments.iter().map(|argument| Box::from(*argument)).collect();
        let (resp, database, given) = (Arc::clone(&self.resp), self.database, Arc::clone(&arguments));
        // The key may hold a value that is not a stream. Such a value is read before the command is rejected.
        let blocked = self.give(spent, MAX_VALUE_BYTES, move || {
            let arguments = slices(&given);
            resp.databases.list[database].database.read(|read| Blocked::begin(read, &arguments))
        });
        self.begin_long(blocked, |blocked| LongReadKind::Blocking { command, arguments, blocked }, out)
    }

    /// Passes a `WATCH` to the threads for long reads, because it has many keys, or keys that are not in memory.
    pub(super) fn watch_again(&mut self, spent: BudgetSpent, keys: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        let keys: Vec<Box<[u8]>> = keys.iter().map(|key| Box::from(*key)).collect();
        let (resp, database) = (Arc::clone(&self.resp), self.database);
        let watched = self.give(spent, 0, move || {
            let keys = slices(&keys);
            resp.databases.list[database].database.read(|read| Watch::all(read, database, &keys))
        });
        self.begin_long(watched, |watched| LongReadKind::Watch { watched }, out)
    }

    /// Passes the comparison of watched keys of other databases to the threads for long reads. When the comparison is
    /// done, `EXEC` continues.
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

    /// Passes a read to the threads for long reads. Returns `None` if the read is a long one and the client already has
    /// as many long reads in progress as it may.
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
            // A cold read runs within a budget. If there is no budget here, the read has become a long one, and needs a
            // share.
            if held.is_none() && !budget::is_bounded() {
                let Some(slot) = account.take(Resource::Scans, 1) else { return Err(Failure(TOO_MANY.into())) };
                held = Some(slot);
            }
            read()
        }))
    }

    /// Makes the session wait for a read that the reader threads have accepted. If `read` is `None`, replies with an
    /// error instead.
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

    /// Continues the session's long read. Returns true if the read has ended, so that the client has its reply or the
    /// command continues.
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
                // No other command has joined this burst, and none may join a burst with watched keys. So it is sent
                // now.
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

/// Executes a write of many keys of a cache, in parts of `each` arguments. Returns the sum of the parts' replies if
/// they are numbers, and otherwise the last reply. Stops at the first error.
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

/// Polls a read that the reader threads perform. If they cannot perform it, the result is their error.
pub(super) fn poll<T>(read: &mut PendingRead<Result<T, Failure>>, cx: &mut Context<'_>) -> Poll<Result<T, Failure>> {
    std::pin::Pin::new(read).poll(cx).map(|read| read.unwrap_or_else(|error: ReaderError| Err(Failure::of(&error))))
}
