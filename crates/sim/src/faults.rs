//! The script of faults of a simulation, which is derived from the seed alone.
//!
//! Owns: the choice, the time and the duration of each fault. Does not own: carrying out the faults (`cluster`).

use std::{fmt, time::Duration};

use rand::{RngExt, SeedableRng, rngs::SmallRng};

/// Kind of a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum FaultKind {
    /// The node loses power and everything that was not synced. It starts again when the fault ends.
    PowerLoss,
    /// The node loses power in the middle of its writes, some operations after the fault begins. It starts again when
    /// the fault ends.
    PowerCut,
    /// The process is killed; its files keep everything that it wrote. It starts again when the fault ends.
    Kill,
    /// The process is killed and starts again immediately.
    Restarted,
    /// The leader is cut off from some voters, and a second later from the others, which restart at that moment and so
    /// forget their promises to the leader. The clients send nothing meanwhile.
    LostPromises,
    /// The leader is asked to transfer its leadership.
    Transfer,
    /// No message reaches or leaves the node. When the fault ends, the node gets a snapshot, if the others have freed
    /// the log that it lacks, and loses power in the middle of the install, or fails at first to switch to the
    /// snapshot's state.
    CutInstall,
    /// The process is killed, and starts again with other options when the fault ends.
    Reconfigured,
    /// The process is killed, and one bit of its files flips. The node starts again when the fault ends. If it finds
    /// the damage, it is repaired in place with a snapshot of another member, or replaced by a new node if its files no
    /// longer open.
    Flipped,
    /// The node's disk is full, or nearly so.
    FullDisk,
    /// No message reaches or leaves the node.
    Isolated,
    /// The node receives nothing; the others receive its messages.
    Deaf,
    /// The others receive nothing from the node; the node receives their messages.
    Mute,
    /// The link between the node and the next one is cut in both directions.
    Partition,
    /// No fsync of the node returns.
    StuckSync,
    /// Each fsync of the node takes 20 ms longer.
    SlowSync,
    /// One fsync of the node fails, or all of them until the fault ends: of the log, of the state, or of all files. A
    /// node that stops for that starts again. In half of the cases the machine loses power when the fault ends.
    FailingSync,
    /// The process is stopped, and continues when the fault ends.
    Stopped,
    /// The wall clock of the node is stepped.
    ClockStep,
    /// A fifth of all messages is lost.
    Loss,
    /// Messages take up to 50 ms and overtake each other.
    Delay,
    /// A new node takes the place of the node, which is removed permanently. Other faults can begin meanwhile.
    Replaced,
    /// All nodes lose power at once.
    AllPowerLoss,
    /// All disks become slow, and soon afterwards all nodes lose power: much of what was written was not synced.
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

    /// Returns true if a majority of the members still works during this fault, and can answer.
    #[must_use]
    pub const fn leaves_majority(self) -> bool {
        // A leader whose disk is full keeps leading, and its log takes no entry.
        // While the clients are quiet, nothing is answered.
        !matches!(self, Self::AllPowerLoss | Self::SlowThenPowerLoss | Self::FullDisk | Self::LostPromises)
    }

    /// Returns true if the node's process ends, and its disk keeps all that was written.
    #[must_use]
    pub const fn keeps_writes(self) -> bool {
        matches!(self, Self::Kill | Self::Restarted | Self::Reconfigured | Self::Flipped)
    }

    /// Name of the kind in reports and in `--faults`, which takes a list with commas.
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
    /// The node with this number, from 0, among the members.
    Node(u64),
}

/// A fault of the script.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    /// Number of the fault in the script.
    pub number: usize,
    /// Time at which the fault begins.
    pub at: Duration,
    /// Duration of the fault.
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

/// Rule that decides whether the faults of a script may overlap in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Overlap {
    /// About half of the faults begin before the previous one ends, in half of the seeds.
    Allowed,
    /// Each fault begins after the one before it has ended, and the cluster has recovered.
    Never,
}

/// Returns the script of a seed: faults until `end`, of the given kinds, among `nodes` nodes. One in five lasts long.
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
