//! The HTTP suite: an open-loop load generator, whose request rate does not fall when the server is slow.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process; see `crate::load::pace`
//! for how response times are measured.
//!
//! Parts: `request` builds the bytes of requests and checks replies, `run` passes both to the load generator
//! (`crate::load`), `options` and `scenario` have the options and the presets, `running` prepares a server and plans a
//! run, `figures` takes the figures of a run that are compared, `suite` runs the scenarios.

mod figures;
mod options;
mod request;
mod run;
mod running;
mod scenario;
mod suite;

pub(crate) use figures::{Figure, figures, samples};
pub use options::{ApiChoice, HttpLoad, HttpOptions, Mix, Preset, ServerOptions};
pub(crate) use request::{Api, Requests};
pub(crate) use run::{Http, MissingKeyPolicy, Outcome};
pub(crate) use running::{api, level, plan, start, store_keys, target};
pub use suite::run;
