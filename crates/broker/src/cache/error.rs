//! Errors returned by cache operations.

use thalweg_types::{
    classified,
    limits::{MAX_CACHES, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES, MIN_CACHE_BYTES},
};

use super::entry::{ENTRY_BYTES, Version};

/// Error returned by a cache operation. The cache is unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// The key is longer than [`MAX_KEY_BYTES`].
    #[error("a key has at most {MAX_KEY_BYTES} bytes, this one has {bytes}")]
    KeyTooLong {
        /// Length in bytes of the key that is too long.
        bytes: usize,
    },
    /// The value is longer than [`MAX_VALUE_BYTES`].
    #[error("a value has at most {MAX_VALUE_BYTES} bytes, this one has {bytes}")]
    ValueTooLong {
        /// Length in bytes of the value that is too long.
        bytes: usize,
    },
    /// The entry is too large for this cache. A cache holds each entry in one of its shards, so an entry must fit into
    /// a shard.
    #[error(
        "key, value and {} bytes for the entry add up to {bytes}; an entry of this cache has at most {max}: use a larger cache",
        ENTRY_BYTES
    )]
    EntryTooLarge {
        /// Bytes of the rejected entry: its key, its value, and the overhead of an entry.
        bytes: u64,
        /// Maximum bytes of an entry in this cache, including the overhead of an entry.
        max: u64,
    },
    /// The key does not meet the condition of the operation.
    #[error("the condition is false: {}", match version { Some(_) => "the key exists, with another version or value", None => "the key does not exist" })]
    ConditionFailed {
        /// Current version of the key; `None` if the key does not exist.
        version: Option<Version>,
    },
    /// The value of the key is not a decimal number, so it cannot be used as a counter.
    #[error("the value is not a counter, which is a 64-bit decimal number without leading zeros")]
    NotANumber,
    /// The sum exceeds the range of a counter, which is a signed 64-bit number.
    #[error("{value} plus {delta} exceeds the range of a 64-bit counter")]
    Overflow {
        /// Current value of the counter, to which the number was to be added.
        value: i64,
        /// Number that was to be added to the counter.
        delta: i64,
    },
}

classified!(CacheError {
    Self::KeyTooLong { .. } => "key_too_long", Fix;
    Self::ValueTooLong { .. } => "value_too_long", Fix;
    Self::EntryTooLarge { .. } => "cache_entry_too_large", Fix;
    Self::ConditionFailed { .. } => "condition_failed", Fix;
    Self::NotANumber => "not_a_number", Fix;
    Self::Overflow { .. } => "overflow", Fix;
});

/// Error returned when a cache cannot be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateCacheError {
    /// A cache of that name exists.
    #[error("a cache of that name exists already")]
    Exists,
    /// The node has [`MAX_CACHES`] caches, which is the maximum.
    #[error("a node has at most {MAX_CACHES} caches: drop a cache")]
    TooMany,
    /// The name of the cache is empty or longer than [`MAX_NAME_BYTES`].
    #[error("a cache's name has 1 to {MAX_NAME_BYTES} bytes, this one has {bytes}")]
    Name {
        /// Length in bytes of the rejected cache name.
        bytes: usize,
    },
    /// The capacities of all caches together have a limit. This limit leaves too few bytes for the new cache.
    #[error(
        "all caches together hold at most {max} bytes, of which {left} are free: drop one, or create a smaller one"
    )]
    NoRoom {
        /// Maximum capacity in bytes of all caches together.
        max: u64,
        /// Number of bytes that are still available for caches.
        left: u64,
    },
    /// The clients of one address have created caches with as many bytes as this address may use. The remaining bytes
    /// are kept for other addresses.
    #[error(
        "the clients of this address have created their share of caches; {left} bytes are kept for others: drop one, or create a smaller one"
    )]
    NoShare {
        /// Number of bytes that are free, but kept for caches of clients at other addresses than the rejected client's.
        left: u64,
    },
    /// The clients of one address have created as many caches as this address may have. The remaining caches are kept
    /// for other addresses.
    #[error("the clients of this address have created their share of the {MAX_CACHES} caches: drop a cache")]
    TooManyOfAddress,
    /// The requested size of the cache is below [`MIN_CACHE_BYTES`].
    #[error("a cache holds at least {MIN_CACHE_BYTES} bytes, this one would hold {bytes}")]
    TooSmall {
        /// Size of the cache that was requested, in bytes.
        bytes: u64,
    },
}

classified!(CreateCacheError {
    Self::Exists => "cache_exists", Fix;
    Self::TooMany | Self::TooManyOfAddress => "too_many_caches", Fix;
    Self::Name { .. } => "cache_name", Fix;
    Self::NoRoom { .. } | Self::NoShare { .. } => "caches_full", Fix;
    Self::TooSmall { .. } => "cache_too_small", Fix;
});
