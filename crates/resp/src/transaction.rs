//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`.
//!
//! Owns: the queued commands, the watched keys, and the execution of transactions.
//! * In an immediate database (a cache) all commands run without interruption, after the watched keys are compared.
//!   Commands after [`MAX_CACHE_STEPS`] are not executed.
//! * In a batched database a transaction that only reads uses one view of the state. Any other transaction is part of a
//!   burst, which is one command in one log entry. A transaction with watched keys is alone in its burst. The versions
//!   of the watched keys are compared when the entry is applied.
//!
//! Watched keys of databases other than the selected one are compared immediately before `EXEC` runs. If they are many,
//! reader threads compare them.
//!
//! Limits: a transaction is at most as large as a command of the log ([`MAX_TRANSACTION_BYTES`],
//! [`MAX_TRANSACTION_COMMANDS`]). It watches at most [`MAX_REDIS_WATCHED_KEYS`] keys with at most
//! [`MAX_WATCHED_BYTES`]. Beyond these limits, commands are rejected and `EXEC` discards the transaction. The memory of
//! all queued transactions counts towards `max_body_bytes_in_flight`, except for the first 64 KiB of each.

use std::sync::atomic::Ordering;

use thalweg_redis::{Command, Read, Reply, Run, StoreError, errors::NO_REPLY_ROOM};
use thalweg_transport::Outbox;
use thalweg_types::{
    budget::BudgetSpent,
    limits::{MAX_COMMAND_BYTES, MAX_REDIS_COMMANDS, MAX_REDIS_WATCHED_KEYS},
};

use super::{
    bounds::MAX_CACHE_STEPS,
    burst::Slot,
    commands::{Commands, empties},
    cursors::{INVALID_CURSOR, cursor_argument},
    database::{Database, Outcome, Watched},
    databases::Databases,
    failure::Failure,
    queued::{Transaction, Watch},
    session::{CommandProgress, Session},
};

/// Maximum number of commands of a transaction. The log command of a transaction also contains two marks, for `MULTI`
/// and `EXEC`.
pub(super) const MAX_TRANSACTION_COMMANDS: usize = MAX_REDIS_COMMANDS - 2;

/// Maximum size in bytes of the commands of a transaction.
const MAX_TRANSACTION_BYTES: usize = MAX_COMMAND_BYTES - 1024 * 1024;

/// Maximum total size in bytes of the keys that a client watches.
const MAX_WATCHED_BYTES: usize = 1024 * 1024;

/// Execution plan of a transaction: its commands on keys, and where the reply to each command comes from.
struct Plan {
    /// Commands on keys. Numeric cursors of scans are already replaced by positions in the database.
    keys: Commands,
    slots: Vec<Slot>,
}

fn has_version(read: &dyn Read, key: &[u8], version: u64) -> Result<bool, StoreError> {
    Ok(read.look(key)?.map_or(0, |look| look.version) == version)
}

fn are_unchanged(read: &dyn Read, watched: &[Watched]) -> Result<bool, StoreError> {
    for (key, version) in watched {
        if !has_version(read, key, *version)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true if all watched keys still have their versions. The keys of each database are read from one view of this
/// database.
pub(super) fn are_unchanged_elsewhere<'w>(
    databases: &Databases,
    watched: impl Iterator<Item = &'w Watch> + Clone,
) -> Result<bool, Failure> {
    for (number, of) in databases.list.iter().enumerate() {
        let here = || watched.clone().filter(|watch| watch.database == number);
        if here().next().is_none() {
            continue;
        }
        let unchanged = of.database.read(|read| {
            for watch in here() {
                if !has_version(read, &watch.key, watch.version)? {
                    return Ok(false);
                }
            }
            Ok(true)
        })?;
        if !unchanged {
            return Ok(false);
        }
    }
    Ok(true)
}

impl Session {
    /// Handles `MULTI`: begins a transaction.
    pub(super) fn multi(&mut self, out: &mut Outbox) -> CommandProgress {
        if self.transaction.is_some() {
            return self.fail("ERR MULTI calls can not be nested", out);
        }
        self.transaction = Some(Transaction::default());
        self.client().queued.store(1, Ordering::Relaxed);
        self.write_reply(out, |writer| writer.ok());
        CommandProgress::Done
    }

    /// Queues a command of the transaction that `MULTI` began.
    pub(super) fn queue(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        if command.name == "select" && self.index_of(arguments[1]) != Ok(self.database) {
            return self.refuse("ERR a transaction uses one database: SELECT it before MULTI", out);
        }
        let Some(transaction) = &mut self.transaction else { return CommandProgress::Done };
        let bytes: usize = arguments.iter().map(|argument| argument.len()).sum();
        if transaction.commands.len() >= MAX_TRANSACTION_COMMANDS
            || transaction.commands.bytes() + bytes + 8 * arguments.len() > MAX_TRANSACTION_BYTES
        {
            let text =
                format!("ERR a transaction has at most {MAX_TRANSACTION_COMMANDS} commands and 15 MiB: split it");
            return self.refuse(&text, out);
        }
        let wanted = transaction.commands.bytes() + bytes + 8 * arguments.len();
        if !transaction.has_room(wanted, &self.account) {
            return self.refuse("BUSY requests use too much memory: DISCARD, and retry later", out);
        }
        transaction.commands.push(command, arguments.iter().copied());
        let queued = transaction.commands.len() + 1;
        self.client().queued.store(queued, Ordering::Relaxed);
        self.write_reply(out, |writer| writer.simple("QUEUED"));
        CommandProgress::Done
    }

    /// Handles `DISCARD`: ends the transaction without running it.
    pub(super) fn discard(&mut self, out: &mut Outbox) -> CommandProgress {
        if self.transaction.is_none() {
            return self.fail("ERR DISCARD without MULTI", out);
        }
        self.end_transaction();
        self.write_reply(out, |writer| writer.ok());
        CommandProgress::Done
    }

    /// Ends the client's transaction and unwatches all keys. Returns the queued commands.
    pub(super) fn end_transaction(&mut self) -> Option<Transaction> {
        self.unwatch();
        self.client().queued.store(0, Ordering::Relaxed);
        self.transaction.take()
    }

    /// Stops watching all keys that the client watches with `WATCH`.
    pub(super) fn unwatch(&mut self) {
        if !self.watched.is_empty() {
            self.watched = Vec::new();
            self.client().watched.store(0, Ordering::Relaxed);
        }
    }

    /// Handles `WATCH`: records the present versions of keys. `EXEC` compares them later.
    pub(super) fn watch(&mut self, keys: &[&[u8]], out: &mut Outbox) -> CommandProgress {
        if self.transaction.is_some() {
            return self.fail("ERR WATCH inside MULTI is not allowed", out);
        }
        if !self.burst.is_empty() {
            return CommandProgress::Again;
        }
        if self.watched.len() + keys.len() > MAX_REDIS_WATCHED_KEYS {
            return self.fail(&format!("ERR at most {MAX_REDIS_WATCHED_KEYS} keys can be watched: UNWATCH some"), out);
        }
        let bytes: usize = self.watched.iter().map(|watch| watch.key.len()).sum();
        if bytes + keys.iter().map(|key| key.len()).sum::<usize>() > MAX_WATCHED_BYTES {
            return self.fail("ERR all watched keys together have at most 1 MiB: UNWATCH some", out);
        }
        let database = self.database;
        match self.store().read_briefly(self.budget(), |read| Watch::all(read, database, keys)) {
            Ok(watched) => self.watching(watched, out),
            Err(spent) => return self.watch_again(spent, keys, out),
        }
        CommandProgress::Done
    }

    /// Adds watched keys to the session, and replies to `WATCH`.
    pub(super) fn watching(&mut self, watched: Result<Vec<Watch>, Failure>, out: &mut Outbox) {
        match watched {
            Ok(watched) => {
                self.watched.extend(watched);
                self.client().watched.store(self.watched.len(), Ordering::Relaxed);
                self.write_reply(out, |writer| writer.ok());
            }
            Err(failure) => self.error(&failure.0, out),
        }
    }

    /// Handles `EXEC`: runs the queued commands, unless a watched key has changed.
    pub(super) fn exec(&mut self, out: &mut Outbox) -> CommandProgress {
        let Some(transaction) = &self.transaction else {
            return self.fail("ERR EXEC without MULTI", out);
        };
        if transaction.is_refused {
            self.end_transaction();
            return self.fail("EXECABORT Transaction discarded because of previous errors.", out);
        }
        let writes = transaction.commands.list().any(|command| matches!(command.run, Run::Write(_)));
        let is_batched = matches!(self.store(), Database::Batched(_)) && (writes || !self.burst.is_empty());
        if !self.burst.is_empty() && (!is_batched || !self.watched.is_empty()) {
            return CommandProgress::Again;
        }
        if is_batched
            && let Some(flow) =
                self.enter(transaction_len(&self.transaction), transaction_bytes(&self.transaction), out)
        {
            if flow == CommandProgress::Done {
                // The transaction was rejected and the client has got an error, so the transaction ends.
                self.end_transaction();
            }
            return flow;
        }
        let elsewhere = || self.watched.iter().filter(|watch| watch.database != self.database);
        match self.budget().perform(|| are_unchanged_elsewhere(&self.resp.databases, elsewhere())) {
            Ok(unchanged) => self.exec_unless_changed(unchanged, out),
            Err(spent) => {
                let watched = elsewhere().cloned().collect();
                self.compare_again(spent, watched, out)
            }
        }
    }

    /// Runs the queued commands, unless a watched key of another database has changed (`unchanged` is false), or a
    /// watched key of the selected database changes before they run.
    pub(super) fn exec_unless_changed(
        &mut self,
        unchanged: Result<bool, Failure>,
        out: &mut Outbox,
    ) -> CommandProgress {
        let here = self.watched.iter().filter(|watch| watch.database == self.database);
        let watched: Vec<Watched> = here.map(|watch| (watch.key.clone(), watch.version)).collect();
        let Some(transaction) = self.end_transaction() else { return CommandProgress::Done };
        match unchanged {
            Ok(true) => {}
            Ok(false) => {
                self.answer(&Reply::NullArray, out);
                return CommandProgress::Done;
            }
            Err(failure) => return self.fail(&failure.0, out),
        }
        let writes = transaction.commands.list().any(|command| matches!(command.run, Run::Write(_)));
        let is_batched = matches!(self.store(), Database::Batched(_)) && (writes || !self.burst.is_empty());
        let plan = self.plan(&transaction.commands);
        let mut lacks_reply_room = false;
        plan.keys.each(|command, arguments| lacks_reply_room |= self.lacks_reply_room(command, arguments));
        if lacks_reply_room {
            return self.fail(NO_REPLY_ROOM, out);
        }
        if is_batched {
            let emptying = plan.keys.list().filter(|command| empties(command)).count();
            if let Some(flow) = self.refuse_emptying(emptying, out) {
                return flow;
            }
            return self.exec_in_burst(plan, watched);
        }
        let outcome = match self.exec_immediate(&plan.keys, &watched) {
            Ok(outcome) => outcome,
            Err(spent) => return self.read_transaction_again(spent, plan.keys, plan.slots, watched, out),
        };
        let muted = self.muted;
        self.write_slots(plan.slots, Vec::new(), outcome, out);
        self.muted = muted;
        CommandProgress::Done
    }

    fn plan(&self, commands: &Commands) -> Plan {
        let muted = self.muted;
        let mut keys = Commands::default();
        let mut slots = vec![Slot::Group { len: commands.len() as u32, muted }];
        commands.each(|command, arguments| {
            if matches!(command.run, Run::Session) {
                let arguments = arguments.iter().map(|argument| Box::from(*argument)).collect();
                slots.push(Slot::Session { arguments, muted });
                return;
            }
            let number = command.number_of(arguments) as u16;
            let is_read = matches!(command.run, Run::Read(_));
            let Some(at) = cursor_argument(command.name) else {
                keys.push(command, arguments.iter().copied());
                slots.push(Slot::Outcome { is_scan: false, is_read, muted, command: number });
                return;
            };
            let Some(position) = self.resp.cursors.position(arguments[at]) else {
                slots.push(Slot::Refused { error: INVALID_CURSOR, muted });
                return;
            };
            let mut translated = arguments.to_vec();
            translated[at] = &position;
            keys.push(command, translated.iter().copied());
            slots.push(Slot::Outcome { is_scan: true, is_read, muted, command: number });
        });
        Plan { keys, slots }
    }

    fn exec_in_burst(&mut self, plan: Plan, watched: Vec<Watched>) -> CommandProgress {
        // A transaction with a single command needs no marks.
        let is_marked = plan.keys.len() > 1;
        if is_marked && self.burst.commands.is_empty() {
            self.resp.waiting.touch_none(&mut self.burst.touched);
        }
        self.mark(is_marked, b"multi");
        plan.keys.each(|command, arguments| {
            self.push(command, arguments, false);
            // The plan already contains the slot for the reply to this command.
            self.burst.slots.pop();
        });
        self.mark(is_marked, b"exec");
        self.burst.slots.extend(plan.slots);
        if watched.is_empty() {
            return CommandProgress::Done;
        }
        self.burst.watched = watched;
        CommandProgress::Send
    }

    /// Adds the command `MULTI` or `EXEC` to the commands that are committed together, if `is_marked` is true. These
    /// two commands mark the beginning and the end of a transaction for the database. They get no reply.
    fn mark(&mut self, is_marked: bool, name: &'static [u8]) {
        if is_marked && let Some(command) = thalweg_redis::find(name) {
            self.burst.commands.push(command, [name].into_iter());
        }
    }

    /// Runs a transaction on a cache, or a transaction that only reads.
    ///
    /// # Errors
    /// [`BudgetSpent`] if the transaction only reads and takes too long for this thread.
    fn exec_immediate(&self, keys: &Commands, watched: &[Watched]) -> Result<Outcome, BudgetSpent> {
        match self.store() {
            Database::Immediate(database) => {
                let outcome = database.write_at_most(MAX_CACHE_STEPS, |store| match are_unchanged(&*store, watched)? {
                    true => all(keys, |command, arguments| thalweg_redis::run(store, command, arguments)).map(Some),
                    false => Ok(None),
                });
                Ok(outcome.map_err(Failure::from))
            }
            database => database.read_briefly(self.budget(), |read| read_all(read, keys, watched)),
        }
    }
}

/// Runs the commands of a transaction that only reads. All of them read from one view. Returns `None` if a watched key
/// has changed.
pub(super) fn read_all(
    read: &dyn Read,
    keys: &Commands,
    watched: &[Watched],
) -> Result<Option<Vec<Reply>>, StoreError> {
    match are_unchanged(read, watched)? {
        true => all(keys, |command, arguments| thalweg_redis::run_read(read, command, arguments)).map(Some),
        false => Ok(None),
    }
}

/// Runs all commands of a transaction, even after one of them fails. Returns their replies, or the first failure if
/// there was one.
fn all<'a>(
    commands: &'a Commands,
    mut run: impl FnMut(&'static Command, &[&'a [u8]]) -> Result<Reply, StoreError>,
) -> Result<Vec<Reply>, StoreError> {
    let (mut replies, mut failed) = (Vec::with_capacity(commands.len()), None);
    commands.each(|command, arguments| match run(command, arguments) {
        Ok(reply) => replies.push(reply),
        Err(error) => failed = failed.take().or(Some(error)),
    });
    failed.map_or(Ok(replies), Err)
}

fn transaction_len(transaction: &Option<Transaction>) -> usize {
    // The transaction's commands and its two marks.
    transaction.as_ref().map_or(0, |transaction| transaction.commands.len() + 2)
}

fn transaction_bytes(transaction: &Option<Transaction>) -> usize {
    transaction.as_ref().map_or(0, |transaction| transaction.commands.bytes())
}
