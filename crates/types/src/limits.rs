//! All limits of the system. Each constant's doc states what happens when the limit is exceeded. A request that is
//! "rejected with an error" gets an error code for this case, and nothing is written.
//!
//! Owns: the fixed limits, the defaults of some configurable ones, and the inequalities between them, which the
//! compiler checks. Does not own: the configuration of a server (`thalweg_serving`), or the prices of work (`steps`).

use std::time::Duration;

/// Maximum length of a cluster member's name in bytes. A request with a longer name is rejected with an error, and a
/// node with a longer name does not start.
pub const MAX_NODE_NAME_BYTES: usize = 64;
/// Maximum length of a key in bytes. A request with a longer one is rejected with an error.
pub const MAX_KEY_BYTES: usize = 32 * 1024;
/// Maximum size of a value in bytes. A request with a larger one is rejected with an error.
pub const MAX_VALUE_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of a stream record (key, headers and payload) in bytes. A request with a larger one is rejected with an
/// error.
pub const MAX_RECORD_BYTES: usize = 8 * 1024 * 1024;
/// Maximum size of an encoded command (a commit with all its writes) in bytes. A request with a larger one is rejected
/// with an error.
pub const MAX_COMMAND_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of writes plus conditions in one commit. A request with more is rejected with an error.
pub const MAX_COMMIT_WRITES: usize = 20_000;
/// Maximum number of [steps](crate::steps) that one command may take: a commit, a transaction, a Redis command, or a
/// `MULTI` with all its commands. A step is about 100 ns, so the bound limits the time for which a command blocks
/// others. A command that would take more changes nothing and gets an error. A change of this limit needs a new version
/// of the state machine.
pub const MAX_COMMAND_STEPS: u64 = 280_000;
/// Maximum number of [steps](crate::steps) that the Redis reads of one batch take together, outside of transactions. A
/// single read may use half of the remaining steps. A read that would use more gets an error reply, and changes
/// nothing. With this limit, a log entry takes less than 50 ms even if it also contains the most expensive transaction.
/// The limit affects only replies to clients: no row, no revision and no running hash depends on it.
pub const MAX_BATCH_READ_STEPS: u64 = MAX_COMMAND_STEPS / 2;
/// Maximum number of [steps](crate::steps) that a command may use for searching: scans of a transaction, conditions on
/// ranges, patterns of Redis commands, and other work of these commands that reads no value. These steps also count in
/// [`MAX_COMMAND_STEPS`]. That limit is high because it must suffice to change a value of the maximum size. Searching
/// gets a lower limit, so that a command that searches delays others for less time. A change of this limit needs a new
/// version of the state machine.
pub const MAX_COMMAND_SEARCH_STEPS: u64 = MAX_COMMAND_STEPS / 2;
/// Maximum number of bytes of keys and values that the reads of one transaction return. A transaction that would return
/// more changes nothing, and its outcome reports the reason.
pub const MAX_TRANSACTION_RESULT_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of scans in both lists of a transaction together. A transaction with more is rejected with an error.
/// Opening this many scans costs most of [`MAX_COMMAND_SEARCH_STEPS`].
pub const MAX_TRANSACTION_SCANS: usize = 1000;
/// Maximum number of pairs of key and value that one scan within a transaction returns. If the range has more, the
/// returned page ends there and reports where to continue.
pub const MAX_TRANSACTION_SCAN_ITEMS: usize = 1000;
/// Maximum number of rows that one scan within a transaction reads, including rows of deleted keys. If the range has
/// more, the returned page ends there and reports where to continue.
pub const MAX_TRANSACTION_SCAN_ROWS: usize = 20_000;
/// Maximum number of rows that all range conditions of a command read together, including rows of deleted keys. This
/// bounds the time for which the command blocks other commands. A command that would read more is rejected with an
/// error.
pub const MAX_CONDITION_ROWS: usize = 20_000;
/// Maximum number of deletes by prefix in one transaction. A transaction with more changes nothing, and its outcome
/// reports the reason.
pub const MAX_TRANSACTION_PREFIX_DELETES: usize = 16;
/// Maximum number of rows that a delete by prefix removes immediately. If more rows have the prefix, the delete only
/// hides them all, and a background sweep removes them later.
pub const MAX_EAGER_PREFIX_ROWS: usize = 64;
/// Maximum total of the units of all deleted prefixes in a space (one log with its keyspaces and streams) that still
/// have hidden rows. A prefix has the units that [`clear_units`] returns, until the background sweep has removed its
/// rows. In keyspaces with history, each further delete of the same prefix counts one unit. A delete by prefix that
/// would exceed the maximum changes nothing, and its outcome reports the reason.
pub const MAX_PENDING_CLEARS: usize = 1024;
/// Number of bytes of a deleted prefix that count one unit towards [`MAX_PENDING_CLEARS`]. So the prefixes whose rows
/// are not removed yet have at most 256 KiB together.
pub const CLEAR_UNIT_BYTES: usize = 256;
/// Maximum number of deleted prefixes that begin with one another, such as `a`, `ab` and `abc`, while their rows are
/// not removed yet. Each of them makes every lookup of a key that begins with it slower by some nanoseconds. A delete
/// by prefix beyond this number changes nothing, and its outcome reports the reason. Prefixes that the delete itself
/// replaces do not count.
pub const MAX_NESTED_CLEARS: usize = 16;

/// Returns the number of units that a deleted prefix of `prefix_bytes` bytes counts towards [`MAX_PENDING_CLEARS`],
/// until its rows are removed.
#[must_use]
pub const fn clear_units(prefix_bytes: usize) -> usize {
    1 + prefix_bytes / CLEAR_UNIT_BYTES
}

/// Maximum number of headers of a record. A request with more is rejected with an error.
pub const MAX_HEADERS: usize = 64;
/// Maximum length in bytes of the name of a keyspace, a stream or a space (one log with its keyspaces and streams). A
/// request with a longer one is rejected with an error.
pub const MAX_NAME_BYTES: usize = 255;
/// Maximum number of keyspaces in a space (one log with its keyspaces and streams). A request that would create more is
/// rejected with an error.
pub const MAX_KEYSPACES: usize = 10_000;
/// Maximum number of streams in a space (one log with its keyspaces and streams), including deleted streams whose
/// producers are not all removed yet. Each stream costs 200 to 300 bytes of memory for its name and its positions. A
/// request that would create more is rejected with an error.
pub const MAX_STREAMS: usize = 2_000_000;
/// Maximum length of a producer's id in bytes. A request with a longer one is rejected with an error.
pub const MAX_PRODUCER_ID_BYTES: usize = 64;
/// Number of append results that a stream keeps for each producer. If a producer repeats one of these appends, it gets
/// the stored first answer. If it repeats an older append, it gets an error; the records are never appended a second
/// time.
pub const PRODUCER_RESULTS: u64 = 64;
/// Maximum number of producers that a stream remembers, each with at most about 4 KiB of state (results and rows). When
/// a new producer exceeds the maximum, the stream evicts the [`PRODUCER_EVICTIONS`] producers that have not appended
/// for the longest time; these must be opened again. A commit never evicts a producer that it names. A commit that
/// names more producers of one stream than this maximum changes nothing, and its outcome reports the reason.
pub const MAX_STREAM_PRODUCERS: u32 = 1000;
/// Number of producers that a stream evicts together, so that one search for the oldest producers serves many
/// evictions.
pub const PRODUCER_EVICTIONS: usize = 64;
/// Time without an append or an open after which a stream forgets a producer, by the clock that all replicas share
/// (space time).
pub const PRODUCER_MEMORY: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of consumer groups in a space (one log with its keyspaces and streams). A request that would create
/// more is rejected with an error.
pub const MAX_GROUPS: usize = 10_000;
/// Maximum number of members of a consumer group. A new member replaces members that hold no records and have not
/// fetched for [`MEMBER_IDLE_SECONDS`]. If there are no such members, the new member's fetch is rejected with an error.
pub const MAX_GROUP_MEMBERS: usize = 1024;
/// Seconds without a fetch after which a consumer group may forget a member that holds no records.
pub const MEMBER_IDLE_SECONDS: u64 = 3600;
/// Maximum length in bytes of the name of a consumer group's member. A request with a longer one is rejected with an
/// error.
pub const MAX_MEMBER_NAME_BYTES: usize = 255;
/// Maximum number of records of a consumer group that wait for an ack, or that are dead letters and wait for their move
/// to the stream for dead letters. A group's own limit may be lower. Each record costs up to about 100 bytes of memory.
/// At the limit the group delivers no new records until some are acked or moved.
pub const MAX_GROUP_PENDING: u32 = 100_000;
/// Maximum number of records of one attempt (delivery) of a consumer group, which are stored in one row. If a command
/// gives more records the same state, such as a large nack, the group divides them into several attempts. A change of
/// this limit needs a new version of the state machine.
pub const MAX_ATTEMPT_RECORDS: u32 = MAX_FETCH_RECORDS;
/// Maximum number of bytes of reasons (texts of nacks) that a consumer group keeps with its dead letters until these
/// are moved. Further dead letters get a truncated reason or none.
pub const MAX_GROUP_REASON_BYTES: usize = 1024 * 1024;
/// Maximum number of records that one fetch from a consumer group turns into dead letters, if the fetch requests fewer
/// records than this. A fetch that requests more records can turn as many into dead letters as it requests.
pub const MAX_DEAD_PER_SMALL_FETCH: u32 = 100;
/// Maximum number of records that one fetch of a consumer group delivers. A request for more is reduced to this number.
pub const MAX_FETCH_RECORDS: u32 = 1000;
/// Maximum number of key hashes that a fetch carries. A consumer group with delivery in order per key looks ahead by
/// this number of records.
pub const MAX_FETCH_KEYS: usize = 4096;
/// Maximum number of ranges of offsets in one request that acks, nacks or extends deliveries. A request with more is
/// rejected with an error.
pub const MAX_SETTLED_RANGES: usize = 10_000;
/// Maximum length in bytes of the reason that a consumer gives for a nack. Longer reasons are truncated.
pub const MAX_NACK_REASON_BYTES: usize = 1024;
/// Maximum number of fetches that wait for records at the same time, over all consumer groups. A fetch beyond this
/// number is rejected with an error, and the client should retry later.
pub const MAX_WAITING_FETCHES: usize = 10_000;
/// Maximum number of pushed records that one receiver may hold without an ack or nack, each with 16 bytes of memory. A
/// request for more credit is reduced to this number.
pub const MAX_CREDIT_RECORDS: u32 = 4_000;
/// Maximum number of bytes of pushed records that one receiver may hold without an ack or nack. A request for more
/// credit is reduced to this number.
pub const MAX_CREDIT_BYTES: u64 = 64 * 1024 * 1024;
/// Default time for which a compacted stream keeps a tombstone (a record that marks its key as deleted) for its
/// readers.
pub const DEFAULT_TOMBSTONE_GRACE: Duration = Duration::from_secs(24 * 3600);
/// Maximum memory in bytes for the keys of a stream during compaction. If the keys need more, compaction reads the
/// stream in several passes.
pub const MAX_COMPACTION_KEY_BYTES: usize = 32 * 1024 * 1024;
/// Maximum number of batches of a stream that compaction replaces at a time by one sparse batch, which has gaps where
/// records were removed.
pub const COMPACTION_BATCHES: usize = 1000;
/// Approximate number of bytes of a stream's batches that compaction replaces at a time. This limits the size of the
/// sparse batch (a batch with gaps) that replaces them, and the time for which other writers wait.
pub const COMPACTION_BYTES: u64 = 1024 * 1024;
/// Number of bytes of stream data that compaction reads each time background maintenance runs.
pub const COMPACTION_ROUND_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of commands in one log entry. If more commands are queued, they become several entries.
pub const MAX_ENTRY_COMMANDS: usize = 4096;
/// Size in bytes of the commands in a log entry above which no further command is added to the entry.
pub const MAX_ENTRY_BYTES: usize = 4 * 1024 * 1024;
/// Maximum number of [steps](crate::steps) that the commands of one log entry may take, estimated from their bytes. A
/// command that would exceed the maximum goes into the next log entry. So no entry takes longer than the longest
/// permitted command. Queued commands of up to [`MAX_BATCH_STEPS`] are written to the log together, with one fsync.
pub const MAX_ENTRY_STEPS: u64 = MAX_COMMAND_STEPS;
/// Maximum number of [steps](crate::steps) that the commands of all log entries with one fsync may take together,
/// estimated from their bytes. The replies of these commands are in memory at the same time. Further commands wait for
/// the next fsync.
pub const MAX_BATCH_STEPS: u64 = 4 * MAX_ENTRY_STEPS;
/// Smallest size in bytes of a log segment in which an entry of any permitted size fits. The largest entry is one
/// command of [`MAX_COMMAND_BYTES`]; an entry of several commands has about [`MAX_ENTRY_BYTES`]. The additional 1 MiB
/// is more than enough for headers, framing and the reserve at a segment's end. A member of a cluster with smaller
/// segments is not opened, because a node cannot reject an entry on which the others have agreed. A node on its own may
/// have smaller segments: it rejects larger entries before it writes them to the log.
pub const MIN_MEMBER_SEGMENT_BYTES: u32 = (MAX_COMMAND_BYTES + (1 << 20)) as u32;
/// Maximum number of bytes of commands that wait in a node's queue until they are written to the log. At this limit
/// blocking callers wait, and async callers get the error `Overloaded`.
pub const MAX_QUEUE_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of watches (clients that follow changes of keys) that receive changes live from one space (one log
/// with its keyspaces and streams). A watch that still reads old changes from the log counts only once it has caught
/// up. A watch beyond this number is rejected with an error.
pub const MAX_WATCHES: usize = 10_000;
/// Maximum number of events queued for one watch. At this limit no more events are queued for the watch, and it reads
/// the following changes from the log.
pub const MAX_WATCH_QUEUE_EVENTS: usize = 1024;
/// Maximum number of bytes of events queued for one watch. At this limit no more events are queued for the watch, and
/// it reads the following changes from the log.
pub const MAX_WATCH_QUEUE_BYTES: usize = 256 * 1024;
/// Maximum number of bytes of events queued for all watches together. An event that several watches queue counts once,
/// plus a few bytes for each of these watches. At this limit, a watch that is due to get another event gets no more
/// events in its queue, and reads the following changes from the log instead.
pub const MAX_WATCH_QUEUES_BYTES: usize = 64 * 1024 * 1024;
/// Default size in bytes above which a key's value stays in the log and the state stores only its position in the log.
pub const DEFAULT_INLINE_VALUE_BYTES: usize = 4 * 1024;
/// Lowest permitted setting for the size in bytes above which values stay in the log (inline size). When the node frees
/// a log segment, it does not search the segment for shorter values.
pub const MIN_INLINE_VALUE_BYTES: usize = 128;
/// Maximum time to live of keys and leases: 100 years. A request with a longer one is rejected with an error.
pub const MAX_TTL: Duration = Duration::from_secs(100 * 365 * 24 * 60 * 60);
/// Minimum time to live of a lease, which leaves the lease's holder enough time to keep it alive. A request with a
/// shorter one is rejected with an error.
pub const MIN_LEASE_TTL: Duration = Duration::from_millis(100);
/// Maximum number of leases in a space (one log with its keyspaces and streams). Ended leases count until all their
/// keys are removed. A request that would grant more is rejected with an error.
pub const MAX_LEASES: usize = 100_000;
/// Maximum number of keys attached to a lease. A key that was overwritten since counts until background maintenance
/// notices it. A write that would attach more is rejected with an error.
pub const MAX_LEASE_KEYS: u32 = 1_000_000;
/// Maximum number of clients that hold or wait for one lock, election or semaphore. A client beyond this number is
/// rejected with an error.
pub const MAX_CONTENDERS: usize = 10_000;
/// Maximum length of the name of a lock, an election or a semaphore in bytes. A request with a longer one is rejected
/// with an error.
pub const MAX_RECIPE_NAME_BYTES: usize = 512;
/// Maximum number of expired rows that one command removes. This bounds the size of one batch of writes to the store,
/// and the time for which the next log entry waits. Expired rows left over are hidden from reads, and a later command
/// removes them.
pub const MAX_EXPIRED_ROWS: u32 = 5_000;
/// Maximum number of revisions of a key, including the newest, that a keyspace with history may be configured to keep;
/// a write to the keyspace reads as many rows. A configuration with more, or with fewer than two, is rejected with an
/// error.
pub const MAX_HISTORY_REVISIONS: u32 = 256;
/// Maximum time for which a keyspace with history may be configured to keep overwritten values. A configuration with a
/// longer time is rejected with an error.
pub const MAX_HISTORY_AGE: Duration = MAX_TTL;
/// Time for which a keyspace with history keeps the versions of deleted or expired keys, if its configuration sets no
/// age. Without this limit, the versions of keys that are no longer used would stay forever.
pub const DELETED_HISTORY_AGE: Duration = Duration::from_secs(7 * 24 * 3600);
/// Maximum number of rows that one command reads to remove versions that exceed the history bounds of their keyspace. A
/// later command handles the rows left over.
pub const MAX_PRUNED_VERSIONS: u32 = 10_000;
/// Maximum number of rows that one command of background maintenance examines. The rows belong to expired keys, deleted
/// prefixes, old versions of keys, deleted streams or deleted groups. The limit bounds the time for which the command
/// blocks other commands. Each command carries its number of rows, so the limit can change without a new version of the
/// state machine.
pub const RECLAIMED_PER_COMMAND: u32 = 1000;
/// Maximum number of versions in one page of a key's versions. If the key has more, the page reports where to continue.
pub const MAX_VERSIONS_PAGE: usize = 1000;
/// Number of bytes of values after which a page of a key's versions ends. A page has at least one version.
pub const MAX_VERSIONS_PAGE_BYTES: usize = 4 * 1024 * 1024;
/// Maximum size in bytes of an encoded cursor of a scan: two keys and up to 128 bytes of other fields. A request with a
/// longer one is rejected with an error.
pub const MAX_CURSOR_BYTES: usize = 2 * MAX_KEY_BYTES + 128;
/// Maximum number of stale rows (outdated rows of the expiry index) that one command removes. Further stale rows are
/// left to a later command.
pub const MAX_STALE_ROWS: usize = 1_000;
/// Maximum length in bytes of a row key in a command that removes stale rows: a user key and the prefix that the state
/// puts before it. A command with a longer one is malformed.
pub const MAX_STALE_ROW_BYTES: usize = 13 + MAX_KEY_BYTES;
/// Number of bytes of row keys after which a command that removes stale rows takes no further row.
pub const MAX_STALE_BYTES: usize = 1 << 20;
/// Number of bytes that a chunk of a snapshot gathers before it is compressed. Taking or restoring a snapshot holds a
/// few chunks in memory. A row or log entry is never split, so a chunk may be larger by one row or entry.
pub const SNAPSHOT_CHUNK_BYTES: usize = 1024 * 1024;
/// Maximum size in bytes of a snapshot's chunk, both before and after compression. A snapshot file with a larger chunk
/// is rejected as damaged.
pub const MAX_SNAPSHOT_CHUNK_BYTES: usize = 64 * 1024 * 1024;
/// Maximum number of chunks by which a reader of a snapshot can go back when it continues after a broken connection.
pub const SNAPSHOT_REWIND_CHUNKS: usize = 64;
/// Maximum number of snapshots that are open at the same time; each keeps an old view of the state. A request for one
/// more is rejected with an error, and the client should retry later.
pub const MAX_OPEN_SNAPSHOTS: usize = 8;
/// Maximum size in bytes, without the header, of the frames that a peer of the native protocol may offer to accept. If
/// a larger frame arrives, the channel (the byte stream that carries the frames) ends with an error before the frame's
/// bytes are read.
pub const MAX_FRAME_BYTES: usize = 32 * 1024 * 1024;
/// Minimum size in bytes, without the header, of the frames that a peer of the native protocol must offer to accept. A
/// peer that offers less is rejected.
pub const MIN_FRAME_BYTES: u32 = 64 * 1024;
/// Maximum size in bytes, without the header, of a frame during the handshake of the native protocol. If a larger frame
/// arrives, the channel (the byte stream that carries the frames) ends with an error.
pub const MAX_HELLO_BYTES: u32 = 4 * 1024;
/// Maximum number of subscriptions to which one frame of the native protocol delivers a message. If more subscriptions
/// of a channel (a TCP connection or QUIC stream) match, the server sends the message to them in further frames. These
/// frames share the message's bytes in memory.
pub const MAX_DELIVER_SUBSCRIPTIONS: usize = 1024;
/// Maximum number of open requests of a client on one channel (a TCP connection or QUIC stream) of the native protocol.
/// The number of its subscriptions on the channel has the same maximum. The client does not send a request or
/// subscription beyond this number, and the server rejects it with the error `overloaded`.
pub const MAX_CHANNEL_IDS: usize = 1 << 20;
/// Maximum length in bytes of the name that a client gives a request, by which traces and log lines identify the
/// request. Longer names are truncated.
pub const MAX_TRACE_BYTES: usize = 64;
/// Maximum length in bytes of a subject or subject pattern. A request with a longer one is rejected with an error.
pub const MAX_SUBJECT_BYTES: usize = 512;
/// Maximum number of tokens of a subject or subject pattern. A request with more is rejected with an error. Matching
/// can visit as many trie nodes as there are ways to replace tokens by `*`, so this limit bounds the cost of a publish
/// against hostile patterns.
pub const MAX_SUBJECT_TOKENS: usize = 16;
/// Maximum length of the name of a queue group in bytes. A request with a longer one is rejected with an error.
pub const MAX_QUEUE_GROUP_BYTES: usize = 128;
/// Maximum number of members of a queue group on one subject pattern. A subscription beyond this number is rejected
/// with an error.
pub const MAX_QUEUE_GROUP_MEMBERS: usize = 16_384;
/// Maximum number of open links (connections that subscribe) of a broker. A link beyond this number is rejected with an
/// error, and the client should retry later.
pub const MAX_LINKS: usize = 65_536;
/// Maximum number of subscriptions of a broker, each with about 400 bytes of memory while its queue is empty. A
/// subscription beyond this number is rejected with an error, and the client should retry later.
pub const MAX_SUBSCRIPTIONS: usize = 2_000_000;
/// Maximum number of subscriptions of one link (a connection that subscribes). A subscription beyond this number is
/// rejected with an error.
pub const MAX_LINK_SUBSCRIPTIONS: usize = 1_000_000;
/// Default limit for the number of messages in a subscription's queue. At the limit the subscription's policy decides
/// what happens to further messages.
pub const DEFAULT_SUBSCRIPTION_MESSAGES: u64 = 65_536;
/// Default limit for the bytes of messages in a subscription's queue. At the limit the subscription's policy decides
/// what happens to further messages.
pub const DEFAULT_SUBSCRIPTION_BYTES: u64 = 16 * 1024 * 1024;
/// Default limit for the bytes of messages queued for all subscriptions of a link (a connection that subscribes). At
/// the limit, the policy of the subscription that is due to get a message decides what happens to the message.
pub const DEFAULT_LINK_BYTES: u64 = 64 * 1024 * 1024;
/// Default limit for the bytes of messages queued for all links of a broker. A message that several links share counts
/// for each of them. At the limit, the policy of the subscription that is due to get a message decides what happens to
/// the message.
pub const DEFAULT_BROKER_BYTES: u64 = 1024 * 1024 * 1024;
/// Default number of subjects for which a broker caches the matching subscriptions. Each costs about 250 bytes of
/// memory. Subjects that a subscription names literally do not count. When a further subject is cached, the oldest is
/// evicted.
pub const DEFAULT_CACHED_SUBJECTS: usize = 65_536;
/// Maximum number of matching subscriptions that a broker caches for each cached subject, on average. At this limit,
/// the broker does not cache the matching subscriptions of a further subject, and searches for them again at each
/// publish.
pub const CACHED_TARGETS_PER_SUBJECT: usize = 32;
/// Maximum size in bytes of the batch of messages in one publish request. A request with a larger one is rejected with
/// an error.
pub const MAX_PUBLISH_BYTES: usize = MAX_COMMAND_BYTES;
/// Maximum number of messages in the batch of one publish request. A request with more is rejected with an error.
pub const MAX_PUBLISH_MESSAGES: u32 = 65_536;
/// Maximum number of pending requests of one requester. A request is a message published to a subject, for which the
/// sender expects a reply. The requester is a component such as a connection of the native protocol. A request beyond
/// this number is rejected with an error, and the client should retry later.
pub const MAX_PENDING_REQUESTS: usize = 65_536;
/// Maximum time for which a request waits for its reply. A longer requested time is reduced to this limit.
pub const MAX_REQUEST_TIMEOUT: Duration = Duration::from_secs(3600);
/// Maximum number of caches on one node. A request that would create more is rejected with an error.
pub const MAX_CACHES: usize = 1024;
/// Minimum capacity of a cache in bytes. A request to create a smaller cache is rejected with an error.
pub const MIN_CACHE_BYTES: u64 = 64 * 1024;
/// Maximum number of entries of a cache that one request reads or puts. A request with more is rejected with an error.
pub const MAX_CACHE_ENTRIES_AT_ONCE: usize = 65_536;
/// Maximum number of keys in one page of a scan over a cache. A request for more is reduced to this number.
pub const MAX_CACHE_SCAN_KEYS: usize = 10_000;
/// Maximum size in bytes of the reply of one Redis command that returns many values. Each value counts with its bytes
/// plus [`REDIS_REPLY_ITEM_BYTES`]. A command whose reply would be larger changes nothing and gets an error reply.
pub const MAX_REDIS_REPLY_BYTES: usize = 64 * 1024 * 1024;
/// Memory in bytes that a value of a Redis reply is assumed to cost in addition to its own bytes.
pub const REDIS_REPLY_ITEM_BYTES: usize = 64;
/// Maximum number of keys or fields that one Redis command SCAN or HSCAN reads, whatever its option COUNT requests.
/// Further keys or fields are left to the next page.
pub const MAX_REDIS_SCAN_ROWS: usize = 20_000;
/// Maximum length in bytes of the pattern of the Redis commands KEYS, SCAN and HSCAN. A longer pattern gets an error
/// reply. Comparisons of the pattern with names are charged, so a pattern that takes too long is rejected.
pub const MAX_REDIS_PATTERN_BYTES: usize = 4096;
/// Maximum number of items (such as hash fields or stream entries) that one Redis command COPY copies from a hash or
/// stream. For a larger hash or stream, COPY changes nothing and gets an error reply.
pub const MAX_REDIS_COPY_PARTS: usize = 20_000;
/// Maximum number of bytes that one Redis command COPY copies from a Redis hash or stream. For a larger hash or stream,
/// COPY changes nothing and gets an error reply. A copy of many items reaches [`MAX_COMMAND_STEPS`] earlier: with
/// [`MAX_REDIS_COPY_PARTS`] items, at about 5 MiB.
pub const MAX_REDIS_COPY_BYTES: usize = 9 * 1024 * 1024;
/// Maximum number of Redis commands in one batch, which is one command of the log. A longer burst of commands is split
/// into several batches; a longer `MULTI` transaction is rejected.
pub const MAX_REDIS_COMMANDS: usize = 16_384;
/// Maximum number of watched keys of one batch of Redis commands. The batch is one command of the log.
pub const MAX_REDIS_WATCHED_KEYS: usize = 16_384;
/// Maximum number of bytes that Redis commands read together: the commands of one batch in the log, or all commands
/// that read from one view of the state. A command that would exceed this number is rejected. The limit exists because
/// replies stay in memory until the client has read them. Commands in the log reach [`MAX_COMMAND_STEPS`] before this
/// limit.
pub const MAX_REDIS_READ_BYTES: usize = 2 * MAX_REDIS_REPLY_BYTES;
/// Maximum number of keys whose rows and values are requested from the disk together, before the first of them is read.
/// With more concurrent reads, a disk hardly gets faster.
pub const MAX_KEYS_READ_AHEAD: usize = 64;
/// Maximum number of bytes of values in the log that are requested from the disk together. A larger value takes longer
/// to transfer than to find, so an early request gains nothing.
pub const MAX_BYTES_READ_AHEAD: u64 = 4 * 1024 * 1024;
/// Maximum number of [comparisons](crate::steps::comparisons) of a pattern with bytes of names. It applies to all Redis
/// commands together that read from one view of the state. A command that would make more gets an error reply.
pub const MAX_REDIS_VIEW_COMPARISONS: u64 = 100_000_000;
/// Maximum number of entries of a Redis stream that one command trims, or delivers to a consumer group. A later command
/// trims or delivers the others. It is also the maximum number of pending entries that one command reads, or removes
/// together with their consumer. A command that would exceed this maximum changes nothing and gets an error reply.
pub const MAX_REDIS_STREAM_ROWS: u64 = 10_000;
/// Number of [steps](crate::steps) after which one command delivers or claims no further entry of a Redis stream; a
/// later command continues. The limit is so far below [`MAX_COMMAND_STEPS`] that the command can still read one entry
/// of the maximum size, which it needs to find out that it must stop. So a command without COUNT is never rejected as
/// too expensive.
pub const MAX_REDIS_DELIVERY_STEPS: u64 = 210_000;
/// Number of bytes of removed entries of a Redis stream after which a command trims no further entry. A command always
/// trims at least one entry.
pub const MAX_REDIS_TRIM_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of rows of a destroyed consumer group of a Redis stream that one command removes. Further rows are
/// left to later commands.
pub const MAX_REDIS_SWEPT_ROWS: usize = 100;
/// Maximum number of consumer groups of a Redis stream. A command that would create more gets an error reply.
pub const MAX_REDIS_GROUPS: u32 = 1000;
/// Maximum number of consumers of a consumer group of a Redis stream. A command that would create more gets an error
/// reply.
pub const MAX_REDIS_CONSUMERS: u64 = 10_000;
/// Maximum length in bytes of the name of a consumer group of a Redis stream, or of the name of a consumer. A command
/// with a longer name gets an error reply.
pub const MAX_REDIS_GROUP_NAME_BYTES: usize = 1024;

/// Maximum number of bytes of the commands whose outcome a member of a cluster does not know yet, after it has proposed
/// or forwarded them. Further commands wait in the queue. A single entry may exceed the maximum.
pub const MAX_IN_FLIGHT_BYTES: u64 = 64 * 1024 * 1024;
/// Maximum number of bytes of command outcomes that a cluster member keeps for the commands that it has forwarded to
/// the leader. The member keeps an outcome until the leader's answer tells it which log entry contains the command. The
/// outcomes of a single entry may exceed the maximum. Beyond the maximum, the member drops the oldest outcomes, and the
/// proposers of these commands get an error.
pub const MAX_FORWARDED_OUTCOME_BYTES: usize = 64 * 1024 * 1024;
/// Number of bytes of the newest log entries that a member keeps in memory.
pub const NEWEST_ENTRY_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of bytes of request names that a cluster's leader keeps in memory. Such a name identifies the
/// client's request from which a recent command in the log came. Members of the cluster show the names in their debug
/// logs.
pub const MAX_ENTRY_NAME_BYTES: usize = 256 * 1024;
/// Maximum number of payload bytes of entries that the leader has sent to a follower without an answer yet. A larger
/// entry is sent alone. A follower with a slow disk may hold this many bytes in memory.
pub const MAX_PIPELINED_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of bytes of frames that wait to be sent on one connection to another node. Beyond it, senders wait.
pub const MAX_LINK_QUEUE_BYTES: usize = 16 * 1024 * 1024;
/// Maximum number of connections between two nodes.
pub const MAX_NODE_CONNECTIONS: usize = 10;
/// Size in bytes of the buffer in which small frames of a connection to another node are read together.
pub const LINK_READ_BYTES: usize = 64 * 1024;
/// Number of bytes of frames that are written to another node with one call.
pub const LINK_WRITE_BYTES: usize = 256 * 1024;
/// Maximum number of bytes of published messages that wait to be sent to one other node. A message counts once for each
/// filter (subscription pattern that the other node has announced) that it matches. Messages beyond this maximum are
/// lost.
pub const MAX_NODE_QUEUE_BYTES: u64 = 32 * 1024 * 1024;
/// Maximum number of calls from clients that wait for consensus at the same time, over all protocols of a server. A
/// further call is rejected with the error `overloaded`. Each call costs about 1 KiB of memory.
pub const MAX_CLUSTER_CALLS: usize = 16 * 1024;
/// Maximum number of incoming connections of other nodes that have not sent a hello yet. Connections that have sent a
/// hello and are not authenticated yet have a separate maximum of the same size.
pub const MAX_HALF_OPEN_LINKS: usize = 256;

const _: () = assert!(MAX_VALUE_BYTES + MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(MAX_RECORD_BYTES < MAX_COMMAND_BYTES);
// A row contains a key and little else.
const _: () = assert!(MAX_STALE_ROW_BYTES + 2 * MAX_KEY_BYTES < MAX_COMMAND_BYTES);
const _: () = assert!(2 * MAX_VALUE_BYTES < MAX_REDIS_REPLY_BYTES);
const _: () = assert!(MAX_REDIS_TRIM_BYTES + MAX_VALUE_BYTES < MAX_REDIS_READ_BYTES);
// The largest entry is one command, and segments have whole blocks.
const _: () = assert!(MAX_ENTRY_BYTES < MAX_COMMAND_BYTES && MIN_MEMBER_SEGMENT_BYTES.is_multiple_of(4096));
// The entries that are on their way to a follower fit into the queue of their connection.
const _: () = assert!(MAX_PIPELINED_BYTES <= MAX_LINK_QUEUE_BYTES && MAX_COMMAND_BYTES <= MAX_LINK_QUEUE_BYTES);
// A frame can hold any command, and any reply to a transaction, together with its other fields.
const _: () = assert!(2 * MAX_COMMAND_BYTES <= MAX_FRAME_BYTES && 2 * MAX_TRANSACTION_RESULT_BYTES <= MAX_FRAME_BYTES);
const _: () = assert!(4 * MAX_DELIVER_SUBSCRIPTIONS < MIN_FRAME_BYTES as usize && MAX_HELLO_BYTES < MIN_FRAME_BYTES);
const _: () = assert!(PRODUCER_RESULTS <= 128 && PRODUCER_RESULTS.is_power_of_two());
const _: () = assert!(PRODUCER_EVICTIONS > 0 && PRODUCER_EVICTIONS < MAX_STREAM_PRODUCERS as usize);
const _: () = assert!(MAX_FETCH_RECORDS as usize <= MAX_FETCH_KEYS && MAX_FETCH_RECORDS <= MAX_GROUP_PENDING);
// A fetch puts the records that it delivers, and those that it parks or turns into dead letters, under few attempts.
const _: () = assert!(MAX_FETCH_RECORDS <= MAX_ATTEMPT_RECORDS && MAX_DEAD_PER_SMALL_FETCH <= MAX_FETCH_RECORDS);
// A chunk can hold a row with its bytes, an entry whose last command was added when the entry was just below its limit,
// and data that grows when it is compressed.
const _: () = assert!(SNAPSHOT_CHUNK_BYTES + 2 * MAX_COMMAND_BYTES + MAX_ENTRY_BYTES < MAX_SNAPSHOT_CHUNK_BYTES);
