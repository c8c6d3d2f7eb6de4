//! The streams suite: durable appends and reads over the native protocol, beside what disk and network allow.
//!
//! An append that waits for the disk can't be faster than a round trip and an `fdatasync`: both are measured bare, in
//! the same run, with the same bytes. What was acked is read back and compared, record by record, outside the timed
//! part.
//!
//! Parts: `append` and `read` make requests, `scenario` has the lines of the report, `suite` goes through them.

mod append;
mod read;
mod report;
mod retention;
mod scenario;
mod suite;

pub use suite::{StreamsOptions, run};
