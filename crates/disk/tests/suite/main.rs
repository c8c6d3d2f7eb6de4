//! Tests of both disks, real and simulated, through their common trait.

mod support;

mod conformance;
mod contract;
mod differential;
mod faults;
mod permissions;
mod power;
