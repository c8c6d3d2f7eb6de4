//! Outcomes of a power loss: which unsynced changes survive.
//!
//! Owns: the decision for each single change. Does not own: the definition of a change (see `inode` and
//! `names`).
//!
//! The simulation assumes that the disk writes a sector of 512 bytes completely or not at all. So after a power loss
//! each sector has the synced version or any later one, independently of other sectors, of the length, and of the
//! directory entry. It follows that rewriting a sector with the same prefix keeps the prefix. Synced data survives.

use super::rng::Rng;

/// Outcome of a simulated power loss: the unsynced changes that survive it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Discards all unsynced changes. Each file and directory is left as of its last sync.
    LoseUnsynced,
    /// Keeps all unsynced changes, as if they had been synced just in time.
    KeepUnsynced,
    /// Keeps the given number of first changes, in the order in which they were made, and discards the later ones.
    /// [`SimDisk::unsynced_changes`](super::SimDisk::unsynced_changes) returns the total number of changes.
    KeepPrefix(usize),
    /// Keeps a random subset of the changes, chosen by the seed. The choice is made separately for each sector, each
    /// change of a length, and each name.
    AnySubset(u64),
}

impl PowerLoss {
    /// Chooses one of the outcomes of this enum by a seed. Most seeds give a random subset. Some keep all or none of
    /// the changes, because these outcomes reveal other bugs.
    #[must_use]
    pub fn random(seed: u64, unsynced_changes: usize) -> Self {
        let mut rng = Rng::new(seed);
        match rng.below(8) {
            0 => Self::LoseUnsynced,
            1 => Self::KeepUnsynced,
            2 | 3 => Self::KeepPrefix(rng.below(unsynced_changes as u64 + 1) as usize),
            _ => Self::AnySubset(rng.next()),
        }
    }
}

/// Decides, for one power loss, which unsynced changes survive.
pub(super) enum Survival {
    /// Keeps changes made by operations whose number is below this one, and discards the others.
    Before(u64),
    /// Keeps each change with a probability of `sixteenths` / 16. `sixteenths` is a new random number for each file.
    Random { rng: Rng, sixteenths: u64 },
}

impl Survival {
    /// Prepares the decisions for `loss`. `operations` are the numbers of the operations with unsynced changes,
    /// ascending.
    pub(super) fn new(loss: PowerLoss, operations: &[u64]) -> Self {
        match loss {
            PowerLoss::LoseUnsynced => Self::Before(0),
            PowerLoss::KeepUnsynced => Self::Before(u64::MAX),
            PowerLoss::KeepPrefix(kept) => Self::Before(operations.get(kept).copied().unwrap_or(u64::MAX)),
            PowerLoss::AnySubset(seed) => Self::Random { rng: Rng::new(seed), sixteenths: 8 },
        }
    }

    /// Begins the decisions for another file, or for the directory tree. Kernels write files back separately, so one
    /// file can be completely on the medium while another is not.
    pub(super) fn next_file(&mut self) {
        if let Self::Random { rng, sixteenths } = self {
            *sixteenths = [0, 1, 4, 8, 12, 15, 16][rng.below(7) as usize];
        }
    }

    pub(super) fn keeps(&mut self, operation: u64) -> bool {
        match self {
            Self::Before(bound) => operation < *bound,
            Self::Random { rng, sixteenths } => rng.chance(*sixteenths),
        }
    }
}
