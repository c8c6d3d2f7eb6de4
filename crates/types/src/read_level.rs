//! Read levels: the promise that a read makes about the age of the data that it returns.

use std::{fmt, str::FromStr};

use crate::Revision;

/// Promise about the age of the state that a read on a cluster's node returns. A node without a cluster always keeps
/// the strongest promise, at no cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum ReadLevel {
    /// The read returns every write that was acknowledged before the read began, on any node. Cost: the leader
    /// exchanges messages with a majority; concurrent reads share this exchange.
    #[default]
    Linearizable,
    /// Makes the same promise as `Linearizable`, as long as no clock of a node runs faster or slower than the others by
    /// more than a quarter. The leader answers within its lease without an exchange of messages.
    Lease,
    /// The read returns the node's own state, which may be out of date by any amount of time.
    Stale,
    /// The read returns the node's own state, but waits until this state contains the given revision. A client that
    /// passes the revision of its last write reads its own writes on any node.
    AtLeast(Revision),
}

/// Prefix of the text of [`ReadLevel::AtLeast`].
const AT_LEAST: &str = "at-least=";

impl fmt::Display for ReadLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Linearizable => f.write_str("linearizable"),
            Self::Lease => f.write_str("lease"),
            Self::Stale => f.write_str("stale"),
            Self::AtLeast(revision) => write!(f, "{AT_LEAST}{revision}"),
        }
    }
}

/// Error returned when a text is not a read level.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown read level {0:?}: use linearizable, lease, stale or at-least=REVISION")]
pub struct UnknownReadLevel(pub String);

impl FromStr for ReadLevel {
    type Err = UnknownReadLevel;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let unknown = || UnknownReadLevel(text.to_owned());
        match text {
            "linearizable" => Ok(Self::Linearizable),
            "lease" => Ok(Self::Lease),
            "stale" => Ok(Self::Stale),
            _ => {
                let digits = text.strip_prefix(AT_LEAST).ok_or_else(unknown)?;
                // `u64::from_str` also reads a sign.
                let revision = digits.parse().ok().filter(|_| digits.bytes().all(|byte| byte.is_ascii_digit()));
                revision.map(|revision| Self::AtLeast(Revision(revision))).ok_or_else(unknown)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_read_as_they_are_shown() {
        for level in [
            ReadLevel::Linearizable,
            ReadLevel::Lease,
            ReadLevel::Stale,
            ReadLevel::AtLeast(Revision(0)),
            ReadLevel::AtLeast(Revision::MAX),
        ] {
            assert_eq!(level.to_string().parse(), Ok(level));
        }
        for wrong in
            ["", "Stale", "at-least", "at-least=", "at-least=+7", "at-least=-1", "at-least=18446744073709551616"]
        {
            assert!(wrong.parse::<ReadLevel>().is_err(), "{wrong}");
        }
    }
}
