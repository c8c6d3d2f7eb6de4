//! State of a channel for publish/subscribe on subjects: its publishing, its subscriptions, and its asks. An ask is a
//! request that a subscriber answers.
//!
//! Owns: the channel's link to the broker; the credit, limits and ends of its subscriptions; and the answers to its
//! asks. In each turn with room in the outbox, the channel calls [`Subjects::deliver`]. It also forwards the client's
//! credits and cancels to this module.
//!
//! The task of the publisher's channel puts published batches into the queues of the interested links. The tasks of the
//! subscribers' channels move them to their outboxes, so a message passes between tasks once. The outbox contains a few
//! bytes and a reference to the batch. A channel takes only as many batches from its queues as its outbox has room for,
//! because queue policies apply only to queued messages.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    task::Context,
};

use bytes::Bytes;
use futures_util::task::AtomicWaker;
use thalweg_broker::{
    Batch, Budget, Credit as Grant, Link, LinkOwner, Moment, Notify, Outbound, Policy, Requests, SubscribeError,
    SubscribeOptions, SubscriptionId, TakeResult, TooManyLinks,
};
use thalweg_serving::{
    app::App,
    limits::{MAX_CHANNEL_ASKS, OUTBOX_BYTES},
    views::SubscriptionShare,
};
use thalweg_types::{Action, limits::MAX_DELIVER_SUBSCRIPTIONS, record::Record};
use thalweg_wire::{self as wire, BatchWriter, CancelMode, Checksum, Credit, Dropped, Kind, SendCredit};
use tokio::sync::oneshot;

use super::{
    failure::{self, Failure},
    metrics::Metrics,
    publishing::{InputState, PublishTarget, Publishing},
    replies::{FrameMemory, Replies},
    stages::PublishStage,
};

/// Id of the subscription at which the channel (a TCP connection or a QUIC stream) itself receives the answers to its
/// asks (requests that subscribers answer). Ids that clients choose have 32 bits, so none can equal it.
const INBOX: SubscriptionId = SubscriptionId(u64::MAX);

/// Maximum number of message batches that a channel (a TCP connection or a QUIC stream) takes from its link to the
/// broker in one call.
const BATCHES_AT_ONCE: usize = 256;

/// Result of one delivery to the subscriptions to subjects of a channel (a TCP connection or a QUIC stream).
#[derive(Debug, Default)]
pub(crate) struct DeliveryTurn {
    /// True if there was progress: a frame was put into the outbox, or a batch was published.
    pub moved: bool,
    /// Ids of the subscriptions that have ended. Their last frames are already in the outbox.
    pub ended: Vec<u32>,
    /// Reason why the channel (a TCP connection or a QUIC stream) must be closed: the queue of a subscription with the
    /// policy `disconnect` was full. `None` if the channel stays open.
    pub disconnect: Option<String>,
}

/// Notification of a channel (a TCP connection or a QUIC stream) by the broker. Wakes the channel's task, and records
/// that there are messages to deliver.
#[derive(Default)]
pub(crate) struct SubjectWaker {
    waker: AtomicWaker,
    pub(crate) rung: AtomicBool,
}

impl Notify for SubjectWaker {
    fn notify(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// State of a client's subscription to a pattern of subjects.
pub(crate) struct Subscription {
    pub(crate) credit: SendCredit,
    /// Number of messages that may still be sent before the subscription ends, and the reason that the client then
    /// gets. `None` if the subscription has no limit.
    pub(crate) left: Option<(u64, Failure)>,
    /// True after the client has cancelled the subscription but still wants its queued messages. The subscription ends
    /// when no more of them can be sent.
    pub(crate) draining: bool,
    /// Reservation of one of the subscriptions that the server permits, held while this subscription exists.
    pub(crate) _held: SubscriptionShare,
}

/// State of a channel (a TCP connection or a QUIC stream) for subjects: publishing, subscriptions and asks.
pub(crate) struct Subjects {
    pub(crate) app: Arc<App>,
    pub(crate) native: Arc<Metrics>,
    pub(crate) bell: Arc<SubjectWaker>,
    pub(crate) waiter: Arc<dyn Notify>,
    pub(crate) publishing: Publishing,
    /// Identity under which the broker counts the queued messages of this channel (a TCP connection or a QUIC stream):
    /// the client's address.
    owner: Arc<LinkOwner>,
    /// Link to the broker, with the queue of messages for the channel (a TCP connection or a QUIC stream). The first
    /// subscription or ask opens it; `None` before that.
    link: Option<Link>,
    pub(crate) subscriptions: HashMap<u32, Subscription>,
    /// Ids of the subscriptions that have a limit, or that were cancelled and end after their queued messages.
    pub(crate) counted: BTreeSet<u32>,
    /// Requests to subjects (asks) that wait for an answer. The first ask creates the table.
    asks: Option<Requests<oneshot::Sender<Batch>>>,
    /// Buffer for batches taken from the link to the broker. It is reused.
    taken: Vec<Outbound>,
    /// Time at which a batch with measured stages was taken from its queue. `None` if the outbox contains no such batch.
    timed: Option<Moment>,
    /// True if the link to the broker may have more batches than [`deliver`](Self::deliver) has taken from it.
    more: bool,
}

impl fmt::Debug for Subjects {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subjects").field("subscriptions", &self.subscriptions.len()).finish_non_exhaustive()
    }
}

impl From<SubscribeError> for Failure {
    fn from(error: SubscribeError) -> Self {
        Self::of(&error)
    }
}

impl From<TooManyLinks> for Failure {
    fn from(error: TooManyLinks) -> Self {
        Self::of(&error)
    }
}

impl Subjects {
    /// Creates the state of a channel (a TCP connection or a QUIC stream), without subscriptions and asks.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>, native: &Arc<Metrics>, owner: Arc<LinkOwner>) -> Self {
        let bell = Arc::new(SubjectWaker::default());
        Self {
            app: Arc::clone(app),
            native: Arc::clone(native),
            waiter: Arc::clone(&bell) as _,
            bell,
            publishing: Publishing::new(&app.config),
            owner,
            link: None,
            subscriptions: HashMap::new(),
            counted: BTreeSet::new(),
            asks: None,
            taken: Vec::new(),
            timed: None,
            more: false,
        }
    }

    pub(crate) fn link(&mut self) -> Result<&Link, Failure> {
        if self.link.is_none() {
            let (waiter, owner) = (Arc::clone(&self.waiter), Arc::clone(&self.owner));
            self.link = Some(self.app.views.broker.open_link_of(waiter, owner)?);
        }
        Ok(self.link.as_ref().expect("just opened"))
    }

    pub(crate) fn asks(&mut self) -> Result<&mut Requests<oneshot::Sender<Batch>>, Failure> {
        if self.asks.is_none() {
            let asks = Requests::new(&self.app.views.reply_subject(), MAX_CHANNEL_ASKS)?;
            let options = SubscribeOptions { policy: Policy::DropNew, ..SubscribeOptions::DEFAULTS };
            self.link()?.subscribe(INBOX, asks.inbox(), &options)?;
            self.asks = Some(asks);
        }
        Ok(self.asks.as_mut().expect("just made"))
    }

    /// Registers the waker of the channel's task. The broker wakes the task when there are messages to deliver.
    pub(crate) fn woken_by(&mut self, cx: &Context<'_>) {
        self.bell.waker.register(cx.waker());
    }

    /// Returns true if the channel (a TCP connection or a QUIC stream) must handle no further frame. Either a published
    /// batch waits because a subscriber's queue is full, or the client must wait for a turn before more of its requests
    /// are handled.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.publishing.is_blocked() || self.publishing.caused.need_turn()
    }

    /// Publishes all gathered messages of the client, before its goodbye takes effect.
    pub(crate) fn flush(&mut self) {
        let Self { app, native, waiter, publishing, .. } = self;
        let times = &native.publishes;
        publishing.flush(&PublishTarget { views: &app.views, times, waiter, received: None });
    }

    /// Publishes the batches that wait for a subscriber's full queue, if the queue has room now. Returns true if there
    /// was progress.
    pub(crate) fn publish_blocked(&mut self, cx: &mut Context<'_>) -> bool {
        let Self { app, native, waiter, publishing, .. } = self;
        let times = &native.publishes;
        let to = PublishTarget { views: &app.views, times, waiter, received: None };
        publishing.publish_blocked(&to, InputState::Paused, cx)
    }

    /// Returns true if all messages that the client sent have been published.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.publishing.is_done()
    }

    /// Ends all subscriptions of the channel (a TCP connection or a QUIC stream) and drops their queues.
    pub(crate) fn close(&mut self) {
        (self.link, self.asks) = (None, None);
        self.subscriptions = HashMap::new();
        self.counted = BTreeSet::new();
    }

    /// Adds the credit that the client has granted to one of its subscriptions.
    pub(crate) fn credit(&mut self, id: u32, credit: &Credit) {
        let (Some(subscription), Some(link)) = (self.subscriptions.get_mut(&id), &self.link) else { return };
        let more = subscription.credit.raise(credit);
        // If the broker has removed the subscription already, the credit is not needed.
        let _ = link.grant(SubscriptionId(id.into()), Grant { messages: more.messages, bytes: more.bytes });
    }

    /// Ends a subscription that the client has cancelled. Returns true if its `ended` frame is in the outbox. Returns
    /// false if queued messages must be sent before; [`deliver`](Self::deliver) then reports the end later.
    pub(crate) fn cancel(&mut self, id: u32, mode: CancelMode, out: &mut Replies) -> bool {
        let (Some(subscription), Some(link)) = (self.subscriptions.get_mut(&id), &self.link) else { return true };
        let waits = link.queue_stats(SubscriptionId(id.into())).map_or(0, |stats| stats.messages);
        if mode == CancelMode::Now || waits == 0 {
            self.end(id, &failure::cancelled(), out);
            return true;
        }
        let limit = subscription.left.take();
        self.counted.insert(id);
        subscription.left = match limit {
            Some((left, why)) if left <= waits => Some((left, why)),
            _ => Some((waits, failure::cancelled())),
        };
        subscription.draining = true;
        self.bell.rung.store(true, Ordering::Relaxed);
        false
    }

    fn end(&mut self, id: u32, why: &Failure, out: &mut Replies) {
        if let Some(link) = &self.link {
            let _ = link.unsubscribe(SubscriptionId(id.into()));
        }
        self.counted.remove(&id);
        if self.subscriptions.remove(&id).is_some() {
            out.end(id, why);
        }
    }

    /// Returns true if the broker may have batches for the client's subscriptions.
    pub(crate) fn has_messages(&self) -> bool {
        self.more || self.bell.rung.load(Ordering::Acquire)
    }

    /// Publishes the client's gathered or waiting batches that are due. If `may_take` is true, also moves batches for
    /// the client's own subscriptions into the outbox while it has room.
    pub(crate) fn deliver(
        &mut self,
        cx: &mut Context<'_>,
        input: InputState,
        may_take: bool,
        out: &mut Replies,
    ) -> DeliveryTurn {
        let times = &self.native.publishes;
        let to = PublishTarget { views: &self.app.views, times, waiter: &self.waiter, received: None };
        let moved = self.publishing.publish_blocked(&to, input, cx);
        let mut delivered = DeliveryTurn { moved, ..DeliveryTurn::default() };
        if !may_take || !self.bell.rung.swap(false, Ordering::Acquire) && !self.more {
            return delivered;
        }
        let mut taken = std::mem::take(&mut self.taken);
        while let (Some(link), true) = (&self.link, out.has_room()) {
            let bytes = (OUTBOX_BYTES - out.len()) as u64;
            self.more = link.take(&mut taken, Budget { batches: BATCHES_AT_ONCE, bytes }) == TakeResult::More;
            delivered.moved |= !taken.is_empty();
            // Subscriptions may end in this loop, so the condition is computed before it.
            let plain = self.counted.is_empty() && self.asks.is_none();
            for item in taken.drain(..) {
                // If an earlier batch has ended a subscription, later batches of this call may still name this
                // subscription.
                let plain = plain && delivered.ended.is_empty();
                self.put(item, plain, out, &mut delivered);
            }
            if !self.more {
                break;
            }
        }
        self.taken = taken;
        self.end_those_done(out, &mut delivered);
        delivered
    }

    /// Records the time at which a batch leaves its queue, if the stages of this batch are measured.
    fn note_taken(&mut self, batch: &Batch) {
        if let Some(published) = batch.stamped_at() {
            let now = self.app.views.now();
            self.native.publishes.record(PublishStage::Queue, now.after(published));
            self.timed.get_or_insert(now);
        }
    }

    /// Records that the outbox has been sent, which ends the measured stage of sending.
    pub(crate) fn note_sent(&mut self) {
        if let Some(taken) = self.timed.take() {
            self.native.publishes.record(PublishStage::Send, self.app.views.now().after(taken));
        }
    }

    fn put(&mut self, item: Outbound, plain: bool, out: &mut Replies, delivered: &mut DeliveryTurn) {
        if let Outbound::Batch { batch, .. } = &item {
            self.note_taken(batch);
        }
        match item {
            Outbound::Batch { batch, subscriptions } if plain => self.send(&batch, &subscriptions, out, delivered),
            Outbound::Batch { batch, mut subscriptions } => {
                subscriptions.retain(|id| self.counts(*id, &batch, out));
                self.send(&batch, &subscriptions, out, delivered);
            }
            Outbound::Gap { subscription: INBOX, .. } => {}
            Outbound::Gap { subscription, messages } => {
                let id = client_id(subscription);
                if self.subscriptions.contains_key(&id) {
                    let put = out.push(id, &Dropped { messages });
                    debug_assert!(put.is_ok(), "a small frame: {put:?}");
                }
            }
            Outbound::Disconnect { subscription, messages } => {
                let message =
                    format!("its queue was full, and its policy is to disconnect; it missed {messages} messages");
                if subscription != INBOX {
                    let id = client_id(subscription);
                    self.end(id, &Failure::new("slow_consumer", Action::Retry, message.clone()), out);
                    delivered.ended.push(id);
                }
                delivered.disconnect = Some(message);
            }
        }
    }

    /// Counts a batch against the maximum number of messages of a subscription. Returns true if the caller must send
    /// the whole batch to the subscription. Returns false if this function has handled the batch: it sends only as many
    /// messages as the maximum permits, or completes an ask if the subscription is the channel's own.
    fn counts(&mut self, id: SubscriptionId, batch: &Batch, out: &mut Replies) -> bool {
        if id == INBOX {
            let waiting = self.asks.as_mut().and_then(|asks| asks.complete(batch.subject()));
            // If no ask waits for the answer any more, the answer is dropped.
            waiting.map(|waiting| waiting.send(batch.clone()));
            return false;
        }
        let Some(subscription) = self.subscriptions.get_mut(&client_id(id)) else { return false };
        let Some((left, _)) = &mut subscription.left else { return true };
        let messages = u64::from(batch.messages());
        if *left >= messages {
            *left -= messages;
            return true;
        }
        let first = std::mem::take(left) as usize;
        if first > 0 {
            // A message that is too large for the client is dropped. The subscription ends in either case.
            let _ = put_deliver(out, &sub_batch(batch, 0, first), &[id]);
        }
        false
    }

    /// Puts a batch into the outbox, once for all of the subscriptions `to`. Splits the batch if it is larger than the
    /// frames that the client accepts.
    fn send(&mut self, batch: &Batch, to: &[SubscriptionId], out: &mut Replies, delivered: &mut DeliveryTurn) {
        for ids in to.chunks(MAX_DELIVER_SUBSCRIPTIONS) {
            if put_deliver(out, batch.encoded(), ids).is_ok() {
                continue;
            }
            let sent = parts(batch, out.max_frame_bytes()).try_for_each(|part| put_deliver(out, &part?, ids));
            if let Err(failure) = sent {
                for id in ids {
                    self.end(client_id(*id), &failure, out);
                    delivered.ended.push(client_id(*id));
                }
            }
        }
    }

    /// Ends subscriptions that have sent their maximum number of messages, and cancelled ones that can send no more
    /// queued messages.
    fn end_those_done(&mut self, out: &mut Replies, delivered: &mut DeliveryTurn) {
        let more = self.more;
        let done = |subscription: &Subscription| match &subscription.left {
            Some((0, why)) => Some(why.clone()),
            Some(_) if subscription.draining && !more => Some(failure::cancelled()),
            _ => None,
        };
        let found = |id: &u32| Some((*id, done(self.subscriptions.get(id)?)?));
        let ended: Vec<_> = self.counted.iter().filter_map(found).collect();
        for (id, why) in ended {
            self.end(id, &why, out);
            delivered.ended.push(id);
            delivered.moved = true;
        }
    }
}

/// Converts the id of a subscription to the client's id, which has 32 bits. Must not be called for the channel's own
/// subscription, whose id is larger.
fn client_id(id: SubscriptionId) -> u32 {
    u32::try_from(id.0).unwrap_or_default()
}

/// Puts a `deliver` frame for these subscriptions into the outbox: a few bytes and a reference to the batch.
fn put_deliver(out: &mut Replies, batch: &Bytes, ids: &[SubscriptionId]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    let body = 4 + 4 * ids.len() + batch.len();
    out.shared(Kind::Deliver, 0, body, FrameMemory::CountedBySource, |parts| {
        let bytes = parts.bytes();
        bytes.extend_from_slice(&(ids.len() as u32).to_le_bytes());
        ids.iter().for_each(|id| bytes.extend_from_slice(&client_id(*id).to_le_bytes()));
        parts.share(batch.clone());
    })
}

/// Returns a new batch with `count` messages of `batch`, after the first `skip` messages.
pub(crate) fn sub_batch(batch: &Batch, skip: usize, count: usize) -> Bytes {
    // All published batches were checked, so this cannot fail.
    let whole = wire::Batch::decode(batch.encoded()).expect("checked when it was published");
    let mut writer = BatchWriter::new(whole.subject(), whole.reply()).expect("it was in a batch");
    for message in whole.messages().skip(skip).take(count).flatten() {
        let (key, headers) = (message.key, message.headers.iter().collect());
        let record = Record { key, headers, payload: message.payload, is_tombstone: message.is_tombstone };
        let added = writer.push(&record);
        debug_assert!(added.is_ok(), "it was in a batch: {added:?}");
    }
    writer.into_shared(Checksum::Without).map(|shared| shared.bytes).unwrap_or_default()
}

/// Splits a batch into smaller batches, for a client whose maximum frame is smaller than the batch.
fn parts(batch: &Batch, max_frame_bytes: usize) -> impl Iterator<Item = Result<Bytes, Failure>> + use<'_> {
    const PREFIX_BYTES: usize = 4 + 4 * MAX_DELIVER_SUBSCRIPTIONS;
    let whole = wire::Batch::decode(batch.encoded()).expect("checked when it was published");
    let head = whole.bytes().len() - whole.records().len();
    let room = max_frame_bytes.saturating_sub(PREFIX_BYTES + head);
    let mut messages = whole.messages();
    let (mut at, count) = (0, batch.messages() as usize);
    std::iter::from_fn(move || {
        let first = at;
        let begun = messages.position();
        while at < count {
            let mut ahead = messages.clone();
            ahead.next();
            if ahead.position() - begun > room {
                break;
            }
            (messages, at) = (ahead, at + 1);
        }
        if first == count {
            return None;
        }
        if first == at {
            at = count;
            let message = "a message is larger than the frames that the client accepts: raise the limit in the hello";
            return Some(Err(Failure::invalid("result_too_large", message)));
        }
        Some(Ok(sub_batch(batch, first, at - first)))
    })
}
