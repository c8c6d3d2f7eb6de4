//! All bounds of the system. Each constant's doc states what happens when the bound is exceeded; "typed error" means
//! that the request is rejected with an error of its own and nothing is written.

use std::time::Duration;

/// Longest key, in bytes. Longer: typed error.
pub const MAX_KEY_BYTES: usize = 32 * 1024;
/// Largest value, in bytes. Larger: typed error.
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// Largest stream record (key, headers and payload), in bytes. Larger: typed error.
pub const MAX_RECORD_BYTES: usize = 8 * 1024 * 1024;
/// Largest encoded command (a commit with all its writes), in bytes. Larger: typed error.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of writes plus conditions in one commit. More: typed error.
pub const MAX_COMMIT_WRITES: usize = 100_000;
/// Maximum number of bytes of keys and values that a transaction's reads return. More: typed outcome, nothing happens.
pub const MAX_TRANSACTION_RESULT_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of pairs of one scan within a transaction. More: the page ends there and reports where to continue.
pub const MAX_TRANSACTION_SCAN_ITEMS: usize = 1000;
/// Maximum number of rows that one scan within a transaction reads, including those of deleted keys. More: the page
/// ends there and reports where to continue.
pub const MAX_TRANSACTION_SCAN_ROWS: usize = 20_000;
/// Maximum number of rows that all range conditions of a command read together, including those of deleted keys. This
/// bounds the time for which the command blocks others. More: typed error.
pub const MAX_CONDITION_ROWS: usize = 20_000;
/// Maximum number of deletes by prefix in one transaction. More: typed outcome, nothing happens.
pub const MAX_TRANSACTION_PREFIX_DELETES: usize = 16;
/// Number of rows that a delete by prefix removes immediately. If there are more rows, all are hidden and swept later.
pub const MAX_EAGER_PREFIX_ROWS: usize = 64;
/// Maximum number of deleted prefixes of a space that wait to be swept. In keyspaces with history each delete of the
/// same prefix counts. More: typed outcome, nothing happens; sweeping goes on in the background.
pub const MAX_PENDING_CLEARS: usize = 1024;
/// Maximum number of headers of a record. More: typed error.
pub const MAX_HEADERS: usize = 64;
/// Longest name of a keyspace, stream or space, in bytes. Longer: typed error.
pub const MAX_NAME_BYTES: usize = 255;
/// Maximum number of keyspaces in a space. More: typed error.
pub const MAX_KEYSPACES: usize = 10_000;
/// Maximum number of streams in a space, including deleted ones whose producers are not all removed yet. Each costs
/// 200 to 300 bytes of memory for its head and its name. More: typed error.
pub const MAX_STREAMS: usize = 2_000_000;
/// Longest id of a producer, in bytes. Longer: typed error.
pub const MAX_PRODUCER_ID_BYTES: usize = 64;
/// Number of results that a stream keeps of each producer: a repeated append gets its first answer if it is at most
/// this old. Older repetitions: typed error, never a second append.
pub const PRODUCER_RESULTS: u64 = 64;
/// Maximum number of producers that a stream remembers, each with at most about 4 KiB of state (results and rows). One
/// more evicts the [`PRODUCER_EVICTIONS`] producers that were silent longest; they must open again. A commit never
/// evicts a producer that it names. A commit that names more producers of a stream than this: typed outcome.
pub const MAX_STREAM_PRODUCERS: u32 = 1000;
/// Number of producers evicted at a time, so that one search for the oldest pays for many evictions.
pub const PRODUCER_EVICTIONS: usize = 64;
/// Silence, in the time of entries, after which a stream forgets a producer.
pub const PRODUCER_MEMORY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of consumer groups in a space. More: typed error.
pub const MAX_GROUPS: usize = 10_000;
/// Maximum number of members of a consumer group. A new member replaces members that hold nothing and have not fetched
/// for [`MEMBER_IDLE_SECONDS`]. If there are none: typed error.
pub const MAX_GROUP_MEMBERS: usize = 1024;
/// Seconds without a fetch after which a member that holds nothing may be forgotten.
pub const MEMBER_IDLE_SECONDS: u64 = 3600;
/// Longest name of a member, in bytes. Longer: typed error.
pub const MAX_MEMBER_NAME_BYTES: usize = 255;
/// Maximum number of records of a consumer group that wait for an ack; a group's own bound may be lower. Each costs up
/// to about 100 bytes of memory. At the bound the group delivers no new records until some are acked.
pub const MAX_GROUP_PENDING: u32 = 100_000;
/// Maximum number of records that one fetch delivers. Larger requests are reduced to it.
pub const MAX_FETCH_RECORDS: u32 = 1000;
/// Maximum number of key hashes that a fetch carries: the number of records that a group in order per key looks ahead.
pub const MAX_FETCH_KEYS: usize = 4096;
/// Maximum number of ranges of offsets in one ack, nack or extension. More: typed error.
pub const MAX_SETTLED_RANGES: usize = 10_000;
/// Longest reason of a nack, in bytes. Longer reasons are truncated.
pub const MAX_NACK_REASON_BYTES: usize = 1024;
/// Maximum number of fetches that wait for records at a time, over all consumer groups. More: typed error, retry.
pub const MAX_WAITING_FETCHES: usize = 10_000;
/// Maximum number of records that a receiver of pushed deliveries may hold unsettled, each with 16 bytes of memory.
/// Larger requests are reduced to it.
pub const MAX_CREDIT_RECORDS: u32 = 4_000;
/// Maximum number of bytes that a receiver of pushed deliveries may hold unsettled. Larger requests are reduced to it.
pub const MAX_CREDIT_BYTES: u64 = 64 * 1024 * 1024;
/// Default time for which a compacted stream keeps a tombstone.
pub const DEFAULT_TOMBSTONE_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Memory for the keys of a stream during compaction, in bytes. More keys need more passes.
pub const MAX_COMPACTION_KEY_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of batches that compaction replaces in one step.
pub const COMPACTION_BATCHES: usize = 1000;
/// Approximate number of bytes of batches that compaction replaces in one step. This bounds the size of a sparse
/// batch, and the time for which other writers wait.
pub const COMPACTION_BYTES: u64 = 1024 * 1024;
/// Number of bytes that compaction reads in one round of maintenance.
pub const COMPACTION_ROUND_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of commands in one log entry. A longer queue makes more entries.
pub const MAX_ENTRY_COMMANDS: usize = 4096;
/// Number of bytes after which an entry takes no further command.
pub const MAX_ENTRY_BYTES: usize = 4 * 1024 * 1024;
/// Size of a log segment in which every entry fits, in bytes. The segments of a node that shares a space with others
/// must be at least this large, because the node cannot reject an entry that the others have agreed on. A node on its
/// own may have smaller segments: it rejects larger entries before they are in the log.
pub const MIN_MEMBER_SEGMENT_BYTES: u32 = 32 * 1024 * 1024;
/// Maximum number of bytes in a space's queue. Beyond it blocking callers wait, and async callers get `Overloaded`.
pub const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of watches that follow a space live. A watch that still reads the log counts when it has caught up.
/// More: typed error.
pub const MAX_WATCHES: usize = 10_000;
/// Maximum number of events queued for one watch. More: the watch gets no more events and reads on from the log.
pub const MAX_WATCH_QUEUE_EVENTS: usize = 1024;
/// Maximum number of bytes queued for one watch. More: the watch gets no more events and reads on from the log.
pub const MAX_WATCH_QUEUE_BYTES: usize = 256 * 1024;
/// Maximum number of bytes queued for all watches. More: the watch that would get the next event gets no more events
/// and reads on from the log.
pub const MAX_WATCH_QUEUES_BYTES: usize = 64 * 1024 * 1024;
/// Default size in bytes above which a value stays in the log and the state stores only its position.
pub const DEFAULT_INLINE_VALUE_BYTES: usize = 4 * 1024;
/// Minimum of the configurable inline size, in bytes. Shorter values are never searched for in the log when a segment
/// is freed.
pub const MIN_INLINE_VALUE_BYTES: usize = 128;
/// Longest time to live of keys and leases: 100 years. Longer: typed error.
pub const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Shortest time to live of a lease, which leaves its holder time to keep it alive. Shorter: typed error.
pub const MIN_LEASE_TTL: Duration = Duration::from_millis(100);
/// Maximum number of leases in a space, including ended ones whose keys are not all removed yet. More: typed error.
pub const MAX_LEASES: usize = 100_000;
/// Maximum number of keys attached to a lease. Keys that have been overwritten count until expiry notices it. More:
/// typed error.
pub const MAX_LEASE_KEYS: u32 = 1_000_000;
/// Maximum number of contenders for a lock, an election or a semaphore. More: typed error for each newcomer.
pub const MAX_CONTENDERS: usize = 10_000;
/// Longest name of a lock, an election or a semaphore, in bytes. Longer: typed error.
pub const MAX_RECIPE_NAME_BYTES: usize = 512;
/// Maximum number of expired rows that one command removes. This bounds the batch and the time for which the next
/// entry waits. Rows left over are hidden, and a later command removes them.
pub const MAX_EXPIRED_ROWS: u32 = 10_000;
/// Maximum number of revisions of a key that a keyspace with history may keep, the newest included: a write there
/// reads as many rows. More, or fewer than two: typed error.
pub const MAX_HISTORY_REVISIONS: u32 = 256;
/// Longest time for which a keyspace with history may keep overwritten values. Longer: typed error.
pub const MAX_HISTORY_AGE: Duration = MAX_TTL;
/// Time for which a keyspace with history but without an age keeps the versions of deleted or expired keys. Without
/// it, keys that come and go would leave their versions forever.
pub const DELETED_HISTORY_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of rows that one command reads to remove versions past their keyspace's bounds. A later command
/// handles the rows left over.
pub const MAX_PRUNED_VERSIONS: u32 = 10_000;
/// Maximum number of versions in one page of a key's versions. More: the page reports where to continue.
pub const MAX_VERSIONS_PAGE: usize = 1000;
/// Number of bytes of values after which a page of a key's versions ends. A page has at least one version.
pub const MAX_VERSIONS_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Largest encoded cursor of a scan, in bytes: two keys and a head. Longer: typed error.
pub const MAX_CURSOR_BYTES: usize = 2 * MAX_KEY_BYTES + 128;
/// Maximum number of rows that one command names as stale. More rows are left to a later command.
pub const MAX_STALE_ROWS: usize = 1_000;
/// Longest row that such a command may name, in bytes: a user key and the prefix that the state puts before it.
/// Longer: malformed.
pub const MAX_STALE_ROW_BYTES: usize = 13 + MAX_KEY_BYTES;
/// Number of bytes of rows after which a command that forgets stale rows takes no more.
pub const MAX_STALE_BYTES: usize = 1 << 20;
/// Number of bytes that a chunk of a snapshot gathers before compression. Taking or restoring a snapshot holds a few
/// chunks in memory. A row or entry is never split, so a chunk may be larger by one of them.
pub const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;
/// Largest chunk of a snapshot before and after compression, in bytes. A file with a larger one is rejected as
/// damaged.
pub const MAX_SNAPSHOT_CHUNK_BYTES: usize = 64 * 1024 * 1024;
/// Number of chunks by which a snapshot in progress can be rewound, to continue after a broken connection.
pub const SNAPSHOT_REWIND_CHUNKS: usize = 64;
/// Maximum number of open snapshots; each keeps an old view of the state. More: typed error, retry.
pub const MAX_OPEN_SNAPSHOTS: usize = 8;
/// Largest frame of the native protocol that a peer may offer to accept, in bytes without the header. Larger: the
/// channel ends with a typed error before the bytes are read.
pub const MAX_FRAME_BYTES: usize = 32 * 1024 * 1024;
/// Minimum of the frame size that a peer must accept, in bytes without the header. A peer that offers less is
/// rejected.
pub const MIN_FRAME_BYTES: u32 = 64 * 1024;
/// Largest frame during the handshake, in bytes without the header. Larger: the channel ends with a typed error.
pub const MAX_HELLO_BYTES: u32 = 4 * 1024;
/// Maximum number of subscriptions that one frame delivers to. More get another frame with the same shared bytes.
pub const MAX_DELIVER_SUBSCRIPTIONS: usize = 1024;
/// Maximum number of requests and of subscriptions of one channel. More: typed error, by the client before it sends
/// the request, and by the server as `overloaded`.
pub const MAX_CHANNEL_IDS: usize = 1 << 20;
/// Longest name of a request in traces and logs, in bytes. Longer names are truncated.
pub const MAX_TRACE_BYTES: usize = 64;
/// Longest subject or pattern, in bytes. Longer: typed error.
pub const MAX_SUBJECT_BYTES: usize = 512;
/// Maximum number of tokens of a subject or pattern. More: typed error. Matching can visit as many trie nodes as there
/// are ways to replace tokens by `*`, so this bounds the cost of a publish against hostile patterns.
pub const MAX_SUBJECT_TOKENS: usize = 16;
/// Longest name of a queue group, in bytes. Longer: typed error.
pub const MAX_QUEUE_GROUP_BYTES: usize = 128;
/// Maximum number of members of a queue group on one pattern. More: typed error.
pub const MAX_QUEUE_GROUP_MEMBERS: usize = 16_384;
/// Maximum number of open links (connections that subscribe) of a broker. More: typed error, retry.
pub const MAX_LINKS: usize = 65_536;
/// Maximum number of subscriptions of a broker, each with about 400 bytes of memory while its queue is empty. More:
/// typed error, retry.
pub const MAX_SUBSCRIPTIONS: usize = 2_000_000;
/// Maximum number of subscriptions of one link. More: typed error.
pub const MAX_LINK_SUBSCRIPTIONS: usize = 1_000_000;
/// Default maximum of messages in a subscription's queue. At the bound the subscription's policy decides.
pub const DEFAULT_SUBSCRIPTION_MESSAGES: u64 = 65_536;
/// Default maximum of bytes in a subscription's queue. At the bound the subscription's policy decides.
pub const DEFAULT_SUBSCRIPTION_BYTES: u64 = 16 * 1024 * 1024;
/// Default maximum of bytes queued for all subscriptions of a link. At the bound the policy of the subscription that
/// would get more decides.
pub const DEFAULT_LINK_BYTES: u64 = 64 * 1024 * 1024;
/// Default maximum of bytes queued for all links. Bytes that several links share count for each. At the bound the
/// policy of the subscription that would get more decides.
pub const DEFAULT_BROKER_BYTES: u64 = 1024 * 1024 * 1024;
/// Default number of subjects without a subscription of their own whose matches a broker caches, each with about 250
/// bytes. One more evicts the oldest.
pub const DEFAULT_CACHED_SUBJECTS: usize = 65_536;
/// Largest batch of messages in one publish, in bytes. Larger: typed error.
pub const MAX_PUBLISH_BYTES: usize = MAX_COMMAND_BYTES;
/// Maximum number of messages of a batch in one publish. More: typed error.
pub const MAX_PUBLISH_MESSAGES: u32 = 65_536;
/// Maximum number of requests of one table that wait for a reply. More: typed error, retry.
pub const MAX_PENDING_REQUESTS: usize = 65_536;
/// Longest time for which a request waits. Longer requests are reduced to it.
pub const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum number of caches of one node. More: typed error.
pub const MAX_CACHES: usize = 1024;
/// Smallest capacity of a cache, in bytes. Smaller: typed error.
pub const MIN_CACHE_BYTES: u64 = 64 * 1024;
/// Maximum number of entries of a cache that one request reads or puts. More: typed error.
pub const MAX_CACHE_ENTRIES_AT_ONCE: usize = 65_536;
/// Maximum number of keys of one page of a cache's scan. Larger requests are reduced to it.
pub const MAX_CACHE_SCAN_KEYS: usize = 10_000;
/// Largest reply of one Redis command that returns many values, in bytes. Each value counts with its bytes plus
/// [`REDIS_REPLY_ITEM_BYTES`]. Larger: error reply, nothing happens.
pub const MAX_REDIS_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// Memory that a value of a reply costs besides its bytes.
pub const REDIS_REPLY_ITEM_BYTES: usize = 64;
/// Maximum number of keys or fields that one SCAN or HSCAN reads, whatever its COUNT. More are left to the next page.
pub const MAX_REDIS_SCAN_ROWS: usize = 20_000;
/// Longest pattern of KEYS, SCAN and HSCAN, in bytes. Longer: error reply. For each key read, matching takes at most
/// as many steps as the length of the pattern times the length of the key.
pub const MAX_REDIS_PATTERN_BYTES: usize = 4096;
/// Maximum number of fields, entries or other parts that one COPY of a Redis hash or stream copies. More: error reply,
/// nothing happens.
pub const MAX_REDIS_COPY_PARTS: usize = 100_000;
/// Maximum number of bytes that one COPY of a Redis hash or stream copies. More: error reply, nothing happens.
pub const MAX_REDIS_COPY_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of Redis commands in one command of the log. A longer burst is split; a longer `MULTI` is rejected.
pub const MAX_REDIS_COMMANDS: usize = 16_384;
/// Maximum number of watched keys that one command of the log with Redis commands depends on.
pub const MAX_REDIS_WATCHED_KEYS: usize = 16_384;
/// Maximum number of bytes that the Redis commands of one command of the log, or of one view, read together. Commands
/// beyond it are rejected. Replies stay in memory until the client has read them.
pub const MAX_REDIS_READ_BYTES: usize = 2 * MAX_REDIS_REPLY_BYTES;
/// Maximum number of bytes that the Redis commands of one command of the log compute and write together, besides the
/// bytes that came with them. Commands beyond it are rejected.
pub const MAX_REDIS_WRITTEN_BYTES: usize = 128 * 1024 * 1024;
/// Maximum number of bytes that the Redis commands of one entry of the log may read and write together, estimated from
/// their names and arguments. Further commands go into the next entry, so one client's bounds do not depend on other
/// clients.
pub const MAX_REDIS_ENTRY_BYTES: usize = 4 * MAX_REDIS_READ_BYTES;
/// Maximum number of entries of a Redis stream that one command trims or delivers to a consumer group. More: a later
/// command trims or delivers the others. It is also the maximum number of pending entries that one command reads, or
/// that are removed together with a consumer. More: error reply, nothing happens.
pub const MAX_REDIS_STREAM_ROWS: u64 = 100_000;
/// Number of bytes of entries of a Redis stream after which a command trims no more. It always trims at least one
/// entry.
pub const MAX_REDIS_TRIM_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of rows of a destroyed consumer group of a Redis stream that one command removes. More are left to
/// later commands.
pub const MAX_REDIS_SWEPT_ROWS: usize = 1000;
/// Maximum number of consumer groups of a Redis stream. More: error reply.
pub const MAX_REDIS_GROUPS: u32 = 1000;
/// Maximum number of consumers of a consumer group of a Redis stream. More: error reply.
pub const MAX_REDIS_CONSUMERS: u64 = 10_000;
/// Longest name of a consumer group of a Redis stream, or of a consumer, in bytes. Longer: error reply.
pub const MAX_REDIS_GROUP_NAME_BYTES: usize = 1024;

const _: () = assert!(MAX_VALUE_BYTES + MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(MAX_RECORD_BYTES < MAX_COMMAND_BYTES);
// A row contains a key and little else.
const _: () = assert!(MAX_STALE_ROW_BYTES + 2 * MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(2 * MAX_VALUE_BYTES < MAX_REDIS_REPLY_BYTES);
// Written data may be in an entry's batch twice: as a row, and as the change that watches report. The last command
// that joins an entry may take it beyond the bound.
const _: () = assert!(3 * MAX_REDIS_ENTRY_BYTES < 1 << 31);
const _: () = assert!(MAX_REDIS_READ_BYTES + MAX_REDIS_WRITTEN_BYTES <= MAX_REDIS_ENTRY_BYTES);
const _: () = assert!(MAX_REDIS_TRIM_BYTES + MAX_VALUE_BYTES < MAX_REDIS_READ_BYTES);
// A segment of a member can hold any entry: a single large command, or as many commands as fit. Headers, framing and
// the reserve at a segment's end are far below 1 MiB.
const _: () = assert!(MAX_COMMAND_BYTES + MAX_ENTRY_BYTES + (1 << 20) <= MIN_MEMBER_SEGMENT_BYTES as usize);
// A frame can hold any command and any reply to a transaction, with all that surrounds them.
const _: () = assert!(2 * MAX_COMMAND_BYTES <= MAX_FRAME_BYTES && 2 * MAX_TRANSACTION_RESULT_BYTES <= MAX_FRAME_BYTES);
const _: () = assert!(4 * MAX_DELIVER_SUBSCRIPTIONS < MIN_FRAME_BYTES as usize && MAX_HELLO_BYTES < MIN_FRAME_BYTES);
const _: () = assert!(PRODUCER_RESULTS <= 128 && PRODUCER_RESULTS.is_power_of_two());
const _: () = assert!(PRODUCER_EVICTIONS > 0 && PRODUCER_EVICTIONS < MAX_STREAM_PRODUCERS as usize);
const _: () = assert!(MAX_FETCH_RECORDS as usize <= MAX_FETCH_KEYS && MAX_FETCH_RECORDS <= MAX_GROUP_PENDING);
// A row with its bytes, an entry (whose last command joined it below its bound), and data that compresses badly.
const _: () = assert!(SNAPSHOT_CHUNK_BYTES + 2 * MAX_COMMAND_BYTES + MAX_ENTRY_BYTES < MAX_SNAPSHOT_CHUNK_BYTES);
