//! The parts that all suites share which put load on a server, for any protocol.
//!
//! Owns: the loop of a load thread (`worker`) over the trait of a protocol ([`Protocol`]), which HTTP and RESP
//! implement; connections, and when requests are due ([`Pace`], [`Schedule`]); the counts of a run ([`Tally`]) and
//! of its windows ([`Timeline`]), its figures ([`Outcome`]) and their medians over the rounds of a scenario ([`Rounds`]); the search for the highest rate
//! that meets an objective ([`find_knee`]); the threads ([`run_threads`]); and the reasons for which a run's figures
//! are void ([`Validity`]). Does not own: requests and the checking of replies, which are the protocols'; the server
//! ([`crate::server`]); the loop of the native protocol's channels ([`crate::native::drive`]), which may be TLS or QUIC
//! and therefore need a runtime. That loop uses the same threads, pace, clock, counts and judgement of runs.

mod address;
mod connection;
mod pace;
mod poller;
mod protocol;
mod rounds;
mod run;
pub mod run_threads;
mod schedule;
mod search;
mod tally;
mod timeline;
mod validity;
mod worker;

pub use self::{
    address::Address,
    connection::Connection,
    pace::{Pace, Pacer},
    poller::{Event, Poller},
    protocol::{BadReply, Batching, Decoded, OnLoss, Plan, Protocol},
    rounds::{Outcome, Rounds, turns},
    run::run,
    run_threads::{Clock, block_on_thread},
    schedule::{Arrivals, Schedule},
    search::{Bounds, Knee, Objective, Trial, find_knee},
    tally::{Merge, Tally},
    timeline::{Timeline, Window},
    validity::{BACKLOG, MAX_BUSY, Validity, saturated},
};
