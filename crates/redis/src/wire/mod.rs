//! RESP2 and RESP3 as bytes: requests as they come, replies as they go.
//!
//! Owns: where requests begin and end ([`Input`]), the limits of Redis on what a client may announce and its texts for who
//! passes them ([`ProtocolError`]), how a [`Reply`](crate::Reply) looks in either protocol ([`Writer`]). Does not own
//! what requests mean, nor sockets.
//!
//! ```text
//! *2 ␍␊ $3 ␍␊ GET ␍␊ $1 ␍␊ k ␍␊      a request: an array of bulk strings, in both protocols
//! GET k ␊                            the same, inline: words, quoted as in a shell
//! ```
//!
//! # What it should cost
//!
//! Estimates, for a measurement to confirm or refute. A `GET` of a 16-byte key is 36 bytes with three lines that announce
//! something: about 25 ns, no allocation, no copy (arguments are places in the receive buffer). Its reply of 64 bytes:
//! about 10 ns, one copy. At 700 k commands a second both are 3 % of a core.

mod inline;
pub mod reply_parser;
mod request;
mod writer;

#[cfg(test)]
mod reference;
#[cfg(test)]
mod tests;

pub use request::{Input, ProtocolError, READ_BYTES, Request, Trust};
pub use writer::{Out, Protocol, Writer};
