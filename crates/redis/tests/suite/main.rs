//! Tests of Redis's commands over an in-memory store.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

#[path = "../support/mod.rs"]
mod support;

mod differential;
mod documented;
mod robust;
mod streams;
