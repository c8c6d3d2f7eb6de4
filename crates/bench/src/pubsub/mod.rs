//! The subjects suite: publish and subscribe over the native protocol, end to end.
//!
//! Every message of every subscription is checked. Its time counts from the moment at which the message was due until
//! the read that brought it to the subscriber. In an open loop the due times are scheduled before the run. In a closed
//! loop a message is due when its batch is composed, and only the rate means something.
//!
//! Parts: `options` are the parameters of a run, `publisher` and `subscriber` are its two sides, `recorder` counts,
//! `stage` runs both sides on threads and checks the result; `scenario` has the lines of the report and their presets,
//! `suite` runs them, `report` creates the tables.

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
