//! Everything that suites share which load a server, whatever its protocol.
//!
//! Owns: the loop of a load thread (`worker`) over the trait of a protocol ([`protocol`]), which HTTP and RESP
//! implement; connections, and when load is due ([`pace`], [`schedule`]); the counts ([`tally`]); the search for the
//! highest rate that meets an objective ([`search`]); starting and reaching a server ([`target`]); the threads
//! ([`crew`]); and the reasons for which a run's figures are void ([`validity`]). Does not own: requests and the
//! judgement of replies, which are the protocols'; the loop of the native protocol's channels
//! ([`crate::native::drive`]), which may be TLS or QUIC and therefore need a runtime. That loop uses the same threads,
//! pace, clock and judgement.

pub mod address;
pub mod connection;
pub mod crew;
pub mod pace;
pub mod poller;
pub mod protocol;
pub mod rounds;
pub mod run;
pub mod schedule;
pub mod search;
pub mod tally;
pub mod validity;
mod worker;
