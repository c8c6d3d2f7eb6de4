//! Subjects and caches: the two kinds of data of a node that are never stored on disk.
//!
//! Owns: the choice of subscribers for a message, delivery order, queue limits and the policies for full queues; caches
//! with limits and deadlines. Does not own: sockets, tasks, clocks, encodings. The crate starts no threads. A driver is
//! the code that reads requests from connections and writes messages to them. The crate calls back only to notify a
//! driver that there is something to do ([`Notify`]). No call waits for room or for time to pass. A lock is held only
//! as long as it takes to put a batch into a queue.
//!
//! # How to drive this crate
//!
//! Create one [`Broker`] for the node. Open a [`Link`] for each connection that subscribes:
//!
//! ```
//! use std::sync::Arc;
//! use bytes::Bytes;
//! use thalweg_broker::*;
//!
//! let broker = Broker::new(BrokerConfig { seed: 42, ..BrokerConfig::DEFAULTS });
//! // Called when there is something to send. A real driver wakes the connection's task here.
//! let wake: Arc<dyn Notify> = Arc::new(|| {});
//! let link = broker.open_link(wake)?;
//!
//! // SUBSCRIBE, after the connection's reader has decoded it.
//! let pattern = Pattern::parse(b"orders.*")?;
//! link.subscribe(SubscriptionId(1), pattern, &SubscribeOptions::DEFAULTS)?;
//!
//! // PUBLISH, from any thread. The broker does not parse the bytes.
//! let batch = Batch::new(Subject::parse(b"orders.new")?, Bytes::from_static(b"encoded"), 1)?;
//! assert_eq!(broker.publish(&batch, None)?.delivered, 1);
//!
//! // The connection's writer runs this after each wake-up, and again after each write while there is more.
//! let mut out = Vec::new();
//! let more = link.take(&mut out, Budget::DEFAULT);
//! assert_eq!(more, TakeResult::All);
//! for item in &out {
//!     match item {
//!         Outbound::Batch { batch, subscriptions } => {
//!             // One frame: the ids, then `batch.encoded()` unchanged.
//!             assert_eq!((&**batch.encoded(), &**subscriptions), (&b"encoded"[..], &[SubscriptionId(1)][..]));
//!         }
//!         Outbound::Gap { subscription, messages } => println!("{subscription:?} missed {messages}"),
//!         Outbound::Disconnect { subscription, .. } => println!("too slow: {subscription:?}"),
//!     }
//! }
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! **Reading.** If a protocol lets clients refer to subjects by number, parse each subject only once; a [`Subject`] is
//! cheap to clone. Pass single messages to the publisher's [`Coalescer`], and whole batches to
//! [`Coalescer::push_complete`]; both keep their order. When the read buffer is used up, call [`Coalescer::idle`]. If
//! [`Coalescer::due`] then returns a deadline, set a timer to this time. Publish completed batches in order.
//!
//! **Backpressure.** [`Broker::publish`] returns [`WouldBlock`] if a subscription with [`Policy::Block`] has no room.
//! In this case no subscription has received the batch. Keep the batch, and stop reading from its publisher. Publish
//! the batch again when the broker notifies the waiter that was passed with the publish. (Use one waiter, an `Arc`, for
//! each publisher, and pass it with every publish. The broker identifies the waiter by its address, and forgets it when
//! no other reference exists.)
//!
//! **Writing.** The broker calls the link's [`Notify`] when there is something to take, but only if the last
//! [`Link::take`] returned [`TakeResult::All`]. After [`TakeResult::More`] there is no notification, so take again.
//! Policies and limits apply only to batches in the queue, and taken batches have left it. So while taken batches wait
//! for the socket, the driver should take no more than the socket is likely to accept. [`SubscribeOptions::credit`] and
//! [`Link::grant`] carry a receiver's credit. A protocol without credit uses [`Credit::UNLIMITED`] and relies on the
//! connection's flow control.
//!
//! **Ending.** Dropping the link ends its subscriptions, and notifies the publishers that wait for room in its queues.
//!
//! **Requests.** A reply subject is part of the encoded message. [`Published::matched`] returns true if a responder
//! exists. [`Requests`] stores the pending requests and their deadlines.
//!
//! **Other nodes.** In a cluster, open a [`NodeLink`] for each other node. [`Broker::announcement`] returns this node's
//! filters, which the driver sends to the other node. [`NodeLink::announced`] applies the filters that the other node
//! sends. [`NodeLink::take`] returns the batches for the other node. Pass batches from the other node to
//! [`Broker::publish_from_node`]. Send new announcements before the batches that were already taken. The other node
//! then knows the reply subject of a request before it can publish the reply.
//!
//! **Caches.** [`Caches`] holds a node's caches by name. A [`Cache`] can be used from any thread. Every call takes the
//! current time. A timer of the driver should call [`Caches::reclaim`] at about [`Caches::next_deadline`]. A late call
//! only delays the release of memory, and never changes what readers see. Commands of a protocol that read and then
//! write a key use [`Cache::update`].
//!
//! # Invariants
//!
//! * All subscribers of a subject see concurrent publishes to it in the same order. Each subscriber sees a publisher's
//!   messages in the order of its publishes, across all subjects. `publish.rs` explains why.
//! * A message is delivered at most once to each subscription, and to at most one member of a queue group. Messages
//!   that a subscription missed are counted. The subscription gets a notice of them at the position where they are
//!   missing.
//! * A batch is encoded once, queued as a reference, and sent once to each link, with the ids of all matching
//!   subscriptions of that link. A batch has one subject, so a pattern matches the whole batch or none of it.
//! * Every table and queue has a limit: [`BrokerConfig`], [`SubscribeOptions`], `thalweg_types::limits`.
//!
//! # Not supported
//!
//! *History.* A subject has no history. A client that needs history before live messages should read a stream from an
//! offset, and continue with its tail. Records of a stream have consecutive offsets, so there are no gaps or duplicates
//! between the two.
//!
//! *Lanes.* A link has one queue for each subscription, and one order over all its queues. Several writers for one
//! connection would share its socket, so they would gain little. If a measurement shows a benefit, several links can
//! serve one connection, each with a part of the subscriptions, without changes to this crate.

mod announcements;
mod batch;
mod batching;
mod broker;
mod cache;
mod driver;
mod interest;
mod joins;
mod link;
mod losses;
mod memory;
mod moment;
mod node;
mod notify;
mod options;
mod publish;
mod registry;
mod requests;
mod subject;
mod subject_table;
mod traffic;
mod wake;
mod wildcards;

use std::sync::{LockResult, PoisonError};

pub use self::{
    announcements::{Announcement, Filter, MAX_ANNOUNCED_MEMBERS, MAX_FILTERS},
    batch::{Batch, BatchError, FORMS},
    batching::{BatchEncoder, Batching, Coalescer, WhenIdle},
    broker::Broker,
    cache::{
        Cache, CacheConfig, CacheCounts, CacheEntry, CacheError, CacheId, Caches, ClearedEntries, Condition,
        CreateCacheError, ENTRY_BYTES, Expiry, NamedCache, ScanCursor, ScanPage, Update, Version,
    },
    driver::{Link, QueueStats, SubscribeError, UnknownSubscription},
    link::{Budget, LinkId, Outbound, TakeResult},
    losses::Losses,
    memory::LinkOwner,
    moment::Moment,
    node::{FilterError, NodeBatch, NodeLink, NodeStats},
    notify::Notify,
    options::{Credit, Policy, SubscribeOptions, SubscriptionId},
    publish::{Published, WouldBlock},
    registry::{BrokerConfig, BrokerStats, TooManyLinks},
    requests::{RequestError, Requests},
    subject::{Pattern, Subject, SubjectError},
};

/// Returns the guard even if the lock is poisoned. Code under this crate's locks leaves no state half changed at a
/// point where it can panic.
fn locked<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
