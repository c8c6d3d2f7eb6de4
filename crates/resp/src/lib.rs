//! Server of the Redis protocol: RESP2 and RESP3 over TCP. `docs/redis.md` lists the commands and the differences from
//! Redis; `thalweg-redis` implements them.
//!
//! Owns: connections from accept to end, sessions (transactions, watched keys, databases by number, blocking reads,
//! cursors), and the grouping of commands into commits. Does not own commands on keys, nor the storage of keys: a
//! database is one of two kinds (`database`), which differ in when a command's reply is known.
//!
//! # Path of a command
//!
//! Each connection has one task (`connection`) on one thread ([`threads`](thalweg_serving::threads), [`gathering`]).
//! The commands of one read are parsed in place and passed to the `session` one by one. In a cache, and while a burst
//! has not begun, a command runs immediately and its reply goes into the outbox. The first command that writes to a
//! keyspace begins a `burst`: all later commands of the same read are proposed with it as one command of the log, and
//! their replies are written once it is durable. The commands that all connections of a thread have proposed become one
//! entry when the thread has nothing else to do. If rows that the burst reads are not in memory, other threads read
//! them before it is proposed. The outbox is written once a turn. While a burst is pending, its client's requests are
//! read but not handled. They form the next burst, so bursts grow as the disk gets slower.
//!
//! # Limits
//!
//! Connections count against HTTP's limit, pending bursts against `max_requests_in_flight`, and blocked reads against
//! `max_tails`. A connection holds at most twice [`READ_BYTES`](thalweg_redis::wire::READ_BYTES) of requests, one
//! request beyond that (above 64 KiB its received bytes count against `max_body_bytes_in_flight`),
//! a queued transaction (above 64 KiB it counts there, too), 1 MiB of watched keys, a burst, and about
//! [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) plus the replies of one burst for its client. An idle
//! connection holds only its state.
//!
//! # Expected cost
//!
//! Estimates to be confirmed or refuted by measurement. A cache `GET` with one request in flight: 5 µs to read and
//! write the socket, 1 µs for the wakeup, 0.2 µs to parse, find the command, look up the key and write the reply. That
//! is 150 k/s for a core, the same as redis-server with one thread. Pipelined by 16: calls and wakeup are shared, 0.4
//! µs + 0.2 µs a command, 1.6 M/s for a core. A durable `SET`: three copies of its arguments (burst, command, frame),
//! 0.1 µs, and 0.5 µs for its share of the entry, plus its share of the fsync.

mod auth_failures;
mod blocking;
mod bounds;
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
mod dispatch;
mod emptying;
mod failure;
pub mod gathering;
mod introspection;
mod keyspaces;
pub mod listen;
mod long_read;
mod long_reads;
mod lookahead;
pub mod metrics;
mod named_keyspace;
mod native_streams;
mod ongoing;
mod out;
mod proposing;
mod publish_commands;
mod pubsub;
mod queued;
mod read_ahead;
mod replies;
mod reply_room;
mod session;
mod shared;
mod slices;
mod statistics;
mod subscribe_commands;
mod transaction;
mod value_reads;
mod wait;
mod waiting;

pub use shared::Resp;
