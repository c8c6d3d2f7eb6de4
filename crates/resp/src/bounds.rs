//! Bounds of the commands that a client's session executes itself, without a batched database (one that replies after a
//! commit, such as a keyspace).

/// Maximum number of arguments of a command about the server or its clients, such as `CONFIG` or `CLIENT`. The server
/// searches for each argument, for example among its parameters or clients.
pub(crate) const MAX_SESSION_ARGUMENTS: usize = 1024;
/// Error reply to a pattern that is longer than
/// [`MAX_REDIS_PATTERN_BYTES`](thalweg_types::limits::MAX_REDIS_PATTERN_BYTES).
pub(crate) const PATTERN_TOO_LONG: &str = "ERR patterns are at most 4096 bytes long";
/// Maximum number of arguments of a write to a cache that the client's thread executes in one piece. Another thread
/// executes longer writes in parts.
pub(crate) const MAX_CACHE_ARGUMENTS: usize = 2_001;
/// Maximum steps of work (units of cost of commands) that one transaction may use in a cache, about 10 ms. The commands
/// of the transaction after this maximum are not executed.
pub(crate) const MAX_CACHE_STEPS: u64 = 200_000;
