//! Figures that a scrape reads, and what counts them cheaply enough for every request.
//!
//! Owns: sharded histograms and counters ([`Shards`]), connections ([`Connections`]), and the collectors of what all protocols
//! share: the node ([`Node`]), consumer groups ([`Groups`]), subjects and caches.
//! Does not own: figures of a protocol. Each protocol counts its own in these types and brings its own collector; `server`
//! puts all collectors together.
//! Invariant: no module here imports a protocol. A collector is handed what it reads.

mod connections;
mod encode;
mod groups;
mod histogram;
mod node;
mod views;

pub use connections::Connections;
pub use encode::{NoLabels, counter, gauge};
pub use groups::Groups;
pub use histogram::{Shards, Snapshot};
pub use node::Node;
pub use views::{Caches, Subjects};
