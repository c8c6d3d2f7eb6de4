//! The command and the server as users run them: processes and their output.

#![allow(unreachable_pub, reason = "a test program has no interface")]

#[path = "../node/mod.rs"]
mod node;
#[path = "../redis/mod.rs"]
mod redis;

mod backup;
mod client;
mod coordination;
mod crate_sizes;
mod doctor;
mod files;
mod groups;
mod guides;
mod layering;
mod memory;
mod million;
mod module_circles;
mod permissions;
mod plan;
mod prose;
mod redis_clients;
mod redis_limits;
mod serve;
mod shipped;
mod space;
mod terminal;
mod tools;
mod top;
mod tour;
