//! Work of a session that is done in slices. Such work is writing the replies to a long transaction or burst, and
//! changing a long list of subscriptions.
//!
//! Owns: the steps of such work. A slice ends after about a millisecond ([`Slice`]), or when enough output waits for
//! the client. The time of a slice counts for the connection. After too much of it, the connection waits while its
//! thread serves other clients. Does not own: the commands.
//!
//! Invariants: while a session has such work, it handles no further command, so replies keep their order. While replies
//! are being written, no message of a subscription is sent, because it would interrupt a reply.

use std::{sync::Arc, time::Instant};

use thalweg_redis::{Reply, errors::NO_REPLY_ROOM};
use thalweg_serving::{bulk::Slice, limits::OUTBOX_BYTES};
use thalweg_transport::Outbox;

use super::{
    burst::Slot,
    database::Outcome,
    ongoing::{Ongoing, Replying, SubscriptionChange, SubscriptionList},
    session::{CommandProgress, Session, missing_reply},
};

/// Number of replies that are written between two readings of the clock.
const FEW_REPLIES: usize = 64;

impl Session {
    /// Writes the replies to a burst (commands that are committed together) or a transaction, in the order of the
    /// commands. If this takes too long, the remaining replies are written later. Returns the emptied buffers for reuse
    /// if all replies are written; `None` otherwise.
    pub(super) fn write_slots(
        &mut self,
        slots: Vec<Slot>,
        held: Vec<u8>,
        outcome: Outcome,
        out: &mut Outbox,
    ) -> Option<(Vec<Slot>, Vec<u8>)> {
        let mut replying = Replying::new(slots, held, outcome);
        if self.continue_replies(&mut replying, out) {
            return Some((replying.slots, replying.held));
        }
        self.ongoing = Some(Box::new(Ongoing::Replies(replying)));
        None
    }

    /// Begins to change a long list of subscriptions, and does the first part of this work.
    pub(super) fn begin_list(&mut self, list: SubscriptionList, out: &mut Outbox) {
        self.ongoing = Some(Box::new(Ongoing::Subscriptions(list)));
        self.go_on(out);
    }

    /// Returns true while a reply is being written. Messages of subscriptions must then wait.
    pub(super) fn is_replying(&self) -> bool {
        matches!(self.ongoing.as_deref(), Some(Ongoing::Replies(_)))
    }

    /// Continues the session's long work for one slice of about a millisecond. Returns true if there was progress.
    pub(super) fn go_on(&mut self, out: &mut Outbox) -> bool {
        let Some(mut ongoing) = self.ongoing.take() else { return false };
        let (is_done, moved) = match &mut *ongoing {
            Ongoing::Replies(replying) => (self.continue_replies(replying, out), true),
            Ongoing::Subscriptions(list) => {
                let before = list.next;
                let is_done = self.continue_list(list, out);
                (is_done, is_done || list.next > before)
            }
        };
        if !is_done {
            self.ongoing = Some(ongoing);
        }
        moved
    }

    /// Counts the time of a slice (a short period of long work) for the client. After too much counted time, the client
    /// waits for other clients of its thread.
    fn end_slice(&mut self, slice: Option<Slice>) {
        if let Some(time) = slice.and_then(Slice::work) {
            self.worked += time;
            self.publishing.caused.add_time(time);
        }
    }

    /// Continues to write replies. Returns true if all replies are written.
    fn continue_replies(&mut self, replying: &mut Replying, out: &mut Outbox) -> bool {
        let Replying { slots, held, replies, instead, at, held_at, queued, uncounted } = replying;
        let (errors, first, mut slice) = (self.tally.errors, *at, None::<Slice>);
        while let Some(slot) = slots.get(*at) {
            let is_of_session = matches!(slot, Slot::Session { .. });
            if is_of_session || *at - first >= FEW_REPLIES {
                let slice = slice.get_or_insert_with(|| Slice::begin(Instant::now()));
                if !(if is_of_session { slice.has_time_now() } else { slice.has_time() }) {
                    break;
                }
            }
            *at += 1;
            let is_queued = *queued > 0;
            *queued = queued.saturating_sub(1);
            let before = self.tally.errors;
            match slot {
                Slot::Held(bytes) => {
                    let end = *held_at + *bytes as usize;
                    out.buffer().extend_from_slice(&held[*held_at..end]);
                    *held_at = end;
                }
                Slot::Outcome { is_scan, is_read, muted, command } => {
                    self.muted = *muted;
                    let reply = instead.clone().or_else(|| replies.next()).unwrap_or_else(missing_reply);
                    let fits = self.count_outcome(&reply, *is_read, uncounted);
                    let reply = if fits { reply } else { Reply::error(NO_REPLY_ROOM) };
                    let reply =
                        if *is_scan { self.resp.cursors.translate(reply, self.account.address()) } else { reply };
                    self.answer(&reply, out);
                    let command = usize::from(*command);
                    if is_queued {
                        // A command outside of a transaction was already counted when it joined the burst.
                        self.tally.command(command);
                    }
                    if self.tally.errors != before {
                        self.resp.metrics.statistics.failed(command);
                    }
                }
                Slot::Group { len, muted } => {
                    self.muted = *muted;
                    match instead {
                        None => {
                            *queued = *len;
                            self.write_reply(out, |writer| writer.array(*len as usize));
                        }
                        Some(reply) => {
                            self.answer(reply, out);
                            *at += *len as usize;
                        }
                    }
                }
                Slot::Refused { error, muted } => {
                    self.muted = *muted;
                    self.error(error, out);
                }
                Slot::Session { muted, .. } if !self.has_room_behind(out) => {
                    self.muted = *muted;
                    self.error(NO_REPLY_ROOM, out);
                }
                Slot::Session { arguments, muted } => {
                    self.muted = *muted;
                    let arguments: Vec<&[u8]> = arguments.iter().map(|argument| &argument[..]).collect();
                    if let Ok(command) = thalweg_redis::admit(&arguments) {
                        self.is_executing = true;
                        if self.session_command(command, &arguments, out) == CommandProgress::End {
                            self.is_ending = true;
                        }
                        self.is_executing = false;
                        let command = command.number_of(&arguments);
                        self.tally.command(command);
                        if self.tally.errors != before {
                            self.resp.metrics.statistics.failed(command);
                        }
                    }
                }
            }
        }
        self.end_slice(slice);
        // The errors were counted for the commands of the transaction. They must not count again for the `EXEC` that
        // may be running now.
        self.tally.errors = errors;
        *at >= slots.len()
    }

    /// Continues to change the client's subscriptions to the channels or patterns in `list`. Returns true if none are
    /// left.
    fn continue_list(&mut self, list: &mut SubscriptionList, out: &mut Outbox) -> bool {
        self.muted = list.muted;
        let mut slice = Slice::begin(Instant::now());
        let mut is_done = false;
        while out.len() < OUTBOX_BYTES && slice.has_time() {
            let all: Option<Arc<[u8]>>;
            let name = match list.change {
                SubscriptionChange::UnsubscribeAll => {
                    all = self.subscriber.first_name(list.kind);
                    all.as_deref()
                }
                _ => list.name(list.next),
            };
            let Some(name) = name else {
                is_done = true;
                break;
            };
            self.change_subscription(list.change, list.kind, name, out);
            list.next += 1;
        }
        self.end_slice(Some(slice));
        is_done
    }
}
