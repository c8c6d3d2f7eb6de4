//! Every bound in one place. What happens at a bound is said beside it.

/// Longest key. Longer: typed error, nothing written.
pub const MAX_KEY_BYTES: usize = 32 * 1024;
/// Largest value. Larger: typed error.
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// Largest payload of one stream record. Larger: typed error.
pub const MAX_RECORD_BYTES: usize = 8 * 1024 * 1024;
/// Largest encoded command (a commit with all its writes). Larger: typed error.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024 * 1024;
/// Most writes plus conditions in one commit. More: typed error.
pub const MAX_COMMIT_WRITES: usize = 100_000;
/// Most headers on a record. More: typed error.
pub const MAX_HEADERS: usize = 64;
/// Longest keyspace, stream or space name, in bytes. Longer: typed error.
pub const MAX_NAME_BYTES: usize = 255;
/// Most keyspaces in a space. More: typed error.
pub const MAX_KEYSPACES: usize = 10_000;
/// Most streams in a space, deleted ones that are not yet reclaimed included: each costs about 300 bytes
/// of memory. More: typed error.
pub const MAX_STREAMS: usize = 100_000;
/// Commands that one log entry may carry; a longer queue makes more entries.
pub const MAX_ENTRY_COMMANDS: usize = 4096;
/// Bytes after which an entry takes no further command.
pub const MAX_ENTRY_BYTES: usize = 4 * 1024 * 1024;
/// Bytes that may wait in a space's queue. Beyond it: blocking callers wait, async callers get `Overloaded`.
pub const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// Values longer than this stay in the log; the state keeps their position.
pub const DEFAULT_INLINE_VALUE_BYTES: usize = 4 * 1024;
/// The threshold may not be set lower: shorter values are never looked for in the log when a segment is freed.
pub const MIN_INLINE_VALUE_BYTES: usize = 128;

const _: () = assert!(MAX_VALUE_BYTES + MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(MAX_RECORD_BYTES < MAX_COMMAND_BYTES);
