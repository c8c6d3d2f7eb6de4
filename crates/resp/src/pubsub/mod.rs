//! Channels: `SUBSCRIBE`, `PUBLISH` and related commands, over the node's subjects.
//!
//! Owns: a client's subscriptions and the messages sent for them. Does not own the choice of receivers (the broker),
//! the mapping of channels to subjects ([`thalweg_redis::channels`]), the published messages ([`publishing`]), nor the
//! table of all subscriptions of the server ([`registry`]).
//!
//! ```text
//!   PUBLISH c 1, PUBLISH c 2 ─► run ─► one batch ─► broker ─► links ─► one write of both to each subscriber
//! ```
//! A channel is a subject of the node, so its subscribers also get messages of HTTP and native publishers, and vice
//! versa. Sharded channels are the same channels: `SSUBSCRIBE` differs only in the type of its messages.
//!
//! # Cost
//!
//! A batch is encoded once for each RESP version, for all subscribers by name. The first such subscriber encodes it,
//! and the encoding is kept with the batch. Messages for patterns are encoded for each subscription, because they
//! contain the pattern. A delivery therefore costs one copy into a socket buffer and a share of a write.
//!
//! `turns` decides when each client of a thread receives messages and publishes. [`bulk`](thalweg_serving::bulk) limits
//! the bytes that the thread sends before it polls its sockets again.
//!
//! # Slow subscribers
//!
//! Messages that a client does not read wait in the queue of its link. The queue is bounded by [`SUBSCRIPTION_BYTES`]
//! for each subscription, and by `max_link_bytes` for all subscriptions of the client. At the limit the server
//! disconnects the client, as Redis does with its `client-output-buffer-limit pubsub`. The protocol has no other way to
//! report missing messages.

pub(crate) mod publishing;
pub(crate) mod registry;
mod turns;

use std::{
    collections::{BTreeMap, HashMap},
    fmt,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bytes::Bytes;
use thalweg_broker::{
    Batch, Budget, Credit, Link, Notify, Outbound, Pattern, Policy, SubscribeError, SubscriptionId, TakeResult,
};
use thalweg_redis::{
    channels::{channel_of, patterns_of, subject_of},
    glob,
    wire::{Protocol, Writer},
};
use thalweg_serving::{
    admission::Account,
    limits::OUTBOX_BYTES,
    views::{SubscriptionShare, Views},
};
use thalweg_transport::Outbox;
use thalweg_wire as wire;

use super::{client::Client, out::ReplyTarget};
pub(crate) use publishing::Publishing;
pub(crate) use registry::{Kind, PAGE_NAMES, Registry};

/// Maximum bytes queued for one subscription. Redis's `client-output-buffer-limit pubsub` has the same hard limit.
const SUBSCRIPTION_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum messages queued for one subscription. It limits the memory overhead of the messages.
const SUBSCRIPTION_MESSAGES: u64 = 1 << 20;

/// Number of comparisons of patterns with channels after which a delivery to a client stops and continues in the
/// client's next turn. This number of comparisons takes about a millisecond.
const MAX_COMPARISONS: u64 = 1_000_000;
/// Cost of sending to one subscription, expressed as a number of comparisons. It is added to the comparisons of the
/// subscription's pattern.
const COMPARISONS_OF_SUBSCRIPTION: u64 = 64;

/// Maximum number of message batches that a client takes from its link to the broker in one call.
const BATCHES_AT_ONCE: usize = 256;

/// Handle by which the broker notifies a client's task that there are messages to deliver. Remembers the notification
/// until the task takes the messages.
#[derive(Debug)]
pub(crate) struct DeliveryNotice {
    client: Arc<Client>,
    is_pending: AtomicBool,
}

impl DeliveryNotice {
    /// Creates the handle by which the broker notifies a client.
    pub(crate) fn of(client: &Arc<Client>) -> Arc<Self> {
        Arc::new(Self { client: Arc::clone(client), is_pending: AtomicBool::new(false) })
    }
}

impl Notify for DeliveryNotice {
    fn notify(&self) {
        // If the client's task has not looked since the last notification, it needs no second one.
        if !self.is_pending.swap(true, Ordering::AcqRel) {
            self.client.bell.ring();
        }
    }
}

/// A client's subscription to a channel or pattern. It is found by the id of the matching subscription at the broker.
#[derive(Debug)]
struct Subscription {
    kind: Kind,
    name: Arc<[u8]>,
    /// Reservation in the server's limits on subscriptions, and on subscriptions of one address that can match one
    /// subject.
    _share: SubscriptionShare,
}

/// Channel and pattern subscriptions of a client.
#[derive(Default)]
pub(crate) struct Subscriber {
    /// The client's link to the broker; `None` until the first subscription opens it.
    link: Option<(Link, Arc<DeliveryNotice>)>,
    /// Channels and patterns to which the client is subscribed, by the kind of subscription. Each name has the ids of
    /// its subscriptions at the broker.
    names: [BTreeMap<Arc<[u8]>, Vec<SubscriptionId>>; Kind::COUNT],
    by_id: HashMap<SubscriptionId, Subscription>,
    last_id: u64,
    taken: Vec<Outbound>,
    /// Position of the delivery that is being sent: the index of its item in `taken`, and the index among the
    /// subscriptions of this item. Subscriptions by name come before those by pattern.
    sending: (usize, usize),
    /// True if the broker has more messages for this client than the client's task has taken.
    has_more: bool,
    /// True if the client is queued for its turn to take messages. The clients of a thread have their turns one after
    /// the other.
    waits: bool,
}

impl fmt::Debug for Subscriber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Subscriber").field("subscriptions", &self.by_id.len()).finish_non_exhaustive()
    }
}

/// Result of delivering queued messages to a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Delivery {
    /// There were no queued messages for the client.
    Nothing,
    /// Queued messages were moved into the client's outbox.
    Moved,
    /// The client reads too slowly. Its connection must end.
    TooSlow,
}

impl Subscriber {
    /// Number of the client's subscriptions of this kind (to channels, patterns or sharded channels).
    #[must_use]
    pub(crate) fn count(&self, kind: Kind) -> usize {
        self.names[kind as usize].len()
    }

    /// Returns true if the client has any subscription.
    #[must_use]
    pub(crate) fn is_subscribed(&self) -> bool {
        self.names.iter().any(|names| !names.is_empty())
    }

    /// Returns the number of subscriptions that the reply to `SUBSCRIBE` and similar commands reports. Sharded channels
    /// are counted separately, and channels and patterns together.
    #[must_use]
    pub(crate) fn counted_with(&self, kind: Kind) -> usize {
        match kind {
            Kind::Shard => self.count(Kind::Shard),
            Kind::Channel | Kind::Pattern => self.count(Kind::Channel) + self.count(Kind::Pattern),
        }
    }

    /// Returns the first channel or pattern to which the client has a subscription of this kind; `None` if there is no
    /// such subscription.
    #[must_use]
    pub(crate) fn first_name(&self, kind: Kind) -> Option<Arc<[u8]>> {
        self.names[kind as usize].keys().next().cloned()
    }

    /// Number of the client's subscriptions to channels, patterns and sharded channels together.
    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.names.iter().map(BTreeMap::len).sum()
    }

    /// Returns all channels or patterns to which the client has subscriptions of this kind, in sorted order.
    #[must_use]
    fn names(&self, kind: Kind) -> Vec<Arc<[u8]>> {
        self.names[kind as usize].keys().cloned().collect()
    }

    /// Subscribes the client to the channel or pattern `name`, unless it is already subscribed to it.
    ///
    /// # Errors
    ///
    /// Returns the text of the error reply if the name is invalid or the broker rejects the subscription.
    pub(crate) fn subscribe(
        &mut self,
        views: &Views,
        registry: &Registry,
        client: &Arc<Client>,
        account: &Arc<Account>,
        kind: Kind,
        name: &[u8],
    ) -> Result<(), String> {
        if self.names[kind as usize].contains_key(name) {
            return Ok(());
        }
        let patterns = match kind {
            Kind::Pattern => patterns_of(name).map_err(|error| error.to_string())?,
            Kind::Channel | Kind::Shard => vec![subject_of(name).map_err(|error| error.to_string())?.into_owned()],
        };
        let refused = |error: &dyn fmt::Display| format!("ERR {error}");
        let patterns: Result<Vec<Pattern>, _> = patterns.iter().map(|pattern| Pattern::parse(pattern)).collect();
        let patterns = patterns.map_err(|error| refused(&error))?;
        if self.link.is_none() {
            let news = DeliveryNotice::of(client);
            let link = views.broker.open_link_of(Arc::clone(&news) as _, account.link_owner());
            let link = link.map_err(|error| refused(&error))?;
            self.link = Some((link, news));
        }
        let shares = patterns.iter().map(|pattern| views.subscription_share(account, pattern));
        let shares: Vec<_> = shares.collect::<Result<_, _>>().map_err(|error| refused(&error))?;
        let ids = self.subscribe_link(views, &patterns).map_err(|error| refused(&error))?;
        let name: Arc<[u8]> = name.into();
        for (id, share) in ids.iter().zip(shares) {
            self.by_id.insert(*id, Subscription { kind, name: Arc::clone(&name), _share: share });
        }
        registry.add(kind, &name, patterns);
        self.names[kind as usize].insert(name, ids);
        self.publish_count(kind);
        Ok(())
    }

    /// Creates a subscription at the broker for each pattern. Creates none if the broker rejects one of them. Returns
    /// the ids of the subscriptions.
    fn subscribe_link(&mut self, views: &Views, patterns: &[Pattern]) -> Result<Vec<SubscriptionId>, SubscribeError> {
        let Some((link, _)) = &self.link else { return Ok(Vec::new()) };
        let (messages, bytes) = (SUBSCRIPTION_MESSAGES, SUBSCRIPTION_BYTES);
        let options = views.subscribe_options(Policy::Disconnect, messages, bytes, Credit::UNLIMITED, b"");
        let mut ids = Vec::with_capacity(patterns.len());
        for pattern in patterns {
            self.last_id += 1;
            let id = SubscriptionId(self.last_id);
            if let Err(error) = link.subscribe(id, pattern.clone(), &options) {
                for id in ids {
                    let _ = link.unsubscribe(id);
                }
                return Err(error);
            }
            ids.push(id);
        }
        Ok(ids)
    }

    /// Ends the client's subscription to the channel or pattern `name`, if it has one.
    pub(crate) fn unsubscribe(&mut self, registry: &Registry, kind: Kind, name: &[u8]) {
        let Some(ids) = self.names[kind as usize].remove(name) else { return };
        self.publish_count(kind);
        for id in ids {
            self.by_id.remove(&id);
            if let Some((link, _)) = &self.link {
                // If the broker has closed the link, the link has no subscriptions any more.
                let _ = link.unsubscribe(id);
            }
        }
        registry.remove(kind, name);
    }

    /// Stores the client's number of subscriptions of a kind where other connections can read it.
    fn publish_count(&self, kind: Kind) {
        if let Some((_, news)) = &self.link {
            news.client.subscribed[kind as usize].store(self.count(kind), Ordering::Relaxed);
        }
    }

    /// Takes all subscriptions and queued messages away from the client, which gets no more messages. The subscriptions
    /// end when [`end`](Self::end) is called on the result.
    pub(crate) fn take_all(&mut self) -> Self {
        let taken = std::mem::take(self);
        self.last_id = taken.last_id;
        if let Some((_, news)) = &taken.link {
            Kind::ALL.iter().for_each(|kind| news.client.subscribed[*kind as usize].store(0, Ordering::Relaxed));
        }
        taken
    }

    /// Ends all subscriptions, and drops the queued messages. Takes about a microsecond for each subscription.
    pub(crate) fn end(self, registry: &Registry) {
        for kind in Kind::ALL {
            self.names(kind).iter().for_each(|name| registry.remove(kind, name));
        }
    }

    /// Returns true if the broker has notified the client of messages, and the client's task has not looked for them
    /// since.
    #[inline]
    pub(crate) fn may_deliver(&self) -> bool {
        self.link.as_ref().is_some_and(|(_, news)| news.is_pending.load(Ordering::Acquire))
    }

    /// Returns true if the broker may have messages that the client's task has not taken.
    #[inline]
    pub(crate) fn has_messages(&self) -> bool {
        self.has_more || self.may_deliver()
    }

    /// Keeps the client's turn, which it has not used yet, so that it need not wait for another turn.
    pub(crate) fn keep_turn(&mut self) {
        self.has_more = true;
    }

    /// Returns true if the client must wait with new messages until other clients of its thread have had their turns.
    /// The client's task is woken when its turn comes.
    pub(crate) fn must_wait(&mut self, client: &Arc<Client>) -> bool {
        if !self.may_deliver() || self.has_more {
            return false;
        }
        if !self.waits {
            self.waits = true;
            turns::join(client);
        }
        self.waits = !client.has_turn();
        self.waits
    }

    /// Moves queued messages into the client's outbox, until the outbox is full or comparing patterns has taken
    /// [`MAX_COMPARISONS`]. The next call continues with the remaining messages.
    pub(crate) fn deliver(&mut self, protocol: Protocol, out: &mut Outbox) -> Delivery {
        let Some((link, news)) = &self.link else { return Delivery::Nothing };
        if !news.is_pending.swap(false, Ordering::Acquire) && !self.has_more {
            return Delivery::Nothing;
        }
        let (mut delivery, mut compared) = (Delivery::Nothing, 0);
        self.has_more = true;
        loop {
            while let Some(item) = self.taken.get(self.sending.0) {
                let Outbound::Batch { batch, subscriptions } = item else { return Delivery::TooSlow };
                let count = subscriptions.len();
                while self.sending.1 < 2 * count {
                    if compared >= MAX_COMPARISONS {
                        self.has_more = true;
                        // There is more to compare, so this counts as progress even if no message was sent.
                        return Delivery::Moved;
                    }
                    if out.len() >= OUTBOX_BYTES {
                        self.has_more = true;
                        return if is_cut(link) { Delivery::TooSlow } else { delivery };
                    }
                    // As in Redis, subscriptions by name come before subscriptions by pattern.
                    let is_by_pattern = self.sending.1 >= count;
                    let id = subscriptions[self.sending.1 % count];
                    self.sending.1 += 1;
                    compared += COMPARISONS_OF_SUBSCRIPTION;
                    if let Some(name) = self.by_id.get(&id)
                        && (name.kind == Kind::Pattern) == is_by_pattern
                    {
                        send(batch, name, protocol, out, &mut compared);
                        delivery = Delivery::Moved;
                    }
                }
                self.sending = (self.sending.0 + 1, 0);
            }
            self.taken.clear();
            self.sending = (0, 0);
            if !self.has_more {
                return delivery;
            }
            // Without room in the outbox no messages are taken. A disconnect by the broker must still be noticed.
            let room = OUTBOX_BYTES.saturating_sub(out.len());
            let batches = if room == 0 { 0 } else { BATCHES_AT_ONCE };
            let budget = Budget { batches, bytes: room as u64 };
            self.has_more = link.take(&mut self.taken, budget) == TakeResult::More;
            if room == 0 && self.taken.is_empty() {
                return delivery;
            }
        }
    }
}

/// Returns true if the broker has disconnected the link. This is noticed even while the client takes no messages.
fn is_cut(link: &Link) -> bool {
    let mut items = Vec::new();
    let _ = link.take(&mut items, Budget { batches: 0, bytes: 0 });
    items.iter().any(|item| !matches!(item, Outbound::Batch { .. }))
}

/// Size in bytes at which encoded messages are passed to the outbox by reference instead of being copied.
const SHARED_FROM_BYTES: usize = 16 * 1024;

fn send(batch: &Batch, subscription: &Subscription, protocol: Protocol, out: &mut Outbox, compared: &mut u64) {
    match subscription.kind {
        Kind::Channel => {
            let form = if protocol == Protocol::Resp2 { 0 } else { 1 };
            let bytes = batch.form(form, || Bytes::from(encoded(batch, &[b"message"], protocol)));
            if bytes.len() >= SHARED_FROM_BYTES {
                out.share(bytes.clone());
            } else {
                out.buffer().extend_from_slice(bytes);
            }
        }
        Kind::Shard => out.buffer().extend_from_slice(&encoded(batch, &[b"smessage"], protocol)),
        Kind::Pattern
            if glob::matches_counting(&subscription.name, &channel_of(batch.subject().as_bytes()), compared) =>
        {
            out.buffer().extend_from_slice(&encoded(batch, &[b"pmessage", &subscription.name], protocol));
        }
        // The broker's pattern can match more channels than the glob pattern of the client. So the glob is compared
        // below.
        Kind::Pattern => {}
    }
}

/// Encodes the messages of a batch for a subscriber. Each message is an array of the elements in `before`, the channel,
/// and the payload.
fn encoded(batch: &Batch, before: &[&[u8]], protocol: Protocol) -> Vec<u8> {
    let channel = channel_of(batch.subject().as_bytes());
    let mut head = Vec::new();
    let mut writer = Writer::new(ReplyTarget::Buffer(&mut head), protocol);
    writer.push(before.len() + 2);
    before.iter().for_each(|part| writer.bulk(part));
    writer.bulk(&channel);
    let each = head.len() + 16;
    let mut all = Vec::with_capacity(batch.encoded().len() + batch.messages() as usize * each);
    // The batch was checked when it was published, whatever the protocol of its publisher, so decoding cannot fail.
    let messages = wire::Batch::decode(batch.encoded()).map(|batch| batch.messages());
    for message in messages.into_iter().flatten().flatten() {
        all.extend_from_slice(&head);
        Writer::new(ReplyTarget::Buffer(&mut all), protocol).bulk(message.payload);
    }
    all
}
