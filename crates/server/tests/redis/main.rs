//! Tests of Redis clients against a server in this process, compared with redis-server where both should agree.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds, and why a test is skipped")]

#[path = "../../../redis/tests/support/mod.rs"]
mod oracle;
#[path = "../support/mod.rs"]
mod support;

mod blocking;
mod cluster;
mod cold_reads;
mod commands;
mod databases;
mod differential;
mod fetched;
mod limits;
mod long_reads;
mod long_work;
mod pubsub;
mod shares;
mod statistics;
mod streams;
mod tools;
mod waiting;
