//! The replies of a session: the memory for them, and their destination.
//!
//! Owns: the memory that large replies reserve until the client has read them, and the choice between the outbox and
//! the held replies of a burst. Does not own the encoding of replies (`thalweg_redis::wire`), nor the order of the
//! replies of a burst (`burst`).

use std::{cell::Cell, convert::Infallible};

use thalweg_redis::{Command, Kind, Reply, Run, StoreError, wire::Writer};
use thalweg_serving::{
    admission::{Reservation, Resource},
    limits::{COUNTED_REPLY_BYTES, OUTBOX_BYTES},
};
use thalweg_transport::Outbox;
use thalweg_types::command::ValueUse;

use super::{
    out::ReplyTarget,
    session::{CommandProgress, Session},
};

impl Session {
    /// Returns false if so much memory is used by replies that the value of a key cannot be sent. Does not read the
    /// value.
    pub(super) fn has_room_for_value(&self, key: &[u8]) -> bool {
        let len = || match self.store().read_briefly(self.budget(), |read| read.look(key)) {
            Ok(Ok(found)) => Ok::<_, Infallible>(found.map(|info| info.len as u64)),
            // The read of the value will report this failure, or wait for the disk.
            Ok(Err(_)) | Err(_) => Ok(None),
        };
        self.account.has_reply_room(len).unwrap_or_else(|never| match never {})
    }

    /// Returns false if so much memory is used by replies that the values of an `MGET` cannot be sent together. Does
    /// not read the values. Returns true for other commands, because the size of their replies is not known in advance.
    #[cold]
    pub(super) fn has_room_for_values(&self, command: &Command, arguments: &[&[u8]]) -> bool {
        if ValueUse::of(command.name.as_bytes()) != Some(ValueUse::ReadKeys) {
            return true;
        }
        // Adds up the lengths of the values until the budget is used up. The sum is a lower bound of the reply's size.
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

    /// Reserves memory for a large reply. Returns false if replies already use too much memory; the client then gets an
    /// error instead. Only replies to reads are checked, so the error never hides a change of data.
    #[inline]
    pub(super) fn has_room_for(&mut self, reply: &Reply) -> bool {
        if matches!(reply, Reply::Bulk(bytes) if bytes.len() < COUNTED_REPLY_BYTES) {
            return true;
        }
        let bytes = reply.content_bytes();
        bytes < COUNTED_REPLY_BYTES || self.muted || self.replies_held().grow(bytes as u64)
    }

    /// Counts a reply towards the memory limit, when the replies to commands that were committed together are written.
    /// Small replies are counted only when their sum `uncounted`, in bytes, is large. Returns false if there is no
    /// memory for the reply; the client must then get an error instead. Only a reply to a read is rejected, so the
    /// error never hides a change of data.
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

    /// Returns true if a command must not begin because there may be no memory for its reply. This concerns commands
    /// that change data and reply with values: once such a command has changed data, its reply must be sent. The
    /// largest possible value must fit.
    #[inline]
    pub(super) fn lacks_reply_room(&self, command: &Command, arguments: &[&[u8]]) -> bool {
        matches!(command.run, Run::Write(_))
            && self.account.is_short_of_reply_room()
            && returns_values(command.name, arguments)
    }

    /// Returns true if one more short reply may be added to the output that waits for the client. Such a reply has at
    /// most about 100 KiB. A transaction can contain thousands of them.
    pub(super) fn has_room_behind(&mut self, out: &Outbox) -> bool {
        out.len() < OUTBOX_BYTES || self.replies_held().grow_to(out.len() as u64)
    }

    pub(super) fn replies_held(&mut self) -> &mut Reservation {
        self.replies.get_or_insert_with(|| self.account.empty(Resource::ReplyBytes))
    }

    /// Writes the reply to the current command, or a part of the reply. If earlier commands wait for their commit, the
    /// new reply is held until the earlier replies are written.
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

    /// Writes an error reply to the current command. Returns the progress of a finished command.
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

    /// Writes an error reply with this text to the current command.
    pub(super) fn error(&mut self, text: &str, out: &mut Outbox) {
        self.count_error(text);
        self.write_reply(out, |writer| writer.error(text.as_bytes()));
    }

    #[cold]
    pub(super) fn count_error(&mut self, text: &str) {
        self.tally.errors += 1;
        self.resp.metrics.statistics.error(text);
    }
}

/// Returns true for commands that can change data and reply with values or entries. Their replies may be large.
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
