//! Everything that suites share which load a server, whatever its protocol.
//!
//! Owns: the loop of a load thread over a trait of a protocol (`worker`, [`protocol`]), connections, when load is due
//! ([`pace`], [`schedule`]), what is counted ([`tally`]), the search for the highest rate that meets an objective
//! ([`search`]), starting and reaching a server ([`target`]), the threads ([`crew`]), and what makes a run's figures
//! void ([`validity`]). Does not own: requests and what a right reply is, which are the protocols'; the loops of the
//! native protocol ([`crate::native`]), which run over TLS and QUIC and therefore on a runtime, with the same pace,
//! clock and judgement.

pub mod address;
pub mod connection;
pub mod crew;
pub mod pace;
pub mod poller;
pub mod process;
pub mod protocol;
pub mod run;
pub mod schedule;
pub mod search;
pub mod tally;
pub mod target;
pub mod validity;
mod worker;
