//! Metrics: cheap counters for requests, and collectors that Prometheus reads at a scrape.
//!
//! Owns: sharded histograms and counters ([`Shards`]), connection counts ([`Connections`]), and the collectors of the
//! parts that all protocols share: the node ([`Node`]), consumer groups ([`Groups`]), subjects and caches
//! ([`Subjects`], [`Caches`]), reads on other threads ([`Reads`]), and the amounts of the server's resources that
//! clients hold ([`Shares`]). Does not own: metrics of a protocol. Each protocol counts with these types and has a
//! collector of its own; the server registers all collectors. Invariant: no module here imports a protocol. A collector
//! receives the database, or the subjects and caches, from which it reads its values.

mod cluster;
mod connections;
mod encode;
mod groups;
mod histogram;
mod node;
mod reads;
mod shares;
mod views;

pub use cluster::ClusterCollector;
pub use connections::{Connections, OpenConnection};
pub use encode::{NoLabels, counter, counters, gauge, gauges};
pub use groups::Groups;
pub use histogram::{HistogramCounts, Shards};
pub use node::Node;
pub use reads::Reads;
pub use shares::Shares;
pub use views::{Caches, Subjects};
