//! Settings of a simulation. They determine its whole course.

use std::{collections::BTreeSet, time::Duration};

use crate::{
    faults::{Fault, FaultKind, Overlap, Victim, script},
    plant::Plant,
};

/// Settings of a simulation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Seed of all random decisions.
    pub seed: u64,
    /// Number of nodes.
    pub nodes: u64,
    /// Number of clients.
    pub clients: u64,
    /// Number of requests of all clients together per virtual second.
    pub rate: u64,
    /// Number of subscribers: clients that watch keys or tail the stream, and send no requests.
    pub subscribers: u64,
    /// Virtual time of the part of the simulation in which faults happen.
    pub lasts: Duration,
    /// Kinds of faults that may occur.
    pub kinds: Vec<FaultKind>,
    /// Rule that decides if faults may overlap in time.
    pub overlap: Overlap,
    /// True if all faults hit the leader, to measure the time until the next leader acknowledges a write.
    pub on_leader: bool,
    /// Numbers of the script's faults that are left out.
    pub without: BTreeSet<usize>,
    /// Deliberate bug in the nodes; `None` for correct nodes.
    pub plant: Option<Plant>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            seed: 1,
            nodes: 3,
            clients: 8,
            rate: 200,
            subscribers: 4,
            lasts: Duration::from_secs(20),
            kinds: FaultKind::ALL.to_vec(),
            overlap: Overlap::Allowed,
            on_leader: false,
            without: BTreeSet::new(),
            plant: None,
        }
    }
}

impl Settings {
    /// Returns the script of faults without the faults that the settings leave out.
    #[must_use]
    pub fn script(&self) -> Vec<Fault> {
        let mut faults = script(self.seed, self.lasts, self.nodes, &self.kinds, self.overlap);
        if self.on_leader {
            faults.iter_mut().for_each(|fault| fault.victim = Victim::Leader);
        }
        faults
    }
}
