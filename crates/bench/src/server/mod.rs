//! The server under test: one that runs already, or one of our own in a process of its own.
//!
//! Owns: starting and stopping a process ([`ServerProcess`]), reaching a Thalweg server over HTTP ([`Target`]), and
//! replies of HTTP ([`Reply`]).

mod process;
mod reply;
mod target;

pub use self::{
    process::{ServerProcess, free_port},
    reply::{Body, Incomplete, Reply, parse},
    target::{NativePort, Target, resolve},
};
