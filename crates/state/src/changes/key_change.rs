//! One change of a key.

use thalweg_types::KeyspaceId;

/// What happened to a key, or to all keys with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<'a> {
    /// It was set.
    Put {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
        /// Its value.
        value: &'a [u8],
    },
    /// It was deleted, or would have been had it been there: a blind delete does not look.
    Delete {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// Its time was up.
    Expire {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The key.
        key: &'a [u8],
    },
    /// All keys with the prefix were deleted.
    DeletePrefix {
        /// The keyspace.
        keyspace: KeyspaceId,
        /// The prefix; empty for the whole keyspace.
        prefix: &'a [u8],
    },
}

impl<'a> KeyChange<'a> {
    /// The keyspace, and the key or prefix.
    #[must_use]
    pub fn target(&self) -> (KeyspaceId, &'a [u8]) {
        match *self {
            Self::Put { keyspace, key, .. } | Self::Delete { keyspace, key } | Self::Expire { keyspace, key } => {
                (keyspace, key)
            }
            Self::DeletePrefix { keyspace, prefix } => (keyspace, prefix),
        }
    }
}
