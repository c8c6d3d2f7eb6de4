//! Settings of a simulation. They determine its whole course.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use crate::{
    faults::{Fault, FaultKind, Overlap, Victim, script},
    plant::Plant,
};

/// Numbers of nodes that a command or an artifact may ask for.
pub const NODES: RangeInclusive<u64> = 1..=9;
/// Numbers of clients that a command or an artifact may ask for.
pub const CLIENTS: RangeInclusive<u64> = 1..=1_000;
/// Numbers of requests per virtual second that a command or an artifact may ask for.
pub const RATE: RangeInclusive<u64> = 1..=100_000;
/// Numbers of subscribers that a command or an artifact may ask for.
pub const SUBSCRIBERS: RangeInclusive<u64> = 0..=1_000;
/// Virtual seconds with faults that a command or an artifact may ask for.
pub const SECONDS: RangeInclusive<u64> = 3..=100_000;

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

    /// Returns the numbers of the faults in the script that the settings do not leave out.
    #[must_use]
    pub fn faults_left(&self) -> Vec<usize> {
        self.script().iter().map(|fault| fault.number).filter(|number| !self.without.contains(number)).collect()
    }

    /// Returns the arguments of `thalweg-sim` that replay the simulation. Settings with default values have no
    /// argument. The command line takes whole seconds and at least one kind of faults.
    #[must_use]
    pub fn replay_arguments(&self) -> Vec<String> {
        let usual = Self::default();
        let mut arguments = vec!["replay".to_owned(), self.seed.to_string()];
        for (option, number, usual) in [
            ("--nodes", self.nodes, usual.nodes),
            ("--clients", self.clients, usual.clients),
            ("--rate", self.rate, usual.rate),
            ("--subscribers", self.subscribers, usual.subscribers),
            ("--seconds", self.lasts.as_secs(), usual.lasts.as_secs()),
        ] {
            if number != usual {
                arguments.extend([option.to_owned(), number.to_string()]);
            }
        }
        if self.kinds != usual.kinds {
            let names: Vec<&str> = self.kinds.iter().map(|kind| kind.name()).collect();
            arguments.extend(["--faults".to_owned(), names.join(",")]);
        }
        if self.overlap == Overlap::Never {
            arguments.push("--apart".to_owned());
        }
        if self.on_leader {
            arguments.push("--on-leader".to_owned());
        }
        if !self.without.is_empty() {
            let numbers: Vec<String> = self.without.iter().map(usize::to_string).collect();
            arguments.extend(["--without".to_owned(), numbers.join(",")]);
        }
        if let Some(plant) = self.plant {
            arguments.extend(["--plant".to_owned(), plant.name()]);
        }
        arguments
    }

    /// Returns the command that replays the simulation, for a shell.
    #[must_use]
    pub fn replay_command(&self) -> String {
        let quoted = |argument: &String| match argument.contains(' ') {
            true => format!("\"{argument}\""),
            false => argument.clone(),
        };
        let arguments: Vec<String> = self.replay_arguments().iter().map(quoted).collect();
        format!("thalweg-sim {}", arguments.join(" "))
    }
}
