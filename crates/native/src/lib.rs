//! Server of the native protocol. `docs/formats/wire.md` describes the frames of a connection, `thalweg-wire` encodes
//! them, and `thalweg-transport` moves them to and from the socket.
//!
//! Owns: connections and channels from accept to goodbye, and the call of the engine or the broker for each frame. Does
//! not own: encodings, sockets, the work of those calls, and the limits and errors that all protocols share
//! (`thalweg-serving`).
//!
//! # Path of a frame
//!
//! Each channel has one task. Over plain TCP, the task runs on one of the [`threads`](thalweg_serving::threads).
//! `listen` accepts a connection, and `connection` does the handshake and starts a `channel` task. The task reads bytes
//! into the decoder, and `dispatch` calls a handler for each complete frame. The reply goes into the channel's outbox
//! (`replies`), either immediately or when the request's future completes; `requests` holds these futures. The task
//! writes the outbox at the end of its turn. So a get needs no switch between tasks, and a durable put needs only those
//! to and from the committer. Pipelined requests are read, committed and answered together.
//!
//! # Rules for handlers
//!
//! A handler is a function `(turn, request, frame) -> Result<Handled, Failure>`. It never blocks, because it shares its
//! thread with other connections. A handler does one of the following:
//!
//! * It answers **immediately** with `turn.out.reply(request.id, &frame)?` and returns `Handled::Replied`.
//! * It answers **later** with `Handled::later(async move { ... Ok(Reply::frame(..)) })`. The future owns its data. A
//!   cancel or the request's timeout drops the future and sends the answer, so the future must not hold anything that
//!   must not be lost. `Handled::LaterWithEffect(..)` is for work that may have an effect before its reply exists, such
//!   as a fetch from a group: the answer to a cancel or a timeout then says so. Disk reads and long reads run on the
//!   threads for long reads: in `blocking::run_blocking`, or in `reads::reply_off_thread` if they build a reply.
//! * It proposes a **command** and returns `Handled::Write(..)`. This allocates only the command. Neither a cancel nor
//!   a timeout stops the command: the client gets its outcome unless the timeout expires first. Commands of one read
//!   are committed as one entry. A write that does more than its command returns `Handled::Unstoppable(..)`. Commands
//!   that read rows from the disk wait in `turn.writes` (`write_queue`) until the rows are read.
//! * It **pauses the channel** through `turn.subjects`: while a publish waits for room at a subscriber, the channel
//!   handles no further frame.
//! * It **begins a subscription**: puts the first frame (`tailing`...) into the outbox and returns
//!   `Handled::Began(source)`. The channel then requests one frame after the other from the `Source`, as far as credit,
//!   limit and outbox permit. Subscriptions to subjects are different, because the broker feeds them:
//!   `subjects::Subjects` owns their link, supplies frames in each turn, and receives the client's credits and cancels.
//! * It **fails** with a `Failure`, made `From` the error of the layer below; the channel sends it to the client.
//!
//! Bytes that outlive the frame (`request.share(part)`) share the memory of the receive buffer.
//!
//! # Limits
//!
//! Connections, requests in progress and tails count against the limits that HTTP uses too. A channel has at most
//! [`MAX_CHANNEL_REQUESTS`](thalweg_serving::limits::MAX_CHANNEL_REQUESTS) pending requests. About
//! [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) plus one frame wait for its client. Writes that wait for
//! rows from the disk count against `max_body_bytes_in_flight`, and the channel handles no further frame while it has
//! many of them. Frames above 64 KiB count against `max_body_bytes_in_flight` while they arrive; smaller frames fit
//! into the channel's receive buffer. Replies of [`COUNTED_REPLY_BYTES`](thalweg_serving::limits::COUNTED_REPLY_BYTES)
//! or more count against `max_reply_bytes_in_flight` until they are sent. So do the replies that
//! `reads::reply_off_thread` builds before the channel can send them. A read without room fails with `overloaded`; a
//! large frame of a subscription waits for room. Batches for subscribers to subjects are not counted, because the
//! subscribers share them.
//!
//! # Expected cost
//!
//! These are estimates without the socket calls, to be confirmed or refuted by measurement. A get of a key in memory
//! takes about 1 µs: decoding and encoding 0.1, admission 0.05, metrics and clock 0.1, and the lookup. A pipelined
//! durable put takes 1 µs here (its frame is copied once, its slot allocated, its future polled twice) plus its share
//! of the committer's work. An append of 500 × 128 B takes 15 µs for a copy of 70 KB and a check of its records. That
//! is 30 M records/s before the disk becomes the limit. Reads of thousands of records of 1 KB make no copies except the
//! log's read and the socket's write.

mod blocking;
mod caches;
mod catalog;
mod channel;
mod connection;
mod deliveries;
mod dispatch;
mod event_source;
mod failure;
mod groups;
pub mod listen;
mod members;
pub mod metrics;
mod publishing;
mod push;
mod reads;
mod records;
mod replies;
mod request;
mod requests;
mod scans;
pub mod security;
mod session;
mod shared;
mod stages;
mod status;
mod step;
mod stream_start;
mod streams;
mod subject_requests;
mod subjects;
mod subscription;
mod tail;
#[cfg(test)]
mod test_node;
mod turn;
mod watch_source;
mod watches;
mod write;
mod write_queue;

pub use shared::Native;
