//! Server of the Redis protocol: RESP2 and RESP3 over TCP. `docs/redis.md` lists the commands and the differences from
//! Redis; `thalweg-redis` implements them.
//!
//! Owns: connections from accept to end, sessions (transactions, watched keys, databases by number, blocking reads,
//! cursors), and the grouping of commands into commits. Does not own commands on keys, nor the storage of keys. There
//! are two kinds of databases (`database`): one replies to a command immediately, and the other after a commit.
//!
//! # Path of a command
//!
//! Each connection has one task (`connection`) on one thread ([`threads`](thalweg_serving::threads), [`gathering`]).
//! The commands of one read from the socket are parsed in place and passed to the `session` one by one. In a cache, and
//! while no burst has begun, a command runs immediately and its reply goes into the outbox. The first command that
//! writes to a keyspace begins a `burst`. All later commands of the same read are proposed together with it, as one
//! command of the log. Their replies are written when this command is durable. When the thread has nothing else to do,
//! the proposed commands of all its connections become one log entry. If rows that a burst needs are not in memory,
//! other threads read them before the burst is proposed. The outbox is written once in each turn. While a burst is
//! pending, the requests of its client are read but not handled. They form the next burst, so bursts grow when the disk
//! gets slower.
//!
//! # Limits
//!
//! Connections count towards HTTP's limit, pending bursts towards `max_requests_in_flight`, and blocked reads towards
//! `max_tails`. Maximum memory of one connection:
//! - twice [`READ_BYTES`](thalweg_redis::wire::READ_BYTES) of requests, and one larger request; above 64 KiB, its
//!   received bytes count towards `max_body_bytes_in_flight`
//! - a queued transaction; above 64 KiB, it counts towards `max_body_bytes_in_flight` too
//! - 1 MiB of watched keys, and a burst
//! - about [`OUTBOX_BYTES`](thalweg_serving::limits::OUTBOX_BYTES) for the client, and the replies to one burst
//!
//! An idle connection holds only its state.
//!
//! # Expected cost
//!
//! These are estimates, to be checked by measurement. A `GET` from a cache, with one request in flight: 5 µs to read
//! and write the socket, 1 µs for the wakeup, and 0.2 µs to parse, find the command, look up the key and write the
//! reply. This makes 150,000 a second for a core, as many as redis-server with one thread. With pipelines of 16
//! commands, the system calls and the wakeup are shared: 0.4 µs + 0.2 µs a command, or 1.6 million a second for a core.
//! A durable `SET`: three copies of its arguments (burst, command, frame) take 0.1 µs, and its share of the log entry
//! 0.5 µs. Its share of the fsync comes in addition.

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
