//! Bounds of commands that the session implements.

/// Maximum number of arguments of a command about the server or its clients, each of which costs a search.
pub(crate) const MAX_SESSION_ARGUMENTS: usize = 1024;
/// Error reply to a pattern above the limit of
/// [`MAX_REDIS_PATTERN_BYTES`](thalweg_types::limits::MAX_REDIS_PATTERN_BYTES).
pub(crate) const PATTERN_TOO_LONG: &str = "ERR patterns are at most 4096 bytes long";
/// Maximum number of arguments of a write in a cache that the thread of its client executes at once. Longer ones are
/// executed in parts, by another thread.
pub(crate) const MAX_CACHE_ARGUMENTS: usize = 2_001;
/// Maximum steps of a transaction in a cache, about 10 ms. The commands after them are not executed.
pub(crate) const MAX_CACHE_STEPS: u64 = 200_000;
