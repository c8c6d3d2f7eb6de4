//! Tests of both disks, real and simulated, through their common trait.

#![allow(unreachable_pub, reason = "a test program has no interface")]

mod support;

mod conformance;
mod contract;
mod differential;
mod faults;
mod permissions;
mod power;
