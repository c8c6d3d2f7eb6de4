//! Real files and the simulated disk, at the trait that both implement.

mod support;

mod conformance;
mod contract;
mod differential;
mod faults;
mod power;
