//! The embedded database: log, state and replica behind one blocking and one async handle.
//!
//! Owns: a data directory (its lock, identity, log and state), opening and closing it, maintenance in
//! the background (retention, moving, freeing, flushing), resolving values that stay in the log.
//! Does not own: the network, configuration files.

mod api;

pub use api::*;
pub use thalweg_types as types;
