//! The cache suite: puts and gets over the native protocol at a fixed concurrency. Each reply is compared with the
//! expected one. The operations are those of *row F*, a published benchmark of another server of messages and caches
//! (see docs/performance.md).
//!
//! Parts: `work` makes requests and checks replies; `suite` runs all operations.

mod suite;
mod work;

pub use suite::{CacheOptions, run};
