//! The HTTP suite: an open-loop load generator that does not let a slow server slow it down.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process; a
//! request's response time counts from its scheduled moment, whether or not a connection was free
//! then. So a stall of the server shows in every request that should have been sent meanwhile, not
//! only in the one that was under way (*coordinated omission*), and no second correction is applied.
//!
//! Parts: [`request`] builds the bytes, [`reply`] parses what comes back, [`schedule`](crate::load::schedule) says when,
//! [`worker`] is the event loop of one thread, [`mod@run`] spawns the workers and judges the outcome,
//! [`search`](crate::load::search) looks for the knee, [`target`](crate::load::target) starts a server of our own when none is given,
//! `suite` puts it together.

mod connection;
pub mod reply;
pub mod request;
pub mod run;
mod scenario;
mod suite;
mod tally;
pub mod worker;

pub use scenario::{ApiChoice, Distribution, Mix, Preset};
pub use suite::{HttpOptions, run};
pub use tally::Tally;
