//! Tests of the backends: one common suite, and disk faults. Tests of the state machine over them are in the state
//! crate.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod backend_support;

mod backend_faults;
mod backend_suite;
mod cold_reads;
mod flips;
mod flushing;
mod formats;
mod replacing;
mod store_faults;
mod warming;
