//! The suites of `thalweg bench`: workloads, scenarios and reports.
//!
//! Owns: the suites ([`log`], [`engine`], [`backends`], [`groups`], [`snapshot`], [`http`], and over the native
//! protocol [`pubsub`], [`cache`], [`streams`], over RESP [`resp`], from a file [`scenario`]), and comparisons of two
//! servers ([`compare`]) and with a stored measurement ([`baseline`]). Does not own: the load generator and the ways to
//! reach a server, which are the crate `load`; the suites of several nodes and of too little memory, which are the
//! crates `bench-cluster` and `bench-pressure`; histograms, statistics, reports, and the list of runs that give the
//! documented figures, which are the crate `lab`; or the command line around the suites. No suite looks into a server:
//! the suites reach a server only over its socket.
//!
//! Rules of every suite: setup lies outside the timed part. Values that are read are compared with the written ones,
//! byte by byte. Every figure is printed beside its payload, concurrency, durability and backend. Compared stores run
//! alternately in one process, and the reported ratio of two stores is the median of the ratios of the rounds.

mod account;
pub mod backends;
pub mod baseline;
pub mod cache;
mod clock_rule;
pub mod compare;
mod contender;
pub mod engine;
mod figures;
pub mod groups;
pub mod http;
pub mod log;
mod options;
pub mod pubsub;
pub mod resp;
mod saturation;
pub mod scenario;
mod search_report;
pub mod snapshot;
pub mod streams;

pub use thalweg_lab::{
    BenchError, Progress, Quiet, Report, Scratch, Stderr, profiling::ProfileOptions, regenerate, report, stats,
};
use thalweg_lab::{Spectrum, latency, profiling, random, scratch, usage};
pub use thalweg_load::live;
use thalweg_load::{self as load, data, native, probe, server, tasks};
