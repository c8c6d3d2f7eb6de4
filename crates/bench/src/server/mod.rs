//! The server under test: one that runs already, or one of our own in a process of its own.
//!
//! Owns: starting and stopping a process ([`process`]), reaching a Thalweg server over HTTP ([`target`]), and replies of
//! HTTP ([`reply`]).

pub mod process;
pub mod reply;
pub mod target;
