//! Tests of installs: contents over all backends, crashes, readers, and errors.
#![allow(clippy::print_stdout, reason = "figures are printed")]

mod backends;
mod crashes;
mod errors;
mod log;
mod readers;
mod support;
