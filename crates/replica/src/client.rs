//! Clients that propose commands, and the measured cost of each client's commands. The queue of proposals (`queue`)
//! uses the costs to decide which commands are expensive. It takes the expensive commands of a client address in turns
//! (batches), and the address may pause between two turns.
//!
//! Owns: the origin of a command (its client, the name of its request, its limits), the measured costs, and the lock
//! around the pauses of an address. Does not own: the queue, the length of pauses (`turn_pause`), or the limits on a
//! client's other resources, which the server enforces.
//!
//! Invariant: costs are local to a node. They decide when a command is committed, and never its outcome.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use thalweg_types::Term;

use crate::turn_pause::TurnPause;

/// Number of estimated steps to which a [`Cost`] relates the steps that were measured. A step is about 100 ns of work.
const COST_UNIT: u64 = 1024;

/// Measured work of recent commands: the number of steps that they took for each [`COST_UNIT`] estimated steps. A step
/// is about 100 ns of work. The estimate assumes the largest values and collections that may exist, so a measured cost
/// is at most [`COST_UNIT`].
#[derive(Debug)]
struct Cost(AtomicU64);

impl Cost {
    /// Records a measured cost, in steps (units of work) for each [`COST_UNIT`] estimated steps. A higher measurement
    /// replaces the cost; a lower one reduces it by half of the difference between them.
    fn learn(&self, sample: u64) {
        let before = self.0.load(Relaxed);
        self.0.store(if sample >= before { sample } else { before.midpoint(sample) }.max(1), Relaxed);
    }
}

/// An address from which clients connect. A new client starts with the cost measured for earlier clients of its
/// address.
#[derive(Debug)]
pub struct ClientAddress {
    cost: Cost,
    pause: Mutex<TurnPause>,
}

impl Default for ClientAddress {
    /// Creates an address without measurements. Until a command of its clients is measured, each command is expected to
    /// take all of its estimated steps (units of work).
    fn default() -> Self {
        Self { cost: Cost(AtomicU64::new(COST_UNIT)), pause: Mutex::default() }
    }
}

impl ClientAddress {
    /// Locks and returns the pauses of the address. During a pause the queue takes none of the address's expensive
    /// commands.
    pub(crate) fn pause(&self) -> MutexGuard<'_, TurnPause> {
        self.pause.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client, usually a connection, for which commands are proposed. Commands of one client are committed in the order
/// in which they were proposed.
#[derive(Debug)]
pub struct Client {
    address: Arc<ClientAddress>,
    cost: Cost,
}

impl Client {
    /// Creates a client at an address.
    #[must_use]
    pub fn new(address: &Arc<ClientAddress>) -> Arc<Self> {
        let cost = Cost(AtomicU64::new(address.cost.0.load(Relaxed)));
        Arc::new(Self { address: Arc::clone(address), cost })
    }

    /// Returns the number of steps (units of work) that commands with the estimate `estimated` will probably take,
    /// according to the client's measured cost.
    pub(crate) fn probable_steps(&self, estimated: u64) -> u64 {
        estimated.saturating_mul(self.cost.0.load(Relaxed)) / COST_UNIT
    }

    /// Updates the measured costs of the client and of its address, after commands that were estimated to take
    /// `estimated` steps (units of work) took `steps` steps.
    pub(crate) fn learn(&self, estimated: u64, steps: u64) {
        if let Some(sample) = steps.saturating_mul(COST_UNIT).checked_div(estimated) {
            let sample = sample.min(COST_UNIT);
            self.cost.learn(sample);
            self.address.cost.learn(sample);
        }
    }

    /// Forgets the measured cost of the client's commands. The next commands are expected to take all of their
    /// estimated steps (units of work).
    pub(crate) fn forget(&self) {
        self.cost.0.store(COST_UNIT, Relaxed);
    }

    /// Address from which the client connects.
    pub(crate) fn address(&self) -> &Arc<ClientAddress> {
        &self.address
    }

    /// Number that identifies the client as long as the client is in memory. A later client can get the same number.
    pub(crate) fn key(self: &Arc<Self>) -> usize {
        Arc::as_ptr(self) as usize
    }

    /// Number that identifies the client's address as long as the address is in memory. A later address can get the
    /// same number.
    pub(crate) fn address_key(&self) -> usize {
        Arc::as_ptr(&self.address) as usize
    }
}

/// Information about a proposed command besides the command itself: its client, the name of its request, and the limits
/// and requirements of its proposer.
#[derive(Clone, Debug, Default)]
pub struct Origin {
    /// Client for which the command is proposed, if it is known.
    pub client: Option<Arc<Client>>,
    /// Name of the request in log lines, if it has one. A member sends it with the command when it forwards the command
    /// to the leader, and a leader keeps it in memory for the log lines of the members. The log does not contain it.
    pub request: Option<Arc<str>>,
    /// Cost of the existing values that the command returns, writes again (with another deadline, for example), or
    /// keeps in a history: the sum of their [steps](thalweg_types::steps). `None` if the proposer does not know the
    /// lengths of the values. The sum affects how many commands share an entry, and never their outcomes. A member that
    /// forwards the command to the leader does not send the sum, because the member has already decided which commands
    /// form the entry.
    pub value_reads: Option<u64>,
    /// Maximum time for which the proposer waits for its answer. A member gives the command up when this time or
    /// [`MemberOptions::max_wait`](crate::MemberOptions::max_wait) has passed, whichever is shorter.
    pub max_wait: Option<Duration>,
    /// Term in which this node must lead when the command is written; `None` if any leader may write the command. A
    /// proposer sets it if it has read the leader's state or its space time (clock) in this term, and the command
    /// depends on the result. In another term the node refuses the command without writing it. A node without other
    /// voters leads in one term for as long as its space (Raft group) is open.
    pub term: Option<Term>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cost_rises_at_once_and_falls_in_steps() {
        let address = Arc::new(ClientAddress::default());
        let client = Client::new(&address);
        assert_eq!(client.probable_steps(1_000), 1_000, "an unknown client");
        client.learn(1_000_000, 0);
        assert_eq!(client.probable_steps(1_000), 500);
        (0..20).for_each(|_| client.learn(1_000_000, 0));
        assert_eq!(client.probable_steps(100 * COST_UNIT), 100, "never nothing");
        client.learn(100, 1_000_000);
        assert_eq!(client.probable_steps(1_000), 1_000, "at most the estimate");
        client.learn(0, 7);
        assert_eq!(client.probable_steps(1_000), 1_000, "nothing was estimated");
    }

    #[test]
    fn a_new_client_begins_with_the_cost_of_its_address() {
        let address = Arc::new(ClientAddress::default());
        (0..20).for_each(|_| Client::new(&address).learn(1_000_000, 0));
        let client = Client::new(&address);
        assert_eq!(client.probable_steps(100 * COST_UNIT), 100);
        client.forget();
        assert_eq!(client.probable_steps(1_000), 1_000);
        assert_eq!(Client::new(&address).probable_steps(100 * COST_UNIT), 100, "others are not concerned");
        assert_ne!(client.key(), Client::new(&address).key());
        assert_eq!(client.address_key(), Client::new(&address).address_key());
    }
}
