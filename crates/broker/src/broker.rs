//! The broker: opening links, and publishing.

use std::sync::Arc;

use crate::{
    Batch, BrokerConfig, BrokerStats, Link, Notify, Published, TooManyLinks, WouldBlock,
    publish::{Blocking, Publish},
    registry::Registry,
    subject_table::Counters,
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

    /// Opens a link for a connection. The broker calls `notify` when the link has something to
    /// [`take`](Link::take), if the last take returned [`TakeResult::All`](crate::TakeResult::All).
    ///
    /// # Errors
    /// The broker has reached its limit of links.
    pub fn open_link(&self, notify: Arc<dyn Notify>) -> Result<Link, TooManyLinks> {
        let shared = self.registry.open_link(notify)?;
        Ok(Link::new(shared, Arc::clone(&self.registry)))
    }

    /// Puts a batch into the queues of all matching subscriptions. Never waits for room. After the error
    /// [`WouldBlock`] the broker notifies `waiter` when a retry may succeed, and sometimes without need.
    /// Without a waiter, the publisher decides when to retry.
    ///
    /// To keep its messages in order, a publisher must not publish a later batch before this one has
    /// succeeded.
    ///
    /// # Errors
    /// A subscription that blocks publishers has no room. The batch was not queued for any subscription.
    pub fn publish(&self, batch: &Batch, waiter: Option<&Arc<dyn Notify>>) -> Result<Published, WouldBlock> {
        self.run(batch, waiter, Blocking::Respected)
    }

    /// Puts a batch into the queues of all matching subscriptions that have room. A subscription without room misses the
    /// batch and gets a notice of the loss, even if its policy is to block publishers. Meant for publishers that a
    /// subscriber must not stop.
    pub fn publish_now(&self, batch: &Batch) -> Published {
        // Nothing can stop the publish if blocking is ignored.
        self.run(batch, None, Blocking::Ignored).unwrap_or_default()
    }

    fn run(
        &self,
        batch: &Batch,
        waiter: Option<&Arc<dyn Notify>>,
        blocking: Blocking,
    ) -> Result<Published, WouldBlock> {
        // Notifies when it is dropped, after the shard is unlocked.
        let mut wakes = Wakes::default();
        let registry = &*self.registry;
        let (hash, mut shard) = registry.shard(batch.subject().as_bytes());
        let mut publish = Publish { batch, memory: &registry.memory, waiter, blocking, wakes: &mut wakes };
        let published = shard
            .with_interest(batch.subject(), hash, &registry.wildcards, |interest, dice| publish.run(interest, dice));
        count(&mut shard.counters, batch, &published);
        drop(shard);
        published
    }

    /// Returns the figures of the broker. Takes each shard's lock in turn, so it is meant for metrics, not
    /// for a call with every publish.
    #[must_use]
    pub fn stats(&self) -> BrokerStats {
        self.registry.stats()
    }
}

fn count(counters: &mut Counters, batch: &Batch, published: &Result<Published, WouldBlock>) {
    match published {
        Err(_) => counters.blocked += 1,
        Ok(published) => {
            counters.batches += 1;
            counters.messages += u64::from(batch.messages());
            counters.unmatched += u64::from(!published.matched());
            counters.deliveries += published.delivered;
            counters.missed += published.missed;
        }
    }
}
