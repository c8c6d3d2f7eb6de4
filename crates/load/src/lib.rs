//! One load generator for any server, over HTTP, RESP, the native protocol or NATS.
//!
//! Owns: the loop of a load thread (`worker`) over the trait of a protocol ([`Protocol`]), which [`http`] and [`resp`]
//! implement, over sockets or calls in this process ([`Calls`]); the requests with their keys and values ([`data`],
//! [`pairs`]) or their records and messages ([`feeds`]), and the check of each reply; connections, and the times at
//! which requests are due ([`Pace`], [`Schedule`]); the counts of a run ([`Tally`]) and of its windows ([`Timeline`]),
//! its figures ([`Outcome`]) and their medians over the rounds of a scenario ([`Rounds`]); the search for the highest
//! rate that meets an objective ([`find_knee`]); the threads ([`run_threads`], [`run_counted`]), the live view of runs
//! ([`live`]), and many tasks on one thread ([`tasks`]); the reasons for which a run's figures are void ([`Validity`]);
//! threads for clients that need a runtime ([`ClientThreads`]); reaching or starting a server ([`server`]); and the
//! limits of the machine itself: servers without a database ([`native::bare`], [`native::relay`], [`resp::bare`]) and
//! the write speed of the bare disk ([`probe`]). Does not own: histograms, statistics and reports, which are in the
//! crate `lab`; the suites of `thalweg bench`, which are in the crates `bench`, `bench-cluster` and `bench-pressure`.
//!
//! Channels of the native protocol have an event loop of their own ([`native::drive()`]), because a channel may be TLS
//! or QUIC and therefore needs a runtime. That loop uses the same threads, pace, clock, counts and judgement of runs.
//!
//! The generator knows a server only by its protocol. It measures any other server in the same way, also one whose
//! answers are known, which is how `tests/known_answers` checks the generator itself.

mod address;
mod calls;
mod client_threads;
mod connection;
pub mod data;
pub mod feeds;
pub mod http;
pub mod live;
pub mod native;
#[cfg(feature = "nats")]
pub mod nats;
mod objective;
pub mod options;
mod pace;
pub mod pairs;
mod poller;
pub mod probe;
mod protocol;
mod recorded;
pub mod resp;
mod rounds;
mod run;
pub mod run_threads;
mod schedule;
mod search;
pub mod server;
mod server_samples;
mod tally;
pub mod tasks;
mod timeline;
mod validity;
mod worker;

use thalweg_lab::{BenchError, Progress, Scratch, latency, random, report, stats, usage};

pub use self::{
    address::Address,
    calls::{Calls, PendingReply},
    client_threads::ClientThreads,
    connection::Connection,
    objective::{Faults, LEAST_PATIENCE, Objective, TimeBound, Trial},
    pace::{Pace, Pacer},
    poller::{Event, Poller},
    protocol::{BadReply, Batching, Decoded, OnLoss, Plan, Protocol},
    recorded::Recorded,
    rounds::{Outcome, Rounds, turns},
    run::run,
    run_threads::{Clock, block_on_thread},
    schedule::{Arrivals, Change, Schedule},
    search::{Bounds, Knee, Limit, find_knee},
    server_samples::{ServerSource, run_counted},
    tally::{Merge, Tally},
    timeline::{Timeline, Window},
    validity::{BACKLOG, LIMITED_REMEDY, MAX_BUSY, MAX_DRIFT, MAX_STOLEN, Validity, saturated, unusable_clocks},
};
