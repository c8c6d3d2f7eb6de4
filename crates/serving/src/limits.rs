//! Fixed bounds of the server. Configurable bounds are in [`crate::config`].

use std::time::Duration;

/// Size in bytes of a page of JSON or records that a scan prepares. A single larger pair makes a larger page.
pub const SCAN_PAGE_BYTES: usize = 256 * 1024;
/// Size in bytes of such a page, as sent, above which it counts in `max_reply_bytes_in_flight`. Only pages with large
/// pairs or records reach it.
pub const COUNTED_PAGE_BYTES: usize = 2 * SCAN_PAGE_BYTES;
/// Maximum number of pairs or records of a page, so that a page of tiny ones does not hold a thread for long.
pub const SCAN_PAGE_ITEMS: usize = 4096;
/// Maximum limit of a scan that is read on the calling thread; longer scans use a blocking thread.
pub const INLINE_SCAN_ITEMS: u64 = 128;
/// Size in bytes of a page that a tail reads.
pub const TAIL_PAGE_BYTES: usize = 64 * 1024;
/// Size in bytes of a page of a tail, as sent, above which it counts in `max_reply_bytes_in_flight`.
pub const COUNTED_TAIL_BYTES: usize = 2 * TAIL_PAGE_BYTES;
/// Maximum number of records that a tail reads at a time.
pub const TAIL_PAGE_ITEMS: u64 = 1024;
/// Size in bytes of one pushed delivery, as much as a tail reads. A single larger record makes a larger delivery.
pub const PUSH_PAGE_BYTES: u64 = TAIL_PAGE_BYTES as u64;
/// Maximum memory in bytes to remember which records the receiver of a push holds unsettled.
pub(crate) const PUSH_LEDGER_BYTES: u64 = 16 * thalweg_types::limits::MAX_CREDIT_RECORDS as u64;
/// Maximum number of records in the reply to a read without `limit`.
pub const DEFAULT_RECORDS: u64 = 1000;
/// Approximate maximum size in bytes of the reply to a read of records without `max_bytes`.
pub const DEFAULT_RECORD_BYTES: u64 = 1024 * 1024;
/// Maximum number of items in a list without `limit`.
pub const DEFAULT_LISTED: u64 = 1000;
/// Maximum limit of a list that is made on the calling thread; longer lists use a blocking thread. A list of 1000 items
/// takes about 2 ms.
pub const INLINE_LISTED: u64 = 128;
/// Maximum number of items in one list.
pub const MAX_LISTED: u64 = 10_000;
/// Maximum number of keys in the description of a lease without `limit`.
pub const DEFAULT_LEASE_KEYS: usize = 100;
/// Maximum number of keys in the description of a lease.
pub const MAX_LEASE_KEYS_SHOWN: usize = 1000;
/// Maximum number of pairs in the reply to `/keys/range` without `limit`.
pub const DEFAULT_RANGE_ITEMS: u64 = 1000;
/// Size in bytes of a connection's read buffer. A longer request head gets error 431 (HTTP/1).
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Maximum number of consumer groups with figures in metrics: the oldest ones. Others are only counted.
pub(crate) const MAX_METRIC_GROUPS: usize = 200;
/// Maximum number of header fields of a request. More get error 431.
pub const MAX_HEADER_FIELDS: usize = 64;
/// Maximum size in bytes of an HTTP/2 request's header list.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Maximum number of concurrent requests on one HTTP/2 connection.
pub const MAX_H2_STREAMS: u32 = 128;
/// Maximum length in bytes of an `x-request-id` from a client. The server replaces longer ones.
pub const MAX_REQUEST_ID_BYTES: usize = 64;
/// Memory of an open connection in bytes: read buffer, write buffer and bookkeeping.
pub(crate) const CONNECTION_BYTES: u64 = 160 * 1024;
/// Number of bytes queued for a native client from which its channel stops working. One frame may exceed it, and is
/// counted if it is large.
pub const OUTBOX_BYTES: usize = 128 * 1024;
/// Maximum number of requests in progress on a native channel. Further requests get error `overloaded`.
pub const MAX_CHANNEL_REQUESTS: u32 = 1024;
/// Maximum number of subscriptions of a native channel. Further ones get error `overloaded`. `max_tails` also bounds
/// tails, pushes and watches.
pub const MAX_CHANNEL_SUBSCRIPTIONS: u32 = thalweg_types::limits::MAX_LINK_SUBSCRIPTIONS as u32;
/// Size in bytes from which a reply counts in `max_reply_bytes_in_flight`. Smaller replies are included in the memory
/// of their connection.
pub const COUNTED_REPLY_BYTES: usize = 128 * 1024;
/// Number of turns that a native channel takes before other channels on its thread get one.
pub const MAX_TURNS: usize = 32;
/// Maximum size in bytes of a native read on the calling thread; larger ones use a blocking thread.
pub const INLINE_READ_BYTES: u64 = 64 * 1024;
/// Maximum size in bytes of a native read on the calling thread, for a channel that has the server to itself.
pub const ALONE_READ_BYTES: u64 = 4 * 1024 * 1024;
/// Pause of a task that waits for room for a large page or frame, before it checks again.
pub const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// Maximum number of bytes that reads on blocking threads may request at a time. Further reads wait, because the result
/// of a read is counted only as a reply. A read holds about as many bytes as it requested, and the same again while its
/// frame is assembled.
pub(crate) const MAX_READING_BYTES: u32 = 64 * 1024 * 1024;
/// Approximate size in bytes of a frame of a native tail. A single larger append makes a larger frame.
pub const NATIVE_PAGE_BYTES: u64 = 256 * 1024;
/// Memory in bytes of a request in progress, without its body.
pub const REQUEST_BYTES: u64 = 4 * 1024;
/// Memory in bytes of a subscription without queued messages.
pub const SUBSCRIPTION_BYTES: u64 = 400;
/// Memory in bytes of a subject whose matches are cached.
pub(crate) const CACHED_SUBJECT_BYTES: u64 = 250;
/// Default maximum wait of a publish for subscribers that block publishers, and of a request for its answer.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// Maximum number of unanswered requests of a channel. A cancelled request counts until its timeout. Further ones get
/// error `too_many_requests`.
pub const MAX_CHANNEL_ASKS: usize = 4096;
/// Maximum number of keys in a page of a cache's scan without `limit`.
pub const DEFAULT_CACHE_KEYS: u64 = 1000;
/// Maximum number of caches with figures in metrics: the first ones by name. Others are only counted.
pub(crate) const MAX_METRIC_CACHES: usize = 200;
/// Time for which a snapshot is kept for a client whose connection broke. During this time the log frees no segment,
/// unless the disk is full.
pub const SNAPSHOT_KEEP: Duration = Duration::from_secs(60);
/// Time for which a snapshot is kept that was sent to its end, for a client whose connection broke while the last
/// chunks were on their way. It is short, because clients almost never need it.
pub const SENT_SNAPSHOT_KEEP: Duration = Duration::from_secs(10);
/// Memory in bytes of a native connection before its handshake ends: its hello, TLS records or QUIC data in flight,
/// keys.
pub(crate) const HANDSHAKE_BYTES: u64 = 128 * 1024;
/// Memory in bytes of a UDP socket for receiving.
pub(crate) const QUIC_SOCKET_BYTES: u64 = thalweg_transport::QUIC_RECEIVE_BYTES;
/// Memory in bytes of a QUIC connection for sending, in addition to its windows.
pub const QUIC_SEND_BYTES: u64 = thalweg_transport::QUIC_SEND_BYTES;
/// Maximum number of concurrent channels of a QUIC connection, including the first. Further channels wait for one to
/// end. Each channel after the first counts as a connection.
pub const MAX_CONNECTION_CHANNELS: u32 = 64;
/// Maximum time for QUIC to notify its peers of a stop.
pub const QUIC_FAREWELL: Duration = Duration::from_millis(500);
/// Maximum number of threads that serve the connections of one protocol.
pub(crate) const MAX_CONNECTION_THREADS: u32 = 256;
/// Maximum number of threads for blocking reads of the connections of one protocol.
pub(crate) const MAX_BLOCKING_THREADS: usize = 512;
/// Maximum number of concurrent scans of Redis clients.
pub const MAX_RESP_CURSORS: usize = 16_384;
/// Maximum size in bytes of the positions of these scans.
pub const MAX_RESP_CURSOR_BYTES: usize = 4 * 1024 * 1024;
/// Memory in bytes of these scans: the positions, and for each a table entry and a slot in the queue.
pub(crate) const RESP_CURSORS_BYTES: u64 = (MAX_RESP_CURSOR_BYTES + MAX_RESP_CURSORS * 72) as u64;
