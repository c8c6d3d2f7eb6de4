//! Tests of a group's log.

mod common;

mod contract;
mod golden;
mod model;
mod power_loss;
mod syncs;
