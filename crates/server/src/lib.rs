//! The server over the engine, over HTTP and the native protocol: configuration, listening, admission, routes, metrics.
//!
//! Owns: everything between a socket and [`thalweg_engine::AsyncDatabase`].
//! Does not own: the tokio runtime, signals, and where log lines go: the command sets those up.
//!
//! A request passes: socket ([`connection`]) → router ([`routes`]) → [`app::App::handle`] (id,
//! admission) → its handler → reply or [`error::ApiError`] → metrics. `docs/http.md` describes the API. How a frame of the
//! native protocol goes is told in [`native`].

mod accepting;
pub mod admission;
pub mod app;
mod batch;
mod body;
mod caches;
mod commit;
pub mod config;
pub mod connection;
mod entity;
pub mod error;
mod following;
mod groups;
mod json;
mod keys;
mod keyspaces;
mod kv;
mod leases;
pub mod limits;
pub mod metrics;
mod names;
pub mod native;
mod operations;
mod pages;
pub mod parse;
mod past;
mod producers;
mod records;
mod reply;
pub mod resp;
pub mod routes;
mod scan;
mod server;
mod snapshot;
mod solitude;
mod spare;
mod state;
mod status;
mod streams;
mod subjects;
mod tail;
pub mod threads;
mod transaction;
mod ttl;
pub mod views;
mod watch;

pub use commit::commit_json;
pub use config::{Config, ConfigError, Given, Layers, Resolved};
pub use groups::{GroupCall, group_json};
pub use keyspaces::{info_json, stats_json};
pub use leases::{lease_json, lease_json_with_keys};
pub use past::{cursor_of, cursor_text, versions_json};
pub use server::{Server, ServerError};
pub use state::{digest_json, version_json};
pub use status::{OPENAPI, node_status};
pub use transaction::transact_json;

/// Bodies without a request around them, for the fuzz target. No part of the API.
#[doc(hidden)]
pub mod bodies {
    pub use crate::{batch::batch as records, commit::check as commit};
}
