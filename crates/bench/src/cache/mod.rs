//! The cache suite: row F's operations over the native protocol, so many under way at a time, each answer compared.
//!
//! Parts: [`work`] is what is asked and what answers are right; `suite` goes through the operations.

mod suite;
pub mod work;

pub use suite::{CacheOptions, run};
