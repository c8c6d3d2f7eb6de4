//! The HTTP suite: an open-loop load generator, whose request rate does not fall when the server is slow.
//!
//! Arrivals are scheduled before the run begins, at a constant rate or as a Poisson process. [`thalweg_load::Pace`]
//! describes how response times are measured. Does not own: requests and the check of replies (`thalweg_load::http`).
//!
//! Parts: `options` and `scenario` have the options and the presets, `running` prepares a server and plans a run,
//! `findings` describes and draws the figures, `suite` runs the scenarios, `contender` is a server in a comparison.

mod contender;
mod findings;
mod options;
mod running;
mod scenario;
mod suite;

pub(crate) use contender::contender;
pub(crate) use options::OF_SCHEDULES;
pub use options::{ApiChoice, HttpLoad, HttpOptions, Mix, Preset, ServerOptions};
pub(crate) use running::{api, level, plan, sampled, start, store_keys, target};
pub use suite::run;
