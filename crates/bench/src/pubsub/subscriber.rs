//! Receives the messages of a benchmark on one channel (a stream of a connection). It checks and times every message of
//! every subscription.
//!
//! Owns: the subscriptions of a channel with their credit and accounts, and the check of each message. Does not own:
//! the expected content of messages (`Payloads` of the load generator), the event loop of a channel, or the counts of a
//! run (`recorder`).

use std::rc::Rc;

use thalweg_types::limits::MAX_DELIVER_SUBSCRIPTIONS;
use thalweg_wire::{
    Batch, Credit, Deliver, Dropped, Frame as _, Kind, Permit, RawFrame, ReceiveCredit, ServerFrame, ShortBytes,
    Subscribe,
};

use super::{
    batch::SUBJECT,
    options::PubsubOptions,
    recorder::{Deliveries, Shared},
};
use crate::{
    load::Tally,
    native::{
        ChannelError, Payloads, ReadyChannel, Runs, Session, SessionWait, Share, SubscriberAccount, body, drive,
        unexpected,
    },
};

/// A subscription of a channel (a TCP connection or a QUIC stream). Its id on the channel is its position in the
/// channel's list, from 1.
#[derive(Debug)]
struct Subscription {
    /// Number of the subscription's queue group. Without queue groups, the number of the subscription.
    group: usize,
    account: SubscriberAccount,
    credit: ReceiveCredit,
    settled: bool,
}

/// All subscriptions of one channel, a stream of a connection.
pub(super) struct SubscribeChannel {
    subscriptions: Vec<Subscription>,
    shared: Rc<Shared>,
    inbox: Inbox,
}

/// State for checking the received messages of a channel's subscriptions. It is separate from the subscriptions, so
/// that Rust permits borrowing both while a frame is read.
#[derive(Debug)]
struct Inbox {
    payloads: Rc<Payloads>,
    runs: Runs,
    ids: Vec<u32>,
    /// Credit frames that are sent after the current frame is handled. Each has the id of its subscription.
    credits: Vec<(u32, Credit)>,
    /// True if the subscriptions are members of queue groups, so that each member receives only some of the messages.
    shares: bool,
}

impl SubscribeChannel {
    /// Subscribes on a channel (a TCP connection or a QUIC stream), and waits until the server has accepted the
    /// subscriptions.
    pub(super) async fn open(
        mut line: ReadyChannel,
        groups: Vec<usize>,
        options: &PubsubOptions,
        payloads: Rc<Payloads>,
    ) -> Result<IdleSubscriber, ChannelError> {
        let shares = options.queue_members > 0;
        let share = if shares { Share::Some } else { Share::All };
        let window = Permit { messages: options.window_messages, bytes: options.window_bytes };
        let mut subscriptions = Vec::with_capacity(groups.len());
        for (id, group) in (1..).zip(groups) {
            let credit = ReceiveCredit::new(&window);
            let queue = if shares { format!("group-{group}") } else { String::new() };
            let subscribe = Subscribe {
                policy: options.policy.wire(),
                queue_messages: options.queue_messages,
                queue_bytes: options.queue_bytes,
                permit: credit.permit(),
                pattern: ShortBytes(SUBJECT),
                queue: ShortBytes(queue.as_bytes()),
            };
            subscribe.encode(line.out.buffer(), id).map_err(ChannelError::protocol)?;
            line.next(|envelope| match envelope.frame {
                ServerFrame::Subscribed(_) => Ok(()),
                other => Err(ChannelError::Protocol(format!("it answered with a {} frame", other.kind().name()))),
            })
            .await?;
            let account = SubscriberAccount::new(share, options.publishers);
            subscriptions.push(Subscription { group, account, credit, settled: false });
        }
        let inbox = Inbox {
            payloads,
            runs: Runs::default(),
            ids: Vec::with_capacity(MAX_DELIVER_SUBSCRIPTIONS),
            credits: Vec::new(),
            shares,
        };
        Ok(IdleSubscriber { line, subscriptions, inbox })
    }

    /// Receives messages until all have arrived, or until the run is aborted.
    pub(super) async fn run(mut self, mut line: ReadyChannel) -> Result<(), ChannelError> {
        let shared = Rc::clone(&self.shared);
        shared.finish.register_task().await;
        let ended = drive(&mut line, &shared.clock, &mut self).await;
        let accounts = self.subscriptions.into_iter().map(|subscription| {
            if !subscription.settled {
                shared.finish.received();
            }
            (subscription.group, subscription.account)
        });
        shared.tally.borrow_mut().own.accounts.extend(accounts);
        ended
    }

    /// Reports each subscription once it has received all its messages. Returns true if all subscriptions of this
    /// channel (a TCP connection or a QUIC stream) have received all of them.
    fn settle(&mut self) -> bool {
        let Some(total) = self.shared.finish.total() else { return false };
        for subscription in self.subscriptions.iter_mut().filter(|subscription| !subscription.settled) {
            let has_all = match self.inbox.shares {
                true => self.shared.finish.group_message_count(subscription.group) >= total,
                false => subscription.account.is_settled(total),
            };
            if has_all {
                subscription.settled = true;
                self.shared.finish.received();
            }
        }
        self.subscriptions.iter().all(|subscription| subscription.settled)
    }
}

impl Session for SubscribeChannel {
    /// Maximum number of reads before other tasks get a turn. A read takes some 30 µs of copying and checking. Without
    /// this bound, a busy subscriber would delay publishers on the same thread by milliseconds.
    const READS_PER_TURN: usize = 4;

    fn compose(&mut self, _: &mut ReadyChannel) -> Result<(), ChannelError> {
        Ok(())
    }

    fn receive(&mut self, line: &mut ReadyChannel, bytes: usize) -> Result<(), ChannelError> {
        let now = self.shared.clock.now();
        let Self { subscriptions, shared, inbox } = self;
        let mut tally = shared.tally.borrow_mut();
        let before = tally.all_right;
        while let Some(raw) = line.frame()? {
            match raw.header.kind {
                kind if kind == Kind::Deliver as u16 => {
                    inbox.deliver(raw, subscriptions, shared, &mut tally, now)?;
                }
                kind if kind == Kind::Dropped as u16 => {
                    let dropped = Dropped::decode_body(body(&raw))?.messages;
                    let subscription = subscription(subscriptions, raw.header.id)?;
                    subscription.account.dropped += dropped;
                    if inbox.shares {
                        shared.finish.group_received(subscription.group, dropped);
                    }
                }
                _ => return Err(unexpected(raw)),
            }
            for (id, credit) in inbox.credits.drain(..) {
                credit.encode(line.out.buffer(), id).map_err(ChannelError::protocol)?;
            }
        }
        if shared.counted.contains(&now) {
            tally.received_bytes += bytes as u64;
            let arrived = tally.all_right - before;
            tally.arrived(arrived, now);
        }
        Ok(())
    }

    fn next(&mut self, _: bool) -> SessionWait {
        if self.settle() || self.shared.finish.is_over() { SessionWait::Done } else { SessionWait::Channel }
    }
}

/// A channel (a TCP connection or a QUIC stream) whose subscriptions are accepted, before the load begins.
#[derive(Debug)]
pub(super) struct IdleSubscriber {
    line: ReadyChannel,
    subscriptions: Vec<Subscription>,
    inbox: Inbox,
}

impl IdleSubscriber {
    /// Returns the channel (a TCP connection or a QUIC stream), and the session that handles its subscriptions.
    pub(super) fn start(self, shared: Rc<Shared>) -> (ReadyChannel, SubscribeChannel) {
        (self.line, SubscribeChannel { subscriptions: self.subscriptions, shared, inbox: self.inbox })
    }
}

fn subscription(subscriptions: &mut [Subscription], id: u32) -> Result<&mut Subscription, ChannelError> {
    let found = (id as usize).checked_sub(1).and_then(|at| subscriptions.get_mut(at));
    found.ok_or_else(|| ChannelError::Protocol(format!("received a message for unknown subscription {id}")))
}

impl Inbox {
    /// Handles a received frame with one batch for several subscriptions. Checks the content of the messages once, and
    /// their order for each subscription.
    #[inline]
    fn deliver(
        &mut self,
        raw: RawFrame<'_>,
        subscriptions: &mut [Subscription],
        shared: &Shared,
        tally: &mut Tally<Deliveries>,
        now: u64,
    ) -> Result<(), ChannelError> {
        let deliver = Deliver::decode_body(body(&raw))?;
        let batch = Batch::decode(deliver.batch.0).map_err(ChannelError::protocol)?;
        self.ids.clear();
        self.ids.extend(deliver.subscriptions.iter());
        let times = self.ids.len() as u64;
        let right = judge(&batch, &self.payloads, &mut self.runs, |due, messages| {
            if shared.counted.contains(&due) {
                tally.responded(0, due, now, messages * times);
                tally.own.last = now.saturating_sub(shared.counted.start);
            }
        });
        tally.all_right += right * times;
        let (messages, bytes) = (u64::from(batch.count()), deliver.batch.0.len() as u64);
        for &id in &self.ids {
            let subscription = subscription(subscriptions, id)?;
            subscription.account.take(self.runs.all());
            subscription.account.wrong += messages.abs_diff(right);
            subscription.credit.received(messages, bytes).map_err(ChannelError::protocol)?;
            self.credits.extend(subscription.credit.consumed(messages, bytes).map(|credit| (id, credit)));
            if self.shares {
                shared.finish.group_received(subscription.group, messages);
            }
        }
        Ok(())
    }
}

/// Checks the messages of a batch, and joins them into runs of consecutive numbers. Calls `time` with each due time and
/// the number of messages that were due then. Returns the number of right messages.
#[inline]
pub(super) fn judge(batch: &Batch<'_>, payloads: &Payloads, runs: &mut Runs, mut time: impl FnMut(u64, u64)) -> u64 {
    runs.clear();
    let (mut due, mut alike, mut right) = (0, 0, 0);
    for message in batch.messages() {
        let Some(head) = message.ok().and_then(|message| payloads.judge(message.payload)) else { continue };
        runs.push(head.publisher, head.sequence);
        right += 1;
        if head.due != due {
            if alike > 0 {
                time(due, alike);
            }
            (due, alike) = (head.due, 0);
        }
        alike += 1;
    }
    if alike > 0 {
        time(due, alike);
    }
    right
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::native::{Depth, Head};
    use thalweg_wire::BatchWriter;

    #[test]
    fn a_batch_is_judged_message_by_message_and_timed_by_what_was_due_together() {
        let payloads = Payloads::new(64, 1, Depth::Full);
        let mut writer = BatchWriter::new(SUBJECT, b"").unwrap();
        for (sequence, due) in [(5, 10), (6, 10), (7, 30), (9, 30)] {
            let mut payload = Vec::new();
            payloads.put(Head { sequence, due, publisher: 2 }, &mut payload);
            if sequence == 7 {
                payload[40] ^= 1;
            }
            writer.push_payload(&payload).unwrap();
        }
        let shared = writer.into_shared(thalweg_wire::Checksum::Without).unwrap();
        let (mut runs, mut times) = (Runs::default(), Vec::new());
        let batch = Batch::decode(&shared.bytes).unwrap();
        let right = judge(&batch, &payloads, &mut runs, |due, messages| times.push((due, messages)));
        assert_eq!((right, times), (3, vec![(10, 2), (30, 1)]));
        let run = |first, count| crate::native::check::Run { publisher: 2, first, count };
        assert_eq!(runs.all(), [run(5, 2), run(9, 1)]);
    }
}
