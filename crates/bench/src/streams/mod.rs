//! The streams suite: durable appends and reads over the native protocol, compared with the raw speed of disk and
//! network.
//!
//! An append that waits for the disk cannot be faster than a network round trip and an `fdatasync`. Both are measured
//! without a server, in the same run, with the same bytes. Acknowledged records are read back and compared, record by
//! record, outside the timed part.
//!
//! Parts: `append` and `read` make requests, `scenario` has the lines of the report, `suite` runs them.

mod append;
mod read;
mod report;
mod retention;
mod scenario;
mod suite;

pub use suite::{StreamsOptions, run};
