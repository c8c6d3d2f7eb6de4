//! Why a cache did not do what it was asked.

use thalweg_types::{
    Action, Classified,
    limits::{MAX_CACHES, MAX_KEY_BYTES, MAX_NAME_BYTES, MAX_VALUE_BYTES, MIN_CACHE_BYTES},
};

use super::Version;

/// Why a cache did not do what it was asked. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Longer than [`MAX_KEY_BYTES`].
    #[error("a key has at most {MAX_KEY_BYTES} bytes, this one has {bytes}")]
    KeyTooLong {
        /// How many.
        bytes: usize,
    },
    /// Longer than [`MAX_VALUE_BYTES`].
    #[error("a value has at most {MAX_VALUE_BYTES} bytes, this one has {bytes}")]
    ValueTooLong {
        /// How many.
        bytes: usize,
    },
    /// More than a shard of this cache holds.
    #[error(
        "key, value and {} bytes for the entry come to {bytes}, an entry of this cache has at most {max}: give the cache more",
        super::ENTRY_BYTES
    )]
    EntryTooLarge {
        /// What it comes to.
        bytes: u64,
        /// What it may come to.
        max: u64,
    },
    /// The condition did not hold.
    #[error("the condition did not hold: {}", match version { Some(_) => "the key is there, with another version or value", None => "the key is not there" })]
    ConditionFailed {
        /// The version that is there, if the key is.
        version: Option<Version>,
    },
    /// What is there is no counter.
    #[error("the value is not a decimal number of 64 bits, as adding writes it")]
    NotANumber,
    /// The sum does not fit.
    #[error("{value} and {delta} come to more than a counter of 64 bits holds")]
    Overflow {
        /// What is there.
        value: i64,
        /// What was to be added.
        delta: i64,
    },
}

impl Classified for CacheError {
    fn code(&self) -> &'static str {
        match self {
            Self::KeyTooLong { .. } => "key_too_long",
            Self::ValueTooLong { .. } => "value_too_long",
            Self::EntryTooLarge { .. } => "cache_entry_too_large",
            Self::ConditionFailed { .. } => "condition_failed",
            Self::NotANumber => "not_a_number",
            Self::Overflow { .. } => "overflow",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}

/// Why a cache was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateCacheError {
    /// There is one of that name.
    #[error("there is a cache of that name")]
    Exists,
    /// [`MAX_CACHES`] of one node.
    #[error("a node has at most {MAX_CACHES} caches: drop one")]
    TooMany,
    /// A name has 1 to [`MAX_NAME_BYTES`].
    #[error("a cache's name has 1 to {MAX_NAME_BYTES} bytes, this one has {bytes}")]
    Name {
        /// How many.
        bytes: usize,
    },
    /// More than is left of what all caches may come to.
    #[error("all caches together hold at most {max} bytes, {left} of them are free: drop one, or ask for less")]
    NoRoom {
        /// What they may come to.
        max: u64,
        /// What is left of it.
        left: u64,
    },
    /// Less than [`MIN_CACHE_BYTES`].
    #[error("a cache holds at least {MIN_CACHE_BYTES} bytes, this one would hold {bytes}")]
    TooSmall {
        /// How many.
        bytes: u64,
    },
}

impl Classified for CreateCacheError {
    fn code(&self) -> &'static str {
        match self {
            Self::Exists => "cache_exists",
            Self::TooMany => "too_many_caches",
            Self::Name { .. } => "cache_name",
            Self::NoRoom { .. } => "caches_full",
            Self::TooSmall { .. } => "cache_too_small",
        }
    }

    fn action(&self) -> Action {
        Action::Fix
    }
}
