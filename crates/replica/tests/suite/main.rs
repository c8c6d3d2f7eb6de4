//! `Solo` at its public face; what openraft makes of its files is in `../openraft`.

#![allow(clippy::print_stdout, reason = "seeds and figures are printed")]

mod lead;
mod solo;
mod stress;
mod truncations;
