//! The server over the engine, over HTTP, the native protocol and RESP: configuration, listening, admission, metrics.
//!
//! Owns: everything between a socket and [`thalweg_engine::AsyncDatabase`].
//! Does not own: the tokio runtime, signals, and where log lines go: the command sets those up.
//!
//! Each protocol is a room: [`http`], [`native`], [`resp`]. They do not know each other, and [`Server`] puts them together.
//! All of them use what is left beside them: [`app`], what requests share; [`admission`] and [`limits`], how much may be under
//! way; [`error`], what a failed request is told; [`config`]; [`metrics`], what counts; [`threads`], [`views`] (subjects and
//! caches) and a few parts of serving a socket. Nothing of that knows a protocol.

mod accepting;
pub mod admission;
pub mod app;
pub mod config;
pub mod error;
mod fetching;
pub mod http;
pub mod limits;
pub mod metrics;
pub mod native;
pub mod resp;
mod served;
mod server;
mod solitude;
mod spare;
mod status;
pub mod threads;
pub mod views;

pub use config::{Config, ConfigError, Given, Layers, Resolved};
pub use http::{
    GroupCall, OPENAPI, ROUTES, bodies, commit_json, cursor_of, cursor_text, digest_json, group_json, info_json,
    lease_json, lease_json_with_keys, parse, stats_json, transact_json, version_json, versions_json,
};
pub use server::{Server, ServerError};
pub use status::node_status;
