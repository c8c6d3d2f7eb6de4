//! Subjects and caches: the two views that store nothing. Sans I/O.

mod batch;
mod broker;
mod interest;
mod link;
mod memory;
mod moment;
mod notify;
mod publish;
mod subject;
mod topics;
mod wake;
mod wild;

use std::sync::{LockResult, PoisonError};

pub use self::{
    batch::{Batch, BatchError},
    broker::{Broker, BrokerConfig, BrokerStats, TooManyLinks},
    link::{
        Budget, Credit, Link, LinkId, Outbound, Policy, QueueStats, SubscribeError, SubscribeOptions, SubscriptionId,
        Taken, UnknownSubscription,
    },
    moment::Moment,
    notify::Notify,
    publish::{Published, WouldBlock},
    subject::{Pattern, Subject, SubjectError},
};

/// A lock whose holder panicked is as good as any: nothing under ours is half done where something can panic.
fn locked<G>(result: LockResult<G>) -> G {
    result.unwrap_or_else(PoisonError::into_inner)
}
