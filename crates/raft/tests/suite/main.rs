//! Tests of a space's log.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod common;

mod contract;
mod golden;
mod model;
mod power_loss;
mod read_ahead;
mod starts;
mod syncs;
