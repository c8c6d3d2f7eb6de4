//! Which unsynced changes a power loss keeps.
//!
//! Owns: the decision, one change at a time. Does not own: what a change is (see `inode` and `names`).
//!
//! The contract, and thereby the media assumption: a sector of 512 bytes is written whole or not at all.
//! So after a power loss each sector holds one of the versions it had since the last successful sync,
//! or the synced one; which one is independent of every other sector, of the length, and of the
//! directory entry. Rewriting a sector with the same prefix therefore keeps the prefix. What was synced
//! is there.

use super::rng::Rng;

/// What a power loss leaves of the changes that were not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerLoss {
    /// Nothing: the state of the last syncs.
    LoseUnsynced,
    /// Everything, as if all had been synced just in time.
    KeepUnsynced,
    /// The first changes, in the order in which they were made, and none after them; see
    /// [`SimDisk::unsynced_changes`](super::SimDisk::unsynced_changes) for how many there are.
    KeepPrefix(usize),
    /// Any subset, drawn from the seed: sector by sector, length by length, entry by entry.
    AnySubset(u64),
}

impl PowerLoss {
    /// One of the ways above, drawn from a seed; often a subset, now and then a pure one, which is where
    /// code that is only careful about chaos fails.
    #[must_use]
    pub fn drawn(seed: u64, unsynced_changes: usize) -> Self {
        let mut rng = Rng::new(seed);
        match rng.below(8) {
            0 => Self::LoseUnsynced,
            1 => Self::KeepUnsynced,
            2 | 3 => Self::KeepPrefix(rng.below(unsynced_changes as u64 + 1) as usize),
            _ => Self::AnySubset(rng.next()),
        }
    }
}

/// Answers, for one power loss, whether a change is kept.
pub(super) enum Survival {
    /// Changes made by operations below this number.
    Before(u64),
    /// Each with a chance of so many sixteenths, drawn anew for each file.
    Random { rng: Rng, sixteenths: u64 },
}

impl Survival {
    /// `operations` are those with unsynced changes, ascending.
    pub(super) fn new(loss: PowerLoss, operations: &[u64]) -> Self {
        match loss {
            PowerLoss::LoseUnsynced => Self::Before(0),
            PowerLoss::KeepUnsynced => Self::Before(u64::MAX),
            PowerLoss::KeepPrefix(kept) => Self::Before(operations.get(kept).copied().unwrap_or(u64::MAX)),
            PowerLoss::AnySubset(seed) => Self::Random { rng: Rng::new(seed), sixteenths: 8 },
        }
    }

    /// The questions that follow concern another file, or the directory tree. Files are written back
    /// apart, so one may be wholly on the medium while another is not.
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
