//! The HTTP server: `docs/http.md` describes its API.
//!
//! Owns: connections from accept to close, routes, handlers, and the JSON and bytes of requests and replies. The
//! command line also calls [`Http::respond`] without a server, over a directory that it has opened. Does not own:
//! bounds, errors and the database, which all protocols share ([`thalweg_serving`]).
//!
//! A request passes these steps: the socket (`connection`); the check of its host, and of the page that caused it
//! (`origin`); admission and counting (`handling`); the selection of its operation (`routes`); the handler
//! (`dispatch`); the reply (`reply`), or an error as JSON; the rest of its body (`draining`).
//!
//! Invariant: modules import each other in one direction only. From the top down: `listen`, `handling`, `routes`,
//! `dispatch`; the handlers; the modules that several handlers use (`names`, `operations`, `batch`, `record_json`,
//! `following`, `pages`, `body`); the parts of requests and replies (`call`, `caller`, `reply`, `json`, `parse`); the
//! descriptions of these parts in the OpenAPI document (`describe`, `shapes`).

mod batch;
mod body;
mod caches;
mod call;
mod caller;
mod cluster;
mod clustered;
mod commit;
mod connection;
mod describe;
mod dispatch;
mod document;
mod draining;
mod entity;
mod following;
mod groups;
mod handling;
mod home;
mod json;
mod json_body;
mod key_history;
mod keys;
mod keyspaces;
mod kv;
mod leases;
mod listen;
mod long_json;
mod metrics;
mod metrics_page;
mod named_writes;
mod names;
mod operations;
mod origin;
mod pages;
pub mod parse;
mod producers;
mod read_gate;
mod reading;
mod record_json;
mod records;
mod reply;
mod reply_memory;
mod routes;
mod scan;
mod shapes;
mod shared;
mod snapshot;
mod space;
mod state;
mod status;
mod streams;
mod subjects;
mod tail;
mod transaction;
mod ttl;
mod waiting_parts;
mod watch;

pub use dispatch::{OPENAPI, Operation, ROUTES, Route};
pub use listen::serve_until;
pub use shared::Http;
pub use state::digest_json;

/// Parsers of request bodies, exported for the fuzz target. They are not part of the crate's stable interface.
#[doc(hidden)]
pub mod bodies {
    pub use super::{batch::batch as records, commit::check as commit};
}
