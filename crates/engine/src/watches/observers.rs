//! Notification of watches and waiting stream readers about applied log entries.

use std::sync::{Arc, OnceLock};

use thalweg_replica::Observer;
use thalweg_state::machine::Machine;
use thalweg_types::command::Outcome;

use crate::{
    digests::{HASH_INTERVAL, HashMark, HashMarks},
    stream_growth::StreamGrowth,
    tails::Tails,
    watches::hub::Hub,
};

/// Receivers of the notification that an entry was applied: waiting readers of native streams, watches, and waiting
/// readers of Redis streams.
#[derive(Debug)]
pub(crate) struct Observers {
    pub(crate) tails: Arc<Tails>,
    pub(crate) watches: Arc<Hub>,
    pub(crate) growth: Arc<StreamGrowth>,
}

impl Observer for Observers {
    fn applied(&self, outcomes: &[Outcome]) {
        self.tails.applied(outcomes);
        self.watches.notify();
        self.growth.applied(outcomes);
    }
}

/// Observers on a member of a cluster: the usual receivers of applied log entries, the running hashes that members
/// compare, and the observer that the caller has set.
#[derive(Debug)]
pub(crate) struct MemberObservers {
    pub(crate) observers: Observers,
    pub(crate) machine: Arc<Machine>,
    pub(crate) hashes: Arc<HashMarks>,
    /// Observer of applied log entries that the caller has set on a member of a cluster.
    pub(crate) witness: Arc<OnceLock<Arc<dyn Observer>>>,
}

impl Observer for MemberObservers {
    fn applied(&self, outcomes: &[Outcome]) {
        let applied = self.machine.applied();
        if applied.index.0.is_multiple_of(HASH_INTERVAL) {
            self.hashes.add(HashMark { index: applied.index, running_hash: applied.running_hash });
        }
        self.observers.applied(outcomes);
        if let Some(witness) = self.witness.get() {
            witness.applied(outcomes);
        }
    }
}
