//! The subjects suite: publish and subscribe over the native protocol, end to end.
//!
//! Every message of every subscription is checked, and timed from the moment at which it was due to the read that
//! brought it. In an open loop that moment is scheduled before the run. In a closed loop it is when the batch was
//! composed, and only the rate means something.
//!
//! Parts: `options` are what a run does, `publisher` and `subscriber` are its two sides, `recorder` counts, `stage` puts
//! them on threads and judges; `scenario` has the lines of the report and their presets, `suite` goes through them,
//! `report` shows the figures.

mod batch;
mod options;
mod publisher;
mod recorder;
mod report;
mod scenario;
mod stage;
mod subscriber;
mod suite;

pub use options::{PolicyChoice, Preset, PubsubOptions};
pub use suite::run;
