//! The protocol between the nodes of a cluster, without I/O.
//!
//! Owns: every byte that goes over a connection between nodes (`docs/formats/peer.md` describes them): the header, the
//! frames, the handshake and its limits. Does not own: sockets, the secret (the handshake only defines which bytes are
//! authenticated), openraft's types, or the meaning of the commands and records in frames.
//!
//! A node dials each other node several times, once for each [`Channel`], and sends its requests on these connections.
//! The replies arrive on the same connection with the request's id, in any order. Frames of the channel for subjects
//! have no replies.
//!
//! Invariants:
//! - before the handshake has succeeded, a receiver reads at most [`MAX_HANDSHAKE_BYTES`] for a frame;
//! - a frame's body is at most [`MAX_BODY_BYTES`], also after decompression;
//! - bytes from the peer never panic.

mod frames;
mod handshake;
mod header;

pub use frames::*;
pub use handshake::{
    BeginTls, Challenge, Channel, Hello, MIN_VERSION, Nonce, PeerRun, Proof, Protection, RUN_FROM, Rejected, Role,
    SHORT_FROM, SUBJECTS_FROM, VERSION, Welcome, sealed_bytes, transcript,
};
pub use header::{
    COMPRESS_FROM_BYTES, HEADER_BYTES, Header, HeaderError, MAX_BODY_BYTES, MAX_HANDSHAKE_BYTES, MAX_SHORT_BYTES,
    PeerFrame, compress, decompress, encode, encode_compressed, shorten,
};
