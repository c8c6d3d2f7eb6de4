//! The cache suite: row F's operations over the native protocol, at a fixed concurrency, each answer compared.
//!
//! Parts: `work` makes requests and judges answers; `suite` goes through the operations.

mod suite;
mod work;

pub use suite::{CacheOptions, run};
