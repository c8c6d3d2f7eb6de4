//! Every bound in one place. What happens at a bound is said beside it.

use std::time::Duration;

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
/// Most bytes of keys and values that a transaction's reads may come to. More: typed outcome, nothing happens.
pub const MAX_TRANSACTION_RESULT_BYTES: usize = 16 * 1024 * 1024;
/// Most pairs of one scan within a transaction. More: the page ends there and says where to go on.
pub const MAX_TRANSACTION_SCAN_ITEMS: usize = 1000;
/// Most rows that one scan within a transaction looks at, those of deleted keys included. More: as above.
pub const MAX_TRANSACTION_SCAN_ROWS: usize = 20_000;
/// Most rows that a command's conditions on ranges look at together, those of deleted keys included: bounds how
/// long it holds up others. More: typed error, nothing happens.
pub const MAX_CONDITION_ROWS: usize = 20_000;
/// Most deletes by prefix in one transaction. More: typed outcome, nothing happens.
pub const MAX_TRANSACTION_PREFIX_DELETES: usize = 16;
/// Rows that a delete by prefix removes at once. Where there are more they are hidden, and swept later.
pub const MAX_EAGER_PREFIX_ROWS: usize = 64;
/// Most deleted prefixes of a space that wait to be swept, in keyspaces with history each delete of the same prefix.
/// More: typed outcome, nothing happens; sweeping goes on in the background.
pub const MAX_PENDING_CLEARS: usize = 1024;
/// Most headers on a record. More: typed error.
pub const MAX_HEADERS: usize = 64;
/// Longest keyspace, stream or space name, in bytes. Longer: typed error.
pub const MAX_NAME_BYTES: usize = 255;
/// Most keyspaces in a space. More: typed error.
pub const MAX_KEYSPACES: usize = 10_000;
/// Most streams in a space, deleted ones whose producers are not all removed yet included: each costs 200 to 300 bytes
/// of memory, for its head and its name. More: typed error.
pub const MAX_STREAMS: usize = 2_000_000;
/// Longest id of a producer. Longer: typed error.
pub const MAX_PRODUCER_ID_BYTES: usize = 64;
/// Results that a stream keeps of each producer: how far back a repeated append gets its first answer.
/// Older ones: typed error, never a second append.
pub const PRODUCER_RESULTS: u64 = 64;
/// Producers that a stream remembers, each with about 4 KiB of state at most (results and rows). One more
/// evicts [`PRODUCER_EVICTIONS`] of those that were silent longest: they must begin anew. A commit evicts none that it
/// names, and may name as many of a stream: with more of them, typed outcome.
pub const MAX_STREAM_PRODUCERS: u32 = 1000;
/// Producers evicted at a time, so that looking for the oldest is paid once for many.
pub const PRODUCER_EVICTIONS: usize = 64;
/// A producer that was silent for longer, in the time of the entries, is forgotten.
pub const PRODUCER_MEMORY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Most consumer groups in a space. More: typed error.
pub const MAX_GROUPS: usize = 10_000;
/// Most members of a consumer group. A new one takes the place of those that hold nothing and have not
/// fetched for [`MEMBER_IDLE_SECONDS`]; if there are none: typed error.
pub const MAX_GROUP_MEMBERS: usize = 1024;
/// A member that holds nothing may be forgotten after so long without a fetch.
pub const MEMBER_IDLE_SECONDS: u64 = 3600;
/// Longest name of a member, in bytes. Longer: typed error.
pub const MAX_MEMBER_NAME_BYTES: usize = 255;
/// Most records of a consumer group that wait for an ack; a group's own bound may be lower. Each costs up
/// to about 100 bytes of memory. At the bound nothing new is delivered until some are acked.
pub const MAX_GROUP_PENDING: u32 = 100_000;
/// Most records that one fetch delivers. A larger wish is cut to it.
pub const MAX_FETCH_RECORDS: u32 = 1000;
/// Most key hashes that a fetch carries: how far a group in order per key looks ahead at a time.
pub const MAX_FETCH_KEYS: usize = 4096;
/// Most ranges of offsets in one ack, nack or extension. More: typed error.
pub const MAX_SETTLED_RANGES: usize = 10_000;
/// Longest reason of a nack, in bytes. Longer ones are cut.
pub const MAX_NACK_REASON_BYTES: usize = 1024;
/// Most fetches that wait for records at a time, over all consumer groups. More: typed error, retry.
pub const MAX_WAITING_FETCHES: usize = 10_000;
/// Most records that a receiver of pushed deliveries may hold unsettled, each with 16 bytes of memory. A larger
/// wish is cut to it.
pub const MAX_CREDIT_RECORDS: u32 = 4_000;
/// Most bytes that it may hold unsettled. A larger wish is cut to it.
pub const MAX_CREDIT_BYTES: u64 = 64 * 1024 * 1024;
/// How long a compacted stream keeps a tombstone if its configuration does not say.
pub const DEFAULT_TOMBSTONE_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Memory for the keys of a stream that is being compacted; more keys make more passes.
pub const MAX_COMPACTION_KEY_BYTES: usize = 32 * 1024 * 1024;
/// Batches that compaction replaces at a time.
pub const COMPACTION_BATCHES: usize = 1000;
/// About so many bytes of batches does compaction replace at a time: bounds a sparse batch, and how long
/// other writers wait for it.
pub const COMPACTION_BYTES: u64 = 1024 * 1024;
/// Bytes that compaction reads in one round of maintenance.
pub const COMPACTION_ROUND_BYTES: u64 = 32 * 1024 * 1024;
/// Commands that one log entry may carry; a longer queue makes more entries.
pub const MAX_ENTRY_COMMANDS: usize = 4096;
/// Bytes after which an entry takes no further command.
pub const MAX_ENTRY_BYTES: usize = 4 * 1024 * 1024;
/// Log segments in which every entry fits. A node that shares a space with others must have segments of at least so many
/// bytes, because it can't refuse what the others have agreed on. One that is alone may have smaller segments: it refuses
/// larger entries before they are in the log.
pub const MIN_MEMBER_SEGMENT_BYTES: u32 = 32 * 1024 * 1024;
/// Bytes that may wait in a space's queue. Beyond it: blocking callers wait, async callers get `Overloaded`.
pub const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// Watches that follow a space live; one that is behind and reads the log counts when it has caught up. More:
/// typed error.
pub const MAX_WATCHES: usize = 10_000;
/// Events that wait for one watch. More: the watch is not fed any more, and reads on from the log.
pub const MAX_WATCH_QUEUE_EVENTS: usize = 1024;
/// Bytes that wait for one watch. More: as above.
pub const MAX_WATCH_QUEUE_BYTES: usize = 256 * 1024;
/// Bytes that wait for all watches. More: as above, for whichever watch would get the next event.
pub const MAX_WATCH_QUEUES_BYTES: usize = 64 * 1024 * 1024;
/// Values longer than this stay in the log; the state keeps their position.
pub const DEFAULT_INLINE_VALUE_BYTES: usize = 4 * 1024;
/// The threshold may not be set lower: shorter values are never looked for in the log when a segment is freed.
pub const MIN_INLINE_VALUE_BYTES: usize = 128;
/// Longest time to live, of keys and leases: 100 years. Longer: typed error.
pub const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Shortest time to live of a lease: whoever holds one must be able to keep it alive. Shorter: typed error.
pub const MIN_LEASE_TTL: Duration = Duration::from_millis(100);
/// Most leases in a space, ended ones whose keys are not all removed yet included. More: typed error.
pub const MAX_LEASES: usize = 100_000;
/// Most keys attached to a lease, those included that have been overwritten since and not yet been found
/// out. More: typed error.
pub const MAX_LEASE_KEYS: u32 = 1_000_000;
/// Most contenders for a lock, an election or a semaphore. More: whoever comes is refused with a typed error.
pub const MAX_CONTENDERS: usize = 10_000;
/// Longest name of a lock, an election or a semaphore. Longer: typed error.
pub const MAX_RECIPE_NAME_BYTES: usize = 512;
/// Rows that one command may remove for being past their deadline: bounds the batch and the time that the next entry
/// waits. What is left over is hidden and goes with a later command.
pub const MAX_EXPIRED_ROWS: u32 = 10_000;
/// Most revisions of a key that a keyspace with history may be asked to keep, the newest included: a write
/// there looks at as many rows. More, or fewer than two: typed error.
pub const MAX_HISTORY_REVISIONS: u32 = 256;
/// Longest time for which a keyspace with history may be asked to keep what was overwritten. Longer: typed error.
pub const MAX_HISTORY_AGE: Duration = MAX_TTL;
/// In a keyspace with history that has no age, what a key was before it was deleted or had ended is kept for so long:
/// else keys that come and go would leave their versions for good.
pub const DELETED_HISTORY_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Rows of versions that one command may look at to forget those past their keyspace's bounds. What is left over goes
/// with a later command.
pub const MAX_PRUNED_VERSIONS: u32 = 10_000;
/// Versions in one page of the list of a key's versions. More: the page says where to go on.
pub const MAX_VERSIONS_PAGE: usize = 1000;
/// Bytes of values after which a page of the list of a key's versions ends. At least one version is in it.
pub const MAX_VERSIONS_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Largest encoding of a scan's cursor: two keys and what else there is to say. Longer: typed error.
pub const MAX_CURSOR_BYTES: usize = 2 * MAX_KEY_BYTES + 128;
/// Rows that one command may name as stale. More are left to a later one.
pub const MAX_STALE_ROWS: usize = 1_000;
/// Longest row that such a command may name: a user key, and what the state puts before it. Longer: malformed.
pub const MAX_STALE_ROW_BYTES: usize = 13 + MAX_KEY_BYTES;
/// Bytes of rows after which a command that forgets stale ones takes no more.
pub const MAX_STALE_BYTES: usize = 1 << 20;
/// Bytes that a chunk of a snapshot gathers before compression: what taking or restoring one holds in memory, a
/// few times over. A row or entry is never split, so a chunk may be larger by one.
pub const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;
/// Largest chunk of a snapshot, before and after compression. A file that says more is refused as damaged.
pub const MAX_SNAPSHOT_CHUNK_BYTES: usize = 64 * 1024 * 1024;
/// Chunks back to which a snapshot that is being taken can be rewound, to go on after a broken connection.
pub const SNAPSHOT_REWIND_CHUNKS: usize = 64;
/// Snapshots that may be open at a time: each keeps an old view of the state. More: typed error, retry.
pub const MAX_OPEN_SNAPSHOTS: usize = 8;
/// Largest frame of the native protocol, without its header: what a peer may offer to take at most. Larger: the channel
/// ends with a typed error, before the bytes are read.
pub const MAX_FRAME_BYTES: usize = 32 * 1024 * 1024;
/// A peer takes frames of at least so many bytes; who offers less is refused.
pub const MIN_FRAME_BYTES: u32 = 64 * 1024;
/// Largest frame before the handshake is done. Larger: as above.
pub const MAX_HELLO_BYTES: u32 = 4 * 1024;
/// Most subscriptions that one frame delivers to. More get another frame with the same shared bytes.
pub const MAX_DELIVER_SUBSCRIPTIONS: usize = 1024;
/// Requests under way and subscriptions of one channel. More: typed error, by the client before it asks, by the server
/// as `overloaded`.
pub const MAX_CHANNEL_IDS: usize = 1 << 20;
/// Longest name of a request in traces and logs. Longer ones are cut.
pub const MAX_TRACE_BYTES: usize = 64;
/// Longest subject or pattern. Longer: typed error.
pub const MAX_SUBJECT_BYTES: usize = 512;
/// Most tokens of a subject or pattern. More: typed error. Matching may look at as many trie nodes as there are
/// ways to put a `*` for a token, so this bounds what a publish to patterns made for it can cost.
pub const MAX_SUBJECT_TOKENS: usize = 16;
/// Longest name of a queue group, in bytes. Longer: typed error.
pub const MAX_QUEUE_GROUP_BYTES: usize = 128;
/// Members of a queue group that one pattern may have. More: typed error.
pub const MAX_QUEUE_GROUP_MEMBERS: usize = 16_384;
/// Links (connections that subscribe) that a broker holds open. More: typed error, retry.
pub const MAX_LINKS: usize = 65_536;
/// Subscriptions of a broker, each with about 400 bytes of memory while nothing waits in its queue. More: typed
/// error, retry.
pub const MAX_SUBSCRIPTIONS: usize = 2_000_000;
/// Subscriptions of one link. More: typed error.
pub const MAX_LINK_SUBSCRIPTIONS: usize = 1_000_000;
/// Messages that wait in a subscription's queue, if it asks for nothing else. At the bound its policy decides.
pub const DEFAULT_SUBSCRIPTION_MESSAGES: u64 = 65_536;
/// Bytes that wait in a subscription's queue, if it asks for nothing else. At the bound its policy decides.
pub const DEFAULT_SUBSCRIPTION_BYTES: u64 = 16 * 1024 * 1024;
/// Bytes that wait for all subscriptions of a link. At the bound the policy of whichever would get more decides.
pub const DEFAULT_LINK_BYTES: u64 = 64 * 1024 * 1024;
/// Bytes that wait for all links together; what several links share counts for each. At the bound as for a link.
pub const DEFAULT_BROKER_BYTES: u64 = 1024 * 1024 * 1024;
/// Subjects without a subscription of their own whose matches a broker remembers, each with about 250 bytes. One
/// more forgets the oldest.
pub const DEFAULT_CACHED_SUBJECTS: usize = 65_536;
/// Largest batch of messages that is published at once. Larger: typed error.
pub const MAX_PUBLISH_BYTES: usize = MAX_COMMAND_BYTES;
/// Most messages of a batch that is published at once. More: typed error.
pub const MAX_PUBLISH_MESSAGES: u32 = 65_536;
/// Requests of one table that wait for a reply. More: typed error, retry.
pub const MAX_PENDING_REQUESTS: usize = 65_536;
/// Longest time for which a request waits. A longer wish is cut to it.
pub const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Caches of one node. More: typed error.
pub const MAX_CACHES: usize = 1024;
/// Smallest bound of a cache. Smaller: typed error.
pub const MIN_CACHE_BYTES: u64 = 64 * 1024;
/// Entries of a cache that one request reads or puts. More: typed error.
pub const MAX_CACHE_ENTRIES_AT_ONCE: usize = 65_536;
/// Keys of one page of a cache's scan. A larger wish is cut to it.
pub const MAX_CACHE_SCAN_KEYS: usize = 10_000;
/// Largest reply of one Redis command that answers with many values, each counted with
/// [`REDIS_REPLY_ITEM_BYTES`] besides its bytes. Larger: error reply, nothing happens.
pub const MAX_REDIS_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// What a value of a reply costs in memory besides its bytes.
pub const REDIS_REPLY_ITEM_BYTES: usize = 64;
/// Keys or fields that one SCAN or HSCAN looks at, whatever its COUNT. More are left to the next page.
pub const MAX_REDIS_SCAN_ROWS: usize = 20_000;
/// Longest pattern of KEYS, SCAN and HSCAN. Longer: error reply. Matching takes at most as many steps as pattern times
/// key, for each key that is looked at.
pub const MAX_REDIS_PATTERN_BYTES: usize = 4096;
/// Fields, entries or other parts that one COPY of a Redis hash or stream copies. More: error reply, nothing happens.
pub const MAX_REDIS_COPY_PARTS: usize = 100_000;
/// Bytes that one COPY of a Redis hash or stream copies. More: as above.
pub const MAX_REDIS_COPY_BYTES: usize = 64 * 1024 * 1024;
/// Redis commands in one command of the log; a longer burst is split, a longer `MULTI` refused.
pub const MAX_REDIS_COMMANDS: usize = 16_384;
/// Keys that one of them may depend on.
pub const MAX_REDIS_WATCHED_KEYS: usize = 16_384;
/// Bytes that the Redis commands of one command of the log, or of one view, read together: those above it are refused.
/// Replies are held in memory until the client has taken them.
pub const MAX_REDIS_READ_BYTES: usize = 2 * MAX_REDIS_REPLY_BYTES;
/// Bytes that the Redis commands of one command of the log compute and write together, beside those that came with it:
/// commands above it are refused.
pub const MAX_REDIS_WRITTEN_BYTES: usize = 128 * 1024 * 1024;
/// Most bytes that the Redis commands of one entry of the log may read and write together, by what their names and
/// arguments say that they can. More commands go into the next entry, so what a client may do does not depend on what others do.
pub const MAX_REDIS_ENTRY_BYTES: usize = 4 * MAX_REDIS_READ_BYTES;
/// Entries of a Redis stream that one command trims, or delivers to a consumer group, at most. More: the rest goes, or is
/// delivered, with a later command. Pending entries that one command looks at, or a consumer takes along when it is
/// deleted, at most. More: error reply, nothing happens.
pub const MAX_REDIS_STREAM_ROWS: u64 = 100_000;
/// Bytes of entries of a Redis stream from which on a command trims no more. One entry always goes.
pub const MAX_REDIS_TRIM_BYTES: usize = 32 * 1024 * 1024;
/// Rows of a destroyed consumer group of a Redis stream that one command removes. More are left to later commands.
pub const MAX_REDIS_SWEPT_ROWS: usize = 1000;
/// Most consumer groups of a Redis stream. More: error reply.
pub const MAX_REDIS_GROUPS: u32 = 1000;
/// Most consumers of a consumer group of a Redis stream. More: error reply.
pub const MAX_REDIS_CONSUMERS: u64 = 10_000;
/// Longest name of a consumer group of a Redis stream, or of a consumer. Longer: error reply.
pub const MAX_REDIS_GROUP_NAME_BYTES: usize = 1024;

const _: () = assert!(MAX_VALUE_BYTES + MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(MAX_RECORD_BYTES < MAX_COMMAND_BYTES);
// A row holds a key and little else.
const _: () = assert!(MAX_STALE_ROW_BYTES + 2 * MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(2 * MAX_VALUE_BYTES < MAX_REDIS_REPLY_BYTES);
// What is written may be in an entry's batch twice: as a row, and as what watches are told of it. The last command that
// joins an entry may take it to the bound.
const _: () = assert!(3 * MAX_REDIS_ENTRY_BYTES < 1 << 31);
const _: () = assert!(MAX_REDIS_READ_BYTES + MAX_REDIS_WRITTEN_BYTES <= MAX_REDIS_ENTRY_BYTES);
const _: () = assert!(MAX_REDIS_TRIM_BYTES + MAX_VALUE_BYTES < MAX_REDIS_READ_BYTES);
// A segment of a member holds any entry: a command that goes alone, or as many as fit. Headers, framing and what is kept
// free at a segment's end are far below the mebibyte.
const _: () = assert!(MAX_COMMAND_BYTES + MAX_ENTRY_BYTES + (1 << 20) <= MIN_MEMBER_SEGMENT_BYTES as usize);
// A frame holds any command, and any answer to a transaction, with what stands around it.
const _: () = assert!(2 * MAX_COMMAND_BYTES <= MAX_FRAME_BYTES && 2 * MAX_TRANSACTION_RESULT_BYTES <= MAX_FRAME_BYTES);
const _: () = assert!(4 * MAX_DELIVER_SUBSCRIPTIONS < MIN_FRAME_BYTES as usize && MAX_HELLO_BYTES < MIN_FRAME_BYTES);
const _: () = assert!(PRODUCER_RESULTS <= 128 && PRODUCER_RESULTS.is_power_of_two());
const _: () = assert!(PRODUCER_EVICTIONS > 0 && PRODUCER_EVICTIONS < MAX_STREAM_PRODUCERS as usize);
const _: () = assert!(MAX_FETCH_RECORDS as usize <= MAX_FETCH_KEYS && MAX_FETCH_RECORDS <= MAX_GROUP_PENDING);
// A row with its bytes, an entry (the last command joins it below its bound), and what compresses badly.
const _: () = assert!(SNAPSHOT_CHUNK_BYTES + 2 * MAX_COMMAND_BYTES + MAX_ENTRY_BYTES < MAX_SNAPSHOT_CHUNK_BYTES);
