//! A channel's part in subjects: what it publishes, what it is subscribed to, what it asks.
//!
//! Owns: the channel's link to the broker, its subscriptions' credit, limits and ends, answers to what it asks. The
//! channel asks in each turn what there is to send ([`Subjects::deliver`]) while its outbox has room, and hands on what the
//! client permits or cancels.
//!
//! A publish goes from the publisher's channel task into the queues of the links that want it, and from there into their
//! channels' outboxes, by their own tasks: one hand-over. What is in the outbox are the few bytes before the batch, and
//! a share in the batch. No more leaves the queues than the outbox has room for, since policies work on what is in them.

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
    Batch, Budget, Credit as Grant, Link, Notify, Outbound, Policy, Requests, SubscribeError, SubscribeOptions,
    SubscriptionId, Taken, TooManyLinks,
};
use thalweg_serving::{
    app::App,
    limits::{MAX_CHANNEL_ASKS, OUTBOX_BYTES},
};
use thalweg_types::{Action, limits::MAX_DELIVER_SUBSCRIPTIONS, record::Record};
use thalweg_wire::{self as wire, BatchWriter, CancelMode, Checksum, Credit, Dropped, Kind, SendCredit};
use tokio::sync::oneshot;

use super::{
    failure::{self, Failure},
    publishing::{Input, Publishing, To},
    replies::{Replies, Room},
};

/// The subscription for answers: no client can have that id.
const INBOX: SubscriptionId = SubscriptionId(u64::MAX);

/// Batches that are taken from the link at a time.
const BATCHES_AT_ONCE: usize = 256;

/// What a channel's subscriptions to subjects have come to in a turn.
#[derive(Debug, Default)]
pub(crate) struct Delivered {
    /// Whether something was put into the outbox, or published.
    pub moved: bool,
    /// Subscriptions whose last frame was.
    pub ended: Vec<u32>,
    /// The channel is given up because a subscription's queue was full, and its policy says so: why.
    pub disconnect: Option<String>,
}

/// Wakes the channel's task, and says that there is something to look at.
#[derive(Default)]
pub(crate) struct Bell {
    waker: AtomicWaker,
    pub(crate) rung: AtomicBool,
}

impl Notify for Bell {
    fn notify(&self) {
        self.rung.store(true, Ordering::Release);
        self.waker.wake();
    }
}

/// A subscription of the client's.
pub(crate) struct Subscription {
    pub(crate) credit: SendCredit,
    /// Messages until it ends by itself; and why it does.
    pub(crate) left: Option<(u64, Failure)>,
    /// What is left is what waited when it was cancelled: it ends when nothing more can be sent.
    pub(crate) draining: bool,
}

/// A channel's part in subjects.
pub(crate) struct Subjects {
    pub(crate) app: Arc<App>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) waiter: Arc<dyn Notify>,
    pub(crate) publishing: Publishing,
    /// Opened with the first subscription.
    link: Option<Link>,
    pub(crate) subscriptions: HashMap<u32, Subscription>,
    /// Those that have a limit or are drained.
    pub(crate) counted: BTreeSet<u32>,
    /// Who waits for answers, once something was asked.
    asks: Option<Requests<oneshot::Sender<Batch>>>,
    /// Scratch for what is taken from the link.
    taken: Vec<Outbound>,
    /// The link has more than was taken.
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
    /// Without subscriptions.
    #[must_use]
    pub(crate) fn new(app: &Arc<App>) -> Self {
        let bell = Arc::new(Bell::default());
        Self {
            app: Arc::clone(app),
            waiter: Arc::clone(&bell) as _,
            bell,
            publishing: Publishing::new(&app.config),
            link: None,
            subscriptions: HashMap::new(),
            counted: BTreeSet::new(),
            asks: None,
            taken: Vec::new(),
            more: false,
        }
    }

    pub(crate) fn link(&mut self) -> Result<&Link, Failure> {
        if self.link.is_none() {
            self.link = Some(self.app.views.broker.open_link(Arc::clone(&self.waiter))?);
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

    /// The channel's task is polled: this is how to wake it when there is something to deliver.
    pub(crate) fn woken_by(&mut self, cx: &Context<'_>) {
        self.bell.waker.register(cx.waker());
    }

    /// Whether what the channel has published waits for somebody's room: no further frame is looked at meanwhile.
    #[must_use]
    pub(crate) fn is_blocked(&self) -> bool {
        self.publishing.is_blocked()
    }

    /// The client says goodbye: what it has published before goes out.
    pub(crate) fn flush(&mut self) {
        self.publishing.flush(&To { broker: &self.app.views.broker, waiter: &self.waiter });
    }

    /// Whether all that the channel has published is out.
    #[must_use]
    pub(crate) fn is_done(&self) -> bool {
        self.publishing.is_done()
    }

    /// Ends all subscriptions; what waits for them is gone.
    pub(crate) fn close(&mut self) {
        (self.link, self.asks) = (None, None);
        self.subscriptions = HashMap::new();
        self.counted = BTreeSet::new();
    }

    /// The receiver of a subscription permits more.
    pub(crate) fn credit(&mut self, id: u32, credit: &Credit) {
        let (Some(subscription), Some(link)) = (self.subscriptions.get_mut(&id), &self.link) else { return };
        let more = subscription.credit.raise(credit);
        // One that has been given up is not there any more.
        let _ = link.grant(SubscriptionId(id.into()), Grant { messages: more.messages, bytes: more.bytes });
    }

    /// Ends a subscription. True if its `ended` is in the outbox; else [`deliver`](Self::deliver) tells when it is.
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

    /// Publishes what is due, and puts what waits into the outbox, as far as it has room.
    pub(crate) fn deliver(&mut self, cx: &mut Context<'_>, input: Input, out: &mut Replies) -> Delivered {
        let to = To { broker: &self.app.views.broker, waiter: &self.waiter };
        let moved = self.publishing.go_on(&to, &self.app.views, input, cx);
        let mut delivered = Delivered { moved, ..Delivered::default() };
        if !self.bell.rung.swap(false, Ordering::Acquire) && !self.more {
            return delivered;
        }
        let mut taken = std::mem::take(&mut self.taken);
        while let (Some(link), true) = (&self.link, out.has_room()) {
            let bytes = (OUTBOX_BYTES - out.len()) as u64;
            self.more = link.take(&mut taken, Budget { batches: BATCHES_AT_ONCE, bytes }) == Taken::More;
            delivered.moved |= !taken.is_empty();
            // Some may end while this is gone through, so it is decided before.
            let plain = self.counted.is_empty() && self.asks.is_none();
            for item in taken.drain(..) {
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

    fn put(&mut self, item: Outbound, plain: bool, out: &mut Replies, delivered: &mut Delivered) {
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

    /// Whether a subscription gets the whole batch with the others; if not, it has got what it gets.
    fn counts(&mut self, id: SubscriptionId, batch: &Batch, out: &mut Replies) -> bool {
        if id == INBOX {
            let waiting = self.asks.as_mut().and_then(|asks| asks.complete(batch.subject()));
            // Nobody waits any more for what comes too late.
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
            // If it is too large for the client, it ends all the same.
            let _ = put_deliver(out, &cut(batch, 0, first), &[id]);
        }
        false
    }

    /// Sends a batch to subscriptions, once for all of them, if need be in parts.
    fn send(&mut self, batch: &Batch, to: &[SubscriptionId], out: &mut Replies, delivered: &mut Delivered) {
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

    /// Ends subscriptions that have had all that they wanted, or are drained as far as credit goes.
    fn end_those_done(&mut self, out: &mut Replies, delivered: &mut Delivered) {
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

/// Ids of clients have 32 bits; only the inbox has another.
fn client_id(id: SubscriptionId) -> u32 {
    u32::try_from(id.0).unwrap_or_default()
}

/// A deliver frame: a few bytes, and a share in the batch.
fn put_deliver(out: &mut Replies, batch: &Bytes, ids: &[SubscriptionId]) -> Result<(), Failure> {
    if ids.is_empty() {
        return Ok(());
    }
    let body = 4 + 4 * ids.len() + batch.len();
    out.shared(Kind::Deliver, 0, body, Room::Elsewhere, |parts| {
        let bytes = parts.bytes();
        bytes.extend_from_slice(&(ids.len() as u32).to_le_bytes());
        ids.iter().for_each(|id| bytes.extend_from_slice(&client_id(*id).to_le_bytes()));
        parts.share(batch.clone());
    })
}

/// Some messages of a batch as a batch of their own.
pub(crate) fn cut(batch: &Batch, skip: usize, count: usize) -> Bytes {
    // What was published was checked.
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

/// A batch in parts for a client that does not take it whole.
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
            let message = "a message is larger than what the client takes in a frame: offer to take more";
            return Some(Err(Failure::fix("result_too_large", message)));
        }
        Some(Ok(cut(batch, first, at - first)))
    })
}
