//! What Redis clients are told by a server in this process, and by redis-server where it says the same.

#![allow(clippy::print_stdout, reason = "seeds, and why a test is skipped")]

#[path = "../../../redis/tests/support/mod.rs"]
mod oracle;
#[path = "../support/mod.rs"]
mod support;

mod blocking;
mod commands;
mod differential;
mod limits;
mod pubsub;
mod streams;
mod tools;
mod waiting;
