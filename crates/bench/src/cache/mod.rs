//! The cache suite: puts and gets over the native protocol at a fixed concurrency, each reply compared with the right
//! one. The operations are those of *row F*, a published benchmark of another system.
//!
//! Parts: `work` makes requests and judges replies; `suite` goes through the operations.

mod suite;
mod work;

pub use suite::{CacheOptions, run};
