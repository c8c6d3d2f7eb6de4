//! Tests of the public interface: subjects, queues and caches. `../memory.rs` counts allocations in a
//! separate process.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

#[path = "../common/mod.rs"]
mod common;

mod bounds;
mod cache;
mod groups;
mod matching;
mod nodes;
mod queues;
mod threads;
