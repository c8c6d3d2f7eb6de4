//! Durability levels: the promise that an acknowledgement makes.

use std::{fmt, str::FromStr};

/// Durability that an acknowledgement (ack) promises for a write, weakest level first; `a < b` means that `b` promises
/// more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
#[repr(u8)]
pub enum Durability {
    /// Accepted: the write is in the memory of the server process. A crash of the process loses it.
    None = 0,
    /// Written to the kernel: the write survives a crash of the process, but not a power loss.
    Os = 1,
    /// Like `Os`, and in addition a background fsync puts the write on disk at most the configured interval later.
    Interval = 2,
    /// The write was fsynced on this node.
    #[default]
    Disk = 3,
    /// The write was fsynced on a majority of nodes. On a single node this level equals `Disk`.
    Quorum = 4,
}

impl Durability {
    /// All durability levels, weakest first.
    pub const ALL: [Self; 5] = [Self::None, Self::Os, Self::Interval, Self::Disk, Self::Quorum];

    /// Name of the level in configurations, requests and replies.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Os => "os",
            Self::Interval => "interval",
            Self::Disk => "disk",
            Self::Quorum => "quorum",
        }
    }

    /// Returns true if the ack for a write at this level waits for an fsync.
    #[must_use]
    pub const fn waits_for_sync(self) -> bool {
        matches!(self, Self::Disk | Self::Quorum)
    }
}

impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error returned when a text is not the name of a durability level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown durability {0:?}: use none, os, interval, disk or quorum")]
pub struct UnknownDurability(pub String);

impl FromStr for Durability {
    type Err = UnknownDurability;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Self::ALL.into_iter().find(|level| level.name() == text).ok_or_else(|| UnknownDurability(text.to_owned()))
    }
}
