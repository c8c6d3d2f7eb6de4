//! Proposing and committing a client's commands.
//!
//! Owns: the admission of commands to a burst (a list of a client's commands that are committed together), the proposal
//! of the burst to the database, and the outcome. Does not own the list of the replies (`burst`), nor the batches into
//! which the database divides the burst (`keyspaces`).

use thalweg_redis::{Command, Reply, Run, errors::NO_REPLY_ROOM};
use thalweg_serving::{admission::Resource, fetched::RowFetcher};
use thalweg_transport::Outbox;

use super::{
    burst::{PendingBurst, Slot},
    commands::empties,
    database::{Database, Outcome},
    session::{CommandProgress, Session},
    waiting::TouchedKeys,
};

impl Session {
    /// Adds a command to the burst: the client's commands that are committed together.
    #[inline]
    pub(super) fn join(
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

    /// Checks if `commands` more commands of `bytes` bytes in total may be committed together with the client's pending
    /// ones. Returns `None` if they may. Otherwise returns the progress to report for the current command.
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

    /// Proposes the client's gathered commands (the burst) to their database, to be committed together. The list of
    /// their replies is kept until the outcome is known.
    pub(super) fn send_burst(&mut self) {
        if self.burst.is_empty() || self.pending.is_some() {
            return;
        }
        let Database::Batched(database) = &self.resp.databases.list[self.burst.database].database else { return };
        // The burst carries the id of its last request, for log lines.
        let origin = self.resp.app.origin(&self.account, || self.request_id().to_string());
        let fetcher = RowFetcher { readers: &self.resp.app.readers, account: &self.account, budget: self.budget() };
        let commands = database.propose(&origin, fetcher, &self.burst.commands, &self.burst.watched);
        // While the burst is pending, only its reply slots are needed.
        self.burst.commands.clear();
        self.burst.watched = Vec::new();
        let deletes = std::mem::take(&mut self.burst.deletes);
        self.pending = Some(PendingBurst { commands, deletes, _held: self.account.count(Resource::Requests) });
    }

    pub(super) fn settled(&mut self, outcome: Outcome, out: &mut Outbox) {
        match &outcome {
            Ok(_) => self.resp.waiting.changed(self.burst.database, &self.burst.touched),
            Err(failure) => self.log_failure(failure),
        }
        self.burst.touched = TouchedKeys::default();
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
}
