//! Parts of a server that all protocols share: configuration, bounds, errors, metrics, threads, and serving of sockets.
//!
//! Owns: [`app::App`], the state that requests of every protocol share; [`config`]; [`admission`], [`half_open`],
//! [`held_log`], [`pace`] and [`limits`], the bounds on work and memory, and the shares of clients in them (`created`:
//! in what they create in the database; [`objects`]: the memory of that; [`deleting`]: in deletes of many keys);
//! [`finishing`], work that goes on without its client; [`readers`], the threads for long reads; [`fetched`], reads of
//! rows before writes are proposed; [`error`], the codes and messages of failed requests;
//! [`metrics`], counters and collectors; [`aside`], [`threads`], [`accepting`] and [`served_socket`], the life of a
//! connection from listener to close; [`pushing`], pushes of consumer groups; [`watching`], reports of the progress of
//! watches; [`views`], subjects and caches; [`cluster`], the cluster as the protocols see it. Does not own: protocols.
//! `thalweg-http`, `thalweg-native` and `thalweg-resp` are crates above this one. They do not import each other;
//! `thalweg-server` composes them.

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
