//! The HTTP suite: an open-loop load generator, whose request rate does not fall when the server is slow.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process; see `crate::load::pace`
//! for how response times are measured.
//!
//! Parts: `request` builds the bytes of requests and checks replies, `run` passes both to the load generator
//! (`crate::load`), `scenario` has the options and the presets, `suite` runs the scenarios.

mod request;
mod run;
mod scenario;
mod suite;

pub(crate) use request::{Api, Requests};
pub(crate) use run::{Http, MissingKeyPolicy, Outcome};
pub use scenario::{ApiChoice, HttpOptions, Mix, Preset};
pub use suite::run;
