//! Deterministic simulation of a cluster.

pub mod runtime;
