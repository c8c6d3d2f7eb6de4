//! One change of a key, as watches see it.

use thalweg_types::KeyspaceId;

/// A change of one key, or of all keys with a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyChange<'a> {
    /// The key was set.
    Put {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key as the user gave it.
        key: &'a [u8],
        /// Value that the key was set to.
        value: &'a [u8],
    },
    /// The key was deleted. A blind delete, which does not read the key, reports this even if the key did not exist.
    Delete {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key as the user gave it.
        key: &'a [u8],
    },
    /// The key was removed after its deadline or its lease's deadline.
    Expire {
        /// Keyspace of the key.
        keyspace: KeyspaceId,
        /// Key as the user gave it.
        key: &'a [u8],
    },
    /// All keys with the prefix were deleted.
    DeletePrefix {
        /// Keyspace of the keys.
        keyspace: KeyspaceId,
        /// The prefix of the deleted keys; empty for the whole keyspace.
        prefix: &'a [u8],
    },
}

impl<'a> KeyChange<'a> {
    /// Returns the keyspace, and the changed key or the deleted prefix.
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
