//! Proposals that were taken out of the queue. After their commit, the measured costs of their clients are updated, and
//! addresses with expensive commands that delay other clients pause.
//!
//! Owns: these updates, and the start of the pauses. Does not own: the choice of the proposals (`queue`), or the
//! lengths of the pauses (`turn_pause`).

use std::{sync::Arc, time::Duration};

use crate::{
    client::{Client, ClientAddress},
    pending::Pending,
};

/// Number of steps (units of work) above which a command counts as expensive: about 0.4 ms of work.
pub(super) const EXPENSIVE_STEPS: u64 = 4_000;

/// Proposals that were taken out of the queue: the commands of the next log entries.
#[derive(Debug, Default)]
pub(crate) struct DequeuedProposals {
    /// Proposals, in the order in which they are committed.
    pub(crate) proposals: Vec<Pending>,
    /// Ends of the log entries: the n-th element is the number of proposals in the first n entries together.
    pub(crate) ends: Vec<usize>,
    /// Number of steps (units of work) that each log entry took, in order. Entries that were not applied have no
    /// element.
    pub(crate) steps: Vec<u64>,
    /// Client addresses whose expensive commands among these proposals delay other clients, each with the number of
    /// steps (units of work) that its commands will probably take. These addresses pause afterwards.
    pub(super) delaying: Vec<(Arc<ClientAddress>, u64)>,
}

impl DequeuedProposals {
    /// Updates the measured costs of the clients by the steps that each log entry took.
    pub(crate) fn learn(&self) {
        if self.steps.len() != self.ends.len() {
            return;
        }
        let mut begin = 0;
        for (&end, &steps) in self.ends.iter().zip(&self.steps) {
            learn(&self.proposals[begin..end], steps);
            begin = end;
        }
    }

    /// Begins the pauses of the client addresses whose expensive commands delay other clients. `began` is the monotonic
    /// time at which the commit of the proposals began, `time` its duration.
    pub(crate) fn begin_pauses(&self, began: Duration, time: Duration) {
        let probable: u64 = self.delaying.iter().map(|(_, steps)| steps).sum();
        let taken: u64 = self.steps.iter().sum();
        for (address, steps) in &self.delaying {
            let share = *steps as f64 / probable.max(1) as f64;
            address.pause().begin(began, time.mul_f64(share), (taken as f64 * share) as u64);
        }
    }

    /// Begins pauses like [`begin_pauses`](Self::begin_pauses), but before the commit. Computes the lengths of the
    /// pauses from the steps (units of work) that the proposals will probably take. [`learn`] corrects a pause when a
    /// log entry with commands from the client address is applied.
    pub(crate) fn begin_probable_pauses(&mut self, now: Duration) {
        for (address, steps) in &self.delaying {
            let turn = address.pause().begin_probable(now, *steps);
            let is_of = |client: &Arc<Client>| Arc::ptr_eq(client.address(), address);
            let pending = self.proposals.iter_mut().filter(|pending| pending.client.as_ref().is_some_and(is_of));
            pending.for_each(|pending| pending.turn = turn);
        }
    }

    /// Returns true if these proposals contain expensive commands that delay other clients.
    pub(crate) fn delays_others(&self) -> bool {
        !self.delaying.is_empty()
    }

    pub(crate) fn clear(&mut self) {
        self.proposals.clear();
        self.ends.clear();
        self.steps.clear();
        self.delaying.clear();
    }
}

/// Updates the measured costs of the clients whose commands an entry contains; `steps` is the number of steps (units of
/// work) that the entry took. Also corrects the pause of an address that began with this entry. If the entry has
/// commands of several clients, the cost of each client is unknown. If such an entry took many more steps than
/// expected, the measured costs of the clients with high estimates are dropped, so that their next commands count as
/// expensive and are measured separately.
pub(crate) fn learn(entry: &[Pending], steps: u64) {
    let estimated: u64 = entry.iter().map(|pending| pending.steps.unwrap_or(0)).sum();
    let Some(client) = entry.first().and_then(|pending| pending.client.as_ref()) else { return };
    if estimated <= EXPENSIVE_STEPS {
        return;
    }
    let pausing =
        entry.iter().find(|pending| pending.turn > 0).and_then(|pending| Some((pending, pending.client.as_ref()?)));
    if let Some((pending, client)) = pausing {
        client.address().pause().correct(pending.turn, steps);
    }
    let is_one = entry.iter().all(|other| other.client.as_ref().is_some_and(|c| Arc::ptr_eq(c, client)));
    if is_one {
        client.learn(estimated, steps);
        return;
    }
    let probable: u64 = entry.iter().map(Pending::probable_steps).sum();
    if steps > 2 * probable + 2 * EXPENSIVE_STEPS {
        let expensive = entry.iter().filter(|pending| pending.steps.unwrap_or(0) > EXPENSIVE_STEPS);
        expensive.filter_map(|pending| pending.client.as_ref()).for_each(|client| client.forget());
    }
}
