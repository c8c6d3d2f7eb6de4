//! Redis's commands, independent of sockets and storage. A server adds sockets and a store to serve Redis clients.
//!
//! Owns: the encoding of RESP2 and RESP3, the table of commands, and the implementation of each command, written once
//! over the traits [`Read`] and [`Store`]. Does not own: the storage of keys (the state machine, a read view, a cache,
//! or in tests a map), connections, transactions and subscriptions, which belong to the server.
//!
//! Invariants:
//! * The effect of a command depends only on its arguments and the store: it uses no clock, no randomness, and no
//!   iteration order of its own. So a log entry with commands has the same effect on every node.
//! * A client's mistake is a [`Reply::Error`] and changes nothing; only a failing store is an `Err`.
//! * A client's bytes never cause a panic. A client cannot make the server allocate memory for announced but
//!   unsent bytes.

pub mod channels;
pub mod command;
pub mod connection;
pub mod errors;
mod execute;
mod expiry;
mod flags;
pub mod glob;
mod hashes;
mod keys;
pub mod long_double;
pub mod model;
pub mod number;
mod page;
mod random;
pub mod store;
pub mod streams;
mod strings;
pub mod table;
mod value;
mod value_steps;
pub mod wire;

pub use command::{Command, Run};
pub use errors::{Answer, CommandEnd};
pub use execute::{admit, execute, run, run_read};
pub use flags::Flags;
pub use store::{
    Collection, CollectionId, KeyInfo, KeyValue, Kind, MAX_DEADLINE_MILLIS, NewValue, Read, Store, StoreError, Value,
};
pub use table::find;
pub use thalweg_types::reply::Reply;
pub use value_steps::ValueSteps;
