//! Tests of installs: contents over all backends, crashes, readers, and errors.

mod backends;
mod crashes;
mod errors;
mod log;
mod readers;
mod support;
