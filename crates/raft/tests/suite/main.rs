//! Tests of a space's log.

mod common;

mod contract;
mod golden;
mod model;
mod power_loss;
mod syncs;
