//! Kinds of operations of a scenario, and their weights.

use rand::RngExt as _;

use crate::random::Generator;

/// Kind of an operation of a scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Reads a key's value.
    Read,
    /// Sets the value of a key that already has one.
    Update,
    /// Sets the value of a new key.
    Insert,
    /// Reads several keys in order. The first one has a value.
    Scan,
    /// Reads a key's value, and sets it after the reply.
    ReadModifyWrite,
    /// Appends records to the stream.
    Append,
    /// Reads records of the stream.
    ReadRecords,
    /// Fetches records as a member of the group, and acknowledges them after the reply.
    Fetch,
    /// Publishes messages to the subject.
    Publish,
    /// Reads a key of the cache.
    CacheGet,
    /// Sets a key of the cache.
    CachePut,
    /// Removes a key from the cache.
    CacheDelete,
}

impl Kind {
    /// All kinds of operations. The position of a kind is its number.
    pub(super) const ALL: [Self; 12] = [
        Self::Read,
        Self::Update,
        Self::Insert,
        Self::Scan,
        Self::ReadModifyWrite,
        Self::Append,
        Self::ReadRecords,
        Self::Fetch,
        Self::Publish,
        Self::CacheGet,
        Self::CachePut,
        Self::CacheDelete,
    ];

    /// Returns the name of the kind in scenario files.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Update => "update",
            Self::Insert => "insert",
            Self::Scan => "scan",
            Self::ReadModifyWrite => "read_modify_write",
            Self::Append => "append",
            Self::ReadRecords => "read_records",
            Self::Fetch => "fetch",
            Self::Publish => "publish",
            Self::CacheGet => "cache_get",
            Self::CachePut => "cache_put",
            Self::CacheDelete => "cache_delete",
        }
    }

    /// Returns true if the operation changes data that the server stores. A fetch does, because the server records
    /// deliveries.
    pub(super) fn writes(self) -> bool {
        let writes_keys = matches!(self, Self::Update | Self::Insert | Self::ReadModifyWrite);
        writes_keys || matches!(self, Self::Append | Self::Fetch | Self::CachePut | Self::CacheDelete)
    }

    /// Returns true if the operation uses a key of the keyspace or of the cache.
    pub(super) fn has_key(self) -> bool {
        self.uses_keyspace() || self.uses_cache()
    }

    /// Returns true if the operation uses the cache.
    pub(super) fn uses_cache(self) -> bool {
        matches!(self, Self::CacheGet | Self::CachePut | Self::CacheDelete)
    }

    /// Returns true if the operation uses the keyspace.
    pub(super) fn uses_keyspace(self) -> bool {
        matches!(self, Self::Read | Self::Update | Self::Insert | Self::Scan | Self::ReadModifyWrite)
    }

    /// Returns true if the operation uses the stream.
    pub(super) fn uses_stream(self) -> bool {
        matches!(self, Self::Append | Self::ReadRecords | Self::Fetch)
    }
}

/// Weights of the kinds of operations. Operations are chosen at random by these weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mix {
    /// Weight of each kind, in the order of [`Kind::ALL`].
    weights: [u32; Kind::ALL.len()],
    total: u64,
}

impl Mix {
    /// Creates a mix from the weights of the first kinds, in the order of [`Kind::ALL`]. All further kinds have the
    /// weight 0.
    pub(super) fn new<const N: usize>(first: [u32; N]) -> Self {
        let mut weights = [0; Kind::ALL.len()];
        weights[..N].copy_from_slice(&first);
        Self { weights, total: weights.iter().map(|weight| u64::from(*weight)).sum() }
    }

    /// Returns true if all kinds of operations have the weight 0.
    pub(super) fn is_empty(&self) -> bool {
        self.total == 0
    }

    /// Returns the kinds of operations whose weight is above 0.
    pub(super) fn kinds(&self) -> impl Iterator<Item = Kind> + '_ {
        Kind::ALL.into_iter().filter(|kind| self.weights[*kind as usize] > 0)
    }

    /// Returns true if the mix has a kind of operation, with a weight above 0, for which `is` returns true.
    pub(super) fn has(&self, is: impl Fn(Kind) -> bool) -> bool {
        self.kinds().any(is)
    }

    /// Returns the share of the operations that are of this kind, from 0 to 1.
    pub(super) fn share(&self, kind: Kind) -> f64 {
        f64::from(self.weights[kind as usize]) / self.total as f64
    }

    /// Chooses the kind of the next operation at random. The mix must not be empty.
    #[inline]
    pub(super) fn choose(&self, rng: &mut Generator) -> Kind {
        let mut at = rng.random_range(0..self.total);
        for kind in Kind::ALL {
            match at.checked_sub(u64::from(self.weights[kind as usize])) {
                Some(rest) => at = rest,
                None => return kind,
            }
        }
        unreachable!("the number is below the sum of the weights")
    }

    /// Describes the mix in one line: the kinds of operations with their weights.
    pub(super) fn describe(&self) -> String {
        let part = |kind: Kind| format!("{} {:.1} %", kind.name(), 100.0 * self.share(kind)).replace(".0 %", " %");
        self.kinds().map(part).collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::random::generator;

    #[test]
    fn kinds_are_chosen_by_their_weights() {
        let (mix, mut rng) = (Mix::new([95, 0, 5, 0, 0]), generator(1));
        let mut counts = [0; Kind::ALL.len()];
        (0..100_000).for_each(|_| counts[mix.choose(&mut rng) as usize] += 1);
        assert!((4500..5500).contains(&counts[Kind::Insert as usize]), "{counts:?}");
        assert_eq!(counts.iter().sum::<u32>(), counts[0] + counts[2], "{counts:?}");
        assert_eq!(mix.describe(), "read 95 %, insert 5 %");
        assert_eq!(Mix::new([2, 1, 0, 0, 0]).describe(), "read 66.7 %, update 33.3 %");
    }
}
