//! Redis clients, served: RESP2 and RESP3 over TCP. `docs/redis.md` says which commands there are and what differs;
//! `thalweg-redis` does them.
//!
//! Owns: connections from accept to end, sessions (transactions, watched keys, databases by number, blocking reads, cursors),
//! and which commands are committed together. Does not own commands on keys, nor where keys are: a database is one of two
//! kinds (`database`), by when a command's reply is known.
//!
//! # How a command goes through
//!
//! One task a connection does all for it (`connection`), on one thread
//! ([`threads`](thalweg_serving::threads), [`gathering`]). What came with one read is parsed where it lies and given to the
//! `session`, command by command. In a cache, and while a burst has not written yet, a command is done there and then,
//! and its reply is put into the outbox. The first command that writes to a keyspace begins a `burst`: from then on all
//! that came along is proposed as one command of the log, at the end of what was read; its replies are written when it is
//! durable. What all connections of a thread have proposed becomes one entry when the thread has nothing else to do. The outbox
//! is written once a turn. While a burst is on its way its client is not listened to, but read: so what
//! a client sends meanwhile is the next burst, and the slower the disk the larger it is.
//!
//! # Bounds
//!
//! Connections count against HTTP's; bursts on their way against `max_requests_in_flight`, blocked reads against `max_tails`.
//! A connection holds at most twice [`READ_BYTES`](thalweg_redis::wire::READ_BYTES) of requests, one request above that (larger
//! than 64 KiB it counts against `max_body_bytes_in_flight` from its announcement on), a transaction that is being queued (above
//! 64 KiB it counts there, too) and 1 MiB of watched keys, a burst, and about
//! [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) and the replies of one burst for its client. When it is idle, nothing but
//! its state.
//!
//! # What it should cost
//!
//! Estimates, for a measurement to confirm or refute. A cache `GET` with one in flight: reading and writing the socket 5 µs,
//! being woken 1 µs, parsing, finding the command, looking it up and writing the reply 0.2 µs: so 150 k/s for a core, and
//! redis-server the same with one thread. Pipelined by 16: the calls and the wake are shared, 0.4 µs + 0.2 µs a command, 1.6
//! M/s for a core. A durable `SET`: its arguments are copied three times (burst, command, frame), 0.1 µs; its share of the
//! entry 0.5 µs, and of the fsync.

#![warn(unreachable_pub)]

mod about;
mod blocking;
mod burst;
pub mod cache;
mod client;
mod client_commands;
mod commands;
mod config_commands;
mod connection;
mod connection_commands;
mod cursors;
mod database;
pub mod databases;
mod failure;
pub mod gathering;
mod keyspaces;
pub mod listen;
pub mod metrics;
mod native_streams;
mod out;
mod publish_commands;
mod pubsub;
mod queued;
mod session;
mod shared;
mod subscribe_commands;
mod transaction;
mod wait;
mod waiting;

pub use shared::Resp;
