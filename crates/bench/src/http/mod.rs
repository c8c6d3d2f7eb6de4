//! The HTTP suite: an open-loop load generator that a slow server does not slow down.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process; see `crate::load::pace`
//! for what that means for response times.
//!
//! Parts: `request` builds the bytes and judges replies, `run` gives both to the load generator (`crate::load`),
//! `scenario` has the options and the presets, `suite` puts it together.

mod request;
mod run;
mod scenario;
mod suite;

pub use scenario::{ApiChoice, HttpOptions, Mix, Preset};
pub use suite::run;
