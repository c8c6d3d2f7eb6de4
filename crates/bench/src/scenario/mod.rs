//! Scenarios from files (`thalweg bench scenario`): a mix of operations on key-value pairs over HTTP or RESP, with YCSB A
//! to F built in.
//!
//! Owns: the schema of the files, the operations with their keys and values, and the check of each reply against the
//! writes so far. Does not own the load generator and the distributions (`thalweg_load`, `thalweg_lab::random`).
//!
//! Parts: `file` is the schema, `mix` the kinds of operations, `records` the values, `ledger` the writes so far, `codec`
//! the requests and replies of each protocol, `rows` the reply to a scan, `work` joins them for the load generator,
//! `options` and `suite` are the command, and `tables` its tables.

mod codec;
mod file;
mod ledger;
mod mix;
mod options;
mod records;
mod rows;
mod suite;
mod tables;
mod work;

pub use options::{ScenarioOptions, WireProtocol};
pub use suite::run;
