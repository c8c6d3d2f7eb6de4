//! The script of faults of a simulation, which is derived from the seed alone.
//!
//! Owns: the choice, the time and the duration of each fault. Does not own: carrying out the faults (`cluster`).

use std::{fmt, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Kind of a fault that the simulation causes on purpose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The node loses power and everything that was not synced. It starts again when the fault ends.
    PowerLoss,
    /// The node loses power during its writes: some disk operations after the fault begins. It starts again when the
    /// fault ends.
    PowerCut,
    /// The process is killed; its files keep everything that it wrote. It starts again when the fault ends.
    Kill,
    /// The process is killed and starts again immediately.
    Restarted,
    /// The leader is cut off from some voters. About a second later it is cut off from the other voters too, and these
    /// restart at that moment. By the restart they forget that they promised their votes to the leader. The clients
    /// send nothing during the fault.
    LostPromises,
    /// The leader is asked to transfer its leadership.
    Transfer,
    /// No message reaches or leaves the node. When the fault ends, the node gets a snapshot if the other nodes have
    /// freed log entries that it lacks. While the node installs this snapshot, either it loses power, or its first
    /// attempts to switch to the snapshot's state fail.
    CutInstall,
    /// The process is killed, and starts again with other options when the fault ends.
    Reconfigured,
    /// The process is killed, and one bit of its files flips. The node starts again when the fault ends. If the node
    /// finds the damage, it is repaired in place with a snapshot of another member. If its files no longer open, it is
    /// replaced by a new node.
    Flipped,
    /// The node's disk is full or nearly full.
    FullDisk,
    /// No message reaches or leaves the node.
    Isolated,
    /// The node receives no messages; the other nodes receive its messages.
    Deaf,
    /// The other nodes receive no messages from the node; the node receives their messages.
    Mute,
    /// The link between the node and the node with the next number is cut in both directions.
    Partition,
    /// No fsync of the node returns.
    StuckSync,
    /// Each fsync of the node takes 20 ms longer.
    SlowSync,
    /// One fsync of the node fails, or all fsyncs until the fault ends. They are fsyncs of the log, of the state, or of
    /// all files. If the node stops because of this, the simulation restarts it. In half of the cases the machine loses
    /// power when the fault ends.
    FailingSync,
    /// The process is stopped, and continues when the fault ends.
    Stopped,
    /// The wall clock of the node suddenly shows another time.
    ClockStep,
    /// A fifth of all messages is lost.
    Loss,
    /// Messages take up to 50 ms and overtake each other.
    Delay,
    /// A new node replaces the node, which is removed permanently. Other faults can begin in the meantime.
    Replaced,
    /// All nodes lose power at once.
    AllPowerLoss,
    /// All disks become slow. Soon afterwards, while many writes are not synced yet, all nodes lose power.
    SlowThenPowerLoss,
}

impl FaultKind {
    /// All kinds of faults.
    pub const ALL: [Self; 24] = [
        Self::PowerLoss,
        Self::PowerCut,
        Self::Kill,
        Self::Restarted,
        Self::LostPromises,
        Self::Transfer,
        Self::CutInstall,
        Self::Reconfigured,
        Self::Flipped,
        Self::FullDisk,
        Self::Isolated,
        Self::Deaf,
        Self::Mute,
        Self::Partition,
        Self::StuckSync,
        Self::SlowSync,
        Self::FailingSync,
        Self::Stopped,
        Self::ClockStep,
        Self::Loss,
        Self::Delay,
        Self::Replaced,
        Self::AllPowerLoss,
        Self::SlowThenPowerLoss,
    ];

    /// Returns true if a majority of the members works during this fault, so that the cluster can answer.
    #[must_use]
    pub const fn leaves_majority(self) -> bool {
        // A leader with a full disk stays the leader, although its log takes no entry. During `LostPromises` the
        // clients are quiet, so no write can be answered.
        !matches!(self, Self::AllPowerLoss | Self::SlowThenPowerLoss | Self::FullDisk | Self::LostPromises)
    }

    /// Returns true if the node's process ends and the disk keeps all of its writes.
    #[must_use]
    pub const fn keeps_writes(self) -> bool {
        matches!(self, Self::Kill | Self::Restarted | Self::Reconfigured | Self::Flipped)
    }

    /// Returns the kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Name of the kind in reports and in the list of the option `--faults`.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::PowerLoss => "power loss",
            Self::PowerCut => "power cut",
            Self::Kill => "kill",
            Self::Restarted => "restarted",
            Self::LostPromises => "lost promises",
            Self::Transfer => "transfer",
            Self::CutInstall => "cut install",
            Self::Reconfigured => "reconfigured",
            Self::Flipped => "flipped bit",
            Self::FullDisk => "full disk",
            Self::Isolated => "isolated",
            Self::Deaf => "deaf",
            Self::Mute => "mute",
            Self::Partition => "partition",
            Self::StuckSync => "stuck fsync",
            Self::SlowSync => "slow fsync",
            Self::FailingSync => "failing fsync",
            Self::Stopped => "stopped",
            Self::ClockStep => "clock step",
            Self::Loss => "loss",
            Self::Delay => "delay",
            Self::Replaced => "replaced",
            Self::AllPowerLoss => "power loss of all",
            Self::SlowThenPowerLoss => "slow then power loss",
        }
    }
}

/// Node that a fault hits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victim {
    /// The node that leads when the fault begins.
    Leader,
    /// The node at this position among the members, counted from 0.
    Node(u64),
}

/// One planned fault in the script of a simulation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the fault in the script.
    pub number: usize,
    /// Virtual time at which the fault begins.
    pub at: Duration,
    /// Time for which the fault lasts.
    pub lasts: Duration,
    /// Kind of the fault.
    pub kind: FaultKind,
    /// Node that the fault hits.
    pub victim: Victim,
}

impl fmt::Display for Victim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Leader => f.write_str("the leader"),
            Self::Node(number) => write!(f, "member {number}"),
        }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { number, victim, .. } = self;
        write!(f, "fault {number}: {} of {victim} for {} ms", self.kind.name(), self.lasts.as_millis())
    }
}

/// Rule that decides if the faults of a script may overlap in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// In half of the seeds, about half of the faults begin before the previous fault ends.
    Allowed,
    /// Each fault begins after the previous one has ended and the cluster has recovered.
    Never,
}

/// Returns the script of a seed: faults of the given kinds on `nodes` nodes until the time `end`. One fault in five
/// lasts long.
#[must_use]
pub fn script(seed: u64, end: Duration, nodes: u64, kinds: &[FaultKind], overlap: Overlap) -> Vec<Fault> {
    let mut rng = SmallRng::seed_from_u64(seed ^ 0x5cf1_b9a3_77d2_e10f);
    let never = overlap == Overlap::Never || rng.random_bool(0.5);
    let mut at = Duration::from_millis(2_500);
    let mut faults = Vec::new();
    while at < end && !kinds.is_empty() {
        let kind = kinds[rng.random_range(0..kinds.len())];
        let victim = if rng.random_bool(0.6) { Victim::Leader } else { Victim::Node(rng.random_range(0..nodes)) };
        let millis = if rng.random_bool(0.2) { 3_000..7_000 } else { 200..2_500 };
        let lasts = Duration::from_millis(rng.random_range(millis));
        faults.push(Fault { number: faults.len(), at, lasts, kind, victim });
        let is_apart = rng.random_bool(0.5) || never;
        let pause = if is_apart { 2_000..4_000 } else { 300..2_000 };
        at += Duration::from_millis(rng.random_range(pause)) + if is_apart { lasts } else { Duration::ZERO };
    }
    faults
}
