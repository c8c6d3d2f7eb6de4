//! The HTTP suite: an open-loop load generator that does not let a slow server slow it down.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process; a
//! request's response time counts from its scheduled moment, whether or not a connection was free
//! then. So a stall of the server shows in every request that should have been sent meanwhile, not
//! only in the one that was under way (*coordinated omission*), and no second correction is applied.
//!
//! Parts: [`request`] builds the bytes, [`reply`] parses what comes back, [`mod@run`] gives both to the load generator
//! ([`crate::load`]), `suite` puts it together.

pub mod reply;
pub mod request;
pub mod run;
mod scenario;
mod suite;

pub use scenario::{ApiChoice, Mix, Preset};
pub use suite::{HttpOptions, run};
