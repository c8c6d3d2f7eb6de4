//! The server under test: one that runs already, or one that the benchmark starts in a process of its own.
//!
//! Owns: starting and stopping a process ([`ServerProcess`]), reaching a Thalweg server over HTTP ([`Target`]), single
//! requests that are not load ([`Client`]), decoding HTTP replies ([`Reply`]), the server's metrics ([`Metrics`]) with
//! the stages of operations in them ([`Stages`]), and the process behind a local port ([`other_process`]).

mod client;
mod listener;
mod metrics;
mod process;
mod reply;
mod stages;
mod target;

pub use self::{
    client::Client,
    listener::other_process,
    metrics::Metrics,
    process::{ServerProcess, free_port},
    reply::{Body, Incomplete, Reply, parse},
    stages::{Stages, TimedRequests, add_stages},
    target::{DiskUse, NativePort, StartOptions, Target, authority, resolve, tail},
};
