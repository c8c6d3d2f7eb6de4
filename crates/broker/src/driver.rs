//! The interface of a link for a driver: the code that serves the link's connection.
//!
//! Owns: subscribing and unsubscribing, and their errors. Does not own: queues and policies (see
//! [`link`](crate::link)), or the index of subjects (see [`registry`](crate::registry)).
//!
//! Invariant: a subscription is added to its link before it is added to the index, and removed from the link before it
//! is removed from the index. So a publisher finds each subscription of the index in its link, or finds that the
//! subscription has ended.

use std::sync::Arc;

use thalweg_types::{
    classified,
    limits::{MAX_QUEUE_GROUP_BYTES, MAX_QUEUE_GROUP_MEMBERS},
};

use crate::{
    Pattern,
    announcements::{MAX_FILTERS, TooManyGroups},
    interest::Target,
    link::{Budget, LinkId, Outbound, Shared, SlotId, Subscription, TakeResult},
    options::{Credit, SubscribeOptions, SubscriptionId},
    registry::Registry,
    wake::Wakes,
};

/// Error returned when a subscription cannot be created on a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SubscribeError {
    /// The link already has a subscription with this id.
    #[error("subscription {} exists on this connection: choose another id, or unsubscribe first", .0.0)]
    DuplicateId(SubscriptionId),
    /// The link has reached its maximum number of subscriptions.
    #[error("a connection has at most {max} subscriptions: unsubscribe, or use patterns")]
    TooManyOnLink {
        /// Maximum number of subscriptions of a link.
        max: usize,
    },
    /// The broker has reached its maximum number of subscriptions, or the client has reached the part of them that one
    /// client may use.
    #[error(
        "the limit of {max} subscriptions is reached, or this client's share of it: end some, try again later, or raise the limit"
    )]
    TooMany {
        /// Maximum number of subscriptions of the broker, over all links.
        max: usize,
    },
    /// The clients of one address have too many subscriptions with wildcards that match the same subjects.
    #[error(
        "the clients of this address have {max} subscriptions with wildcards that match the same subjects: unsubscribe, or \
         share one subscription"
    )]
    TooManyOverlapping {
        /// Maximum number of subscriptions of one address that match the same subjects.
        max: usize,
    },
    /// The name of the queue group is empty or longer than [`MAX_QUEUE_GROUP_BYTES`].
    #[error("a queue group's name has 1 to {MAX_QUEUE_GROUP_BYTES} bytes, this one has {bytes}")]
    GroupName {
        /// Length in bytes of the rejected group name.
        bytes: usize,
    },
    /// The queue group has [`MAX_QUEUE_GROUP_MEMBERS`] members for this pattern, which is the maximum.
    #[error("a queue group has at most {MAX_QUEUE_GROUP_MEMBERS} members for one pattern")]
    GroupFull,
    /// The node has reached the maximum number of queue groups that it announces to other nodes. A group counts once
    /// for each pattern.
    #[error(
        "a node of a cluster has at most {MAX_FILTERS} queue groups, each counted once for each pattern: use fewer \
        patterns or groups"
    )]
    TooManyGroups,
    /// A requested limit on the subscription's queue is 0, so no message could be queued.
    #[error("the limits of a queue must be at least one message and one byte")]
    NoQueue,
    /// The link is closed, because a subscription with [`Policy::Disconnect`](crate::Policy::Disconnect) overflowed.
    #[error("the server closed this connection because it was too slow: connect again")]
    Disconnected,
}

classified!(SubscribeError {
    Self::DuplicateId(_) => "subscription_exists", Fix;
    Self::TooManyOnLink { .. } => "too_many_subscriptions_on_connection", Fix;
    Self::TooMany { .. } | Self::TooManyOverlapping { .. } => "too_many_subscriptions", Retry;
    Self::GroupName { .. } => "queue_group_name", Fix;
    Self::GroupFull => "queue_group_full", Retry;
    Self::TooManyGroups => "too_many_queue_groups", Retry;
    Self::NoQueue => "queue_too_small", Fix;
    Self::Disconnected => "disconnected", Retry;
});

/// Error returned when the link has no subscription with this id.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no subscription {} on this connection", .0.0)]
pub struct UnknownSubscription(pub SubscriptionId);

classified!(UnknownSubscription {
    _ => "unknown_subscription", Fix;
});

/// Sizes of the queue of a subscription at one point in time, and its count of missed messages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Number of messages in the queue.
    pub messages: u64,
    /// Bytes of the messages in the queue.
    pub bytes: u64,
    /// Number of messages that the subscription has missed since it was created.
    pub dropped: u64,
}

/// The subscriptions of one connection, created by [`Broker::open_link`](crate::Broker::open_link). The driver of the
/// connection can share the link between threads. Dropping a link closes it. Its subscriptions then end, their queued
/// messages are lost, and publishers that wait for room in its queues are notified.
#[derive(Debug)]
pub struct Link {
    shared: Arc<Shared>,
    registry: Arc<Registry>,
}

impl Link {
    pub(crate) fn new(shared: Arc<Shared>, registry: Arc<Registry>) -> Self {
        Self { shared, registry }
    }

    /// Returns the number that identifies the link in its broker.
    #[must_use]
    pub fn id(&self) -> LinkId {
        self.shared.id
    }

    /// Creates a subscription. The subscription receives every matching publish that begins after this call
    /// returns.
    ///
    /// # Errors
    /// [`SubscribeError`] if a limit is reached, the id is in use, or the group's name is invalid.
    pub fn subscribe(
        &self,
        id: SubscriptionId,
        pattern: Pattern,
        options: &SubscribeOptions,
    ) -> Result<(), SubscribeError> {
        if let Some(group) = &options.group
            && !(1..=MAX_QUEUE_GROUP_BYTES).contains(&group.len())
        {
            return Err(SubscribeError::GroupName { bytes: group.len() });
        }
        if options.max_messages == 0 || options.max_bytes == 0 {
            return Err(SubscribeError::NoQueue);
        }
        if !self.registry.count_subscription() {
            return Err(SubscribeError::TooMany { max: self.registry.config.max_subscriptions });
        }
        let made = self.insert(id, pattern, options);
        if made.is_err() {
            self.registry.uncount_subscriptions(1);
        }
        made
    }

    /// Returns true if this is a link to another node. Subscriptions of such a link are neither counted nor announced.
    fn is_to_node(&self) -> bool {
        self.shared.node.is_some()
    }

    /// Creates a subscription on the link without counting it towards the broker's limit on subscriptions.
    pub(crate) fn insert(
        &self,
        id: SubscriptionId,
        pattern: Pattern,
        options: &SubscribeOptions,
    ) -> Result<(), SubscribeError> {
        let (place, group) = {
            let mut state = self.shared.lock();
            if !state.is_open() {
                return Err(SubscribeError::Disconnected);
            }
            if state.find(id).is_some() {
                return Err(SubscribeError::DuplicateId(id));
            }
            let max = self.registry.config.max_link_subscriptions;
            if state.len() >= max && !self.is_to_node() {
                return Err(SubscribeError::TooManyOnLink { max });
            }
            let make = |tag| Subscription::new(id, tag, pattern.clone(), options);
            let place = state.insert(id, options.policy, make);
            (place, state.get(id).and_then(|made| made.group.clone()))
        };
        if self.announce(&pattern, group.as_ref()).is_err() {
            self.shared.lock().remove(id, &self.registry.memory);
            return Err(SubscribeError::TooManyGroups);
        }
        let target = Target { link: Arc::clone(&self.shared), slot: place };
        if self.registry.insert(&pattern, group.as_ref(), target).is_err() {
            self.shared.lock().remove(id, &self.registry.memory);
            self.renounce(&pattern, group.as_ref());
            return Err(SubscribeError::GroupFull);
        }
        if group.is_some() {
            // A publisher may be waiting because the other members of the group are full. Let it try the new member.
            Wakes::default().waiters(self.registry.joins.joined());
        }
        Ok(())
    }

    /// Records a subscription of a client in the filters that this node announces to the other nodes.
    fn announce(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>) -> Result<(), TooManyGroups> {
        let Some(announcements) = self.registry.announcements.as_ref().filter(|_| !self.is_to_node()) else {
            return Ok(());
        };
        if announcements.added(pattern, group)? {
            self.registry.notify_nodes();
        }
        Ok(())
    }

    /// Removes an ended subscription of a client from the filters that this node announces to the other nodes.
    fn renounce(&self, pattern: &Pattern, group: Option<&Arc<[u8]>>) {
        let Some(announcements) = self.registry.announcements.as_ref().filter(|_| !self.is_to_node()) else { return };
        if announcements.removed(pattern, group) {
            self.registry.notify_nodes();
        }
    }

    /// Ends a subscription and drops the messages in its queue.
    ///
    /// # Errors
    /// The link has no subscription with this id.
    pub fn unsubscribe(&self, id: SubscriptionId) -> Result<(), UnknownSubscription> {
        if !self.remove(id) {
            return Err(UnknownSubscription(id));
        }
        self.registry.uncount_subscriptions(1);
        Ok(())
    }

    /// Ends a subscription without reducing the broker's count of subscriptions. Returns false if the subscription does
    /// not exist.
    pub(crate) fn remove(&self, id: SubscriptionId) -> bool {
        let mut wakes = Wakes::default();
        let removed = {
            let mut state = self.shared.lock();
            let removed = state.remove(id, &self.registry.memory);
            wakes.waiters(state.take_waiting());
            self.shared.note_load(&state);
            removed
        };
        wakes.waiters(self.registry.memory.take_waiting());
        let Some((place, subscription)) = removed else { return false };
        self.forget(place, &subscription);
        true
    }

    fn forget(&self, place: SlotId, subscription: &Subscription) {
        let target = Target { link: Arc::clone(&self.shared), slot: place };
        self.registry.remove(&subscription.pattern, subscription.group.as_ref(), &target);
        self.renounce(&subscription.pattern, subscription.group.as_ref());
    }

    /// Grants credit: permits the link to send further messages and bytes to a subscription.
    ///
    /// # Errors
    /// The link has no subscription with this id.
    pub fn grant(&self, id: SubscriptionId, credit: Credit) -> Result<(), UnknownSubscription> {
        let mut state = self.shared.lock();
        if !state.grant(id, credit) {
            return Err(UnknownSubscription(id));
        }
        let tell = state.must_notify();
        drop(state);
        if tell {
            self.shared.notify();
        }
        Ok(())
    }

    /// Moves batches that may be sent to the client now from the link's queues to the end of `out`, within the limits
    /// in `budget`. A moved batch no longer takes space in a queue, and the credit for it is spent. The driver must
    /// send the batch, otherwise the batch is lost.
    pub fn take(&self, out: &mut Vec<Outbound>, budget: Budget) -> TakeResult {
        let mut wakes = Wakes::default();
        let before = out.len();
        let mut state = self.shared.lock();
        let taken = state.take(out, budget, &self.registry.memory);
        if out.len() != before {
            wakes.waiters(state.take_waiting());
            self.shared.note_load(&state);
        }
        drop(state);
        wakes.waiters(self.registry.memory.take_waiting());
        taken
    }

    /// Number of bytes of the first batch in a subscription's queue; 0 if the queue is empty. The subscription's policy
    /// may drop this batch before the next [`take`](Self::take).
    #[must_use]
    pub fn next_bytes(&self, id: SubscriptionId) -> u64 {
        self.shared.lock().get(id).map_or(0, Subscription::next_bytes)
    }

    /// Returns the sizes of a subscription's queue and its count of missed messages; `None` if the subscription does
    /// not exist.
    #[must_use]
    pub fn queue_stats(&self, id: SubscriptionId) -> Option<QueueStats> {
        let state = self.shared.lock();
        let found = state.get(id)?;
        let held = found.held();
        Some(QueueStats { messages: held.messages, bytes: held.bytes, dropped: found.dropped() })
    }

    /// Returns the sums of [`queue_stats`](Self::queue_stats) over all subscriptions of the link. `dropped` counts from
    /// the opening of the link, and includes ended subscriptions.
    #[must_use]
    pub fn stats(&self) -> QueueStats {
        let state = self.shared.lock();
        let held = state.held();
        QueueStats { messages: held.messages, bytes: held.bytes, dropped: state.dropped() }
    }

    /// Number of subscriptions of the link.
    #[must_use]
    pub fn subscriptions(&self) -> usize {
        self.shared.lock().len()
    }
}

impl Drop for Link {
    fn drop(&mut self) {
        let mut wakes = Wakes::default();
        let removed = {
            let mut state = self.shared.lock();
            wakes.waiters(state.take_waiting());
            state.close(&self.registry.memory)
        };
        wakes.waiters(self.registry.memory.take_waiting());
        drop(wakes);
        for (place, subscription) in &removed {
            self.forget(*place, subscription);
        }
        if !self.is_to_node() {
            self.registry.uncount_subscriptions(removed.len());
            self.registry.close_link(self.shared.id);
        }
    }
}
