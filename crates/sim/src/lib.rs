//! Deterministic simulation of a cluster: whole replicas on simulated disks, networks and clocks, in one thread.
//!
//! Owns: the runtime, the faults, the clients and the oracles. Does not own: the simulated code, which is that of the
//! product: the database of a node (`engine`, with `log`, `state`, `store`, `replica`) and its consensus (`raft`).
//!
//! ```text
//! simulation ── faults ──> cluster ── network, nodes ──> truth ────┐
//!      │                      ^                                    ├─> oracle, search ─> report
//!      ├────── clients ───────┤───────────────────────> history ───┤
//!      └──── subscribers ─────┴───────────────────────> followed ──┘
//! ```
//!
//! Invariant: a simulation is a function of its settings. `docs/simulation.md` explains how to run, read and extend
//! simulations.

pub mod artifact;
pub mod backends;
pub mod cluster;
pub mod failing_syncs;
pub mod faults;
pub mod followed;
pub mod history;
pub mod linear;
pub mod logs;
pub mod model;
pub mod network;
pub mod node;
pub mod oracle;
pub mod plant;
pub mod planted_disk;
pub mod report;
pub mod running;
pub mod runtime;
pub mod search;
pub mod settings;
pub mod shrink;
pub mod simulation;
pub mod snapshots;
pub mod truth;
pub mod types;

mod clients;
mod commands;
mod serve;
mod subscribers;
mod witness;

pub use plant::Plant;
pub use report::Report;
pub use settings::Settings;
pub use simulation::run;
