//! Parts of a server that all protocols share: configuration, bounds, errors, metrics, threads, and serving of sockets.
//!
//! Owns, by module:
//!
//! - [`app`]: the state that requests of every protocol share, and [`config`]
//! - [`admission`], [`half_open`], [`held_log`], [`pace`] and [`limits`]: the bounds on work and memory, and clients'
//!   shares of them
//! - `created`, [`objects`] and [`deleting`]: the same for what clients create in the database, for the memory of these
//!   objects, and for deletes of many keys
//! - [`finishing`]: work that continues after its client has disconnected
//! - [`readers`] and [`fetched`]: threads for long reads, and reads of rows before a write is proposed
//! - [`error`] and [`metrics`]: codes and messages of failed requests, counters and collectors
//! - [`accepting`], [`threads`], [`served_socket`] and [`aside`]: the life of a connection from listener to close
//! - [`pushing`] and [`watching`]: pushes of consumer groups, and reports of the progress of watches
//! - [`views`] and [`cluster`]: subjects and caches, and the cluster as the protocols see it
//!
//! Does not own: protocols. `thalweg-http`, `thalweg-native` and `thalweg-resp` are crates above this one. They do not
//! import each other; `thalweg-server` composes them.

pub mod accepting;
pub mod admission;
pub mod app;
pub mod aside;
pub mod bulk;
pub mod cluster;
pub mod config;
mod created;
mod creating;
pub mod deleting;
pub mod error;
mod fair_queue;
pub mod fetched;
pub mod fetching;
pub mod finishing;
pub mod half_open;
pub mod held_log;
pub mod limits;
pub mod metrics;
pub mod objects;
mod overlaps;
pub mod pace;
pub mod pushing;
pub mod readers;
mod reserve;
pub mod served_socket;
pub mod sole_client;
pub mod spare;
pub mod status;
pub mod threads;
pub mod time;
pub mod views;
pub mod watching;
