//! The server under test: one that runs already, or one that the benchmark starts in a process of its own.
//!
//! Owns: starting and stopping a process ([`ServerProcess`]), reaching a Thalweg server over HTTP ([`Target`]), single
//! requests that are not load ([`Client`]), and decoding HTTP replies ([`Reply`]).

mod client;
mod process;
mod reply;
mod target;

pub use self::{
    client::Client,
    process::{ServerProcess, free_port},
    reply::{Body, Incomplete, Reply, parse},
    target::{NativePort, StartOptions, Target, authority, resolve, tail},
};
