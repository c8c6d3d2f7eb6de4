//! The cluster suite: several nodes in processes of their own, over the loopback.
//!
//! Parts: `options` has the options, `nodes` starts, kills and restarts the nodes, `work` is what one row measures,
//! `probes` measures what the machine allows, `peer` drives another system's cluster on the same work, `failover` kills
//! leaders under load, `suite` runs the rows in turns and makes the report.

mod failover;
mod nodes;
mod options;
mod peer;
mod probes;
mod suite;
mod work;

pub use options::{ClusterOptions, Part, PeerKind};
pub use suite::run;
