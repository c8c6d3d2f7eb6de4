//! Reads that wait: `XREAD` and `XREADGROUP` with `BLOCK`, outside of `MULTI`.
//!
//! Owns: waiting, until a key has changed, the time is up, or the client is gone. Does not own what is waited for
//! ([`Blocked`]), nor who tells of changes ([`waiting`](super::waiting)).
//!
//! In order: the client registers for its keys; its command is done as it was given; if it answers nothing, the client
//! waits to be told of a change, looks, and does the command again when that would answer something. Of several who wait
//! for one consumer group's entry the quickest gets it, not the first.
//!
//! Entries of a keyspace's streams come from Redis clients only, who tell of them; those of native streams are told by the
//! log. So nobody polls for entries. Only that a group's stream is there no more (it ended, or HTTP has written the key) is
//! told by nobody: readers of groups look after it each `RECHECK`.
//!
//! Bound: each counts as a tail (`max_tails`).

use std::{
    future::Future,
    task::{Context, Poll},
    time::Duration,
};

use thalweg_redis::{
    Command, Reply, Run,
    streams::block::{Blocked, Poll as Found},
};
use thalweg_transport::Outbox;
use tokio::time::Instant;

use super::{
    client::Unblock,
    database::{Appended, Database},
    failure::Failure,
    session::{Flow, Session},
    wait::Wait,
};

/// How soon a reader of a group finds out that its stream has ended, or was overwritten or removed by a client of another
/// protocol. Redis clients tell at once. One look at a key and a group each time.
const RECHECK: Duration = Duration::from_secs(1);

impl Session {
    /// A reading command that may wait; none: it does not.
    pub(super) fn blocking_command(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        out: &mut Outbox,
    ) -> Option<Flow> {
        if !arguments.iter().any(|argument| argument.eq_ignore_ascii_case(b"block")) {
            return None;
        }
        if !self.burst.is_empty() {
            return Some(Flow::Again);
        }
        let begun = self.store().read(|read| Blocked::begin(read, arguments));
        let blocked = match begun {
            Ok(blocked) => blocked?,
            Err(failure) => {
                self.error(&failure.0, out);
                return Some(Flow::Done);
            }
        };
        let Some(held) = self.resp.app.admission.tails.take(1) else {
            self.error("BUSY too many reads that wait: retry later", out);
            return Some(Flow::Done);
        };
        let waiter = self.resp.waiting.register(self.database, blocked.keys().map(|key| &key[..]));
        let until = blocked.timeout().map(|timeout| Box::pin(tokio::time::sleep(timeout)));
        let others = self.appended_by_others(&blocked);
        let depends = blocked.has_group() && matches!(self.store(), Database::Batched(_));
        let recheck = depends.then(|| Box::pin(tokio::time::sleep(RECHECK)));
        let wait = Box::new(Wait { blocked, waiter, others, until, recheck, muted: self.muted, _held: held });
        // What changed before it was registered has rung for nobody.
        wait.waiter.ring();
        Some(self.try_to_read(command, arguments, wait, out))
    }

    fn appended_by_others(&self, blocked: &Blocked) -> Vec<Appended> {
        match self.store() {
            Database::Batched(database) => blocked.keys().filter_map(|key| database.appended(key)).collect(),
            Database::Immediate(_) => Vec::new(),
        }
    }

    /// Does the command, and waits if it answers nothing.
    fn try_to_read(
        &mut self,
        command: &'static Command,
        arguments: &[&[u8]],
        wait: Box<Wait>,
        out: &mut Outbox,
    ) -> Flow {
        let done = match (self.store(), command.run) {
            (Database::Batched(_), Run::Write(_)) => {
                if let Some(flow) = self.enter(1, 0, out) {
                    return flow;
                }
                self.push(command, arguments, false);
                self.may_block = Some(wait);
                return Flow::Send;
            }
            (Database::Immediate(database), _) => {
                let mut done = Ok(Reply::NullArray);
                database.write(&mut |store| done = thalweg_redis::run(store, command, arguments));
                done.map_err(Failure::from)
            }
            (database, _) => database.read(|read| thalweg_redis::run_read(read, command, arguments)),
        };
        match done {
            Ok(Reply::NullArray) => self.set_blocked(Some(wait)),
            Ok(reply) => self.answer(&reply, out),
            Err(failure) => self.error(&failure.0, out),
        }
        Flow::Done
    }

    /// Goes on with a read that waits. Whether something came of it.
    pub(super) fn poll_blocked(&mut self, cx: &mut Context<'_>, out: &mut Outbox) -> bool {
        let unblock = self.client().take_unblock();
        let Some(wait) = &mut self.blocked else { return false };
        self.muted = wait.muted;
        if let Some(unblock) = unblock {
            self.set_blocked(None);
            self.answer(&told_to_stop(unblock), out);
            return true;
        }
        let was_told = wait.others.iter_mut().any(|other| other.is_ready(cx));
        if wait.waiter.poll(cx).is_ready() || was_told {
            self.look_again(out);
            return true;
        }
        if let Some(recheck) = &mut wait.recheck
            && recheck.as_mut().poll(cx).is_ready()
        {
            recheck.as_mut().reset(Instant::now() + RECHECK);
            self.look_for_the_end(out);
            return true;
        }
        let is_over = wait.until.as_mut().is_some_and(|until| matches!(until.as_mut().poll(cx), Poll::Ready(())));
        if is_over {
            self.set_blocked(None);
            self.answer(&Reply::NullArray, out);
        }
        is_over
    }

    /// Ends the wait if there won't be anything any more.
    fn look_for_the_end(&mut self, out: &mut Outbox) {
        let Some(wait) = &self.blocked else { return };
        let reply = match self.store().read(|read| wait.blocked.poll(read)) {
            Ok(Found::Waiting | Found::Ready) => return,
            Ok(Found::Ended(reply)) => reply,
            Err(failure) => Reply::Error(failure.0),
        };
        self.set_blocked(None);
        self.answer(&reply, out);
    }

    fn look_again(&mut self, out: &mut Outbox) {
        let Some(mut wait) = self.blocked.take() else { return };
        // Those of before are over, and from now on is what the look below does not see.
        wait.others = self.appended_by_others(&wait.blocked);
        let found = self.store().read(|read| wait.blocked.poll(read));
        if matches!(found, Ok(Found::Waiting)) {
            // As if it had not looked: who told it meanwhile to stop waiting is heard.
            self.blocked = Some(wait);
            return;
        }
        self.set_blocked(None);
        match found {
            Ok(Found::Waiting) => {}
            Ok(Found::Ended(reply)) => self.answer(&reply, out),
            Ok(Found::Ready) => {
                let arguments = wait.blocked.arguments();
                let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
                match thalweg_redis::admit(&arguments) {
                    Ok(command) => {
                        if self.try_to_read(command, &arguments, wait, out) == Flow::Send {
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

/// The reply to a read that was told to stop waiting.
fn told_to_stop(why: Unblock) -> Reply {
    match why {
        Unblock::Timeout => Reply::NullArray,
        Unblock::Error => Reply::error("UNBLOCKED client unblocked via CLIENT UNBLOCK"),
    }
}
