//! A node's place in a cluster: links to the other nodes, consensus over them, and failure detection.
//!
//! Owns: connections between nodes (dialling, accepting, the handshake), openraft's network over them, and the states of
//! other nodes. Does not own: the bytes of the protocol (`wire::peer`), consensus (`raft`), the database (`engine`), or the
//! protocols of clients.
//!
//! ```text
//! consensus thread   Raft ──► Network ──► Link ──────── socket ───► Listener ──► Service ──► Raft of the other node
//! ```
//! Everything of a node's consensus runs on one thread, with a runtime of its own: the sockets between nodes, openraft, and
//! the application of entries. So a heartbeat never waits for a thread of the server.

mod convert;
pub mod detector;
mod frames;
mod handshake;
mod hearing;
mod link;
mod listener;
mod network;
mod secret;
#[cfg(test)]
mod testing;
mod types;

pub use handshake::{Credentials, HandshakeError};
pub use link::CallError;
pub use secret::Secret;
