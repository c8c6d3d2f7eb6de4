//! The suite `thalweg bench pressure`: it measures a server that has more data than memory, or many keys, or durable
//! puts for a minute.
//!
//! Modules: `options` has the options, `server` starts, stops and kills the server, which alone is in a control group
//! (crate `lab`), `work` has the requests and the check of their replies, `over` sends them over each protocol, `peaks`
//! watches the server's memory, `read_probe` and `append_probe` measure the bare disk, `room` checks the free disk
//! space, `interrupt` removes the data of an interrupted run. The report has several parts. Each is a measurement with
//! a module of its own: `loading`, `gets`, `misses`, `many_keys`, `tails`. They share `scenario` and `filled`, and
//! `suite` runs them.
//!
//! Does not own: the load generator, which is the crate `load`; control groups, histograms, statistics and reports,
//! which are the crate `lab`; the suites without a limit of memory, which are the crate `bench`. The rules of those
//! suites apply here, too: the server is a process of its own, and the suite reaches it over its sockets only.

mod append_probe;
mod filled;
mod gets;
mod interrupt;
mod loading;
mod many_keys;
mod misses;
mod options;
mod over;
mod peaks;
mod read_probe;
mod room;
mod scenario;
mod server;
mod suite;
mod tails;
mod work;

pub use options::{Order, Part, PressureOptions, WireProtocol};
pub use suite::run;
use thalweg_lab::{BenchError, Progress, Report, control_group, latency, random, report, stats, usage};
use thalweg_load::{self as load, probe};
