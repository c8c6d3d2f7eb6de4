//! The cluster suite: several nodes in processes of their own, over the loopback.
//!
//! Parts: `options` has the options, `nodes` starts, kills, stops and restarts the nodes, `relay` delays the network
//! between them, `work` has the requests of one row, `probes` measures the limits of the machine, `peer` drives another
//! system's cluster on the same work, `suite` runs the rows alternately and makes the report. Scenarios have nodes of
//! their own and a module each: `failover`, `rolling`, `lag`, `catch_up`, `heartbeats`, `detection`, `tls`,
//! `slow_follower`. They share `scenario` and `appends`.

mod appends;
mod catch_up;
mod detection;
mod failover;
mod heartbeats;
mod lag;
mod nodes;
mod options;
mod peer;
mod probes;
mod relay;
mod rolling;
mod scenario;
mod slow_follower;
mod suite;
mod tls;
mod work;

pub use options::{ClusterOptions, Part, PeerKind, Timing};
pub use suite::run;
