//! The server: HTTP, the native protocol and RESP (the Redis protocol) over one database.
//!
//! Owns: [`Server`], which binds, serves and stops the protocols together. Does not own: the protocols ([`http`],
//! [`native`], [`resp`]), the parts that they share ([`config`], [`error`] and other modules of `thalweg-serving`), the
//! tokio runtime, signals, and the destination of log lines. The `thalweg` command sets up the last three.

mod server;

pub use server::{Server, ServerError};
pub use thalweg_http::{self as http, OPENAPI, ROUTES, bodies, digest_json, parse};
pub use thalweg_native as native;
pub use thalweg_resp as resp;
pub use thalweg_serving::{
    app, cluster,
    config::{self, Config, ConfigError, ConfigLayer, Layers, Resolved},
    error,
    status::{node_status, space_json},
};
