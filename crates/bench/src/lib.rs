//! Workloads, an open-loop load generator, histograms and reports: the suites of `thalweg bench`.
//!
//! Owns: the suites ([`log`], [`engine`], [`backends`], [`groups`], [`snapshot`], [`http`], [`cluster`], and over the native
//! protocol [`pubsub`], [`cache`], [`streams`], over RESP [`resp`]), the load generators (`load`, `native`), the
//! measuring of time and resources, and the layout of reports as text and as JSON. Does not own: the command line
//! around the suites, and nothing inside the server: the suites reach a server only over its socket.
//!
//! Rules that every suite keeps: setup lies outside the timed part; values read are compared with the written ones,
//! byte by byte; every figure is printed beside its payload, concurrency, durability and backend; compared stores run
//! alternately in one process, and the reported ratio of two stores is the median of the ratios of the rounds.

pub mod backends;
pub mod cache;
pub mod cluster;
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
