//! Scenarios from files (`thalweg bench scenario`): a mix of operations on key-value pairs over HTTP or RESP,
//! and on a stream, a consumer group and a subject over HTTP, with YCSB A to F and others built in.
//!
//! Owns: the schema of the files, the operations with their keys and values, and the check of each reply against the
//! writes so far. Does not own the load generator and the distributions (`thalweg_load`, `thalweg_lab::random`).
//!
//! Parts: `file` and `feed_tables` are the schema, `mix` the kinds of operations, `records` the values, `ledger` the writes so far, `codec`
//! the requests and replies of each protocol, `rows` the reply to a scan, `work` joins them for the load generator,
//! `options`, `suite` and `feed_runs` are the command, and `tables` and `words` its report.

mod codec;
mod feed_runs;
mod feed_tables;
mod file;
mod ledger;
mod mix;
mod options;
mod records;
mod rows;
mod suite;
mod tables;
mod words;
mod work;

pub use options::{ScenarioOptions, WireProtocol};
pub use suite::run;
