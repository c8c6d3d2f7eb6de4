//! Scenarios from files (`thalweg bench scenario`). A scenario is a mix of operations on key-value pairs, a cache, a
//! stream, a consumer group and a subject, over HTTP, RESP, the native protocol, NATS or calls of the embedded engine.
//! YCSB A to F and others are built in.
//!
//! Owns: the schema of the files, the choice of operations, and the check of each reply against the writes so far. Does
//! not own: the load generator, the requests and the account of writes and records (`thalweg_load`), or the
//! distributions (`thalweg_lab::random`).
//!
//! Parts: `file`, `feed_tables` and `http_table` are the schema. `mix` has the kinds of operations, and `protocols` the
//! operations of each protocol. `work` joins them with the requests for the load generator. `options`, `suite`,
//! `targets`, `embedded` and `feed_runs` are the command, `tables` and `words` its report, and `contender` is a server
//! in a comparison.

mod contender;
mod embedded;
mod feed_runs;
mod feed_tables;
mod file;
mod http_table;
mod mix;
mod options;
mod protocols;
mod suite;
mod tables;
mod targets;
mod words;
mod work;

pub(crate) use contender::contender;
pub use options::ScenarioOptions;
pub use protocols::WireProtocol;
pub use suite::run;
