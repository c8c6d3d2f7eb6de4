//! The server's own bounds. Those that a user may turn are in [`crate::config`].

use std::time::Duration;

/// Bytes of JSON or records that a scan prepares at a time; a single larger pair makes a larger page.
pub const SCAN_PAGE_BYTES: usize = 256 * 1024;
/// Bytes of such a page, as it is sent, above which it is counted against `max_reply_bytes_in_flight`: only larger pairs and
/// records make it so large.
pub const COUNTED_PAGE_BYTES: usize = 2 * SCAN_PAGE_BYTES;
/// Pairs or records of a page, so that a page of tiny ones does not hold a thread for long.
pub const SCAN_PAGE_ITEMS: usize = 4096;
/// A scan for at most so many pairs is read on the spot, without a blocking thread.
pub const INLINE_SCAN_ITEMS: u64 = 128;
/// Bytes that a tail reads at a time.
pub const TAIL_PAGE_BYTES: usize = 64 * 1024;
/// The same for a page of a tail.
pub const COUNTED_TAIL_BYTES: usize = 2 * TAIL_PAGE_BYTES;
/// Records that a tail reads at a time.
pub const TAIL_PAGE_ITEMS: u64 = 1024;
/// Bytes of one pushed delivery, as much as a tail reads; a single larger record makes a larger one.
pub const PUSH_PAGE_BYTES: u64 = TAIL_PAGE_BYTES as u64;
/// What a push remembers of what its receiver holds, at most.
pub(crate) const PUSH_LEDGER_BYTES: u64 = 16 * thalweg_types::limits::MAX_CREDIT_RECORDS as u64;
/// Records that a read without `limit` answers.
pub const DEFAULT_RECORDS: u64 = 1000;
/// Bytes that a record read without `max_bytes` answers, about.
pub const DEFAULT_RECORD_BYTES: u64 = 1024 * 1024;
/// Streams that a list without `limit` answers.
pub const DEFAULT_LISTED: u64 = 1000;
/// A list of at most so many is made on the spot, a longer one on a blocking thread: a thousand take about 2 ms.
pub const INLINE_LISTED: u64 = 128;
/// Most that one reply lists.
pub const MAX_LISTED: u64 = 10_000;
/// Keys of a lease that its description shows without `limit`.
pub const DEFAULT_LEASE_KEYS: usize = 100;
/// Most that it shows.
pub const MAX_LEASE_KEYS_SHOWN: usize = 1000;
/// Pairs that a `/keys/range` without `limit` answers.
pub const DEFAULT_RANGE_ITEMS: u64 = 1000;
/// Size of a connection's read buffer; a request head above it is answered 431 (HTTP/1).
pub const READ_BUFFER_BYTES: usize = 64 * 1024;
/// Consumer groups of which metrics show figures, the oldest; others are counted only.
pub(crate) const MAX_METRIC_GROUPS: usize = 200;
/// Header fields of a request; more is answered 431.
pub const MAX_HEADER_FIELDS: usize = 64;
/// Bytes of an HTTP/2 request's header list.
pub const MAX_HEADER_LIST_BYTES: u32 = 64 * 1024;
/// Requests at a time on one HTTP/2 connection.
pub const MAX_H2_STREAMS: u32 = 128;
/// Longest `x-request-id` taken over from a client; a longer one is replaced.
pub const MAX_REQUEST_ID_BYTES: usize = 64;
/// What an open connection can hold: read buffer, write buffer and bookkeeping.
pub(crate) const CONNECTION_BYTES: u64 = 160 * 1024;
/// Bytes waiting for a native client from which on nothing more is done for its channel. One frame may pass it, and is
/// counted if it is a large one.
pub const OUTBOX_BYTES: usize = 128 * 1024;
/// Requests under way on a native channel; more are `overloaded`.
pub const MAX_CHANNEL_REQUESTS: u32 = 1024;
/// Subscriptions of a native channel; more are `overloaded`. Tails, pushes and watches are bounded further, by `max_tails`.
pub const MAX_CHANNEL_SUBSCRIPTIONS: u32 = thalweg_types::limits::MAX_LINK_SUBSCRIPTIONS as u32;
/// Bytes of a reply from which on it is counted against `max_reply_bytes_in_flight`: what is smaller is among the bytes of its
/// connection.
pub const COUNTED_REPLY_BYTES: usize = 128 * 1024;
/// Turns that a native channel takes before others on its thread have one.
pub const MAX_TURNS: usize = 32;
/// Bytes of a native read that are read on the spot; more are read on a blocking thread.
pub const INLINE_READ_BYTES: u64 = 64 * 1024;
/// The same for a channel that has the server to itself.
pub const ALONE_READ_BYTES: u64 = 4 * 1024 * 1024;
/// How long what waits for room for a large page or frame lets others go on before it looks again.
pub const ROOM_PAUSE: Duration = Duration::from_millis(20);
/// Bytes that reads on blocking threads may have asked for at a time: more wait, because what is read is counted only
/// once it is a reply. What one asks for is about what it holds, and as much again while its frame is put together.
pub(crate) const MAX_READING_BYTES: u32 = 64 * 1024 * 1024;
/// About so many bytes does a native tail send in a frame; one larger append makes a larger one.
pub const NATIVE_PAGE_BYTES: u64 = 256 * 1024;
/// What a request in flight holds beside its body.
pub const REQUEST_BYTES: u64 = 4 * 1024;
/// What a subscription takes while nothing waits for it.
pub const SUBSCRIPTION_BYTES: u64 = 400;
/// What a subject takes whose matches are remembered.
pub(crate) const CACHED_SUBJECT_BYTES: u64 = 250;
/// How long a publish, or a request for an answer, waits if it does not say: for subscribers that ask publishers to wait,
/// and for the answer.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(5);
/// What a channel has asked and nobody has answered, those included that were cancelled and whose time is not up. More is
/// `too_many_requests`.
pub const MAX_CHANNEL_ASKS: usize = 4096;
/// Keys that a page of a cache's scan shows without `limit`.
pub const DEFAULT_CACHE_KEYS: u64 = 1000;
/// Caches of which metrics show figures, the first by name; others are counted only.
pub(crate) const MAX_METRIC_CACHES: usize = 200;
/// How long a snapshot is kept for a client whose connection broke. Meanwhile the log frees no segment, unless the
/// disk is full.
pub const SNAPSHOT_KEEP: Duration = Duration::from_secs(60);
/// How long one is kept that was sent to its end, for a client whose connection broke while the last of it was on its
/// way: less, because nearly always nobody comes.
pub const SENT_SNAPSHOT_KEEP: Duration = Duration::from_secs(10);
/// What a native connection holds before it has said who it is: its hello, TLS records or what QUIC has in flight, keys.
pub(crate) const HANDSHAKE_BYTES: u64 = 128 * 1024;
/// What a UDP socket holds to receive at once.
pub(crate) const QUIC_SOCKET_BYTES: u64 = thalweg_transport::QUIC_RECEIVE_BYTES;
/// What a QUIC connection holds to send from, beside its windows.
pub const QUIC_SEND_BYTES: u64 = thalweg_transport::QUIC_SEND_BYTES;
/// Channels of a QUIC connection at a time, the first among them; more wait for one to end. Each further one counts as a
/// connection.
pub const MAX_CONNECTION_CHANNELS: u32 = 64;
/// Longest wait at a stop until QUIC has told its peers.
pub const QUIC_FAREWELL: Duration = Duration::from_millis(500);
/// Threads that serve connections of a kind.
pub(crate) const MAX_CONNECTION_THREADS: u32 = 256;
/// Threads on which connections of a kind have read what may come from the disk.
pub(crate) const MAX_BLOCKING_THREADS: usize = 512;
/// Scans of Redis clients that may be under way.
pub const MAX_RESP_CURSORS: usize = 16_384;
/// Bytes of their positions.
pub const MAX_RESP_CURSOR_BYTES: usize = 4 * 1024 * 1024;
/// What all of them take: positions, and a table entry and a place in the queue for each.
pub(crate) const RESP_CURSORS_BYTES: u64 = (MAX_RESP_CURSOR_BYTES + MAX_RESP_CURSORS * 72) as u64;
