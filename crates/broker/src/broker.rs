//! The interface of the broker for protocols: opening a link for each connection, and publishing batches.

use std::sync::Arc;

use crate::{
    Batch, BrokerConfig, BrokerStats, Link, LinkOwner, Notify, Published, TooManyLinks, WouldBlock,
    announcements::Announcement,
    node::NodeLink,
    publish::{Blocking, Publish, Reach},
    registry::Registry,
    subject_table::Counters,
    traffic::Traffic,
    wake::Wakes,
};

/// The message broker: passes published messages to the queues of matching subscriptions. Clones are handles
/// of the same broker.
#[derive(Clone, Debug)]
pub struct Broker {
    registry: Arc<Registry>,
}

impl Broker {
    /// Creates a broker without links.
    #[must_use]
    pub fn new(config: BrokerConfig) -> Self {
        Self { registry: Arc::new(Registry::new(config)) }
    }

    /// Opens a link for a connection. The broker calls `notify` when the link has something to [`take`](Link::take). It
    /// does so only if the last take returned [`TakeResult::All`](crate::TakeResult::All).
    ///
    /// # Errors
    ///
    /// The broker has reached its limit of links.
    pub fn open_link(&self, notify: Arc<dyn Notify>) -> Result<Link, TooManyLinks> {
        self.open_link_of(notify, Arc::default())
    }

    /// Opens a link like [`open_link`](Self::open_link), for a connection of the client `owner`. When memory for queued
    /// messages is short, the owner whose links hold the most bytes is the first that gets no more memory.
    ///
    /// # Errors
    /// The broker has reached its limit of links.
    pub fn open_link_of(&self, notify: Arc<dyn Notify>, owner: Arc<LinkOwner>) -> Result<Link, TooManyLinks> {
        let shared = self.registry.open_link(notify, owner)?;
        Ok(Link::new(shared, Arc::clone(&self.registry)))
    }

    /// Puts a batch into the queues of all matching subscriptions. Never waits for space in a queue. After the error
    /// [`WouldBlock`] the broker notifies `waiter` when a retry may succeed. It sometimes notifies `waiter` although a
    /// retry fails again. Without a waiter, the publisher decides when to retry.
    ///
    /// To keep its messages in order, a publisher must not publish a later batch before it has published this one
    /// successfully.
    ///
    /// # Errors
    /// [`WouldBlock`] if a subscription that blocks publishers has no room. The batch was not queued for any
    /// subscription.
    pub fn publish(&self, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Result<Published, WouldBlock> {
        self.run(batch, waiter, Blocking::Respected)
    }

    /// Puts a batch into the queues of all matching subscriptions that have room. A subscription without room misses
    /// the batch and gets a notice of the loss, even if its policy is to block publishers. Meant for publishers that no
    /// subscriber may block.
    pub fn publish_now(&self, batch: &Batch) -> Published {
        // With `Blocking::Ignored` no subscription can block the publish, so there is no error.
        self.run(batch, None, Blocking::Ignored).unwrap_or_default()
    }

    /// Opens the link to another node of the cluster. The broker calls `notify` when the link has something to take,
    /// and when the filters of this node have changed. At most `max_bytes` of messages wait for the node, and at most
    /// 1/16 of [`BrokerConfig::max_queued_bytes`]. When this limit is reached, further messages for the node are lost.
    pub fn open_node(&self, notify: Arc<dyn Notify>, max_bytes: u64) -> NodeLink {
        let traffic = Arc::new(Traffic::default());
        // A node that does not read its messages must leave memory for clients.
        let max_bytes = max_bytes.min(self.registry.config.max_queued_bytes / 16);
        let shared = self.registry.open_node(notify, max_bytes, Arc::clone(&traffic));
        NodeLink::new(Link::new(shared, Arc::clone(&self.registry)), traffic, self.registry.config.seed)
    }

    /// Returns the filters to announce to another node. `sent` is the version of the filters that the node has, or
    /// `None` if it has none. Returns `None` if the node has the newest version, or if this node announces nothing
    /// ([`BrokerConfig::announces`]).
    #[must_use]
    pub fn announcement(&self, sent: Option<u64>) -> Option<Announcement> {
        self.registry.announcements.as_ref()?.since(sent)
    }

    /// Puts a batch that another node has published into the queues of this node's matching subscriptions. Reaches all
    /// matching subscriptions without a queue group, and one member of each queue group in `groups`, a sorted list of
    /// names. Never waits, like [`publish_now`](Self::publish_now).
    pub fn publish_from_node(&self, batch: &Batch, groups: &[&[u8]]) -> Published {
        self.run_to(batch, None, Blocking::Ignored, Reach::Clients { groups }).unwrap_or_default()
    }

    fn run(
        &self,
        batch: &Batch,
        waiter: Option<&Arc<dyn Notify>>,
        blocking: Blocking,
    ) -> Result<Published, WouldBlock> {
        self.run_to(batch, waiter, blocking, Reach::Everyone)
    }

    fn run_to(
        &self,
        batch: &Batch,
        waiter: Option<&Arc<dyn Notify>>,
        blocking: Blocking,
        reach: Reach<'_>,
    ) -> Result<Published, WouldBlock> {
        // `wakes` sends its notifications when it is dropped, which is after the shard is unlocked.
        let mut wakes = Wakes::default();
        let registry = &*self.registry;
        let (memory, joins, joined) = (&registry.memory, &registry.joins, registry.joins.count());
        let (hash, mut shard) = registry.shard(batch.subject().as_bytes());
        let mut publish = Publish { batch, memory, joins, joined, waiter, blocking, reach, wakes: &mut wakes };
        let published = shard
            .with_interest(batch.subject(), hash, &registry.wildcards, |interest, dice| publish.run(interest, dice));
        count(&mut shard.counters, batch, reach, &published);
        drop(shard);
        published
    }

    /// Returns the present sizes and counters of the broker. Takes the lock of each shard in turn, so call it for
    /// metrics, and not with every publish.
    #[must_use]
    pub fn stats(&self) -> BrokerStats {
        self.registry.stats()
    }
}

fn count(counters: &mut Counters, batch: &Batch, reach: Reach<'_>, published: &Result<Published, WouldBlock>) {
    match published {
        Err(_) => counters.blocked += 1,
        Ok(published) => {
            // The node where a message was published has already counted it. So messages from other nodes are not
            // counted here.
            if matches!(reach, Reach::Everyone) {
                counters.batches += 1;
                counters.messages += u64::from(batch.messages());
                counters.unmatched += u64::from(!published.matched());
            }
            counters.deliveries += published.delivered;
            counters.missed += published.missed;
        }
    }
}
