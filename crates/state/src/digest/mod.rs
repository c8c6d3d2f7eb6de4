//! The state digest: a hash over all rows that are equal on all replicas.
//!
//! Owns: the replicated form of each kind of row (the bytes that all replicas have in common), and the digest. Does not
//! own: the command that keeps a view for a digest (`machine::digest_view`), the layout of rows, or the comparison
//! between replicas.
//!
//! Invariant: a digest is a function of the committed entries alone.
//!
//! * `state_digest`: forms of rows, and the hash over a view.
//! * `kept_view`: the view that a digest command keeps.

pub(crate) mod kept_view;
pub(crate) mod state_digest;

#[cfg(test)]
mod tests;

pub use state_digest::{Digest, KindDigest, RowScope, StateDigest, replicated_row, state_digest, state_digest_while};
