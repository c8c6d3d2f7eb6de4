//! Tests of the public interface of `Solo` and `Member`. The tests of crate `raft` run both with openraft.

#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

mod behind;
mod lead;
mod member;
mod solo;
mod stress;
mod truncations;
