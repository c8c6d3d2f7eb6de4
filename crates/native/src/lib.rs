//! The native protocol, served: `docs/formats/wire.md` says what goes over a connection, `thalweg-wire` its bytes,
//! `thalweg-transport` how they get to the socket.
//!
//! Owns: connections and channels from accept to goodbye, and which call of the engine or the broker each frame is.
//! Does not own: encodings, sockets, what the calls do; bounds and errors that HTTP has too (`admission`, `error`).
//!
//! # How a frame goes through
//!
//! One task a channel does all for it, over plain TCP on one of the [`threads`](thalweg_serving::threads). `listen`
//! accepts, `connection` does the handshake and starts a `channel` task; that reads into the decoder, and for each whole frame `dispatch` calls a handler. The reply goes into the channel's
//! outbox (`replies`): at once, or when the request's future is done, which `requests` holds with all others of the
//! channel. At the end of the turn the outbox is written. So a get costs no hand-over between tasks, a durable put
//! those of the committer alone, and what a client pipelines is read, committed and answered together.
//!
//! # What a handler does
//!
//! A handler is a function `(turn, request, frame) -> Result<Handled, Failure>` that never blocks, because other connections
//! are on its thread:
//!
//! * It answers **at once** with `turn.out.reply(request.id, &frame)?` and gives `Handled::Replied`.
//! * It answers **later** with `Handled::later(async move { ... Ok(Reply::frame(..)) })`. The future owns what it needs.
//!   A cancel, or the request's timeout, drops it and answers; so what it must not lose, it must not hold. What waits
//!   for a disk is read there, by `blocking::off_thread`, or `reads::reply_off_thread` if that makes the reply.
//! * It proposes a **command** and gives `Handled::Write(..)`: no allocation but the command's, and no dropping: its outcome
//!   is told unless the client's time is up. What came with one read is committed as one entry.
//!   A write that is more than its command is `Handled::Unstoppable(..)`.
//! * It makes the **channel wait** by what it leaves in `turn.subjects`: while a publish waits for a subscriber's room, no
//!   further frame is looked at.
//! * It **begins a subscription**: puts the begin (`tailing`...) into the outbox and gives `Handled::Began(source)`. The channel
//!   then asks the `Source` for one frame after the other, as far as credit, limit and
//!   outbox go. Subscriptions to subjects are fed by the broker instead: `subjects::Subjects` owns the channel's link, is
//!   asked for frames in each turn, and gets what the client permits and cancels.
//! * It **fails** with a `Failure`, made `From` the error of the layer below: the channel tells the client.
//!
//! What is shared (`request.share(part)`) is memory of the receive buffer: for bytes that travel on at once.
//!
//! # Bounds
//!
//! Connections, requests in flight and tails count against HTTP's bounds. A channel has at most
//! [`MAX_CHANNEL_REQUESTS`](thalweg_serving::limits::MAX_CHANNEL_REQUESTS) requests under way, and about
//! [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) and one frame waiting for its client. Frames above 64 KiB count
//! against `max_body_bytes_in_flight` while they arrive; smaller ones fit into the channel's receive buffer. Replies above
//! [`COUNTED_REPLY_BYTES`](thalweg_serving::limits::COUNTED_REPLY_BYTES) count against `max_reply_bytes_in_flight` until they are sent, and so does what
//! `reads::reply_off_thread` puts together before its turn: a read without room is `overloaded`, a subscription's large
//! frame waits for room. Not counted are batches that go to subscribers to subjects, which share them.
//!
//! # What it should cost
//!
//! Estimates, for a measurement to confirm or refute; without the socket calls. A get of a key in memory: about 1 µs, of which
//! decoding and encoding 0.1, admission 0.05, metrics and clock 0.1, the lookup the rest. A pipelined durable put: 1 µs here
//! (its frame is copied once, its slot allocated, its future polled twice) beside its share of the committer's. An append of
//! 500 × 128 B: a copy of 70 KB and a walk over its records to check them, 15 µs, so 30 M records/s before the disk is the
//! bound. Reading records of 1 KB by the thousand: no copy but the log's read and the socket's write.

#![warn(unreachable_pub)]

mod blocking;
mod caches;
mod catalog;
mod channel;
mod connection;
mod deliveries;
mod dispatch;
mod failure;
mod groups;
pub mod listen;
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
mod status;
mod step;
mod streams;
mod subject_requests;
mod subjects;
mod subscription;
mod tail;
mod turn;
mod watches;
mod watching;
mod write;

pub use shared::Native;
