//! Measurements and their evaluation, without load and without servers.
//!
//! Owns: histograms of durations ([`latency`]), resource usage of a process ([`usage`]) and control groups that limit
//! it ([`control_group`]), seeded randomness ([`random`]), statistics over rounds ([`stats`]) and over series whose
//! values depend on each other ([`estimate`]), the samples of a run ([`samples`]), the comparison of two measurements
//! ([`comparison`]), reports as text, JSON and HTML ([`report`]), profiles of a process ([`profile`]) and their place
//! in a report ([`profiling`]), and the list of runs that give the documented figures, with their repetition
//! ([`regenerate`]). Does not own: workloads, load generators and suites, which are in the crates `bench`,
//! `bench-cluster` and `bench-pressure` above this one.
//!
//! Invariant: this crate itself measures only the resources and profiles of processes. The functions that evaluate take
//! numbers and return numbers, so tests use synthetic data whose true answer is known.

pub mod comparison;
pub mod control_group;
mod embedded;
mod error;
pub mod estimate;
pub mod latency;
mod machine;
pub mod profile;
pub mod profiling;
mod progress;
pub mod random;
pub mod regenerate;
pub mod report;
pub mod samples;
pub mod scratch;
pub mod spectrum;
pub mod stats;
mod student;
pub mod usage;

pub use error::BenchError;
pub use machine::{Build, Machine};
pub use progress::{Progress, Quiet, Stderr};
pub use report::Report;
pub use samples::Samples;
pub use scratch::Scratch;
pub use spectrum::Spectrum;
