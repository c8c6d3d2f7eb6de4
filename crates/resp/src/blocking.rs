//! Blocking reads: `XREAD` and `XREADGROUP` with the option `BLOCK`, outside of `MULTI`.
//!
//! Owns: the wait until a key changes, the timeout expires, or the client disconnects. Does not own the condition of
//! the wait ([`Blocked`]), nor the notification of changes ([`waiting`](super::waiting)).
//!
//! Sequence: the ids `$` are resolved, the client registers for its keys, and then its command runs. If the command
//! finds nothing, the client waits for a notification and then checks its keys. If the command would now return
//! something, it runs again. If several clients wait for an entry of one consumer group, the first client to run its
//! command gets the entry, not the first that waited. Resolving each `$` and checking the keys reads rows. If such a
//! read would spend the thread's budget or wait for the disk, reader threads do it.
//!
//! Two notifications wake the client. First, a Redis client of this node that has changed the key notifies it after its
//! commit. Second, when the node applies an entry that adds to streams, it notifies all waiting clients, whichever node
//! has proposed the entry. So no client polls for entries, except for entries of native streams that do not exist yet.
//! One event causes no notification of the second kind: the loss of a group's stream, which can expire, or which a
//! client of another protocol or node can remove or overwrite. So clients that read for a group check for this every
//! `RECHECK`.
//!
//! Limits: each blocked read counts as a tail (`max_tails`). It waits for at most [`MAX_STREAMS`] streams, because its
//! thread looks at all of them whenever one of them may have changed.

use std::{
    future::Future,
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use thalweg_redis::{
    Command, Read, Reply, Run,
    streams::block::{Blocked, Poll as Found},
};
use thalweg_serving::admission::Resource;
use thalweg_transport::Outbox;
use thalweg_types::budget::BudgetSpent;
use tokio::time::Instant;

use super::{
    client::Unblock,
    database::{Appended, Database},
    failure::Failure,
    long_reads,
    session::{CommandProgress, Session},
    wait::Wait,
};

/// Interval at which a client that waits for entries of a consumer group checks that the stream still exists. The
/// stream may have expired, or a client of another protocol or node may have removed or overwritten it. Changes by
/// Redis clients of this node are notified immediately. Each check costs one lookup of a key and one of a group.
const RECHECK: Duration = Duration::from_secs(1);

/// Maximum number of streams for which one blocking read waits. Checking all of them for new entries takes about a
/// millisecond.
const MAX_STREAMS: usize = 256;

impl Session {
    /// Runs an `XREAD` or `XREADGROUP` command that has the option `BLOCK`. Returns `None` if the command cannot block;
    /// the caller then runs it like any other command.
    pub(super) fn blocking_command(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> Option<CommandProgress> {
        let streams = blocking_streams(arguments)?;
        if !self.burst.is_empty() {
            return Some(CommandProgress::Again);
        }
        if streams > MAX_STREAMS {
            return Some(self.fail(&format!("ERR a blocking read waits for at most {MAX_STREAMS} streams"), out));
        }
        match self.store().read_briefly(self.budget(), |read| Blocked::begin(read, arguments)) {
            Ok(Ok(blocked)) => Some(self.read_or_wait(blocked?, command, arguments, out)),
            Ok(Err(failure)) => Some(self.fail(&failure.0, out)),
            Err(spent) => Some(self.begin_blocking_again(spent, command, arguments, out)),
        }
    }

    /// Continues a command with the option `BLOCK` after reader threads have parsed it and resolved its ids. `blocked`
    /// is `None` if the command cannot block.
    pub(super) fn continue_blocking(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        blocked: Result<Option<Blocked>, Failure>,
        out: &mut Outbox,
    ) {
        let errors = self.tally.errors;
        let progress = match blocked {
            Ok(Some(blocked)) => self.read_or_wait(blocked, command, arguments, out),
            Ok(None) => self.keys_command(command, arguments, false, out),
            Err(failure) => {
                self.log_failure(&failure);
                self.fail(&failure.0, out)
            }
        };
        debug_assert_ne!(progress, CommandProgress::Again, "nothing else has joined the burst");
        if self.tally.errors != errors {
            self.resp.metrics.statistics.failed(command.number_of(arguments));
        }
        self.send_burst();
    }

    /// Registers the client for notifications of changes of the keys in its blocking read, and then runs the read.
    fn read_or_wait(
        &mut self,
        blocked: Blocked,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> CommandProgress {
        let Some(held) = self.account.take(Resource::Tails, 1) else {
            return self.fail("BUSY too many reads that wait: retry later", out);
        };
        let waiter = self.resp.waiting.register(self.database, blocked.keys().map(|key| &key[..]));
        let until = blocked.timeout().map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        let others = self.appended_by_others(&blocked);
        let growth = match self.store() {
            Database::Batched(_) => Some(self.resp.app.db.blocking().await_stream_growth()),
            Database::Immediate(_) => None,
        };
        let depends = blocked.has_group() && matches!(self.store(), Database::Batched(_));
        let recheck = depends.then(|| Box::pin(tokio::time::sleep(RECHECK)));
        let wait = Box::new(Wait {
            blocked,
            waiter,
            others,
            _growth: growth,
            until,
            recheck,
            look: None,
            is_look_outdated: false,
            muted: self.muted,
            _held: held,
        });
        // A change between the read and the registration caused no notification. So the bell is rung here, and the
        // first poll checks the keys.
        wait.waiter.ring();
        self.try_to_read(command, arguments, wait, out)
    }

    fn appended_by_others(&self, blocked: &Blocked) -> Vec<Appended> {
        match self.store() {
            Database::Batched(database) => blocked.keys().filter_map(|key| database.appended(key)).collect(),
            Database::Immediate(_) => Vec::new(),
        }
    }

    /// Runs a blocking read once. If the read finds no entry, the client waits until it is notified of a change.
    fn try_to_read(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        wait: Box<Wait>,
        out: &mut Outbox,
    ) -> CommandProgress {
        let done = match (self.store(), command.run) {
            (Database::Batched(_), Run::Write(_)) => {
                if let Some(flow) = self.enter(1, 0, out) {
                    return flow;
                }
                self.push(command, arguments, false);
                self.may_block = Some(wait);
                return CommandProgress::Send;
            }
            (Database::Immediate(database), _) => {
                database.write(|store| thalweg_redis::run(store, command, arguments)).map_err(Failure::from)
            }
            (database, _) => {
                let read = |read: &dyn Read| thalweg_redis::run_read(read, command, arguments);
                match database.read_briefly(self.budget(), read) {
                    Ok(done) => done,
                    Err(spent) => return self.read_again(spent, command, arguments, false, Some(wait), out),
                }
            }
        };
        match done {
            Ok(Reply::NullArray) => self.begin_waiting(wait, out),
            Ok(reply) => self.answer(&reply, out),
            Err(failure) => self.error(&failure.0, out),
        }
        CommandProgress::Done
    }

    /// Continues the client's blocked read when something has happened: another client requested its end, reader
    /// threads checked its keys, one of its keys changed, the regular check of its group is due, or its timeout
    /// expired. Returns true if there was progress.
    pub(super) fn poll_blocked(&mut self, cx: &mut Context<'_>, out: &mut Outbox) -> bool {
        let unblock = self.client().take_unblock();
        let Some(wait) = &mut self.blocked else { return false };
        self.muted = wait.muted;
        if let Some(unblock) = unblock {
            self.set_blocked(None);
            self.answer(&unblocked_reply(unblock), out);
            return true;
        }
        if let Some(look) = &mut wait.look
            && let Poll::Ready(found) = long_reads::poll(look, cx)
        {
            wait.look = None;
            match found {
                Ok(Found::Waiting) if wait.is_look_outdated => self.retry_read(out),
                found => self.looked(found, out),
            }
            return true;
        }
        let was_told = wait.others.iter_mut().any(|other| other.is_ready(cx));
        if wait.waiter.poll(cx).is_ready() || was_told {
            self.retry_read(out);
            return true;
        }
        if let Some(recheck) = &mut wait.recheck
            && recheck.as_mut().poll(cx).is_ready()
        {
            recheck.as_mut().reset(Instant::now() + RECHECK);
            self.check_group_exists(out);
            return true;
        }
        let is_over = wait.until.as_mut().is_some_and(|until| matches!(until.as_mut().poll(cx), Poll::Ready(())));
        if is_over {
            self.set_blocked(None);
            self.answer(&Reply::NullArray, out);
        }
        is_over
    }

    /// Checks that the stream and the group of the client's blocked read still exist, and ends the read with an error
    /// if not. Also runs the read again if there is an entry, even if the client was not notified of it. Does nothing
    /// while reader threads check the keys, because their check covers both.
    fn check_group_exists(&mut self, out: &mut Outbox) {
        let Some(wait) = self.blocked.as_ref().filter(|wait| wait.look.is_none()) else { return };
        match self.store().read_briefly(self.budget(), |read| wait.blocked.poll(read)) {
            Ok(Ok(Found::Ready)) => self.retry_read(out),
            Ok(found) => self.looked(found, out),
            Err(BudgetSpent::Steps) => {}
            Err(spent) => self.look_again(spent),
        }
    }

    /// Checks the keys of the client's blocked read, and runs the read again if it would find an entry.
    fn retry_read(&mut self, out: &mut Outbox) {
        let Some(wait) = &self.blocked else { return };
        // The old notifications have fired. The new ones cover all changes that the look below does not see.
        let others = self.appended_by_others(&wait.blocked);
        let found = self.store().read_briefly(self.budget(), |read| wait.blocked.poll(read));
        let Some(wait) = &mut self.blocked else { return };
        wait.others = others;
        let found = match found {
            Ok(found) => found,
            // A look can take long if many entries were deleted. In this case the read itself runs, on a thread for
            // long reads.
            Err(BudgetSpent::Steps) => Ok(Found::Ready),
            // A look is already under way. If each change began another one, the looks would occupy the threads for
            // cold reads, and the last one would wait for all others.
            Err(BudgetSpent::Disk) if wait.look.is_some() => {
                wait.is_look_outdated = true;
                return;
            }
            Err(spent) => return self.look_again(spent),
        };
        // A look that began earlier may not see this change, so its result is not used.
        wait.look = None;
        self.looked(found, out);
    }

    /// Passes the check of the blocked read's keys to reader threads, because it would wait for the disk. The client
    /// stays blocked in the meantime. A check is better than running the read itself: a read for a group would propose
    /// a command at each change.
    fn look_again(&mut self, spent: BudgetSpent) {
        let Some(wait) = &self.blocked else { return };
        let (blocked, resp, database) = (wait.blocked.clone(), Arc::clone(&self.resp), self.database);
        let look = self.give(spent, 0, move || resp.databases.list[database].database.read(|read| blocked.poll(read)));
        if let Some(wait) = &mut self.blocked {
            (wait.look, wait.is_look_outdated) = (look, false);
        }
    }

    /// Continues the client's blocked read with the result of a check of its keys. If there is still no entry, changes
    /// nothing, so that a concurrent `CLIENT UNBLOCK` still takes effect.
    fn looked(&mut self, found: Result<Found, Failure>, out: &mut Outbox) {
        if matches!(found, Ok(Found::Waiting)) {
            return;
        }
        let Some(wait) = self.blocked.take() else { return };
        self.set_blocked(None);
        match found {
            Ok(Found::Waiting) => {}
            Ok(Found::Ended(reply)) => self.answer(&reply, out),
            Ok(Found::Ready) => {
                let arguments = wait.blocked.arguments();
                let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
                match thalweg_redis::admit(&arguments) {
                    Ok(command) => {
                        if self.try_to_read(command, &arguments, wait, out) == CommandProgress::Send {
                            self.send_burst();
                        }
                    }
                    Err(reply) => self.answer(&reply, out),
                }
            }
            Err(failure) => self.error(&failure.0, out),
        }
    }
}

/// Returns the number of streams in an `XREAD` or `XREADGROUP` with the option `BLOCK`; `None` if the command has no
/// such option. The names of streams, groups and consumers may be words such as `block` and `streams`.
fn blocking_streams(arguments: &[&[u8]]) -> Option<usize> {
    let (mut at, mut blocks) = (1, false);
    while let Some(option) = arguments.get(at) {
        // As in Redis, a zero byte ends an option.
        let option = option.split(|byte| *byte == 0).next().unwrap_or_default();
        let is = |name: &str| option.eq_ignore_ascii_case(name.as_bytes());
        if is("streams") {
            return blocks.then_some((arguments.len() - at - 1) / 2);
        }
        blocks |= is("block");
        // Skips the option and its values.
        at += match () {
            () if is("group") => 3,
            () if is("block") || is("count") => 2,
            () => 1,
        };
    }
    None
}

/// Returns the reply to a blocking read that `CLIENT UNBLOCK` has ended.
fn unblocked_reply(why: Unblock) -> Reply {
    match why {
        Unblock::Timeout => Reply::NullArray,
        Unblock::Error => Reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_streams_and_groups_are_no_options() {
        let streams = |command: &str| blocking_streams(&command.split(' ').map(str::as_bytes).collect::<Vec<_>>());
        assert_eq!(streams("XREAD BLOCK 0 STREAMS a b $ $"), Some(2));
        assert_eq!(streams("xread count 1 block 0 streams streams $"), Some(1));
        assert_eq!(streams("XREADGROUP GROUP streams block COUNT 1 BLOCK 0 NOACK STREAMS s >"), Some(1));
        for command in [
            "XREAD STREAMS block 0",
            "XREAD COUNT 1 STREAMS a block 0 0",
            "XREADGROUP GROUP block c STREAMS s >",
            "XREADGROUP GROUP g BLOCK STREAMS s >",
            "XREAD BLOCK 0 s 0",
            "XREAD BLOCK",
        ] {
            assert_eq!(streams(command), None, "{command}");
        }
    }
}
