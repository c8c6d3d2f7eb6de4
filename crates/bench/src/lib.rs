//! Workloads, an open-loop load generator, histograms and reports: the suites of `thalweg bench`.
//!
//! Owns: the suites ([`log`], [`engine`], [`backends`], [`groups`], [`snapshot`], [`http`], and over the native
//! protocol [`pubsub`], [`cache`], [`streams`], over RESP [`resp`]), the load generators (`load`, `native`), how time
//! and resources are measured, and how a report looks as text and as JSON. Does not own: the command line around
//! the suites, and nothing inside the server, which is only reached over its socket.
//!
//! Rules that every suite keeps: setup lies outside the timed part; values read are compared with the written ones,
//! byte by byte; every figure is printed beside its payload, concurrency, durability and backend; compared subjects run
//! alternately in one process, and the ratio is the median of the rounds' ratios.

pub mod backends;
pub mod cache;
mod data;
pub mod engine;
mod error;
pub mod groups;
pub mod http;
mod latency;
mod load;
pub mod log;
mod machine;
mod native;
mod options;
mod probe;
mod progress;
pub mod pubsub;
mod random;
pub mod report;
pub mod resp;
mod scratch;
mod server;
pub mod snapshot;
pub mod stats;
pub mod streams;
mod tasks;
mod usage;

pub use error::BenchError;
pub use progress::{Progress, Quiet, Stderr};
pub use report::Report;
pub use scratch::Scratch;
