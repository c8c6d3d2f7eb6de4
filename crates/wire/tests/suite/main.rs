//! Tests of the protocol's bytes against its document. The test in `../allocation.rs` has a process of its own,
//! because it counts allocations.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod common;
mod samples;

mod commands;
mod document;
mod golden;
mod peer;
mod peer_robustness;
mod robustness;
