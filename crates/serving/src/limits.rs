//! Fixed bounds of the server. Configurable bounds are in [`crate::config`].

use std::time::Duration;

use thalweg_types::{
    limits::{CLEAR_UNIT_BYTES, MAX_KEY_BYTES, MAX_MEMBER_NAME_BYTES, MAX_NAME_BYTES, MAX_PENDING_CLEARS},
    steps::{COLD_READ, read_bytes},
};

/// Size in bytes of a page of JSON or records that a scan prepares. A page with a single larger pair or
/// record is larger.
pub const SCAN_PAGE_BYTES: usize = 256 * 1024;
/// Size in bytes, as sent to the client, above which a page of a scan counts in `max_reply_bytes_in_flight`. Only pages
/// with large pairs or records reach this size.
pub const COUNTED_PAGE_BYTES: usize = 2 * SCAN_PAGE_BYTES;
/// Maximum number of pairs or records in a page of a scan. Without this limit, a page of tiny pairs or records would
/// occupy a thread for long.
pub const SCAN_PAGE_ITEMS: usize = 4096;
/// Largest `limit` of a scan, in items, at which the calling thread reads the scan. Larger scans use a blocking thread.
pub const INLINE_SCAN_ITEMS: u64 = 128;
/// Number of bytes that a tail of a stream reads for one page.
pub const TAIL_PAGE_BYTES: usize = 64 * 1024;
/// Size in bytes, as sent to the client, above which a page of a tail counts in `max_reply_bytes_in_flight`.
pub const COUNTED_TAIL_BYTES: usize = 2 * TAIL_PAGE_BYTES;
/// Maximum number of records that a tail of a stream reads at a time.
pub const TAIL_PAGE_ITEMS: u64 = 1024;
/// Size in bytes of one delivery that the server pushes to a member of a consumer group. A delivery with a
/// single larger record is larger.
pub const PUSH_PAGE_BYTES: u64 = TAIL_PAGE_BYTES as u64;
/// Maximum memory in bytes for the list of records that a push (a subscription to a group's records) has delivered and
/// its receiver has not yet acked or nacked.
pub(crate) const PUSH_LEDGER_BYTES: u64 = 16 * thalweg_types::limits::MAX_CREDIT_RECORDS as u64;
/// Maximum number of records in the reply to a read without `limit`.
pub const DEFAULT_RECORDS: u64 = 1000;
/// Approximate maximum size in bytes of the reply to a read of records without `max_bytes`.
pub const DEFAULT_RECORD_BYTES: u64 = 1024 * 1024;
/// Maximum number of items in the reply to a list request without `limit`.
pub const DEFAULT_LISTED: u64 = 1000;
/// Largest `limit` of a list request, in items, at which the calling thread makes the list. Larger lists use a blocking
/// thread. A list of 1000 items takes about 2 ms.
pub const INLINE_LISTED: u64 = 128;
/// Maximum number of items in the reply to one list request.
pub const MAX_LISTED: u64 = 10_000;
/// Maximum number of keys that the description of a lease shows if the request has no `limit`.
pub const DEFAULT_LEASE_KEYS: usize = 100;
/// Maximum number of keys that the description of a lease shows.
pub const MAX_LEASE_KEYS_SHOWN: usize = 1000;
/// Maximum number of pairs in the reply to `/keys/range` without `limit`.
pub const DEFAULT_RANGE_ITEMS: u64 = 1000;
/// Size in bytes of a connection's read buffer. A longer request head gets error 431 (HTTP/1).
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of consumer groups that have metrics of their own: the oldest ones. Further groups are
/// included only in the total number of groups.
pub(crate) const MAX_METRIC_GROUPS: usize = 200;
/// Maximum number of header fields of an HTTP request. A request with more gets error 431.
pub const MAX_HEADER_FIELDS: usize = 64;
/// Maximum size in bytes of an HTTP/2 request's header list.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Maximum number of concurrent requests on one HTTP/2 connection.
pub const MAX_H2_STREAMS: u32 = 128;
/// Maximum length in bytes of an `x-request-id` from a client. The server replaces a longer one by its own.
pub const MAX_REQUEST_ID_BYTES: usize = 64;
/// Memory in bytes of an open connection: read buffer, write buffer and bookkeeping.
pub(crate) const CONNECTION_BYTES: u64 = 160 * 1024;
/// Number of bytes queued for a native or a Redis client at which the server stops handling its requests. One reply may
/// exceed this number; the reply counts in `max_reply_bytes_in_flight` if it is large.
pub const OUTBOX_BYTES: usize = 128 * 1024;
/// Maximum number of requests in progress on a native channel. Further requests get error `overloaded`.
pub const MAX_CHANNEL_REQUESTS: u32 = 1024;
/// Maximum number of subscriptions of a native channel. Further subscriptions get error `overloaded`. In
/// addition, `max_tails` bounds tails, pushes and watches over all connections.
pub const MAX_CHANNEL_SUBSCRIPTIONS: u32 = thalweg_types::limits::MAX_LINK_SUBSCRIPTIONS as u32;
/// Size in bytes from which a reply counts in `max_reply_bytes_in_flight`. Smaller replies are included in the memory
/// of their connection.
pub const COUNTED_REPLY_BYTES: usize = 128 * 1024;
/// Maximum number of times that a native channel or a Redis connection receives, answers and sends before other tasks
/// on its thread run.
pub const MAX_TURNS: usize = 32;
/// Size in bytes of the largest read that the server performs for a native client on the calling thread. Larger reads
/// use a blocking thread.
pub const INLINE_READ_BYTES: u64 = 64 * 1024;
/// Size in bytes of the largest read that the server performs for a native client on the calling thread while that
/// client is the only active one.
pub const ALONE_READ_BYTES: u64 = 4 * 1024 * 1024;
/// Pause of a task that waits for free memory for a large page or frame, before the task checks again.
pub const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of threads for long reads.
pub(crate) const MAX_READER_THREADS: usize = 16;
/// Maximum number of threads for short reads that wait for the disk. This is the number of reads that a disk answers at
/// a time. More threads gain little on an SSD, and each needs memory for its stack.
pub(crate) const MAX_COLD_READ_THREADS: usize = 32;
/// Maximum number of bytes that a read on a thread for cold reads (short reads that wait for the disk) returns.
pub(crate) const COLD_READ_BYTES: u64 = 128 * 1024;
const _: () = assert!(read_bytes(COLD_READ_BYTES as usize) >= COLD_READ);
/// Maximum total of the bytes that running reads on threads for long reads may request. Further reads wait. These bytes
/// are separate from other bounds, which count the result of a read only once it is a reply. A read holds about as many
/// bytes as it requested, and twice as many while the frame of its reply is assembled.
pub(crate) const MAX_READING_BYTES: u32 = 64 * 1024 * 1024;
/// Approximate size in bytes of a frame that a tail sends to a native client. A single larger append makes a
/// larger frame.
pub const NATIVE_PAGE_BYTES: u64 = 256 * 1024;
/// Memory in bytes of a request in progress, without its body.
pub const REQUEST_BYTES: u64 = 4 * 1024;
/// Memory in bytes of a table of deleted prefixes whose rows the background sweep has still to remove. For each prefix,
/// the table has an entry of 128 bytes and the bytes of the prefix. It also has the last key that the sweep has
/// examined. Each view of the state holds the table that was current at its time. Tables of different times share the
/// bytes of common prefixes.
pub(crate) const CLEARS_TABLE_BYTES: u64 = (MAX_PENDING_CLEARS * (128 + CLEAR_UNIT_BYTES + 32) + MAX_KEY_BYTES) as u64;
/// Number of tables of deleted prefixes that are in memory at most, in addition to one for each scan: the current
/// table, the next one, two older ones to which the state returns after a rejected command, and those that short reads
/// still use, counted as two.
pub(crate) const OWN_CLEARS_TABLES: u64 = 6;
/// Memory in bytes of a subscription without queued messages.
pub const SUBSCRIPTION_BYTES: u64 = 400;
/// Memory in bytes of a subject for which the list of matching subscriptions is cached.
pub(crate) const CACHED_SUBJECT_BYTES: u64 = 250 + 16 * thalweg_types::limits::CACHED_TARGETS_PER_SUBJECT as u64;
/// Divides `max_subscriptions` to limit the wildcard subscriptions of one client address that can match one subject. At
/// most 1/64 may share a literal first token, and 1/64 may have a wildcard as first token. Each such subscription costs
/// every publish to a matching subject about 100 ns.
pub(crate) const OVERLAPPING_PART: usize = 64;
/// Minimum of the limit on wildcard subscriptions of one client address that can match one subject, however small
/// `max_subscriptions` is.
pub(crate) const MIN_OVERLAPPING: usize = 256;
/// Default time for which a publish waits for subscribers whose full queues block publishers. It is also the default
/// time for which a request to a subject waits for its answer.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of requests to subjects that a native channel has sent and that have no answer yet. A
/// cancelled request counts until its timeout. Further requests get error `too_many_requests`.
pub const MAX_CHANNEL_ASKS: usize = 4096;
/// Maximum number of keys that one page of a scan of a cache returns if the request has no `limit`.
pub const DEFAULT_CACHE_KEYS: u64 = 1000;
/// Maximum number of caches that have metrics of their own: the first ones by name. Further caches are
/// included only in the total number of caches.
pub(crate) const MAX_METRIC_CACHES: usize = 200;
/// Time for which a database snapshot is kept for a client whose connection broke, so that the client can
/// resume it. During this time the log frees no segment, unless the disk is full.
pub const SNAPSHOT_KEEP: Duration = Duration::from_secs(60);
/// Time for which a database snapshot is kept after it was sent to its end, for a client whose connection
/// broke before it received the last chunks. The time is short, because clients almost never need it.
pub const SENT_SNAPSHOT_KEEP: Duration = Duration::from_secs(10);
/// Memory in bytes of a native connection before its handshake ends: its hello, its keys, and TLS records or QUIC data
/// in flight.
pub(crate) const HANDSHAKE_BYTES: u64 = 128 * 1024;
/// Memory in bytes of a UDP socket for received packets.
pub(crate) const QUIC_SOCKET_BYTES: u64 = thalweg_transport::QUIC_RECEIVE_BYTES;
/// Memory in bytes of a QUIC connection for sending, in addition to its windows.
pub const QUIC_SEND_BYTES: u64 = thalweg_transport::QUIC_SEND_BYTES;
/// Maximum number of concurrent channels of a QUIC connection, including the first. A further channel opens
/// only when another one ends. Each channel after the first counts as a connection.
pub const MAX_CONNECTION_CHANNELS: u32 = 64;
/// Maximum time that the server waits at a stop for its QUIC connections to be closed and their clients
/// notified.
pub const QUIC_FAREWELL: Duration = Duration::from_millis(500);
/// Maximum number of threads that serve the connections of one protocol.
pub(crate) const MAX_CONNECTION_THREADS: u32 = 256;
/// Maximum number of threads for blocking reads of the connections of one protocol.
pub(crate) const MAX_BLOCKING_THREADS: usize = 512;
/// Maximum number of scans that Redis clients have begun and not finished, for which the server stores a
/// position.
pub const MAX_RESP_CURSORS: usize = 16_384;
/// Maximum total bytes of the stored positions of Redis clients' scans.
pub const MAX_RESP_CURSOR_BYTES: usize = 4 * 1024 * 1024;
/// Number of stored scan positions (cursors) that need as much memory as the queue of one client address. In the limit
/// on cursors, each address after the first counts as this many.
pub const ADDRESS_CURSORS: usize = 3;
/// Memory in bytes of all scans of Redis clients that are not finished: the stored positions, and for each position an
/// entry in a table and one in a queue.
pub(crate) const RESP_CURSORS_BYTES: u64 = (MAX_RESP_CURSOR_BYTES + MAX_RESP_CURSORS * 96) as u64;
/// Memory in bytes of the reservation for an object that a client has created.
const SHARE_BYTES: u64 = 100;
/// Largest memory in bytes of a stream: its fixed fields, a name of the maximum length, and the reservation for its
/// creator.
pub(crate) const STREAM_BYTES: u64 = 300 + MAX_NAME_BYTES as u64 + SHARE_BYTES;
/// Number of members whose memory is counted with a consumer group itself. A group with fewer members accepts a new
/// member even if the memory for stored objects is used up.
pub(crate) const FREE_MEMBERS: usize = 4;
/// Memory in bytes of the entry that states which client address was the last to fetch from a consumer group.
const FETCHER_BYTES: u64 = 50;
/// Largest memory in bytes of a consumer group with [`FREE_MEMBERS`] and without records: its fixed fields, two names
/// of the maximum length, the reservation for its creator, and the address of the last client that fetched.
pub(crate) const GROUP_BYTES: u64 =
    600 + 2 * MAX_NAME_BYTES as u64 + FREE_MEMBERS as u64 * MEMBER_BYTES + SHARE_BYTES + FETCHER_BYTES;
/// Largest memory in bytes of a member of a consumer group. The group stores the member's name twice.
pub(crate) const MEMBER_BYTES: u64 = 100 + 2 * MAX_MEMBER_NAME_BYTES as u64;
/// Maximum memory in bytes that a consumer group needs for each record that waits for an ack or for redelivery, and
/// for each dead letter.
pub(crate) const UNSETTLED_BYTES: u64 = 100;
/// Largest memory in bytes of a lease, with the reservation for its creator.
pub(crate) const LEASE_BYTES: u64 = 120 + SHARE_BYTES;
/// Number of bytes of request bodies that each connection holds without being charged to `max_body_bytes_in_flight`.
/// They are part of the memory of the connection. So small requests are admitted while large ones use up the bound.
pub const OWN_BODY_BYTES: usize = 16 * 1024;
/// Step in bytes in which the memory of a large request grows, and is charged, while its bytes arrive.
pub const BODY_STEP_BYTES: usize = 64 * 1024;
/// Maximum number of HTTP connections above `max_connections`. These connections get answers only to requests for the
/// health, readiness, metrics and status of the server.
pub const MAX_STATUS_CONNECTIONS: usize = 32;
/// Maximum time until the head of a request has arrived on a connection above `max_connections`.
pub const STATUS_HEADER_TIMEOUT: Duration = Duration::from_secs(2);
