//! Tests of the log's public interface.

#![allow(unreachable_pub, reason = "a test program has no interface")]
#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

mod common;

mod basic;
mod corruption;
mod faults;
mod golden;
mod model;
mod power_loss;
mod space;
mod truncations;
mod try_append;
