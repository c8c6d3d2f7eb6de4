//! The suite `thalweg bench cluster`: several nodes in processes of their own, over the loopback.
//!
//! Parts: `options` has the options, `nodes` starts, kills, stops and restarts the nodes, `relay` delays the network
//! between them, `work` has the requests of one row, `counted` reads the nodes' own counters, `probes` measures the
//! limits of the machine, `peer` drives another system's cluster with the same work, `suite` runs the rows alternately
//! and makes the report. Scenarios have nodes of their own and a module each: `founding`, `resp`, `publishers`,
//! `failover`, `rolling`, `lag`, `catch_up`, `snapshot`, `heartbeats`, `detection` (with `simulated_detection`), `tls`,
//! `slow_follower` (with `disks` and `unused_share`). They share `scenario` and `appends`.
//!
//! Does not own: the load generator, which is the crate `load`; histograms, statistics and reports, which are the crate
//! `lab`; the suites of single servers, which are the crate `bench`. The rules of those suites apply here, too: the
//! benchmark reaches a node over its sockets only. The simulation of failure detection runs the detectors of nodes
//! (crate `cluster`) without nodes.

mod appends;
mod catch_up;
mod counted;
mod detection;
mod disks;
mod failover;
mod founding;
mod heartbeats;
mod lag;
mod nodes;
mod options;
mod peer;
mod probes;
mod publishers;
mod relay;
mod resp;
mod rolling;
mod scenario;
mod simulated_detection;
mod slow_follower;
mod snapshot;
mod suite;
mod tls;
mod unused_share;
mod work;

pub use options::{ClusterOptions, Part, PeerKind, Timing};
pub use suite::run;
use thalweg_lab::{BenchError, Progress, Report, latency, random, report, stats, usage};
use thalweg_load::{self as load, data, probe, server};
