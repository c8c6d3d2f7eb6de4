//! Another node of the cluster, as this node's broker sees it. The other node is a link, and the filters that it has
//! announced are the subscriptions of this link.
//!
//! Owns: the filters of the other node, and the queue of messages for it. Does not own: connections, the encoding of
//! announcements, or this node's own filters (see [`announcements`](crate::announcements)).
//!
//! A publish finds the subscriptions of other nodes in the same index as those of clients. So each node gets a batch
//! once, and gets the messages of one publisher in order. A member of a queue group is chosen among the members on all
//! nodes. A queue group of another node has one subscription for each of its announced members, so that all members get
//! about equally many messages.
//!
//! Invariant: messages from another node are delivered only to this node's clients
//! ([`Broker::publish_from_node`](crate::Broker::publish_from_node)). So no message is forwarded in a circle.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    sync::{Arc, Mutex, MutexGuard},
};

use foldhash::fast::FixedState;
use smallvec::SmallVec;
use thalweg_types::limits::MAX_QUEUE_GROUP_BYTES;

use crate::{
    Batch, Pattern, SubjectError,
    announcements::{Filter, MAX_ANNOUNCED_MEMBERS, MAX_FILTERS},
    driver::Link,
    link::{Budget, Outbound, TakeResult},
    locked,
    options::{Credit, Policy, SubscribeOptions, SubscriptionId},
    traffic::Traffic,
};

/// Error returned when another node announces filters that break the rules. A filter is a pattern, or a queue group
/// with a pattern, to which clients of that node have subscribed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FilterError {
    /// The announced changes apply to another version of the other node's filters than the version that this node has.
    #[error("filter changes from version {from} do not follow version {have:?}")]
    Version {
        /// Version of the filters to which the announced changes apply.
        from: u64,
        /// Version of the other node's filters that this node has; `None` if it has none of these filters.
        have: Option<u64>,
    },
    /// An announced pattern is not valid.
    #[error(transparent)]
    Pattern(#[from] SubjectError),
    /// The name of a queue group is too long; contains its length in bytes.
    #[error("a queue group's name has {0} bytes")]
    GroupName(usize),
    /// The other node has announced more filters than a node may have.
    #[error("more than {} filters", 2 * MAX_FILTERS)]
    TooMany,
}

/// A batch of messages to send to another node.
#[derive(Clone, Debug)]
pub struct NodeBatch {
    /// The messages to send, with their subject.
    pub batch: Batch,
    /// Names of the queue groups for which the broker chose a member on the receiving node.
    pub groups: SmallVec<[Arc<[u8]>; 1]>,
}

/// Counters of the messages exchanged with another node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeStats {
    /// Number of filters that the other node has announced.
    pub filters: usize,
    /// Bytes of the messages that wait to be sent to the other node. A message counts once for each matching filter.
    pub queued_bytes: u64,
    /// Number of messages sent to the other node.
    pub sent: u64,
    /// Number of messages for the other node that were lost, because its queue was full or the connection ended.
    pub lost: u64,
    /// Number of messages received from the other node.
    pub received: u64,
}

struct Filters {
    /// Ids of the subscriptions of each filter: one for a pattern, one for each announced member of a queue group.
    ids: HashMap<Filter, SmallVec<[SubscriptionId; 1]>, FixedState>,
    groups: HashMap<SubscriptionId, Arc<[u8]>, FixedState>,
    next: u64,
    version: Option<u64>,
    /// Buffer that is reused for the items taken from the link.
    taken: Vec<Outbound>,
}

/// Another node of the cluster: its filters, and the queue of messages for it. Created by
/// [`Broker::open_node`](crate::Broker::open_node). Dropping this value ends the node's subscriptions.
pub struct NodeLink {
    link: Link,
    traffic: Arc<Traffic>,
    filters: Mutex<Filters>,
}

impl fmt::Debug for NodeLink {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeLink").field("stats", &self.stats()).finish_non_exhaustive()
    }
}

impl NodeLink {
    pub(crate) fn new(link: Link, traffic: Arc<Traffic>, seed: u64) -> Self {
        let hasher = FixedState::with_seed(seed);
        let filters = Filters {
            ids: HashMap::with_hasher(hasher.clone()),
            groups: HashMap::with_hasher(hasher),
            next: 0,
            version: None,
            taken: Vec::new(),
        };
        Self { link, traffic, filters: Mutex::new(filters) }
    }

    fn lock(&self) -> MutexGuard<'_, Filters> {
        locked(self.filters.lock())
    }

    /// Begins a new connection on which the node announces its filters. The first announcement must contain all
    /// filters. Until then, the filters from the previous connection remain valid.
    pub fn begin(&self) {
        self.lock().version = None;
    }

    /// Applies an announcement of the node: all of its filters, or only the changes since the version `from`. Each
    /// filter is a pattern, an optional name of a queue group, and a number of members. The number is 0 for a filter
    /// that has ended.
    ///
    /// # Errors
    /// [`FilterError`] if the announcement breaks a rule. A part of the announcement may have been applied, so the
    /// connection must end.
    pub fn announced<'a>(
        &self,
        is_whole: bool,
        (from, version): (u64, u64),
        filters: impl Iterator<Item = (&'a [u8], &'a [u8], u32)>,
    ) -> Result<(), FilterError> {
        let mut state = self.lock();
        if !is_whole && state.version != Some(from) {
            return Err(FilterError::Version { from, have: state.version });
        }
        let mut kept: HashSet<Filter, FixedState> = HashSet::default();
        for (pattern, group, members) in filters {
            if group.len() > MAX_QUEUE_GROUP_BYTES {
                return Err(FilterError::GroupName(group.len()));
            }
            let pattern = Pattern::parse(pattern)?;
            let group: Option<Arc<[u8]>> = (!group.is_empty()).then(|| group.into());
            let filter = Filter { pattern: Arc::clone(pattern.shared()), group };
            self.set(&mut state, &pattern, filter.clone(), members);
            if state.ids.len() > 2 * MAX_FILTERS + 1 {
                return Err(FilterError::TooMany);
            }
            if is_whole {
                kept.insert(filter);
            }
        }
        if is_whole {
            let gone: Vec<Filter> = state.ids.keys().filter(|filter| !kept.contains(*filter)).cloned().collect();
            gone.into_iter().for_each(|filter| self.end(&mut state, &filter));
        }
        state.version = Some(version);
        Ok(())
    }

    fn set(&self, state: &mut Filters, pattern: &Pattern, filter: Filter, members: u32) {
        let wanted = members.min(if filter.group.is_some() { MAX_ANNOUNCED_MEMBERS } else { 1 }) as usize;
        if wanted == 0 {
            return self.end(state, &filter);
        }
        let Filters { ids, groups, next, .. } = state;
        let ids = ids.entry(filter.clone()).or_default();
        while ids.len() > wanted {
            let Some(id) = ids.pop() else { break };
            groups.remove(&id);
            self.link.remove(id);
        }
        let options = SubscribeOptions {
            policy: Policy::DropNew,
            max_messages: u64::MAX,
            max_bytes: u64::MAX,
            credit: Credit::UNLIMITED,
            group: filter.group.as_deref().map(<[u8]>::to_vec),
        };
        while ids.len() < wanted {
            let id = SubscriptionId(*next);
            *next += 1;
            // The group has too many members on all nodes together. The members on the other node then get only
            // messages that are published on that node.
            if self.link.insert(id, pattern.clone(), &options).is_err() {
                break;
            }
            ids.push(id);
            groups.extend(filter.group.clone().map(|group| (id, group)));
        }
        if ids.is_empty() {
            state.ids.remove(&filter);
        }
    }

    fn end(&self, state: &mut Filters, filter: &Filter) {
        for id in state.ids.remove(filter).into_iter().flatten() {
            state.groups.remove(&id);
            self.link.remove(id);
        }
    }

    /// Forgets all filters of the other node, because its connection has ended or the node has failed. Messages that
    /// wait for it are lost.
    pub fn clear(&self) {
        self.discard();
        let mut state = self.lock();
        let all: Vec<Filter> = state.ids.keys().cloned().collect();
        all.into_iter().for_each(|filter| self.end(&mut state, &filter));
        state.version = None;
    }

    /// Moves batches for the other node to the end of `out`, within the limits in `budget`. The caller must report the
    /// moved messages with [`count_sent`](Self::count_sent) or [`count_lost`](Self::count_lost).
    pub fn take(&self, out: &mut Vec<NodeBatch>, budget: Budget) -> TakeResult {
        let mut state = self.lock();
        let Filters { groups, taken, .. } = &mut *state;
        let more = self.link.take(taken, budget);
        for item in taken.drain(..) {
            // Other items are notices of lost messages, which were counted when they were lost.
            let Outbound::Batch { batch, subscriptions } = item else { continue };
            let groups = subscriptions.iter().filter_map(|id| groups.get(id).cloned()).collect();
            out.push(NodeBatch { batch, groups });
        }
        more
    }

    /// Drops the messages that wait to be sent to the other node, and counts them as lost.
    pub fn discard(&self) {
        let mut out = Vec::new();
        // Publishers may queue more messages in the meantime; these are not discarded.
        let _ = self.take(&mut out, Budget::UNLIMITED);
        self.traffic.lost(out.iter().map(|item| u64::from(item.batch.messages())).sum());
    }

    /// Counts messages that were sent to the other node.
    pub fn count_sent(&self, messages: u64) {
        self.traffic.sent(messages);
    }

    /// Counts messages for the other node that were taken from its queue and not sent.
    pub fn count_lost(&self, messages: u64) {
        self.traffic.lost(messages);
    }

    /// Counts messages that were received from the other node.
    pub fn count_received(&self, messages: u64) {
        self.traffic.received(messages);
    }

    /// Returns the counters of the messages exchanged with the other node.
    #[must_use]
    pub fn stats(&self) -> NodeStats {
        let [sent, lost, received] = self.traffic.read();
        let (filters, queued_bytes) = (self.lock().ids.len(), self.link.stats().bytes);
        NodeStats { filters, queued_bytes, sent, lost, received }
    }
}
