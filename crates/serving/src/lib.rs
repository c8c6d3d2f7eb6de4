//! Parts of a server that all protocols share: configuration, bounds, errors, metrics, threads, and serving of sockets.
//!
//! Owns:
//!
//! - the state that requests of every protocol share ([`app`]), and the configuration ([`config`])
//! - the bounds on work and memory, and the part of them that each client may use ([`admission`], [`half_open`],
//!   [`held_log`], [`pace`], [`limits`])
//! - the bounds on objects that clients create in the database (`created`), on the memory of these objects
//!   ([`objects`]), and on deletes of many keys ([`deleting`])
//! - work that continues after its client has disconnected ([`finishing`])
//! - threads for long reads ([`readers`]), and reads of rows before a write is proposed ([`fetched`])
//! - codes and messages of failed requests ([`error`]), counters and collectors ([`metrics`])
//! - the life of a connection from listener to close ([`accepting`], [`threads`], [`served_socket`], [`aside`])
//! - pushes of consumer groups ([`pushing`]), and reports of the progress of watches ([`watching`])
//! - subjects and caches ([`views`]), and the cluster as the protocols see it ([`cluster`])
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
