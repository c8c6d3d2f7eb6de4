//! Servers killed repeatedly under load, and checks of the answers that their clients got.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../mount/mod.rs"]
mod mount;
#[path = "../node/mod.rs"]
mod node;
#[path = "../redis/mod.rs"]
mod redis;

mod clock;
mod crash;
mod group_history;
mod group_oracle;
mod history;
mod linearizability;
mod redis_crash;
mod redis_histories;
mod serializability;
