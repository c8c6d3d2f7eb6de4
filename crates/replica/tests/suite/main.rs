//! Tests of `Solo`'s public interface. `../openraft` tests that openraft can open its files.

#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

mod lead;
mod solo;
mod stress;
mod truncations;
