//! The native binary protocol without I/O: it turns bytes into frames and frames into bytes.
//!
//! Owns: every byte that goes over a native connection (`docs/formats/wire.md` describes them), the arithmetic of
//! credit, the handshake at the start of a connection, and the client's table that matches replies to requests. Does
//! not own: sockets, tasks, clocks, the database, or the execution of requests.
//!
//! ```
//! use thalweg_types::{KeyspaceId, Revision};
//! use thalweg_wire::{ClientFrame, Decoder, Fields, Frame, Get, RemainingBytes, Values};
//!
//! // A client encodes frames into a buffer and sends the buffer.
//! let mut out = Vec::new();
//! let get = Get { keyspace: KeyspaceId(1), revision: Revision(0), values: Values::Include, key: RemainingBytes(b"ada") };
//! get.encode(&mut out, 7).unwrap();
//!
//! // A server feeds the received bytes to a decoder and takes frames out.
//! let mut decoder = Decoder::new();
//! decoder.feed(&out);
//! let raw = decoder.next_borrowed().unwrap().expect("the whole frame has arrived");
//! let request = ClientFrame::decode(raw).unwrap();
//! assert_eq!((request.id, request.frame), (7, ClientFrame::Get(get)));
//! ```

pub mod batch;
pub mod command;
pub mod credit;
mod decoder;
mod frames;
pub mod handshake;
mod header;
pub mod outcome;
pub mod peer;
pub mod session;

pub use batch::{Batch, BatchError, BatchWriter, Checksum, SharedBatch};
pub use command::ClientCommand;
pub use credit::{ReceiveCredit, SendCredit};
pub use decoder::{Decoder, FrameError, READ_BYTES, RawFrame, SharedFrame};
pub use frames::*;
pub use header::{
    Fields, FieldsError, HEADER_BYTES, Header, KNOWN_FIELDS, MAX_ADDRESS_BYTES, MUST_UNDERSTAND, Route, put_frame,
};
pub use outcome::put_outcome;
pub use session::Session;
pub use thalweg_types::codec::{EncodeError, Field, Level, List, RemainingBytes, ShortBytes, Structure};
pub use thalweg_types::message::{Headers, Message, Messages};
