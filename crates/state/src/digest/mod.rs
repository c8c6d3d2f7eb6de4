//! The state digest: a hash over all that replicas of a space agree on.

pub(crate) mod kept_view;
pub(crate) mod state_digest;
pub(crate) mod view;

#[cfg(test)]
mod tests;

pub use state_digest::{Digest, KindDigest, Standing, StateDigest, replicated_row, state_digest};
