//! A node's place in a cluster: links to the other nodes, consensus over them, and failure detection.
//!
//! Owns: connections between nodes (dialling, accepting, the handshake), openraft's network over them, and the states
//! of other nodes. Does not own: the bytes of the protocol (`wire::peer`), consensus (`raft`), the database (`engine`),
//! or the protocols of clients.
//!
//! ```text
//! consensus thread   Raft ──► Network ──► Link ──────── socket ───► Listener ──► Service ──► Raft of the other node
//! ```
//! A node's consensus runs on one thread with its own runtime: the sockets between nodes, openraft, and the application
//! of entries. So a heartbeat never waits for a thread of the server. Two kinds of work have other threads: messages
//! between subscribers of different nodes (`subjects`), and reading and encoding old entries for a follower that
//! catches up (`old_entries`).

mod about;
mod calls;
mod catch_up;
mod comparison;
mod convert;
mod data;
pub mod detector;
mod entry_requests;
mod events;
mod forwarder;
mod founding;
mod frames;
mod handle;
mod handshake;
mod hearing;
mod link;
mod link_counters;
mod listener;
mod network;
mod node;
mod old_entries;
mod options;
mod peers;
mod pipeline;
mod repair;
mod report;
mod runs;
mod secret;
mod secured;
mod sent_facts;
mod service;
mod shared;
mod signs;
mod snapshots;
mod subjects;
mod tasks;
#[cfg(test)]
mod testing;
mod types;

pub use handshake::{Credentials, HandshakeError};
pub use link::CallError;
pub use node::{Node, NodeError};
pub use options::NodeOptions;
pub use repair::{RepairError, repair};
pub use secret::Secret;
pub use thalweg_transport::{
    Authority, CertificateFiles, Existing, IdentityError, PeerTls, PeerTlsError, PeerTlsFiles, Validity,
};
