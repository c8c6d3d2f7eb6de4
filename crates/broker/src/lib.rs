//! Subjects and caches: the two views that store nothing.
//!
//! Owns: who gets a message, in what order, how much may wait for whom and what happens when more comes; caches with
//! bounds and deadlines. Does not own: sockets, tasks, clocks, encodings. Everything here is called, and calls back
//! only to say "look again" ([`Notify`]); no call waits for room or for time, locks are held for the time of a push.
//!
//! # How a driver uses this
//!
//! One [`Broker`] for the node. For each connection that subscribes a [`Link`]:
//!
//! ```
//! use std::sync::Arc;
//! use bytes::Bytes;
//! use thalweg_broker::*;
//!
//! let broker = Broker::new(BrokerConfig { seed: 42, ..BrokerConfig::DEFAULTS });
//! // Called when there is something to send: wake the connection's task here.
//! let wake: Arc<dyn Notify> = Arc::new(|| {});
//! let link = broker.open_link(wake)?;
//!
//! // SUBSCRIBE, as the connection's reader decodes it.
//! let pattern = Pattern::parse(b"orders.*")?;
//! link.subscribe(SubscriptionId(1), pattern, &SubscribeOptions::DEFAULTS)?;
//!
//! // PUBLISH, from any thread. The bytes are the codec's; nothing here looks into them.
//! let batch = Batch::new(Subject::parse(b"orders.new")?, Bytes::from_static(b"encoded"), 1)?;
//! assert_eq!(broker.publish(&batch, None)?.delivered, 1);
//!
//! // The connection's writer, when it was woken, and again after each write for as long as there is more.
//! let mut out = Vec::new();
//! let more = link.take(&mut out, Budget::DEFAULT);
//! assert_eq!(more, Taken::All);
//! for item in &out {
//!     match item {
//!         Outbound::Batch { batch, subscriptions } => {
//!             // One frame: the ids, then `batch.encoded()` as it is.
//!             assert_eq!((&**batch.encoded(), &**subscriptions), (&b"encoded"[..], &[SubscriptionId(1)][..]));
//!         }
//!         Outbound::Gap { subscription, messages } => println!("{subscription:?} missed {messages}"),
//!         Outbound::Disconnect { subscription, .. } => println!("too slow: {subscription:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Reading.** Parse a subject once where a protocol lets clients name one by number; a [`Subject`] is cheap to
//! clone. Messages that come one by one go through the publisher's [`Coalescer`]; whole batches go through
//! [`Coalescer::pass`], so both keep their order. When the read buffer is used up call [`Coalescer::idle`], and set a
//! timer to [`Coalescer::due`] if that is still something. Publish what is complete, in order.
//!
//! **Back-pressure.** [`Broker::publish`] says [`WouldBlock`] if a subscription with [`Policy::Block`] has no room. Then
//! nothing has happened. Keep the batch, read no more from that publisher, and publish it again when the waiter
//! given with it is notified. (A waiter is one `Arc` per publisher, given every time: the list of those who wait knows
//! it by its address, and forgets it when nobody else holds it.)
//!
//! **Writing.** The link's [`Notify`] is called when there is something to take after [`Link::take`] said
//! [`Taken::All`]; after [`Taken::More`] it is not, so take again. What was taken has left the queue: while it waits for
//! the socket, take no more than the socket is likely to accept, since policies and bounds work on what is still
//! here. [`SubscribeOptions::credit`] and [`Link::grant`] carry a receiver's own permission; a protocol without one says
//! [`Credit::UNLIMITED`] and lets the connection's flow control decide.
//!
//! **Ending.** Dropping the link ends its subscriptions and lets those go on who waited for its room.
//!
//! **Requests.** A reply subject travels in the encoded message. [`Published::matched`] tells at once whether
//! anybody could answer; [`Requests`] keeps who waits for which reply until when.
//!
//! **Caches.** [`Caches`] holds a node's caches by name; a [`Cache`] is used from any thread. Every call is given the
//! time. A timer of the driver calls [`Caches::reclaim`] about when [`Caches::next_deadline`] says; nothing is late for readers if
//! it does not, only memory comes back later. Read-and-write commands of a protocol are made of [`Cache::update`].
//!
//! # What holds
//!
//! * All subscribers of a subject see racing publishes to it in one order; each sees a publisher's messages in the
//!   order of its publishes, over all subjects. Why: see `publish.rs`.
//! * A message is delivered at most once to each subscription, and to exactly one member of a queue group; what a
//!   subscription missed is counted, and told to it in its order.
//! * A batch is encoded once, queued as a reference, and sent once to each link, with the ids of all its subscriptions
//!   that want it. A batch has one subject, so a pattern matches all of it or nothing.
//! * Every table and queue has a bound: [`BrokerConfig`], [`SubscribeOptions`], `thalweg_types::limits`.
//!
//! # What is not here
//!
//! *History.* A subject has none. To join a stream's tail with history first, read the stream from an offset and go on
//! when it grows, as the engine's tails do: records have dense offsets, so there is neither gap nor duplicate to take
//! care of, and nothing to join.
//!
//! *Lanes.* A link has one queue per subscription and one order over them. Several writers for one connection would
//! share its socket; if a measurement of the server shows that they help, several links can serve one connection,
//! each with its part of the subscriptions, and nothing here changes.

mod batch;
mod batching;
mod broker;
mod cache;
mod interest;
mod link;
mod losses;
mod memory;
mod moment;
mod notify;
mod publish;
mod requests;
mod subject;
mod topics;
mod wake;
mod wild;

use std::sync::{LockResult, PoisonError};

pub use self::{
    batch::{Batch, BatchError, FORMS},
    batching::{BatchEncoder, Batching, Coalescer, WhenIdle},
    broker::{Broker, BrokerConfig, BrokerStats, TooManyLinks},
    cache::{
        Cache, CacheConfig, CacheEntry, CacheError, CacheId, CacheStats, Caches, Condition, CreateCacheError,
        ENTRY_BYTES, Expiry, NamedCache, ScanCursor, ScanPage, Update, Version,
    },
    link::{
        Budget, Credit, Link, LinkId, Outbound, Policy, QueueStats, SubscribeError, SubscribeOptions, SubscriptionId,
        Taken, UnknownSubscription,
    },
    losses::Losses,
    moment::Moment,
    notify::Notify,
    publish::{Published, WouldBlock},
    requests::{RequestError, Requests},
    subject::{Pattern, Subject, SubjectError},
};

/// A lock whose holder panicked is as good as any: nothing under ours is half done where something can panic.
fn locked<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
